// What a server may not do to a program: be taken for another, write on its terminal, have it believe that a command did
// not run.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { Client, connect } from '../lib/index.mjs';
import { sessions, ssh2Server, utils } from './ssh2-server.mjs';
import { all, also, ask, config, ending, fresh, servers, testbed } from './testbed.mjs';

// Host keys.

test('connect() refuses a host that it does not know, a Client takes it as ssh2 does, and neither takes a changed one', async (t) => {
  const [host, other] = await servers(t, '--servers', '2');
  const changed = `${other.known_hosts}-changed`;
  writeFileSync(changed, `[${host.address}]:${host.port} ${other.host_keys[0]}\n`);
  const outcome = async (how, knownHosts) => {
    const where = config(host, { knownHosts });
    if (how === connect) {
      return connect(where).then((connection) => {
        also(connection.client);
        return 'ready';
      }, (error) => error.code);
    }
    const ssh = fresh();
    const closed = ending(ssh);
    ssh.connect(where);
    const word = await Promise.race([once(ssh, 'ready').then(() => 'ready'), once(ssh, 'error').then(([error]) => error.code)])
      .catch((error) => error.code);
    if (word !== 'ready') await closed;
    return word;
  };
  // The files of whoever runs the tests do not name a port that was made for them.
  for (const [knownHosts, byConnect, byClient] of [
    [undefined, 'ERR_HOST_KEY', 'ready'],
    // Who names files wants them to be asked.
    ['/nonexistent', 'ERR_HOST_KEY', 'ERR_HOST_KEY'],
    [changed, 'ERR_HOST_KEY', 'ERR_HOST_KEY'],
    [host.known_hosts, 'ready', 'ready'],
    [false, 'ready', 'ready'],
  ]) {
    assert.equal(await outcome(connect, knownHosts), byConnect, `connect, ${knownHosts}`);
    assert.equal(await outcome(Client, knownHosts), byClient, `Client, ${knownHosts}`);
  }
});

test('a host that is known by keys of other types only is one that has changed', async (t) => {
  const [host] = await servers(t);
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-home-'));
  const before = process.env.HOME;
  t.after(() => {
    process.env.HOME = before;
    rmSync(directory, { recursive: true });
  });
  mkdirSync(join(directory, '.ssh'));
  // The user's own file, and a server that shows another key than the one that it holds.
  process.env.HOME = directory;
  writeFileSync(join(directory, '.ssh', 'known_hosts'), `[${host.address}]:${host.port} ${utils.generateKeyPairSync('ecdsa', { bits: 256 }).public}\n`);
  const ssh = fresh();
  const closed = ending(ssh);
  ssh.connect(config(host, { knownHosts: undefined }));
  const [error] = await once(ssh, 'error');
  assert.equal(error.code, 'ERR_HOST_KEY');
  assert.match(error.message, /HAS CHANGED/);
  await closed;
});

// Server text.

/** Whether a terminal would act on something in it: a control character, or one that turns a line around. */
function steers(text) {
  return /[^\P{C}\n\t]/u.test(text);
}

/** Every string in something that a program is told. */
function strings(told) {
  if (typeof told === 'string') return [told];
  if (told instanceof Error) return [told.stack, ...strings({ ...told })];
  if (typeof told !== 'object' || told === null || Buffer.isBuffer(told)) return [];
  return Object.values(told).flatMap(strings);
}

test('nothing that a server says reaches a program with what a terminal would act on', async (t) => {
  const { hosts, aliases } = await testbed(t, '--steering');
  assert.ok(hosts.length >= 16);
  for (const [at, server] of hosts.entries()) {
    const place = aliases[at];
    const heard = [];
    const hear = (...told) => told.forEach((each) => heard.push(...strings(each)));
    for (const session of place.startsWith('Sftp') ? ['sftp'] : ['exec', 'sftp']) {
      const ssh = fresh();
      const closed = ending(ssh);
      for (const event of ['error', 'banner', 'greeting', 'handshake', 'close']) ssh.on(event, hear);
      ssh.on('keyboard-interactive', (name, instructions, language, prompts, finish) => {
        hear(name, instructions, prompts.map(({ prompt }) => prompt));
        finish(['x']);
      });
      ssh.on('ready', () => {
        const opened = (error, opened) => {
          if (error) {
            hear(error);
            return ssh.end();
          }
          opened.on('error', hear).on('exit', hear).on('close', (...exit) => {
            hear(...exit, opened.failure ?? '');
            ssh.end();
          });
          if (session === 'exec') opened.resume();
          else opened.stat('x', (error) => {
            hear(error);
            ssh.end();
          });
        };
        if (session === 'exec') ssh.exec('true', opened);
        else ssh.sftp(opened);
      });
      ssh.connect({
        host: server.address,
        port: server.port,
        username: 'user',
        privateKey: readFileSync(server.key),
        knownHosts: server.known_hosts,
        tryKeyboard: true,
        debug: hear,
      });
      await closed;
    }
    for (const text of heard) assert.ok(!steers(text), `${place}: ${JSON.stringify(text)}`);
    // These are looked at and not always shown.
    if (['Service', 'SftpText', 'SftpStderr'].includes(place)) continue;
    assert.ok(heard.some((text) => text.includes('steered')), `${place}: nobody hears it: ${heard.join('\n')}`);
  }
});

