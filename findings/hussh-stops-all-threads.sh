#!/usr/bin/env bash
# hussh: all other threads of the program stand still while one waits for a command.
#
# Seen with: hussh 0.3.3, asyncssh 2.24.1 as the server; Paramiko 5.1.0 for comparison.
#
# Connection is compiled code that keeps Python's interpreter lock until the server has answered. In the two seconds
# that a command takes, a second thread gets nothing done. The call itself works, and its result is right.
#
# Why it matters: a connection for each thread runs the commands one after the other, and a web server, an event loop
# or a timer beside it stops for as long as a command runs. A server of the same process (in a test, say) can never
# answer. Use hussh.aio, hussh.multi_conn, or a process of its own.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q hussh==0.3.3 paramiko==5.1.0 asyncssh==2.24.1

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return True

    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def run(process):
    await asyncio.sleep(2)
    process.exit(0)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >run.py <<'PY'
import sys
import threading
import time

import hussh
import paramiko

PORT = int(sys.argv[1])


def with_hussh():
    connection = hussh.Connection("127.0.0.1", username="u", password="p", port=PORT)
    return lambda: connection.execute("wait").status


def with_paramiko():
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.WarningPolicy())
    client.connect("127.0.0.1", username="u", password="p", port=PORT, allow_agent=False, look_for_keys=False)
    return lambda: client.exec_command("wait")[1].channel.recv_exit_status()


def measure(name, execute):
    longest = 0
    done = threading.Event()

    def tick():
        nonlocal longest
        last = time.monotonic()
        while not done.wait(0.01):
            now = time.monotonic()
            longest = max(longest, now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.1)
    status = execute()
    time.sleep(0.1)
    done.set()
    thread.join()
    print(f"{name}: status {status}, the other thread {'stood still' if longest > 1.5 else 'went on'}")


measure("hussh", with_hussh())
measure("Paramiko", with_paramiko())
PY
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
timeout 60 venv/bin/python run.py "$(cat port)" >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
hussh: status 0, the other thread stood still
Paramiko: status 0, the other thread went on
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
