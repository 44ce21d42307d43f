// Packages of others that are written for ssh2, as they are, each on ssh2 and on trunkline: they see the same.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import Module, { createRequire } from 'node:module';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, sep } from 'node:path';
import { test } from 'node:test';

import original from 'ssh2-original';

import trunkline from '../lib/index.js';
import { dockerDaemon } from './docker.mjs';
import { postgres } from './postgres.mjs';
import { config, servers } from './testbed.mjs';

const require = createRequire(import.meta.url);

/** A package, loaded anew on an implementation of ssh2. */
function loaded(name, ssh2) {
  for (const file of Object.keys(require.cache)) if (file.includes(`${sep}node_modules${sep}${name}${sep}`)) delete require.cache[file];
  const load = Module._load;
  Module._load = (request, ...more) => (request === 'ssh2' ? ssh2 : load(request, ...more));
  try {
    return require(name);
  } finally {
    Module._load = load;
  }
}

/** Reads what a port says. */
async function said(port) {
  let text = '';
  for await (const chunk of connect(port, '127.0.0.1')) text += chunk;
  return text;
}

/** By package: what it does on a server, with a directory, a port that says "hello", and what the test has for it. Returns what it saw. */
const PROGRAMS = {
  'tunnel-ssh': async ({ createTunnel }, ssh, { port }) => {
    const [server, client] = await createTunnel({ autoClose: true }, {}, ssh, { dstAddr: '127.0.0.1', dstPort: port });
    const saw = [await said(server.address().port), await said(server.address().port)];
    const closed = once(server, 'close');
    client.end();
    await closed;
    const refused = await createTunnel({}, {}, { ...ssh, privateKey: undefined }, {}).catch((error) => error);
    return [...saw, refused.level, refused.message];
  },
  'ssh2-promise': async (SSH2Promise, ssh, { directory, port }) => {
    const made = new SSH2Promise(ssh);
    await made.connect();
    const saw = [await made.exec('echo out'), await made.exec('echo err >&2; exit 3').catch(String)];
    const stream = await made.spawn('cat');
    stream.end('in');
    let text = '';
    for await (const chunk of stream) text += chunk;
    const sftp = made.sftp();
    await sftp.writeFile(join(directory, 'file'), 'content');
    saw.push(text, String(await sftp.readFile(join(directory, 'file'))), (await sftp.readdir(directory)).map(({ filename }) => filename));
    saw.push((await sftp.getStat?.(join(directory, 'file')))?.size, (await sftp.stat(join(directory, 'none')).catch((error) => error)).message);
    const tunnel = await made.addTunnel({ remoteAddr: '127.0.0.1', remotePort: port });
    saw.push(await said(tunnel.localPort));
    await made.close();
    return saw;
  },
  'simple-ssh': async (SimpleSsh, ssh) => {
    const made = new SimpleSsh({ host: ssh.host, port: ssh.port, user: ssh.username, key: ssh.privateKey });
    const saw = [];
    made.on('error', (error) => saw.push(error.message));
    made.exec('cat', { in: 'in', out: (text) => saw.push(text) });
    await new Promise((resolve) => {
      made.exec('echo err >&2; exit 3', { err: (text) => saw.push(text), exit: (code) => resolve(saw.push(code)) }).start();
    });
    made.end();
    return saw;
  },
  'node-scp': async ({ Client }, ssh, { directory }) => {
    const made = await Client(ssh);
    writeFileSync(join(directory, 'one'), 'content');
    mkdirSync(join(directory, 'tree/inner'), { recursive: true });
    writeFileSync(join(directory, 'tree/inner/two'), 'more');
    await made.uploadFile(join(directory, 'one'), join(directory, 'up'));
    await made.downloadFile(join(directory, 'up'), join(directory, 'down'));
    await made.uploadDir(join(directory, 'tree'), join(directory, 'copy'));
    await made.downloadDir(join(directory, 'copy'), join(directory, 'back'));
    await made.mkdir(join(directory, 'made'));
    const saw = [await made.exists(join(directory, 'up')), await made.exists(join(directory, 'none')), (await made.stat(join(directory, 'up'))).size];
    saw.push((await made.list(directory)).map(({ name, type, size }) => [name, type, type === '-' && size]).sort());
    await made.unlink(join(directory, 'up'));
    await made.rmdir(join(directory, 'copy'));
    saw.push((await made.stat(join(directory, 'none')).catch((error) => error)).code);
    made.close();
    return [...saw, readFileSync(join(directory, 'down'), 'utf8'), readFileSync(join(directory, 'back/inner/two'), 'utf8'), readdirSync(directory).sort()];
  },
  'docker-modem': async (Modem, { username, privateKey, host, port }) => {
    const made = new Modem({ protocol: 'ssh', host, port, username, sshOptions: { privateKey } });
    const dial = (path, more) => new Promise((resolve) => {
      const statusCodes = { 200: true, 101: true, 404: 'no such container' };
      made.dial({ path, method: 'GET', statusCodes, ...more }, (error, answer) => resolve(error ?? answer));
    });
    const saw = [await dial('/containers/json')];
    const { statusCode, reason, json } = await dial('/containers/two/json');
    saw.push([statusCode, reason, json]);
    saw.push((await text(await dial('/containers/one/logs', { isStream: true }))).length);
    saw.push(await dial('/containers/one/archive', { method: 'PUT', file: Buffer.alloc(500_000) }));
    const attached = await dial('/containers/one/attach?', { method: 'POST', isStream: true, openStdin: true, hijack: true, options: { stream: true } });
    attached.end('back and forth');
    saw.push(await text(attached));
    const refused = new Modem({ protocol: 'ssh', host, port, username, sshOptions: { password: 'wrong' } });
    return [...saw, await new Promise((resolve) => refused.dial({ path: '/', method: 'GET', statusCodes: {} }, (error) => resolve([error.message, error.level])))];
  },
  pg: async ({ Client, Pool }, ssh, { ssh2, database }) => {
    const made = new ssh2.Client();
    made.connect(ssh);
    await once(made, 'ready');
    const tunnel = () => new Promise((resolve, reject) => {
      made.forwardOut('127.0.0.1', 0, '127.0.0.1', database, (error, stream) => (error ? reject(error) : resolve(asSocket(stream))));
    });
    const saw = [];
    for (const more of [{}, { query_timeout: 60_000, keepAlive: true }]) {
      const stream = await tunnel();
      const client = new Client({ user: 'postgres', database: 'postgres', stream: () => stream, ...more });
      await client.connect();
      saw.push((await client.query('SELECT $1::text AS said', ['hello'])).rows);
      saw.push((await client.query('SELECT repeat(\'x\', 100000) AS long FROM generate_series(1, 20)')).rows.length);
      saw.push((await client.query('SELECT 1 / 0').catch((error) => error)).code);
      const heard = once(client, 'notification');
      await client.query('LISTEN here');
      await client.query('NOTIFY here, \'word\'');
      saw.push((await heard)[0].payload);
      await client.end();
    }
    const [first, second] = [await tunnel(), await tunnel()];
    const left = [first, second];
    const pool = new Pool({ user: 'postgres', database: 'postgres', max: 2, stream: () => left.shift() });
    const sums = await Promise.all([1, 2, 3, 4].map((each) => pool.query('SELECT pg_sleep(0.01), $1::int * 2 AS sum', [each])));
    saw.push(sums.map(({ rows }) => rows[0].sum));
    const lost = new Promise((resolve) => pool.on('error', (error) => resolve(error.message)));
    // What PostgreSQL does to a client when it stops.
    await pool.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = $1', ['client backend']);
    saw.push(await lost);
    await pool.end();
    made.end();
    return saw;
  },
};

