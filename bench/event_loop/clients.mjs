// The ways to have the output of commands on many hosts in one Node process.
//
// Each is `async open(hosts, { pinned })`, which connects, and gives
//   stream(n, command, take)   runs the command on the nth host; `take(bytes)` for every chunk that reaches the main thread
//   helpers()                  the other processes that take part, by pid
//   arrived()                  where chunks go past the main thread: the bytes that have arrived, stream by stream
//   close()                    ends what would outlive this process

import { execFileSync, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, openSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const CIPHER = 'aes128-gcm@openssh.com';

/** So many handshakes at a time: sshd refuses more by itself. */
const AT_ONCE = 8;

/** Maps with a bounded number of calls going on. */
async function several(items, map) {
  const results = [];
  let next = 0;
  const work = async () => {
    while (next < items.length) {
      const n = next++;
      results[n] = await map(items[n], n);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return results;
}

/** The options that ssh2 and trunkline share. */
function options(host) {
  return {
    host: host.address,
    port: host.port,
    username: host.user,
    privateKey: readFileSync(host.key),
    algorithms: { cipher: [CIPHER] },
  };
}

async function ssh2(hosts) {
  const { default: library } = await import('ssh2');
  const clients = await several(hosts, async (host) => {
    const client = new library.Client();
    client.connect(options(host));
    await once(client, 'ready');
    return client;
  });
  const run = (n, command, use) => {
    clients[n].exec(command, (error, stream) => {
      if (error) throw error;
      stream.stderr.resume();
      use(stream);
    });
  };
  return {
    stream: (n, command, take) => run(n, command, (stream) => stream.on('data', take)),
    /** For the proxy. */
    pipe: (n, command, target) => run(n, command, (stream) => stream.pipe(target)),
    helpers: () => [],
  };
}

/** A process a host. On a pinned run it goes where everything goes that is not the main thread. */
async function processes(hosts, { pinned }) {
  const children = [];
  return {
    stream(n, command, take) {
      const { address, port, user, key, known_hosts } = hosts[n];
      const ssh = ['ssh', '-F', 'none', '-i', key, '-o', 'IdentitiesOnly=yes', '-o', `UserKnownHostsFile=${known_hosts}`];
      const [program, ...rest] = [...(pinned ? ['taskset', '-c', '1'] : []), ...ssh, '-c', CIPHER, '-p', port, `${user}@${address}`, command];
      const child = spawn(program, rest, { stdio: ['ignore', 'pipe', 'inherit'] });
      children.push(child.pid);
      child.stdout.on('data', take);
    },
    helpers: () => children,
  };
}

/** ssh2 in a process of its own; every stream comes through a Unix socket. */
async function proxy(hosts, { pinned }) {
  const child = fork(fileURLToPath(new URL('./proxy.mjs', import.meta.url)), [JSON.stringify(hosts)], {
    ...(pinned && { execPath: 'taskset', execArgv: ['-c', '1', process.execPath] }),
  });
  const [path] = await once(child, 'message');
  return {
    stream(n, command, take) {
      const socket = createConnection(path);
      socket.on('data', take);
      socket.write(`${JSON.stringify({ n, command })}\n`);
    },
    helpers: () => [child.pid],
  };
}

async function trunkline(hosts) {
  const { connect } = await import('trunkline');
  const connections = await several(hosts, (host) => connect({ ...options(host), knownHosts: host.known_hosts }));
  return {
    stream(n, command, take) {
      connections[n].stream(command).on('data', take);
    },
    helpers: () => [],
  };
}

/** The same over the connections of a daemon of its own. */
async function daemon(hosts) {
  const { connect } = await import('trunkline');
  const place = mkdtempSync(join(tmpdir(), 'el-'));
  process.env.TRUNKLINE_DIR = place;
  const open = ({ alias, config }) => connect(alias, { config, daemon: true, options: { Ciphers: CIPHER } });
  // The first one starts it.
  const first = await open(hosts[0]);
  const connections = [first, ...(await several(hosts.slice(1), open))];
  const pid = readdirSync('/proc').find((entry) => /^\d+$/.test(entry) && isDaemon(entry, place));
  if (pid === undefined) throw new Error('there is no daemon');
  return {
    connections,
    place,
    stream(n, command, take) {
      connections[n].stream(command).on('data', take);
    },
    helpers: () => [Number(pid)],
    close() {
      process.kill(Number(pid));
      rmSync(place, { recursive: true });
    },
  };
}

/** Whether a process is the daemon of a directory. */
function isDaemon(pid, place) {
  try {
    const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
    // A private one, of a command with --no-daemon, is not the directory's.
    if (!words[0].endsWith('trunklined') || words[1] === '--private') return false;
    return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(`TRUNKLINE_DIR=${place}`);
  } catch {
    // It has ended, or is another user's.
    return false;
  }
}

/** The daemon writes into FIFOs, which other processes read: what a service does that hands its streams to workers. */
async function fifos(hosts, { pinned }) {
  const client = await daemon(hosts);
  const readers = [];
  return {
    stream(n, command) {
      const path = join(client.place, `fifo${readers.length}`);
      execFileSync('mkfifo', [path]);
      const [program, ...rest] = [...(pinned ? ['taskset', '-c', '1'] : []), 'cat', path];
      readers.push(spawn(program, rest, { stdio: ['ignore', openSync('/dev/null', 'w'), 'inherit'] }).pid);
      client.connections[n].stream(command, { stdio: ['ignore', path, 'ignore'] });
    },
    helpers: () => [...client.helpers(), ...readers],
    /** The bytes that each reader has written to /dev/null. */
    arrived: () => readers.map((pid) => Number(/^wchar: (\d+)/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8'))[1])),
    close: () => client.close(),
  };
}

/** By the names that the report gives them. */
export const CLIENTS = {
  ssh2: { open: ssh2 },
  'ssh, a process a host': { open: processes },
  'ssh, a process a host, 1 GB heap': { open: processes, heap: 1024 },
  'proxy process': { open: proxy },
  trunkline: { open: trunkline },
  'trunkline, daemon': { open: daemon },
  'trunkline, daemon, FIFOs': { open: fifos },
};
