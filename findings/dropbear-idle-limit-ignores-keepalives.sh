#!/usr/bin/env bash
# Dropbear's idle limit (-I) ends sessions that a client keeps alive with ServerAliveInterval, though it answers each question.
#
# Seen with: dropbear 2022.83 (Debian 12's dropbear-bin) as the server, OpenSSH's client.
#
# dropbear(8) promises -I for sessions in which "no traffic is transmitted or received". Its server counts channel data
# only: a keepalive@openssh.com from the client is answered with REQUEST_FAILURE and changes nothing, so a command that
# computes in silence is cut off at the limit, in the middle of a healthy connection. ProFTPD's TimeoutIdle, the same
# limit by name, does count keepalives (1.3.8, tried by hand). The client sees the TCP connection end, without a
# DISCONNECT message, and ssh exits with 255.
#
# Why it matters: routers set -I (OpenWrt's IdleTimeout). The usual advice for a session that is cut off, a shorter
# ServerAliveInterval, does not help there, and a pool that pings its connections still loses them. Only a byte in a
# channel does, or a connection that is opened anew.
set -euo pipefail
dir=$(mktemp -d)
trap 'kill "$(cat "$dir/pid" 2>/dev/null)" 2>/dev/null; rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq dropbear-bin=2022.83-1+deb12u3 libtomcrypt1 libtommath1 libnss-wrapper >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" "$dir/root"
done
lib=$(dirname "$(find "$dir/root" -name 'libtomcrypt.so.1' | head -1)")
wrapper=$(find "$dir/root" -name libnss_wrapper.so | head -1)

# The home of the server's user is the temporary directory.
mkdir -m 700 home home/.ssh
ssh-keygen -q -t ed25519 -N '' -C '' -f key
cp key.pub home/.ssh/authorized_keys
user=$(id -un)
echo "$user:x:$(id -u):$(id -g)::$dir/home:/bin/sh" >passwd
echo "$user:x:$(id -g):" >group
env LD_LIBRARY_PATH="$lib" "$dir/root/usr/bin/dropbearkey" -t ed25519 -f host >/dev/null 2>&1
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
env LD_LIBRARY_PATH="$lib" LD_PRELOAD="$wrapper" NSS_WRAPPER_PASSWD="$dir/passwd" NSS_WRAPPER_GROUP="$dir/group" \
    "$dir/root/usr/sbin/dropbear" -F -E -m -I 5 -P "$dir/pid" -r host -p "127.0.0.1:$port" 2>log &
until [[ -e pid ]]; do sleep 0.1; done

# Prints how cat ended, which has 15 seconds.
try() {
    local what=$1 status=0
    shift
    timeout 60 ssh -F none -i key -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o LogLevel=ERROR -p "$port" "$@" "$user@127.0.0.1" 'cat >/dev/null' 2>/dev/null || status=$?
    echo "$what: status $status"
}
{
    sleep 15 | try "nothing is sent"
    sleep 15 | try "a keepalive each second" -o ServerAliveInterval=1
    for _ in {1..15}; do sleep 1; echo; done | try "a byte each second"
    echo "server: $(grep -c 'Idle timeout' log) idle"
} >out
diff - out <<'OUT'
nothing is sent: status 255
a keepalive each second: status 255
a byte each second: status 0
server: 2 idle
OUT
echo "dropbear 2022.83: keepalives do not count for -I"
