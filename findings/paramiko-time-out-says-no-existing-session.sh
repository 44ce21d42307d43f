#!/usr/bin/env bash
# Paramiko's SSHClient.connect(timeout=...) raises SSHException("No existing session") when the time is over, and leaves
# the connection and its thread behind.
#
# Seen with: Paramiko 5.1.0.
#
# connect() passes its timeout to Transport.start_client(), which returns when the time is over as it does when the key
# exchange is. connect() then asks for the server's key, and there is none: "No existing session". It is a
# socket.timeout only as long as the TCP connection is not accepted. The transport goes on in its thread, until
# banner_timeout (15 s) or handshake_timeout ends it.
#
# Why it matters: `except socket.timeout` does not catch the usual time-out, that of a hung or overloaded server, whose
# kernel accepts connections. A message that looks like a mistake of the program is the server's silence. Whoever tries
# again in a loop has a thread and a connection for each attempt: close the client first.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q paramiko==5.1.0

cat >"$dir/run.py" <<'PY'
import logging
import socket

import paramiko

logging.disable()


def attempt(title, port):
    client = paramiko.SSHClient()
    try:
        client.connect("127.0.0.1", port=port, username="me", password="word", timeout=1)
    except Exception as error:
        print(f"{title}: {type(error).__name__}({str(error)!r})")
    transport = client.get_transport()
    print("  left behind:", transport is not None and transport.is_alive())
    client.close()


with socket.socket() as full, socket.create_server(("127.0.0.1", 0)) as silent:
    # Its queue takes one connection, and nobody accepts it.
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    with socket.create_connection(full.getsockname()):
        attempt("a server that does not accept", full.getsockname()[1])
    attempt("a server that accepts and is silent", silent.getsockname()[1])
PY

"$dir/venv/bin/python" -W ignore "$dir/run.py" >"$dir/out"
cat "$dir/out"
diff - "$dir/out" <<'EXPECTED'
a server that does not accept: TimeoutError('timed out')
  left behind: False
a server that accepts and is silent: SSHException('No existing session')
  left behind: True
EXPECTED
