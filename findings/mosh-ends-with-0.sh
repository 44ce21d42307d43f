#!/usr/bin/env bash
# mosh ends with status 0 whatever becomes of the command: status 3, a signal, or a program that does not exist.
#
# Seen with: mosh 1.4.0 (Debian 12), OpenSSH 9.2p1 for the login and for comparison.
#
# "mosh host -- command" looks like "ssh host command", and a failed login gives a status other than 0, as does a server that
# cannot be started. From then on there is only the session: the server waits for the command and does not keep its
# status, the protocol has no place for it, and the client ends with 0 when the server has said goodbye. The manual page
# does not speak of it.
#
# Why it matters: "mosh host -- deploy && mosh other -- deploy" goes on after a failure, and so does each script or alias
# that was made for ssh and got mosh for a bad line. Let the command write its status to a file, or use ssh for it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq mosh=1.4.0-1+b1 libprotobuf32 libutempter0 >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" root
done
lib=$(dirname "$(find "$dir/root" -name 'libprotobuf.so.32')")
sshd=$(PATH=$PATH:/usr/sbin command -v sshd)
ssh-keygen -q -t ed25519 -N '' -f host_key
ssh-keygen -q -t ed25519 -N '' -f key
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >sshd_config <<END
Port $port
ListenAddress 127.0.0.1
HostKey $dir/host_key
AuthorizedKeysFile $dir/key.pub
StrictModes no
UsePAM no
PidFile $dir/sshd.pid
END
"$sshd" -f sshd_config -E sshd.log
trap 'kill "$(cat sshd.pid)" 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in {1..100}; do grep -qs listening sshd.log && break; sleep 0.1; done
echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 host_key.pub)" >known_hosts
cat >config <<END
Host far
    HostName 127.0.0.1
    Port $port
    User $(id -un)
    IdentityFile $dir/key
    IdentitiesOnly yes
    UserKnownHostsFile $dir/known_hosts
    GlobalKnownHostsFile /dev/null
Host closed
    HostName 127.0.0.1
    Port 1
END

cat >terminal.py <<'PY'
"""Runs a program on a terminal of 80 columns, for 20 seconds at most, and ends with its status."""
import fcntl, os, pty, select, struct, sys, termios, time

pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.execvp(sys.argv[1], sys.argv[1:])
end = time.monotonic() + 20
while time.monotonic() < end:
    if select.select([terminal], [], [], 0.5)[0]:
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:
            break
else:
    os.kill(pid, 15)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
PY
export LD_LIBRARY_PATH=$lib LC_ALL=C.UTF-8 TERM=xterm-256color
show() { # HOST, COMMAND: runs it with ssh and with mosh
    local ssh=0 mosh=0
    python3 terminal.py ssh -F config -t "$1" "$2" || ssh=$?
    python3 terminal.py perl root/usr/bin/mosh --client="$dir/root/usr/bin/mosh-client" --ssh="ssh -F $dir/config" \
        --server="env LD_LIBRARY_PATH=$lib LC_ALL=C.UTF-8 $dir/root/usr/bin/mosh-server" --bind-server=any \
        "$1" -- sh -c "$2" || mosh=$?
    echo "$1, $2: ssh $ssh, mosh $mosh"
}
{
    show far 'exit 0'
    show far 'exit 3'
    show far 'kill -9 $$'
    show far '/nonexistent'
    show closed 'exit 0'
} >actual

cat >expected <<'END'
far, exit 0: ssh 0, mosh 0
far, exit 3: ssh 3, mosh 0
far, kill -9 $$: ssh 255, mosh 0
far, /nonexistent: ssh 127, mosh 0
closed, exit 0: ssh 255, mosh 10
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
