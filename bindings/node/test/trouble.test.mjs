import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { readdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';


import { KIND, attach, deliver, detach, hub } from '../lib/hub.js';
import { Client } from '../lib/index.mjs';
import native from '../lib/native.js';
import { all, ask, client, config, ending, fresh, servers, testbed } from './testbed.mjs';

/** Waits until something is so, a minute at most. */
async function waitUntil(what, holds) {
  const patience = Date.now() + 60_000;
  while (!holds()) {
    assert.ok(Date.now() < patience, what);
    await new Promise(setImmediate);
  }
}

const HANG_UP = 'echo started; kill -KILL $PPID; sleep 1000';

test('a connection lost in mid-stream closes its streams and says that the command may have started', async (t) => {
  const { client: ssh } = await client(t);
  ssh.on('error', () => {});
  // Everything may be told together with the stream's opening.
  const clientClosed = ending(ssh);
  const stream = await ask(ssh, 'exec', HANG_UP);
  stream.resume();
  const args = await once(stream, 'close');
  assert.deepEqual(args, []);
  assert.equal(stream.failure.execution, 'may have started');
  assert.equal(stream.failure.kind, 'network');
  await clientClosed;
  assert.throws(() => ssh.exec('true', () => {}), /Not connected/);
});

test('what waits to be opened when the connection is lost hears of it', async (t) => {
  const { client: ssh } = await client(t);
  ssh.on('error', () => {});
  const stream = await ask(ssh, 'exec', 'read x; kill -KILL $PPID');
  stream.end('\n');
  const outcomes = await Promise.allSettled(Array.from({ length: 20 }, () => ask(ssh, 'exec', 'sleep 1000')));
  const channels = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  await Promise.all(
    channels.map(async (channel) => {
      channel.resume();
      if (!channel.failure) await once(channel, 'close');
    }),
  );
});

test('dozens of clients closed at once leave nothing behind', async (t) => {
  const [host] = await servers(t, '--config', 'MaxStartups 1000', '--config', 'MaxSessions 10');
  const descriptors = () => readdirSync('/proc/self/fd').length;
  const warm = fresh();
  warm.connect(config(host));
  await once(warm, 'ready');
  warm.end();
  await once(warm, 'close');
  const before = descriptors();
  const clients = await Promise.all(
    Array.from({ length: 64 }, async () => {
      const ssh = fresh();
      ssh.connect(config(host, { readyTimeout: 0 }));
      await once(ssh, 'ready');
      const stream = await ask(ssh, 'exec', 'cat /dev/zero');
      return { ssh, stream };
    }),
  );
  const closed = clients.map(({ ssh }) => once(ssh, 'close'));
  for (const { ssh } of clients) ssh.end();
  await Promise.all(closed);
  for (const { stream } of clients) stream.destroy();
  assert.deepEqual(hub.held(), [0, 0]);
  assert.ok(descriptors() <= before + 8, `${before} descriptors became ${descriptors()}`);
});

test('a client that is ended while it connects closes without an error', async (t) => {
  const [host] = await servers(t);
  const ssh = fresh();
  ssh.on('error', (error) => assert.fail(error));
  ssh.connect(config(host));
  ssh.end();
  await once(ssh, 'close');
  assert.deepEqual(hub.held(), [0, 0]);
});

test('thousands of clients that wait for a server are closed at once and leave nothing behind', async (t) => {
  const sockets = new Set();
  const silent = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {}).on('close', () => sockets.delete(socket)).resume();
  }).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  t.after(() => new Promise((done) => silent.close(done)));
  const descriptors = () => readdirSync('/proc/self/fd').length;
  const before = descriptors();
  const { port } = silent.address();
  const clients = Array.from({ length: 2000 }, () => {
    const ssh = new Client();
    ssh.on('error', (error) => assert.fail(error));
    return ssh.connect({ host: '127.0.0.1', port, username: 'me', password: 'no', knownHosts: false, readyTimeout: 0 });
  });
  assert.equal(hub.held()[0], 2000);
  const closed = clients.map(ending);
  for (const ssh of clients) ssh.end();
  await Promise.all(closed);
  assert.deepEqual(hub.held(), [0, 0]);
  // The server's ends, which are this process's too, go when it has noticed.
  await waitUntil('the server has noticed', () => sockets.size === 0);
  assert.ok(descriptors() <= before + 8, `${before} descriptors became ${descriptors()}`);
});

test('a thousand clients of one destination share a connection, and none ends the others', async (t) => {
  const bed = await testbed(t);
  const where = { destination: 'box1', config: bed.ssh_config, daemon: false };
  const clients = Array.from({ length: 1000 }, () => fresh().connect(where));
  await Promise.all(clients.map((ssh) => once(ssh, 'ready')));
  const [kept, ...others] = clients;
  assert.equal(kept.lanes().length, 1);
  const closed = others.map(ending);
  for (const ssh of others) ssh.end();
  await Promise.all(closed);
  assert.deepEqual(hub.held(), [1, 0]);
  assert.equal((await all(await ask(kept, 'exec', 'echo still'))).toString(), 'still\n');
});

