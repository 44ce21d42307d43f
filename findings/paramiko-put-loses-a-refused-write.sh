#!/usr/bin/env bash
# Paramiko's SFTP put() succeeds although the server refused a WRITE in the middle of the file.
#
# Seen with: Paramiko 5.1.0 as the client, asyncssh 2.24.1 as the server and as the other client.
#
# put() and putfo() send their WRITEs without waiting for the answers (set_pipelined). Paramiko stores an error among
# the answers but checks it only in a later read, so neither the next write nor close() raises it. put() then compares
# the sizes, and they are equal if the server accepted a later WRITE: the refused part is a hole of zeros. With
# confirm=False, or for a file on which the caller used set_pipelined(), Paramiko detects nothing. A plain write()
# raises the error.
#
# Why it matters: a disk that is full for a moment, or a gateway whose storage sometimes fails, leaves a file with the
# right size and wrong contents, and the caller believes that the upload succeeded. Another comparison of the sizes does
# not help. Call write() in a loop, or compare a checksum.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1 paramiko==5.1.0

cat >"$dir/run.py" <<'PY'
import asyncio
import os
import sys

import asyncssh
import paramiko

DATA = b"x" * 320_000  # ten WRITEs of Paramiko's
REFUSED = 100_000  # an offset in the fourth one


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


class Files(asyncssh.SFTPServer):
    def write(self, file, offset, data):
        if offset <= REFUSED < offset + len(data):
            raise asyncssh.SFTPFailure("no space left")
        return super().write(file, offset, data)


def plain(sftp, source, target):
    with sftp.open(target, "wb") as file:
        for start in range(0, len(DATA), 32_000):
            file.write(DATA[start:start + 32_000])


def pipelined(sftp, source, target):
    with sftp.open(target, "wb") as file:
        file.set_pipelined(True)
        for start in range(0, len(DATA), 32_000):
            file.write(DATA[start:start + 32_000])


def with_paramiko(port, upload, source, target):
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.connect(username="u", password="p")
    try:
        upload(paramiko.SFTPClient.from_transport(transport), source, target)
    finally:
        transport.close()


async def with_asyncssh(port, source, target):
    async with (asyncssh.connect("127.0.0.1", port, username="u", password="p", config=None, known_hosts=None,
                                 client_keys=None, agent_path=None) as connection,
                connection.start_sftp_client() as sftp):
        await sftp.put(source, target)


async def main():
    directory = sys.argv[1]
    source, target = f"{directory}/source", f"{directory}/target"
    with open(source, "wb") as file:
        file.write(DATA)
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=Files, server_host_keys=[key])
    port = server.get_port()
    for name, upload in (
        ("put", lambda *rest: rest[0].put(*rest[1:])),
        ("put, confirm=False", lambda *rest: rest[0].put(*rest[1:], confirm=False)),
        ("set_pipelined", pipelined),
        ("write", plain),
        ("asyncssh's put", None),
    ):
        if os.path.exists(target):
            os.unlink(target)
        try:
            if upload:
                await asyncio.to_thread(with_paramiko, port, upload, source, target)
            else:
                await with_asyncssh(port, source, target)
            with open(target, "rb") as file:
                stored = file.read()
            print(f"{name}: no error, {len(stored)} of {len(DATA)} bytes, zeros among them {stored.count(bytes(1))}")
        except (OSError, asyncssh.SFTPError) as error:
            print(f"{name}: {error}")


asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir" >"$dir/actual"

cat >"$dir/expected" <<'END'
put: no error, 320000 of 320000 bytes, zeros among them 32768
put, confirm=False: no error, 320000 of 320000 bytes, zeros among them 32768
set_pipelined: no error, 320000 of 320000 bytes, zeros among them 32000
write: no space left
asyncssh's put: no space left
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
