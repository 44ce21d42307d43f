import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { createHash, generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, connect as netConnect } from 'node:net';
import { test } from 'node:test';

import { Client } from '../lib/index.mjs';
import { hostKey, sessions, ssh2Server } from './ssh2-server.mjs';
import { all, ask, client, config, ending, fresh, servers } from './testbed.mjs';

test('a command runs and says how it ended', async (t) => {
  const { client: ssh } = await client(t);
  // At once: the exit may be told in the same turn.
  const told = await new Promise((resolve, failed) => {
    ssh.exec('echo out; echo err >&2; exit 3', (error, stream) => {
      if (error) return failed(error);
      resolve(Promise.all([all(stream), all(stream.stderr), once(stream, 'exit'), once(stream, 'close')]));
    });
  });
  assert.deepEqual(told, [Buffer.from('out\n'), Buffer.from('err\n'), [3], [3]]);
});

test('what is called before ready is done behind it', async (t) => {
  const [host] = await servers(t);
  const ssh = fresh();
  const order = [];
  ssh.on('ready', () => order.push('ready')).connect(config(host));
  const asked = (name, ...given) => ask(ssh, name, ...given).then((result) => {
    order.push(name);
    return result;
  });
  const [stream, sftp, port] = await Promise.all([asked('exec', 'echo early'), asked('sftp'), asked('forwardIn', '127.0.0.1', 0)]);
  assert.equal((await all(stream)).toString(), 'early\n');
  assert.equal((await ask(sftp, 'stat', '/')).isDirectory(), true);
  assert.ok(port > 0);
  assert.equal(order[0], 'ready');
  assert.equal(order.length, 4);
});

test('what is called before a log-in that fails gets an error', async (t) => {
  const [host] = await servers(t);
  const ssh = fresh();
  const failed = once(ssh, 'error');
  const called = [];
  ssh.connect({ ...config(host), username: 'nobody-of-this-name' });
  for (const call of [['exec', 'true'], ['shell'], ['sftp'], ['forwardOut', 'a', 1, '127.0.0.1', 1], ['forwardIn', '127.0.0.1', 0]]) {
    ask(ssh, ...call).then(
      () => assert.fail(`${call[0]} was done`),
      (error) => assert.match(error.message, /No response from server|Not connected/),
    ).finally(() => called.push(call[0]));
  }
  await failed;
  await ending(ssh);
  assert.deepEqual(called.sort(), ['exec', 'forwardIn', 'forwardOut', 'sftp', 'shell']);
  assert.throws(() => ssh.exec('true', () => {}), /Not connected/);
});

test('a signal that ends a command is told by name', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'kill -TERM $$');
  const close = once(stream, 'close');
  stream.resume();
  const [code, signal, dumped] = await close;
  assert.deepEqual([code, signal, dumped], [null, 'SIGTERM', false]);
});

test('a command has the environment that the server accepts', async (t) => {
  const { client: ssh } = await client(t, {}, '--config', 'AcceptEnv TRUNKLINE_*');
  const stream = await ask(ssh, 'exec', 'echo $TRUNKLINE_TEST', { env: { TRUNKLINE_TEST: 'seen' } });
  assert.equal((await all(stream)).toString(), 'seen\n');
});

test('a command on a terminal sees its size, and the new one', async (t) => {
  const { client: ssh } = await client(t);
  const pty = { rows: 33, cols: 101, term: 'xterm', modes: { ECHO: 0 } };
  const stream = await ask(ssh, 'exec', 'stty size; echo $TERM; stty -a | grep -o -- "-echo "; read x; stty size', { pty });
  let seen = '';
  stream.on('data', (chunk) => {
    seen += chunk;
    if (seen.includes('-echo')) {
      stream.setWindow(44, 155);
      stream.write('\n');
    }
  });
  await once(stream, 'close');
  assert.match(seen, /33 101\r\nxterm\r\n-echo \r\n(\r\n)?44 155\r\n/);
});

