#!/usr/bin/env bash
# Twisted's cftp ends with 0 whatever happens to a batch, conch ends with 0 when the remote command is killed.
#
# Seen with: Twisted 26.10.0 with cryptography 50.0.2, asyncssh 2.24.1 as the server; OpenSSH 9.2p1 for comparison.
#
# "cftp -b" has the options of "sftp -b" and reads the same kind of file. A command in it that fails prints nothing, the
# next ones are run, and the status is 0. A connection that is refused prints an exception, and the status is 0 again.
# conch passes the exit status of a remote command on, and 0 for one that a signal has ended.
#
# Why it matters: both stand in for OpenSSH's programs, in scripts that look at the status: an upload that never took
# place counts as done. Compare the result with a listing; let the remote command print a last word and look for it.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q 'twisted[conch]==26.10.0' cryptography==50.0.2 asyncssh==2.24.1
mkdir -p home/.ssh
ssh-keygen -q -t ed25519 -N '' -f key
export HOME=$dir/home

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def run(process):
    if process.command == "killed":
        process.exit_with_signal("KILL")
    else:
        process.exit(3)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, sftp_factory=True,
                                   server_host_keys=["key"])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
port=$(<port)
free=$(venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# Conch looks for the name alone, OpenSSH for the port as well.
printf '%s %s\n' 127.0.0.1 "$(cut -d' ' -f1,2 key.pub)" "[127.0.0.1]:$port" "$(cut -d' ' -f1,2 key.pub)" >home/.ssh/known_hosts
options=(-F none -q -o UserKnownHostsFile="$dir/home/.ssh/known_hosts")

batch() {
    local program status
    printf '%s\n' "${@:3}" >batch
    for program in sftp cftp; do
        status=0
        if [[ $program == sftp ]]; then
            timeout 20 sftp "${options[@]}" -b batch -P "$2" u@127.0.0.1 </dev/null >out 2>&1 || status=$?
        else
            timeout 20 venv/bin/cftp -b batch -a -l u -p "$2" 127.0.0.1 </dev/null >out 2>&1 || status=$?
        fi
        echo "$1, $program: status $status, $(wc -l <out) lines"
        [[ ! -e copy ]] || { echo "  copied: $(<copy)" && rm copy; }
    done
}
command() {
    local status=0
    timeout 20 ssh "${options[@]}" -p "$port" u@127.0.0.1 "$1" </dev/null >out 2>&1 || status=$?
    echo "$1, ssh: status $status"
    status=0
    timeout 20 venv/bin/conch -a -l u -p "$port" 127.0.0.1 "$1" </dev/null >out 2>&1 || status=$?
    echo "$1, conch: status $status"
}

echo text >file
{
    batch "put" "$port" "put file $dir/copy"
    batch "put to a missing directory" "$port" "put file $dir/missing/file"
    batch "rm of a missing file" "$port" "rm $dir/missing"
    batch "no such command" "$port" "bogus"
    batch "connection refused" "$free" "put file $dir/copy"
    command "exits with 3"
    command "killed"
} >actual

cat >expected <<'END'
put, sftp: status 0, 1 lines
  copied: text
put, cftp: status 0, 0 lines
  copied: text
put to a missing directory, sftp: status 1, 2 lines
put to a missing directory, cftp: status 0, 0 lines
rm of a missing file, sftp: status 1, 2 lines
rm of a missing file, cftp: status 0, 0 lines
no such command, sftp: status 1, 2 lines
no such command, cftp: status 0, 0 lines
connection refused, sftp: status 255, 1 lines
connection refused, cftp: status 0, 2 lines
exits with 3, ssh: status 3
exits with 3, conch: status 3
killed, ssh: status 255
killed, conch: status 0
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
