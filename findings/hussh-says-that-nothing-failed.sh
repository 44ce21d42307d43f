#!/usr/bin/env bash
# hussh: a directory's links can be missing from a copy that reports no failure; a killed command has status 0.
#
# Seen with: hussh 0.3.3, asyncssh 2.24.1 as the server; OpenSSH 9.2p1's ssh for comparison.
#
# sftp_get_dir() and sftp_put_dir() return two lists, the files that were copied and those that failed. With
# follow_symlinks=False, no link is copied, as a link or otherwise, and none is in a list. With the default of True, a
# link that leads nowhere is in put's list of failures, and in none of get's. execute() has status 0 for a command that
# a signal has ended, where ssh ends with 255.
#
# Why it matters: the two lists are all there is to judge a copy by. A tree of releases whose "current" is a link
# arrives without it. Compare the names with a listing, and let a command print a last word.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q hussh==0.3.3 asyncssh==2.24.1
mkdir source source/v1
echo text >source/v1/file
echo readme >source/readme
ln -s v1 source/current
ln -s readme source/alias
ln -s gone source/dangling

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return username != "open"

    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


def run(process):
    if process.command == "killed":
        process.exit_with_signal("KILL")
    else:
        process.exit(3)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >run.py <<'PY'
import os
import subprocess
import sys

import hussh


def tree(root):
    return sorted(os.path.relpath(os.path.join(folder, name), root)
                  for folder, folders, files in os.walk(root) for name in folders + files)


def names(paths):
    return sorted(os.path.relpath(path, os.path.abspath("source")) for path in paths)


port = sys.argv[1]
connection = hussh.Connection("127.0.0.1", username="u", password="p", port=int(port))
source, here = os.path.abspath("source"), os.getcwd()
print("source:", tree(source))
for what, copy in (("sftp_get_dir", connection.sftp_get_dir), ("sftp_put_dir", connection.sftp_put_dir)):
    for follow in (True, False):
        target = f"{here}/{what}-{follow}"
        copied, failed = copy(source, target, follow_symlinks=follow)
        print(f"{what}, follow_symlinks={follow}")
        print("  copied:", names(copied))
        print("  failed:", names(failed))
        print("  there: ", tree(target))

options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
for command in ("exits with 3", "killed"):
    status = subprocess.run(["ssh", *options, "-p", port, "open@127.0.0.1", command], stdin=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL).returncode
    print(f"{command}: hussh {connection.execute(command).status}, ssh {status}")
PY
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
timeout 60 venv/bin/python run.py "$(cat port)" >actual

cat >expected <<'END'
source: ['alias', 'current', 'dangling', 'readme', 'v1', 'v1/file']
sftp_get_dir, follow_symlinks=True
  copied: ['alias', 'current/file', 'readme', 'v1/file']
  failed: []
  there:  ['alias', 'current', 'current/file', 'readme', 'v1', 'v1/file']
sftp_get_dir, follow_symlinks=False
  copied: ['readme', 'v1/file']
  failed: []
  there:  ['readme', 'v1', 'v1/file']
sftp_put_dir, follow_symlinks=True
  copied: ['alias', 'current/file', 'readme', 'v1/file']
  failed: ['dangling']
  there:  ['alias', 'current', 'current/file', 'readme', 'v1', 'v1/file']
sftp_put_dir, follow_symlinks=False
  copied: ['readme', 'v1/file']
  failed: []
  there:  ['readme', 'v1', 'v1/file']
exits with 3: hussh 3, ssh 3
killed: hussh 0, ssh 255
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
