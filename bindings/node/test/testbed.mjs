// Real sshd servers for the tests, from trunkline-testkit.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import trunkline from '../lib/index.js';

const workspace = dirname(dirname(dirname(dirname(fileURLToPath(import.meta.url)))));
const built = join(process.env.CARGO_TARGET_DIR ?? join(workspace, 'target'), 'debug');
const program = join(built, 'trunkline-testbed');
export const trunklineProgram = join(built, 'trunkline');

/**
 * Starts servers that last until the test has ended.
 * @param {import('node:test').TestContext} t
 * @param {string[]} args for trunkline-testbed
 */
export async function servers(t, ...args) {
  return (await testbed(t, ...args)).hosts;
}

/**
 * The same with all that trunkline-testbed tells: `ssh_config`, `aliases`, `dir`.
 * @param {import('node:test').TestContext} t
 * @param {string[]} args for trunkline-testbed
 */
export async function testbed(t, ...args) {
  if (!existsSync(program)) throw new Error(`${program} is missing: cargo build -p trunkline-testkit --bins`);
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  t.after(async () => {
    // Before the servers go, or the clients would call it trouble.
    await Promise.all([...clients].filter((made) => made._id !== undefined).map((made) => ending(made.end())));
    clients.clear();
    child.stdin.end();
    if (child.exitCode === null) await once(child, 'exit');
  });
  const [line] = await once(createInterface(child.stdout), 'line');
  return JSON.parse(line);
}

/**
 * A place of its own for the test's daemon, which is ended with the test: sets TRUNKLINE_DIR and TRUNKLINE_PROGRAM.
 * @param {import('node:test').TestContext} t
 */
export function daemonPlace(t) {
  if (!existsSync(trunklineProgram)) throw new Error(`${trunklineProgram} is missing: cargo build --workspace --bins`);
  const dir = mkdtempSync(join(tmpdir(), 'tl-'));
  process.env.TRUNKLINE_DIR = dir;
  process.env.TRUNKLINE_PROGRAM = trunklineProgram;
  t.after(() => {
    spawnSync(trunklineProgram, ['stop', '--now'], { env: { ...process.env, TRUNKLINE_DIR: dir } });
    rmSync(dir, { recursive: true, force: true });
  });
  return dir;
}

/** Clients of the present test. */
const clients = new Set();

/** A client that is ended with the test's servers. */
export function fresh() {
  return also(new trunkline.Client());
}

/** Lets a client be ended with the test's servers. */
export function also(made) {
  clients.add(made);
  return made;
}

/** Waits for the end of a client or stream; unlike events.once() an error is none of its business. */
export function ending(emitter) {
  return new Promise((resolve) => emitter.once('close', (...args) => resolve(args)));
}

/** The options of connect() for a host. */
export function config(host, more = {}) {
  return {
    host: host.address,
    port: host.port,
    username: host.user,
    privateKey: readFileSync(host.key),
    knownHosts: host.known_hosts,
    ...more,
  };
}

/** One server, and a client of it that is ready. */
export async function client(t, more = {}, ...args) {
  const [host] = await servers(t, ...args);
  const made = fresh();
  made.connect(config(host, more));
  await once(made, 'ready');
  return { host, client: made };
}

/** A method with a callback, as a promise. */
export function ask(target, method, ...args) {
  return new Promise((resolve, reject) => {
    target[method](...args, (error, value) => (error ? reject(error) : resolve(value)));
  });
}

/** Everything that a stream gives. */
export async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}
