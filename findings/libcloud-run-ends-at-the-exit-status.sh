#!/usr/bin/env bash
# Apache Libcloud: run() stops reading at the exit status; output that the server sends after it is lost, with status 0.
#
# Seen with: apache-libcloud 3.9.1 on Paramiko 5.1.0; OpenSSH 9.2p1's sshd and ssh.
#
# RFC 4254 puts the exit status and the data of a channel in no order. sshd sends the status as soon as the shell has
# ended, and goes on with what other processes still write to the same pipe until they have closed it. ssh and Paramiko's
# own exec_command().stdout.read() wait for the end of the data. ParamikoSSHClient.run() reads what is there, asks for
# the status, and returns when it has one.
#
# Why it matters: a script with "exec > >(tee log)" or "> >(sed ...)" ends before the tee or the sed does. Its output is
# cut, or empty, and the result looks like that of a command that had nothing to say. ScriptDeployment and the other
# deployment steps keep that as stdout. Use a pipe ("{ ...; } | tee log") or wait for the process in the script.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q apache-libcloud==3.9.1 paramiko==5.1.0
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
END
cat >script <<'END'
#!/usr/bin/env bash
# The first line goes out at once, the second through a process that takes a second longer than the script.
echo first
exec > >(sleep 1; cat)
echo second
exit 0
END
chmod +x script

cat >run.py <<'PY'
import getpass
import sys
import warnings

import paramiko

warnings.simplefilter("ignore")
from libcloud.compute.ssh import ParamikoSSHClient  # noqa: E402

port, command = int(sys.argv[1]), sys.argv[2]
client = paramiko.SSHClient()
client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
client.connect("127.0.0.1", port, getpass.getuser(), key_filename="key", look_for_keys=False, allow_agent=False)
output = client.exec_command(command)[1]
print("Paramiko:", output.read().split(), "status", output.channel.recv_exit_status())
client.close()
client = ParamikoSSHClient("127.0.0.1", port=port, username=getpass.getuser(), key_files="key")
client.connect()
output, errors, status = client.run(command)
print("libcloud:", output.encode().split(), "status", status)
client.close()
PY
{
    status=0
    ssh -F config far "$dir/script" >output || status=$?
    echo "ssh:" $(<output) "status $status"
    timeout 60 venv/bin/python run.py "$port" "$dir/script"
} >actual

cat >expected <<'END'
ssh: first second status 0
Paramiko: [b'first', b'second'] status 0
libcloud: [b'first'] status 0
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
