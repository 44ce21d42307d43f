import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { once } from 'node:events';
import { test } from 'node:test';

import trunkline, { connect } from '../lib/index.mjs';
import { all, also, config, servers } from './testbed.mjs';

async function connectTo(t) {
  const [host] = await servers(t);
  const connection = await connect(config(host));
  also(connection.client);
  return { connection, host };
}

test('a command runs to its end', async (t) => {
  const { connection } = await connectTo(t);
  const result = await connection.run('cat; echo err >&2; exit 2', { input: 'hello' });
  assert.deepEqual(result, { code: 2, signal: undefined, stdout: 'hello', stderr: 'err\n' });
  const binary = await connection.run('printf "\\377"', { encoding: 'buffer' });
  assert.deepEqual(binary.stdout, Buffer.from([255]));
});

test('a checked command that fails is an error with its output', async (t) => {
  const { connection } = await connectTo(t);
  const error = await connection.run('echo why >&2; exit 9', { check: true }).catch((error) => error);
  assert.equal(error.code, 'ERR_EXIT');
  assert.match(error.message, /status 9: why/);
  assert.equal(error.result.code, 9);
});

test('output is read as it comes, and leaving the loop ends the command', async (t) => {
  const { connection } = await connectTo(t);
  let lines = 0;
  const stream = connection.stream('while :; do echo line; done');
  for await (const chunk of stream) {
    lines += chunk.toString().split('\n').length;
    if (lines > 100) break;
  }
  assert.ok(stream.destroyed);
  const whole = [];
  for await (const chunk of connection.stream('seq 1 5')) whole.push(chunk);
  assert.equal(Buffer.concat(whole).toString(), '1\n2\n3\n4\n5\n');
});

test('output that is cut off is an error behind what came', async (t) => {
  const { connection } = await connectTo(t);
  let seen = '';
  const loop = (async () => {
    for await (const chunk of connection.stream('echo started; sleep 0.2; kill -KILL $PPID; sleep 1000')) seen += chunk;
  })();
  const error = await loop.catch((error) => error);
  assert.equal(seen, 'started\n');
  assert.equal(error?.execution, 'may have started');
  await connection.closed;
});

test('a command that is refused is an error of its stream', async (t) => {
  const { connection } = await connectTo(t);
  await connection.close();
  assert.throws(() => connection.stream('true'), /Not connected/);
  await assert.rejects(connection.run('true'), /Not connected/);
});

test('tunnels are promised', async (t) => {
  const { connection } = await connectTo(t);
  const server = createServer((socket) => socket.end('hello')).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  const tunnel = await connection.forwardOut('127.0.0.1', port);
  assert.equal((await all(tunnel)).toString(), 'hello');
  tunnel.end();
  await new Promise((resolve) => server.close(resolve));
  await assert.rejects(connection.forwardOut('127.0.0.1', port), { code: 'ERR_REFUSED' });
});

test('a failed connection rejects with level and code', async () => {
  await assert.rejects(connect({ host: '127.0.0.1', port: 1, username: 'me' }), {
    level: 'client-socket',
    code: 'ECONNREFUSED',
  });
});

test('both module systems give the same', async () => {
  const { createRequire } = await import('node:module');
  const required = createRequire(import.meta.url)('../lib/index.js');
  assert.equal(required.Client, trunkline.Client);
  assert.equal(required.connect, connect);
});
