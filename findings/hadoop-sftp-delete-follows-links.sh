#!/usr/bin/env bash
# Hadoop's SFTP file system: a recursive delete of a directory also deletes what the symbolic links in it lead to.
#
# Seen with: hadoop-common 3.5.0's SFTPFileSystem on JSch 0.1.55, OpenJDK 17; asyncssh 2.24.1 as the server.
#
# Each name in the directory is looked up through realpath, so a link to a directory has the type of a directory, and
# its listing is that of the target. All that is in there is removed, at any depth and outside of the directory too. The
# RMDIR of the link then fails, its failure and those of single files are not looked at, and delete() returns false at
# the top. Hadoop's local file system removes the link alone.
#
# Why it matters: "current", "latest" and links to shared data sit in the directories of releases and of jobs, and
# cleaning up an old one empties what the others use. The result false reads as "nothing was done". List the directory
# with a client that shows links (LSTAT), and remove them first.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
# Hadoop's SFTP needs few of the libraries that hadoop-common asks for.
dependency() {
    local group artifact version
    IFS=: read -r group artifact version <<<"$1"
    echo "<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version>$2</dependency>"
}
alone='<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>'
{
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>finding</groupId><artifactId>finding</artifactId><version>1</version><dependencies>'
    dependency org.apache.hadoop:hadoop-common:3.5.0 "$alone"
    dependency org.apache.hadoop:hadoop-auth:3.5.0 "$alone"
    for name in org.apache.hadoop.thirdparty:hadoop-shaded-guava:1.4.0 com.jcraft:jsch:0.1.55 \
        commons-io:commons-io:2.16.1 commons-collections:commons-collections:3.2.2 commons-logging:commons-logging:1.3.0 \
        org.apache.commons:commons-collections4:4.4 org.apache.commons:commons-compress:1.26.1 \
        org.apache.commons:commons-configuration2:2.10.1 org.apache.commons:commons-lang3:3.17.0 \
        com.fasterxml.woodstox:woodstox-core:5.4.0 com.google.re2j:re2j:1.1 com.google.code.findbugs:jsr305:3.0.2 \
        org.slf4j:slf4j-nop:1.7.36; do
        dependency "$name" ""
    done
    echo '</dependencies></project>'
} >pom.xml
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1

cat >Run.java <<'JAVA'
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;

public class Run {
    static String state(Path path) {
        return Files.exists(path, LinkOption.NOFOLLOW_LINKS) ? "there" : "gone";
    }

    static void show(String what, Path files, FileSystem system) throws Exception {
        Files.createDirectories(files.resolve("data/inner"));
        Files.writeString(files.resolve("data/a"), "text");
        Files.writeString(files.resolve("data/inner/b"), "text");
        Files.createDirectories(files.resolve("release"));
        Files.createSymbolicLink(files.resolve("release/shared"), Path.of("../data"));
        boolean result = system.delete(new org.apache.hadoop.fs.Path(files + "/release"), true);
        System.out.println(what + ": delete of release: " + result);
        for (String name : new String[] {"release", "data", "data/a", "data/inner/b"}) {
            System.out.println("  " + name + ": " + state(files.resolve(name)));
        }
    }

    public static void main(String[] args) throws Exception {
        var configuration = new Configuration();
        configuration.set("fs.sftp.impl", "org.apache.hadoop.fs.sftp.SFTPFileSystem");
        show("local", Path.of("local").toAbsolutePath(), FileSystem.getLocal(configuration));
        var uri = URI.create("sftp://u:p@127.0.0.1:" + args[0] + "/");
        show("SFTP", Path.of("remote").toAbsolutePath(), FileSystem.get(uri, configuration));
        System.exit(0);
    }
}
JAVA
cat >server.py <<'PY'
import asyncio
import sys

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    program = await asyncio.create_subprocess_exec(*sys.argv[1:], str(server.get_port()))
    sys.exit(await program.wait())


asyncio.run(main())
PY
timeout 100 venv/bin/python server.py java -cp 'lib/*' Run.java >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
local: delete of release: true
  release: gone
  data: there
  data/a: there
  data/inner/b: there
SFTP: delete of release: false
  release: there
  data: there
  data/a: gone
  data/inner/b: gone
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
