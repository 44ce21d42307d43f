#!/usr/bin/env bash
# fs.sshfs (PyFilesystem): what is written to a full disk is lost without an error, unless pipelined=False is given.
#
# Seen with: fs.sshfs 1.0.2 with fs 2.4.16 and Paramiko 3.5.1, asyncssh 2.24.1 as the server.
#
# The file system opens each file in Paramiko's pipelined mode. There write() does not wait, an answer that is an error is
# kept for the next operation, and close() is the last one and drops it. writetext(), writebytes(), appendtext() and files
# in a with block return normally, also for megabytes. upload() compares the size and raises, as does openbin() with
# pipelined=False. Where the server stores the first part and refuses the rest, the file is cut.
#
# Why it matters: programs choose PyFilesystem so that a target can be exchanged, and a full disk or a quota raises on each
# other one. Copies between two file systems go through upload(); code that writes itself has to compare getsize().
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1 fs==2.4.16 fs.sshfs==1.0.2 paramiko==3.5.1 'setuptools<81'

cat >run.py <<'PY'
import asyncio
import errno
import io
import os
import warnings

import asyncssh

warnings.simplefilter("ignore")
from fs.errors import FSError  # noqa: E402
from fs.sshfs import SSHFS  # noqa: E402

SERVED, QUOTA = "files", 100_000


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


class Files(asyncssh.SFTPServer):
    """Has room for the first 100,000 bytes of a file, and for nothing in files named full-*."""

    def __init__(self, channel):
        super().__init__(channel, chroot=SERVED)

    def write(self, file_obj, offset, data):
        if offset + len(data) > QUOTA or os.path.basename(file_obj.name).startswith(b"full-"):
            raise OSError(errno.ENOSPC, "no space left")
        return super().write(file_obj, offset, data)


def show(name, call):
    try:
        call()
        result = "no error"
    except (FSError, OSError) as error:
        result = f"error ({error})"
    sizes = [os.path.getsize(f"{SERVED}/{file}") for file in os.listdir(SERVED)]
    print(f"{name}: {result}, {'nothing' if sizes == [0] else 'a part' if sizes[0] <= QUOTA else 'all'} is stored")
    for file in os.listdir(SERVED):
        os.remove(f"{SERVED}/{file}")


def use(port):
    def write(text, **options):
        with system.openbin("full-file", "w", **options) as file:
            file.write(text)

    system = SSHFS("127.0.0.1", user="u", passwd="p", port=port, config_path=os.devnull)
    show("writetext()", lambda: system.writetext("full-file", "text"))
    show("appendtext()", lambda: system.appendtext("full-file", "text"))
    show("writebytes() of 1 MB", lambda: system.writebytes("file", bytes(1_000_000)))
    show("with openbin()", lambda: write(b"text"))
    show("with openbin(pipelined=False)", lambda: write(b"text", pipelined=False))
    show("upload()", lambda: system.upload("full-file", io.BytesIO(b"text")))
    system.close()


async def main():
    os.mkdir(SERVED)
    key = asyncssh.generate_private_key("ssh-rsa")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=Files)
    await asyncio.to_thread(use, server.get_port())


asyncio.run(main())
PY
HOME=$dir timeout 120 venv/bin/python run.py >actual

cat >expected <<'END'
writetext(): no error, nothing is stored
appendtext(): no error, nothing is stored
writebytes() of 1 MB: no error, a part is stored
with openbin(): no error, nothing is stored
with openbin(pipelined=False): error (no space left), nothing is stored
upload(): error (operation failed, size mismatch in put!  0 != 4), nothing is stored
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
