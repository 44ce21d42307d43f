import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { test } from 'node:test';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { sessions, ssh2Server } from './ssh2-server.mjs';
import { all, ask, client, ending, fresh } from './testbed.mjs';

test('streams are binary clean and flow both ways', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'cat');
  const input = randomBytes(16 * 1024 * 1024);
  const pieces = [];
  for (let at = 0; at < input.length; at += 50_001) pieces.push(input.subarray(at, at + 50_001));
  const [output] = await Promise.all([all(stream), pipeline(Readable.from(pieces), stream)]);
  assert.ok(output.equals(input));
});

test('what a program keeps of a stream stays as it was while the rest is collected', async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc');
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'seq 1 8000000');
  const kept = [];
  let at = 0;
  let count = 0;
  for await (const chunk of stream) {
    // Every third, with where it began: the others' memory is used again.
    if (count++ % 3 === 0) kept.push({ chunk, at });
    at += chunk.length;
    if (count % 16 === 0) collect();
  }
  const whole = await all(await ask(ssh, 'exec', 'seq 1 8000000'));
  assert.equal(at, whole.length);
  assert.ok(kept.length > 16, `${kept.length} chunks were kept`);
  for (const { chunk, at: from } of kept) assert.ok(chunk.equals(whole.subarray(from, from + chunk.length)), `at ${from}`);
});

test('a paused stream stops the server, and resumes where it was', async (t) => {
  const { client: ssh } = await client(t);
  // The command tells how far it has come, in a file that the test reads over another session.
  const stream = await ask(
    ssh,
    'exec',
    'f=$(mktemp); echo $f >&2; n=0; while [ $n -lt 64 ]; do head -c 1048576 /dev/zero; n=$((n+1)); echo $n > $f; done',
  );
  const file = (await once(stream.stderr, 'data'))[0].toString().trim();
  const progress = async () => Number(await all(await ask(ssh, 'exec', `cat ${file}`)));
  // Window (2 MiB at first), pipes and what waits on this side: far from all of it. It stands still when two looks agree.
  let before = -1;
  let now = await progress();
  while (now !== before) {
    before = now;
    for (let n = 0; n < 5; n += 1) now = await progress();
  }
  assert.ok(now < 40, `the server went on to ${now} MiB`);
  assert.equal((await all(stream)).length, 64 * 1024 * 1024);
});

test('a slow writer is told to wait, and everything arrives', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'read go; sha256sum');
  const chunk = randomBytes(64 * 1024);
  const hash = createHash('sha256');
  stream.write('go\n');
  let waited = 0;
  for (let n = 0; n < 512; n += 1) {
    hash.update(chunk);
    if (!stream.write(chunk)) {
      waited += 1;
      await once(stream, 'drain');
    }
  }
  stream.end();
  const output = (await all(stream)).toString();
  assert.equal(output.split(' ')[0], hash.digest('hex'));
  assert.ok(waited > 0);
});

test('a consumer that never reads holds up nobody else', async (t) => {
  const { client: ssh } = await client(t);
  const stalled = await ask(ssh, 'exec', 'cat /dev/zero');
  for (let n = 0; n < 5; n += 1) {
    assert.equal((await all(await ask(ssh, 'exec', `echo ${n}`))).toString(), `${n}\n`);
  }
  assert.ok(stalled.readableLength <= 2 * 1024 * 1024);
  stalled.close();
  await once(stalled, 'close');
});

test('the exit is told in front of the end that the server sends right before it', async (t) => {
  const where = await ssh2Server(t, sessions((accept, _reject, connection) => {
    const session = accept();
    session.on('exec', (accept) => {
      const stream = accept();
      const { outgoing: { id } } = stream;
      stream.write('out');
      connection._protocol.channelEOF(id);
      // In a message of its own, which the client may read by itself.
      setImmediate(() => {
        connection._protocol.exitStatus(id, 5);
        connection._protocol.channelClose(id);
      });
    });
  }));
  const ssh = fresh();
  ssh.connect(where);
  await once(ssh, 'ready');
  for (let times = 0; times < 50; times += 1) {
    const stream = await ask(ssh, 'exec', 'x');
    const events = [];
    for (const event of ['exit', 'end']) stream.on(event, () => events.push(event));
    stream.stderr.on('end', () => events.push('end of error output')).resume();
    stream.resume();
    await ending(stream);
    assert.deepEqual([events[0], events.length], ['exit', 3]);
  }
  const ended = ending(ssh);
  ssh.end();
  await ended;
});

