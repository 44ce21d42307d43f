// Destinations of ssh_config: over an engine in this process, and over the daemon's connections. Every test runs both ways.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createConnection, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { fileURLToPath } from 'node:url';

import { Client, connect } from '../lib/index.mjs';
import { all, also, ask, daemonPlace, ending, testbed, trunklineProgram } from './testbed.mjs';

/** A connection to an alias of real servers' ssh_config. */
async function connectAlias(t, daemon, more = {}, ...args) {
  if (daemon) daemonPlace(t);
  const bed = await testbed(t, ...args);
  const connection = await connect('box1', { config: bed.ssh_config, daemon, ...more });
  also(connection.client);
  return { bed, connection };
}

/** The output of `trunkline ls` about the daemon's connections. */
function list() {
  return JSON.parse(execFileSync(trunklineProgram, ['ls', '--json'], { encoding: 'utf8' }));
}

test('programs that would each log in with options of their own share the log-in of this one, and it theirs', async (t) => {
  daemonPlace(t);
  const bed = await testbed(t, '--servers', '2');
  const run = (...options) =>
    execFileSync(trunklineProgram, ['run', '-F', bed.ssh_config, ...options, '-H', 'box1,box2', '--', 'true']);
  // As core Ansible's ssh plugin does, and with a looser check of the host key.
  const forbidding = ['-o', 'PasswordAuthentication=no', '-o', 'PreferredAuthentications=publickey'];
  const loose = ['-o', 'StrictHostKeyChecking=accept-new'];
  const connected = async (name) => {
    const connection = await connect(name, { config: bed.ssh_config, daemon: true });
    also(connection.client);
    const { stdout } = await connection.run('echo in');
    assert.equal(stdout, 'in\n');
  };
  await connected('box1');
  run(...forbidding);
  run(...loose);
  await connected('box2');
  const logs = bed.hosts.map((host) => readFileSync(host.log, 'utf8'));
  const accepted = logs.map((log) => log.match(/^Accepted .* from /gm)?.length);
  assert.deepEqual(accepted, [1, 1]);
});

