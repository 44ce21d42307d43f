// What is under way when a connection or the daemon is lost: each in a process of its own, which has nothing else to stay for.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { connect } from '../lib/index.mjs';
import { also, config, daemonPlace, testbed, trunklineProgram } from './testbed.mjs';

const index = fileURLToPath(new URL('../lib/index.mjs', import.meta.url));

/** Settles when `emitter` has closed. */
const closing = '(emitter) => new Promise((done) => emitter.once("close", done))';

/** Operations that do not end by themselves, as expressions on `connection`, `ssh` (its client), `place` and `port`. */
const OPERATIONS = {
  closed: 'connection.closed',
  run: 'connection.run("sleep 1000")',
  'run, with output': 'connection.run("while echo line; do echo line >&2; sleep 0.02; done")',
  'run, with much output': 'connection.run("yes | head -c 30000000; sleep 1000")',
  'run, with input': 'connection.run("sleep 1000", { input: Buffer.alloc(8_000_000) })',
  'stream that is read': '(async () => { for await (const chunk of connection.stream("while echo line; do sleep 0.02; done")); })()',
  'stream that is read slowly': `(async () => {
    for await (const chunk of connection.stream('while echo line; do sleep 0.02; done')) await new Promise((done) => setTimeout(done, 5));
  })()`,
  'standard error alone': `(async () => {
    const stream = connection.stream('while echo line >&2; do sleep 0.02; done').on('error', () => {});
    for await (const chunk of stream.stderr);
  })()`,
  'output beside errors that nobody reads': `(async () => {
    for await (const chunk of connection.stream('yes >&2 & while echo line; do sleep 0.02; done'));
  })()`,
  'room to write': `new Promise((done) => {
    const stream = connection.stream('yes');
    stream.on('error', done);
    stream.write(Buffer.alloc(8_000_000), done);
  })`,
  shell: '(async () => { for await (const chunk of connection.shell()); })()',
  'exec, by its close': 'ask(ssh, "exec", "while echo line; do sleep 0.02; done").then((stream) => closing(stream.resume()))',
  tunnel: 'connection.forwardOut("127.0.0.1", port).then(async (tunnel) => { for await (const chunk of tunnel); })',
  'local socket': 'connection.forwardOutLocalSocket(place + ".s", "127.0.0.1", port).then(() => connection.closed)',
  listener: 'ask(ssh, "forwardIn", "127.0.0.1", 0).then(() => connection.closed)',
  'sftp, by its close': 'connection.sftp().then(closing)',
  'sftp, a read': 'connection.sftp().then((sftp) => ask(sftp, "readFile", place + ".fifo"))',
  'sftp, a download': 'connection.sftp().then((sftp) => ask(sftp, "fastGet", "/dev/zero", place + ".got"))',
  'sftp, an upload': 'connection.sftp().then((sftp) => ask(sftp, "fastPut", "/dev/zero", place + ".put"))',
  'sftp, a stream': `connection.sftp().then(async (sftp) => {
    for await (const chunk of sftp.createReadStream('/dev/zero', { end: Infinity }));
  })`,
};

const PROGRAM = `
const [,, index, name, where, place, text] = process.argv;
const port = Number(text);
let settled = false;
process.on('exit', () => { if (!settled) { console.log('silent'); process.exitCode = 3; } });
const closing = ${closing};
const ask = (target, method, ...args) =>
  new Promise((done, failed) => target[method](...args, (error, value) => (error ? failed(error) : done(value))));
const operations = { ${Object.entries(OPERATIONS).map(([name, code]) => `${JSON.stringify(name)}: (connection, ssh) => ${code}`).join(',\n')} };
(async () => {
  const { connect } = await import(index);
  const connection = await connect(JSON.parse(where));
  const server = (await connection.run('echo $PPID')).stdout.trim();
  const done = operations[name](connection, connection.client);
  // Behind what was asked before it.
  await connection.run('true');
  console.log('pending ' + server);
  await done.then(() => {}, (error) => console.error(error.message));
  await connection.closed;
  settled = true;
  console.log('settled');
})();
`;

/** Starts each operation; `lose` is told of the server's process of each. All have to end, each in its own words. */
async function losing(t, where, lose) {
  const silent = createServer((socket) => socket.on('error', () => {})).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  t.after(() => silent.close());
  const dir = process.env.TRUNKLINE_DIR;
  const program = join(dir, 'operation.cjs');
  writeFileSync(program, PROGRAM);
  const children = Object.keys(OPERATIONS).map((name, number) => {
    const place = join(dir, `o${number}`);
    assert.equal(spawnSync('mkfifo', [`${place}.fifo`]).status, 0);
    const args = [program, index, name, JSON.stringify(where), place, String(silent.address().port)];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'], timeout: 60_000, killSignal: 'SIGKILL' });
    let errors = '';
    child.stderr.on('data', (chunk) => (errors += chunk));
    const lines = [];
    const ended = once(child, 'close');
    const pending = new Promise((resolve) => {
      const told = createInterface(child.stdout);
      told.on('line', (line) => lines.push(line) === 1 && resolve(line));
      told.on('close', () => resolve(undefined));
    });
    return { name, pending, ended: ended.then(([status, signal]) => ({ name, said: lines.slice(1), status, signal, errors })) };
  });
  const begun = await Promise.all(children.map(({ pending }) => pending));
  const servers = begun.map((line) => line?.split(' ')[1]);
  for (const [at, server] of servers.entries()) {
    if (server === undefined) assert.deepEqual(await children[at].ended, 'begun');
  }
  await lose([...new Set(servers)].map(Number), dir);
  const outcomes = await Promise.all(children.map(({ ended }) => ended));
  const wrong = outcomes.filter(({ said, status }) => status !== 0 || said.join() !== 'settled');
  assert.deepEqual(wrong, []);
}

