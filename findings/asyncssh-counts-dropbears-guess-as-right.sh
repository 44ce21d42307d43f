#!/usr/bin/env bash
# dbclient cannot connect to an asyncssh server that offers its preferred key exchange method but prefers another one.
#
# Seen with: asyncssh 2.24.1 as the server, dbclient 2022.83 (Debian 12's dropbear-bin), OpenSSH 9.2p1 as the other
# client.
#
# dbclient sends the first packet of its preferred method together with its KEXINIT (first_kex_packet_follows). RFC
# 4253, section 7, calls this guess wrong if the two sides prefer different methods, even if they then agree on the
# guessed one. The server must ignore the guessed packet, and the client sends another one. asyncssh calls the guess
# right if it equals the agreed method. It answers the guessed packet and disconnects at the next one: "Key exchange
# not in progress". asyncssh prefers mlkem768x25519-sha256, so this happens with its default configuration.
#
# Why it matters: few clients guess, so a test with ssh does not show the problem, and dbclient prints only "Disconnect
# received". A server for devices with Dropbear should put curve25519-sha256 first in kex_algs. An implementation must
# compare the first entries of the two lists, and not the guess with the agreed method.
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
    def connection_lost(self, error):
        if isinstance(error, asyncssh.ProtocolError):
            print(f"  the server: {error.reason}")

    def begin_auth(self, username):
        return False


async def run(process):
    process.stdout.write("connected")
    process.exit(0)


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    for kex in ((), ("curve25519-sha256", "ecdh-sha2-nistp256"), ("ecdh-sha2-nistp256", "curve25519-sha256"),
                ("ecdh-sha2-nistp256",)):
        server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run,
                                       server_host_keys=[key], kex_algs=kex)
        port = str(server.get_port())
        clients = (
            [sys.argv[1], "-y", "-y", "-p", port],
            ["ssh", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o",
             "BatchMode=yes", "-p", port],
        )
        print(f"the server offers {' and then '.join(kex) or 'its default methods'}")
        for name, client in zip(("dbclient", "ssh"), clients):
            process = await asyncio.create_subprocess_exec(*client, "u@127.0.0.1", "x", stdin=subprocess.DEVNULL,
                                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            output, errors = await asyncio.wait_for(process.communicate(), 60)
            await asyncio.sleep(0.5)  # the server's word comes before the client's
            print(f"  {name}: {output.decode() or errors.decode().strip().rsplit(': ', 1)[1]}")
        server.close()


asyncio.run(main())
PY
HOME=$dir "$dir/venv/bin/python" "$dir/run.py" "$dir/root/usr/bin/dbclient" >"$dir/actual"

cat >"$dir/expected" <<'END'
the server offers its default methods
  the server: Key exchange not in progress
  dbclient: Disconnect received
  ssh: connected
the server offers curve25519-sha256 and then ecdh-sha2-nistp256
  dbclient: connected
  ssh: connected
the server offers ecdh-sha2-nistp256 and then curve25519-sha256
  the server: Key exchange not in progress
  dbclient: Disconnect received
  ssh: connected
the server offers ecdh-sha2-nistp256
  dbclient: connected
  ssh: connected
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
