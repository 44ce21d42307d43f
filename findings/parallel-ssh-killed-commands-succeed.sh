#!/usr/bin/env bash
# parallel-ssh reports exit code 0 for a command that a signal ended.
#
# Seen with: parallel-ssh 2.16.0.post1 on ssh2-python 1.2.0.post1 and ssh-python 1.2.0.post1; Paramiko 5.1.0 as the
# other client, asyncssh 2.24.1 as the server.
#
# For such a command, the server sends exit-signal instead of exit-status (RFC 4254, section 6.10). libssh2 returns 0 if
# it has received no status, and parallel-ssh passes this on. ssh2-python's get_exit_signal() does not help, because it
# names no signal either. The same client class from pssh.clients.ssh uses libssh and reports -1, as Paramiko does.
#
# Why it matters: exit_code is None while the command runs, so callers expect None for a missing status, and they
# compare the code with 0. If the kernel kills a job on one of a hundred hosts for lack of memory, that host counts as
# successful. Use the clients from pssh.clients.ssh, or let each command print a word at its end and check for it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q parallel-ssh==2.16.0.post1 ssh2-python==1.2.0.post1 ssh-python==1.2.0.post1 \
    asyncssh==2.24.1 paramiko==5.1.0

cat >"$dir/run.py" <<'PY'
import asyncio

import asyncssh
import paramiko
import pssh.clients
import pssh.clients.ssh

LOGIN = {"user": "u", "password": "p"}


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def run(process):
    if process.command == "SIGKILL":
        process.exit_with_signal("KILL")
    else:
        process.exit(int(process.command))


def with_parallel(clients, port, command):
    client = clients.ParallelSSHClient(["127.0.0.1"], port=port, allow_agent=False, num_retries=1, **LOGIN)
    output = client.run_command(command)
    client.join(output)
    return output[0]


def with_paramiko(port, command):
    transport = paramiko.Transport(("127.0.0.1", port))
    transport.connect(username="u", password="p")
    channel = transport.open_session()
    channel.exec_command(command)
    status = channel.recv_exit_status()
    transport.close()
    return status


async def main():
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, server_host_keys=[key])
    port = server.get_port()
    for command in ("0", "3", "SIGKILL"):
        libssh2 = await asyncio.to_thread(with_parallel, pssh.clients, port, command)
        signal = libssh2.channel.get_exit_signal()[1]
        libssh = await asyncio.to_thread(with_parallel, pssh.clients.ssh, port, command)
        other = await asyncio.to_thread(with_paramiko, port, command)
        print(f"{command}: on libssh2 {libssh2.exit_code}, signal {signal}; on libssh {libssh.exit_code}; Paramiko {other}")


asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" >"$dir/actual" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }

cat >"$dir/expected" <<'END'
0: on libssh2 0, signal None; on libssh 0; Paramiko 0
3: on libssh2 3, signal None; on libssh 3; Paramiko 3
SIGKILL: on libssh2 0, signal None; on libssh -1; Paramiko -1
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
