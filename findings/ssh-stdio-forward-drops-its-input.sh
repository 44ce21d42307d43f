#!/usr/bin/env bash
# `ssh -W` stops sending as soon as the other side has nothing more to say; `ssh -L` does not.
#
# Seen with: OpenSSH 9.2p1 (the client of Debian 12), Paramiko 5.1.0 as the server.
#
# CHANNEL_EOF from the server closes one direction only. For a forwarded port, ssh makes a half-close of it, and what
# the local program sends after that still arrives. For -W (and so for ProxyJump) it also closes its own input: bytes
# that come on stdin from then on are not sent, and ssh ends with status 0.
#
# Why it matters: a service that greets, closes its writing side and then takes an upload works directly and through
# -L and loses the upload through -W, with success reported. A client that offers the same as -W has to choose, and
# one that is tested against -W must not read the loss as the server's.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q paramiko==5.1.0

cat >"$dir/run.py" <<'PY'
import queue
import socket
import subprocess
import threading
import time

import paramiko

OPTIONS = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o",
           "LogLevel=ERROR", "-o", "BatchMode=yes"]
UPLOAD = b"x" * 1000
received = queue.Queue()


class Server(paramiko.ServerInterface):
    """Stands for the service too: each forwarded connection is greeted, half-closed, and then read to its end."""

    def check_auth_none(self, username):
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username):
        return "none"

    def check_channel_direct_tcpip_request(self, chanid, origin, destination):
        return paramiko.OPEN_SUCCEEDED


def service(channel):
    channel.sendall(b"hello\n")
    channel.shutdown_write()
    size = 0
    while data := channel.recv(65536):
        size += len(data)
    channel.close()
    received.put(size)


def serve(listener, key):
    while True:
        sock, _ = listener.accept()
        transport = paramiko.Transport(sock)
        transport.add_server_key(key)
        transport.start_server(server=Server())
        threading.Thread(target=lambda: service(transport.accept(30)), daemon=True).start()


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener, paramiko.RSAKey.generate(2048)), daemon=True).start()
ssh = ["ssh", *OPTIONS, "-p", str(listener.getsockname()[1]), "u@127.0.0.1"]

client = subprocess.Popen([*ssh, "-W", "service:1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
greeting = client.stdout.read()
try:
    client.stdin.write(UPLOAD)
    client.stdin.close()
except BrokenPipeError:
    pass
print(f"-W: the client saw {greeting}, the service {received.get(timeout=30)} of 1000 bytes, status {client.wait()}")

with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
client = subprocess.Popen([*ssh, "-N", "-L", f"127.0.0.1:{port}:service:1"], stdin=subprocess.DEVNULL)
for _ in range(100):
    try:
        local = socket.create_connection(("127.0.0.1", port))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
greeting = b""
while data := local.recv(100):
    greeting += data
local.sendall(UPLOAD)
local.shutdown(socket.SHUT_WR)
print(f"-L: the client saw {greeting}, the service {received.get(timeout=30)} of 1000 bytes")
client.kill()
client.wait()
PY
"$dir/venv/bin/python" "$dir/run.py" >"$dir/actual" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }

cat >"$dir/expected" <<'END'
-W: the client saw b'hello\n', the service 0 of 1000 bytes, status 0
-L: the client saw b'hello\n', the service 1000 of 1000 bytes
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
