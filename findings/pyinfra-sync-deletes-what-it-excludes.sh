#!/usr/bin/env bash
# pyinfra's files.sync with delete=True removes what exclude_dir names; exclude="name" excludes nothing.
#
# Seen with: pyinfra 3.10.0 on Paramiko 3.5.1, asyncssh 2.24.1 as the server; rsync's --delete for what is usual.
#
# exclude_dir keeps the directory from being copied, and is not looked at when it is time to delete: what the server has
# in the directory is "not present locally". exclude is respected there. Its patterns, however, are compared with the
# whole path although the description says the file name, so "settings.py" matches nothing and only "*/settings.py"
# does: the file that was to be left out is copied over the server's. rsync keeps what is excluded, in both cases.
#
# Why it matters: what one excludes is what the server alone has, uploads, data, its own settings. The first run takes
# it away and ends well. Write exclude=["*/settings.py", "*/uploads/*"] as well, or sync without delete.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q pyinfra==3.10.0 paramiko==3.5.1 asyncssh==2.24.1

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def run(process):
    child = await asyncio.create_subprocess_shell(process.command, stdin=-1, stdout=-1, stderr=-1)
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
cat >inventory.py <<'PY'
import pathlib

hosts = [("127.0.0.1", {"ssh_port": int(pathlib.Path("port").read_text()), "ssh_user": "u", "ssh_password": "p",
                        "ssh_look_for_keys": False, "ssh_known_hosts_file": "/dev/null",
                        "ssh_strict_host_key_checking": "no"})]
PY
cat >deploy.py <<'PY'
import os

from pyinfra.operations import files

exclude = ["*/settings.py", "*/uploads/*"] if os.environ["PATTERNS"] == "paths" else "settings.py"
files.sync(src="site", dest=f"{os.getcwd()}/server", delete=True, exclude=exclude, exclude_dir="uploads")
PY
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done

for patterns in names paths; do
    rm -rf site server
    mkdir -p site/uploads server/uploads
    echo new | tee site/index.html >site/settings.py
    echo old | tee server/index.html server/settings.py server/extra >server/uploads/photo
    status=0
    PATTERNS=$patterns timeout 60 venv/bin/pyinfra -y inventory.py deploy.py >pyinfra.log 2>&1 || status=$?
    echo "$patterns: status $status"
    (cd server && find . -type f -printf '%P\n' | sort | while read -r name; do echo "  $name: $(<"$name")"; done)
done >actual

cat >expected <<'END'
names: status 0
  index.html: new
  settings.py: new
paths: status 0
  index.html: new
  settings.py: old
  uploads/photo: old
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
