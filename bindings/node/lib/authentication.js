'use strict';

// The course of a log-in as ssh2's users choose it: a list of methods, or a function that says what comes next.

const { isAgent, keysOf, signatureOf, socketOf } = require('./keys/agent');
const { attempt } = require('./hub');
const { isSealed, openSealed, parseKey } = require('./keys/keys');

/** @typedef {Omit<import('./native').AuthenticationAttempt, 'login'>} Attempt */

/** A program's private key, opened or being so. @typedef {Buffer | Promise<import('./keys/keys').ParsedKey | Error>} OwnKey */

/** The course of one log-in. */
class Authentication {
  /**
   * @param {import('./client').Client} client whose 'keyboard-interactive' answers where an attempt brings no function of its own
   * @param {import('./index').ConnectConfig} config
   * @param {OwnKey} [key]
   */
  constructor(client, config, key) {
    this._key = key;
    this._client = client;
    this._config = config;
    /** Answers the server's questions in the present attempt. @type {Function | undefined} */
    this.prompt = undefined;
    /** The kind of the present attempt, for errors. @type {string | undefined} */
    this.type = undefined;
    /** Signs in the present attempt. @type {any} */
    this._agent = undefined;
    /** @type {any[]} */
    this._keys = [];
    const allowed = ['none'];
    if (typeof config.password === 'string') allowed.push('password');
    if (config.privateKey) allowed.push('publickey');
    if (config.agent) allowed.push('agent');
    if (config.tryKeyboard === true) allowed.push('keyboard-interactive');
    if (config.privateKey && typeof config.localHostname === 'string' && typeof config.localUsername === 'string') allowed.push('hostbased');
    this._allowed = allowed;
    const { authHandler } = config;
    /** @type {Function} */
    this._handler = typeof authHandler === 'function' ? authHandler : inOrder(Array.isArray(authHandler) ? authHandler : allowed);
  }

  /** @param {string} text */
  _debug(text) {
    if (typeof this._config.debug === 'function') this._config.debug(text);
  }

  /**
   * Asks what comes next.
   * @param {string[] | null} methods
   * @param {boolean | null} partial
   * @param {(attempt?: Attempt) => void} answer throws for an attempt that cannot be made
   */
  next(methods, partial, answer) {
    let answered = false;
    const skip = (/** @type {string} */ why) => {
      this._debug(why);
      process.nextTick(() => attempt(this._client, () => this.next(methods, partial, answer)));
    };
    const take = (/** @type {any} */ next) => {
      if (answered) return;
      answered = true;
      this.type = undefined;
      this.prompt = undefined;
      if (next === false) return answer();
      this._attempt(next, skip, answer);
    };
    const next = this._handler(methods, partial, take);
    if (!answered && next !== undefined) take(next);
  }

  /**
   * @param {any} next a method's name, or an object with its values
   * @param {(why: string) => void} skip
   * @param {(attempt?: Attempt) => void} answer
   */
  _attempt(next, skip, answer) {
    const config = this._config;
    if (typeof next === 'string') {
      if (!this._allowed.includes(next)) return skip(`Authentication method not allowed: ${next}`);
      next = {
        type: next,
        username: config.username ?? config.user,
        password: config.password,
        key: this._key,
        agent: config.agent,
        localHostname: config.localHostname,
        localUsername: config.localUsername,
        prompt: (/** @type {any[]} */ ...asked) => this._client.emit('keyboard-interactive', ...asked),
      };
    }
    if (typeof next !== 'object' || next === null || typeof next.username !== 'string') {
      return skip(`Skipping invalid authentication attempt: ${next}`);
    }
    const { type, username } = next;
    this.type = type;
    switch (type) {
      case 'none':
        return answer({ username, method: 'none' });
      case 'password': {
        const { password } = next;
        if (typeof password !== 'string' && !Buffer.isBuffer(password)) return skip('Skipping invalid password auth attempt');
        return answer({ username, method: 'password', password: password.toString() });
      }
      case 'keyboard-interactive':
        if (typeof next.prompt !== 'function') return skip('Skipping invalid keyboard-interactive auth attempt');
        this.prompt = next.prompt;
        return answer({ username, method: 'keyboard-interactive' });
      case 'publickey':
        return this._withKey(next, { username, method: 'key' }, skip, answer);
      case 'hostbased': {
        const { localHostname, localUsername } = next;
        if (typeof localHostname !== 'string' || typeof localUsername !== 'string') return skip('Skipping invalid hostbased auth attempt');
        return this._withKey(next, { username, method: 'hostbased', localHostname, localUsername }, skip, answer);
      }
      case 'agent':
        return this._useAgent(next, skip, answer);
      default:
        return skip(`Skipping unsupported authentication method: ${type}`);
    }
  }

