#!/usr/bin/env bash
# exec() of two npm wrappers rejects if a command writes to stderr, and resolves for every exit status.
#
# Seen with: node-ssh 13.2.1 and ssh2-promise 1.0.3 on Node 20; asyncssh 2.24.1 as the server.
#
# Both return a promise of the output as a string. They treat text on stderr as a failure, and they ignore the exit
# status: the promise resolves for status 3 without a message and for a command that SIGKILL ended. It rejects for
# status 0 with a warning, and the output on stdout is lost. node-ssh also has execCommand(), which returns the status
# and the signal.
#
# Why it matters: `await ssh.exec("test", ["-f", "/ready"])` resolves whether or not the file exists. `git fetch` writes
# its report to stderr, so a successful fetch rejects. A job that was killed for lack of memory counts as done. With
# ssh2-promise, run `{ ...; } 2>&1; echo $?` and parse the last line.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --prefix "$dir" node-ssh@13.2.1 ssh2-promise@1.0.3 ssh2@1.17.0
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1

cat >"$dir/run.js" <<'JS'
const { NodeSSH } = require('node-ssh');
const SSH2Promise = require('ssh2-promise');

(async () => {
  const login = { host: '127.0.0.1', port: Number(process.argv[2]), username: 'u', password: 'p' };
  const nodeSsh = await new NodeSSH().connect(login);
  const ssh2Promise = new SSH2Promise(login);
  const told = (promise) => promise.then((text) => `resolves ${JSON.stringify(text.trim())}`, (error) => `rejects "${(error.message ?? error).trim()}"`);
  for (const command of ['status 0', 'status 0, warned', 'status 3', 'status 3, warned', 'SIGKILL']) {
    console.log(`${command}: node-ssh ${await told(nodeSsh.exec(command, []))}, ssh2-promise ${await told(ssh2Promise.exec(command))}`);
  }
  const { code, signal } = await nodeSsh.execCommand('status 3');
  console.log(`status 3: execCommand of node-ssh has code ${code}, signal ${signal}`);
  nodeSsh.dispose();
  ssh2Promise.close();
})();
JS

cat >"$dir/run.py" <<'PY'
import asyncio

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def run(process):
    process.stdout.write("output\n")
    if "warned" in process.command:
        process.stderr.write("warning\n")
    if process.command == "SIGKILL":
        process.exit_with_signal("KILL")
    else:
        process.exit(int(process.command.split()[1].strip(",")))


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, process_factory=run, server_host_keys=[key])
    client = await asyncio.create_subprocess_exec("node", "--no-deprecation", "run.js", str(server.get_port()))
    await asyncio.wait_for(client.wait(), 120)


asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" >"$dir/actual"

cat >"$dir/expected" <<'END'
status 0: node-ssh resolves "output", ssh2-promise resolves "output"
status 0, warned: node-ssh rejects "warning", ssh2-promise rejects "warning"
status 3: node-ssh resolves "output", ssh2-promise resolves "output"
status 3, warned: node-ssh rejects "warning", ssh2-promise rejects "warning"
SIGKILL: node-ssh resolves "output", ssh2-promise resolves "output"
status 3: execCommand of node-ssh has code 3, signal null
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
