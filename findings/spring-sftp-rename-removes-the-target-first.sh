#!/usr/bin/env bash
# Spring Integration's SFTP: a rename whose source is missing, or is the target itself, removes the target.
#
# Seen with: spring-integration-sftp 7.1.2 on Apache MINA SSHD, OpenJDK 17; asyncssh 2.24.1 as the server.
#
# Below version 5 of the protocol, which is what nearly all servers speak, SftpSession.rename() sends a REMOVE of the
# target and then the RENAME. It does not look for the source before, and does not use posix-rename@openssh.com, which
# replaces the target in one step. RemoteFileTemplate.rename(), the gateway's mv command and the upload by a temporary
# name all come here.
#
# Why it matters: two consumers that move the same file, or a mv that is tried again after a lost answer, delete what
# the first one moved; the error tells of the source only. During each upload the file is missing for a moment. Check
# that the source is there, or call rename() of a client that has posix-rename.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.springframework.integration</groupId><artifactId>spring-integration-sftp</artifactId><version>7.1.2</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1

cat >Run.java <<'JAVA'
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.TreeMap;
import org.springframework.integration.sftp.session.DefaultSftpSessionFactory;
import org.springframework.integration.sftp.session.SftpRemoteFileTemplate;

public class Run {
    static final Path FILES = Path.of("files").toAbsolutePath();

    static void show(SftpRemoteFileTemplate template, String from, String to) throws Exception {
        Files.writeString(FILES.resolve("old"), "text");
        Files.writeString(FILES.resolve("report"), "the report");
        String result = "done";
        try {
            template.rename(FILES + "/" + from, FILES + "/" + to);
        } catch (Exception error) {
            result = "an error";
        }
        var left = new TreeMap<String, String>();
        try (var list = Files.list(FILES)) {
            for (Path path : (Iterable<Path>) list::iterator) {
                left.put(path.getFileName().toString(), Files.readString(path));
                Files.delete(path);
            }
        }
        System.out.println(from + " to " + to + ": " + result + ", there is " + left);
    }

    public static void main(String[] args) throws Exception {
        Files.createDirectory(FILES);
        var factory = new DefaultSftpSessionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(args[0]));
        factory.setUser("u");
        factory.setPassword("p");
        factory.setAllowUnknownKeys(true);
        var template = new SftpRemoteFileTemplate(factory);
        show(template, "old", "new");
        show(template, "old", "report");
        show(template, "missing", "report");
        show(template, "report", "report");
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
old to new: done, there is {new=text, report=the report}
old to report: done, there is {report=text}
missing to report: an error, there is {old=text}
report to report: an error, there is {old=text}
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
