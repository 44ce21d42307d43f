#!/usr/bin/env bash
# asyncssh's SFTP server answers every OPENDIR with a handle, even for a file and for a name that does not exist.
#
# Seen with: asyncssh 2.24.1 as the server, with its own SFTPServer; Paramiko 5.1.0 as the client.
#
# The directory is first looked at when READDIR asks for names, and the error that belongs to OPENDIR comes there. For
# a regular file it is NO_SUCH_FILE with the text "Not a directory". OpenSSH, pkg/sftp, Apache MINA SSHD and Twisted
# refuse the OPENDIR.
#
# Why it matters: OPENDIR is a common test for "is it a directory?", because it saves the STAT. Here the answer is
# always yes. A client that counts a directory as opened once it has a handle (to create its target, or to send many
# READDIRs ahead) finds the error in the wrong place, and one that takes an error of READDIR for the end of the list
# reports an empty directory.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1 paramiko==5.1.0
mkdir "$dir/files" "$dir/files/folder"
echo text >"$dir/files/file"

cat >"$dir/run.py" <<'PY'
import asyncio
import sys

import asyncssh
import paramiko
from paramiko.sftp import CMD_HANDLE, CMD_NAME, CMD_OPENDIR, CMD_READDIR


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def ask(client, expected, *request):
    try:
        kind, message = client._request(*request)
        return kind == expected and message
    except OSError as error:
        return f"{type(error).__name__}, {error.strerror}"


def look(port, folder):
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.start_client()
    transport.auth_none("u")
    client = paramiko.SFTPClient.from_transport(transport)
    for name in ("folder", "file", "missing"):
        message = ask(client, CMD_HANDLE, CMD_OPENDIR, f"{folder}/{name}")
        if isinstance(message, str):
            print(f"{name}: OPENDIR {message}")
            continue
        names = ask(client, CMD_NAME, CMD_READDIR, message.get_binary())
        print(f"{name}: OPENDIR a handle, READDIR {names if isinstance(names, str) else 'names'}")
    transport.close()


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await asyncio.to_thread(look, server.get_port(), sys.argv[1])


asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir/files" >"$dir/actual"

cat >"$dir/expected" <<'END'
folder: OPENDIR a handle, READDIR names
file: OPENDIR a handle, READDIR FileNotFoundError, Not a directory
missing: OPENDIR a handle, READDIR FileNotFoundError, No such file or directory
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