test('a shell reads what is written', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'shell', false);
  stream.end('echo $((6 * 7))\nexit 5\n');
  const close = once(stream, 'close');
  assert.match((await all(stream)).toString(), /42/);
  assert.deepEqual(await close, [5]);
});

test('a subsystem that the server has not is refused', async (t) => {
  const { client: ssh } = await client(t);
  const error = await ask(ssh, 'subsys', 'nonsense').catch((error) => error);
  assert.equal(error.level, 'client-ssh');
  assert.equal(error.code, 'ERR_REFUSED');
  assert.equal(error.execution, 'did not start');
});

test('a password leads in', async (t) => {
  const [host] = await servers(t, '--password', 'open sesame');
  const ssh = fresh();
  ssh.connect(config(host, { privateKey: undefined, password: 'open sesame' }));
  await once(ssh, 'ready');
});

test('a wrong password and a wrong key are authentication errors', async (t) => {
  const [host, other] = await servers(t, '--servers', '2', '--password', 'open sesame');
  for (const wrong of [
    { privateKey: undefined, password: 'no' },
    { privateKey: readFileSync(other.key) },
    { privateKey: undefined },
  ]) {
    const ssh = fresh();
    const closed = ending(ssh);
    ssh.connect(config(host, wrong));
    const [error] = await once(ssh, 'error');
    assert.equal(error.level, 'client-authentication');
    assert.equal(error.code, 'ERR_AUTHENTICATION');
    await closed;
  }
});

test('questions of the server are answered by the program', async (t) => {
  const [host] = await servers(t, '--password', 'open sesame', '--config', 'PasswordAuthentication no');
  const ssh = fresh();
  let asked;
  ssh.on('keyboard-interactive', (name, instructions, language, prompts, finish) => {
    asked = prompts;
    finish(['open sesame']);
  });
  ssh.connect(config(host, { privateKey: undefined, tryKeyboard: true }));
  await once(ssh, 'ready');
  assert.equal(asked.length, 1);
  assert.match(asked[0].prompt, /password/i);
  assert.equal(asked[0].echo, false);
});

test('an encrypted key is opened by its passphrase, and not without', async (t) => {
  const [host] = await servers(t);
  const { execFileSync } = await import('node:child_process');
  const { mkdtempSync, copyFileSync, rmSync } = await import('node:fs');
  const { tmpdir } = await import('node:os');
  const { join } = await import('node:path');
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-key-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const key = join(directory, 'key');
  copyFileSync(host.key, key);
  execFileSync('ssh-keygen', ['-q', '-p', '-P', '', '-N', 'secret', '-f', key]);
  const privateKey = readFileSync(key);
  const ssh = fresh();
  assert.throws(() => ssh.connect(config(host, { privateKey })), /passphrase/);
  ssh.connect(config(host, { privateKey, passphrase: 'secret' }));
  await once(ssh, 'ready');
});

test('RSA host keys that are asked for by their old name come with SHA-2 signatures', async (t) => {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const hostKeys = [hostKey.private, privateKey.export({ type: 'pkcs1', format: 'pem' })];
  const where = await ssh2Server(t, sessions(() => {}), { hostKeys });
  for (const serverHostKey of [['ssh-rsa'], ['ssh-dss', 'ssh-rsa', 'ssh-ed25519'], ['rsa-sha2-512', 'ssh-rsa']]) {
    const ssh = fresh();
    ssh.connect({ ...where, hostVerifier: () => true, algorithms: { serverHostKey } });
    const [agreed] = await once(ssh, 'handshake');
    assert.equal(agreed.serverHostKey, 'rsa-sha2-512', serverHostKey.join());
    await once(ssh, 'ready');
    ssh.end();
    await once(ssh, 'close');
  }
});

test('nonsense is not a key, and says so at once', async () => {
  assert.throws(() => new Client().connect({ username: 'me', privateKey: 'nonsense' }), /Cannot parse privateKey/);
  assert.throws(() => new Client().connect({}), /Invalid username/);
  assert.throws(() => new Client().connect({ username: 'me', port: 70000 }), { name: 'RangeError', code: 'ERR_SOCKET_BAD_PORT' });
  assert.throws(
    () => new Client().connect({ username: 'me', algorithms: { cipher: ['rot13'] } }),
    /Unsupported algorithm: rot13/,
  );
});

