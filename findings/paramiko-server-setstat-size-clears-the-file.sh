#!/usr/bin/env bash
# Paramiko's helper for SFTP servers cuts a file to the asked size by emptying it first.
#
# Seen with: Paramiko 5.1.0, SFTPServer.set_file_attr, which its documentation offers as a helper.
#
# The helper opens the file with "w+" and truncates that to the size. So SETSTAT with size 6 on "0123456789" gives six
# zero bytes, and so does a request for the size that the file has already. The answer is OK.
#
# Why it matters: scp sends the size before CLOSE, lftp sends it with the times, and a resumed upload over a longer
# file cuts it at the end. On a server that uses the helper each of them replaces the file by zeros, and STAT's size
# is right. Only reading back shows it. Do not send a size that the file has already, and after cutting a file read
# some of it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q paramiko==5.1.0
cat >"$dir/run.py" <<'PY'
import socket
import sys
import threading

import paramiko


class Server(paramiko.ServerInterface):
    def check_auth_none(self, username):
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED


class Files(paramiko.SFTPServerInterface):
    def chattr(self, path, attr):
        paramiko.SFTPServer.set_file_attr(path, attr)
        return paramiko.SFTP_OK


listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
server = paramiko.Transport(listener.accept()[0])
server.add_server_key(paramiko.RSAKey.generate(2048))
server.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
transport = paramiko.Transport(ours)
threading.Thread(target=server.start_server, kwargs={"server": Server()}, daemon=True).start()
transport.start_client()
transport.auth_none("u")
client = paramiko.SFTPClient.from_transport(transport)
for size in (6, 10, 12):
    with open(sys.argv[1], "wb") as file:
        file.write(b"0123456789")
    client.truncate(sys.argv[1], size)
    with open(sys.argv[1], "rb") as file:
        print(f"size {size}: {file.read()}")
transport.close()
server.close()
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir/file" >"$dir/actual"

cat >"$dir/expected" <<'END'
size 6: b'\x00\x00\x00\x00\x00\x00'
size 10: b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00'
size 12: b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00'
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
