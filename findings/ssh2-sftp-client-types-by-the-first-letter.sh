#!/usr/bin/env bash
# npm's ssh2-sftp-client: list() takes the first letter of the long name for the type, so "data.csv" can be a directory.
#
# Seen with: ssh2-sftp-client 12.1.1 on ssh2 1.17.0, Node 20; the server is ssh2's, with the bare name as the long name.
#
# The form of the long name is left to the server, and clients should not read it: the attributes of each entry tell the
# type, and ssh2 hands them over. list() takes type and rights from the long name alone. With a server that puts the name
# there a file "data.csv" is of type d, a directory "report" of type r. downloadDir(), rmdir(path, true) and each filter
# for "d" or "-" go by it: the download asks for a listing of the file, and rmdir() deletes some files before it fails.
#
# Why it matters: the errors name the wrong thing ("data.csv: not a directory") and depend on how the files are called. A
# server has to write the line of ls -l there to be used by this client; who uses it should call stat() for the type.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir" ssh2-sftp-client@12.1.1 ssh2@1.17.0
ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key"

cat >run.js <<'JS'
const fs = require('fs');
const { Server } = require('ssh2');
const SftpClient = require('ssh2-sftp-client');

const ENTRIES = new Map([['/files', 0o40755], ['/files/data.csv', 0o100644], ['/files/log', 0o100644], ['/files/report', 0o40755]]);

function serve() {
  const server = new Server({ hostKeys: [fs.readFileSync('host_key')] }, (connection) => {
    connection.on('error', () => {});
    connection.on('authentication', (request) => request.accept());
    connection.on('session', (accept) => accept().on('sftp', (open) => {
      const sftp = open();
      const listed = new Set();
      const isDirectory = (path) => ENTRIES.get(path) === 0o40755;
      const attrs = (path) => ({ mode: ENTRIES.get(path), size: 0, uid: 0, gid: 0, atime: 0, mtime: 0 });
      const stat = (id, path) => (ENTRIES.has(path) ? sftp.attrs(id, attrs(path)) : sftp.status(id, 2));
      const remove = (wanted, word) => (id, path) => {
        const right = isDirectory(path) === wanted && ENTRIES.delete(path);
        console.log(`  the server gets ${word} ${path}: ${right ? 'done' : 'refused'}`);
        sftp.status(id, right ? 0 : 4, 'refused');
      };
      sftp.on('REALPATH', (id, path) => sftp.name(id, [{ filename: path }])).on('STAT', stat).on('LSTAT', stat);
      sftp.on('OPENDIR', (id, path) => (isDirectory(path) ? sftp.handle(id, Buffer.from(path)) : sftp.status(id, 4, 'not a directory')));
      sftp.on('READDIR', (id, handle) => {
        const paths = [...ENTRIES.keys()].filter((path) => path.startsWith(`${handle}/`));
        if (listed.has(`${handle}`) || !paths.length) return sftp.status(id, 1);
        listed.add(`${handle}`);
        return sftp.name(id, paths.map((path) => ({ filename: path.slice(7), longname: path.slice(7), attrs: attrs(path) })));
      });
      sftp.on('CLOSE', (id, handle) => { listed.delete(`${handle}`); sftp.status(id, 0); });
      sftp.on('REMOVE', remove(false, 'REMOVE')).on('RMDIR', remove(true, 'RMDIR'));
    }));
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

async function main() {
  const server = await serve();
  const client = new SftpClient();
  await client.connect({ host: '127.0.0.1', port: server.address().port, username: 'u', password: 'p' });
  for (const entry of await client.list('/files')) {
    const { isDirectory } = await client.stat(`/files/${entry.name}`);
    console.log(`${entry.name}: list() says ${entry.type}, stat() says ${isDirectory ? 'd' : '-'}`);
  }
  console.log('directories in list():', (await client.list('/files', (entry) => entry.type === 'd')).map((entry) => entry.name).join());
  console.log('rmdir():', await client.rmdir('/files', true).then(() => 'resolves', () => 'rejects'));
  await client.end();
  server.close();
}

main();
JS
timeout 60 node --no-deprecation run.js >actual

cat >expected <<'END'
data.csv: list() says d, stat() says -
log: list() says l, stat() says -
report: list() says r, stat() says d
directories in list(): data.csv
  the server gets REMOVE /files/log: done
  the server gets REMOVE /files/report: refused
rmdir(): rejects
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