test('the program may judge the host key, by its result, its callback or a promise', async (t) => {
  const [host] = await servers(t);
  const blob = Buffer.from(host.host_keys[0].split(' ')[1], 'base64');
  const verifiers = [
    [(key) => key.equals(blob), undefined],
    [(key, verify) => void setImmediate(() => verify(key.equals(blob))), undefined],
    [async (key) => key.equals(blob), undefined],
    [(hash) => hash === createHash('sha256').update(blob).digest('hex'), 'sha256'],
  ];
  for (const [hostVerifier, hostHash] of verifiers) {
    const ssh = fresh();
    ssh.connect(config(host, { hostVerifier, hostHash }));
    await once(ssh, 'ready');
    ssh.end();
    await once(ssh, 'close');
  }
});

test('a refused and a changed host key end the handshake', async (t) => {
  const [host, other] = await servers(t, '--servers', '2');
  const { writeFileSync } = await import('node:fs');
  const changed = `${other.known_hosts}-changed`;
  writeFileSync(changed, `[${host.address}]:${host.port} ${other.host_keys[0]}\n`);
  for (const [more, words] of [
    [{ hostVerifier: () => false }, /Host denied \(verification failed\)/],
    [{ knownHosts: changed }, /HAS CHANGED/],
  ]) {
    const ssh = fresh();
    const closed = ending(ssh);
    ssh.connect(config(host, more));
    const [error] = await once(ssh, 'error');
    assert.equal(error.level, 'handshake');
    assert.equal(error.code, 'ERR_HOST_KEY');
    assert.match(error.message, words);
    await closed;
  }
});

test('an unknown host passes as for ssh2, and any does if asked for', async (t) => {
  const [host] = await servers(t);
  for (const knownHosts of [undefined, false]) {
    const ssh = fresh();
    ssh.connect(config(host, { knownHosts }));
    await once(ssh, 'ready');
    ssh.end();
    await once(ssh, 'close');
  }
});

test('algorithms are chosen as for ssh2', async (t) => {
  const [host] = await servers(t);
  const ssh = fresh();
  ssh.connect(
    config(host, {
      algorithms: { cipher: ['aes256-ctr'], kex: { remove: [/^mlkem/, /^sntrup/] }, compress: ['zlib@openssh.com'] },
    }),
  );
  const [negotiated] = await once(ssh, 'handshake');
  assert.equal(negotiated.cipher, 'aes256-ctr');
  assert.equal(negotiated.kex, 'curve25519-sha256');
  assert.equal(negotiated.compressed, true);
});

test('a banner is told', async (t) => {
  const { writeFileSync, mkdtempSync, rmSync } = await import('node:fs');
  const { tmpdir } = await import('node:os');
  const { join } = await import('node:path');
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-banner-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const file = join(directory, 'banner');
  writeFileSync(file, 'Authorised use only\n');
  const [host] = await servers(t, '--config', `Banner ${file}`);
  const ssh = fresh();
  ssh.connect(config(host));
  const [text] = await once(ssh, 'banner');
  assert.match(text, /Authorised use only/);
});

test('a stream of the program can carry the connection', async (t) => {
  const [host] = await servers(t);
  const sock = netConnect(host.port, host.address);
  const ssh = fresh();
  ssh.connect(config(host, { sock }));
  await once(ssh, 'ready');
  const stream = await ask(ssh, 'exec', 'head -c 3000000 /dev/zero | tr "\\0" x');
  assert.equal((await all(stream)).length, 3_000_000);
  ssh.end();
  await Promise.all([once(ssh, 'close'), once(sock, 'close')]);
});

test('a connection goes through another', async (t) => {
  const [jump, host] = await servers(t, '--servers', '2');
  const first = fresh();
  first.connect(config(jump));
  await once(first, 'ready');
  const sock = await ask(first, 'forwardOut', '127.0.0.1', 0, host.address, host.port);
  const second = fresh();
  second.connect(config(host, { sock }));
  await once(second, 'ready');
  assert.equal((await all(await ask(second, 'exec', 'echo through'))).toString(), 'through\n');
});

