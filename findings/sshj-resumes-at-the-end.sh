#!/usr/bin/env bash
# sshj: put() and get() with a byteOffset write at the end of what is there, and put() elsewhere if the server is pkg/sftp.
#
# Seen with: sshj 0.40.0; asyncssh 2.24.1 and github.com/pkg/sftp 1.13.12 (on gliderlabs/ssh 0.3.8) as the servers.
#
# The offset says where reading begins. The target is opened to append, and its size is not looked at: with an offset
# below it a part of the file is there twice, with one above it a part is missing, and both calls return normally. put()
# sends offsets along, so with a server that ignores APPEND the same call overwrites from the offset, or leaves zeros.
#
# Why it matters: the obvious offset for a resumed upload is the count of a progress listener. sshj has up to 17 writes in
# flight, so that count is not what the server has stored. Take the offset from the target's size right before the call,
# and compare the sizes, or a checksum, afterwards.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src"
cd "$dir/src"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1
cat >pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.hierynomus</groupId><artifactId>sshj</artifactId><version>0.40.0</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.16</version></dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }

cat >main.go <<'GO'
package main

import (
	"fmt"
	"net"

	"github.com/gliderlabs/ssh"
	"github.com/pkg/sftp"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := &ssh.Server{
		PasswordHandler: func(ssh.Context, string) bool { return true },
		SubsystemHandlers: map[string]ssh.SubsystemHandler{"sftp": func(session ssh.Session) {
			if files, err := sftp.NewServer(session); err == nil {
				files.Serve()
			}
		}},
	}
	server.Serve(listener)
}
GO
go mod init finding 2>/dev/null
go get github.com/pkg/sftp@v1.13.12 github.com/gliderlabs/ssh@v0.3.8 golang.org/x/crypto@v0.59.0 2>/dev/null
go build -o pkg-sftp .
cat >Resume.java <<'JAVA'
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import net.schmizz.sshj.SSHClient;
import net.schmizz.sshj.transport.verification.PromiscuousVerifier;

public class Resume {
    static String rest(String name) throws IOException {
        return Files.readString(Path.of(name)).replace('\0', '.');
    }

    public static void main(String[] args) throws Exception {
        Files.writeString(Path.of("whole"), "0123456789abcdef");
        String directory = Path.of("").toAbsolutePath() + "/";
        try (var client = new SSHClient()) {
            client.addHostKeyVerifier(new PromiscuousVerifier());
            client.connect("127.0.0.1", Integer.parseInt(args[0]));
            client.authPassword(args[1], "p");
            var sftp = client.newSFTPClient();
            for (int offset : new int[] {8, 4, 12}) {
                Files.writeString(Path.of("part"), "01234567");
                sftp.put("whole", directory + "part", offset);
                System.out.println(args[1] + ", put() from " + offset + ": " + rest("part"));
            }
            for (int offset : new int[] {8, 4, 12}) {
                Files.writeString(Path.of("part"), "01234567");
                sftp.get(directory + "whole", "part", offset);
                System.out.println(args[1] + ", get() from " + offset + ": " + rest("part"));
            }
        }
    }
}
JAVA
cat >run.py <<'PY'
import asyncio
import sys

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def resume(port, name):
    java = await asyncio.create_subprocess_exec("java", "-cp", sys.argv[1], "Resume.java", str(port), name)
    await asyncio.wait_for(java.wait(), 60)


async def main():
    key = asyncssh.generate_private_key("ssh-rsa")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await resume(server.get_port(), "asyncssh")
    program = await asyncio.create_subprocess_exec("./pkg-sftp", stdout=asyncio.subprocess.PIPE)
    try:
        await resume(int(await program.stdout.readline()), "pkg-sftp")
    finally:
        program.kill()
        await program.wait()


asyncio.run(main())
PY
timeout 150 "$dir/venv/bin/python" run.py "$dir/lib/*" >actual 2>"$dir/errors" || { cat "$dir/errors" >&2; exit 1; }

cat >expected <<'END'
asyncssh, put() from 8: 0123456789abcdef
asyncssh, put() from 4: 01234567456789abcdef
asyncssh, put() from 12: 01234567cdef
asyncssh, get() from 8: 0123456789abcdef
asyncssh, get() from 4: 01234567456789abcdef
asyncssh, get() from 12: 01234567cdef
pkg-sftp, put() from 8: 0123456789abcdef
pkg-sftp, put() from 4: 0123456789abcdef
pkg-sftp, put() from 12: 01234567....cdef
pkg-sftp, get() from 8: 0123456789abcdef
pkg-sftp, get() from 4: 01234567456789abcdef
pkg-sftp, get() from 12: 01234567cdef
END
diff -u expected actual || { cat "$dir/errors" >&2; echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
