#!/usr/bin/env bash
# tunnel-ssh: one connection that the server refuses ends the whole tunnel, for good.
#
# Seen with: tunnel-ssh 5.2.0 (npm) on ssh2 1.17.0, Node 20; asyncssh 2.24.1 as the server and, for comparison, as client.
#
# When the SSH server cannot reach the destination, createTunnel()'s handler closes the local listener, emits "error" on
# the SSH client, and leaves the accepted socket alone: it is neither ended nor destroyed. Once that socket has gone, the
# listener's "close" ends the SSH connection. reconnectOnError and autoClose: false do not change it; the one makes a
# new SSH connection, whose port nobody listens at. ssh -L and asyncssh refuse the one connection and stay.
#
# Why it matters: a database that is restarted, or a pool that starts before it, costs the tunnel. All later connects get
# ECONNREFUSED from the local port although the database is back, and the first one hangs unless it has a time-out of
# its own. Listen for "close" of the server that createTunnel() returns, and make a new tunnel then.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
npm install --silent --no-audit --no-fund --ignore-scripts tunnel-ssh@5.2.0 ssh2@1.17.0 >npm.log 2>&1 ||
    { cat npm.log >&2; exit 1; }

cat >tunnels.js <<'JS'
const { createTunnel } = require('tunnel-ssh');

async function main() {
  const [ssh, destination] = process.argv.slice(2).map(Number);
  for (const reconnectOnError of [false, true]) {
    const [server, client] = await createTunnel({ autoClose: false, reconnectOnError }, { host: '127.0.0.1' },
      { host: '127.0.0.1', port: ssh, username: 'u', password: 'p' }, { dstAddr: '127.0.0.1', dstPort: destination });
    client.on('error', () => {});
    console.log(server.address().port);
  }
  process.stdin.on('end', () => process.exit()).resume();
}

main();
JS
cat >run.py <<'PY'
import asyncio

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True

    def connection_requested(self, *args):
        return True


async def answer(reader, writer):
    writer.write(b"hello")
    writer.close()


async def attempt(port):
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return "refused"
    try:
        text = (await asyncio.wait_for(reader.read(), 4)).decode()
        return f"answer {text}" if text else "closed"
    except asyncio.TimeoutError:
        return "open and silent for 4 s"
    finally:
        writer.close()


async def main():
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key])
    target = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = target.sockets[0].getsockname()[1]
    client = await asyncssh.connect("127.0.0.1", server.get_port(), username="u", password="p", known_hosts=None)
    forwarder = await client.forward_local_port("127.0.0.1", 0, "127.0.0.1", port)
    node = await asyncio.create_subprocess_exec("node", "tunnels.js", str(server.get_port()), str(port),
                                                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    tunnels = {"asyncssh": forwarder.get_port()}
    for name in ("tunnel-ssh", "tunnel-ssh with reconnectOnError"):
        tunnels[name] = int(await node.stdout.readline())
    for state in ("up", "down", "up again"):
        if state == "down":
            target.close()
            await target.wait_closed()
        elif state == "up again":
            target = await asyncio.start_server(answer, "127.0.0.1", port)
        for name, local in tunnels.items():
            print(f"{state}, {name}: {await attempt(local)}")
        await asyncio.sleep(0.5)
    node.stdin.close()
    await node.wait()


asyncio.run(main())
PY
timeout 100 venv/bin/python run.py >actual

cat >expected <<'END'
up, asyncssh: answer hello
up, tunnel-ssh: answer hello
up, tunnel-ssh with reconnectOnError: answer hello
down, asyncssh: closed
down, tunnel-ssh: open and silent for 4 s
down, tunnel-ssh with reconnectOnError: open and silent for 4 s
up again, asyncssh: answer hello
up again, tunnel-ssh: refused
up again, tunnel-ssh with reconnectOnError: refused
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
