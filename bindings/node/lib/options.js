'use strict';

// What ssh2's users give to connect(), checked, in the form that the engine takes.

const { isIP } = require('node:net');
const { homedir } = require('node:os');
const { delimiter, join } = require('node:path');
const { createHash, getHashes } = require('node:crypto');
const { accessSync, constants } = require('node:fs');
const { AgentSocket, isAgent, socketOf } = require('./keys/agent');
const { asksHow } = require('./authentication');
const { isSealed, openSealed, parseKey } = require('./keys/keys');
const { hostOf, received } = require('./errors');
const native = require('./native');

/** The possible values of `hostHash`: anything else leaves the key as it is, as for ssh2. */
const HASHES = getHashes();

/** The names that the engine has, best first: what `append`, `prepend` and `remove` change. */
const ALGORITHMS = native.algorithms();

/**
 * ssh2's further algorithms, for old servers. Lists of programs name it beside others.
 * @type {Record<keyof typeof ALGORITHMS, string[]>}
 */
const LEFT_OUT = {
  kex: [
    'diffie-hellman-group15-sha512', 'diffie-hellman-group17-sha512', 'diffie-hellman-group-exchange-sha1', 'diffie-hellman-group14-sha1',
    'diffie-hellman-group1-sha1',
  ],
  serverHostKey: ['ssh-dss'],
  cipher: [
    'aes128-gcm', 'aes256-gcm', '3des-cbc', 'aes256-cbc', 'aes192-cbc', 'aes128-cbc', 'arcfour256', 'arcfour128', 'arcfour', 'blowfish-cbc',
    'cast128-cbc',
  ],
  hmac: [
    'hmac-sha1-etm@openssh.com', 'hmac-sha1', 'hmac-md5', 'hmac-sha2-256-96', 'hmac-sha2-512-96', 'hmac-ripemd160', 'hmac-sha1-96',
    'hmac-md5-96',
  ],
  compress: ['zlib'],
};

/** The names that replace others: a program that asks for RSA keys gets them, signed with SHA-2. @type {Record<string, string[]>} */
const INSTEAD = { 'ssh-rsa': ['rsa-sha2-512', 'rsa-sha2-256'] };

/**
 * @param {keyof typeof ALGORITHMS} kind
 * @param {import('./index').AlgorithmList<string> | undefined} wanted
 * @returns {string[] | undefined} undefined: the engine's own order
 */
function algorithms(kind, wanted) {
  const known = ALGORITHMS[kind];
  /** @type {(names: unknown) => string[]} */
  const matching = (names) => {
    const list = Array.isArray(names) ? names : [names];
    return list.flatMap((name) => {
      if (name instanceof RegExp) return known.filter((candidate) => name.test(candidate));
      if (LEFT_OUT[kind].includes(name)) return [];
      if (kind === 'serverHostKey' && Object.hasOwn(INSTEAD, name)) return INSTEAD[name];
      if (!known.includes(name)) throw new Error(`Unsupported algorithm: ${name}`);
      return [name];
    });
  };
  if (Array.isArray(wanted)) {
    const list = [...new Set(matching(wanted))];
    if (list.length === 0 && typeof wanted[0] === 'string') throw new Error(`Unsupported algorithm: ${wanted[0]}`);
    return wanted.length > 0 ? list : undefined;
  }
  if (typeof wanted !== 'object' || wanted === null) return undefined;
  let list = known;
  for (const [change, names] of Object.entries(wanted)) {
    if (change === 'remove') {
      const removed = Array.isArray(names) ? names : [names];
      list = list.filter((name) => !removed.some((pattern) => (pattern instanceof RegExp ? pattern.test(name) : pattern === name)));
      continue;
    }
    const chosen = matching(names).filter((name) => change === 'prepend' || !list.includes(name));
    if (change === 'append') list = [...list, ...chosen];
    else if (change === 'prepend') list = [...chosen, ...list.filter((name) => !chosen.includes(name))];
  }
  return list;
}

/**
 * @param {unknown} value
 * @returns {Uint8Array | undefined}
 */
function bytes(value) {
  if (typeof value === 'string') return Buffer.from(value);
  return value instanceof Uint8Array ? value : undefined;
}

/**
 * The private key, which must be one, in a format that the engine reads; opened, unless that takes its time.
 * @param {import('./index').ConnectConfig} config
 * @returns {{ content?: Buffer, sealed?: boolean }}
 */
