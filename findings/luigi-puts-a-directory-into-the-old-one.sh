#!/usr/bin/env bash
# Luigi: the second put() of a directory lands inside the first one, under the name of a temporary file.
#
# Seen with: luigi 3.8.1's RemoteFileSystem, OpenSSH 9.2p1's ssh and scp, asyncssh 2.24.1 as the server.
#
# put() copies to "PATH-luigi-tmp-NUMBER" and then runs "mv" to PATH. Where PATH is a directory, mv moves into it, and
# the call succeeds: PATH has its old files, and the new ones below a name with a random number. A single file that is
# put to a directory gets such a name as well. listdir() is "find -type f": it has the files of all levels, with the
# whole path, and no directories.
#
# Why it matters: a task that runs daily uploads its results once; after that the readers of PATH get the first day's
# files, while the disk fills. Remove PATH before put(), or put to a new name and rename it.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q luigi==3.8.1 asyncssh==2.24.1
mkdir results remote

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


class Files(asyncssh.SFTPServer):
    def exit(self):
        self.channel.exit(0)  # scp fails without a status.


async def run(process):
    command = await asyncio.create_subprocess_shell(process.command, stdin=asyncio.subprocess.DEVNULL,
                                                    stdout=asyncio.subprocess.PIPE)
    output, _ = await command.communicate()
    process.stdout.write(output.decode())
    process.exit(command.returncode)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, sftp_factory=Files,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >run.py <<'PY'
import os
import re
import sys

from luigi.contrib.ssh import RemoteFileSystem

system = RemoteFileSystem("127.0.0.1", username="u", port=sys.argv[1], no_host_key_check=True)
remote = os.path.abspath("remote")


def show(what, folder):
    print(what)
    for path in sorted(system.listdir(folder)):
        with open(path) as file:
            print(f"  {re.sub('[0-9]{9,}', 'NUMBER', os.path.relpath(path, remote))}: {file.read()}")


for day in ("monday", "tuesday"):
    with open("results/report", "w") as file:
        file.write(day)
    system.put("results", f"{remote}/out")
    show(f"put of a directory, {day}", f"{remote}/out")
os.mkdir(f"{remote}/files")
system.put("results/report", f"{remote}/files")
show("put of a file to a directory", f"{remote}/files")
PY
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
timeout 60 venv/bin/python run.py "$(cat port)" >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
put of a directory, monday
  out/report: monday
put of a directory, tuesday
  out/out-luigi-tmp-NUMBER/report: tuesday
  out/report: monday
put of a file to a directory
  files/files-luigi-tmp-NUMBER: tuesday
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
