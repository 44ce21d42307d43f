#!/usr/bin/env bash
# npm's ssh2-sftp-client: put() and append() resolve with "Uploaded data stream" although the server refused the data.
#
# Seen with: ssh2-sftp-client 12.1.1 (with ssh2 1.17.0) on Node 20.
#
# Both wait for the event 'close' of ssh2's write stream and take it for success. A stream whose WRITE was refused says
# 'close' and never 'error', so a full disk or a quota resolves like a stored file, and so does uploadDir(), which calls
# put(). Only a refused OPEN or CLOSE rejects. fastPut() rejects each time; it works in another way.
#
# Why it matters: an await that returns is all that most programs look at. Use fastPut() for files on a disk, and compare
# the size with stat() after put() of a buffer or a stream. A server that can tell at CLOSE as well should tell it there
# too.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir" ssh2-sftp-client@12.1.1 ssh2@1.17.0
ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key"
mkdir folder
echo text >folder/file

cat >run.js <<'JS'
const fs = require('fs');
const { Server } = require('ssh2');
const SftpClient = require('ssh2-sftp-client');

// Stores nothing: it answers each request of the kind `refused` with an error, and the others with OK.
function serve(refused) {
  const server = new Server({ hostKeys: [fs.readFileSync('host_key')] }, (connection) => {
    connection.on('error', () => {});
    connection.on('authentication', (request) => request.accept());
    connection.on('session', (accept) => accept().on('sftp', (open) => {
      const sftp = open();
      const answer = (kind) => (id) => sftp.status(id, kind === refused ? 4 : 0, 'no space left');
      for (const kind of ['WRITE', 'CLOSE', 'FSETSTAT']) sftp.on(kind, answer(kind));
      sftp.on('OPEN', (id) => sftp.handle(id, Buffer.from('file')));
      sftp.on('LSTAT', (id, path) => (path === '/folder' ? sftp.attrs(id, { mode: 0o40755 }) : sftp.status(id, 2)));
      sftp.on('FSTAT', (id) => sftp.attrs(id, { mode: 0o100644, size: 0 }));
      sftp.on('REALPATH', (id, path) => sftp.name(id, [{ filename: path }]));
    }));
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

async function main() {
  for (const refused of ['WRITE', 'CLOSE']) {
    const server = await serve(refused);
    const client = new SftpClient();
    await client.connect({ host: '127.0.0.1', port: server.address().port, username: 'u', password: 'p' });
    const calls = {
      'put(path)': () => client.put('folder/file', '/new'),
      'put(buffer)': () => client.put(Buffer.from('text'), '/new'),
      append: () => client.append(Buffer.from('text'), '/new'),
      uploadDir: () => client.uploadDir('folder', '/folder'),
      fastPut: () => client.fastPut('folder/file', '/new'),
    };
    for (const [name, call] of Object.entries(calls)) {
      const result = await call().then(() => 'resolves', () => 'rejects');
      console.log(`${refused} is refused: ${name} ${result}`);
    }
    await client.end();
    server.close();
  }
}

main();
JS
timeout 120 node --no-deprecation run.js >actual

cat >expected <<'END'
WRITE is refused: put(path) resolves
WRITE is refused: put(buffer) resolves
WRITE is refused: append resolves
WRITE is refused: uploadDir resolves
WRITE is refused: fastPut rejects
CLOSE is refused: put(path) rejects
CLOSE is refused: put(buffer) rejects
CLOSE is refused: append rejects
CLOSE is refused: uploadDir rejects
CLOSE is refused: fastPut rejects
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