const parent = (pid) => Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').pop().split(' ')[1]);

/** The server's processes: the one that listens, stopped by now, and each connection's, of which some have not said so. */
function everyServer(servers) {
  const [listening] = servers.map(parent);
  process.kill(listening, 'SIGSTOP');
  const isConnection = (pid) => {
    try {
      return parent(pid) === listening;
    } catch {
      return false; // It has ended.
    }
  };
  const connections = readdirSync('/proc').filter((name) => /^\d+$/.test(name)).map(Number).filter(isConnection);
  for (const server of servers) assert.ok(connections.includes(server));
  return [listening, ...connections];
}

const killed = (servers) => everyServer(servers).forEach((server) => process.kill(server, 'SIGKILL'));
const LIMITS = ['--config', 'MaxSessions 200', '--config', 'MaxStartups 200'];

test('what is under way when the connection is lost settles, with the engine of the process', async (t) => {
  daemonPlace(t);
  const bed = await testbed(t, ...LIMITS);
  const { privateKey, ...rest } = config(bed.hosts[0]);
  await losing(t, { ...rest, privateKey: privateKey.toString() }, killed);
});

test('what is under way when a server falls silent settles, with the engine of the process', async (t) => {
  daemonPlace(t);
  const bed = await testbed(t, ...LIMITS);
  const { privateKey, ...rest } = config(bed.hosts[0], { keepaliveInterval: 500, keepaliveCountMax: 1 });
  const frozen = (servers) => {
    const every = everyServer(servers);
    every.forEach((server) => process.kill(server, 'SIGSTOP'));
    t.after(() => {
      for (const server of every) {
        try {
          process.kill(server, 'SIGKILL');
        } catch {
          // The test's server has ended with all of them.
        }
      }
    });
  };
  await losing(t, { ...rest, privateKey: privateKey.toString() }, frozen);
});

const LOSSES = {
  'its connection is lost': killed,
  'it is killed': (servers, dir) => {
    const env = { ...process.env, TRUNKLINE_DIR: dir };
    const status = spawnSync(trunklineProgram, ['status', '--json'], { env, encoding: 'utf8' });
    process.kill(JSON.parse(status.stdout).pid, 'SIGKILL');
  },
  'it is stopped': (servers, dir) => {
    const env = { ...process.env, TRUNKLINE_DIR: dir };
    assert.equal(spawnSync(trunklineProgram, ['stop', '--now'], { env }).status, 0);
  },
};

for (const [loss, lose] of Object.entries(LOSSES)) {
  test(`what is under way over the daemon when ${loss} settles`, async (t) => {
    daemonPlace(t);
    const bed = await testbed(t, ...LIMITS);
    await losing(t, { destination: 'box1', config: bed.ssh_config, daemon: true }, lose);
  });
}

test('an SFTP session that the daemon carries over to a new connection keeps its client, and one that it does not ends it', async (t) => {
  for (const resumes of [true, false]) {
    const dir = daemonPlace(t);
    writeFileSync(join(dir, 'config.toml'), `sftp_resume = ${resumes}\n`);
    const bed = await testbed(t);
    const connection = await connect({ destination: 'box1', config: bed.ssh_config, daemon: true });
    const ssh = also(connection.client);
    let isClosed = false;
    ssh.on('close', () => (isClosed = true)).on('error', () => {});
    const sftp = await connection.sftp();
    const call = (name, ...words) => new Promise((done, failed) => sftp[name](...words, (error, value) => (error ? failed(error) : done(value))));
    const handle = await call('open', `${dir}/written`, 'w');
    await call('write', handle, Buffer.from('one'), 0, 3, 0);
    const ended = new Promise((done) => sftp.once('close', done));
    process.kill(Number((await connection.run('echo $PPID')).stdout), 'SIGKILL');
    if (!resumes) {
      await ended;
      await connection.closed.catch(() => {});
      assert.ok(isClosed);
      continue;
    }
    await call('write', handle, Buffer.from('two'), 0, 3, 3);
    await call('close', handle);
    assert.equal(readFileSync(`${dir}/written`, 'utf8'), 'onetwo');
    const { stdout } = await connection.run('echo here');
    assert.equal(stdout, 'here\n');
    assert.equal(isClosed, false);
    await connection.close();
  }
});
