#!/usr/bin/env bash
# Paramiko's AutoAddPolicy writes the other hosts of known_hosts anew: a second key of a type becomes the first one.
#
# Seen with: Paramiko 5.1.0 as the client, asyncssh 2.24.1 as the server, OpenSSH 9.2p1's ssh-keygen -F.
#
# With load_host_keys(), a key that is added makes Paramiko write the whole file from what it has understood of it.
# Comments and keys of unknown types (sk-ssh-ed25519) are left out. Two keys of one type for one host mean "either" to ssh;
# Paramiko writes a line for each of them, and all these lines have the first key. HostKeys.save(), which has other
# code for the same task, keeps both.
#
# Why it matters: a connection to a new host makes ssh refuse another one: that behind a load balancer, or that whose next
# key was put into the file before a rotation. The program that complains is not the one that wrote. Load a file
# that is shared with ssh by load_system_host_keys(), which is never written, and add new keys by appending a line.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q paramiko==5.1.0 asyncssh==2.24.1
for key in first second other; do
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$key"
done
# A token's key: 32 bytes of 0, and the application "ssh:".
token() {
    {
        printf '\0\0\0\x1ask-ssh-ed25519@openssh.com\0\0\0 '
        head -c 32 /dev/zero
        printf '\0\0\0\4ssh:'
    } | base64 -w 0
}
{
    echo "# the lab"
    echo "balanced.example $(cut -d' ' -f1,2 first.pub)"
    echo "balanced.example $(cut -d' ' -f1,2 second.pub)"
    echo "single.example $(cut -d' ' -f1,2 other.pub)"
    echo "token.example sk-ssh-ed25519@openssh.com $(token)"
} >known_hosts

cat >run.py <<'PY'
import asyncio

import asyncssh
import paramiko


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def connect(port):
    client = paramiko.SSHClient()
    client.load_host_keys("known_hosts")
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect("127.0.0.1", port, username="u", password="p", allow_agent=False, look_for_keys=False)
    client.close()


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key])
    await asyncio.to_thread(connect, server.get_port())


asyncio.run(main())
PY
# What the file has for each host, with the keys by the names of their files.
show() {
    echo "$1"
    echo "    comments: $(grep -c '^#' known_hosts || true)"
    for host in balanced.example single.example token.example; do
        echo "    $host:" $(ssh-keygen -F "$host" -f known_hosts | sed -n 's/^[^# ]* //p' | while read -r type key; do
            grep -lF "$key" first.pub second.pub other.pub || echo "$type"
        done | sort -u)
    done
}
{
    show before
    timeout 60 venv/bin/python run.py
    show after
} >actual

cat >expected <<'END'
before
    comments: 1
    balanced.example: first.pub second.pub
    single.example: other.pub
    token.example: sk-ssh-ed25519@openssh.com
after
    comments: 0
    balanced.example: first.pub
    single.example: other.pub
    token.example:
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
