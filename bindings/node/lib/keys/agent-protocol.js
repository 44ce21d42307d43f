'use strict';

// What clients and agents say to each other (draft-ietf-sshm-ssh-agent), as ssh2's programs use it for agents of their own.

const { Duplex } = require('node:stream');
const { Reader, encodeSignature, isKey, parseKey, strings } = require('./keys');

/** Messages, by their numbers. */
const FAILURE = 5;
const REQUEST_IDENTITIES = 11;
const IDENTITIES_ANSWER = 12;
const SIGN_REQUEST = 13;
const SIGN_RESPONSE = 14;

/** SSH_AGENT_RSA_SHA2_256 and SSH_AGENT_RSA_SHA2_512, by the hash. @type {Record<string, number>} */
const RSA_FLAGS = { sha256: 2, sha512: 4 };

/** The longest message that OpenSSH's agent takes, in bytes. */
const LONGEST = 256 * 1024;

/** @typedef {(error: Error | null, value?: any) => void} Callback */

/** A request that an agent has to answer. */
class Request {
  /** @param {number} type @param {string} [algorithm] of a signature */
  constructor(type, algorithm) {
    this.type = type;
    this.algorithm = algorithm;
    /** @type {Buffer | undefined} */
    this.reply = undefined;
  }

  hasResponded() {
    return this.reply !== undefined;
  }

  getType() {
    return this.type;
  }

  getContext() {
    return this.algorithm;
  }
}

/** @param {number} number */
function uint32(number) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(number);
  return bytes;
}

/** @param {number} type @param {Buffer} [content] */
function message(type, content = Buffer.alloc(0)) {
  return strings(Buffer.concat([Buffer.from([type]), content]));
}

/**
 * One end of a connection to an agent: a stream of what goes to the other end, which takes what comes from there.
 *
 * The client's end asks with `getIdentities` and `sign`. The agent's end emits 'identities' (request) and 'sign' (request,
 * public key, data, options), and answers with `getIdentitiesReply`, `signReply` and `failureReply`, in any order.
 */
class AgentProtocol extends Duplex {
  /** @param {boolean} isClient */
  constructor(isClient) {
    super();
    this._isClient = isClient;
    this._received = Buffer.alloc(0);
    /** The requests that the client waits for, oldest first. @type {Array<{ type: number, callback: Callback }>} */
    this._asked = [];
    /** The requests that the agent has not answered, oldest first. @type {Request[]} */
    this._owed = [];
  }

  _read() {}

  /** @param {Buffer} chunk @param {BufferEncoding} _encoding @param {(error?: Error | null) => void} callback */
  _write(chunk, _encoding, callback) {
    try {
      this._take(chunk);
    } catch (error) {
      return callback(/** @type {Error} */ (error));
    }
    callback();
  }

  /** @param {Buffer} chunk */
  _take(chunk) {
    let received = Buffer.concat([this._received, chunk]);
    while (received.length >= 4) {
      const length = received.readUInt32BE();
      if (length === 0 || length > LONGEST) throw new Error(`Malformed agent message of ${length} bytes`);
      if (received.length < 4 + length) break;
      const content = received.subarray(5, 4 + length);
      const type = received[4];
      received = received.subarray(4 + length);
      if (this._isClient) this._answered(type, content);
      else this._request(type, content);
    }
    this._received = received;
  }

  /** @param {number} type @param {Buffer} content */
  _answered(type, content) {
    const asked = this._asked.shift();
    if (asked === undefined) throw new Error('Received unexpected message from server');
    const refuse = (/** @type {string} */ why) => {
      const error = new Error(why);
      asked.callback(error);
      throw error;
    };
    if (type === FAILURE) return asked.callback(new Error('Agent responded with failure'));
    if (type !== IDENTITIES_ANSWER && type !== SIGN_RESPONSE) refuse('Agent responded with unsupported message type');
    if (type !== asked.type + 1) refuse('Agent responded with wrong message type');
    let answer;
    try {
      answer = type === SIGN_RESPONSE ? signatureIn(content) : identitiesIn(content);
    } catch {
      return refuse('Malformed agent response');
    }
    asked.callback(null, answer);
  }

  /** @param {number} type @param {Buffer} content */
  _request(type, content) {
    if (type === REQUEST_IDENTITIES) {
      const request = new Request(type);
      this._owed.push(request);
      this.emit('identities', request);
      return;
    }
    const asked = type === SIGN_REQUEST ? signRequestIn(content) : undefined;
    const request = new Request(type, asked?.algorithm);
    this._owed.push(request);
    if (asked === undefined) this.failureReply(request);
    else this.emit('sign', request, asked.key, asked.data, { hash: asked.hash });
  }

  /** @param {Error | null} error @param {(error?: Error | null) => void} callback */
  _destroy(error, callback) {
    for (const { callback: told } of this._asked.splice(0)) told(error ?? new Error('No reply from server'));
    // Whoever it is piped into ends with it.
    if (!this.readableEnded) setImmediate(() => this.emit('end'));
    callback(error);
  }

