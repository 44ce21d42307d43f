#!/usr/bin/env bash
# Apache MINA SSHD answers in a version 3 session with status codes that only later versions have.
#
# Seen with: Apache MINA SSHD 2.20.0 as the server, Paramiko 5.1.0 as the client; OpenJDK 17 on Linux.
#
# Version 3 of SFTP ends at status 8. MINA negotiates 3 and then sends 9, 11, 18, 19 and 24 of version 6's list, where
# OpenSSH sends FAILURE (4) or NO_SUCH_FILE (2). Paramiko makes an OSError without an errno of them; stock sftp prints
# "Unknown status".
#
# Why it matters: "MKDIR, and FAILURE means that it is there already" is how clients for version 3 make directories,
# as the protocol has no better code. With a match on 4 the second copy into the same directory fails on MINA. A table
# of nine codes has no entry for them. Any code but OK and EOF is a failure; the reason has to be asked for (STAT),
# whatever the version.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q paramiko==5.1.0
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

cat >Run.java <<'JAVA'
import java.util.List;
import org.apache.sshd.server.SshServer;
import org.apache.sshd.server.keyprovider.SimpleGeneratorHostKeyProvider;
import org.apache.sshd.sftp.server.SftpSubsystemFactory;

public class Run {
    public static void main(String[] args) throws Exception {
        var server = SshServer.setUpDefaultServer();
        server.setHost("127.0.0.1");
        server.setKeyPairProvider(new SimpleGeneratorHostKeyProvider());
        server.setPasswordAuthenticator((user, password, session) -> true);
        server.setSubsystemFactories(List.of(new SftpSubsystemFactory()));
        server.start();
        System.out.println(server.getPort());
        Thread.sleep(120_000);
    }
}
JAVA
java -cp 'lib/*' Run.java >port 2>java.log &
server=$!
for _ in $(seq 600); do [ ! -s port ] || break; sleep 0.1; done

mkdir -p files/folder/inside
echo text >files/file
cat >run.py <<'PY'
import sys

import paramiko
from paramiko.sftp import CMD_CLOSE, CMD_MKDIR, CMD_OPENDIR, CMD_READ, CMD_REMOVE, CMD_RENAME, CMD_RMDIR, int64

port, files = int(sys.argv[1]), sys.argv[2]
transport = paramiko.Transport(("127.0.0.1", port))
transport.connect(username="u", password="p")


class Client(paramiko.SFTPClient):
    def _send_version(self):
        version = super()._send_version()
        print("version", version)
        return version

    def _convert_status(self, message):
        self.status = message.get_int()


def status(what, *request):
    client._request(*request)
    print(f"{what}: status {client.status}")


client = Client.from_transport(transport)


status("MKDIR of what exists", CMD_MKDIR, f"{files}/folder", paramiko.SFTPAttributes())
status("RENAME over a file", CMD_RENAME, f"{files}/folder", f"{files}/file")
status("RMDIR of a directory that is not empty", CMD_RMDIR, f"{files}/folder")
status("RMDIR of a file", CMD_RMDIR, f"{files}/file")
status("OPENDIR of a file", CMD_OPENDIR, f"{files}/file")
status("REMOVE of a directory", CMD_REMOVE, f"{files}/folder")
handle = client._request(CMD_OPENDIR, f"{files}/folder")[1].get_binary()
status("READ of a directory's handle", CMD_READ, handle, int64(0), 10)
client._request(CMD_CLOSE, handle)
transport.close()
PY
"$dir/venv/bin/python" run.py "$(cat port)" "$dir/files" >actual

cat >expected <<'END'
version 3
MKDIR of what exists: status 11
RENAME over a file: status 11
RMDIR of a directory that is not empty: status 18
RMDIR of a file: status 19
OPENDIR of a file: status 19
REMOVE of a directory: status 24
READ of a directory's handle: status 9
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
