#!/usr/bin/env bash
# npm's ssh2-sftp-server answers a READ that begins inside a file with zeros behind the file's end.
#
# Seen with: ssh2-sftp-server 1.1.2 on ssh2 0.8.9 (the version that it is made for), on Linux.
#
# It cuts the answer by how much the handle has read so far, not by the offset. Read from the beginning to the end,
# once and in order, a file is right. A first READ at offset 6 of a 10-byte file, for 10 bytes, gets 10: the four
# bytes that are there and six zeros. After that the handle counts as read to its end: a READ at offset 0 gets an
# empty DATA message, which is neither data nor the end of the file.
#
# Why it matters: a resumed download ends with a file of the wrong size without any error, and two READs of one region
# (one asked again after a doubt) lose data. Compare a resumed file with STAT's size, never ask for a byte twice on
# one handle, and do not take an empty DATA for progress or for the end.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --prefix "$dir" ssh2@0.8.9 ssh2-sftp-server@1.1.2
ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key"
printf 0123456789 >"$dir/file"

cat >"$dir/run.js" <<'JS'
const fs = require('fs');
const { Client, Server } = require('ssh2');
const SftpServer = require('ssh2-sftp-server');

const server = new Server({ hostKeys: [fs.readFileSync('host_key')] }, (connection) => {
  connection.on('error', () => {});
  connection.on('authentication', (request) => request.accept());
  connection.on('session', (accept) => accept().on('sftp', (open) => new SftpServer(open())));
});

server.listen(0, '127.0.0.1', () => {
  const client = new Client();
  client.on('ready', () => client.sftp((_, sftp) => sftp.open(`${__dirname}/file`, 'r', (_, handle) => {
    const read = (offset, length) => new Promise((done) => {
      const buffer = Buffer.alloc(length);
      sftp.read(handle, buffer, 0, length, offset, (error, size) => {
        done(error ? error.message : JSON.stringify(buffer.toString('latin1', 0, size)));
      });
    });
    (async () => {
      console.log('10 bytes from 6:', await read(6, 10));
      console.log('5 bytes from 0:', await read(0, 5));
      client.end();
      server.close();
    })();
  })));
  client.connect({ host: '127.0.0.1', port: server.address().port, username: 'u', password: 'p' });
});
JS
node --no-deprecation "$dir/run.js" >"$dir/actual"

cat >"$dir/expected" <<'END'
10 bytes from 6: "6789\u0000\u0000\u0000\u0000\u0000\u0000"
5 bytes from 0: ""
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
