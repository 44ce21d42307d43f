#!/usr/bin/env bash
# node-ssh makes a missing parent only where the server's words are "No such file"; putDirectory() returns true without it.
#
# Seen with: node-ssh 13.2.1 on ssh2 1.17.0, asyncssh 2.24.1 as the server, which says "No such file or directory".
#
# mkdir() makes parents after an error with exactly OpenSSH's text; it also looks for the code 'ENOENT', where ssh2 sets the
# number 2. On other servers it rejects. putDirectory() makes a tree's directories in a queue whose promise has been
# resolved with the queue's end before one fails, so the refusal is forgotten: it returns true, and nothing was made.
# Against OpenSSH the same loses a directory by chance, where two that are made together miss the same parent (in 4 of 60
# trees, tried by hand).
#
# Why it matters: "true" is what tells a deployment that all went well. Only empty directories vanish so: a file in them
# fails and makes it false. Make the target's parents one by one, or with exec and `mkdir -p`.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
npm install --silent --no-audit --no-fund --ignore-scripts node-ssh@13.2.1 ssh2@1.17.0 >npm.log 2>&1 || { cat npm.log >&2; exit 1; }

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >run.mjs <<'JS'
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import { NodeSSH } from 'node-ssh';

for (const name of ['logs', 'cache']) mkdirSync(`tree/${name}`, { recursive: true });
const ssh = await new NodeSSH().connect({ host: '127.0.0.1', port: Number(process.argv[2]), username: 'u', password: 'p' });
const here = process.cwd();
const names = (path) => (existsSync(path) ? readdirSync(path).sort().join(' ') : 'missing');
console.log('mkdir of a/b:', await ssh.mkdir(`${here}/a/b`).then(() => 'done', (error) => error.message));
console.log('putDirectory to up/to:', await ssh.putDirectory('tree', `${here}/up/to`, { concurrency: 1 }));
console.log('up/to:', names('up/to'));
mkdirSync('there');
console.log('putDirectory to there:', await ssh.putDirectory('tree', `${here}/there`, { concurrency: 1 }));
console.log('there:', names('there'));
ssh.dispose();
JS
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
timeout 120 node run.mjs "$(cat port)" >actual

cat >expected <<'END'
mkdir of a/b: No such file or directory
putDirectory to up/to: true
up/to: missing
putDirectory to there: true
there: cache logs
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
