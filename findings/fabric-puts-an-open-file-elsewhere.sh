#!/usr/bin/env bash
# Fabric: put() of an open file to a directory writes to the file's own path on the server, not into the directory.
#
# Seen with: Fabric 3.2.3 on Paramiko 5.1.0, asyncssh 2.24.1 as the server.
#
# For a path, put(path, directory) adds the last part of the path to the directory. For a file object it adds the
# object's whole name, which is the path that it was opened by. Joined to an absolute path the directory goes away:
# put(open("/home/me/app.conf", "rb"), "/srv/app") writes to /home/me/app.conf on the server. A file from tempfile has
# such a name as well. The result is right when the file was opened by its bare name.
#
# Why it matters: nothing fails if the server has the directory, and for files in /etc or /srv it has. Another file
# there is overwritten, and the one that was meant stays as it was. Only the result's attribute "remote" shows it. Give
# put() the whole remote path for a file object.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q fabric==3.2.3 paramiko==5.1.0 asyncssh==2.24.1

# The server has a root of its own, with two files in it.
cat >run.py <<'PY'
import asyncio
import os
import pathlib

import asyncssh
from fabric import Connection

MINE = os.path.abspath("app.conf")
ROOT = os.path.abspath("root")
FILES = {"the server's own": pathlib.Path(ROOT + MINE), "in the directory": pathlib.Path(ROOT, "target/app.conf")}


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


def show(what, action):
    for path in FILES.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old")
    remote = action().remote.replace(os.getcwd(), "...")
    print(f"{what}: to {remote}; {', '.join(f'{name}: {path.read_text()}' for name, path in FILES.items())}")


def put(port):
    pathlib.Path(MINE).write_text("new")
    options = {"password": "p", "look_for_keys": False, "allow_agent": False}
    with Connection("127.0.0.1", user="u", port=port, connect_kwargs=options) as client:
        show("path", lambda: client.put(MINE, "/target"))
        with open("app.conf", "rb") as file:
            show("file, opened by its bare name", lambda: client.put(file, "/target"))
        with open(MINE, "rb") as file:
            show("file, opened by its path", lambda: client.put(file, "/target"))


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key],
                                   sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=ROOT.encode()))
    await asyncio.to_thread(put, server.get_port())


asyncio.run(main())
PY
HOME=$dir timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
path: to /target/app.conf; the server's own: old, in the directory: new
file, opened by its bare name: to /target/app.conf; the server's own: old, in the directory: new
file, opened by its path: to .../app.conf; the server's own: new, in the directory: old
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
