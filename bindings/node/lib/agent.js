'use strict';

// Agents as ssh2's programs make and name them.

const { encodeSignature, parseKey } = require('./keys');

/** What programs extend for an agent of their own. */
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

/** An agent that listens on a Unix socket: the engine talks to it. */
class OpenSSHAgent extends BaseAgent {
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

module.exports = { BaseAgent, OpenSSHAgent, createAgent, isAgent, keysOf, signatureOf };
