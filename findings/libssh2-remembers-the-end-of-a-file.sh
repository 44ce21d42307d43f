#!/usr/bin/env bash
# libssh2 remembers the end of a file: the same handle never reads data that is appended later.
#
# Seen with: ssh2-python 1.2.0.post1 (libssh2 1.11.1) and Paramiko 5.1.0 as the clients, asyncssh 2.24.1 as the server.
#
# After the server has answered a READ with the end of the file, read() returns 0 bytes without another request, as long
# as the handle is open. fstat() on the same handle returns the new size. After a seek, even to the current position,
# libssh2 sends requests again. Paramiko sends a request for each read() and receives the appended data.
#
# Why it matters: a program that follows a log over SFTP calls read() and sleep() in a loop, which works with read(2).
# With libssh2, the loop never receives anything new. Call seek64(tell64()) after each end of the file. The behaviour is
# libssh2's own, so expect it from its bindings for other languages too.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1 paramiko==5.1.0 ssh2-python==1.2.0.post1

cat >"$dir/run.py" <<'PY'
import asyncio
import socket
import sys

import asyncssh
import paramiko
from ssh2.session import Session
from ssh2.sftp import LIBSSH2_FXF_READ


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


def begin(path):
    with open(path, "wb") as file:
        file.write(b"one")


def append(path):
    with open(path, "ab") as file:
        file.write(b"two")


def with_libssh2(port, path):
    begin(path)
    connection = socket.create_connection(("127.0.0.1", port))
    session = Session()
    session.handshake(connection)
    session.userauth_password("u", "p")
    file = session.sftp_init().open(path, LIBSSH2_FXF_READ, 0)
    print("libssh2:", file.read(100)[1], file.read(100)[1])
    append(path)
    print("libssh2, appended:", *(file.read(100)[1] for _ in range(3)), "of", file.fstat().filesize, "bytes")
    file.seek64(file.tell64())
    print("libssh2, seek to the same place:", file.read(100)[1])


def with_paramiko(port, path):
    begin(path)
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.connect(username="u", password="p")
    file = paramiko.SFTPClient.from_transport(transport).open(path, "rb")
    print("Paramiko:", file.read(100), file.read(100))
    append(path)
    print("Paramiko, appended:", file.read(100))
    transport.close()


async def main():
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=True, server_host_keys=[key])
    for look in (with_libssh2, with_paramiko):
        await asyncio.wait_for(asyncio.to_thread(look, server.get_port(), sys.argv[1]), 60)


asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir/file" >"$dir/actual"

cat >"$dir/expected" <<'END'
libssh2: b'one' b''
libssh2, appended: b'' b'' b'' of 6 bytes
libssh2, seek to the same place: b'two'
Paramiko: b'one' b''
Paramiko, appended: b'two'
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