test('connecting again ends the first connection', async (t) => {
  const { client: ssh, host } = await client(t);
  ssh.connect(config(host));
  await once(ssh, 'close');
  await once(ssh, 'ready');
  assert.equal((await all(await ask(ssh, 'exec', 'echo again'))).toString(), 'again\n');
});

test('nobody who listens, a name that does not exist, and a server that says nothing are told apart', async (t) => {
  const silent = createServer().listen(0, '127.0.0.1');
  await once(silent, 'listening');
  t.after(() => silent.close());
  const unused = createServer().listen(0, '127.0.0.1');
  await once(unused, 'listening');
  const { port } = unused.address();
  await new Promise((resolve) => unused.close(resolve));
  for (const [more, level, code] of [
    [{ host: '127.0.0.1', port }, 'client-socket', 'ECONNREFUSED'],
    [{ host: 'no-such-host.invalid' }, 'client-socket', 'ENOTFOUND'],
    [{ host: '127.0.0.1', port: silent.address().port, readyTimeout: 200 }, 'client-timeout', 'ETIMEDOUT'],
  ]) {
    const ssh = fresh();
    const closed = ending(ssh);
    ssh.connect({ username: 'me', ...more });
    const [error] = await once(ssh, 'error');
    assert.deepEqual([error.level, error.code], [level, code]);
    await closed;
    assert.throws(() => ssh.exec('true', () => {}), /Not connected/);
  }
});

test('new keys can be exchanged while data flows', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'head -c 20000000 /dev/zero');
  let rekeyed = false;
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.length;
    if (!rekeyed) {
      rekeyed = true;
      await new Promise((resolve) => ssh.rekey(resolve));
    }
  }
  assert.equal(bytes, 20_000_000);
});

test('the connections of a client can be looked at', async (t) => {
  const { client: ssh } = await client(t);
  const stream = await ask(ssh, 'exec', 'cat');
  const [lane] = ssh.lanes();
  assert.match(lane.server, /^SSH-2.0-OpenSSH/);
  assert.equal(lane.sessions, 1);
  assert.ok(lane.bytesReceived > 0);
  stream.close();
});

test('callbacks have the asynchronous context of their call, and handlers that of connect()', async (t) => {
  const [host] = await servers(t);
  const storage = new AsyncLocalStorage();
  const made = fresh();
  const seen = [];
  const see = (name) => seen.push([name, storage.getStore()]);
  made.on('ready', () => see('ready')).on('tcp connection', (_, accept) => {
    see('tcp connection');
    accept().end();
  }).on('close', () => see('close'));
  storage.run('connect', () => made.connect(config(host)));
  await once(made, 'ready');
  const within = (name, begin) => new Promise((resolve) => storage.run(name, () => begin((error, value) => {
    see(name);
    resolve(error ?? value);
  })));
  const stream = await within('exec', (done) => made.exec('echo out; echo err >&2', done));
  const ended = ending(stream);
  stream.on('data', () => see('data')).stderr.on('data', () => see('error data'));
  await ended;
  const sftp = await within('sftp', (done) => made.sftp(done));
  await within('stat', (done) => sftp.stat('/', done));
  const port = await within('forwardIn', (done) => made.forwardIn('127.0.0.1', 0, done));
  const tunnel = await within('forwardOut', (done) => made.forwardOut('127.0.0.1', 1, '127.0.0.1', port, done));
  const over = ending(tunnel);
  tunnel.resume().end();
  await over;
  const left = ending(made);
  storage.run('end', () => made.end());
  await left;
  assert.deepEqual(seen.sort(), [
    ['ready', 'connect'], ['exec', 'exec'], ['data', 'exec'], ['error data', 'exec'], ['sftp', 'sftp'], ['stat', 'stat'],
    ['forwardIn', 'forwardIn'], ['forwardOut', 'forwardOut'], ['tcp connection', 'connect'], ['close', 'connect'],
  ].sort());
});
