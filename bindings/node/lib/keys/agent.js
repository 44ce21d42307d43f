'use strict';

// Agents as ssh2's programs make and name them.

const { randomBytes } = require('node:crypto');
const { mkdirSync, rmSync } = require('node:fs');
const { connect, createServer } = require('node:net');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { AgentProtocol } = require('./agent-protocol');
const { attempt } = require('../hub');
const { encodeSignature, parseKey } = require('./keys');

/** The class that programs extend for an agent of their own. */
class BaseAgent {
  /** @param {(error: Error | null, keys?: any[]) => void} callback */
  getIdentities(callback) {
    callback(new Error('Missing getIdentities() implementation'));
  }

  /**
   * @param {any} _key
   * @param {Buffer} _data
   * @param {any} options
   * @param {(error: Error | null, signature?: Buffer) => void} [callback]
   */
  sign(_key, _data, options, callback) {
    if (typeof options === 'function') callback = options;
    callback?.(new Error('Missing sign() implementation'));
  }
}

/**
 * An agent that listens on a Unix socket. At a log-in the engine talks to it, which binds what it signs to the session,
 * unless a class of the program's has methods of its own.
 */
class OpenSSHAgent extends BaseAgent {
  /** @param {string} socketPath */
  constructor(socketPath) {
    super();
    this.socketPath = socketPath;
  }

  /** A connection to it. @param {(error: Error | null, stream?: import('node:net').Socket) => void} callback */
  getStream(callback) {
    const socket = connect(this.socketPath);
    const failed = (/** @type {Error} */ cause) => callback(new Error('Failed to connect to agent', { cause }));
    socket.once('error', failed).once('connect', () => {
      socket.off('error', failed);
      callback(null, socket);
    });
  }

  /** @param {(error: Error | null, keys?: any[]) => void} callback */
  getIdentities(callback) {
    this._ask('Failed to retrieve identities from agent', callback, (protocol, told) => protocol.getIdentities(told));
  }

  /**
   * @param {any} key
   * @param {Buffer} data
   * @param {any} options
   * @param {(error: Error | null, signature?: Buffer) => void} [callback]
   */
  sign(key, data, options, callback) {
    if (typeof options === 'function') [options, callback] = [undefined, options];
    this._ask('Failed to sign data with agent', callback, (protocol, told) => protocol.sign(key, data, options, told));
  }

  /**
   * Asks one thing over a connection of its own.
   * @param {string} failure what is told of a connection that ends without an answer
   * @param {((error: Error | null, value?: any) => void) | undefined} callback
   * @param {(protocol: AgentProtocol, told: (error: Error | null, value?: any) => void) => void} ask
   */
  _ask(failure, callback, ask) {
    this.getStream((error, stream) => {
      if (error || stream === undefined) return callback?.(error ?? new Error(failure));
      const protocol = new AgentProtocol(true);
      let answered = false;
      /** @type {(error: Error | null, value?: any) => void} */
      const told = (error, value) => {
        if (answered) return;
        answered = true;
        stream.destroy();
        callback?.(error, value);
      };
      protocol.on('error', told);
      stream.on('error', told).on('close', () => told(new Error(failure)));
      protocol.pipe(stream).pipe(protocol);
      ask(protocol, told);
    });
  }
}

/** An agent of Windows', which there is not here: its methods say so. */
class WindowsAgent extends BaseAgent {
  /** @param {(error: Error | null) => void} callback */
  getStream(callback) {
    callback(new Error(`${this.constructor.name} is an agent of Windows`));
  }

  /** @param {(error: Error | null, keys?: any[]) => void} callback */
  getIdentities(callback) {
    this.getStream(callback);
  }

  /**
   * @param {any} _key
   * @param {Buffer} _data
   * @param {any} options
   * @param {(error: Error | null, signature?: Buffer) => void} [callback]
   */
  sign(_key, _data, options, callback) {
    const told = typeof options === 'function' ? options : callback;
    this.getStream((error) => told?.(error));
  }
}

class PageantAgent extends WindowsAgent {}

class CygwinAgent extends WindowsAgent {
  /** @param {string} socketPath */
  constructor(socketPath) {
    super();
    this.socketPath = socketPath;
  }
}

/** @param {string} path */
function createAgent(path) {
  return new OpenSSHAgent(path);
}

/**
 * The path of an agent to which the engine can talk by itself: nothing for one that is the program's, in whole or in part.
 * @param {any} agent
 * @returns {string | undefined}
 */
