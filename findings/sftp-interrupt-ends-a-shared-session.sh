#!/usr/bin/env bash
# Ctrl-C during a transfer in sftp ends sftp where its ssh uses a ControlMaster, and only the transfer elsewhere.
#
# Seen with: OpenSSH 9.2p1 (Debian 12).
#
# sftp stops the transfer at SIGINT and shows its prompt again. The signal goes to the ssh below it too, for which sftp
# has it ignored (sftp.c, connect_to_server). An ssh that finds a master sets handlers of its own for SIGINT, SIGHUP and
# SIGTERM (mux.c, control_client_sighandler), without a look at what was ignored, and closes the session.
#
# Why it matters: whoever presses Ctrl-C to stop one file loses the session, and what was queued behind it. It looks like
# the fault of whatever serves the socket. Without a master (-o ControlPath=none) only the transfer ends.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
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
Subsystem sftp internal-sftp
END
"$sshd" -f sshd_config -E sshd.log
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
END
ssh -F config -o ControlMaster=yes -o ControlPath="$dir/master" -fN far
trap 'ssh -F config -o ControlPath="$dir/master" -O exit far 2>/dev/null || true
    kill "$(cat sshd.pid)" 2>/dev/null || true; rm -rf "$dir"' EXIT

cat >type.py <<'PY'
"""Runs sftp on a terminal, presses Ctrl-C during a slow transfer, and says whether sftp is still there."""
import os, pty, select, sys, time

os.truncate(os.open("file", os.O_RDWR | os.O_CREAT), 50_000_000)
name, *options = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    # 8 Mbit/s: the transfer takes 50 seconds.
    os.execvp("sftp", ["sftp", "-l", "8000", "-F", "config", *options, "far"])
seen = b""

def wait_for(text, patience=60):
    """Whether the text comes before the end of sftp."""
    global seen
    end = time.monotonic() + patience
    while text not in seen:
        if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
            sys.exit(f"{name}: no {text!r} in {seen!r}")
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            return False
    seen = seen.partition(text)[2]
    return True

wait_for(b"sftp> ")
os.write(terminal, f"put file {os.getcwd()}/copy\r".encode())
wait_for(b"Uploading")
wait_for(b"KB/s")
os.write(terminal, b"\x03")
wait_for(b"Interrupt")
print(f"{name}: {'the prompt comes back' if wait_for(b'sftp> ') else 'sftp ends'}", flush=True)
os.close(terminal)
PY
{
    python3 type.py 'without a master' -o ControlPath=none
    python3 type.py 'over a master' -o ControlPath="$dir/master"
} >actual

cat >expected <<'END'
without a master: the prompt comes back
over a master: sftp ends
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
