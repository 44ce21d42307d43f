#!/usr/bin/env bash
# copyparty's SFTP server removes a file that is opened to be written, whatever the flags are, and then may not find it.
#
# Seen with: copyparty 1.20.26 on Paramiko 5.1.0, on Linux; Paramiko as the client.
#
# - OPEN with READ and WRITE, and neither CREAT nor TRUNC, of a file that is there: "no such file", and so it is. To go on
#   with an upload in this way, or to see whether a file may be written, loses it.
# - READLINK of a file that is no link answers with the file's own path.
#
# Why it matters: an open that fails counts as having changed nothing, and is a usual way to ask whether a file may be
# written. Behind servers that keep objects rather than files, do not open what is to be replaced before the new file is
# whole. And a link that leads to itself is none.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q copyparty==1.20.26 paramiko==5.1.0
mkdir "$dir/home" "$dir/keys" "$dir/files"
ssh-keygen -q -t ed25519 -N '' -C '' -f "$dir/key"
ssh-keygen -q -t ed25519 -N '' -C '' -f "$dir/keys/ssh_host_ed25519_key"

cat >"$dir/run.py" <<'PY'
import os
import socket
import subprocess
import sys
import time

import paramiko

os.chdir(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
key = " ".join(open("key.pub").read().split()[:2])
server = subprocess.Popen(
    [
        sys.executable, "-m", "copyparty", "-q", "-i", f"unix:{os.getcwd()}/http", "-a", "u:word", "--usernames",
        "-v", f"{os.getcwd()}/files:/:A,u", "--sftp", str(port), "--sftp-i", "127.0.0.1", "--sftp-key", f"u {key}",
        "--sftp-hostk", "keys",
    ],
    env=os.environ | {"HOME": f"{os.getcwd()}/home"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)  # fmt: skip
try:
    for _ in range(600):
        try:
            transport = paramiko.Transport(("127.0.0.1", port))
            break
        except paramiko.SSHException:
            time.sleep(0.1)
    transport.connect(username="u", pkey=paramiko.Ed25519Key.from_private_key_file("key"))
    client = paramiko.SFTPClient.from_transport(transport)

    with open("files/f", "w") as file:
        file.write("0123456789")
    print("READLINK of /f:", client.readlink("/f"))
    try:
        client.open("/f", "r+").close()
        said = "OK"
    except OSError as error:
        said = error.strerror or str(error)
    print("OPEN of /f with READ and WRITE:", said)
    print("in the directory:", os.listdir("files"))
    transport.close()
finally:
    server.kill()
    server.wait()
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir" 2>/dev/null >"$dir/actual"

cat >"$dir/expected" <<'END'
READLINK of /f: /f
OPEN of /f with READ and WRITE: No such file
in the directory: []
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