/** The content of a stream. */
async function text(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

/** A stream of ssh2's with what it lacks of a socket. */
function asSocket(stream) {
  const same = () => stream;
  const connects = () => {
    process.nextTick(() => stream.emit('connect'));
    return stream;
  };
  for (const [name, method] of Object.entries({ connect: connects, setNoDelay: same, setKeepAlive: same, ref: same, unref: same })) stream[name] ??= method;
  return stream;
}

for (const [name, program] of Object.entries(PROGRAMS)) {
  test(`${name} runs on it as on ssh2`, async (t) => {
    const programs = join(mkdtempSync(join(tmpdir(), 'trunkline-docker-')), 'bin');
    t.after(() => rmSync(join(programs, '..'), { recursive: true }));
    if (name === 'docker-modem') await dockerDaemon(t, programs);
    const database = name === 'pg' ? await postgres(t) : undefined;
    const [host] = await servers(t, '--config', `SetEnv PATH=${programs}:/usr/bin:/bin`);
    const speaker = createServer((socket) => socket.end('hello')).listen(0, '127.0.0.1');
    await once(speaker, 'listening');
    t.after(() => speaker.close());
    const saw = [];
    for (const ssh2 of [original, trunkline]) {
      const directory = mkdtempSync(join(tmpdir(), 'trunkline-programs-'));
      t.after(() => rmSync(directory, { recursive: true }));
      let clients = 0;
      class Client extends ssh2.Client {
        constructor() {
          super();
          clients += 1;
        }
      }
      const around = { directory, port: speaker.address().port, ssh2: { ...ssh2, Client }, database };
      saw.push(await program(loaded(name, around.ssh2), { ...config(host), privateKey: readFileSync(host.key, 'utf8') }, around));
      assert.ok(clients > 0, 'the package has another ssh2');
    }
    assert.deepEqual(saw[1], saw[0]);
    assert.ok(saw[0].length > 0);
  });
}
