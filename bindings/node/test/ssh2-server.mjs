// The server of the real ssh2, for what OpenSSH's does not do.

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import ssh2 from 'ssh2-original';

const { Server } = ssh2;
export const { utils } = ssh2;

/** A host key, and one that leads in. */
export const hostKey = newKey();
export const userKey = newKey();

/** Of ssh-keygen: of the Ed25519 keys that ssh2 1.17 makes, one in some 300 is nothing that it can read. */
function newKey() {
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-key-'));
  const file = join(directory, 'key');
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', '', '-f', file]);
  const pair = { private: readFileSync(file, 'utf8'), public: readFileSync(`${file}.pub`, 'utf8').trim() };
  rmSync(directory, { recursive: true });
  return pair;
}

/**
 * Starts a server of the real ssh2 that lasts until the test has ended.
 * @param {import('node:test').TestContext} t
 * @param {(connection: object) => void} onConnection what the server does with a client; by default it lets everybody in
 * @param {object} [options] of the server
 */
export async function ssh2Server(t, onConnection, options = {}) {
  const connections = new Set();
  const server = new Server({ hostKeys: [hostKey.private], ...options }, (connection) => {
    connections.add(connection);
    // A client that goes is not an error of the test's.
    connection.on('error', () => {}).on('close', () => connections.delete(connection));
    onConnection(connection);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const connection of connections) connection._sock?.destroy();
    return new Promise((resolve) => server.close(resolve));
  });
  const { port } = server.address();
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-ssh2-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const known = join(directory, 'known_hosts');
  writeFileSync(known, `[127.0.0.1]:${port} ${hostKey.public}\n`);
  return { host: '127.0.0.1', port, username: 'user', password: 'sesame', knownHosts: known };
}

/** Lets everybody in, and gives each session to `onSession`. */
export function sessions(onSession) {
  return (connection) => {
    connection.on('authentication', (context) => context.accept());
    connection.on('ready', () => connection.on('session', (accept, reject) => onSession(accept, reject, connection)));
  };
}
