// A Docker daemon for a test: as much of its interface as shows how a connection to it behaves.

import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { join } from 'node:path';

/**
 * Starts one that lasts until the test has ended, and puts a `docker` that leads to it into a directory.
 * @param {import('node:test').TestContext} t
 * @param {string} directory
 */
export async function dockerDaemon(t, directory) {
  const server = createServer((request, response) => {
    if (request.url === '/containers/json') return response.end('[{"Id":"one"}]');
    if (request.url === '/containers/one/logs') {
      response.write('first\n');
      return void setImmediate(() => response.end(`${'x'.repeat(300_000)}\nlast\n`));
    }
    if (request.url === '/containers/one/archive') {
      let size = 0;
      return request.on('data', (chunk) => (size += chunk.length)).on('end', () => response.end(JSON.stringify({ size })));
    }
    response.statusCode = 404;
    return response.end('{"message":"No such container"}');
  });
  // A container to which one attaches: it says everything back, until the end.
  server.on('upgrade', (request, socket, head) => {
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
    socket.write(head);
    socket.on('error', () => {}).pipe(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  mkdirSync(directory);
  writeFileSync(join(directory, 'docker'), `#!${process.execPath}
if (process.argv.slice(2).join(' ') !== 'system dial-stdio') throw new Error('it knows no other command');
const socket = require('node:net').connect({ port: ${server.address().port}, host: '127.0.0.1', allowHalfOpen: true });
process.stdin.pipe(socket).on('close', () => process.exit()).pipe(process.stdout);
`);
  chmodSync(join(directory, 'docker'), 0o755);
}