for (const daemon of [false, true]) {
  const way = daemon ? 'the daemon' : 'this process';

  test(`an alias leads where ssh would go: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const result = await connection.run('cat; echo err >&2; exit 2', { input: 'hello' });
    assert.deepEqual(result, { code: 2, signal: undefined, stdout: 'hello', stderr: 'err\n' });
    const killed = await connection.run('kill -TERM $$');
    assert.deepEqual([killed.code, killed.signal], [null, 'SIGTERM']);
    const stats = await connection.stats();
    assert.equal(stats.daemon, daemon);
    assert.match(stats.lanes[0].server, /OpenSSH/);
    assert.equal(connection.lanes().length, daemon ? 0 : stats.lanes.length);
  });

  test(`a million lines arrive whole: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const { stdout } = await connection.run('seq 1 1000000', { encoding: 'buffer' });
    assert.equal(stdout.length, 6_888_896);
    assert.ok(stdout.toString().endsWith('\n999999\n1000000\n'));
  });

  test(`terminals pass, and variables that the server does not take are not an error: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const { stdout } = await connection.run('stty size', { pty: { rows: 33, cols: 101 } });
    assert.equal(stdout.trim(), '33 101');
    // sshd's own configuration takes LC_ variables only where AcceptEnv names them.
    const bare = await connection.run('cat; echo $0', { input: 'in', env: { LC_TEST: 'x' } });
    assert.match(bare.stdout, /^in/);
  });

  test(`tunnels lead to ports and sockets of the server: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const dir = mkdtempSync(join(tmpdir(), 'tl-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    const path = join(dir, 'echo');
    const echo = (socket) => socket.pipe(socket);
    const tcp = createServer(echo).listen(0, '127.0.0.1');
    const unix = createServer(echo).listen(path);
    await Promise.all([once(tcp, 'listening'), once(unix, 'listening')]);
    t.after(() => Promise.all([tcp, unix].map((server) => new Promise((done) => server.close(done)))));
    const { port } = tcp.address();
    for (const tunnel of [await connection.forwardOut('127.0.0.1', port), await connection.forwardOutStreamLocal(path)]) {
      tunnel.end('there and back');
      assert.equal((await all(tunnel)).toString(), 'there and back');
    }
    await assert.rejects(connection.forwardOut('127.0.0.1', 1), { code: 'ERR_REFUSED' });
    for (const target of [['127.0.0.1', port], [path]]) {
      const local = join(dir, `local${target.length}`);
      const forward = await connection.forwardOutLocalSocket(local, ...target);
      const client = createConnection(local);
      client.end('through a socket');
      assert.equal((await all(client)).toString(), 'through a socket');
      await forward.close();
      await assert.rejects(all(createConnection(local)), { code: 'ENOENT' });
    }
  });

  test(`what the server's side has ended can still be written to: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const dir = mkdtempSync(join(tmpdir(), 'tl-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    // Says its part first and hears the other's afterwards.
    const heard = [];
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      socket.end('all that I say');
      heard.push(all(socket));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => server.close());
    const { port } = server.address();
    const answer = Buffer.alloc(3_000_000, 'a');

    const tunnel = await connection.forwardOut('127.0.0.1', port);
    const closed = ending(tunnel);
    assert.equal((await all(tunnel)).toString(), 'all that I say');
    tunnel.end(answer);
    assert.ok((await heard[0]).equals(answer));
    await closed;

    const local = join(dir, 'local');
    await connection.forwardOutLocalSocket(local, '127.0.0.1', port);
    const client = createConnection({ path: local, allowHalfOpen: true });
    const said = [];
    client.on('data', (chunk) => said.push(chunk));
    await once(client, 'end');
    assert.equal(Buffer.concat(said).toString(), 'all that I say');
    client.end(answer);
    assert.ok((await heard[1]).equals(answer));
  });

  test(`one who takes no more of a tunnel leaves nothing behind: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const dir = mkdtempSync(join(tmpdir(), 'tl-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    const chatter = createServer({ allowHalfOpen: true }, (socket) => {
      const say = () => {
        while (socket.writable && socket.write(Buffer.alloc(65536)));
      };
      socket.on('drain', say).on('error', () => {}).resume();
      say();
    });
    chatter.listen(0, '127.0.0.1');
    await once(chatter, 'listening');
    t.after(() => chatter.close());
    const gone = once(chatter, 'connection').then(([socket]) => ending(socket));
    const local = join(dir, 'local');
    await connection.forwardOutLocalSocket(local, '127.0.0.1', chatter.address().port);
    const client = createConnection(local);
    await once(client, 'data');
    client.destroy();
    await gone;
  });

  test(`files are read: over ${way}`, async (t) => {
    const { connection, bed } = await connectAlias(t, daemon);
    const sftp = await connection.sftp();
    const content = await ask(sftp, 'readFile', bed.ssh_config);
    assert.match(content.toString(), /box1/);
    sftp.end();
  });

  test(`a stream that is closed ends its command, and a client that is closed its streams: over ${way}`, async (t) => {
    const { connection, bed } = await connectAlias(t, daemon);
    const first = connection.stream('echo $$; exec sleep 1000');
    first.on('error', () => {});
    const pid = Number((await once(first, 'data'))[0]);
    const second = connection.stream('echo there; exec sleep 1000');
    second.on('error', () => {});
    await once(second, 'data');
    second.resume();
    const closed = ending(second);
    await connection.close();
    await closed;
    assert.equal(second.failure.code, 'ERR_CLOSED');
    assert.equal(second.failure.execution, 'may have started');
    // Another client sees that the commands have gone.
    const again = await connect('box1', { config: bed.ssh_config, daemon });
    also(again.client);
    const gone = `while kill -0 ${pid} 2>/dev/null && ! grep -q "State:.Z" /proc/${pid}/status; do :; done; echo gone`;
    // sshd closes the command's pipes, which sleep does not notice.
    await again.run(`kill ${pid}`);
    assert.equal((await again.run(gone)).stdout, 'gone\n');
  });

  test(`clients of a port of the server are taken and refused, in either direction to its end: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const { client } = connection;
    const port = await ask(client, 'forwardIn', '127.0.0.1', 0);
    const arrived = [];
    client.on('tcp connection', (details, accept, reject) => {
      assert.equal(details.destPort, port);
      arrived.push({ details, accept, reject });
      client.emit('arrived');
    });
    const arrival = async () => {
      if (arrived.length === 0) await once(client, 'arrived');
      return arrived.shift();
    };
    const first = createConnection({ port, host: '127.0.0.1', allowHalfOpen: true });
    await once(first, 'connect');
    const { details, accept } = await arrival();
    assert.equal(details.srcPort, first.localPort);
    const stream = accept();
    const question = Buffer.alloc(3_000_000, 'q');
    first.end(question);
    // The client has said all, and is still there for the answer.
    assert.ok((await all(stream)).equals(question));
    const answer = Buffer.alloc(3_000_000, 'a');
    const closed = ending(stream);
    stream.end(answer);
    assert.ok((await all(first)).equals(answer));
    await closed;

    const refused = createConnection(port, '127.0.0.1');
    (await arrival()).reject();
    assert.equal((await all(refused).catch(() => Buffer.alloc(0))).length, 0);

    // What is carried continues when the listening ends.
    const carried = createConnection(port, '127.0.0.1');
    const echo = (await arrival()).accept();
    echo.pipe(echo);
    await ask(client, 'unforwardIn', '127.0.0.1', port);
    await assert.rejects(once(createConnection(port, '127.0.0.1'), 'connect'), { code: 'ECONNREFUSED' });
    carried.end('still there');
    assert.equal((await all(carried)).toString(), 'still there');
    const taken = createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    t.after(() => taken.close());
    await assert.rejects(ask(client, 'forwardIn', '127.0.0.1', taken.address().port), { code: 'ERR_REFUSED' });
  });

  test(`clients of a socket of the server come in, until the client has gone: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const { client } = connection;
    const dir = mkdtempSync(join(tmpdir(), 'tl-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    const path = join(dir, 'listener');
    await ask(client, 'openssh_forwardInStreamLocal', path);
    client.on('unix connection', (details, accept) => {
      assert.equal(details.socketPath, path);
      const stream = accept();
      stream.pipe(stream);
    });
    const socket = createConnection(path);
    socket.write('through');
    assert.equal((await once(socket, 'data'))[0].toString(), 'through');
    const port = await ask(client, 'forwardIn', '127.0.0.1', 0);
    const waiting = createConnection(port, '127.0.0.1');
    const asked = once(client, 'tcp connection');
    client.once('tcp connection', () => {});
    await asked;
    const ends = [all(socket), all(waiting)].map((end) => end.catch(() => {}));
    await connection.close();
    await Promise.all(ends);
    // The server is told without being waited for.
    for (;;) {
      const attempt = createConnection(port, '127.0.0.1');
      const outcome = await once(attempt, 'connect').catch((error) => error.code);
      attempt.destroy();
      if (outcome === 'ECONNREFUSED') break;
      await once(attempt, 'close');
    }
  });

  test(`keys are exchanged anew when the program says so: over ${way}`, async (t) => {
    const verbose = ['--config', 'Match all', '--config', 'LogLevel DEBUG'];
    const { connection, bed } = await connectAlias(t, daemon, {}, ...verbose);
    const exchanges = () => readFileSync(bed.hosts[0].log, 'utf8').match(/SSH2_MSG_KEXINIT received/g)?.length ?? 0;
    const before = exchanges();
    await new Promise((resolve) => connection.client.rekey(resolve));
    while (exchanges() === before) await setTimeout(20);
    assert.equal((await connection.run('echo there')).stdout, 'there\n');
  });

  test(`what cannot be reached is an error with words: over ${way}`, async (t) => {
    const { bed } = await connectAlias(t, daemon);
    const refused = connect('box1', { config: bed.ssh_config, daemon, options: { Port: 1 } });
    await assert.rejects(refused, { level: 'client-socket', execution: 'did not start' });
    const stranger = connect('box1', { config: bed.ssh_config, daemon, options: { UserKnownHostsFile: '/dev/null' } });
    await assert.rejects(stranger, { code: 'ERR_HOST_KEY' });
    const nonsense = connect('box1', { config: bed.ssh_config, daemon, options: { NoSuchOption: 1 } });
    await assert.rejects(nonsense, { code: 'ERR_CONFIGURATION' });
  });

  test(`a connection that is lost ends its client and streams: over ${way}`, async (t) => {
    const { connection } = await connectAlias(t, daemon);
    const error = await all(connection.stream('echo x; kill -KILL $PPID; sleep 1000')).catch((error) => error);
    assert.equal(error.execution, 'may have started');
    await connection.closed;
    assert.throws(() => connection.stream('true'), /Not connected/);
  });
}

