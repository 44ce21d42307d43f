#!/usr/bin/env bash
# fsspec's SFTP file system: a file that is appended to in a transaction has only the new text afterwards.
#
# Seen with: fsspec 2026.9.0 on Paramiko 5.1.0, asyncssh 2.24.1 as the server.
#
# In a transaction, open() makes a new file in temppath ("/tmp" on the server) in whatever mode was asked for, and the
# commit renames it over the real one. For "wb" that is right. With "ab" the new file begins empty, and what was in the
# real one goes with the rename. No call fails, and the same code appends correctly outside of a transaction.
#
# Why it matters: a transaction is wrapped around working code to make it safer, and costs it the log or the list that
# it appends to. Read the old text and write all of it with "wb", or append outside of a transaction.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q fsspec==2026.9.0 paramiko==5.1.0 asyncssh==2.24.1

cat >run.py <<'PY'
import asyncio
import contextlib
import os
import warnings

import asyncssh

warnings.simplefilter("ignore")
from fsspec.implementations.sftp import SFTPFileSystem  # noqa: E402

FILE = os.path.abspath("file")


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def write(system, mode, transaction):
    with open(FILE, "wb") as file:
        file.write(b"old ")
    with system.transaction if transaction else contextlib.nullcontext():
        with system.open(FILE, mode) as file:
            file.write(b"new")
    with open(FILE, "rb") as file:
        print(f"{mode}, {'transaction' if transaction else 'no transaction'}: {file.read()}")


def write_all(port):
    system = SFTPFileSystem("127.0.0.1", port=port, username="u", password="p", look_for_keys=False, allow_agent=False,
                            temppath=os.getcwd())
    for mode in ("wb", "ab"):
        for transaction in (False, True):
            write(system, mode, transaction)


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await asyncio.to_thread(write_all, server.get_port())


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
wb, no transaction: b'new'
wb, transaction: b'new'
ab, no transaction: b'old new'
ab, transaction: b'new'
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
