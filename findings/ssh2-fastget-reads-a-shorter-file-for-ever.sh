#!/usr/bin/env bash
# npm's ssh2: fastGet and fastPut of a file that is shorter than its size says never end, and never stop reading.
#
# Seen with: ssh2 1.17.0 on Node 20; asyncssh 2.24.1 as the server.
#
# Both ask for the size first and want so many bytes. At the end of the file they write the 0 bytes that they got and read
# the rest again, at once and without limit: no callback, no error, and one core at both ends busy with READs that are
# answered EOF. The progress callback is called each time, with a chunk of 0. createReadStream() and readFile() read to
# the end of the file. A file of size 0 is copied as an empty one, so that /proc/version arrives empty with success.
#
# Why it matters: it takes no broken server. The files of sysfs say 4096 and have a few bytes, and a log that is
# truncated (logrotate's copytruncate) between the STAT and the READs is enough. ssh2-sftp-client's fastGet is this one.
# Whoever has to keep it: end() the connection when `step` is called with a chunk of 0.
set -euo pipefail
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
npm install --silent --no-audit --no-fund --prefix "$dir" ssh2@1.17.0

cat >server.py <<'PY'
import asyncio

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    print(server.get_port(), flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
PY
cat >run.js <<'JS'
const { Client } = require('ssh2');

const [short, empty] = ['/sys/class/net/lo/mtu', '/proc/version'];
const client = new Client();

// Until it calls back, or has been told of a thousand chunks of nothing.
const copy = (sftp, method, from, to) => new Promise((resolve) => {
  let chunks = 0;
  const step = (_total, chunk) => {
    if (chunk === 0 && ++chunks === 1000) resolve('1000 chunks of 0 bytes');
  };
  sftp[method](from, to, { step }, (error) => resolve(error ? error.message : 'done'));
});
const text = (sftp, path) => new Promise((resolve) => sftp.readFile(path, (error, data) => resolve(error ?? data)));

client.on('ready', () => client.sftp(async (_, sftp) => {
  console.log('readFile, sysfs:', (await text(sftp, short)).length < 4096 ? 'shorter than 4096' : 'longer');
  console.log('fastGet, procfs:', await copy(sftp, 'fastGet', empty, 'version'), require('fs').statSync('version').size);
  console.log('fastGet, sysfs:', await copy(sftp, 'fastGet', short, 'got'));
  console.log('fastPut, sysfs:', await copy(sftp, 'fastPut', short, `${__dirname}/put`));
  process.exit();
}));
client.connect({ host: '127.0.0.1', port: Number(process.argv[2]), username: 'u' });
JS
venv/bin/python server.py >port &
until [[ -s port ]]; do sleep 0.1; done
timeout 120 node run.js "$(cat port)" >actual

cat >expected <<'END'
readFile, sysfs: shorter than 4096
fastGet, procfs: done 0
fastGet, sysfs: 1000 chunks of 0 bytes
fastPut, sysfs: 1000 chunks of 0 bytes
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