test('the words of a refused channel are made printable', async (t) => {
  const where = await ssh2Server(t, (connection) => {
    const { channelOpenFail } = connection._protocol;
    connection._protocol.channelOpenFail = function (channel, reason) {
      channelOpenFail.call(this, channel, reason, '\u001b]0;owned\u0007\u202esteered');
    };
    connection.on('authentication', (context) => context.accept());
    connection.on('session', (accept, reject) => reject());
    connection.on('tcpip', (accept, reject) => reject());
  });
  const ssh = fresh();
  ssh.connect(where);
  await once(ssh, 'ready');
  for (const opening of [['exec', 'true'], ['shell'], ['subsys', 'x'], ['sftp'], ['forwardOut', 'a', 1, 'b', 2]]) {
    const error = await ask(ssh, ...opening).catch((error) => error);
    assert.match(error.message, /owned.*steered/, opening[0]);
    for (const text of strings(error)) assert.ok(!steers(text), `${opening[0]}: ${JSON.stringify(text)}`);
  }
});

test('a failed command\'s words are printable in the error, and as they came in its result', async (t) => {
  const [host] = await servers(t);
  const connection = await connect(config(host));
  also(connection.client);
  const failed = await connection.run("printf '\\033[2Jno' >&2; exit 1", { check: true }).catch((error) => error);
  assert.ok(!steers(failed.message) && failed.message.endsWith('no'), failed.message);
  assert.equal(failed.result.stderr, '\u001b[2Jno');
});

// Failure by stage: who is to blame, may the command have run, may it pass.

/** The values of an error. */
const said = ({ kind, execution, mayPass }) => ({ kind, execution, mayPass });

/** The failure of a command that cannot succeed. */
async function failure(where) {
  const attempt = connect(where).then(async (connection) => {
    also(connection.client);
    return await all(connection.stream('true'));
  });
  return attempt.then(() => assert.fail('it did not fail'), (error) => error);
}

const NOT_STARTED = { execution: 'did not start' };
const MAY_HAVE = { execution: 'may have started' };

test('every failure says whether the command may have run, and whether another attempt is worth while', async (t) => {
  const silent = createServer((socket) => socket.on('error', () => {})).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  const closing = createServer((socket) => socket.on('error', () => {}).end()).listen(0, '127.0.0.1');
  await once(closing, 'listening');
  t.after(() => [silent, closing].forEach((server) => server.close()));
  const local = { host: '127.0.0.1', username: 'user', password: 'x', knownHosts: false };
  const [sshd, stranger] = await servers(t, '--servers', '2');
  const changed = `${sshd.known_hosts}-changed`;
  writeFileSync(changed, `[${sshd.address}]:${sshd.port} ${stranger.host_keys[0]}\n`);
  const denying = await ssh2Server(t, (connection) => {
    connection.on('authentication', (context) => context.reject(['password']));
  });
  const hangingUp = await ssh2Server(t, (connection) => {
    connection.on('authentication', (context) => (context.method === 'none' ? context.reject(['password']) : connection._sock.destroy()));
  });
  const noSession = await ssh2Server(t, sessions((accept, reject) => reject()));
  const noExec = await ssh2Server(t, sessions((accept) => accept().on('exec', (accept, reject) => reject())));
  const lostBeforeAnswer = await ssh2Server(t, sessions((accept, reject, connection) => {
    accept().on('exec', () => connection._sock.destroy());
  }));
  const lostInCommand = await ssh2Server(t, sessions((accept, reject, connection) => {
    accept().on('exec', (accept) => {
      accept().write('x');
      connection._sock.end();
    });
  }));
  const table = [
    ['an unknown name', { ...local, host: 'nobody.invalid' }, { kind: 'network', ...NOT_STARTED, mayPass: true }],
    ['a port that refuses', { ...local, port: 1 }, { kind: 'network', ...NOT_STARTED, mayPass: true }],
    ['no answer', { ...local, port: silent.address().port, readyTimeout: 200 }, { kind: 'timeout', ...NOT_STARTED, mayPass: true }],
    ['closed at once', { ...local, port: closing.address().port }, { kind: 'network', ...NOT_STARTED, mayPass: true }],
    ['a changed host key', config(sshd, { knownHosts: changed }), { kind: 'host_key', ...NOT_STARTED, mayPass: false }],
    ['a key refused by the program', config(sshd, { hostVerifier: () => false }), { kind: 'host_key', ...NOT_STARTED, mayPass: false }],
    ['a refused log-in', denying, { kind: 'authentication', ...NOT_STARTED, mayPass: false }],
    ['closed in the log-in', hangingUp, { kind: 'network', ...NOT_STARTED, mayPass: true }],
    ['a refused session', noSession, { kind: 'limit', ...NOT_STARTED, mayPass: true }],
    ['a refused command', noExec, { kind: 'limit', ...NOT_STARTED, mayPass: true }],
    ['lost before the answer', lostBeforeAnswer, { kind: 'network', ...MAY_HAVE, mayPass: true }],
    ['lost in the command', lostInCommand, { kind: 'network', ...MAY_HAVE, mayPass: true }],
  ];
  for (const [what, where, expected] of table) {
    const error = await failure(where);
    assert.deepEqual(said(error), expected, `${what}: ${error.message}`);
  }
});

test('a command that ran, and an operation on a file that was answered, are finished', async (t) => {
  const [host] = await servers(t);
  const connection = await connect(config(host));
  also(connection.client);
  const ran = await connection.run('exit 3', { check: true }).catch((error) => error);
  assert.deepEqual([ran.execution, ran.mayPass], ['finished', false]);
  const sftp = await connection.sftp();
  const missing = await ask(sftp, 'stat', `${host.key}-that-is-not-there`).catch((error) => error);
  assert.deepEqual(said(missing), { kind: 'file', execution: 'finished', mayPass: false });
});
