#!/usr/bin/env bash
# Apache Libcloud: the second put() of a relative path lands in the directory of the first one, and put() returns a third.
#
# Seen with: apache-libcloud 3.9.1 on Paramiko 5.1.0; asyncssh 2.24.1 as the server.
#
# ParamikoSSHClient.put() makes the parts of the path and changes into each of them, with an SFTP session that is kept for
# the next call. It starts with a change to ".", which is where the call before has left off. "app/one" and then
# "app/two" become app/one and app/app/two, and a plain "three" lands in app/app. The path that is returned has the
# parents twice from the first call on. delete() takes a new session, so it removes what is at the path that was given.
# putfo() makes the parents as put() does and then opens the whole path from inside them, which fails.
#
# Why it matters: a deployment step uploads several files and runs or deletes them by name. No call fails until
# something reads an old or a missing file, and delete() may hit a file that put() has not written. Give absolute paths.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q apache-libcloud==3.9.1 paramiko==5.1.0 asyncssh==2.24.1
mkdir home

cat >run.py <<'PY'
import asyncio
import io
import os
import warnings

import asyncssh

warnings.simplefilter("ignore")
from libcloud.compute.ssh import ParamikoSSHClient  # noqa: E402

HERE = os.path.abspath("home")


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


def use(port):
    client = ParamikoSSHClient("127.0.0.1", port=port, username="u", password="p")
    client.connect()
    for path in ("app/one", "app/two", "three"):
        print(f"put {path}: {os.path.relpath(client.put(path, contents='text'), HERE)}")
    try:
        print(f"putfo app/four: {os.path.relpath(client.putfo('app/four', io.BytesIO(b'text')), HERE)}")
    except OSError as error:
        print(f"putfo app/four: {type(error).__name__}")
    for path in ("app/one", "app/two"):
        try:
            print(f"delete {path}: {client.delete(path)}")
        except OSError as error:
            print(f"delete {path}: {type(error).__name__}")
    client.close()


async def main():
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    os.chdir(HERE)
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await asyncio.to_thread(use, server.get_port())
    server.close()


asyncio.run(main())
PY
{
    timeout 60 venv/bin/python run.py
    echo "left:"
    (cd home && find . -type f | sort)
} >actual

cat >expected <<'END'
put app/one: app/app/one
put app/two: app/app/app/two
put three: app/app/three
putfo app/four: FileNotFoundError
delete app/one: True
delete app/two: FileNotFoundError
left:
./app/app/three
./app/app/two
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