test('workers share the daemon\'s connection', async (t) => {
  const { bed } = await connectAlias(t, true);
  const index = fileURLToPath(new URL('../lib/index.js', import.meta.url));
  const source = `
    const { parentPort, workerData } = require('node:worker_threads');
    const { connect } = require(workerData.index);
    connect('box1', { config: workerData.config, daemon: true }).then(async (connection) => {
      parentPort.postMessage((await connection.run('echo $SSH_CONNECTION')).stdout);
    });`;
  const workers = Array.from(
    { length: 3 },
    () => new Worker(source, { eval: true, workerData: { index, config: bed.ssh_config } }),
  );
  const from = await Promise.all(workers.map(async (worker) => (await once(worker, 'message'))[0]));
  assert.equal(new Set(from).size, 1, from.join(' '));
  const [host] = list();
  assert.equal(host.connections.length, 1);
  await Promise.all(workers.map((worker) => worker.terminate()));
});

test('settings bind a program with an engine of its own', async (t) => {
  const dir = daemonPlace(t);
  const bed = await testbed(t);
  const [host] = bed.hosts;
  const index = fileURLToPath(new URL('../lib/index.js', import.meta.url));
  // In processes of their own, which read the file once.
  const source = `
    const { connect, Client } = require(process.argv[1]);
    (async () => {
      for (const daemon of [false, 'auto']) {
        await connect('box1', { config: process.argv[2], daemon }).catch((error) => console.log(error.message));
      }
      try {
        new Client().connect({ host: process.argv[3], port: 1, username: 'nobody', password: 'none' });
      } catch (error) {
        console.log(error.message);
      }
    })();`;
  const refused = (settings) => {
    writeFileSync(join(dir, 'config.toml'), settings);
    const args = ['-e', source, index, bed.ssh_config, host.address];
    return spawnSync(process.execPath, args, { encoding: 'utf8' }).stdout.trim().split('\n');
  };
  for (const [settings, why] of [
    [`strict_hosts = ["box1", "${host.address}"]\n`, 'only shared connections may be used'],
    ['audit = "loud"\n', 'config.toml line 1: audit is "loud"; it must be "off", "on" or "strict"'],
  ]) {
    const said = refused(settings);
    assert.equal(said.filter((line) => line.includes(why)).length, 3, said.join('\n'));
  }
});

