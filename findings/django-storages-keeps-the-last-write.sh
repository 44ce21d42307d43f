#!/usr/bin/env bash
# django-storages: a file on SFTP keeps what its last write() wrote; readline() and seek() before a read() do nothing.
#
# Seen with: django-storages 1.14.6's SFTPStorage, Django 5.2.19, Paramiko 5.1.0, asyncssh 2.24.1 as the server;
# Django's own FileSystemStorage for comparison.
#
# An open file is an empty buffer until something reads or writes. Each write() puts a new buffer in its place, and
# close() uploads the last one; a file that is opened with "wb" and gets no write is not emptied. The first read()
# replaces the buffer by the remote file, from its start. Before it, readline(), seek() and tell() see the empty one.
#
# Why it matters: a report that is written line by line ends up as its last line, and a reader that looks at the end of
# a file first (zipfile, for one) finds it empty. Nothing raises. Write to a ContentFile and save() it; call read(), or
# read(0), before anything else.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q django-storages==1.14.6 django==5.2.19 paramiko==5.1.0 asyncssh==2.24.1
mkdir home files

cat >run.py <<'PY'
import asyncio
import os

import asyncssh
from django.conf import settings
from django.core.files.storage import FileSystemStorage

settings.configure()

from storages.backends.sftpstorage import SFTPStorage

ROOT = os.path.abspath("files") + "/"


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


def read_by(storage, action):
    with storage.open("file", "rb") as file:
        return action(file)


def write_by(storage, *parts):
    with storage.open("file", "wb") as file:
        for part in parts:
            file.write(part)
    with open(ROOT + "file", "rb") as file:
        return file.read()


ACTIONS = {
    "read": lambda storage: read_by(storage, lambda file: file.read()),
    "readline": lambda storage: read_by(storage, lambda file: file.readline()),
    "read(0) and readline": lambda storage: read_by(storage, lambda file: (file.read(0), file.readline())[1]),
    "seek to 4, read 3": lambda storage: read_by(storage, lambda file: (file.seek(4), file.read(3))[1]),
    "seek to the end": lambda storage: read_by(storage, lambda file: (file.seek(0, 2), file.tell())[1]),
    "two writes": lambda storage: write_by(storage, b"new one\n", b"new two\n"),
    "no write": lambda storage: write_by(storage),
}


def compare(port):
    params = {"port": port, "username": "u", "password": "p", "allow_agent": False, "look_for_keys": False}
    remote = SFTPStorage(host="127.0.0.1", root_path=ROOT, params=params, known_host_file="known_hosts")
    for name, storage in (("FileSystemStorage", FileSystemStorage(location=ROOT)), ("SFTPStorage", remote)):
        print(name)
        for what, action in ACTIONS.items():
            with open(ROOT + "file", "wb") as file:
                file.write(b"one\ntwo\n")
            print(f"  {what}: {action(storage)}")
    remote.close()


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await asyncio.to_thread(compare, server.get_port())


asyncio.run(main())
PY
HOME=$dir/home timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
FileSystemStorage
  read: b'one\ntwo\n'
  readline: b'one\n'
  read(0) and readline: b'one\n'
  seek to 4, read 3: b'two'
  seek to the end: 8
  two writes: b'new one\nnew two\n'
  no write: b''
SFTPStorage
  read: b'one\ntwo\n'
  readline: b''
  read(0) and readline: b'one\n'
  seek to 4, read 3: b'one'
  seek to the end: 0
  two writes: b'new two\n'
  no write: b'one\ntwo\n'
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
