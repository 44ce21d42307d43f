#!/usr/bin/env bash
# promise-sftp: mkdir(path, true) resolves where nothing was made, and put() of a Buffer or a stream before it is written.
#
# Seen with: promise-sftp 0.11.3 (npm) on ssh2 0.5.5, Node 20; asyncssh 2.24.1 as the server.
#
# The recursive mkdir() starts a request for each part of the path at once and hands their promises to then(), which ignores
# what is not a function. What it returns resolves without an answer, so that a refusal is nowhere but in a warning of
# Bluebird's. mkdir() of one level rejects. put() of a path waits for the end of the upload; put() of a Buffer or a stream
# resolves when the write stream has been made. The client's next call waits for that stream, and does not tell how it ended.
#
# Why it matters: "await mkdir(dir, true)" is taken to mean that the directory is there, and "await put(buffer, path)" that
# the file is. A second connection, or a message that says "ready", meets an empty or a missing one. Use mkdir() level by
# level; after put() of a Buffer, wait for a call like size() of the same client and compare.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
npm install --silent --no-audit --no-fund --ignore-scripts promise-sftp@0.11.3 ssh2@0.5.5 >npm.log 2>&1 ||
    { cat npm.log >&2; exit 1; }

cat >run.js <<'JS'
const fs = require('node:fs');
const PromiseSftp = require('promise-sftp');

const [port, here] = process.argv.slice(2);
function state(path) {
  if (!fs.existsSync(path)) return 'missing';
  const stat = fs.statSync(path);
  return stat.isFile() ? `${stat.size} bytes` : 'a directory';
}

async function show(name, path, action) {
  let result = 'resolved';
  try {
    await action(`${here}/${path}`);
  } catch (error) {
    result = 'rejected';
  }
  const first = state(path);
  await new Promise((resolve) => setTimeout(resolve, 3000));
  console.log(`${name}: ${result}, ${first}, later ${state(path)}`);
}

async function main() {
  const client = new PromiseSftp();
  await client.connect({ host: '127.0.0.1', port, username: 'u', password: 'p' });
  const data = Buffer.alloc(100000);
  fs.writeFileSync('local', data);
  await show('put of a path', 'one', (path) => client.put('local', path));
  await show('put of a Buffer', 'two', (path) => client.put(data, path));
  await show('put of a stream', 'three', (path) => client.put(fs.createReadStream('local'), path));
  await show('mkdir', 'new', (path) => client.mkdir(path));
  await show('mkdir, recursive', 'newer', (path) => client.mkdir(path, true));
  await show('mkdir that is refused', 'refused', (path) => client.mkdir(path));
  await show('mkdir that is refused, recursive', 'refused', (path) => client.mkdir(path, true));
  await client.end();
}

main();
JS
cat >server.py <<'PY'
import asyncio
import os
import sys

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


class Files(asyncssh.SFTPServer):
    async def write(self, file, offset, data):
        await asyncio.sleep(0.05)
        return super().write(file, offset, data)

    async def mkdir(self, path, attrs):
        await asyncio.sleep(0.05)
        if b"refused" in path:
            raise asyncssh.SFTPPermissionDenied("no")
        return super().mkdir(path, attrs)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=Files,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    program = await asyncio.create_subprocess_exec("node", "run.js", str(server.get_port()), os.getcwd())
    sys.exit(await program.wait())


asyncio.run(main())
PY
timeout 60 venv/bin/python server.py >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
put of a path: resolved, 100000 bytes, later 100000 bytes
put of a Buffer: resolved, missing, later 100000 bytes
put of a stream: resolved, missing, later 100000 bytes
mkdir: resolved, a directory, later a directory
mkdir, recursive: resolved, missing, later a directory
mkdir that is refused: rejected, missing, later missing
mkdir that is refused, recursive: resolved, missing, later missing
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
