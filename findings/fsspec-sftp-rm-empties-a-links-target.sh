#!/usr/bin/env bash
# fsspec's SFTP file system removes what a symbolic link leads to when rm(recursive=True) is asked to remove the link.
#
# Seen with: fsspec 2026.9.0 on Paramiko 5.1.0, asyncssh 2.24.1 as the server.
#
# The path is looked up with STAT, which follows the link, so a link to a directory is a directory. All that is in it is
# removed; then RMDIR of the link fails and the call raises. fsspec's local file system says "directory", too, and
# removes just the link; asyncssh's rmtree() refuses a link. A link that is met below the path is not followed, but gets an
# RMDIR if it leads to a directory elsewhere, which fails and ends the call.
#
# Why it matters: "current", "latest" and mounted data are links, and removing such a name is taken to cost only the
# name. The error comes after the loss and does not tell of it. fs.ftp.lstat() knows a link and fs.ftp.remove() removes it;
# info(), rm_file() and rm() take it for the directory.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q fsspec==2026.9.0 paramiko==5.1.0 asyncssh==2.24.1

cat >run.py <<'PY'
import asyncio
import os
import shutil
import warnings

import asyncssh

warnings.simplefilter("ignore")
import fsspec  # noqa: E402
from fsspec.implementations.sftp import SFTPFileSystem  # noqa: E402

HERE = os.path.abspath("files")


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def fresh():
    shutil.rmtree(HERE, ignore_errors=True)
    os.makedirs(f"{HERE}/data/inner")
    for name in ("data/a", "data/inner/b"):
        with open(f"{HERE}/{name}", "w") as file:
            file.write("text")
    os.symlink("data", f"{HERE}/current")


def left():
    found = [f"{folder}/{name}" for folder, names, files in os.walk(HERE) for name in names + files]
    return sorted(os.path.relpath(path, HERE) for path in found)


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)

    def clients():
        remote = SFTPFileSystem("127.0.0.1", port=server.get_port(), username="u", password="p", look_for_keys=False,
                                allow_agent=False)
        for name, system in (("SFTP", remote), ("local", fsspec.filesystem("file"))):
            fresh()
            print(f"{name}, info: {system.info(f'{HERE}/current')['type']}")
            try:
                system.rm(f"{HERE}/current", recursive=True)
                print(f"{name}, rm: done")
            except OSError as error:
                print(f"{name}, rm: {type(error).__name__}")
            print(f"{name}, left:", *left())

    await asyncio.to_thread(clients)


asyncio.run(main())
PY
timeout 120 venv/bin/python run.py >actual

cat >expected <<'END'
SFTP, info: directory
SFTP, rm: FileNotFoundError
SFTP, left: current data
local, info: directory
local, rm: done
local, left: data data/a data/inner data/inner/b
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
