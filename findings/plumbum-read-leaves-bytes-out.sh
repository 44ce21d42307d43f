#!/usr/bin/env bash
# plumbum: read() of a remote path returns bytes from which those that are not UTF-8 have been left out.
#
# Seen with: plumbum 2.0.2 with OpenSSH's ssh, asyncssh 2.24.1 as the server.
#
# read() runs "cat", decodes the output as UTF-8 while dropping what cannot be decoded, and encodes the rest again. The
# result has the type bytes, as if it were the file. A local path's read() raises UnicodeDecodeError for the same file.
# The output of any command loses bytes in the same way. SshMachine's argument encoding does not help: the output is
# that of a local program, ssh, and is decoded as such.
#
# Why it matters: a key, an archive or a picture comes back shorter, with no error, and path.write(path.read()) damages
# the file for good. Fetch it with download(), or through remote["base64"](path).
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q plumbum==2.0.2 asyncssh==2.24.1

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def run(process):
    child = await asyncio.create_subprocess_shell(process.command or "sh", stdin=-1, stdout=-1, stderr=-1)
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    status = await child.wait()
    await process.stdout.drain()
    await process.stderr.drain()
    process.exit(status)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, encoding=None,
                                   sftp_factory=True, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >run.py <<'PY'
import base64
import os
import sys

from plumbum import SshMachine, local

DATA = bytes(range(256))
OPTIONS = ["-F", "none", "-q", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]


def machine(**more):
    return SshMachine("127.0.0.1", user="u", ssh_opts=[*OPTIONS, "-p", sys.argv[1]], **more)


with open("file", "wb") as file:
    file.write(DATA)
for name, place in (("local", local), ("ssh", machine()), ("ssh, latin1", machine(encoding="latin1"))):
    try:
        text = place.path(os.path.abspath("file")).read()
        print(f"{name}, read(): {len(text)} {type(text).__name__}, equal to the file: {text == DATA}")
    except UnicodeDecodeError as error:
        print(f"{name}, read(): {type(error).__name__}")
    print(f"{name}, printf:", ascii(place["printf"](r"a\377\376b")))
    print(f"{name}, base64: equal to the file:", base64.b64decode(place["base64"](os.path.abspath("file"))) == DATA)
PY
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
timeout 60 venv/bin/python run.py "$(cat port)" >actual

cat >expected <<'END'
local, read(): UnicodeDecodeError
local, printf: 'ab'
local, base64: equal to the file: True
ssh, read(): 128 bytes, equal to the file: False
ssh, printf: 'ab'
ssh, base64: equal to the file: True
ssh, latin1, read(): 128 bytes, equal to the file: False
ssh, latin1, printf: 'ab'
ssh, latin1, base64: equal to the file: True
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
