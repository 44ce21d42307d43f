// Runs the programs of programs.mjs on ssh2 and on trunkline, and says what each of them saw.

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';

import original from 'ssh2-original';

import trunkline from '../../lib/index.js';
import { hostKey, ssh2Server, userKey } from '../ssh2-server.mjs';
import { config, servers } from '../testbed.mjs';
import { alone, onOpenssh, onSsh2 } from './programs.mjs';
import { onOwnServer } from './servers.mjs';

/**
 * The differences, by program, with the guide's words for them. The guide says so, too.
 * @type {Map<string, string>}
 */
export const DIFFERENT = new Map([
  ['Server', 'the server side'],
  ['end(x), then write(y)', 'data written after the end of a stream'],
  ['what a server says of a signal', 'the description of a signal'],
  ['exec: allowHalfOpen', '`allowHalfOpen: false`'],
  ['algorithms: prepend', '`prepend`'],
  ['agentForward of a session, and of the next ones', '`agentForward` of `exec` and `shell`'],
  ['sftp: names of users and groups', '`ext_users_groups`'],
  ['openssh_noMoreSessions', '`openssh_noMoreSessions`'],
  ['what is under way when the connection ends', 'a request without an answer when the connection ends'],
  ['a wrong passphrase', 'a wrong passphrase of a key in OpenSSH\'s format'],
  ['a file that cannot be written to its end', 'SFTP: a write stream whose data the server refuses'],
  ['a stand-in for the socket', 'a second error after a time-out'],
]);

/** A server of ssh2's that says what it is asked. */
async function talkative(t, seen, server) {
  return ssh2Server(t, (connection) => {
    server.connection = connection;
    connection.setNoDelay();
    connection.on('authentication', (context) => {
      seen.push(`${context.method} ${context.username}${context.signature ? ' signed' : ''}`);
      if (context.method === 'password' && context.password === 'sesame') return context.accept();
      if (context.method === 'password' && context.password === 'expired') {
        return context.requestChange('Another one: ', (next) => (next === 'sesame' ? context.accept() : context.reject()));
      }
      if (context.method === 'publickey' && server.trustsKeys && context.key.data.equals(original.utils.parseKey(userKey.public).getPublicSSH())) return context.accept();
      if (context.method === 'hostbased') {
        const { key, localHostname, localUsername } = context;
        seen.push(`${key.algo} ${localHostname} ${localUsername}`);
        const right = localHostname === 'desk.example.' && localUsername === 'joan';
        return right && original.utils.parseKey(userKey.public).verify(context.blob, context.signature) ? context.accept() : context.reject();
      }
      if (context.method === 'keyboard-interactive') {
        return context.prompt([{ prompt: 'Word: ', echo: false }], 'title', 'words', () => context.reject());
      }
      // As the server of ssh2's README: no method is named.
      return context.reject();
    });
    connection.on('tcpip', (accept, reject) => reject());
    connection.on('session', (accept) => {
      const session = accept();
      session.on('exec', (accept, reject, { command }) => {
        if (command === 'refuse') return reject();
        const stream = accept();
        stream.write('hello\n');
        stream.stderr.write('there\n');
        // All of it has gone before the exit.
        const more = command.startsWith('much') ? 1_500_000 : command === 'some' ? 100_000 : 0;
        if (more > 0) {
          const rest = command === 'much on stderr' ? stream.stderr : stream;
          return rest.write(Buffer.alloc(more), () => {
            stream.exit(5);
            stream.end();
          });
        }
        // ssh2's client, which lives in the same loop, has read that by then: of one piece it tells the exit first.
        afterRounds(3, () => {
          if (command.startsWith('signal')) stream.exit('TERM', false, command === 'signal' ? '' : 'why');
          else stream.exit(5);
          stream.end();
        });
      });
      session.on('env', (accept, _, { key, val }) => {
        seen.push(`env ${key} ${val}`);
        accept?.();
      });
      session.on('sftp', (accept) => {
        const sftp = accept();
        const say = (...told) => seen.push(told.join(' '));
        sftp.on('SYMLINK', (id, first, second) => {
          say('SYMLINK', first, second);
          sftp.status(id, 0);
        }).on('RENAME', (id, from, to) => {
          say('RENAME', from, to);
          sftp.status(id, 4);
        });
        hasOneFile(sftp);
        hasParts(sftp);
      });
    });
  }, { greeting: 'Hello there', banner: 'Be good' });
}