/** Runs a module of its own with the config as its argument; returns how it ended. */
function run(host, source) {
  const { privateKey, ...rest } = config(host);
  const argument = JSON.stringify({ ...rest, privateKey: privateKey.toString() });
  const index = fileURLToPath(new URL('../lib/index.mjs', import.meta.url));
  const program = `import { Client } from ${JSON.stringify(index)}; const config = ${argument};\n${source}`;
  return spawnSync(process.execPath, ['--input-type=module', '-e', program], { timeout: 60_000, encoding: 'utf8' });
}

test('process.exit() with streams open ends the process with its own status', async (t) => {
  const [host] = await servers(t);
  const ended = run(
    host,
    `const ssh = new Client();
    ssh.on('ready', () => ssh.exec('cat /dev/zero', (error, stream) => {
      let chunks = 0;
      stream.on('data', () => { if (++chunks === 20) process.exit(7); });
    }));
    ssh.connect(config);`,
  );
  assert.deepEqual([ended.status, ended.signal, ended.stderr], [7, null, '']);
});

test('an open client keeps the process alive, and a closed one lets it end', async (t) => {
  const [host] = await servers(t);
  const ended = run(
    host,
    `const ssh = new Client();
    ssh.on('ready', () => ssh.exec('sleep 0.3; echo late', (error, stream) => {
      stream.on('data', (chunk) => process.stdout.write(chunk));
      stream.on('close', () => ssh.end());
    }));
    ssh.on('close', () => console.log('closed'));
    ssh.connect(config);`,
  );
  assert.deepEqual([ended.status, ended.stdout], [0, 'late\nclosed\n']);
});

test('an error that nobody handles ends the process as an exception, not as a crash', async (t) => {
  const [host] = await servers(t);
  const ended = run({ ...host, port: 1 }, 'new Client().connect(config);');
  assert.equal(ended.status, 1);
  assert.match(ended.stderr, /ECONNREFUSED/);
});

test('an exception in a handler is the program\'s, and costs other streams nothing', async (t) => {
  const [host] = await servers(t);
  const ended = run(
    host,
    `process.on('uncaughtException', (error) => console.log(error.message));
    const ssh = new Client();
    ssh.on('ready', () => {
      ssh.exec('echo bad', (error, bad) => {
        bad.on('data', () => { throw new Error('from a handler'); });
        bad.on('close', () => {
          ssh.exec('echo good', (error, good) => {
            good.on('data', (chunk) => process.stdout.write(chunk));
            good.on('close', () => ssh.end());
          });
        });
      });
    });
    ssh.connect(config);`,
  );
  assert.deepEqual([ended.status, ended.stdout], [0, 'from a handler\ngood\n']);
});

test('a handler of the end that throws costs nothing of the end, and nothing is left', async (t) => {
  const [host] = await servers(t);
  const thrower = (what) => () => {
    throw new Error(what);
  };
  for (const [event, more, code] of [
    ['error', { port: 1 }, 'ECONNREFUSED'],
    ['end', {}],
  ]) {
    const ssh = fresh();
    const errors = [];
    ssh.on('error', (error) => errors.push(error));
    ssh.on(event, thrower(event));
    ssh.on('ready', () => ssh.end());
    const thrown = new Promise((resolve) => {
      process.setUncaughtExceptionCaptureCallback((error) => resolve(error));
    });
    const closed = ending(ssh);
    ssh.connect(config(host, more));
    assert.equal((await thrown).message, event);
    process.setUncaughtExceptionCaptureCallback(null);
    await closed;
    assert.deepEqual(errors.map((error) => error.code), code === undefined ? [] : [code]);
    assert.deepEqual(hub.held(), [0, 0]);
  }
});

test('a callback or a handler of a stream that throws leaves nothing behind', async (t) => {
  const { client: ssh } = await client(t);
  const thrown = [];
  process.setUncaughtExceptionCaptureCallback((error) => thrown.push(error.message));
  t.after(() => process.setUncaughtExceptionCaptureCallback(null));
  for (const event of ['opened', 'data', 'end', 'exit', 'close']) {
    const closed = await new Promise((resolve) => {
      ssh.exec('echo x; exit 3', (error, stream) => {
        resolve([once(stream, 'close')]);
        stream.resume();
        if (event === 'opened') throw new Error(event);
        stream.on(event, () => {
          throw new Error(event);
        });
      });
    });
    assert.deepEqual(await closed[0], [3]);
  }
  // What a last handler throws is thrown behind it.
  await waitUntil('every handler has thrown', () => thrown.length >= 5);
  assert.deepEqual(thrown, ['opened', 'data', 'end', 'exit', 'close']);
  const closed = ending(ssh);
  ssh.end();
  await closed;
  assert.deepEqual(hub.held(), [0, 0]);
});