  /** @param {(error?: Error | null) => void} callback */
  _final(callback) {
    for (const { callback: told } of this._asked.splice(0)) told(new Error('No reply from server'));
    this.push(null);
    callback();
  }

  /**
   * Asks the agent for its keys.
   * @param {Callback} [callback] gets an array of parsed keys
   */
  getIdentities(callback) {
    return this._ask(REQUEST_IDENTITIES, undefined, callback);
  }

  /**
   * Asks the agent for a signature.
   * @param {any} key
   * @param {Buffer} data
   * @param {any} options `hash`, of an RSA key: 'sha256' or 'sha512'
   * @param {Callback} [callback] gets the signature, without its algorithm's name
   */
  sign(key, data, options, callback) {
    if (!this._isClient) throw new Error('Client-only method called with server role');
    if (typeof options === 'function') [options, callback] = [undefined, options];
    const parsed = parseKey(key);
    if (parsed instanceof Error) throw new Error('Invalid public key argument');
    const flags = parsed.type === 'ssh-rsa' ? RSA_FLAGS[options?.hash] ?? 0 : 0;
    return this._ask(SIGN_REQUEST, Buffer.concat([strings(parsed.getPublicSSH(), data), uint32(flags)]), callback);
  }

  /** @param {number} type @param {Buffer | undefined} content @param {Callback} [callback] */
  _ask(type, content, callback) {
    if (!this._isClient) throw new Error('Client-only method called with server role');
    this._asked.push({ type, callback: typeof callback === 'function' ? callback : () => {} });
    return this.push(message(type, content));
  }

  /** @param {Request} request */
  failureReply(request) {
    return this._reply(request, undefined, () => message(FAILURE));
  }

  /** @param {Request} request @param {any[]} keys parsed ones, or `{ pubKey, comment }` */
  getIdentitiesReply(request, keys) {
    return this._reply(request, REQUEST_IDENTITIES, () => {
      if (!Array.isArray(keys)) throw new Error('Keys argument must be an array');
      const known = keys.flatMap(identityOf);
      return message(IDENTITIES_ANSWER, Buffer.concat([uint32(known.length), ...known.map((pair) => strings(...pair))]));
    });
  }

  /** @param {Request} request @param {Buffer} signature as `sign` of a parsed key gives it */
  signReply(request, signature) {
    return this._reply(request, SIGN_REQUEST, () => {
      if (!Buffer.isBuffer(signature)) throw new Error('Signature argument must be a Buffer');
      if (signature.length === 0) throw new Error('Signature argument must be non-empty');
      return message(SIGN_RESPONSE, strings(encodeSignature(String(request.algorithm), signature)));
    });
  }

  /**
   * Answers are sent in the order of the requests.
   * @param {Request} request
   * @param {number | undefined} type
   * @param {() => Buffer} reply
   */
  _reply(request, type, reply) {
    if (this._isClient) throw new Error('Server-only method called with client role');
    if (!(request instanceof Request)) throw new Error('Wrong request argument');
    if (request.hasResponded()) return true;
    if (type !== undefined && request.type !== type) throw new Error('Invalid response to request');
    request.reply = reply();
    let flows = true;
    while (this._owed[0]?.reply !== undefined) flows = this.push(this._owed.shift()?.reply);
    return flows;
  }
}

/** @param {Buffer} content @returns {any[]} */
function identitiesIn(content) {
  const reader = new Reader(content);
  const keys = [];
  reader.at = 4;
  for (let left = content.readUInt32BE(); left > 0; left -= 1) {
    const [blob, comment] = [reader.string(), reader.string()];
    const key = parseKey(blob);
    // One of a type that is not known here.
    if (key instanceof Error) continue;
    key.comment = comment.toString();
    keys.push(key);
  }
  return keys;
}

/** @param {Buffer} content */
function signatureIn(content) {
  const signature = new Reader(new Reader(content).string());
  signature.string();
  return signature.string();
}

/** @param {Buffer} content */
function signRequestIn(content) {
  try {
    const reader = new Reader(content);
    const key = parseKey(reader.string());
    if (key instanceof Error) return undefined;
    const data = reader.string();
    const flags = content.readUInt32BE(reader.at);
    const hash = key.type === 'ssh-rsa' ? Object.keys(RSA_FLAGS).find((name) => flags & RSA_FLAGS[name]) : undefined;
    return { key, data, hash, algorithm: hash === undefined ? key.type : `rsa-sha2-${hash.slice(3)}` };
  } catch {
    return undefined;
  }
}

/** @param {any} entry @returns {Array<[Buffer, string | Buffer]>} the public half and its comment; nothing for one that is unknown */
function identityOf(entry) {
  if (typeof entry !== 'object' || entry === null) throw new Error(`Invalid key entry: ${entry}`);
  const named = isKey(entry) ? entry : entry.pubKey;
  const key = isKey(named) ? named : parseKey(named?.pubKey);
  if (key instanceof Error) return [];
  return [[key.getPublicSSH(), key.comment || named.comment || '']];
}

module.exports = { AgentProtocol };