/** Does something when the event loop has gone round so many times. */
function afterRounds(rounds, work) {
  if (rounds === 0) work();
  else setImmediate(afterRounds, rounds - 1, work);
}

/** Has an SFTP server keep one file, with no regard to O_APPEND: bytes go where a request says. */
function hasOneFile(sftp) {
  let content = Buffer.alloc(0);
  const attributes = () => ({ mode: 0o100644, uid: 0, gid: 0, size: content.length, atime: 0, mtime: 0 });
  sftp.on('OPEN', (id, path, flags) => {
    if (flags & original.utils.sftp.OPEN_MODE.TRUNC) content = Buffer.alloc(0);
    sftp.handle(id, Buffer.from('file'));
  }).on('WRITE', (id, handle, offset, data) => {
    content = Buffer.concat([content.subarray(0, offset), data, content.subarray(offset + data.length)]);
    sftp.status(id, 0);
  }).on('READ', (id, handle, offset, length) => {
    if (offset >= content.length) sftp.status(id, 1);
    else sftp.data(id, content.subarray(offset, offset + length));
  }).on('FSTAT', (id) => sftp.attrs(id, attributes())).on('FSETSTAT', (id) => sftp.status(id, 0)).on('CLOSE', (id) => sftp.status(id, 0));
}

/** Has an SFTP server send a part of the attributes only. */
function hasParts(sftp) {
  const parts = { none: {}, size: { size: 5 }, mode: { mode: 0o40755 }, owner: { uid: 5, gid: 6 }, times: { atime: 1, mtime: 2 } };
  let isListed = false;
  sftp.on('STAT', (id, path) => {
    const [, part] = /^\/parts\/(\w+)$/.exec(path) ?? [];
    if (part in parts) sftp.attrs(id, parts[part]);
    else sftp.status(id, 8);
  }).on('OPENDIR', (id) => {
    isListed = false;
    sftp.handle(id, Buffer.from('parts'));
  }).on('READDIR', (id) => {
    if (isListed) return sftp.status(id, 1);
    isListed = true;
    return sftp.name(id, Object.entries(parts).map(([filename, attrs]) => ({ filename, longname: `a line of ${filename}`, attrs: { mode: 0o100644, ...attrs } })));
  });
}

/** The time limit, in milliseconds, for a program on one implementation. */
const LIMIT = 60_000;

/**
 * Runs a program on an implementation; returns what it saw.
 * @param {import('node:test').TestContext} t
 */
async function run(ssh2, program, more) {
  const saw = [];
  const see = (...told) => saw.push(JSON.parse(JSON.stringify(told, (_, value) => (value === undefined ? 'undefined' : value))));
  const clients = [];
  class Client extends ssh2.Client {
    constructor() {
      super();
      clients.push(this);
    }
  }
  const ended = new AbortController();
  try {
    await Promise.race([
      program({ ssh2: { ...ssh2, Client }, see, original, ...more }),
      setTimeout(LIMIT, undefined, { signal: ended.signal }).then(() => {
        throw new Error(`${ssh2 === original ? 'ssh2' : 'trunkline'} does not end; it saw ${JSON.stringify(saw)}`);
      }),
    ]);
  } finally {
    ended.abort();
    for (const client of clients) client.on('error', () => {}).end();
  }
  return saw;
}

