#!/usr/bin/env bash
# npm's ssh2: a write stream of SFTP whose data the server refuses says 'close', and never 'error'.
#
# Seen with: ssh2 1.17.0 on Node 20, on Linux.
#
# The stream destroys itself before it hands the error to Node's Writable, which tells no error of a stream that is
# destroyed already. A disk that is full, a quota, a lost right: all of them end with 'close', without 'finish'.
#
# Why it matters: who takes 'close' for the end of an upload reports a cut file as stored. Take 'finish' for success and
# 'close' without it for a failure, or compare the size afterwards; `sftp.write()` and `fastPut()` tell the error.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --prefix "$dir" ssh2@1.17.0
ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key"

cat >"$dir/run.js" <<'JS'
const fs = require('fs');
const { Client, Server } = require('ssh2');

const server = new Server({ hostKeys: [fs.readFileSync('host_key')] }, (connection) => {
  connection.on('error', () => {});
  connection.on('authentication', (request) => request.accept());
  connection.on('session', (accept) => accept().on('sftp', (open) => {
    const sftp = open();
    sftp.on('OPEN', (id) => sftp.handle(id, Buffer.from('file')));
    sftp.on('FSETSTAT', (id) => sftp.status(id, 0)).on('CLOSE', (id) => sftp.status(id, 0));
    sftp.on('WRITE', (id) => sftp.status(id, 4, 'no space left'));
  }));
});

server.listen(0, '127.0.0.1', () => {
  const client = new Client();
  client.on('ready', () => client.sftp((_, sftp) => {
    const file = sftp.createWriteStream('/file');
    for (const event of ['error', 'finish', 'close']) file.on(event, (error) => console.log(`stream: ${event}`, error?.message ?? ''));
    file.on('close', () => sftp.open('/file', 'w', (_, handle) => sftp.write(handle, Buffer.from('x'), 0, 1, 0, (error) => {
      console.log('write():', error.message);
      client.end();
      server.close();
    })));
    file.end('x');
  }));
  client.connect({ host: '127.0.0.1', port: server.address().port, username: 'u', password: 'p' });
});
JS
node --no-deprecation "$dir/run.js" | sed 's/ *$//' >"$dir/actual"

cat >"$dir/expected" <<'END'
stream: close
write(): no space left
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