function socketOf(agent) {
  if (typeof agent === 'string' && agent !== '') return agent;
  if (!(agent instanceof OpenSSHAgent)) return undefined;
  const own = /** @type {const} */ (['getStream', 'getIdentities', 'sign']).some((method) => agent[method] !== OpenSSHAgent.prototype[method]);
  return own ? undefined : agent.socketPath;
}

/** The directory of agents' sockets, once one is listened on: nobody but the user may enter it. */
const directory = join(tmpdir(), `trunkline-agent-${randomBytes(16).toString('hex')}`);
let isMade = false;
let sockets = 0;

/** A socket on which the engine finds an agent of the program's, for the sessions that it is lent to. */
class AgentSocket {
  /** @param {any} agent one without getStream() is there, and answers nobody: as for ssh2 */
  constructor(agent) {
    this.path = join(directory, String(sockets++));
    this._agent = agent;
    /** @type {import('node:net').Server | undefined} */
    this._server = undefined;
    /** @type {Set<import('node:net').Socket>} */
    this._lent = new Set();
  }

  /**
   * Listens, from the first session on.
   * @param {import('../hub').Owner} owner hears what the agent throws
   */
  listen(owner) {
    if (this._server !== undefined) return;
    if (!isMade) {
      mkdirSync(directory, { mode: 0o700 });
      process.once('exit', () => rmSync(directory, { recursive: true, force: true }));
      isMade = true;
    }
    this._server = createServer((socket) => attempt(owner, () => this._lend(socket))).listen(this.path).unref();
  }

  /** @param {import('node:net').Socket} socket */
  _lend(socket) {
    const { _agent: agent, _lent: lent } = this;
    const end = () => void socket.destroy();
    lent.add(socket);
    socket.on('error', end).once('close', () => lent.delete(socket));
    if (typeof agent.getStream !== 'function') return end();
    agent.getStream((/** @type {Error | null} */ error, /** @type {import('node:stream').Duplex} */ stream) => {
      if (error || !stream) return end();
      stream.on('error', end).once('close', end);
      socket.once('close', () => stream.destroy());
      socket.pipe(stream).pipe(socket);
    });
  }

  close() {
    this._server?.close();
    for (const socket of this._lent) socket.destroy();
  }
}

/** @param {any} value */
function isAgent(value) {
  return value instanceof BaseAgent
    || (typeof value === 'object' && value !== null && typeof value.getIdentities === 'function' && typeof value.sign === 'function');
}

/**
 * The keys of a program's agent that can be offered.
 * @param {any} agent
 * @param {(error: Error | null, keys: Array<{ key: any, blob: Buffer }>) => void} callback
 */
function keysOf(agent, callback) {
  let called = false;
  agent.getIdentities((/** @type {Error | null} */ error, /** @type {any[]} */ keys) => {
    if (called) return;
    called = true;
    // What a program's agent answers with may come at once, in the middle of its caller.
    process.nextTick(() => {
      if (error) return callback(error, []);
      if (!Array.isArray(keys)) return callback(new Error('Agent implementation failed to provide keys'), []);
      callback(null, keys.flatMap((each) => {
        // An agent may say more of a key than what it is.
        const key = parseKey(each?.pubKey?.pubKey ?? each?.pubKey ?? each);
        return key instanceof Error ? [] : [{ key, blob: key.getPublicSSH() }];
      }));
    });
  });
}

/** The hash that tells RSA's algorithms apart. @type {Record<string, string>} */
const HASHES = { 'rsa-sha2-256': 'sha256', 'rsa-sha2-512': 'sha512' };

/**
 * A signature of a program's agent, as the protocol has it.
 * @param {any} agent
 * @param {any} key
 * @param {Buffer} data
 * @param {string} algorithm
 * @param {(error: Error | null, signature?: Buffer) => void} callback
 */
function signatureOf(agent, key, data, algorithm, callback) {
  let called = false;
  agent.sign(key, data, { hash: HASHES[algorithm] }, (/** @type {Error | null} */ error, /** @type {Buffer} */ signature) => {
    if (called) return;
    called = true;
    if (error || !Buffer.isBuffer(signature)) return callback(error ?? new Error('Failed to sign data with agent'));
    callback(null, encodeSignature(algorithm, signature));
  });
}

module.exports = { AgentSocket, BaseAgent, CygwinAgent, OpenSSHAgent, PageantAgent, createAgent, isAgent, keysOf, signatureOf, socketOf };
