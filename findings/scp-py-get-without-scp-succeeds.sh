#!/usr/bin/env bash
# scp of PyPI: get() returns without an error and without a file if the server has no scp, or if scp ends early there.
#
# Seen with: scp 0.16.2 on Paramiko 5.1.0, OpenSSH 9.2p1's scp -O beside it, asyncssh 2.24.1 as the server.
#
# get() takes a channel that closes for the end of the copy. It looks neither at the exit status nor at stderr. So "scp: not
# found" with status 127 is a success, and so is a copy of two files, or of a directory, whose scp was killed after the
# first one. put() says "scp: not found" in the first case, and ssh's own scp ends with 1.
#
# Why it matters: small systems and containers have an SSH server and no scp, and a copy of a directory that was cut looks
# whole. An old local file of the same name makes it worse: it is taken for the new one. Count the files after get(), or
# use SFTP.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1 paramiko==5.1.0 scp==0.16.2

cat >run.py <<'PY'
import asyncio
import os

import asyncssh
import paramiko
import scp


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def run(process):
    """A shell without scp, or for the user `killed` an scp that a signal ends behind the first file."""
    if process.get_extra_info("username") == "killed":
        await process.stdin.readexactly(1)
        process.stdout.write(b"C0644 4 one\n")
        await process.stdin.readexactly(1)
        process.stdout.write(b"text\0")
        await process.stdin.readexactly(1)
        process.exit_with_signal("KILL")
    else:
        process.stderr.write(b"sh: 1: scp: not found\n")
        process.exit(127)


def show(name, call):
    try:
        call()
        print(f"{name}: no error")
    except scp.SCPException as error:
        print(f"{name}: {str(error).strip()}")


def use(port):
    for user in ("without", "killed"):
        transport = paramiko.Transport(("127.0.0.1", port))
        transport.start_client()
        transport.auth_none(user)
        client = scp.SCPClient(transport)
        os.mkdir(user)
        if user == "without":
            show("no scp, put()", lambda: client.put("run.py", "file"))
            show("no scp, get()", lambda: client.get("file", user))
        else:
            show("killed, get() of two", lambda: client.get(["one", "two"], user))
        print("  local files:", os.listdir(user))
        transport.close()


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, server_host_keys=[key],
                                   encoding=None)
    port = server.get_port()
    await asyncio.to_thread(use, port)
    for user in ("without", "killed"):
        process = await asyncio.create_subprocess_exec(
            "scp", "-O", "-q", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "LogLevel=ERROR", "-P", str(port), f"{user}@127.0.0.1:one", "copy", stderr=asyncio.subprocess.DEVNULL)
        print(f"{user}, scp -O: status {await process.wait()}")


asyncio.run(main())
PY
HOME=$dir timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
no scp, put(): sh: 1: scp: not found
no scp, get(): no error
  local files: []
killed, get() of two: no error
  local files: ['one']
without, scp -O: status 1
killed, scp -O: status 1
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