/**
 * Runs every program on both.
 * @param {import('node:test').TestContext} t
 * @param {(name: string, compare: () => Promise<{ ssh2: any[], trunkline: any[] }>) => Promise<void>} each
 */
export async function compare(t, each) {
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-parity-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const on = async (ssh2, program, prepare) => run(ssh2, program, await prepare(ssh2));
  const both = async (program, prepare) => ({
    // The original has races of its own: what it does not see at once, it may see the next time.
    ssh2: await on(original, program, prepare).catch(() => on(original, program, prepare)),
    trunkline: await on(trunkline, program, prepare),
  });
  const more = ['rsa', 'ecdsa'].map((type) => {
    execFileSync('ssh-keygen', ['-q', '-t', type, '-N', '', '-f', join(directory, `host-${type}`)]);
    return `HostKey ${join(directory, `host-${type}`)}`;
  });
  const [host] = await servers(t, ...['AcceptEnv LC_*', ...more].flatMap((line) => ['--config', line]));
  // What is to speak SFTP there ends: it is not there, does not want to, is ended by a signal.
  const broken = await Promise.all(['/nothing/here', '/bin/false', 'kill -TERM $$'].map(async (command) => {
    const [made] = await servers(t, '--config', `Subsystem sftp ${command}`);
    return config(made);
  }));
  const closed = createServer().listen(0, '127.0.0.1');
  await once(closed, 'listening');
  const unused = closed.address().port;
  await new Promise((resolve) => closed.close(resolve));
  for (const [name, program] of Object.entries(onOpenssh)) {
    await each(name, () => both(program, async (ssh2) => {
      const client = new ssh2.Client();
      client.on('error', () => {}).connect(config(host));
      await once(client, 'ready');
      return { client, directory, unused, broken, config: { ...config(host), keyFile: host.key } };
    }));
  }
  const silent = createServer((socket) => socket.on('error', () => {})).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  t.after(() => silent.close());
  const sealed = join(directory, 'sealed');
  writeFileSync(sealed, userKey.private, { mode: 0o600 });
  execFileSync('ssh-keygen', ['-q', '-p', '-a', '1', '-P', '', '-N', 'secret', '-f', sealed]);
  for (const [name, program] of Object.entries(onSsh2)) {
    await each(name, () => both(program, async () => {
      const [seen, server] = [[], { trustsKeys: true }];
      return { where: await talkative(t, seen, server), seen, server, key: userKey, sealed: readFileSync(sealed), hostKey, silent: silent.address().port };
    }));
  }
  const encrypted = join(directory, 'encrypted');
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-a', '1', '-N', 'secret', '-C', 'me', '-f', encrypted]);
  const pem = join(directory, 'pem');
  execFileSync('ssh-keygen', ['-q', '-t', 'rsa', '-b', '2048', '-m', 'PEM', '-N', 'secret', '-f', pem]);
  const pairs = [['rsa', 2048], ['ecdsa', 256], ['ecdsa', 384], ['ecdsa', 521], ['ed25519', 256]].map(([type, bits]) => {
    const file = join(directory, `${type}-${bits}`);
    execFileSync('ssh-keygen', ['-q', '-t', type, '-b', String(bits), '-N', '', '-f', file]);
    return { private: readFileSync(file, 'utf8'), public: readFileSync(`${file}.pub`, 'utf8') };
  });
  for (const [name, program] of Object.entries(onOwnServer)) {
    await each(name, () => both(program, async () => ({
      pairs,
      serve: async (onConnection, options) => ({ ...(await ssh2Server(t, onConnection, options)), password: 'sesame' }),
    })));
  }
  const fixtures = new URL('../../node_modules/ssh2-original/test/fixtures/', import.meta.url);
  for (const [name, program] of Object.entries(alone)) {
    await each(name, () => both(program, async () => ({
      unused, key: userKey, pairs, encrypted: readFileSync(encrypted), pem: readFileSync(pem), putty: readFileSync(new URL('id_rsa.ppk', fixtures)),
    })));
  }
}