function privateKey(config) {
  const given = config.privateKey === '' ? undefined : bytes(config.privateKey);
  if (given === undefined) return {};
  const content = Buffer.from(given);
  const passphrase = /** @type {any} */ (config.passphrase);
  if (isSealed(content, passphrase)) return { content, sealed: true };
  const key = parseKey(content, passphrase);
  if (key instanceof Error) throw new Error(`Cannot parse privateKey: ${key.message}`);
  const pem = key.getPrivatePEM();
  if (pem === null) throw new Error('privateKey value does not contain a (valid) private key');
  return { content: Buffer.from(`${pem}\n`) };
}

/**
 * @param {unknown} value
 * @param {number} otherwise
 * @returns {number}
 */
function count(value, otherwise) {
  return typeof value === 'number' && value >= 0 ? value : otherwise;
}

/**
 * @param {import('./index').ConnectConfig} config
 * @returns {import('./native').ConnectOptions['knownHosts']}
 */
function knownHosts(config) {
  const { knownHosts: given } = config;
  if (typeof given === 'string') return [given];
  if (Array.isArray(given)) return given;
  return [join(homedir(), '.ssh', 'known_hosts'), '/etc/ssh/ssh_known_hosts'];
}

/**
 * The judge of the host key. A key that differs from what known_hosts say is refused. A host that they do not name is refused,
 * too, but by an ssh2 Client whose program has not said a word of it: ssh2 looks at no known_hosts.
 * @param {import('./index').ConnectConfig} config
 * @param {boolean} strict
 * @returns {'any' | 'known' | 'known or new' | 'program'}
 */
function hostKeys({ hostVerifier, knownHosts }, strict) {
  if (typeof hostVerifier === 'function') return 'program';
  if (knownHosts === false) return 'any';
  return strict || knownHosts !== undefined ? 'known' : 'known or new';
}

/**
 * The engine's options, and the private key for a program that leads the log-in: there is one log-in or more.
 * @param {import('./index').ConnectConfig} config
 * @param {boolean} strict whether a host that known_hosts do not name is refused
 * @returns {{
 *   options: import('./native').ConnectOptions, key: import('./authentication').OwnKey | undefined,
 *   lent: import('./keys/agent').AgentSocket | undefined,
 * }} `lent`: where the engine finds an agent of the program's
 */
function connectOptions(config, strict) {
  const username = config.username ?? config.user;
  if (typeof username !== 'string') throw new Error('Invalid username');
  const lent = socketOf(config.agent) === undefined && isAgent(config.agent) ? new AgentSocket(config.agent) : undefined;
  const agent = lent?.path ?? socketOf(config.agent);
  if (config.agentForward === true && agent === undefined) {
    throw new Error('You must set a valid agent path to allow agent forwarding');
  }
  const host = hostOf(config);
  if (typeof host !== 'string') {
    const error = new TypeError(`The "hostname" argument must be of type string. ${received(host)}`);
    throw Object.assign(error, { code: 'ERR_INVALID_ARG_TYPE' });
  }
  const port = Number(config.port || 22);
  if (!Number.isInteger(port) || port < 1 || port > 65535) {
    const error = new RangeError(`Port should be >= 0 and < 65536. ${received(config.port)}.`);
    throw Object.assign(error, { code: 'ERR_SOCKET_BAD_PORT' });
  }
  const lists = config.algorithms ?? {};
  const compress = algorithms('compress', lists.compress);
  const passphrase = bytes(config.passphrase);
  const course = asksHow(config, strict);
  const { content, sealed } = privateKey(config);
  const options = {
    host,
    port,
    username,
    password: typeof config.password === 'string' ? config.password : undefined,
    privateKey: content,
    passphrase: passphrase === undefined ? undefined : Buffer.from(passphrase).toString(),
    agent,
    agentForward: config.agentForward === true,
    hostKeys: hostKeys(config, strict),
    knownHosts: knownHosts(config),
    keepaliveInterval: count(config.keepaliveInterval, 0),
    keepaliveCountMax: count(config.keepaliveCountMax, 3),
    readyTimeout: count(config.readyTimeout, 20_000),
    tryKeyboard: config.tryKeyboard === true,
    asksHow: course,
    connections: Math.max(1, Math.trunc(count(config.connections, 1))),
    localAddress: typeof config.localAddress === 'string' ? config.localAddress : undefined,
    // An address has its own.
    family: isIP(host) ? undefined : config.forceIPv4 ? 4 : config.forceIPv6 ? 6 : undefined,
    kex: algorithms('kex', lists.kex),
    serverHostKey: algorithms('serverHostKey', lists.serverHostKey),
    cipher: algorithms('cipher', lists.cipher),
    hmac: algorithms('hmac', lists.hmac),
    compress: compress !== undefined && compress[0] !== 'none',
    overStream: config.sock !== undefined && config.sock !== null,
  };
  const key = sealed && course ? openSealed(/** @type {Buffer} */ (content), /** @type {any} */ (config.passphrase)) : content;
  return { options, key, lent };
}