test('a thousand clients with streams, open or still waiting, are closed at once and leave nothing behind', async (t) => {
  const bed = await testbed(t, '--config', 'MaxStartups 200');
  const where = { destination: 'box1', config: bed.ssh_config, daemon: false };
  const descriptors = () => readdirSync('/proc/self/fd').length;
  const before = descriptors();
  const clients = Array.from({ length: 1000 }, () => fresh().connect(where));
  await Promise.all(clients.map((ssh) => once(ssh, 'ready')));
  let said = 0;
  const streams = Promise.allSettled(clients.map(async (ssh) => {
    const stream = await ask(ssh, 'exec', 'echo there; exec cat');
    const closed = ending(stream);
    stream.on('data', (chunk) => {
      assert.equal(chunk.toString(), 'there\n');
      said += 1;
    });
    await closed;
    return stream.failure;
  }));
  // A server takes ten sessions on each connection, and a host gets no more than sixteen of those. The others wait.
  await waitUntil('a hundred streams are open', () => said >= 100);
  assert.deepEqual(hub.held(), [1000, 1000]);
  const sftps = Promise.allSettled(clients.map((ssh) => ask(ssh, 'sftp').then((sftp) => once(sftp, 'close'))));
  const closed = clients.map(ending);
  for (const ssh of clients) ssh.end();
  await Promise.all(closed);
  await sftps;
  const codes = (await streams).map(({ value, reason }) => `${(value ?? reason).level} ${(value ?? reason).code}`);
  assert.deepEqual([...new Set(codes)], ['client ERR_CLOSED']);
  assert.deepEqual(hub.held(), [0, 0]);
  // Connections that nobody has closed stay for whoever comes next.
  assert.ok(descriptors() <= before + 40, `${before} descriptors became ${descriptors()}`);
});

test('who awaits an opening hears of an end that comes with it, in its place', async (t) => {
  const heard = [];
  const emitters = [-1, -2].map((number) => {
    const emitter = new EventEmitter();
    emitter._told = (kind) => {
      heard.push(`${number} ${kind}`);
      emitter.emit(kind === KIND.CLOSE ? 'close' : 'open');
    };
    attach(number, emitter);
    t.after(() => detach(number));
    return emitter;
  });
  const through = async (emitter) => {
    await once(emitter, 'open').then(() => Promise.resolve()).finally(() => {});
    await once(emitter, 'close');
  };
  const both = Promise.all(emitters.map(through));
  deliver([-1, KIND.OPEN, null, -2, KIND.OPEN, null, -1, KIND.CLOSE, null]);
  deliver([-2, KIND.CLOSE, null]);
  await both;
  assert.deepEqual(heard, ['-1 5', '-2 5', '-1 8', '-2 8']);
});

const index = fileURLToPath(new URL('../lib/index.js', import.meta.url));

const WORKER = `
const { parentPort, workerData } = require('node:worker_threads');
const { Client } = require(workerData.index);
const ssh = new Client();
ssh.on('ready', () => {
  for (let n = 0; n < 5; n += 1) {
    ssh.exec('cat /dev/zero', (error, stream) => {
      stream.once('data', () => parentPort.postMessage('data'));
      stream.resume();
    });
  }
});
ssh.connect(workerData.config);
parentPort.on('message', () => process.exit(0));
`;

test('workers have streams of their own, and can be terminated with them', async (t) => {
  const { client: ssh, host } = await client(t);
  const descriptors = () => readdirSync('/proc/self/fd').length;
  const before = descriptors();
  for (let round = 0; round < 3; round += 1) {
    const workers = Array.from(
      { length: 3 },
      () => new Worker(WORKER, { eval: true, workerData: { index, config: config(host) } }),
    );
    await Promise.all(workers.map((worker) => once(worker, 'message')));
    // In the last round by themselves.
    if (round === 2) for (const worker of workers) worker.postMessage('exit');
    await Promise.all(workers.map((worker) => (round === 2 ? once(worker, 'exit') : worker.terminate())));
  }
  // Their connections are closed behind them.
  await waitUntil('the connections of workers are closed', () => descriptors() <= before + 4);
  // The main thread's part of the engine is as it was.
  assert.equal((await all(await ask(ssh, 'exec', 'echo here'))).toString(), 'here\n');
});

const BUSY_WORKER = `
const { parentPort, workerData } = require('node:worker_threads');
const { Client } = require(workerData.index);
const ssh = new Client();
ssh.on('ready', () => ssh.exec('cat /dev/zero', (error, stream) => {
  if (error) throw error;
  let bytes = 0;
  stream.on('data', (chunk) => {
    bytes += chunk.length;
    if (bytes < 1_000_000) return;
    if (workerData.exits) process.exit(0);
    parentPort.postMessage('busy');
  });
}));
ssh.connect(workerData.config);
`;

test('workers that end in the middle of a stream leave nothing behind', async (t) => {
  const [host] = await servers(t, '--config', 'MaxStartups 200');
  const before = native.alive();
  const cutShort = async (exits) => {
    const worker = new Worker(BUSY_WORKER, { eval: true, workerData: { index, config: config(host), exits } });
    const ended = once(worker, 'exit');
    if (!exits) await once(worker, 'message').then(() => worker.terminate());
    await ended;
  };
  // Several at a time: chunks come while an environment is torn down.
  for (let round = 0; round < 8; round += 1) {
    await Promise.all([true, false, true, false, true, false].map(cutShort));
  }
  await waitUntil('nothing of the workers is left', () => native.alive().every((count, at) => count <= before[at]));
});
