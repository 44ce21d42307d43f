#!/usr/bin/env bash
# ssh2 (npm): writeFile() and appendFile() of SFTP write a Uint8Array as its numbers in decimal, with commas.
#
# Seen with: ssh2 1.17.0 on Node 20, asyncssh 2.24.1 as the server; Node's own fs for comparison.
#
# Whatever is not a Buffer is turned into text with String(), so the two bytes 65 and 66 become the five bytes "65,66".
# A DataView becomes "[object DataView]", an object "[object Object]". The callback gets no error. fs.writeFile() takes
# typed arrays as the bytes that they hold and refuses an object. ssh2's streams take a Uint8Array correctly.
#
# Why it matters: TextEncoder, fetch, WebCrypto, Blob and most libraries that also run in browsers return a Uint8Array,
# which is interchangeable with a Buffer nearly everywhere in Node. The file that arrives is text of two to four times
# the length, and the upload is reported as done. Wrap it: Buffer.from(a.buffer, a.byteOffset, a.byteLength).
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
npm install --silent --no-audit --no-fund --ignore-scripts ssh2@1.17.0 >npm.log 2>&1 || { cat npm.log >&2; exit 1; }

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
import fs from 'node:fs';
import { once } from 'node:events';
import ssh2 from 'ssh2';

const path = `${process.cwd()}/file`;
const client = new ssh2.Client().connect({ host: '127.0.0.1', port: Number(process.argv[2]), username: 'u', password: 'p' });
await once(client, 'ready');
const sftp = await new Promise((resolve, reject) => client.sftp((error, value) => (error ? reject(error) : resolve(value))));

const bytes = new TextEncoder().encode('AB');
const writes = {
  'writeFile, Buffer': (system, done) => system.writeFile(path, Buffer.from(bytes), done),
  'writeFile, Uint8Array': (system, done) => system.writeFile(path, bytes, done),
  'appendFile, Uint8Array': (system, done) => system.appendFile(path, bytes, done),
  'writeFile, DataView': (system, done) => system.writeFile(path, new DataView(bytes.buffer), done),
  'writeFile, object': (system, done) => system.writeFile(path, { a: 1 }, done),
  'stream, Uint8Array': (system, done) => system.createWriteStream(path).on('error', done).on('close', () => done()).end(bytes),
};
for (const [what, write] of Object.entries(writes)) {
  for (const [name, system] of [['fs', fs], ['SFTP', sftp]]) {
    fs.writeFileSync(path, '-');
    let result = 'done';
    try {
      await new Promise((resolve, reject) => write(system, (error) => (error ? reject(error) : resolve())));
    } catch (error) {
      result = error.name;
    }
    console.log(`${what}, ${name}: ${result}, ${JSON.stringify(fs.readFileSync(path, 'utf8'))}`);
  }
}
client.end();
JS
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
timeout 60 node run.mjs "$(cat port)" >actual

cat >expected <<'END'
writeFile, Buffer, fs: done, "AB"
writeFile, Buffer, SFTP: done, "AB"
writeFile, Uint8Array, fs: done, "AB"
writeFile, Uint8Array, SFTP: done, "65,66"
appendFile, Uint8Array, fs: done, "-AB"
appendFile, Uint8Array, SFTP: done, "-65,66"
writeFile, DataView, fs: done, "AB"
writeFile, DataView, SFTP: done, "[object DataView]"
writeFile, object, fs: TypeError, "-"
writeFile, object, SFTP: done, "[object Object]"
stream, Uint8Array, fs: done, "AB"
stream, Uint8Array, SFTP: done, "AB"
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