/** The possible values of `daemon`, and their names in the native module. @type {Map<unknown, string>} */
const WAYS = new Map();
WAYS.set(false, 'engine').set('auto', 'running daemon').set(true, 'daemon');

/**
 * The engine's options for a destination of ssh_config.
 * @param {import('./index').DestinationConfig} config
 * @returns {import('./native').DestinationOptions}
 */
function destinationOptions(config) {
  const { daemon = 'auto' } = config;
  if (!WAYS.has(daemon)) throw new TypeError('daemon is true, false or "auto"');
  const passphrase = bytes(config.passphrase);
  return {
    destination: config.destination,
    sshArgs: sshArgs(config),
    env: Object.entries(process.env).map(([name, value]) => [name, String(value)]),
    directory: process.cwd(),
    way: /** @type {'engine' | 'running daemon' | 'daemon'} */ (WAYS.get(daemon)),
    daemonCommand: daemon === true ? [program(), 'daemon', '--detach'] : [],
    password: typeof config.password === 'string' ? config.password : undefined,
    passphrase: passphrase === undefined ? undefined : Buffer.from(passphrase).toString(),
    readyTimeout: count(config.readyTimeout, 20_000),
    tryKeyboard: config.tryKeyboard === true,
  };
}

/**
 * Options as for ssh. The first word on something holds, as in ssh_config.
 * @param {import('./index').DestinationConfig} config
 * @returns {string[]}
 */
function sshArgs(config) {
  const args = [];
  if (config.config !== undefined) args.push('-F', config.config);
  const username = config.username ?? config.user;
  if (username !== undefined) args.push('-l', username);
  if (config.port !== undefined) args.push('-p', String(config.port));
  if (typeof config.agent === 'string') args.push('-o', `IdentityAgent=${config.agent}`);
  if (typeof config.agentForward === 'boolean') args.push('-o', `ForwardAgent=${config.agentForward ? 'yes' : 'no'}`);
  for (const [name, value] of Object.entries(config.options ?? {})) {
    for (const each of Array.isArray(value) ? value : [value]) args.push('-o', `${name}=${each}`);
  }
  return args;
}

/** The program that can be the daemon. @returns {string} */
function program() {
  const { TRUNKLINE_PROGRAM: named, PATH = '' } = process.env;
  if (named) return named;
  for (const directory of PATH.split(delimiter)) {
    const file = join(directory, 'trunkline');
    try {
      accessSync(file, constants.X_OK);
      return file;
    } catch {
      // It is not there.
    }
  }
  throw new Error('daemon: true needs the program trunkline on PATH, or TRUNKLINE_PROGRAM set to its file');
}

/**
 * The targets of a session's streams.
 * @param {import('./index').Stdio | undefined} stdio
 * @returns {import('./native').StdioOption[]}
 */
function stdioOptions(stdio) {
  if (stdio === undefined) return [];
  if (!Array.isArray(stdio) || stdio.length > 3) {
    throw new TypeError('stdio is an array of what input, output and error output are');
  }
  return stdio.map((each) => {
    if (each === undefined || each === 'pipe') return { kind: 'pipe' };
    if (each === null || each === 'ignore') return { kind: 'ignore' };
    if (typeof each === 'number' && Number.isInteger(each) && each >= 0) return { kind: 'fd', fd: each };
    if (typeof each === 'string' && each !== '') return { kind: 'path', path: each };
    throw new TypeError(`stdio has 'pipe', 'ignore', file descriptors and paths, not ${String(each)}`);
  });
}

/**
 * Asks the program's verifier, which answers by its result or its callback, once.
 * @param {import('./index').ConnectConfig} config
 * @param {Buffer} key
 * @param {(accept: boolean) => void} answer
 * @returns {Promise<void> | undefined} of a verifier that answers by a promise: rejected with what it is
 */
function verifyHostKey(config, key, answer) {
  const { hostVerifier, hostHash } = config;
  if (typeof hostVerifier !== 'function') {
    answer(false);
    return undefined;
  }
  let answered = false;
  const once = (/** @type {unknown} */ accept) => {
    if (answered) return;
    answered = true;
    answer(accept === true);
  };
  const hashed = typeof hostHash === 'string' && HASHES.includes(hostHash);
  const shown = hashed ? createHash(hostHash).update(key).digest('hex') : key;
  const result = /** @type {Function} */ (hostVerifier)(shown, once);
  if (result instanceof Promise) return result.then(once);
  if (result !== undefined) once(result);
  return undefined;
}

module.exports = { connectOptions, destinationOptions, stdioOptions, verifyHostKey };
