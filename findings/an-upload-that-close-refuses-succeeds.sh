#!/usr/bin/env bash
# Paramiko, libcurl and sshj say that an upload went well although the server answered its CLOSE with an error.
#
# Seen with: Paramiko 5.1.0, pycurl 7.49.0 (libcurl 8.23.0 with libssh2), sshj 0.40.0; asyncssh 2.24.1 as another client
# and as the server.
#
# Paramiko's close() swallows every error of the answer, for put() and for a file in a with block. libcurl's transfer ends
# without an error. sshj's put() closes the file quietly; a file of sshj that the program closes itself tells the error.
# Paramiko's look at the size after put() does not help where the server counts what it has buffered.
#
# Why it matters: servers in front of an object store, a quota or a network file system learn at CLOSE that the file
# cannot be kept. For these clients it is stored. A server should refuse a WRITE if it can, or refuse fsync@openssh.com,
# and who uploads with these should look at the file afterwards, from a new connection if the server caches.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1 paramiko==5.1.0 pycurl==7.49.0
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

cat >Upload.java <<'JAVA'
import java.util.EnumSet;
import net.schmizz.sshj.SSHClient;
import net.schmizz.sshj.sftp.OpenMode;
import net.schmizz.sshj.transport.verification.PromiscuousVerifier;

public class Upload {
    interface Call {
        void run() throws Exception;
    }

    static void show(String name, Call call) {
        try {
            call.run();
            System.out.println(name + ": no error");
        } catch (Exception error) {
            System.out.println(name + ": " + error.getMessage());
        }
    }

    public static void main(String[] args) throws Exception {
        try (var client = new SSHClient()) {
            client.addHostKeyVerifier(new PromiscuousVerifier());
            client.connect("127.0.0.1", Integer.parseInt(args[0]));
            client.authPassword("u", "p");
            var sftp = client.newSFTPClient();
            show("sshj, put()", () -> sftp.put("local", "copy"));
            show("sshj, stream", () -> {
                var file = sftp.open("copy", EnumSet.of(OpenMode.WRITE, OpenMode.CREAT));
                try (file; var stream = file.new RemoteFileOutputStream()) {
                    stream.write("text".getBytes());
                }
            });
        }
    }
}
JAVA
cat >run.py <<'PY'
import asyncio
import io
import os

import asyncssh
import paramiko
import pycurl

SERVED = "files"


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return username == "u"

    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


class Files(asyncssh.SFTPServer):
    """A store that finds at the end that it cannot keep the file."""

    def __init__(self, channel):
        super().__init__(channel, chroot=SERVED)

    def close(self, file_obj):
        super().close(file_obj)
        raise asyncssh.SFTPFailure("quota exceeded")


def show(name, call):
    try:
        call()
        print(f"{name}: no error", flush=True)
    except Exception as error:
        print(f"{name}: {error}", flush=True)


def with_paramiko(port):
    def write():
        with client.open("copy", "w") as file:
            file.write("text")

    transport = paramiko.Transport(("127.0.0.1", port))
    transport.connect(username="u", password="p")
    client = paramiko.SFTPClient.from_transport(transport)
    show("Paramiko, put()", lambda: client.put("local", "copy"))
    show("Paramiko, with open()", write)
    transport.close()


def with_curl(port):
    curl = pycurl.Curl()
    curl.setopt(curl.URL, f"sftp://127.0.0.1:{port}/copy")
    curl.setopt(curl.USERPWD, "u:p")
    curl.setopt(curl.UPLOAD, 1)
    curl.setopt(curl.READDATA, io.BytesIO(b"text"))
    show("curl", curl.perform)


async def with_asyncssh(client):
    try:
        await client.put("local", "copy")
    except asyncssh.SFTPError as error:
        return error
    return "no error"


async def main():
    os.mkdir(SERVED)
    open("local", "w").write("text")
    key = asyncssh.generate_private_key("ssh-rsa")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=Files)
    port = server.get_port()
    await asyncio.to_thread(with_paramiko, port)
    await asyncio.to_thread(with_curl, port)
    java = await asyncio.create_subprocess_exec("java", "-cp", "lib/*", "Upload.java", str(port))
    await java.wait()
    async with asyncssh.connect("127.0.0.1", port, username="u", password="p", known_hosts=None, config=None,
                                client_keys=None) as connection:
        async with connection.start_sftp_client() as client:
            print("asyncssh:", await with_asyncssh(client), flush=True)


asyncio.run(main())
PY
timeout 120 venv/bin/python run.py >actual

cat >expected <<'END'
Paramiko, put(): no error
Paramiko, with open(): no error
curl: no error
sshj, put(): no error
sshj, stream: quota exceeded
asyncssh: quota exceeded
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
