#!/usr/bin/env bash
# asyncssh's SFTP client reads nothing of a file whose size is 0, and says that this went well.
#
# Seen with: asyncssh 2.24.1 as client and server (with OpenSSH 9.2p1's sftp-server it is the same); Paramiko 5.1.0 reads the
# same file.
#
# get(), mget() and a file's read() without a size ask for the file's size first and read so many bytes. Files of /proc
# have a size of 0 and thousands of bytes: the copy is empty, the text is '', and no error is raised. read() with a size
# gets the bytes.
#
# Why it matters: programs that collect /proc/meminfo or /proc/net/dev over SFTP get empty values that look like an idle
# machine. FUSE file systems with direct_io, and what a server makes up when it is read, have such files too. Reading
# with a size until b'' comes is right for every file.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1 paramiko==5.1.0

cat >run.py <<'PY'
import asyncio

import asyncssh
import paramiko

FILE, COPY = "/proc/version", "copy"


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def with_paramiko(port):
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.start_client()
    transport.auth_none("u")
    client = paramiko.SFTPClient.from_transport(transport)
    client.get(FILE, COPY)
    print("Paramiko, get:", is_all(open(COPY, "rb").read()))
    transport.close()


def is_all(data):
    return "all" if data == open(FILE, "rb").read() else f"{len(data)} bytes"


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    port = server.get_port()
    async with asyncssh.connect("127.0.0.1", port, username="u", known_hosts=None, config=None) as connection:
        async with connection.start_sftp_client() as client:
            await client.get(FILE, COPY)
            print("asyncssh, get:", is_all(open(COPY, "rb").read()))
            async with client.open(FILE, "rb") as file:
                print("asyncssh, read():", is_all(await file.read()))
                print("asyncssh, read(4096):", is_all(await file.read(4096)))
    await asyncio.to_thread(with_paramiko, port)


asyncio.run(main())
PY
timeout 120 venv/bin/python run.py >actual

cat >expected <<'END'
asyncssh, get: 0 bytes
asyncssh, read(): 0 bytes
asyncssh, read(4096): all
Paramiko, get: all
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
