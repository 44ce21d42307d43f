// ssh2 as a program: node peer.js TASK ADDRESS USER KEY KNOWN_HOSTS [ARGUMENT...], with the tasks that bench/README.md
// describes for all peers. It takes any host key, which spares it a look-up.
'use strict';

const { readFileSync } = require('node:fs');
const { Client } = require('ssh2');

const [task, address, username, key, , ...rest] = process.argv.slice(2);
const colon = address.lastIndexOf(':');

function connect() {
  return new Promise((resolve, reject) => {
    const client = new Client();
    // As the other peers do: Nagle's algorithm costs 40 ms a command here.
    client.once('ready', () => resolve(client.setNoDelay(true))).once('error', reject);
    client.connect({
      host: address.slice(0, colon),
      port: Number(address.slice(colon + 1)),
      username,
      privateKey: readFileSync(key),
      algorithms: { cipher: ['aes128-gcm@openssh.com'] },
    });
  });
}

/** Runs a command to its end and returns how many bytes it wrote. */
function run(client, command) {
  return new Promise((resolve, reject) => {
    client.exec(command, (error, stream) => {
      if (error) return reject(error);
      let bytes = 0;
      stream.on('data', (data) => { bytes += data.length; });
      stream.stderr.resume();
      let status;
      stream.on('exit', (code) => { status = code; });
      stream.on('close', () => (status === 0 ? resolve(bytes) : reject(new Error(`${command}: ${status}`))));
    });
  });
}

async function main() {
  const begun = process.hrtime.bigint();
  const client = await connect();
  switch (task) {
    case 'cold':
      await run(client, 'true');
      console.log(String(process.hrtime.bigint() - begun));
      break;
    case 'warm': {
      const count = Number(rest[0]);
      for (let n = -count / 10; n < count; n++) {
        const started = process.hrtime.bigint();
        await run(client, 'true');
        if (n >= 0) console.log(String(process.hrtime.bigint() - started));
      }
      break;
    }
    case 'bulk':
      console.log(String(await run(client, rest[0])));
      break;
    default:
      throw new Error(`no such task: ${task}`);
  }
  client.end();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
