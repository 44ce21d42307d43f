#!/usr/bin/env bash
# SCP uploads by pylibssh and parallel-ssh end without an error when the server could not write the file.
#
# Seen with: ansible-pylibssh 1.4.0 (libssh 0.12.0), parallel-ssh 2.16.0.post1 (libssh2 1.11.1), scp 0.16.2 on Paramiko
# 5.1.0; OpenSSH 9.2p1's "scp -t" behind an asyncssh 2.24.1 server.
#
# SCP's receiver has two ways to say no: in front of the file (no such directory), and behind its last byte (no space,
# quota, an I/O error). Neither libssh nor libssh2 waits for the second answer or gives out the exit status of the
# remote scp, which is 1. put() returns 0 and scp_send() returns, for a file of any size. PyPI's scp raises
# SCPException. Uploads of both by SFTP fail as they should.
#
# Why it matters: the file is cut or empty, and a deployment goes on with it. Take SFTP with both, or compare the size
# afterwards. curl 7.88.1 (libssh2 1.10.0) ends with 0 for an scp:// URL as well (tried by hand).
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir home
export HOME="$dir/home"
python3 -m venv venv
venv/bin/pip install -q ansible-pylibssh==1.4.0 parallel-ssh==2.16.0.post1 scp==0.16.2 paramiko==5.1.0 asyncssh==2.24.1
printf 'text\n' >small
head -c 1000000 /dev/zero >large

cat >server.py <<'PY'
import asyncio

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def run(process):
    command = await asyncio.create_subprocess_shell(process.command, stdin=-1, stdout=-1, stderr=-1)
    await process.redirect(command.stdin, command.stdout, command.stderr)
    process.exit(await command.wait())


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")], encoding=None)
    print(server.get_port(), flush=True)
    await server.wait_closed()


asyncio.run(main())
PY
# Each library has a process of its own.
cat >client.py <<'PY'
import os
import sys

# /dev/full can be opened and has no space.
library, port = sys.argv[1], int(sys.argv[2])
if library == "pylibssh":
    from pylibsshext.session import Session

    session = Session()
    session.connect(host="127.0.0.1", port=port, user="u", password="p", host_key_checking=False, look_for_keys=False)
    ways = {"SCP": lambda *paths: session.scp().put(*paths), "SFTP": lambda *paths: session.sftp().put(*paths)}
elif library == "parallel-ssh":
    from pssh.clients import SSHClient

    client = SSHClient("127.0.0.1", port=port, user="u", password="p", allow_agent=False, identity_auth=False)
    ways = {"SCP": client.scp_send, "SFTP": client.copy_file}
else:
    import paramiko
    import scp

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect("127.0.0.1", port, username="u", password="p", allow_agent=False, look_for_keys=False)
    ways = {"SCP": lambda *paths: scp.SCPClient(client.get_transport()).put(*paths)}

for way, put in ways.items():
    for name in ("small", "large"):
        try:
            put(name, "/dev/full")
            print(f"{library}, {way}, {name}: done")
        except Exception:
            print(f"{library}, {way}, {name}: an error")
sys.stdout.flush()
os._exit(0)
PY
cat >run.py <<'PY'
import subprocess
import sys

server = subprocess.Popen([sys.executable, "server.py"], stdout=subprocess.PIPE, stderr=open("log", "w"), text=True)
try:
    port = server.stdout.readline().strip()
    for library in ("pylibssh", "parallel-ssh", "scp"):
        subprocess.run([sys.executable, "client.py", library, port], stderr=open("errors", "a"), timeout=60, check=True)
finally:
    server.terminate()
    server.wait()
PY
venv/bin/python run.py >actual || { cat errors >&2; exit 1; }

cat >expected <<'END'
pylibssh, SCP, small: done
pylibssh, SCP, large: done
pylibssh, SFTP, small: an error
pylibssh, SFTP, large: an error
parallel-ssh, SCP, small: done
parallel-ssh, SCP, large: done
parallel-ssh, SFTP, small: an error
parallel-ssh, SFTP, large: an error
scp, SCP, small: an error
scp, SCP, large: an error
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
