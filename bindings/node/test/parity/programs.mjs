// Programs for ssh2, each run on ssh2 and on trunkline against the same servers. A program says what it saw with `see`.

import { AsyncLocalStorage } from 'node:async_hooks';
import { execFileSync, spawn } from 'node:child_process';
import { createHash, createPublicKey, generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import {
  appendFileSync, createWriteStream, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { createRequire } from 'node:module';
import { connect, createServer, isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { Readable } from 'node:stream';
import { setTimeout } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const HAS_IPV6 = Object.values(networkInterfaces()).flat().some(({ address }) => address === '::1');

/** The fields of an error that programs look at. */
export const shown = (error, ...fields) =>
  error && [error.constructor.name, error.message, ...['level', ...fields].map((field) => `${field} ${error[field]}`)];

/** Connects and waits: 'ready', or the error. */
function connected(ssh2, config, prepare = () => {}) {
  const client = new ssh2.Client();
  prepare(client);
  return new Promise((resolve) => {
    client.once('ready', () => resolve(client)).once('error', (error) => resolve({ client, error })).connect(config);
  });
}

const closed = (emitter) => new Promise((resolve) => emitter.once('close', (...told) => resolve(told)));
const called = (target, method, ...given) => new Promise((resolve) => target[method](...given, (...told) => resolve(told)));

async function command(client, see, name, ...given) {
  await new Promise((resolve) => {
    client[name](...given, (error, stream) => {
      if (error) {
        see(name, shown(error, 'reason'));
        return resolve();
      }
      // At once: what ended meanwhile is told in the same turn.
      const events = [];
      for (const event of ['exit', 'close']) stream.on(event, (...told) => events.push([event, ...told]));
      let out = '';
      let err = '';
      stream.on('data', (chunk) => (out += chunk));
      stream.stderr.on('data', (chunk) => (err += chunk));
      stream.on('close', () => {
        see(name, out, err, events, stream.type, stream.subtype, stream.server);
        resolve();
      });
      stream.end();
    });
  });
}

/** Runs commands on one connection, which have the agent or not as `wanted` says of each, and at last a shell that has it. */
async function agentForward(ssh2, see, config, directory, wanted) {
  const agent = `${directory}/lent`;
  rmSync(agent, { force: true });
  const [, pid] = /SSH_AGENT_PID=(\d+)/.exec(execFileSync('ssh-agent', ['-s', '-a', agent], { encoding: 'utf8' }));
  try {
    execFileSync('ssh-add', ['-q', config.keyFile], { env: { ...process.env, SSH_AUTH_SOCK: agent }, stdio: 'ignore' });
    const made = await connected(ssh2, { ...config, agent });
    for (const lends of wanted) await command(made, see, 'exec', 'ssh-add -l 2>/dev/null | wc -l', { agentForward: lends });
    made.end();
    const another = await connected(ssh2, { ...config, agent });
    const [error, shell] = await called(another, 'shell', false, { agentForward: true });
    let text = '';
    shell.on('data', (chunk) => (text += chunk)).end('echo "<$(ssh-add -l | wc -l)>"\n');
    await closed(shell);
    see(error, text.includes('<1>'));
    another.end();
  } finally {
    process.kill(Number(pid));
  }
}

/** Programs on OpenSSH's server, with a client that is ready. */
export const onOpenssh = {
  'exec: output, exit and close': async ({ client, see }) => command(client, see, 'exec', 'echo out; echo err >&2; exit 3'),
  'what programs read of their objects': async ({ client, see }) => {
    const { host, port, username, forceIPv4, forceIPv6, keepaliveInterval, keepaliveCountMax, readyTimeout, tryKeyboard } = client.config;
    see(host, typeof port, username, forceIPv4, forceIPv6, keepaliveInterval, keepaliveCountMax, readyTimeout, tryKeyboard);
    const [, sftp] = await called(client, 'sftp');
    see(sftp.type, sftp.subtype, sftp.server);
    const [, stream] = await called(client, 'exec', 'cat');
    see(stream.type, stream.subtype, stream.server, stream.stdin === stream, stream.stdout === stream, stream.allowHalfOpen);
    stream.resume().end();
    await closed(stream);
    const [, subsystem] = await called(client, 'subsys', 'sftp');
    see(subsystem.type, subsystem.subtype, subsystem.server);
    subsystem.resume().end();
    await closed(subsystem);
  },
  'exec: a signal': async ({ client, see }) => command(client, see, 'exec', 'kill -TERM $$'),
  'exec: pty': async ({ client, see }) => command(client, see, 'exec', 'stty size; echo $TERM', { pty: { rows: 33, cols: 99, term: 'x' } }),
  'exec: values of pty': async ({ client, see }) => {
    for (const pty of [5, 'vt100', null, {}]) await command(client, see, 'exec', 'tty >/dev/null; echo $?', { pty });
  },
  'exec: modes of a terminal': async ({ client, see }) => {
    // ECHO is 53 (RFC 4254 section 8).
    for (const modes of [{ ECHO: 0 }, Buffer.from([53, 0, 0, 0, 0, 0]), Buffer.alloc(0), { ECHO: 'x', ISIG: 0 }, { ECHO: NaN, NONSENSE: 1 }, { TTY_OP_END: 1 }, null, 'x']) {
      await command(client, see, 'exec', "stty -a | tr ' ' '\\n' | grep -E '^-?(echo|isig)$'", { pty: { modes } });
    }
  },
  'a process with a client that does not keep it alive': async ({ ssh2, see, original, config }) => {
    const module = ssh2.utils === original.utils ? 'ssh2-original' : '../../lib/index.js';
    const at = JSON.stringify(createRequire(import.meta.url).resolve(module));
    const { knownHosts, keyFile, ...more } = config;
    const client = `const client = new (require(${at}).Client)();
      client.on('close', () => console.log('close')).connect({ ...${JSON.stringify({ ...more, knownHosts, privateKey: undefined })}, privateKey: require('fs').readFileSync(${JSON.stringify(keyFile)}) });`;
    for (const then of ['client._sock.unref();', 'client._sock.unref(); client._sock.unref().ref(); setTimeout(() => client.end(), 100);', 'client.end();']) {
      const child = spawn(process.execPath, ['-e', `${client} client.on('ready', () => { console.log('ready'); ${then} });`], { timeout: 20_000 });
      let out = '';
      child.stdout.on('data', (chunk) => (out += chunk));
      see(then, await closed(child), out);
    }
  },
  'sftp: paths of this machine that are not text': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const [from, to] = [join(directory, 'bytes-from'), join(directory, 'bytes-to')];
    writeFileSync(from, 'content');
    for (const path of [Buffer.from(from), pathToFileURL(from)]) {
      rmSync(to, { force: true });
      see(await called(sftp, 'fastPut', path, to), readFileSync(to, 'utf8'));
    }
    for (const path of [Buffer.from(to), pathToFileURL(to)]) {
      rmSync(to, { force: true });
      see(await called(sftp, 'fastGet', from, path), readFileSync(to, 'utf8'));
    }
  },
  'sftp: places outside of the buffer': async ({ client, see, directory }) => {
    const closes = closed(client).then(() => 'closed');
    const [, sftp] = await called(client, 'sftp');
    const [, handle] = await called(sftp, 'open', join(directory, 'places'), 'w+');
    for (const [method, offset, length] of [['read', -1, 5], ['read', 10, 1], ['read', 0, 11], ['write', 0, 11]]) {
      try {
        see(method, await called(sftp, method, handle, Buffer.alloc(10), offset, length, 0));
      } catch (error) {
        see(method, error instanceof Error);
      }
    }
    see(await Promise.race([closes, called(sftp, 'fstat', handle).then(([error]) => error)]));
  },
  'exec: env': async ({ client, see }) => command(client, see, 'exec', 'echo $LC_PARITY', { env: { LC_PARITY: 'seen' } }),
  'sftp: relative paths, and those with ..': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const inner = join(directory, 'outer', 'inner');
    rmSync(join(directory, 'outer'), { recursive: true, force: true });
    mkdirSync(inner, { recursive: true });
    for (const name of ['one', 'two']) writeFileSync(join(inner, name), name);
    symlinkSync('inner', join(directory, 'outer', 'link'));
    const names = ([error, list]) => [shown(error, 'code'), list?.map(({ filename }) => filename).sort()];
    const [, home] = await called(sftp, 'realpath', '.');
    const way = relative(home, inner);
    for (const path of [`${inner}/..`, `${inner}/../inner/.`, `${directory}/outer/link`, `${directory}/outer/link/../inner`, way, `${way}/`, `${inner}/one`, `${inner}/none`, '']) {
      const [error, found] = await called(sftp, 'stat', path);
      see(path === way || path === `${way}/` ? 'relative' : path.replace(directory, ''), path === '' ? [] : names(await called(sftp, 'readdir', path)), error?.message, found?.isDirectory());
    }
    for (const path of [`${inner}/../inner/one`, `${way}/two`]) {
      const [error, real] = await called(sftp, 'realpath', path);
      see(error, real?.replace(directory, ''), (await called(sftp, 'readFile', path)).map(String));
    }
    const [, opened] = await called(sftp, 'opendir', `${inner}/..`);
    const pieces = [];
    for (;;) {
      const [error, list] = await called(sftp, 'readdir', opened);
      if (error) break;
      pieces.push(...list.map(({ filename }) => filename));
    }
    see(pieces.sort());
  },
  'sftp: an empty path': async ({ client, see }) => {
    const [, sftp] = await called(client, 'sftp');
    for (const method of ['readdir', 'opendir', 'stat', 'realpath', 'readFile']) {
      const [error, found] = await called(sftp, method, '');
      see(method, shown(error, 'code'), typeof found);
    }
  },
  'sftp: the client ends as soon as a file is written': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const stream = sftp.createWriteStream(join(directory, 'written')).on('error', (error) => see(error.message));
    for (const event of ['finish', 'close']) stream.on(event, () => client.end());
    stream.end('hello');
    await closed(client);
    see(readFileSync(join(directory, 'written'), 'utf8'));
  },
  'sftp: a stream that is read when the client ends': async ({ client, see }) => {
    const [, sftp] = await called(client, 'sftp');
    const stream = sftp.createReadStream('/dev/zero');
    stream.once('data', () => client.end());
    const [error] = await once(stream, 'error');
    see(error.message);
  },
  'subsys: one that there is not': async ({ client, see }) => command(client, see, 'subsys', 'nonsense'),
  'methods give the client': async ({ client, see, unused }) => {
    const nothing = () => {};
    see(['exec', 'shell', 'subsys', 'sftp'].map((method) => client[method](...(method === 'sftp' || method === 'shell' ? [] : ['true']), nothing) === client));
    see(client.forwardOut('a', 1, '127.0.0.1', unused, nothing) === client, client.setNoDelay() === client);
    see(client.forwardIn('127.0.0.1', 0, nothing) === client, client.unforwardIn('127.0.0.1', 9, nothing) === client);
  },
  'shell without a terminal': async ({ client, see }) => {
    const [error, stream] = await called(client, 'shell', false);
    see(error);
    let out = '';
    stream.on('data', (chunk) => (out += chunk));
    stream.end('echo $((6 * 7)); exit 4\n');
    see(await closed(stream), out.includes('42'), stream.subtype);
  },
  'signal: names': async ({ client, see }) => {
    const [, stream] = await called(client, 'exec', 'sleep 1000');
    for (const name of ['NONSENSE', 'WINCH', 'int']) {
      try {
        see(name, stream.signal(name));
      } catch (error) {
        see(name, shown(error));
      }
    }
    see(stream.signal('SIGTERM'));
    stream.close();
  },
  'end(x), then write(y)': async ({ client, see }) => {
    const [, stream] = await called(client, 'exec', 'cat');
    let out = '';
    stream.on('data', (chunk) => (out += chunk));
    stream.on('error', (error) => see(error.code));
    stream.end('x');
    stream.write('y');
    await closed(stream);
    see(out);
  },
  'what is written behind the end of a command': async ({ client, see }) => {
    // As a terminal in a browser, whose user types on: nobody listens to errors of the stream.
    const uncaught = [];
    const hear = (error) => uncaught.push(error.message);
    process.on('uncaughtException', hear);
    const late = async (stream) => {
      stream.write('x');
      see((await new Promise((resolve) => stream.write('y', (...told) => resolve(told)))).length);
      stream.end();
      await setTimeout(50);
    };
    for (const end of [() => {}, (stream) => stream.close(), (stream) => stream.end()]) {
      const [, stream] = await called(client, 'exec', 'true');
      const ended = closed(stream.resume());
      end(stream);
      await ended;
      await late(stream);
    }
    const [, shell] = await called(client, 'shell');
    client.end();
    await closed(shell.resume());
    await late(shell);
    process.off('uncaughtException', hear);
    see(uncaught);
  },
  'ports that there are not': async ({ client, see }) => {
    const [error] = await called(client, 'forwardOut', '127.0.0.1', 0, '127.0.0.1', 70_000);
    see(error.message, error.reason);
    see((await called(client, 'forwardOut', '127.0.0.1', -1, '127.0.0.1', 1))[0].message);
    see((await called(client, 'forwardIn', '127.0.0.1', -1))[0].message);
  },
  'forwardOut: nobody listens': async ({ client, see, unused }) => {
    const [error] = await called(client, 'forwardOut', '127.0.0.1', 0, '127.0.0.1', unused);
    see(shown(error, 'reason').filter((each) => !String(each).startsWith('level')));
  },
  'forwardIn and unforwardIn': async ({ client, see }) => {
    const [error, port] = await called(client, 'forwardIn', '127.0.0.1', 0);
    see(error, port > 0);
    see(await called(client, 'unforwardIn', '127.0.0.1', port));
    const [none] = await called(client, 'unforwardIn', '127.0.0.1', 9);
    see(shown(none));
  },
  'exceptions in callbacks and handlers': async ({ client, see, ssh2, config, directory, unused }) => {
    client.end();
    const thrower = (what) => () => {
      throw new Error(what);
    };
    const opened = (method, handlers, ...given) => (made) => made[method](...given, (error, stream) => {
      handlers(stream);
      // What comes before a stream flows is told from a turn of Node's own, which is nobody's.
      if (method === 'exec') setImmediate(() => stream.write('\n'));
    });
    for (const begin of [
      (made) => made.exec('true', thrower('exec')),
      (made) => made.subsys('nonsense', thrower('subsys')),
      (made) => made.forwardOut('127.0.0.1', 0, '127.0.0.1', unused, thrower('forwardOut')),
      (made) => made.forwardIn('127.0.0.1', 0, thrower('forwardIn')),
      (made) => made.sftp(thrower('sftp')),
      opened('exec', (stream) => stream.on('data', thrower('data')), 'read x; echo x; sleep 100'),
      opened('exec', (stream) => stream.stderr.on('data', thrower('stderr')), 'read x; echo x >&2; sleep 100'),
      opened('exec', (stream) => stream.on('exit', thrower('exit')).resume(), 'true'),
      opened('sftp', (sftp) => sftp.stat('/', thrower('stat'))),
      opened('sftp', (sftp) => sftp.readdir('/none', thrower('readdir'))),
      (made) => {
        made.on('tcp connection', thrower('tcp connection'));
        made.forwardIn('127.0.0.1', 0, (error, port) => connect(port, '127.0.0.1').on('error', () => {}));
      },
      (made) => {
        made.on('unix connection', thrower('unix connection'));
        rmSync(`${directory}/throwing`, { force: true });
        made.openssh_forwardInStreamLocal(`${directory}/throwing`, () => connect(`${directory}/throwing`).on('error', () => {}));
      },
    ]) {
      const made = await connected(ssh2, config);
      const errors = [];
      made.on('error', (error) => errors.push(error.message));
      const ended = new Promise((resolve) => made.once('end', resolve));
      begin(made);
      await ended;
      see(errors);
    }
  },
  'shell and setWindow': async ({ client, see }) => {
    const [error, stream] = await called(client, 'shell', { rows: 11, cols: 22, term: 'dumb' });
    see(error, stream.subtype, typeof stream.stderr.on);
    let out = '';
    stream.on('data', (chunk) => (out += chunk));
    const shows = async (text) => {
      while (!out.includes(text)) await once(stream, 'data');
    };
    stream.write('echo "<$TERM>" $(stty size)\n');
    await shows('<dumb> 11 22');
    see(stream.setWindow(33, 44, 0, 0));
    stream.end('echo "<$TERM>" $(stty size); exit 6\n');
    see(await closed(stream), out.includes('<dumb> 33 44'));
  },
  'exec: allowHalfOpen': async ({ client, see }) => {
    for (const allowHalfOpen of [true, false]) {
      const [, stream] = await called(client, 'exec', 'cat; sleep 0.5; echo end', { allowHalfOpen });
      see(stream.allowHalfOpen);
      stream.resume().end('x');
      see(await closed(stream));
    }
  },
  'exec: X11': async ({ client, see }) => {
    const [error] = await called(client, 'exec', 'true', { x11: true });
    see(shown(error));
  },
  'exec: agentForward without an agent': async ({ client, see }) => {
    try {
      const [error] = await called(client, 'exec', 'true', { agentForward: true });
      see(shown(error));
    } catch (error) {
      see(shown(error));
    }
  },
  'tcp connection: accept and reject': async ({ client, see }) => {
    const [, port] = await called(client, 'forwardIn', '127.0.0.1', 0);
    const asked = [];
    client.on('tcp connection', (details, accept, reject) => {
      asked.push([Object.keys(details).sort(), details.destIP, details.destPort === port, details.srcIP, details.srcPort > 0]);
      if (asked.length === 2) return void see('reject', reject());
      const stream = accept();
      see(stream.type, stream.server);
      stream.end('hello');
    });
    for (let turn = 0; turn < 2; turn += 1) {
      const socket = connect(port, '127.0.0.1').on('error', () => {});
      let out = '';
      socket.on('data', (chunk) => (out += chunk));
      await closed(socket);
      see(out);
    }
    see(asked);
  },
  'unix connection: accept and reject': async ({ client, see, directory }) => {
    const path = `${directory}/listening`;
    rmSync(path, { force: true });
    see(await called(client, 'openssh_forwardInStreamLocal', path));
    let turns = 0;
    client.on('unix connection', (details, accept, reject) => {
      see(Object.keys(details), details.socketPath === path);
      turns += 1;
      if (turns === 2) return reject();
      const stream = accept();
      see(stream.type);
      stream.end('hello');
    });
    for (let turn = 0; turn < 2; turn += 1) {
      const socket = connect(path).on('error', () => {});
      let out = '';
      socket.on('data', (chunk) => (out += chunk));
      await closed(socket);
      see(out);
    }
    see(await called(client, 'openssh_unforwardInStreamLocal', path));
  },
  'forwardOut and openssh_forwardOutStreamLocal: bytes': async ({ client, see, directory }) => {
    for (const [method, at, ...given] of [
      ['forwardOut', 0, '127.0.0.1', 1, '127.0.0.1'], ['openssh_forwardOutStreamLocal', `${directory}/echo`],
    ]) {
      if (at !== 0) rmSync(at, { force: true });
      const server = createServer((socket) => socket.on('error', () => {}).pipe(socket)).listen(at);
      await once(server, 'listening');
      const [error, stream] = await called(client, method, ...given, at === 0 ? server.address().port : at);
      see(error, stream.type, stream.subtype, stream.allowHalfOpen);
      let out = '';
      stream.on('data', (chunk) => (out += chunk));
      stream.end('through');
      await closed(stream);
      see(out);
      server.close();
    }
    const [error] = await called(client, 'openssh_forwardOutStreamLocal', `${directory}/none`);
    see(error.message, error.reason);
  },
  'sock: a hop': async ({ ssh2, client, see, config }) => {
    const [, hop] = await called(client, 'forwardOut', '127.0.0.1', 0, config.host, config.port);
    const far = await connected(ssh2, { ...config, sock: hop });
    see(far._sock === hop, far.end === undefined);
    await command(far, see, 'exec', 'echo far');
    far.end();
    see(await closed(far));
  },
  '_sock': async ({ client, see, config }) => {
    const { _sock: sock } = client;
    see(sock.remoteAddress, sock.remotePort === config.port, sock.remoteFamily, sock.writable, sock.readable, sock.destroyed, sock.connecting);
    see(['setNoDelay', 'setKeepAlive', 'setTimeout', 'ref', 'unref'].map((method) => sock[method](0) === sock));
    see(sock._readableState.ended, sock._writableState.ended);
    const events = [];
    sock.on('close', () => events.push('socket'));
    client.on('close', () => events.push('client'));
    sock.destroy();
    see(sock.destroyed, sock.writable, sock.readable);
    await closed(client);
    see(events.sort(), sock.destroyed, sock.writable);
  },
  '_sock of a client that ends': async ({ client, see }) => {
    // What simple-ssh looks at before it runs its next command.
    const { _sock: sock } = client;
    client.end();
    see(sock.writable, sock._writableState.ended, sock._readableState.ended, sock.readable, sock.destroyed);
    await closed(client);
    see(sock.writable, sock._writableState.ended, sock._readableState.ended, sock.readable, sock.destroyed);
  },
  'end, then destroy': async ({ client, see }) => {
    for (const event of ['end', 'close']) client.on(event, () => see(event));
    client.end().destroy();
    await closed(client);
  },
  'the close that comes after the end can be waited for': async ({ client, see }) => {
    client.end();
    await once(client, 'end');
    see(await closed(client));
  },
  'connect() of a client that is connected': async ({ client, see, config }) => {
    const events = [];
    for (const event of ['connect', 'ready', 'end', 'close']) client.on(event, () => events.push(event));
    client.connect(config);
    await once(client, 'ready');
    see(events);
    await command(client, see, 'exec', 'echo again');
  },
  'localAddress': async ({ ssh2, see, config }) => {
    const made = await connected(ssh2, { ...config, localAddress: '127.0.0.3' });
    await command(made, see, 'exec', 'echo ${SSH_CLIENT%% *}');
  },
  'algorithms: lists and changes': async ({ ssh2, see, config }) => {
    for (const algorithms of [
      { cipher: ['aes256-ctr'], hmac: ['hmac-sha2-512'], kex: ['ecdh-sha2-nistp256'], serverHostKey: ['ssh-ed25519'], compress: ['none'] },
      { cipher: { remove: [/gcm|chacha/] }, hmac: { remove: ['hmac-sha2-256-etm@openssh.com'] }, kex: { remove: [/^curve|^sntrup|^mlkem/] } },
      { compress: ['zlib@openssh.com'] },
    ]) {
      const agreed = [];
      const made = await connected(ssh2, { ...config, algorithms }, (client) => client.on('handshake', (all) => agreed.push(all)));
      const { kex, cs, sc } = agreed[0];
      if (algorithms.kex) see(kex, cs.cipher, sc.mac);
      see(cs.compress, sc.compress, cs.lang);
      made.end();
    }
  },
  'forwardIn: a place that the client has': async ({ client, see, directory }) => {
    const [, port] = await called(client, 'forwardIn', '127.0.0.1', 0);
    const socket = `${directory}/taken`;
    await called(client, 'openssh_forwardInStreamLocal', socket);
    for (const [method, ...place] of [['forwardIn', '127.0.0.1', port], ['openssh_forwardInStreamLocal', socket]]) {
      const [error] = await called(client, method, ...place);
      see(method, error.message.replace(port, 'PORT').replace(directory, ''));
    }
    await called(client, 'openssh_unforwardInStreamLocal', socket);
    rmSync(socket, { force: true });
  },
  'forwardIn: addresses': async ({ client, see }) => {
    client.on('tcp connection', ({ destIP, srcIP }, accept) => {
      see(destIP, srcIP);
      accept().end('hello');
    });
    for (const address of ['', '0.0.0.0', 'localhost', '127.0.0.1']) {
      const [error, port] = await called(client, 'forwardIn', address, 0);
      see(error);
      // The first that the server listens on, which chose the port: on the other one it may be somebody else's.
      const socket = connect(port, isIPv4(address) || !HAS_IPV6 ? '127.0.0.1' : '::1');
      let text = '';
      socket.on('data', (chunk) => (text += chunk)).on('error', () => {});
      await once(socket, 'close');
      see(text, shown((await called(client, 'unforwardIn', address, port))[0]));
    }
  },
  'algorithms: lists with names that only ssh2 has': async ({ ssh2, see, config }) => {
    for (const algorithms of [
      { cipher: ['3des-cbc', 'aes128-gcm', 'aes256-ctr'], hmac: ['hmac-md5', 'hmac-sha1-96', 'hmac-sha2-512'], compress: ['zlib', 'none'] },
      { kex: ['diffie-hellman-group1-sha1', 'ecdh-sha2-nistp256'], serverHostKey: ['ssh-dss', 'ssh-ed25519'] },
      { cipher: { append: ['aes128-cbc'], prepend: '3des-cbc' } },
    ]) {
      const agreed = [];
      const made = await connected(ssh2, { ...config, algorithms }, (client) => client.on('handshake', (all) => agreed.push(all)));
      const { kex, serverHostKey, cs } = agreed[0];
      if (algorithms.kex) see(kex, serverHostKey);
      else if (Array.isArray(algorithms.cipher)) see(cs);
      see(made.error);
      made.end();
    }
    for (const name of ['nonsense', 7]) {
      try {
        new ssh2.Client().connect({ ...config, algorithms: { cipher: ['aes256-ctr', name] } });
      } catch (error) {
        see(error.message);
      }
    }
  },
  'algorithms: every name of the documentation': async ({ ssh2, see, config }) => {
    for (const [kind, names] of Object.entries({
      cipher: ['chacha20-poly1305@openssh.com', 'aes128-gcm@openssh.com', 'aes256-gcm@openssh.com', 'aes128-ctr', 'aes192-ctr', 'aes256-ctr'],
      hmac: ['hmac-sha2-256-etm@openssh.com', 'hmac-sha2-512-etm@openssh.com', 'hmac-sha2-256', 'hmac-sha2-512'],
      compress: ['none', 'zlib@openssh.com'],
      kex: [
        'curve25519-sha256', 'curve25519-sha256@libssh.org', 'ecdh-sha2-nistp256', 'ecdh-sha2-nistp384', 'ecdh-sha2-nistp521',
        'diffie-hellman-group-exchange-sha256', 'diffie-hellman-group14-sha256', 'diffie-hellman-group16-sha512', 'diffie-hellman-group18-sha512',
      ],
    })) {
      for (const name of names) {
        try {
          const made = await connected(ssh2, { ...config, algorithms: { [kind]: [name] } }, (client) => client.on('error', () => {}));
          see(kind, name, shown(made.error)?.[1]);
          (made.client ?? made).end();
        } catch (error) {
          see(kind, name, 'throws', error.message);
        }
      }
    }
  },
  'pty: modes, and what is typed': async ({ client, see }) => {
    const modes = { ECHO: 0, ICANON: 1, TTY_OP_ISPEED: 9600 };
    await command(client, see, 'exec', 'stty -a | grep -o "speed [0-9]*\\|-\\?echo\\>"; stty size', { pty: { rows: 12, cols: 34, width: 56, height: 78, modes } });
    for (const pty of [false, null, {}, true]) await command(client, see, 'exec', 'tty >/dev/null && stty size; echo $TERM', { pty });
  },
  'algorithms: prepend': async ({ ssh2, see, config }) => {
    const algorithms = { cipher: ['aes128-ctr'], hmac: { prepend: ['hmac-sha2-512'] } };
    await connected(ssh2, { ...config, algorithms }, (client) => client.on('handshake', ({ cs }) => see(cs.mac)));
  },
  'hostkeys': async ({ ssh2, see, config }) => {
    const client = new ssh2.Client().on('error', () => {});
    const told = once(client, 'hostkeys');
    client.connect(config);
    const [keys] = await told;
    see(keys.map((key) => [key.type, key.comment, key.isPrivateKey(), key.getPublicSSH().toString('hex')]));
    // Once for a connection.
    client.on('hostkeys', () => see('again'));
    await command(client, see, 'exec', 'true');
  },
  'destroy': async ({ client, see }) => {
    const events = [];
    for (const event of ['error', 'end', 'close']) client.on(event, () => events.push(event));
    see(client.destroy() === client);
    await closed(client);
    see(events);
  },
  'ports and sizes as text': async ({ ssh2, see, config }) => {
    const made = await connected(ssh2, { ...config, port: String(config.port) });
    const [refused, tunnel] = await called(made, 'forwardOut', '127.0.0.1', '0', '127.0.0.1', String(config.port));
    see(refused, String(await once(tunnel, 'data')).slice(0, 4));
    tunnel.destroy();
    const [, port] = await called(made, 'forwardIn', '127.0.0.1', 0);
    see(await called(made, 'unforwardIn', '127.0.0.1', String(port)));
    const [error] = await called(made, 'forwardIn', '127.0.0.1', String(port));
    see(error);
    see(await called(made, 'unforwardIn', '127.0.0.1', String(port)));
    const [, shell] = await called(made, 'shell', { cols: '70', rows: '20' });
    let out = '';
    shell.on('data', (chunk) => (out += chunk));
    shell.setWindow('33', '44', '0', '0');
    shell.end('stty size; exit\n');
    await closed(shell);
    see(out.includes('33 44'));
    made.end();
  },
  'hosts that are addresses, and an empty one': async ({ ssh2, see, config }) => {
    for (const more of [{ forceIPv6: true }, { forceIPv4: true }, { host: '' }]) {
      const made = await connected(ssh2, { ...config, knownHosts: false, ...more });
      see(more, made.config.host, made.error);
      made.end?.();
    }
  },
  'close and destroy of what is read': async ({ client, see, directory }) => {
    const place = mkdtempSync(`${directory}/own-`);
    const endless = async () => (await called(client, 'exec', 'while echo x; do sleep 0.01; done'))[1];
    const hear = (stream) => {
      const events = [];
      for (const event of ['end', 'close', 'error']) stream.on(event, () => events.push(event));
      return events;
    };
    const piped = await endless();
    const file = createWriteStream(`${place}/piped`);
    piped.pipe(file);
    await once(piped, 'data');
    piped.close();
    await once(file, 'finish');
    const iterated = await endless();
    let chunks = 0;
    for await (const chunk of iterated) {
      chunks += 1;
      if (String(chunk).includes('x')) iterated.close();
    }
    see(chunks > 0);
    for (const end of [(stream) => stream.close(), (stream) => stream.destroy(), (stream) => stream.destroy(new Error('mine'))]) {
      const stream = await endless();
      const events = hear(stream);
      await once(stream, 'data');
      end(stream);
      await closed(stream);
      see(events, stream.readableEnded);
    }
    rmSync(place, { recursive: true });
  },
  'what was written before close and destroy': async ({ client, see, directory }) => {
    const place = mkdtempSync(`${directory}/own-`);
    const server = createServer((socket) => socket.on('error', () => {})).listen(0, '127.0.0.1');
    await once(server, 'listening');
    for (const how of ['close', 'destroy']) {
      for (const size of [5, 200_000]) {
        const file = `${place}/${how}-${size}`;
        const [, command] = await called(client, 'exec', `cat > ${file}.part; mv ${file}.part ${file}`);
        command.write(Buffer.alloc(size));
        command[how]();
        while (!existsSync(file)) await setTimeout(10);
        see(how, statSync(file).size);
        const accepted = once(server, 'connection');
        const [, tunnel] = await called(client, 'forwardOut', '127.0.0.1', 0, '127.0.0.1', server.address().port);
        const [socket] = await accepted;
        let bytes = 0;
        socket.on('data', (chunk) => (bytes += chunk.length));
        tunnel.write(Buffer.alloc(size));
        tunnel[how]();
        await once(socket, 'end');
        see(how, bytes);
      }
    }
    server.close();
    rmSync(place, { recursive: true });
  },
  'forwardIn: an HTTP server behind it': async ({ client, see }) => {
    const server = http.createServer((request, response) => response.end(`page ${request.url}`));
    client.on('tcp connection', (details, accept) => server.emit('connection', accept()));
    const [, port] = await called(client, 'forwardIn', '127.0.0.1', 0);
    for (let page = 0; page < 20; page += 1) {
      see(await (await fetch(`http://127.0.0.1:${port}/${page}`, { headers: { connection: 'close' } })).text());
    }
  },
  'sftp: pieces of a size, and modes of files that are fetched': async ({ client, see, directory }) => {
    const place = mkdtempSync(`${directory}/own-`);
    const [, sftp] = await called(client, 'sftp');
    const file = `${place}/pieces`;
    await called(sftp, 'writeFile', file, 'abcdefgh');
    for (const options of [{ highWaterMark: 3 }, { highWaterMark: 2, start: 1, end: 5 }]) {
      const pieces = [];
      const stream = sftp.createReadStream(file, options);
      stream.on('data', (piece) => pieces.push(String(piece)));
      await once(stream, 'end');
      see(pieces);
    }
    for (const mode of [undefined, 0o600, '0640']) {
      const fetched = `${place}/fetched`;
      await called(sftp, 'fastGet', file, fetched, mode === undefined ? {} : { mode });
      see(mode, (statSync(fetched).mode & 0o777).toString(8));
    }
    see((await called(sftp, 'fastPut', place, `${place}/none`))[0].code);
    rmSync(place, { recursive: true });
  },
  'openssh_noMoreSessions': async ({ client, see }) => {
    see(shown((await called(client, 'openssh_noMoreSessions'))[0]));
  },
  'sftp: handles': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const file = `${directory}/handles`;
    const files = async (method, ...given) => {
      const told = await called(sftp, method, ...given);
      see(method, ...told.map((each) => (each instanceof Error ? [each.message, each.code] : Buffer.isBuffer(each) ? 'bytes' : each)));
      return told[1];
    };
    const facts = ({ mode, uid, gid, size, atime, mtime }, times = false) => [mode, uid, gid, size, ...(times ? [atime, mtime] : [])];
    const handle = await files('open', file, 'w+', 0o640);
    const [failed] = await called(sftp, 'write', handle, Buffer.from('0123456789'), 2, 5, 3);
    see(failed);
    const into = Buffer.alloc(8, '.');
    await called(sftp, 'read', handle, into, 1, 4, 3).then(([error, count, buffer, position]) =>
      see(error, count, buffer === into, buffer.toString(), position));
    await files('read', handle, into, 0, 4, 100);
    await files('fchmod', handle, '600');
    await files('futimes', handle, 1000, new Date(2_000_000));
    await called(sftp, 'fstat', handle).then(([, stats]) => see(facts(stats, true)));
    await files('fsetstat', handle, { mode: 0o644, size: 4 });
    await called(sftp, 'fstat', handle).then(([, stats]) => see(facts(stats)));
    await files('fchown', handle, process.getuid(), process.getgid());
    await files('ext_openssh_fsync', handle);
    await files('close', handle);
    const [error] = await called(sftp, 'close', handle);
    see(error instanceof Error);
    await files('chmod', file, 0o600);
    await files('utimes', file, 5, 6);
    await files('chown', file, process.getuid(), process.getgid());
    await files('setstat', file, { mode: 0o640 });
    await called(sftp, 'lstat', file).then(([, stats]) => see(facts(stats), typeof stats.isSymbolicLink));
    await files('realpath', `${directory}/../${directory.split('/').at(-1)}/handles`).then((path) => see(path === file));
    await files('ext_openssh_hardlink', file, `${file}2`);
    await files('ext_openssh_hardlink', file, `${file}2`);
    await files('ext_openssh_lsetstat', `${file}2`, { mode: 0o600 });
    const [, volume] = await called(sftp, 'ext_openssh_statvfs', directory);
    see(Object.keys(volume).sort());
    await files('mkdir', `${directory}/made`, { mode: 0o700 });
    const directoryHandle = await files('opendir', directory);
    const names = [];
    for (;;) {
      const [error, list] = await called(sftp, 'readdir', directoryHandle);
      if (error || list === false) {
        see(error && [error.message, error.code], list);
        break;
      }
      names.push(...list.map(({ filename }) => filename));
    }
    see(names.sort());
    await files('close', directoryHandle);
    await files('rmdir', `${directory}/made`);
    await files('unlink', `${file}2`);
    await files('unlink', file);
  },
  'sftp: extensions': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const [from, to] = [`${directory}/copied-from`, `${directory}/copied-to`];
    await called(sftp, 'writeFile', from, '0123456789');
    const [, source] = await called(sftp, 'open', from, 'r');
    const [, target] = await called(sftp, 'open', to, 'w+');
    see(await called(sftp, 'ext_copy_data', source, 2, 4, target, 1));
    see(await called(sftp, 'ext_copy_data', source, 8, 0, target, 5));
    see(String((await called(sftp, 'readFile', to))[1]));
    const [, ofHandle] = await called(sftp, 'ext_openssh_fstatvfs', source);
    const [, ofPath] = await called(sftp, 'ext_openssh_statvfs', from);
    see(Object.keys(ofHandle).sort(), ofHandle.f_bsize === ofPath.f_bsize, ofHandle.f_sid === ofPath.f_sid);
    see(JSON.parse(JSON.stringify(ofPath)).f_sid === ofPath.f_sid);
    for (const [method, ...given] of [
      ['ext_copy_data', source, 0, 0, source, 0], ['ext_home_dir', 'root'], ['ext_home_dir', 'nobody-here'],
      ['ext_users_groups', [], []],
    ]) {
      const told = await called(sftp, method, ...given);
      see(method, ...told.map((each) => (each instanceof Error ? [each.message, each.code] : each)));
    }
    const nothing = () => {};
    for (const [method, ...given] of [
      ['ext_openssh_fstatvfs', 'x', nothing], ['ext_openssh_fsync', 'x', nothing], ['ext_copy_data', 'x', 0, 0, target, 0, nothing],
      ['ext_copy_data', source, 0, 0, 'x', 0, nothing], ['ext_home_dir', 7, nothing], ['ext_users_groups', 0, [], nothing],
      ['ext_users_groups', [], 0, nothing], ['ext_users_groups', [-1], [], nothing], ['ext_users_groups', [], [1.5], nothing],
    ]) {
      try {
        see(method, sftp[method](...given));
      } catch (error) {
        see(method, error.constructor.name, error.message);
      }
    }
    for (const file of [from, to]) await called(sftp, 'unlink', file);
  },
  'sftp: names of users and groups': async ({ client, see }) => {
    const [, sftp] = await called(client, 'sftp');
    await new Promise((resolve) => {
      sftp.on('error', (error) => resolve(see(error.message)));
      sftp.ext_users_groups([0, 4_000_000_000], [0], (error, users, groups) => resolve(see(error, users, groups)));
    });
  },
  'privateKey: RSA of few bits': async ({ ssh2, see, config, directory }) => {
    for (const bits of [1024, 1536, 2047, 2048]) {
      const file = `${directory}/rsa-${bits}-${ssh2.Client.name}-${Math.random()}`;
      execFileSync('ssh-keygen', ['-q', '-t', 'rsa', '-b', String(bits), '-N', '', '-m', 'PEM', '-f', file]);
      appendFileSync(join(dirname(config.keyFile), 'authorized_keys'), readFileSync(`${file}.pub`));
      const made = await connected(ssh2, { ...config, privateKey: readFileSync(file) });
      see(bits, made.error?.message);
      if (made.error === undefined) await command(made, see, 'exec', 'echo in');
    }
  },
  'sftp: requests that are made without waiting': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const [log, other] = ['appended', 'renamed'].map((name) => `${directory}/${name}`);
    const [, handle] = await called(sftp, 'open', log, 'a');
    const lines = Array.from({ length: 200 }, (_, number) => Buffer.from(`line ${number}\n`));
    await Promise.all(lines.map((line) => called(sftp, 'write', handle, line, 0, line.length, 0)));
    await called(sftp, 'close', handle);
    const stream = sftp.createWriteStream(log, { flags: 'a' });
    const gone = closed(stream);
    // Of longer pieces, each a request, ssh2 mixes what is of one with what is of another.
    for (let number = 0; number < 40; number++) stream.write(Buffer.alloc(1 + ((number * 7919) % 30_000), 97 + (number % 26)));
    stream.end();
    await gone;
    const [, content] = await called(sftp, 'readFile', log);
    see(createHash('sha256').update(content).digest('hex'), content.length);
    // Each finds what the one before has left.
    const steps = [];
    for (let round = 0; round < 30; round++) {
      steps.push(called(sftp, 'rename', log, other), called(sftp, 'stat', other), called(sftp, 'rename', other, log));
    }
    see((await Promise.all(steps)).filter(([error]) => error).length);
    await called(sftp, 'unlink', log);
  },
  'sftp: answers come in the order of the requests': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const order = [];
    const asked = Array.from({ length: 200 }, (_, number) => called(sftp, 'stat', number % 3 ? directory : '/nothing/here').then(() => order.push(number)));
    await Promise.all(asked);
    see(order);
    const file = join(directory, 'in-pieces');
    writeFileSync(file, Array.from({ length: 200 }, (_, number) => `${number}`.padStart(10)).join(''));
    const [, handle] = await called(sftp, 'open', file, 'r');
    let text = '';
    const reads = Array.from({ length: 200 }, (_, number) => called(sftp, 'read', handle, Buffer.alloc(10), 0, 10, 10 * number).then(([, , piece]) => (text += piece)));
    await Promise.all(reads);
    await called(sftp, 'close', handle);
    see(text === readFileSync(file, 'utf8'));
  },
  'sftp: servers that do not start': async ({ ssh2, see, broken }) => {
    for (const config of broken) {
      const made = await connected(ssh2, config);
      const [error, sftp] = await called(made, 'sftp');
      see(error?.message, error?.code, error?.signal, sftp);
      made.end();
    }
  },
  'sftp: what is no handle': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const code = async (method, ...given) => see(method, (await called(sftp, method, ...given))[0]?.code);
    for (const wrong of [Buffer.alloc(0), Buffer.from('x'), Buffer.alloc(4, 255), Buffer.from('no handle'), Buffer.alloc(13, 1)]) {
      for (const method of ['close', 'fstat', 'readdir', 'ext_openssh_fsync', 'ext_openssh_fstatvfs']) await code(method, wrong);
      await code('read', wrong, Buffer.alloc(1), 0, 1, 0);
      await code('write', wrong, Buffer.alloc(1), 0, 1, 0);
      await code('fsetstat', wrong, { mode: 0o600 });
    }
    const [, opened] = await called(sftp, 'opendir', directory);
    await code('fstat', Buffer.alloc(4, 254));
    // What names it is its bytes.
    await code('readdir', Buffer.from(opened));
    await code('close', Buffer.from(opened));
    await code('close', opened);
    await code('readdir', opened);
  },
  'sftp: readdir, all of it': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    await called(sftp, 'mkdir', `${directory}/full`);
    const [, handle] = await called(sftp, 'opendir', `${directory}/full`);
    for (const [where, options] of [[`${directory}/full`, { full: true }], [`${directory}/full`, { full: false }], [handle, { full: true }]]) {
      const [, list] = await called(sftp, 'readdir', where, options);
      see(list.map(({ filename, attrs }) => [filename, attrs.isDirectory()]).sort());
    }
    await called(sftp, 'rmdir', `${directory}/full`);
  },
  'sftp: whole files': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const [from, to, back] = ['from', 'to', 'back'].map((name) => `${directory}/whole-${name}`);
    await called(sftp, 'writeFile', from, Buffer.alloc(100_000, 'a'), { mode: 0o600 });
    let steps = 0;
    const step = (total, chunk, size) => {
      steps += 1;
      if (total === size) see('whole', total, chunk > 0);
    };
    see(await called(sftp, 'fastPut', from, to, { step, mode: 0o640 }), steps > 0);
    see(await called(sftp, 'fastGet', to, back, { concurrency: 4, chunkSize: 8192 }));
    const [, stats] = await called(sftp, 'stat', to);
    see(stats.size, stats.mode);
    for (const file of [from, to, back]) await called(sftp, 'unlink', file);
  },
  'exec: output and error output in the server\'s order': async ({ client, see }) => {
    // Each line is written once the one before has come: sshd reads both pipes at once, and a busy one in its own order.
    const [, stream] = await called(client, 'exec', 'for i in 1 2 3 4 5 6; do echo out$i; read -r _; echo err$i >&2; read -r _; done');
    let all = '';
    const next = (chunk) => {
      all += chunk;
      stream.write('\n');
    };
    stream.on('data', next);
    stream.stderr.on('data', next);
    await closed(stream);
    see(all);
  },
  'exec: a child has the output when the command ends': async ({ client, see }) => {
    const events = [];
    const stream = await new Promise((resolve) => {
      client.exec('sleep 2 & echo out; exit 6', (error, opened) => {
        // At once: the exit may be told in the same turn.
        for (const event of ['exit', 'end', 'close']) opened.on(event, (...told) => events.push([event, ...told]));
        opened.once('exit', () => resolve(opened)).resume();
      });
    });
    // Not the end yet.
    await setTimeout(200);
    see(events);
    await closed(stream);
    see(events);
  },
  'sftp: files of a size that is given': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const [from, to] = ['from', 'to'].map((name) => `${directory}/sized-${name}`);
    await called(sftp, 'writeFile', from, 'abcdefghij');
    for (const method of ['fastGet', 'fastPut']) {
      for (const fileSize of [4, 10, 0]) {
        let last;
        const step = (...told) => (last = told);
        see(method, fileSize, await called(sftp, method, from, to, { fileSize, step, mode: 0o600 }), last, readFileSync(to, 'utf8'));
        rmSync(to);
      }
    }
    see(shown((await called(sftp, 'fastGet', `${directory}/nothing`, to, { fileSize: 4 }))[0], 'code'));
    see(shown((await called(sftp, 'fastPut', `${directory}/nothing`, to, { fileSize: 4 }))[0], 'code'));
  },
  'sftp: a file without a size that never ends': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const to = `${directory}/endless`;
    see((await called(sftp, 'fastGet', '/dev/zero', to))[0] ?? null, statSync(to).size);
  },
  'sftp: modes of streams': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    for (const [name, options] of Object.entries({ wide: { mode: 0o666 }, text: { mode: '662' }, more: { flags: 'a', mode: 0o622 } })) {
      const stream = sftp.createWriteStream(`${directory}/${name}`, options);
      stream.end('x');
      await closed(stream);
      see(name, (statSync(`${directory}/${name}`).mode & 0o777).toString(8));
    }
    // Of a file that is there, too.
    const again = sftp.createWriteStream(`${directory}/wide`, { mode: 0o600 });
    again.end('y');
    await closed(again);
    see((statSync(`${directory}/wide`).mode & 0o777).toString(8));
  },
  'sftp: streams that do not close by themselves': async ({ client, see, directory }) => {
    const path = `${directory}/kept`;
    const [, sftp] = await called(client, 'sftp');
    const over = (stream, event) => new Promise((resolve) => stream.once(event, () => setImmediate(resolve)));
    for (const ends of ['close', 'destroy']) {
      const [read, write] = [sftp.createReadStream('/etc/passwd', { autoClose: false }), sftp.createWriteStream(path, { autoClose: false })];
      const ended = Promise.all([over(read.resume(), 'end'), over(write, 'finish')]);
      write.end('x');
      await ended;
      const { handle } = read;
      see(read.destroyed, write.destroyed, Buffer.isBuffer(write.handle), (await called(sftp, 'fstat', handle))[0]);
      for (const stream of [read, write]) {
        if (ends === 'close' && stream === write) continue;
        const gone = over(stream, 'close');
        stream[ends]();
        await gone;
      }
      see((await called(sftp, 'fstat', handle))[0] instanceof Error);
      await new Promise((resolve) => read.close(resolve));
    }
  },
  'sftp: streams with wrong options': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    for (const method of ['createReadStream', 'createWriteStream']) {
      for (const options of [{ flags: 'zz' }, { flags: null }, { mode: 'zz' }, { start: 5, end: 2 }, { end: null }]) {
        try {
          const stream = sftp[method](`${directory}/wrong`, { ...options, flags: options.flags === undefined ? 'w' : options.flags });
          const gone = closed(stream);
          stream.once('open', () => stream.destroy());
          await gone;
          see(method, 'opens');
        } catch (error) {
          see(method, error.message);
        }
      }
    }
    const stream = sftp.createWriteStream(`${directory}/wrong`, { defaultEncoding: 'hex' });
    const gone = closed(stream);
    stream.end('4142');
    await gone;
    see(readFileSync(`${directory}/wrong`, 'latin1'));
  },
  'sftp: files that cannot be opened': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const file = `${directory}/file`;
    await called(sftp, 'writeFile', file, 'x');
    const fields = (error) => error && ['message', 'code', 'errno', 'syscall', 'path'].map((field) => `${field} ${error[field]}`);
    for (const [method, ...given] of [
      ['fastPut', `${directory}/nothing`, `${directory}/to`], ['fastPut', directory, `${directory}/to`], ['fastGet', file, `${directory}/no/to`],
      ['fastGet', file, directory],
    ]) see(method, fields((await called(sftp, method, ...given))[0]));
    const [error] = await called(sftp, 'opendir', file);
    see(error.message, error.code);
  },
  'an agent that is not there': async ({ ssh2, see, config }) => {
    const errors = [];
    const { error } = await connected(ssh2, { ...config, privateKey: undefined, agent: '/nothing/here' }, (client) => {
      client.on('error', (each) => errors.push(shown(each)));
    });
    see(shown(error), errors[0]);
  },
  'arguments of another type': async ({ ssh2, see, client, config }) => {
    const thrown = (call) => {
      try {
        call();
      } catch (error) {
        return see(error.constructor.name, error.code, error.message);
      }
      return see('nothing');
    };
    for (const wrong of [{ host: 5 }, { port: 'x' }, { port: -1 }, { port: 70000 }]) {
      thrown(() => new ssh2.Client().on('error', () => {}).connect({ ...config, ...wrong }));
    }
    thrown(() => client.forwardOut(undefined, 0, 'localhost', 1, () => {}));
    thrown(() => client.forwardOut('127.0.0.1', 0, 5, 1, () => {}));
    thrown(() => client.forwardIn(null, 0, () => {}));
    thrown(() => client.openssh_forwardOutStreamLocal(undefined, () => {}));
  },
  'sftp: events of streams': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const file = `${directory}/events`;
    const events = [];
    const hear = (stream, ...names) => {
      for (const name of names) stream.on(name, () => events.push(name));
      return stream;
    };
    const write = hear(sftp.createWriteStream(file, { mode: 0o600 }), 'open', 'ready', 'close');
    write.write('abc');
    write.end('def');
    await closed(write);
    see(events.splice(0), write.path === file);
    const appended = sftp.createWriteStream(file, { flags: 'a' });
    appended.end('ghi');
    await closed(appended);
    const inner = sftp.createWriteStream(file, { flags: 'r+', start: 3 });
    inner.end('DEF');
    await closed(inner);
    const read = hear(sftp.createReadStream(file), 'open', 'ready', 'end', 'close');
    let out = '';
    read.on('data', (chunk) => (out += chunk));
    await closed(read);
    see(out, events.splice(0), read.bytesRead, read.path === file);
    const again = sftp.createReadStream(file);
    let opened = 0;
    again.on('open', () => (opened += 1));
    see(again.open(), again.pending);
    again.resume();
    await closed(again);
    see(opened);
    const anew = sftp.createWriteStream(file, { flags: 'a' });
    see(anew.open());
    anew.end();
    await closed(anew);
    await called(sftp, 'unlink', file);
  },
  'sftp: what is thrown for arguments': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const [, handle] = await called(sftp, 'open', `${directory}/checked`, 'w+');
    const bytes = Buffer.alloc(4);
    const nothing = () => {};
    for (const [method, ...given] of [
      ['open', undefined, 'r', nothing], ['open', Buffer.from('x'), 'r', nothing], ['open', 7, 'r', nothing], ['open', 'x', 'rw', nothing],
      ['open', 'x', 'r', { mode: 'z' }, nothing], ['close', 'x', nothing], ['close', undefined, nothing],
      ['read', 'x', bytes, 0, 1, 0, nothing], ['read', handle, 'x', 0, 1, 0, nothing], ['read', handle, bytes, 4, 1, 0, nothing],
      ['read', handle, bytes, 3, 2, 0, nothing], ['read', handle, bytes, 0, 1, null, nothing],
      ['write', 'x', bytes, 0, 1, 0, nothing], ['write', handle, 'x', 0, 1, 0, nothing], ['write', handle, bytes, 5, 0, 0, nothing],
      ['write', handle, bytes, 3, 2, 0, nothing], ['write', handle, bytes, 0, 1, null, nothing],
      ['fstat', 'x', nothing], ['fsetstat', 'x', {}, nothing], ['readdir', undefined, nothing], ['readdir', 7, nothing],
      ['stat', undefined, nothing], ['lstat', 7, nothing], ['unlink', null, nothing], ['rename', 'a', undefined, nothing],
      ['rename', undefined, 'a', nothing], ['mkdir', undefined, nothing], ['rmdir', {}, nothing], ['symlink', 'a', undefined, nothing],
      ['readlink', undefined, nothing], ['realpath', undefined, nothing], ['exists', undefined, nothing],
      ['utimes', 'x', 'then', 1, nothing], ['futimes', handle, 1, NaN, nothing], ['chmod', 'x', 'z', nothing], ['setstat', 'x', { mode: NaN }, nothing],
      ['readFile', 'x', 7, nothing], ['readFile', 'x', 'nonsense', nothing], ['writeFile', 'x', '', 7, nothing],
      ['writeFile', 'x', '', { encoding: 'nonsense' }, nothing], ['appendFile', 'x', '', 7, nothing],
      ['createReadStream', 'x', null], ['createReadStream', 'x', 7], ['createReadStream', 'x', { start: 'a' }], ['createReadStream', 'x', { start: -1 }],
      ['createReadStream', 'x', { start: 1.5 }], ['createReadStream', 'x', { start: 2, end: 1 }], ['createReadStream', 'x', { end: NaN }],
      ['createWriteStream', 'x', null], ['createWriteStream', 'x', { start: 'a' }], ['createWriteStream', 'x', { start: -1 }],
    ]) {
      try {
        sftp[method](...given);
        see(method, 'nothing');
      } catch (error) {
        see(method, error.constructor.name.replace(/^ERR_OUT_OF_RANGE$/, 'RangeError').replace(/^ERR_INVALID_ARG_TYPE$/, 'TypeError'), error.message, `code ${error.code}`);
      }
    }
    see(await called(sftp, 'write', handle, bytes, 4, 0, 0), await called(sftp, 'write', handle, bytes, 1, 2, 0));
    see(await called(sftp, 'writeData', handle, bytes, 0, 4, 0), (await called(sftp, 'readData', handle, bytes, 0, 4, 0))[1]);
    see(await called(sftp, 'setstat', `${directory}/checked`), await called(sftp, 'setstat', `${directory}/checked`, { uid: 1, atime: 5, size: '3' }));
    await called(sftp, 'writeFile', `${directory}/checked`, 17);
    see(await called(sftp, 'readFile', `${directory}/checked`, { encoding: 'hex' }), await called(sftp, 'appendFile', `${directory}/checked`, null));
    see(await called(sftp, 'readFile', `${directory}/checked`, 'utf8'));
    const stream = sftp.createReadStream(`${directory}/checked`, { start: 1, autoClose: true });
    see(stream.pending, stream.flags, stream.mode, stream.start, stream.end === Infinity, stream.autoClose, stream.handle, stream.sftp === sftp);
    stream.resume();
    await closed(stream);
    await called(sftp, 'unlink', `${directory}/checked`);
  },
  'timeout: of a connection that is silent': async ({ ssh2, see, config }) => {
    const made = await connected(ssh2, { ...config, timeout: 200 });
    let told = 0;
    made.on('timeout', () => (told += 1));
    await once(made, 'timeout');
    await command(made, see, 'exec', 'echo it is still there');
    await once(made, 'timeout');
    see(told >= 2, made._sock.destroyed);
  },
  'debug and eof': async ({ ssh2, see, config }) => {
    const said = [];
    const made = await connected(ssh2, { ...config, debug: (text) => said.push(text) });
    see(said.length > 0, said.every((text) => typeof text === 'string'));
    const [, stream] = await called(made, 'exec', 'cat; echo end');
    let out = '';
    stream.on('data', (chunk) => (out += chunk));
    stream.write('x');
    stream.eof();
    see(await closed(stream), out);
    made.end();
  },
  'HTTPAgent and HTTPSAgent': async ({ ssh2, see, config, directory, unused }) => {
    const file = (name) => `${directory}/${name}`;
    execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', file('key'), '-out', file('cert'), '-days', '2', '-subj', '/CN=here'], { stdio: 'ignore' });
    const answer = (request, response) => response.end(`${request.url} ${request.socket.localPort > 0}`);
    const plain = http.createServer(answer).listen(0, '127.0.0.1');
    const sealed = https.createServer({ key: readFileSync(file('key')), cert: readFileSync(file('cert')) }, answer).listen(0, '127.0.0.1');
    await Promise.all([once(plain, 'listening'), once(sealed, 'listening')]);
    const get = (library, port, agent, path, more) => new Promise((resolve) => {
      library.get({ host: '127.0.0.1', port, path, agent, ...more }, (response) => {
        let text = '';
        response.on('data', (chunk) => (text += chunk)).on('end', () => resolve([response.statusCode, text]));
      }).on('error', (error) => resolve([error.message]));
    });
    const kept = new ssh2.HTTPAgent(config, { keepAlive: true });
    see(kept instanceof http.Agent, new ssh2.HTTPSAgent(config) instanceof https.Agent);
    see(await get(http, plain.address().port, new ssh2.HTTPAgent(config, { srcIP: '127.0.0.7' }), '/one'));
    for (const path of ['/two', '/three']) see(await get(http, plain.address().port, kept, path, { timeout: 60_000 }));
    kept.destroy();
    see(await get(http, unused, new ssh2.HTTPAgent(config), '/'));
    see(await get(http, unused, new ssh2.HTTPAgent({ ...config, username: 'nobody-here', privateKey: undefined }), '/'));
    see(await get(https, sealed.address().port, new ssh2.HTTPSAgent(config), '/four', { rejectUnauthorized: false }));
    see(await get(https, sealed.address().port, new ssh2.HTTPSAgent(config), '/five'));
    plain.close();
    sealed.close();
  },
  'agents: OpenSSH\'s, by its methods and through classes of the program': async ({ ssh2, see, config, directory }) => {
    const socket = `${directory}/agent`;
    rmSync(socket, { force: true });
    const [, pid] = /SSH_AGENT_PID=(\d+)/.exec(execFileSync('ssh-agent', ['-s', '-a', socket], { encoding: 'utf8' }));
    try {
      const key = `${directory}/agent-key`;
      for (const old of [key, `${key}.pub`]) rmSync(old, { force: true });
      execFileSync('ssh-keygen', ['-q', '-t', 'ecdsa', '-N', '', '-C', 'mine', '-f', key]);
      for (const made of [key, config.keyFile]) execFileSync('ssh-add', ['-q', made], { env: { ...process.env, SSH_AUTH_SOCK: socket }, stdio: 'ignore' });
      const agent = ssh2.createAgent(socket);
      const [, keys] = await called(agent, 'getIdentities');
      see(agent instanceof ssh2.OpenSSHAgent, agent instanceof ssh2.BaseAgent, keys.map(({ type, comment }) => [type, comment === 'mine']));
      for (const each of keys) {
        const [error, signature] = await called(agent, 'sign', each, Buffer.from('data'), {});
        see(error, Buffer.isBuffer(signature), each.type === 'ssh-ed25519' && each.verify(Buffer.from('data'), signature));
      }
      const stranger = ssh2.utils.parseKey(ssh2.utils.generateKeyPairSync('ecdsa', { bits: 256 }).public);
      see(shown((await called(agent, 'sign', stranger, Buffer.from('data')))[0]));
      see(shown((await called(ssh2.createAgent(`${directory}/no-agent`), 'getIdentities'))[0]));
      const [, stream] = await called(agent, 'getStream');
      see(stream.writable);
      stream.destroy();
      class Counted extends ssh2.OpenSSHAgent {
        sign(...given) {
          see('signs', given[0].type);
          return super.sign(...given);
        }
      }
      for (const each of [agent, socket, new Counted(socket)]) {
        const made = await connected(ssh2, { ...config, privateKey: undefined, agent: each });
        await command(made, see, 'exec', 'echo in');
        made.end();
      }
      class Mute extends ssh2.BaseAgent {
        getIdentities(callback) {
          agent.getIdentities(callback);
        }

        sign(...given) {
          agent.sign(...given);
        }
      }
      class Broken extends Mute {
        getStream(callback) {
          callback(new Error('broken'));
        }
      }
      class Own extends Mute {
        getStream(callback) {
          see('lent');
          agent.getStream(callback);
        }
      }
      for (const each of [socket, agent, new Own(), new Mute(), new Broken()]) {
        for (const agentForward of [true, false]) {
          const lent = await connected(ssh2, { ...config, privateKey: undefined, agent: each, agentForward });
          await command(lent, see, 'exec', 'ssh-add -l 2>/dev/null | wc -l');
          if (agentForward) await command(lent, see, 'exec', 'ssh-add -l 2>/dev/null | wc -l', { agentForward: false });
          lent.end();
        }
      }
    } finally {
      process.kill(Number(pid));
    }
  },
  'agentForward of some sessions': async ({ ssh2, see, config, directory }) => agentForward(ssh2, see, config, directory, [true]),
  'agentForward of a session, and of the next ones': async ({ ssh2, see, config, directory }) =>
    agentForward(ssh2, see, config, directory, [false, true, false, true]),
  'end, and what is called afterwards': async ({ client, see }) => {
    const events = [];
    for (const event of ['error', 'end', 'close']) client.on(event, () => events.push(event));
    client.end();
    await closed(client);
    for (const method of ['exec', 'shell', 'subsys', 'sftp', 'forwardOut']) {
      try {
        client[method]('true', () => {});
      } catch (error) {
        see(method, shown(error));
      }
    }
    see(events);
  },
  'the client closes behind its streams': async ({ client, see }) => {
    const [, stream] = await called(client, 'exec', 'head -c 3000000 /dev/zero; echo end');
    const events = [];
    let bytes = 0;
    stream.on('data', (chunk) => (bytes += chunk.length)).on('close', () => {
      events.push(`stream ${bytes}`);
      client.end();
    });
    client.on('close', () => events.push('client'));
    await closed(client);
    see(events);
  },
  'sftp: rename, symlink, links': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const files = async (method, ...given) => see(method, ...(await called(sftp, method, ...given)).map((told) =>
      (told instanceof Error ? [told.message, told.code] : told)));
    await called(sftp, 'writeFile', `${directory}/a`, 'a');
    await called(sftp, 'writeFile', `${directory}/b`, 'b');
    await files('rename', `${directory}/a`, `${directory}/b`);
    await files('readFile', `${directory}/b`, 'utf8');
    await files('ext_openssh_rename', `${directory}/a`, `${directory}/b`);
    await files('readFile', `${directory}/b`, 'utf8');
    await files('symlink', 'b', `${directory}/link`);
    await files('readlink', `${directory}/link`);
    await files('exists', `${directory}/link`);
    await files('exists', `${directory}/none`);
    await files('stat', `${directory}/none`);
    await files('lstat', `${directory}/none`);
    await files('mkdir', `${directory}/d`);
    await files('mkdir', `${directory}/d`);
    await files('rmdir', `${directory}/d`);
    await files('unlink', `${directory}/none`);
    await files('open', `${directory}/none`, 'r');
    await files('appendFile', `${directory}/b`, 'more');
    await files('readFile', `${directory}/b`, { encoding: 'latin1' });
    await files('fastGet', `${directory}/none`, `${directory}/x`);
    await files('readdir', `${directory}/none`);
    await files('opendir', `${directory}/none`);
    const [, list] = await called(sftp, 'readdir', directory);
    see(list.map(({ filename }) => filename).sort(), list[0] && Object.keys(list[0]).sort());
    const [, stats] = await called(sftp, 'stat', `${directory}/b`);
    see(stats.size, stats.isFile(), stats.isDirectory(), Object.keys(stats).sort());
    for (const flags of ['nonsense', 'q']) {
      try {
        sftp.open(`${directory}/b`, flags, () => {});
        see('opened');
      } catch (error) {
        see(shown(error));
      }
    }
    // Nothing may be left of the first one, whose directory the second one gets.
    for (const name of ['a', 'b', 'link', 'x']) await called(sftp, 'unlink', `${directory}/${name}`);
    sftp.end();
    await closed(sftp);
    see('closed');
  },
  'sftp: streams': async ({ client, see, directory }) => {
    const [, sftp] = await called(client, 'sftp');
    const write = sftp.createWriteStream(`${directory}/s`);
    write.end('0123456789');
    await closed(write);
    see(write.bytesWritten);
    let read = '';
    for await (const chunk of sftp.createReadStream(`${directory}/s`, { start: 2, end: 5, encoding: 'utf8' })) read += chunk;
    see(read);
    const missing = sftp.createReadStream(`${directory}/none`);
    const [error] = await once(missing, 'error');
    see(error.message, error.code);
    await called(sftp, 'unlink', `${directory}/s`);
  },
};

