// ssh2 in a process of its own: proxy.mjs HOSTS. Tells its parent the socket's path; a client's first line says which host
// and command it wants, and the output follows.

import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { CLIENTS } from './clients.mjs';

const directory = mkdtempSync(join(tmpdir(), 'event-loop-proxy-'));
const path = join(directory, 'socket');
const clients = await CLIENTS.ssh2.open(JSON.parse(process.argv[2]), {});

const server = createServer((socket) => {
  // The measured process ends without a word.
  socket.on('error', () => socket.destroy());
  socket.once('data', (line) => {
    const { n, command } = JSON.parse(line);
    // The socket's own queue is the limit, as `pipe` has it.
    clients.pipe(n, command, socket);
  });
});
server.listen(path, () => process.send(path));
process.on('disconnect', () => {
  rmSync(directory, { recursive: true });
  process.exit();
});
