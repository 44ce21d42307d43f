#!/usr/bin/env bash
# ssh2-python raises its own errors for exit statuses from 0x80000000 up.
#
# Seen with: ssh2-python 1.2.0.post1 (it carries libssh2), Paramiko 5.1.0 as the server.
#
# Channel.get_exit_status() passes libssh2's int through the same check as the return code of a call. A status that is
# negative as a signed number is thus taken for an error of libssh2: 0xC0000005, which a crashed Windows program ends
# with, raises UnknownError, and a status whose number is also an error code raises that error (0xFFFFFFF7, -9, is a
# timeout that never happened). 0xFFFFFFDB is -37, EAGAIN, and is returned as if the call should be made again.
#
# Why it matters: the command has run and ended. A caller who treats SSH errors as "the connection failed, try again"
# runs it a second time. Exit statuses need a type of their own, wider than a return code.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q ssh2-python==1.2.0.post1 paramiko==5.1.0

cat >"$dir/run.py" <<'PY'
import socket
import threading
import time

import paramiko
from ssh2.session import Session


class Server(paramiko.ServerInterface):
    def check_auth_password(self, username, password):
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        def finish():
            time.sleep(0.2)  # the request's own answer leaves first
            channel.send_exit_status(int(command, 0))
            channel.close()
        threading.Thread(target=finish, daemon=True).start()
        return True


def serve(listener, key):
    while True:
        sock, _ = listener.accept()
        transport = paramiko.Transport(sock)
        transport.add_server_key(key)
        transport.start_server(server=Server())


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener, paramiko.RSAKey.generate(2048)), daemon=True).start()
session = Session()
session.handshake(socket.create_connection(listener.getsockname()))
session.userauth_password("u", "p")
for command in ("3", "0x7FFFFFFF", "0xC0000005", "0xFFFFFFF7", "0xFFFFFFDB"):
    channel = session.open_session()
    channel.execute(command)
    channel.wait_eof()
    channel.close()
    channel.wait_closed()
    try:
        print(f"{command}: {channel.get_exit_status()}")
    except Exception as error:
        print(f"{command}: raises {type(error).__name__}")
PY
"$dir/venv/bin/python" "$dir/run.py" >"$dir/actual"

cat >"$dir/expected" <<'END'
3: 3
0x7FFFFFFF: 2147483647
0xC0000005: raises UnknownError
0xFFFFFFF7: raises Timeout
0xFFFFFFDB: -37
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