test('of the daemon\'s placement its clients hear', async (t) => {
  const dir = daemonPlace(t);
  writeFileSync(join(dir, 'config.toml'), 'busy_above = 2000000\nbusy_below = 1000000\n');
  const bed = await testbed(t);
  const connection = await connect('box1', { config: bed.ssh_config, daemon: true });
  also(connection.client);
  const bulk = connection.stream('cat /dev/zero');
  bulk.on('error', () => {});
  bulk.resume();
  const [away] = await once(connection.client, 'placement');
  assert.equal(away.apart, true);
  assert.ok(away.lanes.find((lane) => lane.busy).rate > 2_000_000);
  bulk.destroy();
  const [back] = await once(connection.client, 'placement');
  assert.equal(back.apart, false);
});

test('the daemon is used where it runs, and not started unasked', async (t) => {
  daemonPlace(t);
  const bed = await testbed(t);
  const before = await connect('box1', { config: bed.ssh_config });
  also(before.client);
  assert.equal((await before.stats()).daemon, false);
  assert.equal(spawnSync(trunklineProgram, ['ls', '--json'], { encoding: 'utf8' }).stdout.trim(), '[]');
  const starting = await connect('box1', { config: bed.ssh_config, daemon: true });
  also(starting.client);
  const after = await connect('box1', { config: bed.ssh_config });
  also(after.client);
  assert.equal((await after.stats()).daemon, true);
});

test('a destination takes the options that ssh takes', async (t) => {
  const bed = await testbed(t);
  const [host] = bed.hosts;
  const client = also(new Client());
  client.connect({
    destination: `ssh://${host.user}@${host.address}:${host.port}`,
    config: '/dev/null',
    daemon: false,
    options: { IdentityFile: host.key, UserKnownHostsFile: host.known_hosts, SetEnv: 'LC_ALL=C' },
  });
  const [handshake] = await once(client, 'handshake');
  assert.match(handshake.server, /OpenSSH/);
  assert.throws(() => new Client().connect({ destination: 'a b c' }), /destination/);
  assert.throws(() => new Client().connect({ destination: 'a', daemon: 'sometimes' }), /daemon/);
});