  /**
   * @param {any} next
   * @param {Attempt} made the attempt, which lacks the key
   * @param {(why: string) => void} skip
   * @param {(attempt?: Attempt) => void} answer
   */
  _withKey({ type, key, passphrase }, made, skip, answer) {
    const invalid = `Skipping invalid ${type === 'publickey' ? 'key' : type} auth attempt`;
    const use = (/** @type {import('./keys/keys').ParsedKey | Error} */ parsed) => {
      if (parsed instanceof Error) return skip(invalid);
      const pem = parsed.getPrivatePEM();
      if (pem === null) return skip('Skipping non-private key');
      if (type === 'publickey' && isShort(parsed)) return this._useKey(parsed, made.username, answer);
      try {
        answer({ ...made, key: Buffer.from(`${pem}\n`) });
      } catch {
        skip(invalid);
      }
    };
    if (key === this._key && key instanceof Promise) {
      key.then((parsed) => attempt(this._client, () => {
        // ssh2 throws it from connect(), for which it holds up the event loop.
        if (parsed instanceof Error) this.fail(new Error(`Cannot parse privateKey: ${parsed.message}`));
        use(parsed);
      }));
      return undefined;
    }
    if (!isSealed(key, passphrase)) return use(parseKey(key, passphrase));
    openSealed(key, passphrase).then(use);
    return undefined;
  }

  /**
   * @param {any} next
   * @param {(why: string) => void} skip
   * @param {(attempt?: Attempt) => void} answer
   */
  _useAgent({ username, agent }, skip, answer) {
    // The engine talks to it, and binds what it signs to the session.
    const socket = socketOf(agent);
    if (socket !== undefined) return answer({ username, method: 'agent', agent: socket });
    if (!isAgent(agent)) return skip(`Skipping invalid agent: ${agent}`);
    keysOf(agent, (error, keys) => {
      if (error) {
        attempt(this._client, () => this.fail(error, 'agent'));
        return skip('Client: agent auth failed');
      }
      this._agent = agent;
      this._keys = keys;
      answer({ username, method: 'keys', keys: keys.map(({ blob }) => blob) });
    });
  }

  /**
   * A key that the engine does not sign with, as an agent that has it would be used.
   * @param {import('./keys/keys').ParsedKey} key
   * @param {string} username
   * @param {(attempt?: Attempt) => void} answer
   */
  _useKey(key, username, answer) {
    this._agent = { sign: (/** @type {any} */ _key, /** @type {Buffer} */ data, /** @type {any} */ { hash }, /** @type {any} */ callback) => key.signAside(data, hash, callback) };
    this._keys = [{ key, blob: key.getPublicSSH() }];
    answer({ username, method: 'keys', keys: this._keys.map(({ blob }) => blob) });
  }

  /**
   * Has the present agent sign.
   * @param {{ key: number[], algorithm: string, data: number[] }} wanted
   * @param {(signature?: Buffer) => void} answer
   */
  sign({ key, algorithm, data }, answer) {
    const blob = Buffer.from(key);
    const found = this._keys.find((each) => each.blob.equals(blob));
    if (found === undefined) return answer();
    signatureOf(this._agent, found.key, Buffer.from(data), algorithm, (error, signature) => {
      if (error) this.fail(error, 'agent');
      answer(signature);
    });
  }

  /**
   * The same, of what the engine found: of an agent's socket, in ssh2's words.
   * @param {string} why
   */
  failedInEngine(why) {
    this.fail(this.type === 'agent' ? new Error('Failed to connect to agent', { cause: new Error(why) }) : new Error(why));
  }

  /**
   * Tells of something that cost an attempt and not the log-in.
   * @param {Error} error
   * @param {string} [level]
   */
  fail(error, level = this.type === 'agent' ? 'agent' : 'client-authentication') {
    this._client.emit('error', Object.assign(error, { level }));
  }
}

/** The bits of the shortest RSA key that the engine signs with. */
const SHORTEST_RSA = 2048;

/** @param {import('./keys/keys').ParsedKey} key */
function isShort(key) {
  // A key of a program's own kind says nothing of it.
  return key.type === 'ssh-rsa' && (key.bits?.() ?? SHORTEST_RSA) < SHORTEST_RSA;
}

/** @param {any[]} list */
function inOrder(list) {
  let at = 0;
  return () => (at === list.length ? false : list[at++]);
}

/**
 * Whether the course is the program's: as for ssh2, unless it is connect() that asks, whose order is ssh's.
 * @param {import('./index').ConnectConfig} config
 * @param {boolean} strict
 */
function asksHow({ authHandler, agent }, strict) {
  return !strict || typeof authHandler === 'function' || Array.isArray(authHandler) || isAgent(agent);
}

module.exports = { Authentication, asksHow };