/** Programs that connect by themselves: to a server of ssh2's, whose `seen` is what it was asked. */
export const onSsh2 = {
  'handlers have the asynchronous context of connect()': async ({ ssh2, see, where }) => {
    const storage = new AsyncLocalStorage();
    const seen = (name) => see(name, storage.getStore());
    const client = new ssh2.Client();
    for (const event of ['connect', 'banner', 'ready', 'end', 'close']) client.on(event, () => seen(event));
    const hostVerifier = () => {
      seen('hostVerifier');
      return true;
    };
    const ended = closed(client);
    await storage.run('connect', async () => {
      client.connect({ ...where, password: 'sesame', hostVerifier });
      await once(client, 'ready');
      // At once: all of it may have come in one piece.
      await new Promise((resolve) => client.exec('both', (_, stream) => {
        seen('exec');
        for (const event of ['data', 'exit', 'end', 'close']) stream.on(event, () => seen(event));
        stream.stderr.on('data', () => seen('error data'));
        stream.on('close', resolve);
      }));
      client.sftp((_, sftp) => {
        seen('sftp');
        sftp.stat('/parts/mode', () => {
          seen('stat');
          client.end();
        });
      });
    });
    await ended;
  },
  'no algorithm in common': async ({ ssh2, see, original, hostKey, where }) => {
    const offered = { kex: ['ecdh-sha2-nistp256'], cipher: ['aes256-ctr'], hmac: ['hmac-sha2-512'] };
    const server = new original.Server({ hostKeys: [hostKey.private], algorithms: offered }, (connection) => connection.on('error', () => {}));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const wanted = {
      kex: ['ecdh-sha2-nistp384'], serverHostKey: ['ecdsa-sha2-nistp256'], cipher: ['aes128-ctr'], hmac: ['hmac-sha2-256'],
    };
    for (const [kind, names] of Object.entries(wanted)) {
      const { error } = await connected(ssh2, { ...where, port: server.address().port, password: 'sesame', algorithms: { [kind]: names } });
      see(kind, shown(error));
    }
    server.close();
  },
  'sftp: attributes that the server does not send': async ({ ssh2, see, where }) => {
    const made = await connected(ssh2, { ...where, password: 'sesame' });
    const [, sftp] = await called(made, 'sftp');
    const said = ({ mode, uid, gid, size, atime, mtime }) => [mode, uid, gid, size, atime, mtime];
    for (const part of ['none', 'size', 'mode', 'owner', 'times']) {
      const [, found] = await called(sftp, 'stat', `/parts/${part}`);
      see(part, said(found), found.isFile(), found.isDirectory());
    }
    const [, list] = await called(sftp, 'readdir', '/parts');
    see(list.map(({ filename, longname, attrs }) => [filename, longname, said(attrs)]).sort());
    made.end();
  },
  'a stream under the connection that fails': async ({ ssh2, see, where }) => {
    const fail = (sock) => sock.destroy(new Error('unplugged'));
    for (const end of [fail, (sock) => sock.destroy(), (sock) => sock.end()]) {
      const events = [];
      const sock = connect(where.port, '127.0.0.1');
      const client = new ssh2.Client();
      const ended = closed(client);
      for (const event of ['connect', 'ready', 'end', 'close']) client.on(event, () => events.push(event));
      client.on('error', (error) => events.push(shown(error)));
      client.connect({ ...where, sock, password: 'sesame' });
      await once(client, 'ready');
      end(sock);
      await ended;
      see(events);
    }
  },
  'an exit comes behind what was sent before it, and in front of the end': async ({ ssh2, see, where }) => {
    const made = await connected(ssh2, { ...where, password: 'sesame' });
    for (const line of [...Array(20).fill('both'), 'much', 'much', 'much on stderr']) {
      const order = [];
      const lengths = { data: 0, error: 0 };
      const count = (name) => (chunk) => {
        if (lengths[name] === 0) order.push(name);
        lengths[name] += chunk.length;
      };
      // At once: all of it may have come in one piece.
      await new Promise((resolve) => made.exec(line, (_, stream) => {
        stream.on('data', count('data')).stderr.on('data', count('error'));
        for (const event of ['exit', 'end', 'close']) stream.on(event, () => order.push(`${event} behind ${lengths.data} and ${lengths.error}`));
        stream.on('close', resolve);
      }));
      see(line, order);
    }
    // Who reads nothing hears of the exit all the same.
    see(await new Promise((resolve) => made.exec('some', (_, unread) => unread.once('exit', resolve))));
    made.end();
  },
  'a password, where no method is named': async ({ ssh2, see, where, seen }) => {
    const { error } = await connected(ssh2, where);
    see(shown(error), seen);
  },
  'a refused log-in': async ({ ssh2, see, where, seen }) => {
    const events = [];
    const { client, error } = await connected(ssh2, { ...where, password: 'wrong' }, (made) => {
      for (const event of ['error', 'end', 'close']) made.on(event, () => events.push(event));
    });
    await closed(client);
    see(shown(error), seen, events);
  },
  'authHandler: an array of names': async ({ ssh2, see, where, seen }) => {
    const { error } = await connected(ssh2, { ...where, tryKeyboard: true, authHandler: ['keyboard-interactive', 'nonsense', 'password'] },
      (client) => client.on('keyboard-interactive', (name, text, language, prompts, finish) => {
        see(name, text, language, prompts);
        finish(['no']);
      }));
    see(shown(error), seen);
  },
  'authHandler: a function with objects': async ({ ssh2, see, where, seen }) => {
    const turns = [];
    const { error } = await connected(ssh2, { ...where, password: undefined, authHandler: (left, partial, next) => {
      turns.push([left, partial]);
      if (turns.length === 1) return 'none';
      if (turns.length === 2) return void setImmediate(next, { type: 'password', username: 'other', password: 'bad' });
      return turns.length === 3 ? { type: 'password', username: 'user', password: 'sesame' } : false;
    } });
    see(shown(error), turns, seen);
  },
  'authHandler: nothing left': async ({ ssh2, see, where, seen }) => {
    const { error } = await connected(ssh2, { ...where, authHandler: () => false });
    see(shown(error), seen);
  },
  'an agent of the program': async ({ ssh2, see, where, seen, key }) => {
    class Agent extends ssh2.BaseAgent {
      getIdentities(callback) {
        callback(null, [ssh2.utils.parseKey(key.public)]);
      }
      sign(asked, data, options, callback) {
        see(asked.type, typeof options, Buffer.isBuffer(data));
        callback(null, ssh2.utils.parseKey(key.private).sign(data));
      }
    }
    const { error } = await connected(ssh2, { ...where, password: undefined, agent: new Agent() });
    see(shown(error), seen);
  },
  'an agent that fails': async ({ ssh2, see, where, seen }) => {
    class Agent extends ssh2.BaseAgent {
      getIdentities(callback) {
        callback(new Error('no agent today'));
      }
    }
    const errors = [];
    const { client } = await connected(ssh2, { ...where, password: undefined, agent: new Agent() }, (made) => made.on('error', (error) => errors.push(shown(error))));
    await closed(client);
    see(errors, seen);
  },
  'a private key': async ({ ssh2, see, where, seen, key }) => {
    const { error } = await connected(ssh2, { ...where, password: undefined, privateKey: key.private });
    see(shown(error), seen);
  },
  'a private key with a passphrase': async ({ ssh2, see, where, seen, sealed }) => {
    for (const more of [
      { privateKey: sealed, passphrase: 'secret' },
      { privateKey: sealed.toString(), passphrase: Buffer.from('secret') },
      { authHandler: ['wrong', 'secret'].map((passphrase) => ({ type: 'publickey', username: passphrase, key: sealed, passphrase })) },
    ]) {
      const made = await connected(ssh2, { ...where, password: undefined, ...more });
      see(shown(made.error), seen.splice(0));
      (made.client ?? made).end();
    }
  },
  'authHandler: keys that are parsed': async ({ ssh2, see, where, seen, key, sealed }) => {
    const [type, username] = ['publickey', 'me'];
    for (const given of [ssh2.utils.parseKey(key.private), ssh2.utils.parseKey(sealed, 'secret'), ssh2.utils.parseKey(key.public), [ssh2.utils.parseKey(key.private)], null]) {
      const made = await connected(ssh2, { ...where, password: undefined, authHandler: [{ type, username, key: given }] });
      see(shown(made.error), seen.splice(0));
      (made.client ?? made).end();
    }
  },
  'hostbased': async ({ ssh2, see, where, seen, server, key, sealed }) => {
    server.trustsKeys = false;
    const here = { localHostname: 'desk.example.', localUsername: 'joan' };
    const [type, username] = ['hostbased', 'me'];
    for (const more of [
      { privateKey: key.private, ...here },
      { privateKey: key.private, localHostname: 'desk.example.' },
      { privateKey: key.private, localUsername: 'joan', localHostname: 7 },
      { privateKey: sealed, passphrase: 'secret', ...here },
      { privateKey: key.private, ...here, authHandler: ['hostbased'] },
      { authHandler: ['hostbased'], ...here },
      {
        authHandler: [
          { type, username, key: key.private, ...here, localUsername: 'jim' }, { type, username, key: 'nonsense', ...here },
          { type, username, key: key.private, localHostname: 'desk.example.' }, { type, username, key: key.public, ...here },
          { type, username, key: sealed, passphrase: 'secret', ...here },
        ],
      },
    ]) {
      const made = await connected(ssh2, { ...where, password: undefined, ...more });
      see(shown(made.error), seen.splice(0));
      (made.client ?? made).end();
    }
  },
  'a wrong passphrase': async ({ ssh2, see, where, seen, sealed }) => {
    const errors = [];
    const client = new ssh2.Client().on('error', (error) => errors.push(shown(error)));
    try {
      client.connect({ ...where, password: undefined, privateKey: sealed, passphrase: 'wrong' });
      await once(client, 'ready');
    } catch (error) {
      errors.push(shown(error));
    }
    see(errors, seen);
  },
  'greeting, banner, handshake': async ({ ssh2, see, where }) => {
    const events = [];
    await connected(ssh2, where, (client) => client.on('greeting', (text) => events.push(['greeting', text.trim()]))
      .on('banner', (text) => events.push(['banner', text.trim()]))
      .on('handshake', ({ kex, cs, sc }) => events.push(['handshake', typeof kex, Object.keys(cs), Object.keys(sc)])));
    see(events.sort());
  },
  'the server disconnects in good order': async ({ ssh2, see, where, server }) => {
    const made = await connected(ssh2, where);
    const events = [];
    for (const event of ['error', 'end', 'close']) made.on(event, () => events.push(event));
    server.connection.end();
    await closed(made);
    see(events);
  },
  'the server disconnects for a reason': async ({ ssh2, see, where, server }) => {
    const made = await connected(ssh2, where);
    const events = [];
    for (const event of ['error', 'end', 'close']) made.on(event, (error) => events.push([event, error?.message, error?.code].filter(Boolean)));
    server.connection._protocol.disconnect(7);
    await closed(made);
    see(events);
  },
  'refused channels': async ({ ssh2, see, where }) => {
    const made = await connected(ssh2, where);
    for (const opening of [['subsys', 'x'], ['forwardOut', 'a', 1, 'b', 2], ['exec', 'refuse']]) {
      const [error] = await called(made, ...opening);
      see(opening[0], error.message, error.reason);
    }
  },
  'what is under way when the connection ends': async ({ ssh2, see, where, server }) => {
    for (const [asked, ...opening] of [['session', 'exec', 'true'], ['session', 'sftp'], ['tcpip', 'forwardOut', 'a', 1, 'b', 2], ['request', 'forwardIn', '', 0]]) {
      for (const side of ['server', 'client']) {
        const made = await connected(ssh2, where);
        const events = [];
        const ended = closed(made.on('close', () => events.push('close')));
        const end = side === 'server' ? () => server.connection._sock.end() : () => made.end();
        server.connection.removeAllListeners(asked).on(asked, end);
        made[opening[0]](...opening.slice(1), (error) => events.push(error.message));
        await ended;
        see(asked, side, events);
      }
    }
    const made = await connected(ssh2, where);
    const events = [];
    const ended = closed(made.on('close', () => events.push('close')));
    server.connection.removeAllListeners('session').on('session', (accept) => {
      accept().on('sftp', (accept) => accept().on('LSTAT', () => server.connection._sock.end()));
    });
    const [, sftp] = await called(made, 'sftp');
    sftp.on('close', () => events.push('sftp close'));
    sftp.lstat('/x', (error) => events.push(error.message));
    await ended;
    see(events);
  },
  'exec on ssh2\'s server': async ({ ssh2, see, where }) => {
    const made = await connected(ssh2, where);
    await command(made, see, 'exec', 'greet');
    await command(made, see, 'exec', 'signal');
  },
  'what a server says of a signal': async ({ ssh2, see, where }) => {
    const made = await connected(ssh2, where);
    await command(made, see, 'exec', 'signal with words');
  },
  'sftp: order of a symlink\'s arguments': async ({ ssh2, see, where, seen }) => {
    const made = await connected(ssh2, where);
    const [, sftp] = await called(made, 'sftp');
    see(await called(sftp, 'symlink', 'target', 'link'), seen.at(-1));
    const [error] = await called(sftp, 'rename', 'a', 'b');
    see(error?.message, error?.code, seen.at(-1));
  },
  'the server resets the connection when the client ends': async ({ ssh2, see, where, server }) => {
    const made = await connected(ssh2, where);
    const events = [];
    for (const event of ['error', 'end', 'close']) made.on(event, (error) => events.push([event, error?.code]));
    const socket = server.connection._sock;
    socket.end = () => socket.resetAndDestroy();
    await called(made, 'sftp');
    made.end();
    await closed(made);
    see(events.at(-1)[0], events.some(([, code]) => code !== undefined && code !== 'ECONNRESET'));
  },
  'sftp: a server that writes where it is told': async ({ ssh2, see, where }) => {
    const made = await connected(ssh2, where);
    const [, sftp] = await called(made, 'sftp');
    await called(sftp, 'writeFile', 'log', 'one ');
    see(await called(sftp, 'appendFile', 'log', 'two '), await called(sftp, 'writeFile', 'log', 'three ', { flag: 'a' }));
    const stream = sftp.createWriteStream('log', { flags: 'a' });
    const gone = closed(stream);
    stream.write('four ');
    stream.end('five');
    await gone;
    see((await called(sftp, 'readFile', 'log', 'utf8')));
  },
  'sftp: directories that may not be read': async ({ ssh2, see, original, hostKey, where }) => {
    const server = new original.Server({ hostKeys: [hostKey.private] }, (connection) => {
      connection.on('error', () => {}).on('authentication', (context) => context.accept());
      connection.on('session', (accept) => accept().on('sftp', (take) => {
        const session = take();
        let left = 1;
        for (const request of ['STAT', 'LSTAT']) session.on(request, (id) => session.attrs(id, { mode: 0o40755 }));
        session.on('OPENDIR', (id, path) => (path === 'open' ? session.handle(id, Buffer.from('one')) : session.status(id, 3, 'not for you')));
        session.on('READDIR', (id) => (left-- > 0 ? session.name(id, [{ filename: 'name', longname: 'a name', attrs: { mode: 0o100644, size: 1 } }]) : session.status(id, 1, 'over')));
        session.on('CLOSE', (id) => session.status(id, 0));
      }));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const made = await connected(ssh2, { ...where, port: server.address().port, knownHosts: undefined });
    const [, sftp] = await called(made, 'sftp');
    for (const method of ['opendir', 'readdir']) see(method, shown((await called(sftp, method, 'closed'))[0], 'code'));
    const [, handle] = await called(sftp, 'opendir', 'open');
    const [error, names] = await called(sftp, 'readdir', handle);
    see(error, names.map(({ filename, longname, attrs }) => [filename, longname, attrs.size]));
    see((await called(sftp, 'readdir', handle))[0].code, await called(sftp, 'close', handle));
    made.end();
    server.close();
  },
  'sftp: a session that the server ends': async ({ ssh2, see, original, hostKey, where }) => {
    const server = new original.Server({ hostKeys: [hostKey.private] }, (connection) => {
      connection.on('error', () => {}).on('authentication', (context) => context.accept());
      connection.on('session', (accept) => accept().on('sftp', (take) => {
        const session = take();
        session.on('STAT', () => session.end());
      }));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const made = await connected(ssh2, { ...where, port: server.address().port, knownHosts: undefined });
    const [, sftp] = await called(made, 'sftp');
    const events = [];
    for (const event of ['end', 'close']) sftp.on(event, () => events.push(event));
    const gone = once(sftp, 'close');
    const [error] = await called(sftp, 'stat', 'x');
    await gone;
    // The client goes on.
    const [, again] = await called(made, 'sftp');
    see(events, error.message, typeof again?.end);
    made.end();
    server.close();
  },
  'sftp: an environment': async ({ ssh2, see, where, seen }) => {
    const made = await connected(ssh2, where);
    seen.length = 0;
    // Of one variable: with none ssh2 1.17 calls nobody back, and with two it asks for the subsystem twice.
    const [error, sftp] = await called(made, 'sftp', { LC_WORD: 'a b' });
    see(shown(error), typeof sftp?.end, seen);
    await called(made, 'sftp', null);
    see(seen);
  },
  'strictVendor': async ({ ssh2, see, original, hostKey, where }) => {
    for (const ident of ['other_1', 'other_2.17', 'OpenSSH_4.3', 'OpenSSH_9.9']) {
      const server = new original.Server({ hostKeys: [hostKey.private], ident }, (connection) => {
        connection.on('error', () => {}).on('authentication', (context) => context.accept());
        connection.on('request', (accept, reject, name) => (name.endsWith('streamlocal-forward@openssh.com') ? accept?.() : reject?.()));
        connection.on('openssh.streamlocal', (accept, reject) => reject());
      });
      await once(server.listen(0, '127.0.0.1'), 'listening');
      for (const strictVendor of [undefined, true, false, 'no']) {
        const client = await connected(ssh2, { ...where, port: server.address().port, knownHosts: undefined, strictVendor });
        see(ident, client.config.strictVendor);
        for (const method of ['openssh_forwardInStreamLocal', 'openssh_unforwardInStreamLocal', 'openssh_forwardOutStreamLocal']) {
          const [error] = await called(client, method, '/no/such/socket');
          see(method, error?.message);
        }
        if (ident === 'other_1' && strictVendor !== false) see((await called(client, 'openssh_noMoreSessions')).map((error) => error?.message));
        client.end();
        await closed(client);
      }
      server.close();
    }
  },
  'host keys: RSA of few bits': async ({ ssh2, see, original, where }) => {
    for (const bits of [1024, 2047]) {
      const { privateKey } = generateKeyPairSync('rsa', {
        modulusLength: bits,
        privateKeyEncoding: { type: 'pkcs1', format: 'pem' },
        publicKeyEncoding: { type: 'pkcs1', format: 'pem' },
      });
      const server = new original.Server({ hostKeys: [privateKey] }, (connection) => {
        connection.on('error', () => {}).on('authentication', (context) => context.accept());
      });
      await once(server.listen(0, '127.0.0.1'), 'listening');
      for (const serverHostKey of ['rsa-sha2-256', 'rsa-sha2-512']) {
        const algorithms = { serverHostKey: [serverHostKey] };
        const made = await connected(ssh2, { ...where, port: server.address().port, knownHosts: undefined, algorithms });
        see(bits, serverHostKey, made.error?.message);
        made.end();
      }
      server.close();
    }
  },
  'hostVerifier: forms and a refusal': async ({ ssh2, see, where }) => {
    for (const more of [
      { hostVerifier: () => true },
      { hostVerifier: (key, verify) => void setImmediate(verify, Buffer.isBuffer(key)) },
      { hostHash: 'sha256', hostVerifier: (hash) => /^[0-9a-f]{64}$/.test(hash) },
      { hostVerifier: () => false },
    ]) {
      const made = await connected(ssh2, { ...where, ...more });
      see(shown(made.error));
      (made.client ?? made).end();
    }
  },
  'exceptions in what is asked of the program': async ({ ssh2, see, where, key }) => {
    const thrower = (what) => () => {
      throw new Error(what);
    };
    const agent = (methods) => Object.assign(new ssh2.BaseAgent(), {
      getIdentities: (callback) => callback(null, [ssh2.utils.parseKey(key.public)]), ...methods,
    });
    const asked = { password: undefined, tryKeyboard: true };
    let turns = 0;
    for (const [more, event] of [
      [{ authHandler: thrower('authHandler') }],
      [{ authHandler: (left, partial, next) => thrower('authHandler with a callback')(next) }],
      [{ authHandler: () => (turns++ === 0 ? 'none' : thrower('authHandler, second turn')()) }],
      [{ authHandler: [{ type: 'agent', username: 'me', agent: agent({ getIdentities: thrower('agent of authHandler') }) }] }],
      [{ password: undefined, agent: agent({ getIdentities: thrower('getIdentities') }) }],
      [{ password: undefined, agent: agent({ sign: thrower('sign') }) }],
      [{ ...asked, authHandler: [{ type: 'keyboard-interactive', username: 'me', prompt: thrower('prompt') }] }],
      [asked, 'keyboard-interactive'], [{}, 'banner'], [{}, 'greeting'], [{}, 'handshake'], [{}, 'ready'],
    ]) {
      const events = [];
      const client = new ssh2.Client();
      client.on('error', (error) => events.push(['error', error.message, `${error.level}`])).on('end', () => events.push('end'));
      if (event !== undefined) client.on(event, thrower(event));
      client.connect({ ...where, ...more });
      await closed(client);
      see(events);
    }
  },
  'an exception in hostVerifier': async ({ ssh2, see, where }) => {
    const failing = (text) => {
      throw new Error(text);
    };
    for (const more of [
      { hostVerifier: () => failing('hostVerifier') },
      { hostVerifier: (key, verify) => failing(`with ${typeof verify}`) },
      { hostHash: 'nonsense', hostVerifier: (key) => failing(`hostHash ${Buffer.isBuffer(key)}`) },
    ]) {
      const made = await connected(ssh2, { ...where, ...more });
      see(shown(made.error));
      // ssh2 continues reading, and finds the protocol broken.
      made.client.on('error', () => {});
      await closed(made.client);
    }
  },
  'connect, and the order of events': async ({ ssh2, see, where }) => {
    const events = [];
    await connected(ssh2, where, (client) => {
      for (const event of ['connect', 'greeting', 'handshake', 'banner', 'ready']) client.on(event, () => events.push(event));
    });
    see(events.filter((event) => event === 'connect'), events[0], events.at(-1));
  },
  'when a handshake is told': async ({ ssh2, see, where }) => {
    const events = [];
    await connected(ssh2, where, (client) => {
      for (const event of ['greeting', 'handshake', 'banner']) client.on(event, () => events.push(event));
    });
    see(events);
  },
  'the time to be ready, at each step of the log-in': async ({ ssh2, see, original, hostKey }) => {
    const server = new original.Server({ hostKeys: [hostKey.private] }, (connection) => {
      connection.on('error', () => {}).on('authentication', (context) => {
        if (context.username === 'asked' && context.method === 'keyboard-interactive') context.prompt([{ prompt: 'Word: ', echo: false }], () => {});
        else if (context.username === 'asked') context.reject(['keyboard-interactive']);
      });
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const to = { host: '127.0.0.1', port: server.address().port, username: 'me', password: 'word', readyTimeout: 1000 };
    for (const more of [{}, { hostVerifier: () => {} }, { authHandler: () => {} }, { username: 'asked', tryKeyboard: true }]) {
      const events = [];
      const made = new ssh2.Client();
      for (const event of ['connect', 'ready', 'timeout', 'keyboard-interactive', 'end', 'close']) made.on(event, () => events.push(event));
      made.on('error', (error) => events.push(shown(error)));
      const gone = closed(made);
      made.connect({ ...to, ...more });
      await gone;
      see(events);
    }
    server.close();
  },
  'a password that has to be changed': async ({ ssh2, see, where }) => {
    for (const next of ['sesame', 'wrong']) {
      const { error } = await connected(ssh2, { ...where, password: 'expired' }, (client) =>
        client.on('change password', (prompt, done) => {
          see(prompt);
          done(next);
        }));
      see(shown(error));
    }
  },
  'OpenSSH\'s extensions on another server': async ({ ssh2, see, where }) => {
    const made = await connected(ssh2, where);
    for (const [method, ...given] of [
      ['openssh_noMoreSessions'], ['openssh_forwardInStreamLocal', '/a'], ['openssh_unforwardInStreamLocal', '/a'], ['openssh_forwardOutStreamLocal', '/a'],
    ]) {
      see(method, shown((await called(made, method, ...given))[0]));
    }
  },
  'the server answers no more': async ({ ssh2, see, where, server }) => {
    const made = await connected(ssh2, { ...where, keepaliveInterval: 50, keepaliveCountMax: 2 });
    const events = [];
    for (const event of ['error', 'end', 'close']) made.on(event, (error) => events.push([event, ...(event === 'error' ? shown(error) : [])]));
    server.connection._sock.pause();
    await closed(made);
    see(events);
  },
  'the time to be ready': async ({ ssh2, see, where, silent }) => {
    const events = [];
    const { client, error } = await connected(ssh2, { ...where, port: silent, readyTimeout: 100 }, (made) => {
      for (const event of ['connect', 'end', 'close']) made.on(event, () => events.push(event));
      // The second one of ssh2's.
      made.once('error', () => made.on('error', () => {}));
    });
    await closed(client);
    see(shown(error), events);
  },
};

/** Programs without a server. */
export const alone = {
  'passphrases of old PEM keys': async ({ ssh2, see, pem, unused }) => {
    for (const passphrase of [undefined, '', 'wrong', 'secret']) {
      const parsed = ssh2.utils.parseKey(pem, passphrase);
      see(parsed instanceof Error ? shown(parsed) : parsed.type);
      const client = new ssh2.Client();
      client.on('error', () => {});
      try {
        client.connect({ host: '127.0.0.1', port: unused, username: 'me', privateKey: pem, passphrase });
        see('is taken');
      } catch (error) {
        see(shown(error));
      }
    }
    see(shown(ssh2.utils.parseKey('-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----')));
  },
  'a stream under the connection that cannot be connected': async ({ ssh2, see, unused }) => {
    const events = [];
    const client = new ssh2.Client();
    for (const event of ['connect', 'ready', 'end', 'close']) client.on(event, () => events.push(event));
    client.on('error', (error) => events.push(shown(error, 'code', 'errno', 'syscall', 'port')));
    client.connect({ sock: connect(unused, '127.0.0.1'), username: 'me', password: 'x' });
    await closed(client);
    see(events.map((each) => (Array.isArray(each) ? each.filter((part) => !part.startsWith('port')).map((part) => part.replace(/:\d+$/, '')) : each)));
  },
  'nobody listens': async ({ ssh2, see, unused }) => {
    const events = [];
    const { client, error } = await connected(ssh2, { host: '127.0.0.1', port: unused, username: 'me' }, (made) => {
      for (const event of ['error', 'end', 'close']) made.on(event, () => events.push(event));
    });
    await closed(client).catch(() => {});
    see(shown(error, 'code', 'errno', 'syscall', 'address', 'port').map(String), events);
  },
  'a server that hangs up at once': async ({ ssh2, see }) => {
    for (const text of ['', 'HTTP/1.1 400 Bad Request\r\n\r\n']) {
      const server = createServer((socket) => socket.on('error', () => {}).end(text)).listen(0, '127.0.0.1');
      await once(server, 'listening');
      const { client, error } = await connected(ssh2, { host: '127.0.0.1', port: server.address().port, username: 'me' });
      see(error.message, error.level);
      await closed(client).catch(() => {});
      server.close();
    }
  },
  'a name that does not exist': async ({ ssh2, see }) => {
    for (const more of [{}, { forceIPv4: true }, { forceIPv6: true }]) {
      const { error } = await connected(ssh2, { host: 'no-such-host.invalid', username: 'me', ...more });
      see(shown(error, 'code', 'syscall', 'hostname'));
    }
  },
  'an empty private key': async ({ ssh2, see, unused }) => {
    for (const privateKey of ['', Buffer.alloc(0), ' ']) {
      try {
        const { error } = await connected(ssh2, { host: '127.0.0.1', port: unused, username: 'me', privateKey });
        see(error.message.replace(unused, 'PORT'));
      } catch (error) {
        see(shown(error));
      }
    }
  },
  'what connect() throws for': async ({ ssh2, see, encrypted, key, unused }) => {
    for (const config of [
      {}, { username: 'me', privateKey: 'nonsense' }, { username: 'me', privateKey: key.public },
      { username: 'me', privateKey: encrypted }, { username: 'me', privateKey: encrypted.subarray(0, 200), passphrase: 'secret' },
      { username: 'me', agentForward: true }, { username: 'me', algorithms: { cipher: ['rot13'] } },
    ]) {
      try {
        new ssh2.Client().on('error', () => {}).connect({ host: '127.0.0.1', port: unused, ...config });
        see('connects');
      } catch (error) {
        see(shown(error));
      }
    }
    for (const config of [undefined, null, 7, 'x']) {
      try {
        new ssh2.Client().connect(config);
      } catch (error) {
        see(error instanceof TypeError || shown(error));
      }
    }
  },
  'before connect()': async ({ ssh2, see }) => {
    for (const method of ['exec', 'shell', 'sftp', 'forwardIn']) {
      try {
        new ssh2.Client()[method]('true', () => {});
      } catch (error) {
        see(shown(error));
      }
    }
    see(new ssh2.Client().end() instanceof ssh2.Client, new ssh2.Client()._sock);
  },
  'a stand-in for the socket': async ({ ssh2, see }) => {
    const sock = new Readable({ read() {} });
    const events = [];
    sock.write = () => true;
    sock.end = () => sock.destroy();
    sock.writable = true;
    const client = new ssh2.Client().on('error', (error) => events.push(error.level)).on('close', () => events.push('close'));
    client.connect({ sock, username: 'me', readyTimeout: 100 });
    await closed(client);
    see(events);
  },
  'utils': async ({ ssh2, see, key, encrypted, putty }) => {
    const { utils } = ssh2;
    see(Object.keys(utils).sort(), Object.keys(utils.sftp).sort());
    see(utils.sftp.stringToFlags('w'), utils.sftp.stringToFlags('?'), utils.sftp.flagsToString(3), utils.sftp.OPEN_MODE.APPEND, utils.sftp.STATUS_CODE.EOF);
    const cut = ['ssh-rsa AAAA', 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA x', '-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----'].map((text) => [text]);
    for (const [data, passphrase] of [[key.private], [key.public], [encrypted, 'secret'], [putty], ['x'], [Buffer.from('x')], [7], ...cut]) {
      const parsed = utils.parseKey(data, passphrase);
      if (parsed instanceof Error) see(parsed.message);
      else see(parsed.type, parsed.comment, parsed.isPrivateKey(), parsed.getPublicSSH().toString('hex'), parsed.getPrivatePEM()?.length);
    }
    let [error, made] = [];
    // Of those that ssh2 1.17 makes, one in some 200 is nothing that it can read.
    do [error, made] = await called(utils, 'generateKeyPair', 'ed25519', { comment: 'made' });
    while (utils.parseKey(made.private) instanceof Error || utils.parseKey(made.public) instanceof Error);
    see(error, Object.keys(made).sort(), utils.parseKey(made.private).comment, utils.parseKey(made.public).type);
    for (const [type, options] of [
      ['rsa'], ['rsa', { bits: 0 }], ['ecdsa', { bits: 7 }], ['nonsense'], ['ed25519', { format: 'old' }], ['ed25519', { comment: 7 }],
      ['ed25519', { passphrase: 7 }], ['ed25519', { passphrase: '' }], ['ed25519', { passphrase: 'x' }], ['ed25519', { cipher: 'aes256-ctr' }],
      ['ed25519', { cipher: 'rot13', passphrase: 'x' }], ['ed25519', { rounds: 'x', cipher: 'aes256-ctr', passphrase: 'x' }],
      ['ed25519', 7], ['ed25519', null], ['rsa', 7], ['ecdsa', null], [7],
    ]) {
      try {
        const made = utils.generateKeyPairSync(type, options);
        see(made.public.split(' ').length);
      } catch (error) {
        see(error.constructor.name, error.message);
      }
      try {
        const [error, made] = await called(utils, 'generateKeyPair', type, options);
        see('told', error?.message, made?.public.split(' ').length);
      } catch (error) {
        see(error.constructor.name, error.message);
      }
    }
  },
  'what parsed keys do': async ({ ssh2, see, pairs, original }) => {
    const { utils } = ssh2;
    const pem = (text) => (text === null ? null : [text, createPublicKey(text).export({ type: 'spki', format: 'der' }).toString('hex')].map(String));
    for (const pair of pairs) {
      const [secret, shared] = [utils.parseKey(pair.private), utils.parseKey(pair.public)];
      see(secret.type, secret.isPrivateKey(), shared.isPrivateKey(), shared.getPrivatePEM());
      see(pem(secret.getPublicPEM()), pem(shared.getPublicPEM()), pem(secret.getPrivatePEM())[1], secret.getPrivatePEM().split('\n')[0]);
      const others = [pair.private, pair.public, Buffer.from(pair.private), secret, shared, shared.getPublicSSH(), pairs[0].public, 'x', undefined];
      // ssh2 does not read the PEM that it makes of Ed25519.
      if (secret.type !== 'ssh-ed25519') others.push(secret.getPrivatePEM());
      see(others.map((other) => [secret.equals(other), shared.equals(other)]));
      see(shared.equals(original.utils.parseKey(pair.public)), secret.equals(original.utils.parseKey(pair.public)), utils.parseKey(secret) === secret);
      const data = Buffer.from('data');
      for (const algorithm of [undefined, 'sha256', 'sha512', 7]) {
        const signature = secret.sign(data, algorithm);
        see(signature instanceof Error ? signature.code : shared.verify(data, signature, algorithm), signature instanceof Error);
      }
      see(shown(shared.sign(data)), shared.verify(data, Buffer.from('x')), secret.verify(Buffer.from('other'), secret.sign(data)));
    }
  },
  'AgentProtocol': async ({ ssh2, see, key }) => {
    const [asking, answering] = [new ssh2.AgentProtocol(true), new ssh2.AgentProtocol(false)];
    asking.pipe(answering).pipe(asking);
    const requests = [];
    answering.on('identities', (request) => requests.push(request));
    answering.on('sign', (request, asked, data, options) => {
      see(asked.type, data.toString(), options);
      requests.push(request);
    });
    const first = called(asking, 'getIdentities');
    const second = called(asking, 'sign', key.public, Buffer.from('data'), { hash: 'sha512' });
    const third = called(asking, 'sign', key.public, Buffer.from('more'));
    while (requests.length < 3) await new Promise((resolve) => setImmediate(resolve));
    const parsed = ssh2.utils.parseKey(key.private);
    // Answers may be given in any order.
    answering.failureReply(requests[2]);
    see(requests[2].hasResponded());
    answering.signReply(requests[1], parsed.sign(Buffer.from('data')));
    answering.getIdentitiesReply(requests[0], [parsed, { pubKey: parsed }, { pubKey: { pubKey: key.public, comment: 'other' } }]);
    const [, keys] = await first;
    see(keys.map(({ type, comment }) => [type, comment]));
    const [, signature] = await second;
    see(parsed.verify(Buffer.from('data'), signature), shown((await third)[0]));
    for (const misuse of [
      () => asking.failureReply(requests[0]), () => answering.getIdentities(() => {}), () => answering.sign(key.public, Buffer.from('x'), () => {}),
      () => answering.signReply({}, Buffer.from('x')), () => answering.signReply(requests[0], Buffer.from('x')),
      () => asking.sign('nonsense', Buffer.from('x'), () => {}),
    ]) {
      try {
        see(misuse());
      } catch (error) {
        see(shown(error));
      }
    }
    const left = called(asking, 'getIdentities');
    asking.end();
    see(shown((await left)[0]));
    const [one, other] = [new ssh2.AgentProtocol(true), new ssh2.AgentProtocol(false)];
    other.on('identities', () => other.destroy());
    one.pipe(other).pipe(one);
    see(shown((await called(one, 'getIdentities'))[0]));
  },
  'Server': async ({ ssh2, see, key }) => {
    try {
      see(typeof new ssh2.Server({ hostKeys: [key.private] }, () => {}).listen);
    } catch (error) {
      see(error.message);
    }
  },
  'what the module exports': async ({ ssh2, see, original }) => {
    see(Object.keys(original).filter((name) => typeof ssh2[name] !== typeof original[name]));
  },
};
