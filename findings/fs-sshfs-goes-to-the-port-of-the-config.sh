#!/usr/bin/env bash
# fs.sshfs (PyFilesystem): port=2222 in the call loses against a Port in ~/.ssh/config, and another server gets the files.
#
# Seen with: fs.sshfs 1.0.2 with fs 2.4.16, Paramiko 3.5.1; Fabric 3.2.3 beside it, asyncssh 2.24.1 as the servers.
#
# SSHFS() reads the user's configuration unless config_path says otherwise. A user in the call is stronger than one in the
# configuration; with the port it is the other way round. ssh -p, Fabric and sftp:// addresses go by what the caller said.
#
# Why it matters: "Host *" with a Port, or a host whose bastion or container listens on several ports, is enough. If both
# servers take the login, the files go to the wrong one and no call fails. Pass config_path=os.devnull, and the host's
# address, where the program says all itself.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/.ssh"
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1 fabric==3.2.3 fs==2.4.16 fs.sshfs==1.0.2 paramiko==3.5.1 'setuptools<81'

cat >run.py <<'PY'
import asyncio
import io
import os
import warnings

import asyncssh

warnings.simplefilter("ignore")
from fabric import Connection  # noqa: E402
from fs.sshfs import SSHFS  # noqa: E402

NAMES = ("call", "config")


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


def with_fabric(port):
    with Connection("127.0.0.1", user="u", port=port, connect_kwargs={"password": "p", "look_for_keys": False}) as connection:
        connection.put(io.BytesIO(b"text"), "fabric")


def with_fs(port, **options):
    system = SSHFS("127.0.0.1", user="u", passwd="p", port=port, **options)
    system.writetext("devnull" if options else "fs.sshfs", "text")
    system.close()


async def main():
    key = asyncssh.generate_private_key("ssh-rsa")
    ports = {}
    for name in NAMES:
        os.mkdir(name)
        factory = lambda channel, name=name: asyncssh.SFTPServer(channel, chroot=name)  # noqa: E731
        server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=factory)
        ports[name] = server.get_port()
    with open(os.path.expanduser("~/.ssh/config"), "w") as file:
        file.write(f"Host *\n    Port {ports['config']}\n")
    await asyncio.to_thread(with_fabric, ports["call"])
    await asyncio.to_thread(with_fs, ports["call"])
    await asyncio.to_thread(with_fs, ports["call"], config_path=os.devnull)
    for name in NAMES:
        print(f"the port of the {name}:", *sorted(os.listdir(name)))


asyncio.run(main())
PY
HOME=$dir timeout 120 venv/bin/python run.py >actual

cat >expected <<'END'
the port of the call: devnull fabric
the port of the config: fs.sshfs
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
