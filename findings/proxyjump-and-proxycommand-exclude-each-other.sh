#!/usr/bin/env bash
# The first of ProxyJump and ProxyCommand excludes the other one for ssh, and only if it is not "ProxyJump none".
#
# Seen with: OpenSSH 9.2p1, asyncssh 2.24.1, Fabric 3.2.3 (Paramiko 5.1.0).
#
# ssh_config(5): "whichever is specified first will prevent later instances of the other from taking effect". So for
# "Host inside / ProxyCommand none" above "Host * / ProxyJump bastion", ssh connects directly. asyncssh and Fabric take
# each directive's own first value: both go through bastion, also where the first one is another ProxyCommand.
# With the words exchanged, "ProxyJump none" above a ProxyCommand, ssh does not do what the manual says either: it runs the
# ProxyCommand. Fabric then takes "none" for the name of a gateway.
#
# Why it matters: a host that is excepted from the bastion is reached through it by one program and directly by the other,
# with another source address, or not at all. "ProxyCommand none" is the exception that ssh obeys for both directives;
# asyncssh and Fabric need "ProxyJump none" too, below it, which Fabric gets wrong. Only `ssh -G` tells what ssh does.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1 fabric==3.2.3 paramiko==5.1.0

# FILE DIRECTIVE DIRECTIVE: the first for a host, the second for all.
write() {
    printf 'Host inside\n    %s\nHost *\n    %s\n' "$2" "$3" >"$1"
}
write "command none, jump" "ProxyCommand none" "ProxyJump bastion"
write "command, jump" "ProxyCommand nc first 22" "ProxyJump bastion"
write "jump none, command" "ProxyJump none" "ProxyCommand nc first 22"
write "jump, command" "ProxyJump bastion" "ProxyCommand nc first 22"

cat >run.py <<'PY'
import sys

import asyncssh
import fabric
import paramiko

file = sys.argv[1]
options = asyncssh.SSHClientConnectionOptions(config=[file], host="inside")
# asyncssh connects through its tunnel, where there is one, and else by the command.
print("    asyncssh:", options.tunnel or (options.proxy_command and "the command") or "direct")
gateway = fabric.Connection("inside", config=fabric.Config(runtime_ssh_path=file)).gateway
if isinstance(gateway, paramiko.ProxyCommand):
    gateway = "the command"
print("    Fabric:", gateway.host if isinstance(gateway, fabric.Connection) else gateway or "direct")
PY
for file in *,*; do
    echo "$file"
    said=$(ssh -F "$file" -G inside | sed -n 's/^proxyjump //p; s/^proxycommand .*/the command/p')
    echo "    ssh: ${said:-direct}"
    venv/bin/python run.py "$file" 2>/dev/null
done >actual

cat >expected <<'END'
command none, jump
    ssh: direct
    asyncssh: bastion
    Fabric: bastion
command, jump
    ssh: the command
    asyncssh: bastion
    Fabric: bastion
jump none, command
    ssh: the command
    asyncssh: the command
    Fabric: none
jump, command
    ssh: bastion
    asyncssh: bastion
    Fabric: bastion
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