test('an end of the output that no exit follows is told', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'exec >&- 2>&-; read line');
  assert.equal((await all(stream)).length, 0);
  assert.equal(stream.exitCode, undefined);
  stream.end('line\n');
  assert.deepEqual(await ending(stream), [0]);
});

test('standard error and output keep apart', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2');
  const [out, err] = await Promise.all([all(stream), all(stream.stderr)]);
  assert.deepEqual([out.length, err.length], [3_000_000, 2_000_000]);
});

test('a command closes though nobody reads its standard error', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'echo unread >&2; echo read; exit 4');
  stream.resume();
  assert.deepEqual(await once(stream, 'close'), [4]);
  assert.equal((await all(stream.stderr)).toString(), 'unread\n');
});

test('writes after the end are the stream\'s error, not the process\'s end', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'cat');
  stream.end('x');
  stream.write('y');
  const [error] = await once(stream, 'error');
  assert.equal(error.code, 'ERR_STREAM_WRITE_AFTER_END');
});

test('what is written to a command that is gone goes nowhere', async (t) => {
  const { client: ssh } = await client(t);
  const closed = await new Promise((resolve, reject) => {
    ssh.exec('exit 0', (error, stream) => {
      if (error) return reject(error);
      // Here and now: its end may be told together with its opening.
      for (let n = 0; n < 64; n += 1) stream.write(Buffer.alloc(65536));
      resolve(once(stream.resume(), 'close'));
    });
  });
  assert.deepEqual(closed, [0]);
});

test('what was written right before the end of its client arrives', async (t) => {
  const { client: watcher } = await client(t);
  const file = (await all(await ask(watcher, 'exec', 'mktemp'))).toString().trim();
  for (let n = 0; n < 10; n += 1) {
    const { client: ssh } = await client(t);
    const stream = await ask(ssh, 'exec', `cat >> ${file}`);
    stream.on('error', () => {});
    stream.write(`${n}\n`.padStart(20_000));
    ssh.end();
    await once(ssh, 'close');
  }
  // The commands take their input when they run, which need not be in that order.
  const read = `for n in $(seq 50); do test $(stat -c %s ${file}) = 200000 && break; sleep 0.1; done; tr -d ' ' < ${file} | sort; rm ${file}`;
  const lines = (await all(await ask(watcher, 'exec', read))).toString().trim().split('\n');
  // A server that is kept from its core for a second is not waited for. ssh2 gets about three of ten through.
  assert.ok(lines.length >= 8 && lines.every((line) => /^\d$/.test(line)), lines.join());
});

test('a destroyed stream hangs up on its command', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'echo $$; exec yes');
  const pid = (await once(stream, 'data'))[0].toString().split('\n')[0];
  stream.destroy();
  await once(stream, 'close');
  const gone = `while kill -0 ${pid} 2>/dev/null && ! grep -q "State:.Z" /proc/${pid}/status; do :; done; echo gone`;
  assert.equal((await all(await ask(ssh, 'exec', gone))).toString(), 'gone\n');
});

test('many small lines arrive whole and in order', async (t) => {
  const { client: ssh } = await client(t);
  const streams = await Promise.all(Array.from({ length: 8 }, () => ask(ssh, 'exec', 'seq 1 100000')));
  const outputs = await Promise.all(streams.map(all));
  const expected = Array.from({ length: 100_000 }, (_, n) => `${n + 1}\n`).join('');
  for (const output of outputs) assert.equal(output.toString(), expected);
});
