#!/usr/bin/env bash
# Apache MINA SSHD's SFTP file system: truncate() lengthens files, setLastModifiedTime() sets nothing, "*" matches "/".
#
# Seen with: sshd-sftp 2.20.0 on OpenJDK 17, asyncssh 2.24.1 as the server; with OpenSSH 9.2p1 it is the same.
#
# By java.nio's description, truncate() never lengthens a file and takes a position behind the new end back to it. Here
# the size goes to the server as it is, which adds zeros up to it, and the position stays, so that the next write leaves
# a gap of zeros. transferFrom() to a place behind the end should transfer nothing, and writes there. A time of
# modification that is set without the time of access is left out of the request, and the call returns. In a glob, "*"
# goes across directories.
#
# Why it matters: "truncate(limit)" keeps logs and caches below a size, and fills the small ones with zeros instead. A
# tool that compares times after setting them copies each file every time. Compare with size() before truncate(), call
# position(size) after it, and set both times through BasicFileAttributeView.setTimes().
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
      <groupId>org.apache.sshd</groupId><artifactId>sshd-sftp</artifactId><version>2.20.0</version>
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
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystem;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributeView;
import java.nio.file.attribute.FileTime;
import java.util.Map;

public class Run {
    static final Path FILE = Path.of("file").toAbsolutePath();

    interface Call {
        Object run(FileChannel channel) throws IOException;
    }

    static void show(FileSystem system, String what, Call call) throws IOException {
        Files.writeString(FILE, "0123456789");
        try (var channel = FileChannel.open(system.getPath(FILE.toString()), WRITE)) {
            System.out.print("  " + what + ": " + call.run(channel));
        }
        System.out.println(", " + Files.readString(FILE).replace('\0', '.'));
    }

    static ByteBuffer bytes(String text) {
        return ByteBuffer.wrap(text.getBytes());
    }

    static void show(FileSystem system) throws IOException {
        show(system, "truncate(15)", channel -> "size " + channel.truncate(15).size());
        show(system, "at 8, truncate(5), write", channel -> {
            channel.position(8).truncate(5);
            return "at " + channel.position() + ", wrote " + channel.write(bytes("ab"));
        });
        show(system, "transferFrom() to 13", channel ->
                channel.transferFrom(Channels.newChannel(new ByteArrayInputStream("abc".getBytes())), 13, 3) + " bytes");

        var file = system.getPath(FILE.toString());
        var time = FileTime.fromMillis(1_000_000_000_000L);
        Files.setLastModifiedTime(file, time);
        System.out.println("  setLastModifiedTime(): is set: " + Files.getLastModifiedTime(FILE).equals(time));
        Files.getFileAttributeView(file, BasicFileAttributeView.class).setTimes(time, time, null);
        System.out.println("  setTimes() of both: is set: " + Files.getLastModifiedTime(FILE).equals(time));
        var matcher = system.getPathMatcher("glob:logs/*.gz");
        System.out.println("  logs/*.gz matches logs/old/a.gz: " + matcher.matches(system.getPath("logs/old/a.gz")));
    }

    public static void main(String[] args) throws Exception {
        System.out.println("local");
        show(FileSystems.getDefault());
        System.out.println("SFTP");
        try (var system = FileSystems.newFileSystem(URI.create("sftp://u:p@127.0.0.1:" + args[0] + "/"), Map.of())) {
            show(system);
        }
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
local
  truncate(15): size 10, 0123456789
  at 8, truncate(5), write: at 5, wrote 2, 01234ab
  transferFrom() to 13: 0 bytes, 0123456789
  setLastModifiedTime(): is set: true
  setTimes() of both: is set: true
  logs/*.gz matches logs/old/a.gz: false
SFTP
  truncate(15): size 15, 0123456789.....
  at 8, truncate(5), write: at 8, wrote 2, 01234...ab
  transferFrom() to 13: 3 bytes, 0123456789...abc
  setLastModifiedTime(): is set: false
  setTimes() of both: is set: true
  logs/*.gz matches logs/old/a.gz: true
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
