#!/usr/bin/env bash
# sshfs for fsspec (PyPI): cat_ranges() and cat_file(start, end) return whole files, and mode="create" overwrites.
#
# Seen with: sshfs 2026.8.0 on asyncssh 2.24.1 and fsspec 2026.9.0; fsspec's local file system for comparison.
#
# fsspec's interface lets a caller ask for bytes start to end of a file, for many files in one call, and refuse to
# overwrite with mode="create". sshfs takes these arguments and ignores them. Each range comes back as the whole file, a
# file that is there is overwritten by pipe_file(mode="create"), and in a transaction the file is written at once: when
# the transaction is abandoned, the new text stays.
#
# Why it matters: cat_ranges() is what readers of chunked formats call, and they take the bytes they get for those they
# asked for. At offset 0 the first bytes are even right. Open the file, seek and read for a part of it, use open(path,
# "xb") to create, and write to a temporary name by yourself.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q sshfs==2026.8.0 asyncssh==2.24.1 fsspec==2026.9.0

cat >run.py <<'PY'
import asyncio
import os

import asyncssh
import fsspec
from sshfs import SSHFileSystem

FILE = os.path.abspath("file")


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def fresh():
    with open(FILE, "wb") as file:
        file.write(b"0123456789")


def attempt(action):
    try:
        return action()
    except Exception as error:
        return type(error).__name__


def abandoned(system):
    with system.transaction:
        with system.open(FILE, "wb") as file:
            file.write(b"half")
        raise KeyError


def compare(port):
    remote = SSHFileSystem("127.0.0.1", port=port, username="u", known_hosts=None, config=None)
    for name, system in (("local", fsspec.filesystem("file")), ("sshfs", remote)):
        print(name)
        fresh()
        print("  cat_file, 2 to 5:", system.cat_file(FILE, start=2, end=5))
        print("  cat_ranges, 0 to 2 and 4 to 6:", system.cat_ranges([FILE, FILE], [0, 4], [2, 6]))
        with system.open(FILE, "rb") as file:
            file.seek(2)
            print("  open, seek and read:", file.read(3))
        for what, action in (("pipe_file, mode create", lambda: system.pipe_file(FILE, b"new", mode="create")),
                             ("transaction, abandoned", lambda: abandoned(system))):
            fresh()
            result = attempt(action)
            with open(FILE, "rb") as file:
                print(f"  {what}: {result}, the file has {file.read()}")


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await asyncio.to_thread(compare, server.get_port())


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
local
  cat_file, 2 to 5: b'234'
  cat_ranges, 0 to 2 and 4 to 6: [b'01', b'45']
  open, seek and read: b'234'
  pipe_file, mode create: FileExistsError, the file has b'0123456789'
  transaction, abandoned: KeyError, the file has b'0123456789'
sshfs
  cat_file, 2 to 5: b'0123456789'
  cat_ranges, 0 to 2 and 4 to 6: [b'0123456789', b'0123456789']
  open, seek and read: b'234'
  pipe_file, mode create: None, the file has b'new'
  transaction, abandoned: AttributeError, the file has b'half'
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
