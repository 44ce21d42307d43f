#!/usr/bin/env bash
# ssh2-exec: a command whose cwd is missing, or has a space, runs in the home directory and ends with code 0.
#
# Seen with: ssh2-exec 0.8.5, ssh2-connect 4.2.0 (npm, ssh2 1.16.0), Node 20; asyncssh 2.24.1 and bash as the server.
#
# With cwd, the library sends "cd CWD; COMMAND": the directory is not quoted, and the command runs if cd fails. There is a
# line on stderr, no error, and the code is that of the command. The same call without a connection is a local one,
# which the README calls transparent: it runs in the directory with the space and fails for one that is missing.
# A local command that is killed gives an error with code 0, a remote one null.
#
# Why it matters: "rm -rf *", "git clean" or "tar x" with a cwd of a release that is not there yet works in the home
# directory and reports success. Put "cd 'DIR' && " into the command yourself and leave cwd out.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
npm install --silent --no-audit --no-fund --ignore-scripts ssh2-exec@0.8.5 ssh2-connect@4.2.0 ssh2@1.16.0 >npm.log 2>&1 ||
    { cat npm.log >&2; exit 1; }
mkdir home release "release 2"

cat >run.mjs <<'JS'
import { existsSync, writeFileSync } from 'node:fs';
import { basename } from 'node:path';
import { connect } from 'ssh2-connect';
import { exec } from 'ssh2-exec';

const [port, here] = process.argv.slice(2);
const ssh = await connect({ host: '127.0.0.1', port: Number(port), username: 'u', password: 'p' });

function run(options) {
  return new Promise((resolve) => {
    exec(options, (error, stdout, stderr, code) => {
      resolve(`${error ? 'an error' : `in ${basename(stdout.trim())}`}, code ${code}`);
    });
  });
}

for (const name of ['release', 'release 2', 'missing']) {
  const files = ['home', 'release', 'release 2'].map((folder) => `${here}/${folder}/file`);
  for (const [kind, connection] of [['ssh', { ssh }], ['local', {}]]) {
    for (const file of files) writeFileSync(file, 'text');
    const result = await run({ ...connection, command: 'rm file; pwd', cwd: `${here}/${name}` });
    const gone = files.filter((file) => !existsSync(file)).map((file) => basename(file.slice(0, -5)));
    console.log(`${kind}, cwd ${name}: ${result}, file gone from: ${gone.join(', ') || 'none'}`);
  }
}
console.log(`ssh, killed: ${await run({ ssh, command: 'kill -9 $$' })}`);
console.log(`local, killed: ${await run({ command: 'kill -9 $$' })}`);
ssh.end();
JS
cat >server.py <<'PY'
import asyncio
import os
import sys

import asyncssh

HERE = os.getcwd()


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def command(process):
    shell = await asyncio.create_subprocess_exec("bash", "-c", process.command, cwd=f"{HERE}/home",
                                                 stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                                                 stderr=asyncio.subprocess.PIPE)
    output, errors = await shell.communicate()
    process.stdout.write(output)
    process.stderr.write(errors)
    if shell.returncode < 0:
        process.exit_with_signal("KILL")
    else:
        process.exit(shell.returncode)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=command, encoding=None,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    program = await asyncio.create_subprocess_exec("node", "run.mjs", str(server.get_port()), HERE)
    sys.exit(await program.wait())


asyncio.run(main())
PY
timeout 60 venv/bin/python server.py >actual

cat >expected <<'END'
ssh, cwd release: in release, code 0, file gone from: release
local, cwd release: in release, code 0, file gone from: release
ssh, cwd release 2: in home, code 0, file gone from: home
local, cwd release 2: in release 2, code 0, file gone from: release 2
ssh, cwd missing: in home, code 0, file gone from: home
local, cwd missing: an error, code ENOENT, file gone from: none
ssh, killed: an error, code null
local, killed: an error, code 0
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
