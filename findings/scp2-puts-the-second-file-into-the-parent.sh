#!/usr/bin/env bash
# scp2 (npm): of the files that a pattern names, the first lands in the directory and all others in its parent.
#
# Seen with: scp2 0.5.0 (npm, with ssh2 0.4.15), Node 20; asyncssh 2.24.1 as the server.
#
# scp('data/*.js', 'user:password@host:/home/admin/data/'), the README's own example, takes the first match for the root of
# a tree and puts each file at its path relative to that: "" for the first one, "../NAME" for the rest. The callback has
# no error. A directory is copied without the files whose name begins with a dot, and without empty directories. If the
# server refuses a WRITE, the upload ends there and is a success. A download of a missing file empties the local one. A
# user name with "_" makes the whole target unreadable: parse() gives {}, and a connection then goes to localhost.
#
# Why it matters: files that are in the parent overwrite others of that name there, and the target keeps the old ones.
# .env, .htaccess and a full disk are not noticed. Upload each file by client.upload() with its own path, and ask for the
# size afterwards; give the target as an object.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
npm install --silent --no-audit --no-fund --ignore-scripts scp2@0.5.0 ssh2@0.4.15 >npm.log 2>&1 || { cat npm.log >&2; exit 1; }

cat >run.js <<'JS'
const fs = require('node:fs');
const scp2 = require('scp2');

const [port, here] = process.argv.slice(2);
const server = { host: '127.0.0.1', port, username: 'u', password: 'p' };
const call = (action) => new Promise((resolve) => action((error) => resolve(error ? 'an error' : 'done')));
const scp = (from, to) => call((callback) => scp2.scp(from, { ...server, path: `${here}/remote/${to}` }, callback));

function write(path, text) {
  fs.mkdirSync(path.replace(/[^/]*$/, ''), { recursive: true });
  fs.writeFileSync(path, text);
}

async function main() {
  for (const name of ['a.js', 'b.js', 'c.js', '.env', 'lib/d.js', 'lib/.env']) write(`data/${name}`, name);
  fs.mkdirSync('data/empty');
  fs.mkdirSync('remote/data', { recursive: true });
  write('remote/b.js', 'old');
  console.log('data/*.js to data/:', await scp('data/*.js', 'data/'));
  console.log('b.js beside data:', fs.readFileSync('remote/b.js', 'utf8'));
  console.log('there:', fs.readdirSync('remote', { recursive: true }).sort().join(' '));
  fs.mkdirSync('remote/whole');
  console.log('data to whole:', await scp('data', 'whole'));
  console.log('there:', fs.readdirSync('remote/whole', { recursive: true }).sort().join(' '));

  write('./big', 'x'.repeat(100000));
  const client = new scp2.Client(server);
  console.log('upload of 100000 bytes:', await call((callback) => client.upload('big', `${here}/full`, callback)));
  console.log('there:', fs.statSync('full').size);
  write('./local', 'text');
  console.log('download of a missing file:', await call((callback) => client.download(`${here}/missing`, 'local', callback)));
  console.log('local:', fs.statSync('local').size);
  client.close();
  for (const user of ['admin', 'my_user']) {
    const { username, host } = new scp2.Client().parse(`${user}:p@example.com:/home`);
    console.log(`parse ${user}: user ${username}, host ${host}`);
  }
}

main();
JS
cat >server.py <<'PY'
import asyncio
import os
import sys
import warnings

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


class Files(asyncssh.SFTPServer):
    def write(self, file, offset, data):
        if file.name.endswith(b"full") and offset + len(data) > 65536:
            raise asyncssh.SFTPFailure("no space left")
        return super().write(file, offset, data)


async def main():
    # The old ssh2 has none of the key exchanges that asyncssh offers by default.
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=Files,
                                   server_host_keys=[asyncssh.generate_private_key("ssh-rsa")],
                                   kex_algs=["diffie-hellman-group14-sha1"])
    program = await asyncio.create_subprocess_exec("node", "--no-deprecation", "run.js", str(server.get_port()), os.getcwd())
    sys.exit(await program.wait())


warnings.simplefilter("ignore")
asyncio.run(main())
PY
timeout 60 venv/bin/python -W ignore server.py >actual

cat >expected <<'END'
data/*.js to data/: done
b.js beside data: b.js
there: b.js c.js data data/a.js
data to whole: done
there: a.js b.js c.js lib lib/d.js
upload of 100000 bytes: done
there: 65536
download of a missing file: an error
local: 0
parse admin: user admin, host example.com
parse my_user: user undefined, host undefined
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
