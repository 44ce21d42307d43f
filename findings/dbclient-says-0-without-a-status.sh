#!/usr/bin/env bash
# Dropbear's client exits with 0 if a signal ended the command, and if the server refuses it with a DISCONNECT.
#
# Seen with: dbclient 2022.83 (Debian 12's dropbear-bin), OpenSSH 9.2p1 as the other client, asyncssh 2.24.1 as the
# server.
#
# dbclient assumes success until an exit status arrives. For a command that SIGKILL ended, the server sends exit-signal
# instead (RFC 4254, section 6.10). A server may also close a channel without either message, and a server that shuts
# down or has seen too many failed logins sends SSH_MSG_DISCONNECT. dbclient exits with 0 in all of these cases, in the
# last one even though the command never ran. It exits with 1 only if the connection breaks. ssh exits with 255 each
# time.
#
# Why it matters: many routers and containers install dbclient as `ssh`, and people write scripts for it as they would
# for OpenSSH: `ssh host backup && rm -r old`. The exit status cannot show the failure. Let the command print a word
# at its end, and check for that word.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq dropbear-bin=2022.83-1+deb12u3 libtomcrypt1 libtommath1 >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" "$dir/root"
done
LD_LIBRARY_PATH=$(dirname "$(find "$dir/root" -name 'libtomcrypt.so.1' | head -1)")
export LD_LIBRARY_PATH
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1

cat >"$dir/run.py" <<'PY'
import asyncio
import subprocess
import sys

import asyncssh


class Server(asyncssh.SSHServer):
    def connection_made(self, connection):
        self.connection = connection

    def begin_auth(self, username):
        if username == "refused":
            self.connection.disconnect(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, "no")
        return False


async def run(process):
    match process.command:
        case "signal":
            process.exit_with_signal("KILL")
        case "neither":
            process.close()
        case "broken":
            process.get_extra_info("connection").abort()
        case status:
            process.exit(int(status))


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, server_host_keys=[key],
                                   kex_algs=["curve25519-sha256"])
    port = str(server.get_port())
    clients = (
        [sys.argv[1], "-y", "-y", "-p", port],
        ["ssh", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o",
         "BatchMode=yes", "-p", port],
    )
    for user, command in (("u", "0"), ("u", "3"), ("u", "signal"), ("u", "neither"), ("refused", "3"), ("u", "broken")):
        answers = []
        for client in clients:
            process = await asyncio.create_subprocess_exec(*client, f"{user}@127.0.0.1", command,
                                                           stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            answers.append(await asyncio.wait_for(process.wait(), 60))
        print(f"{'refused' if user == 'refused' else command}: dbclient {answers[0]}, ssh {answers[1]}")


asyncio.run(main())
PY
HOME=$dir "$dir/venv/bin/python" "$dir/run.py" "$dir/root/usr/bin/dbclient" >"$dir/actual"

cat >"$dir/expected" <<'END'
0: dbclient 0, ssh 0
3: dbclient 3, ssh 3
signal: dbclient 0, ssh 255
neither: dbclient 0, ssh 255
refused: dbclient 0, ssh 255
broken: dbclient 1, ssh 255
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
