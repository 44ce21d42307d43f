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
function loadOn(name, ssh2) {
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
async function readPort(port) {
  let text = '';
  for await (const chunk of connect(port, '127.0.0.1')) text += chunk;
  return text;
}

/** By package: what it does on a server, with a directory, a port that says "hello", and what the test has for it. Returns what it saw. */
const PROGRAMS = {
  'node-ssh': async ({ NodeSSH }, ssh, { directory }) => {
    tree(join(directory, 'tree'));
    mkdirSync(join(directory, 'down'));
    const made = await new NodeSSH().connect(ssh);
    const saw = [];
    const options = (more) => ({
      concurrency: 3, validate: (path) => !path.includes('skipped'), ...more,
      tick: (from, to, error) => saw.push([from.slice(directory.length), to.slice(directory.length), error?.message]),
    });
    // Made one after the other: node-ssh makes the directories of a tree together, and where a parent is missing the first makes it and
    // another's refusal is forgotten, with that directory (on ssh2 in 4 of 60 trees).
    for (const path of ['deep/up', 'flat']) await made.mkdir(join(directory, path));
    saw.push(await made.putDirectory(join(directory, 'tree'), join(directory, 'deep/up'), options({ recursive: true })));
    saw.push(await made.putDirectory(join(directory, 'tree'), join(directory, 'flat'), options({ recursive: false })));
    saw.push(await made.getDirectory(join(directory, 'down'), join(directory, 'deep/up'), options({ recursive: true })));
    saw.push(files(join(directory, 'deep/up')), files(join(directory, 'flat')), files(join(directory, 'down')));
    for (const call of [
      () => made.putDirectory(join(directory, 'none'), join(directory, 'to')), () => made.getDirectory(join(directory, 'to'), join(directory, 'none')),
      () => made.putDirectory(join(directory, 'tree'), join(directory, 'tree/a')), () => made.getFile(join(directory, 'to'), join(directory, 'none')),
      () => made.putFile(join(directory, 'none'), join(directory, 'to')), () => made.execCommand('cat', { stdin: 'in', cwd: directory }),
      () => made.exec('echo', ['a b', '$HOME'], { stream: 'both' }), () => made.exec('ls', ['/nothing/here']),
    ]) saw.push(await call().catch((error) => error.message.replaceAll(directory, '')));
    // Callbacks of files that are copied together come in no order.
    made.dispose();
    return saw.sort((a, b) => (JSON.stringify(a) ?? '').localeCompare(JSON.stringify(b) ?? ''));
  },
  'ssh2-sftp-client': async (SftpClient, ssh, { directory }) => {
    tree(join(directory, 'tree'));
    const made = new SftpClient('name');
    await made.connect({ ...ssh, promiseLimit: 3 });
    const saw = [];
    for (const event of ['upload', 'download']) made.on(event, ({ source, destination }) => saw.push([event, `${source} ${destination}`.replaceAll(directory, '')]));
    const filter = (path, isDirectory) => !path.includes('skipped') && !(isDirectory && path.endsWith('empty'));
    const short = (answer) => JSON.stringify(answer).replaceAll(directory, '');
    for (const more of [{}, { useFastput: true, filter }, { filter }]) saw.push(short(await made.uploadDir(join(directory, 'tree'), join(directory, `up${saw.length}`), more)));
    const [last] = readdirSync(directory).filter((name) => name.startsWith('up')).sort();
    for (const more of [{}, { useFastget: true, filter }]) saw.push(short(await made.downloadDir(join(directory, last), join(directory, `down${saw.length}`), more)));
    for (const name of readdirSync(directory).sort()) saw.push([name, files(join(directory, name))]);
    for (const call of [
      () => made.uploadDir(join(directory, 'none'), join(directory, 'to')), () => made.downloadDir(join(directory, 'none'), join(directory, 'to')),
      () => made.uploadDir(join(directory, 'tree/a'), join(directory, 'to')), () => made.rmdir(join(directory, last)), () => made.rmdir(join(directory, last), true),
      () => made.list(join(directory, 'tree'), ({ type }) => type === 'd').then((list) => list.map(({ name }) => name).sort()), () => made.exists(join(directory, last)),
      () => made.mkdir(join(directory, 'tree/a/b'), true), () => made.rcopy(join(directory, 'tree/a'), join(directory, 'tree/b')), () => made.get(join(directory, 'none')),
    ]) saw.push(await call().then(short, (error) => [error.code, error.message.replaceAll(directory, '')]));
    saw.push(await made.end());
    return saw.sort((a, b) => (JSON.stringify(a) ?? '').localeCompare(JSON.stringify(b) ?? ''));
  },
  'tunnel-ssh': async ({ createTunnel }, ssh, { port }) => {
    const [server, client] = await createTunnel({ autoClose: true }, {}, ssh, { dstAddr: '127.0.0.1', dstPort: port });
    const saw = [await readPort(server.address().port), await readPort(server.address().port)];
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
    saw.push(await readPort(tunnel.localPort));
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

/** Makes files and directories in a new one: an empty one, a hidden one, and some that programs leave out. */
function tree(directory) {
  for (const inner of ['inner/deeper', 'empty', 'skipped']) mkdirSync(join(directory, inner), { recursive: true });
  for (const [name, size] of [['a', 0], ['.hidden', 10], ['inner/b c', 100_000], ['inner/deeper/d', 3], ['skipped/e', 5], ['inner/skipped-f', 5]]) {
    writeFileSync(join(directory, name), 'x'.repeat(size));
  }
}

/** The names in a directory, and in those within, with the sizes of the files. */
function files(directory) {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .map((entry) => `${join(entry.parentPath ?? entry.path, entry.name).slice(directory.length)} ${entry.isFile() ? readFileSync(join(entry.parentPath ?? entry.path, entry.name)).length : 'directory'}`).sort();
}

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
      saw.push(await program(loadOn(name, around.ssh2), { ...config(host), privateKey: readFileSync(host.key, 'utf8') }, around));
      assert.ok(clients > 0, 'the package has another ssh2');
    }
    assert.deepEqual(saw[1], saw[0]);
    assert.ok(saw[0].length > 0);
  });
}
