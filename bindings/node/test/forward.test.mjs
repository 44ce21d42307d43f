import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { all, ask, client } from './testbed.mjs';

async function echo(t, ...where) {
  const server = createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(...where);
  await once(server, 'listening');
  t.after(() => server.close());
  return server;
}

function directory(t) {
  const path = mkdtempSync(join(tmpdir(), 'trunkline-node-'));
  t.after(() => rmSync(path, { recursive: true }));
  return path;
}

test('a tunnel leads to a port of the server, and ends in each direction by itself', async (t) => {
  const { client: ssh } = await client(t);
  const server = await echo(t, 0, '127.0.0.1');
  const stream = await ask(ssh, 'forwardOut', '127.0.0.1', 4711, '127.0.0.1', server.address().port);
  const input = Buffer.alloc(5_000_000, 'x');
  stream.end(input);
  assert.ok((await all(stream)).equals(input));
});

test('a tunnel leads to a socket of the server', async (t) => {
  const { client: ssh } = await client(t);
  const path = join(directory(t), 'echo');
  await echo(t, path);
  const stream = await ask(ssh, 'openssh_forwardOutStreamLocal', path);
  stream.end('hello');
  assert.equal((await all(stream)).toString(), 'hello');
});

test('a tunnel passes for a socket with clients of databases', async (t) => {
  const { client: ssh } = await client(t);
  const server = await echo(t, 0, '127.0.0.1');
  const sockets = [];
  server.on('connection', (socket) => sockets.push(socket));
  const stream = await ask(ssh, 'forwardOut', '127.0.0.1', 0, '127.0.0.1', server.address().port);
  const connected = once(stream, 'connect');
  assert.equal(stream.setNoDelay(true).setKeepAlive(true, 1000).ref().unref().connect(5432, 'db'), stream);
  await connected;
  stream.write('SELECT 1');
  assert.equal((await once(stream, 'data')).toString(), 'SELECT 1');
  const closed = once(stream, 'close');
  for (const socket of sockets) socket.end();
  await closed;
});

test('a tunnel to nobody is refused with the server\'s reason', async (t) => {
  const { client: ssh } = await client(t);
  const server = await echo(t, 0, '127.0.0.1');
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  const error = await ask(ssh, 'forwardOut', '127.0.0.1', 0, '127.0.0.1', port).catch((error) => error);
  assert.equal(error.level, 'client-ssh');
  assert.equal(error.reason, 2); // SSH_OPEN_CONNECT_FAILED
});

test('clients of a port on the server come in, until it is given up', async (t) => {
  const { client: ssh } = await client(t);
  const port = await ask(ssh, 'forwardIn', '127.0.0.1', 0);
  let refusing = false;
  ssh.on('tcp connection', (details, accept, reject) => {
    if (refusing) return reject();
    assert.equal(details.destPort, port);
    assert.equal(details.srcIP, '127.0.0.1');
    accept().end(`you are ${details.srcPort}`);
  });
  const socket = connect(port, '127.0.0.1');
  await once(socket, 'connect');
  const { localPort } = socket;
  assert.equal((await all(socket)).toString(), `you are ${localPort}`);

  refusing = true;
  const other = connect({ port, host: '127.0.0.1' });
  assert.equal((await all(other).catch(() => Buffer.alloc(0))).length, 0);

  await ask(ssh, 'unforwardIn', '127.0.0.1', port);
  const [error] = await once(connect(port, '127.0.0.1'), 'error');
  assert.equal(error.code, 'ECONNREFUSED');
});

test('clients of a socket on the server come in', async (t) => {
  const { client: ssh } = await client(t);
  const path = join(directory(t), 'listener');
  await ask(ssh, 'openssh_forwardInStreamLocal', path);
  ssh.on('unix connection', (details, accept) => {
    assert.equal(details.socketPath, path);
    const stream = accept();
    stream.pipe(stream);
  });
  const socket = connect(path);
  socket.end('through');
  assert.equal((await all(socket)).toString(), 'through');
  await ask(ssh, 'openssh_unforwardInStreamLocal', path);
});

test('a local socket leads to a port and to a socket of the server, for as long as it is wanted', async (t) => {
  const { client: ssh } = await client(t);
  const server = await echo(t, 0, '127.0.0.1');
  const path = join(directory(t), 'echo');
  await echo(t, path);
  for (const target of [['127.0.0.1', server.address().port], [path]]) {
    const local = join(directory(t), '.s.PGSQL.5432');
    const forward = await ask(ssh, 'forwardOutLocalSocket', local, ...target);
    const socket = connect(local);
    socket.end('through');
    assert.equal((await all(socket)).toString(), 'through');
    await forward.close();
    const [error] = await once(connect(local), 'error');
    assert.equal(error.code, 'ENOENT');
  }
});

test('a local socket replaces one that nobody listens on, and never one in use', async (t) => {
  const { client: ssh } = await client(t);
  const used = join(directory(t), 'used');
  await echo(t, used);
  await assert.rejects(ask(ssh, 'forwardOutLocalSocket', used, '127.0.0.1', 1), /another program listens there/);
  const stale = join(directory(t), 'stale');
  spawnSync(process.execPath, ['-e', `require('net').createServer().listen(${JSON.stringify(stale)}, () => process.kill(process.pid, 'SIGKILL'))`]);
  assert.ok(existsSync(stale));
  await ask(ssh, 'forwardOutLocalSocket', stale, '127.0.0.1', 1);
});

test('a port that is taken cannot be listened on', async (t) => {
  const { client: ssh } = await client(t);
  const server = await echo(t, 0, '127.0.0.1');
  const error = await ask(ssh, 'forwardIn', '127.0.0.1', server.address().port).catch((error) => error);
  assert.equal(error.code, 'ERR_REFUSED');
});
