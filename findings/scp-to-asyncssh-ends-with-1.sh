#!/usr/bin/env bash
# scp copies to and from asyncssh's SFTP server and ends with 1, without a message.
#
# Seen with: asyncssh 2.24.1 as the server, with its own SFTPServer; OpenSSH 9.2p1's scp and sftp.
#
# asyncssh closes the channel of an SFTP session without an exit status. sftp does not ask for one. scp, which speaks
# SFTP since OpenSSH 9.0, ends with the status of the ssh that it has started, and ssh without a status ends with 255.
# "scp -O", with allow_scp on the server, is answered with a status and ends with 0.
#
# Why it matters: all bytes are there, and a script with "set -e" or a task runner stops at a failure that says nothing
# of its cause. Trying again does not help. A server that ends its SFTP session with exit(0) of the channel, as below,
# satisfies scp; a client that knows such servers uses sftp -b.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1

cat >run.py <<'PY'
import asyncio
import os

import asyncssh

OPTIONS = ["-q", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


class EndsWithStatus(asyncssh.SFTPServer):
    def exit(self):
        self.channel.exit(0)


async def copy(what, *command):
    with open("file", "w") as file:
        file.write("text")
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL,
                                                   stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    output = await process.communicate()
    copied = os.path.exists("copy")
    print(f"{what}: status {process.returncode}, output {output}, {'copied' if copied else 'not copied'}")
    if copied:
        os.unlink("copy")


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    with open("batch", "w") as file:
        file.write(f"@put file {os.path.abspath('copy')}\n")
    for name, factory in (("SFTPServer", True), ("with a status", EndsWithStatus)):
        server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key],
                                       sftp_factory=factory, allow_scp=True)
        options = [*OPTIONS, "-P", str(server.get_port())]
        here, remote = os.path.abspath("file"), f"u@127.0.0.1:{os.path.abspath('copy')}"
        await copy(f"{name}, sftp", "sftp", *options, "-b", "batch", "u@127.0.0.1")
        await copy(f"{name}, scp to the server", "scp", *options, "file", remote)
        await copy(f"{name}, scp from the server", "scp", *options, f"u@127.0.0.1:{here}", "copy")
        await copy(f"{name}, scp -O", "scp", "-O", *options, "file", remote)
        server.close()


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
SFTPServer, sftp: status 0, output (b'', b''), copied
SFTPServer, scp to the server: status 1, output (b'', b''), copied
SFTPServer, scp from the server: status 1, output (b'', b''), copied
SFTPServer, scp -O: status 0, output (b'', b''), copied
with a status, sftp: status 0, output (b'', b''), copied
with a status, scp to the server: status 0, output (b'', b''), copied
with a status, scp from the server: status 0, output (b'', b''), copied
with a status, scp -O: status 0, output (b'', b''), copied
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
