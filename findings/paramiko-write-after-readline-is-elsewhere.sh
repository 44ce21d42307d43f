#!/usr/bin/env bash
# Paramiko's SFTPFile writes behind its read buffer, not where tell() says, after a readline() in the mode "r+".
#
# Seen with: Paramiko 5.1.0, asyncssh 2.24.1 as the server; Python's own open() for comparison.
#
# readline() and iteration read ahead by 8192 bytes, read(n) does so if open() was given a bufsize. tell() counts what
# was handed out, write() goes on where the reading ahead ended: in a small file at its end. The other way round,
# what is written with a bufsize is not seen by a read() before it is flushed, and tell() does not count it. Python's
# files do all of this right.
#
# Why it matters: a program that looks for a line and overwrites the next one ("r+", lines of one length) leaves the old
# line in place and puts the new one behind the end, or over others that are 8 KiB further on. No call fails.
# file.seek(file.tell()) between reading and writing is enough, flush() is not.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q paramiko==5.1.0 asyncssh==2.24.1

cat >run.py <<'PY'
import asyncio
import os

import asyncssh
import paramiko

FILE = os.path.abspath("file")


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def overwrite(file):
    file.readline()
    place = file.tell()
    file.write(b"TWO\n")
    return place


def overwrite_after_flush(file):
    file.readline()
    file.flush()
    file.write(b"TWO\n")


def overwrite_after_seek(file):
    file.readline()
    file.seek(file.tell())
    file.write(b"TWO\n")


def overwrite_after_read(file):
    file.read(4)
    file.write(b"TWO\n")


def write_and_read(file):
    file.write(b"ONE\n")
    return file.read(4), file.tell()


def run(port):
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.start_client()
    transport.auth_none("u")
    client = paramiko.SFTPClient.from_transport(transport)
    for name, opener in (("open", lambda: open(FILE, "r+b")), ("Paramiko", lambda: client.open(FILE, "r+")),
                         ("Paramiko with a bufsize", lambda: client.open(FILE, "r+", 4096))):
        print(name)
        for action in (overwrite, overwrite_after_flush, overwrite_after_seek, overwrite_after_read, write_and_read):
            with open(FILE, "wb") as file:
                file.write(b"one\ntwo\nend\n")
            with opener() as file:
                result = action(file)
            with open(FILE, "rb") as file:
                print(f"    {action.__name__}: {file.read()}{'' if result is None else f', {result}'}")
    transport.close()


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await asyncio.to_thread(run, server.get_port())


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
open
    overwrite: b'one\nTWO\nend\n', 4
    overwrite_after_flush: b'one\nTWO\nend\n'
    overwrite_after_seek: b'one\nTWO\nend\n'
    overwrite_after_read: b'one\nTWO\nend\n'
    write_and_read: b'ONE\ntwo\nend\n', (b'two\n', 8)
Paramiko
    overwrite: b'one\ntwo\nend\nTWO\n', 4
    overwrite_after_flush: b'one\ntwo\nend\nTWO\n'
    overwrite_after_seek: b'one\nTWO\nend\n'
    overwrite_after_read: b'one\nTWO\nend\n'
    write_and_read: b'ONE\ntwo\nend\n', (b'two\n', 8)
Paramiko with a bufsize
    overwrite: b'one\ntwo\nend\nTWO\n', 4
    overwrite_after_flush: b'one\ntwo\nend\nTWO\n'
    overwrite_after_seek: b'one\nTWO\nend\n'
    overwrite_after_read: b'one\ntwo\nend\nTWO\n'
    write_and_read: b'one\ntwo\nend\nONE\n', (b'one\n', 4)
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
