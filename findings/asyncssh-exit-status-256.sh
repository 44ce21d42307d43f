#!/usr/bin/env bash
# An exit status of 256 is a success for asyncssh.
#
# Seen with: asyncssh 2.24.1 as the client, Paramiko 5.1.0 as the server and as the other client.
#
# RFC 4254, section 6.10, sends the exit status as a uint32, and servers on systems that are not Unix use all of it: a
# Windows program can end with 256 or with 0xC0000005. asyncssh keeps the low eight bits, so 256 arrives as 0 and
# `run(check=True)` does not raise. Paramiko reports the same packet as 256. 0xC0000005 arrives as 5, which is a
# common error code of ordinary programs.
#
# Why it matters: exit_status is an integer in the API, so nobody expects a mask. A client that keeps an 8-bit status
# must treat a non-zero uint32 whose low byte is zero as a failure, and one that compares itself with asyncssh must
# not take asyncssh's answer for what the server sent.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1 paramiko==5.1.0

cat >"$dir/run.py" <<'PY'
import asyncio
import socket
import threading
import time

import asyncssh
import paramiko


class Server(paramiko.ServerInterface):
    def check_auth_none(self, username):
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


def with_paramiko(port, command):
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.start_client()
    transport.auth_none("u")
    channel = transport.open_session()
    channel.exec_command(command)
    status = channel.recv_exit_status()
    transport.close()
    return status


async def with_asyncssh(port, command):
    async with asyncssh.connect("127.0.0.1", port, username="u", config=None, known_hosts=None,
                                client_keys=None, agent_path=None) as connection:
        try:
            return (await connection.run(command, check=True)).exit_status
        except asyncssh.ProcessError as error:
            return f"{error.exit_status}, raised"


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
key = paramiko.RSAKey.generate(2048)
threading.Thread(target=serve, args=(listener, key), daemon=True).start()
for command in ("256", "0xC0000005", "3"):
    print(f"{command}: paramiko {with_paramiko(port, command)}, asyncssh {asyncio.run(with_asyncssh(port, command))}")
PY
"$dir/venv/bin/python" "$dir/run.py" >"$dir/actual"

cat >"$dir/expected" <<'END'
256: paramiko 256, asyncssh 0
0xC0000005: paramiko 3221225477, asyncssh 5, raised
3: paramiko 3, asyncssh 3, raised
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
