#!/usr/bin/env bash
# mfatsftp: get() of a file that is not there empties the local one; put_dir() and get_dir() leave links out.
#
# Seen with: mfatsftp 0.3.2, OpenSSH 9.2p1's sftp-server (Debian 12).
#
# get() opens the local file for writing, and asks for the remote one after that. The error names the remote file. put()
# looks at its source first. put_dir() and get_dir() take a link to a file for the file, and skip a link to a directory
# and one that leads nowhere. They return the number of bytes that were copied, and there is nothing to see of the rest.
#
# Why it matters: "fetch it again, and keep what we have if that fails" is left with an empty file, and its next start
# reads that. Fetch to another name and rename it; compare the names of a tree after its copy.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq openssh-sftp-server >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
dpkg -x ./*.deb root
python3 -m venv venv
venv/bin/pip install -q mfatsftp==0.3.2

cat >run.py <<'PY'
import os
import subprocess

from mfatsftp import SFTPClient, SFTPError


def attempt(what, action):
    with open("local", "w") as file:
        file.write("local")
    with open("remote", "w") as file:
        file.write("remote")
    try:
        action()
        result = "done"
    except (OSError, SFTPError) as error:
        result = type(error).__name__
    with open("local") as local, open("remote") as remote:
        print(f"{what}: {result}, local {local.read()!r}, remote {remote.read()!r}")


def tree(root):
    return sorted(os.path.relpath(os.path.join(folder, name), root)
                  for folder, folders, files in os.walk(root) for name in folders + files)


server = subprocess.Popen(["root/usr/lib/openssh/sftp-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
client = SFTPClient.from_pipes(server.stdin, server.stdout)
here = os.getcwd()
attempt("get", lambda: client.get(f"{here}/remote", "local"))
attempt("get of a missing file", lambda: client.get(f"{here}/missing", "local"))
attempt("put of a missing file", lambda: client.put("missing", f"{here}/remote"))

os.makedirs("tree/v1")
for name in ("tree/readme", "tree/v1/file"):
    with open(name, "w") as file:
        file.write("text")
os.symlink("readme", "tree/alias")
os.symlink("v1", "tree/current")
os.symlink("gone", "tree/dangling")
print("tree:", tree("tree"))
for what, copy in (("put_dir", client.put_dir), ("get_dir", client.get_dir)):
    print(f"{what}: {copy(f'{here}/tree', f'{here}/{what}')} bytes, {tree(what)}")
client.close()
server.stdin.close()
server.wait()
PY
timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
get: done, local 'remote', remote 'remote'
get of a missing file: SFTPNoSuchFileError, local '', remote 'remote'
put of a missing file: FileNotFoundError, local 'local', remote 'remote'
tree: ['alias', 'current', 'dangling', 'readme', 'v1', 'v1/file']
put_dir: 12 bytes, ['alias', 'readme', 'v1', 'v1/file']
get_dir: 12 bytes, ['alias', 'readme', 'v1', 'v1/file']
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
