// Streams of commands that go past JavaScript: descriptors, FIFOs, sockets and files.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { lookup } from 'node:dns/promises';
import { once } from 'node:events';
import {
  closeSync, constants, createReadStream, existsSync, mkdtempSync, openSync, readFileSync, readdirSync, rmSync, statSync,
  writeFileSync,
} from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createConnection, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { connect } from '../lib/index.mjs';
import { all, also, ask, client, daemonPlace, ending, testbed } from './testbed.mjs';

function directory(t) {
  const dir = mkdtempSync(join(tmpdir(), 'tl-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** A command whose output is somebody else's, and its end, which may come at once. */
function start(ssh, command, stdio) {
  return new Promise((resolve, reject) => {
    ssh.exec(command, { stdio }, (error, stream) => {
      if (error) reject(error);
      else resolve({ stream, closed: ending(stream) });
    });
  });
}

/** The end of a command. */
async function waitForEnd(ssh, command, stdio) {
  const { stream, closed } = await start(ssh, command, stdio);
  stream.on('data', (chunk) => assert.fail(`JavaScript got ${chunk}`));
  const args = await closed;
  assert.equal(stream.failure, null);
  return args;
}

const ways = {
  'explicit options': async (t) => (await client(t)).client,
  'the engine': async (t) => also((await connect('box1', { config: (await testbed(t)).ssh_config, daemon: false })).client),
  'the daemon': async (t) => {
    daemonPlace(t);
    return also((await connect('box1', { config: (await testbed(t)).ssh_config, daemon: true })).client);
  },
};

for (const [name, connected] of Object.entries(ways)) {
  test(`descriptors of files are read and written, and may be closed at once: ${name}`, async (t) => {
    const ssh = await connected(t);
    const dir = directory(t);
    const [from, to, errors] = ['in', 'out', 'err'].map((file) => join(dir, file));
    writeFileSync(from, 'from a file\n');
    const fds = [openSync(from, 'r'), openSync(to, 'w'), openSync(errors, 'w')];
    const end = waitForEnd(ssh, 'cat; echo to another >&2; exit 5', fds);
    for (const fd of fds) closeSync(fd);
    assert.deepEqual(await end, [5]);
    assert.equal(readFileSync(to, 'utf8'), 'from a file\n');
    assert.equal(readFileSync(errors, 'utf8'), 'to another\n');
  });

  test(`a path means what is there, and a file is made: ${name}`, async (t) => {
    const ssh = await connected(t);
    const dir = directory(t);
    const file = join(dir, 'log');
    for (const text of ['one', 'two']) {
      await waitForEnd(ssh, `echo ${text}`, ['ignore', file, 'ignore']);
    }
    assert.equal(readFileSync(file, 'utf8'), 'one\ntwo\n');
    assert.equal(statSync(file).mode & 0o777, 0o600);

    const socket = join(dir, 'socket');
    const server = createServer().listen(socket);
    await once(server, 'listening');
    t.after(() => server.close());
    const taken = once(server, 'connection').then(([connection]) => all(connection));
    await waitForEnd(ssh, 'seq 1 100000', ['ignore', socket]);
    assert.equal((await taken).length, 588_895);

    const error = await start(ssh, 'true', ['ignore', join(dir, 'no', 'directory')]).catch((error) => error);
    assert.equal(error.execution, 'did not start');
    assert.match(error.message, /no\/directory/);
  });

  test(`a FIFO carries everything, from a writer and to a reader: ${name}`, async (t) => {
    const ssh = await connected(t);
    const dir = directory(t);
    const [input, output] = [join(dir, 'in'), join(dir, 'out')];
    execFileSync('mkfifo', [input]);
    const { closed } = await start(ssh, 'cat', [input, `fifo:${output}`, 'pipe']);
    const taken = all(createReadStream(output));
    const text = 'line\n'.repeat(200_000);
    execFileSync('sh', ['-c', `cat > ${input}`], { input: text });
    assert.deepEqual(await closed, [0]);
    assert.equal((await taken).toString(), text);
  });

  test(`readers of a socket follow each other without a gap: ${name}`, async (t) => {
    const ssh = await connected(t);
    const path = join(directory(t), 'socket');
    const { stream, closed } = await start(ssh, 'read go; seq 1 50000', ['pipe', `unix:${path}`]);
    const first = createConnection(path);
    await once(first, 'connect');
    first.destroy();
    stream.end('\n');
    const second = createConnection(path);
    assert.equal((await all(second)).toString().trim().split('\n').length, 50_000);
    assert.deepEqual(await closed, [0]);
  });
}

test('four FIFOs that nobody opens delay nothing: not other streams, not libuv\'s threads', async (t) => {
  const { client: ssh } = await client(t);
  const dir = directory(t);
  const blocked = await Promise.all(
    Array.from({ length: 4 }, (_, n) => start(ssh, 'cat /dev/zero', ['ignore', `fifo:${join(dir, `f${n}`)}`])),
  );
  // What libuv's four threads do: files, names, and with an empty pool nothing of it would come back.
  assert.ok((await readFile(new URL(import.meta.url))).length > 0);
  assert.equal((await lookup('localhost')).family > 0, true);
  assert.equal((await all(await ask(ssh, 'exec', 'echo here'))).toString(), 'here\n');
  // Their output is there for whoever comes.
  const fd = openSync(join(dir, 'f0'), constants.O_RDONLY);
  const reader = createReadStream(null, { fd });
  let bytes = 0;
  for await (const chunk of reader) {
    bytes += chunk.length;
    if (bytes > 4 * 1024 * 1024) break;
  }
  for (const { stream } of blocked) stream.close();
  await Promise.all(blocked.map(({ closed }) => closed));
});

test('a reader that goes away ends a command, as a broken pipe does', async (t) => {
  const { client: ssh } = await client(t);
  const path = join(directory(t), 'socket');
  const server = createServer((socket) => socket.once('data', () => socket.destroy())).listen(path);
  await once(server, 'listening');
  t.after(() => server.close());
  const { stream, closed } = await start(ssh, 'yes', ['ignore', path]);
  await closed;
  assert.match(stream.failure.message, /writing the command's output/);
  assert.equal(stream.failure.execution, 'may have started');
});

test('streams that are closed leave no descriptor behind, taken or not', async (t) => {
  // A server on a busy machine counts sessions for a while after they were closed.
  const { client: ssh } = await client(t, {}, '--config', 'MaxSessions 100');
  const dir = directory(t);
  const descriptors = () => readdirSync('/proc/self/fd').length;
  await waitForEnd(ssh, 'true', ['ignore', `unix:${join(dir, 'first')}`]);
  const before = descriptors();
  for (let n = 0; n < 20; n += 1) {
    const path = join(dir, `${n}`);
    const { stream, closed } = await start(ssh, 'cat /dev/zero', ['ignore', n % 2 ? `unix:${path}` : `fifo:${path}`]);
    stream.close();
    await closed;
  }
  while (descriptors() > before) await new Promise(setImmediate);
  assert.ok(!existsSync(join(dir, '1')));
});

test('what is not a stream is refused where it is asked for', async (t) => {
  const { client: ssh } = await client(t);
  const exec = (stdio) => () => ssh.exec('true', { stdio }, () => {});
  assert.throws(exec('inherit'), /stdio/);
  assert.throws(exec([{}]), /stdio/);
  assert.throws(exec([0, 1, 2, 3]), /stdio/);
  assert.throws(exec(['ignore', 1_000_000]), /1000000 is not an open file descriptor/);
});
