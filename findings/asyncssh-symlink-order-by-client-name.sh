#!/usr/bin/env bash
# asyncssh's SFTP server reads a SYMLINK's two paths in an order that depends on the client's name.
#
# Seen with: asyncssh 2.24.1 as the server, Paramiko 5.1.0 as the client under two identifications.
#
# The draft says link, target; OpenSSH has always sent target, link. asyncssh's server takes OpenSSH's order when
# "OpenSSH" is in the client's identification, and the draft's order otherwise. One and the same request makes a link
# "link -> target" for the one and "target -> link" for the other, with OK for both.
#
# Why it matters: the server's identification does not tell which order it wants, and a client that follows OpenSSH
# without calling itself so makes every link the wrong way round. Make one link, READLINK it, and remember the order
# for this server together with the identification that was sent.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1 paramiko==5.1.0
cat >"$dir/run.py" <<'PY'
import asyncio
import os
import sys

import asyncssh
import paramiko


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def look(port, name, folder):
    os.mkdir(folder)
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.local_version = f"SSH-2.0-{name}"
    transport.start_client()
    transport.auth_none("u")
    paramiko.SFTPClient.from_transport(transport).symlink("first", f"{folder}/second")
    made = sorted(os.listdir(folder)) or "nothing there"
    print(f"{name}: {made}")
    transport.close()


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    for name in ("OpenSSH_9.9", "another_1.0"):
        await asyncio.to_thread(look, server.get_port(), name, f"{sys.argv[1]}/{name}")
    for name in sorted(os.listdir(".")):
        if os.path.islink(name):
            print(f"in the server's directory: {name}, it leads to {os.readlink(name).replace(sys.argv[1], 'DIR')}")


asyncio.run(main())
PY
mkdir "$dir/files" "$dir/cwd"
cd "$dir/cwd"
"$dir/venv/bin/python" "$dir/run.py" "$dir/files" >"$dir/actual"

cat >"$dir/expected" <<'END'
OpenSSH_9.9: ['second']
another_1.0: nothing there
in the server's directory: first, it leads to DIR/another_1.0/second
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
