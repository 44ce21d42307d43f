'use strict';

// ssh2's `Client`: connect, log in, open channels, end.

const { AsyncResource } = require('node:async_hooks');
const { EventEmitter } = require('node:events');
const { KIND, hub, answer, attach, attempt, detach, retain, release } = require('./hub');
const { Channel, Tunnel } = require('./streams/channel');
const { Authentication } = require('./authentication');
const { BY_APPLICATION, checkText, hostOf, toConnectionError, toError, toRequestError } = require('./errors');
const { parseKey } = require('./keys/keys');
const { connectOptions, destinationOptions, stdioOptions, verifyHostKey } = require('./options');
const { SFTP } = require('./streams/sftp');
const { Socket } = require('./streams/socket');
const { terminal } = require('./streams/terminal');

/** Whether ssh2 takes a server for OpenSSH's of version 5 or later: that is one digit behind the name, or two digits anywhere. */
const isOpenSsh = (/** @type {string} */ software) => /^OpenSSH_[5-9]/.test(software) || /\d\d/.test(software);

/** Whether it is not beyond what a port can be: sshd refuses the others. @param {number | string} port */
const isPort = (port) => !(Number(port) < 0 || Number(port) > 65535);

/** SSH_OPEN_ADMINISTRATIVELY_PROHIBITED (RFC 4254 section 5.1). */
const ADMINISTRATIVELY_PROHIBITED = 1;

/**
 * The fields of a client's `config` that programs read: with ssh2's defaults, without passwords and keys, which nobody needs a second time.
 * @param {Record<string, any>} config
 */
function told(config) {
  return {
    host: hostOf(config),
    port: +config.port || 22,
    username: config.username || config.user,
    forceIPv4: config.forceIPv4 || false,
    forceIPv6: config.forceIPv6 || false,
    keepaliveInterval: config.keepaliveInterval || 0,
    keepaliveCountMax: config.keepaliveCountMax ?? 3,
    readyTimeout: config.readyTimeout ?? 20_000,
    tryKeyboard: config.tryKeyboard === true,
    strictVendor: config.strictVendor !== false,
  };
}

/**
 * ssh2's Client, with the engine behind it.
 *
 * Events: 'connect', 'greeting' (text), 'ready', 'handshake' (details), 'placement' (details), 'banner' (text), 'keyboard-interactive' (name, instructions, language, prompts,
 * finish), 'change password' (prompt, done), 'hostkeys' (keys), 'tcp connection' and 'unix connection' (details, accept, reject), 'error' (error with `level` and `code`),
 * 'timeout', 'end', 'close'.
 */
class Client extends EventEmitter {
  constructor() {
    super();
    /** @type {number | undefined} */
    this._id = undefined;
    /** @type {import('./index').ConnectConfig | import('./index').DestinationConfig | undefined} */
    this._config = undefined;
    /** The host, the user and the options, once `connect()` was called; no secrets. */
    this.config = told({});
    this._ready = false;
    this._ending = false;
    /** Whether a host that known_hosts do not name is refused: connect() does, ssh2 does not. */
    this._strict = false;
    /** Whether the connection's end is told: not of one that was never made, and not where it is cut off. */
    this._ends = true;
    /** Whether the program's stream under the connection has failed: that is the error, and there is no second one. */
    this._failed = false;
    /** The socket as ssh2 has it: the program's own, or a stand-in. @type {any} */
    this._sock = undefined;
    /** Whether it keeps the process alive. */
    this._isHeld = false;
    /** Whether 'connect' was told. */
    this._met = false;
    /** The server's identification. */
    this._server = '';
    /** The asynchronous context of its handlers: connect()'s. */
    this._scope = new AsyncResource('TRUNKLINE');
    /** Log-ins by number: each connection has one. @type {Map<number, Authentication>} */
    this._logins = new Map();
    /** The program's private key, opened or being so. @type {import('./authentication').OwnKey | undefined} */
    this._key = undefined;
    /** An agent of the program's, for sessions. @type {import('./keys/agent').AgentSocket | undefined} */
    this._lent = undefined;
    /** The channels with something left to report: streams, SFTP sessions, listeners. @type {Set<{ _isHeard(): boolean }>} */
    this._channels = new Set();
    /** Tells of the end, when they have told theirs. @type {(() => void) | undefined} */
    this._ended = undefined;
    /** Listeners by what they listen on. @type {Map<string, Listener>} */
    this._listeners = new Map();
    this._owner = this;
  }

  /**
   * Connects. Returns at once; 'ready' or 'error' follows. A client that is connected is ended first.
   * @param {import('./index').ConnectConfig | import('./index').DestinationConfig} config
   * @returns {this}
   */
  connect(config) {
    if (this._id !== undefined) {
      this.once('close', AsyncResource.bind(() => void this.connect(config)));
      return this.end();
    }
    const { destination } = /** @type {import('./index').DestinationConfig} */ (config);
    if (destination !== undefined) {
      this._id = hub.connectTo(destinationOptions(/** @type {import('./index').DestinationConfig} */ (config)));
      this._sock = new Socket(this, undefined, undefined);
      return this._connecting(config, destination);
    }
    const { options, key, lent } = connectOptions(/** @type {import('./index').ConnectConfig} */ (config), this._strict);
    this._key = key;
    this._lent = lent;
    this._id = hub.connect(options);
    this._sock = options.overStream ? /** @type {any} */ (config).sock : new Socket(this, options.host, options.port);
    if (this._sock instanceof Socket) {
      this._sock.on('timeout', () => attempt(this, () => this.emit('timeout')));
      const { timeout } = /** @type {import('./index').ConnectConfig} */ (config);
      if (typeof timeout === 'number') this._sock.setTimeout(timeout);
    }
    this._connecting(config, `${options.host} port ${options.port}`);
    if (options.overStream) this._carry(/** @type {import('./index').ConnectConfig} */ (config), this._id + 1);
    return this;
  }

  /**
   * @param {import('./index').ConnectConfig | import('./index').DestinationConfig} config
   * @param {string} where
   * @returns {this}
   */
  _connecting(config, where) {
    this._config = config;
    this.config = told(config);
    this._ends = true;
    this._failed = false;
    this._met = false;
    this._server = '';
    this._ready = false;
    this._ending = false;
    this._scope = new AsyncResource('TRUNKLINE');
    attach(/** @type {number} */ (this._id), this);
    this._hold(true);
    this._debug(`connecting to ${where}`);
    return this;
  }

  /**
   * Carries the connection's bytes over a stream of the program's.
   * @param {import('./index').ConnectConfig} config
   * @param {number} id
   */
  _carry(config, id) {
    const sock = /** @type {import('node:stream').Duplex} */ (config.sock);
    const wire = new Channel('sock')._begin(id);
    let over = false;
    sock.on('error', (error) => {
      this._debug(`the stream under the connection failed: ${error.message}`);
      // Of what ended together with the connection nobody needs to hear.
      if (!over && this._sock === sock && this._id !== undefined) {
        over = true;
        this._failed = true;
        this._ends = false;
        attempt(undefined, () => this.emit('error', Object.assign(error, { level: 'client-socket' })));
      }
      wire.destroy();
    });
    sock.once('end', () => (over = true));
    sock.once('close', () => {
      if (!over) this._ends = false;
      wire.end();
    });
    wire.once('close', () => {
      over = true;
      sock.destroy();
    });
    wire.pipe(sock).pipe(wire);
  }

  /** @param {string} text */
  _debug(text) {
    if (typeof this._config?.debug === 'function') this._config.debug(text);
  }

  /**
   * @param {number} kind
   * @param {any} value
   */
  _told(kind, value) {
    const id = this._id;
    if (id === undefined) return;
    const unreached = kind === KIND.FAIL && (value.address !== undefined || value.level === 'client-dns');
    if (!this._met && !unreached && !this._failed && kind !== KIND.CLOSE) this._meet();
    switch (kind) {
      case KIND.OPEN:
        this._ready = true;
        this._debug(`authenticated; the server is ${value?.server}`);
        this._agreed(value);
        this.emit('ready');
        break;
      case KIND.FAIL:
        this._debug(value.message);
        if (unreached || isCutOff(value)) this._ends = false;
        if (value.disconnect?.reason !== BY_APPLICATION && !this._failed) attempt(undefined, () => this.emit('error', this._error(value)));
        break;
      case KIND.CLOSE:
        this._closed(value);
        break;
      case KIND.NOTICE:
        this._debug(value);
        this.emit('banner', value, '');
        break;
      case KIND.AGREED:
        this._agreed(value);
        break;
      case KIND.AUTHENTICATE:
        this._authenticate(id, value);
        break;
      case KIND.UNUSABLE:
        this._login(value.login).failedInEngine(value.why);
        break;
      case KIND.NEW_PASSWORD:
        this._changePassword(id, value);
        break;
      case KIND.SIGN:
        this._login(value.login).sign(value, (signature) => hub.answerSignature(id, value.question, signature));
        break;
      case KIND.PLACEMENT:
        this.emit('placement', value);
        break;
      case KIND.HOST_KEY:
        verifyHostKey(this._config ?? {}, Buffer.from(value.key), (accept) => hub.answerHostKey(id, value.question, accept))
          ?.catch((error) => attempt(this, () => { throw error; }));
        break;
      case KIND.LISTED_KEYS:
        hub.answerListedKeys(id, value.question, this.listenerCount('hostkeys') > 0);
        break;
      case KIND.PROVEN_KEYS:
        this.emit('hostkeys', value.map((/** @type {number[]} */ key) => parseKey(Buffer.from(key))));
        break;
      case KIND.QUESTIONS:
        this._ask(id, value);
        break;
    }
  }

  /**
   * Has it keep the process alive, or not.
   * @param {boolean} held
   */
  _hold(held) {
    if (held === this._isHeld) return;
    this._isHeld = held;
    if (held) retain();
    else release();
  }

  /**
   * Tells what was agreed on, once.
   * @param {any} details
   */
  _agreed(details) {
    if (details === null || this._server !== '') return;
    this._server = details.server ?? '';
    if (details.greeting) this.emit('greeting', details.greeting);
    this.emit('handshake', negotiated(details));
  }

  /** The first that is heard of a connection shows that there is one. */
  _meet() {
    this._met = true;
    const { _sock: sock } = this;
    if (sock instanceof Socket) {
      sock.connecting = false;
      attempt(undefined, () => sock.emit('connect'));
    }
    this.emit('connect');
  }

  /** @param {number} login */
  _login(login) {
    let found = this._logins.get(login);
    if (found === undefined) {
      found = new Authentication(this, /** @type {import('./index').ConnectConfig} */ (this._config), this._key);
      this._logins.set(login, found);
    }
    return found;
  }

  /**
   * @param {number} id
   * @param {{ question: number, login: number, methods: string[] | null, partial: boolean }} turn
   */
  _authenticate(id, { question, login, methods, partial }) {
    const answer = (/** @type {import('./authentication').Attempt | undefined} */ attempt) =>
      hub.answerAuthentication(id, question, attempt && { ...attempt, login });
    // The list of a server that names no method has one empty name.
    const left = methods?.filter((name) => name !== '') ?? null;
    this._login(login).next(left, left === null ? null : partial, answer);
  }

  /**
   * A handler has thrown: as for ssh2, that is an 'error', with which the connection ends. Where nobody hears of it, the
   * connection continues if it is ready, for a program that survives uncaught exceptions.
   * @param {unknown} error
   */
  _threw(error) {
    // The promises' streams are told of what ends a connection; handlers of theirs are none of its business.
    if (this._id === undefined || (this._strict && this._ready)) throw error;
    let heard = !this._ready;
    try {
      heard = this.emit('error', error);
    } finally {
      if (heard) this.end();
    }
  }

  /** @param {import('./native').Fault} fault */
  _error(fault) {
    return this._strict ? toError(fault) : toConnectionError(fault, { config: this._config, ready: this._ready, agreed: this._server !== '' });
  }

  /**
   * @param {number} id
   * @param {{ question: number, name: string, instructions: string, prompts: import('./index').Prompt[] }} asked
   */
  _ask(id, asked) {
    // As for ssh2: where nothing is asked, nobody is asked. sshd ends with such a request.
    if (asked.prompts.length === 0) return hub.answerQuestions(id, asked.question, []);
    let answered = false;
    const finish = (/** @type {string[]} */ answers) => {
      if (answered) return;
      answered = true;
      hub.answerQuestions(id, asked.question, Array.from(answers ?? [], String));
    };
    // Where the server asks, there is one log-in.
    const prompt = [...this._logins.values()].at(-1)?.prompt;
    if (prompt !== undefined) prompt(asked.name, asked.instructions, '', asked.prompts, finish);
    else if (!this.emit('keyboard-interactive', asked.name, asked.instructions, '', asked.prompts, finish)) finish([]);
  }

  /**
   * The password has expired. Where nobody has a new one, the log-in goes on without it.
   * @param {number} id
   * @param {{ question: number, prompt: string }} asked
   */
  _changePassword(id, { question, prompt }) {
    let answered = false;
    const done = (/** @type {unknown} */ next) => {
      if (answered) return;
      answered = true;
      hub.answerQuestions(id, question, typeof next === 'string' && next !== '' ? [next] : []);
    };
    if (!this.emit('change password', prompt, done)) done(undefined);
  }

  /** @param {import('./native').Fault | null} fault */
  _closed(fault) {
    const id = /** @type {number} */ (this._id);
    detach(id);
    // The process stays until the end has been told, which is behind all that streams have to tell; a client that connects anew
    // meanwhile has a reason of its own.
    const wasHeld = this._isHeld;
    this._isHeld = false;
    this._id = undefined;
    for (const channel of this._channels) if (channel instanceof Channel) channel._hold();
    const wasReady = this._ready;
    this._listeners.clear();
    this._logins.clear();
    this._lent?.close();
    this._lent = undefined;
    // A connection that the server ended in good order is not an error, as for ssh2.
    const clean = fault === null || (wasReady && fault.code === 'ERR_CLOSED') || fault.disconnect?.reason === BY_APPLICATION;
    const error = clean || this._ending || this._failed ? undefined : this._error(fault);
    if (error !== undefined && isCutOff(/** @type {import('./native').Fault} */ (fault))) this._ends = false;
    this._ready = false;
    const { _sock: sock, _ends: ends } = this;
    this._ended = () => {
      if (sock instanceof Socket) {
        sock._close();
        attempt(undefined, () => ends && sock.emit('end'));
      }
      // As a socket's: in a turn of its own, so that who waits for the end can wait for this.
      setImmediate(() => {
        if (sock instanceof Socket) attempt(undefined, () => sock.emit('close', false));
        try {
          this.emit('close');
        } finally {
          if (wasHeld) release();
        }
      });
      attempt(undefined, () => error !== undefined && this.emit('error', error));
      if (ends) this.emit('end');
    };
    this._left();
  }

  /**
   * Tells of the end where nothing has anything left to tell that somebody waits for.
   * @param {{ _isHeard(): boolean }} [channel] that has told everything, or is not read any more
   */
  _left(channel) {
    if (channel !== undefined && !channel._isHeard()) this._channels.delete(channel);
    if (this._ended === undefined) return;
    for (const channel of this._channels) if (channel._isHeard()) return;
    this._channels.clear();
    const ended = this._ended;
    this._ended = undefined;
    // Behind the 'close' of the last stream, which comes with the next tick.
    setImmediate(() => this._scope.runInAsyncScope(ended));
  }

  /**
   * As for ssh2, what is called before 'ready' is done once the server has let the user in.
   * @returns {number}
   */
  _connected() {
    if (this._id === undefined || this._ending) throw new Error('Not connected');
    return this._id;
  }

  /**
   * @template {Channel} C
   * @param {C} channel
   * @param {string} [unable] what ssh2 says where the server refuses it
   * @returns {C}
   */
  _made(channel, unable = '') {
    if (!this._strict) channel._explain = (fault) => toRequestError(fault, unable);
    this._channels.add(channel);
    channel._owner = this;
    return channel;
  }

  /**
   * @param {import('./native').SessionOptions} options
   * @param {{ strict?: boolean, allowHalfOpen?: boolean } | undefined} streamOptions
   * @param {(error?: Error, channel?: Channel) => void} [callback]
   * @returns {Channel}
   */
  _session(options, streamOptions, callback) {
    const { destination, agent } = /** @type {any} */ (this._config ?? {});
    // As for ssh2: without an agent there is nothing to forward.
    if (options.agentForward && destination === undefined && !agent) options.agentForward = undefined;
    if (options.agentForward ?? /** @type {any} */ (this._config)?.agentForward) this._lent?.listen(this);
    const unable = { exec: 'Unable to exec', shell: 'Unable to open shell', subsystem: `Unable to start subsystem: ${options.text}` };
    const channel = this._made(new Channel('session', streamOptions), unable[options.kind]);
    channel._subtype = options.kind;
    const id = hub.openSession(this._connected(), options);
    channel._route(options.stdio);
    return channel._begin(id, callback && ((error) => (error ? callback(error) : callback(undefined, channel))));
  }

  /**
   * @param {string} type
   * @param {number} id
   * @param {(error?: Error, channel?: Tunnel) => void} [callback]
   * @param {{ strict?: boolean }} [streamOptions]
   * @returns {Tunnel}
   */
  _tunnel(type, id, callback, streamOptions) {
    const channel = this._made(new Tunnel(type, streamOptions));
    return channel._begin(id, callback && ((error) => (error ? callback(error) : callback(undefined, channel))));
  }

  /**
   * As of a server that forwards no X11.
   * @param {any} options
   * @param {any} callback
   */
  _lacksX11(options, callback) {
    if (!options?.x11) return false;
    this._connected();
    process.nextTick(() => attempt(this, () => callback?.(new Error('Unable to request X11'))));
    return true;
  }

  /**
   * Runs a command.
   * @param {string} command
   * @param {import('./index').ExecOptions | import('./index').ClientCallback} options
   * @param {import('./index').ClientCallback} [callback]
   * @returns {this}
   */
  exec(command, options, callback) {
    if (typeof options === 'function') [options, callback] = [{}, options];
    if (this._lacksX11(options, callback)) return this;
    this._session(
      sessionOptions('exec', String(command), options),
      { allowHalfOpen: options?.allowHalfOpen },
      /** @type {any} */ (callback),
    );
    return this;
  }

  /**
   * Starts the user's shell, on a terminal unless `window` is false.
   * @param {any} window
   * @param {any} [options]
   * @param {any} [callback]
   * @returns {this}
   */
  shell(window, options, callback) {
    if (typeof window === 'function') [window, options, callback] = [undefined, {}, window];
    else if (typeof options === 'function') {
      // One object may be either: ssh2 tells them apart by their keys.
      callback = options;
      options = window && (window.env || window.x11 || window.pty) ? window : {};
      if (options === window) window = undefined;
    }
    if (this._lacksX11(options, callback)) return this;
    const pty = window === false ? undefined : typeof window === 'object' && window !== null ? window : true;
    this._session(sessionOptions('shell', '', { ...options, pty }), undefined, callback);
    return this;
  }

  /**
   * Starts a subsystem.
   * @param {string} name
   * @param {import('./index').ClientCallback} callback
   * @returns {this}
   */
  subsys(name, callback) {
    this._session(sessionOptions('subsystem', String(name), {}), undefined, /** @type {any} */ (callback));
    return this;
  }

  /**
   * Opens an SFTP session.
   * @param {any} env variables for its server, which takes those that its AcceptEnv names; or the callback
   * @param {(error?: Error, sftp?: SFTP) => void} [callback]
   * @returns {this}
   */
  sftp(env, callback) {
    if (typeof env === 'function') callback = env;
    const variables = typeof env === 'object' && env !== null ? env : {};
    const sftp = new SFTP(hub.openSftp(this._connected(), pairs(variables)), this);
    if (!this._strict) {
      sftp._explain = (fault) => toRequestError(fault, 'Unable to start subsystem: sftp');
      // The engine knows of the session's end, of which this side has not heard yet.
      sftp._explainCall = (fault) => toRequestError(fault.kind === 'configuration' ? { ...fault, kind: 'network' } : fault, fault.message);
    }
    sftp._opening = callback;
    this._channels.add(sftp);
    return this;
  }

  /**
   * Connects from the server to a TCP port. The source is what the server is told of who asks.
   * @param {string} srcIP
   * @param {number | string} srcPort a number, or its text, as from an environment
   * @param {string} dstIP
   * @param {number | string} dstPort
   * @param {import('./index').ClientCallback} callback
   * @returns {this}
   */
  forwardOut(srcIP, srcPort, dstIP, dstPort, callback) {
    const client = this._connected();
    checkText(srcIP, dstIP);
    if (![srcPort, dstPort].every(isPort)) {
      const error = Object.assign(new Error('(SSH) Channel open failure: open failed'), { reason: ADMINISTRATIVELY_PROHIBITED });
      process.nextTick(() => attempt(this, () => /** @type {any} */ (callback)?.(error)));
      return this;
    }
    const id = hub.openTcp(client, dstIP, Number(dstPort), srcIP, Number(srcPort));
    this._tunnel('direct-tcpip', id, /** @type {any} */ (callback));
    return this;
  }

  /**
   * Whether `strictVendor` keeps OpenSSH's extensions from this server, which the callback is then told.
   * @param {Function | undefined} callback
   * @returns {boolean}
   */
  _refusesVendor(callback) {
    const software = /^SSH-[^-]*-(\S*)/.exec(this._server)?.[1];
    if (!this.config.strictVendor || software === undefined || isOpenSsh(software)) return false;
    const error = new Error('strictVendor enabled and server is not OpenSSH or compatible version');
    process.nextTick(() => attempt(this, () => callback?.(error)));
    return true;
  }

  /**
   * As of a server that refuses it: the engine opens sessions ahead of their use, so there is never one that is the last.
   * @param {(error?: Error) => void} [callback]
   * @returns {this}
   */
  openssh_noMoreSessions(callback) {
    this._connected();
    if (this._refusesVendor(callback)) return this;
    process.nextTick(() => attempt(this, () => callback?.(new Error('Unable to disable future sessions'))));
    return this;
  }

  /**
   * Connects to a Unix socket of the server.
   * @param {string} socketPath
   * @param {import('./index').ClientCallback} callback
   * @returns {this}
   */
  openssh_forwardOutStreamLocal(socketPath, callback) {
    const client = this._connected();
    if (this._refusesVendor(callback)) return this;
    checkText(socketPath);
    const id = hub.openSocket(client, socketPath);
    this._tunnel('direct-streamlocal@openssh.com', id, /** @type {any} */ (callback));
    return this;
  }

  /**
   * The same under a shorter name.
   * @param {string} socketPath
   * @param {import('./index').ClientCallback} callback
   * @returns {this}
   */
  forwardOutStreamLocal(socketPath, callback) {
    return this.openssh_forwardOutStreamLocal(socketPath, callback);
  }

  /**
   * Listens on a Unix socket of this machine, and carries its clients to a TCP port or a Unix socket as seen from the server,
   * on the engine's threads.
   * @param {string} localSocketPath
   * @param {string} target a host, with a port behind it, or the path of a socket
   * @param {any} port
   * @param {(error?: Error, forward?: { close(): Promise<void> }) => void} [callback]
   * @returns {this}
   */
  forwardOutLocalSocket(localSocketPath, target, port, callback) {
    if (typeof port === 'function') [port, callback] = [undefined, port];
    const client = this._connected();
    const id = hub.forwardSocket(client, localSocketPath, target, port);
    /** @type {() => void} */
    let ended;
    /** @type {Promise<void>} */
    const closed = new Promise((resolve) => (ended = resolve));
    const close = () => {
      hub.unlisten(client, id);
      return closed;
    };
    /** @type {{ _owner: Client, _told(kind: number, value: any): void, _isHeard(): boolean }} */
    const listening = {
      _owner: this,
      _told: (kind, value) => {
        const told = callback;
        callback = undefined;
        if (kind === KIND.OPEN) return told?.(undefined, { close });
        detach(id);
        this._channels.delete(listening);
        ended();
        try {
          told?.(kind === KIND.FAIL ? toError(value) : new Error('Not connected'));
        } finally {
          this._left();
        }
      },
      // Until its end: who closes it waits for that.
      _isHeard: () => true,
    };
    attach(id, listening);
    this._channels.add(listening);
    return this;
  }

  /**
   * Has the server listen on a TCP port; 0 lets it choose one, which the callback gets.
   * @param {string} bindAddr
   * @param {number | string} bindPort
   * @param {(error?: Error, port?: number) => void} [callback]
   * @returns {this}
   */
  forwardIn(bindAddr, bindPort, callback) {
    const port = Number(bindPort);
    const client = this._connected();
    checkText(bindAddr);
    if (!isPort(port)) {
      process.nextTick(() => attempt(this, () => callback?.(new Error(`Unable to bind to ${bindAddr}:${bindPort}`))));
      return this;
    }
    const id = hub.listen(client, bindAddr, port);
    new Listener(this, id, { bindAddr, bindPort: port }, callback);
    return this;
  }

  /**
   * @param {string} bindAddr
   * @param {number | string} bindPort
   * @param {(error?: Error) => void} [callback]
   * @returns {this}
   */
  unforwardIn(bindAddr, bindPort, callback) {
    return this._unlisten(`${bindAddr}:${bindPort}`, callback);
  }

  /**
   * Has the server listen on a Unix socket.
   * @param {string} socketPath
   * @param {(error?: Error) => void} [callback]
   * @returns {this}
   */
  openssh_forwardInStreamLocal(socketPath, callback) {
    const client = this._connected();
    if (this._refusesVendor(callback)) return this;
    checkText(socketPath);
    const id = hub.listen(client, socketPath);
    new Listener(this, id, { socketPath }, callback);
    return this;
  }

  /**
   * @param {string} socketPath
   * @param {(error?: Error) => void} [callback]
   * @returns {this}
   */
  openssh_unforwardInStreamLocal(socketPath, callback) {
    this._connected();
    if (this._refusesVendor(callback)) return this;
    return this._unlisten(socketPath, callback);
  }

  /**
   * @param {string} key
   * @param {(error?: Error) => void} [callback]
   * @returns {this}
   */
  _unlisten(key, callback) {
    const id = this._connected();
    const listener = this._listeners.get(key);
    if (listener === undefined) {
      process.nextTick(() => callback?.(new Error(`Unable to unbind from ${key}`)));
      return this;
    }
    this._listeners.delete(key);
    listener.ended = callback;
    hub.unlisten(id, listener.id);
    return this;
  }

  /**
   * Exchanges keys anew. The engine does so by itself as often as it is needed.
   * @param {() => void} [callback] called when the exchange has been asked for
   */
  rekey(callback) {
    hub.rekey(this._connected());
    if (callback) process.nextTick(callback);
  }

  /**
   * Nagle's algorithm is always off.
   * @param {boolean} [_noDelay]
   * @returns {this}
   */
  setNoDelay(_noDelay) {
    return this;
  }

  /**
   * The client's connections: what each carries, and whether its traffic keeps new streams away from it.
   * @returns {import('./index').Lane[]}
   */
  lanes() {
    const lanes = this._id === undefined ? null : hub.lanes(this._id);
    return /** @type {import('./index').Lane[]} */ (lanes ?? []);
  }

  /**
   * The connections behind the client, whosever they are.
   * @param {(error?: Error, stats?: import('./index').ConnectionStats) => void} callback
   * @returns {this}
   */
  stats(callback) {
    const id = hub.stats(this._connected());
    answer(id, this, (kind, value) => {
      if (kind === KIND.OPEN) callback(undefined, value);
      else callback(toError(value));
    });
    return this;
  }

  /**
   * Ends the connection and everything that goes over it; 'close' follows.
   * @returns {this}
   */
  end() {
    if (this._id !== undefined) {
      this._ending = true;
      hub.closeClient(this._id);
    }
    return this;
  }

  /** The same; no 'end' is told. @returns {this} */
  destroy() {
    if (this._ending) return this;
    this._ends = false;
    if (this._sock instanceof Socket) this._sock.destroyed = true;
    return this.end();
  }
}

/** An address or socket that the server listens on. */
class Listener {
  /**
   * @param {Client} client
   * @param {number} id
   * @param {{ bindAddr: string, bindPort: number } | { socketPath: string }} place
   * @param {((error?: Error, port?: number) => void) | undefined} callback
   */
  constructor(client, id, place, callback) {
    this.client = client;
    this._owner = client;
    this.id = id;
    this.place = place;
    this.callback = callback;
    /** @type {((error?: Error) => void) | undefined} */
    this.ended = undefined;
    attach(id, this);
    client._channels.add(this);
  }

  /** Whether somebody waits for the server's answer, or for the end. */
  _isHeard() {
    return this.callback !== undefined || this.ended !== undefined;
  }

  /**
   * @param {number} kind
   * @param {any} value
   */
  _told(kind, value) {
    const { callback, place } = this;
    switch (kind) {
      case KIND.OPEN:
        this.callback = undefined;
        if ('bindAddr' in place) {
          place.bindPort = value.port;
          this.client._listeners.set(`${place.bindAddr}:${value.port}`, this);
          callback?.(undefined, value.port);
        } else {
          this.client._listeners.set(place.socketPath, this);
          callback?.();
        }
        break;
      case KIND.FAIL: {
        this.callback = undefined;
        const where = 'bindAddr' in place ? `${place.bindAddr}:${place.bindPort}` : place.socketPath;
        // ssh2 asks the server, which refuses a place that is taken; the engine knows of the client's own.
        const refused = value.code === 'ERR_LOCAL' ? { ...value, kind: 'limit' } : value;
        callback?.(toRequestError(refused, `Unable to bind to ${where}`));
        break;
      }
      case KIND.INCOMING:
        this._incoming(value);
        return;
      case KIND.CLOSE:
        detach(this.id);
        this.callback = undefined;
        attempt(this.client, () => this.ended?.());
        this.ended = undefined;
        callback?.(new Error('Not connected'));
        break;
    }
    this.client._left(this);
  }

  /** @param {{ number: number, originator: string }} incoming */
  _incoming(incoming) {
    this.client._scope.runInAsyncScope(this._offer, this, incoming);
  }

  /** @param {{ number: number, originator: string }} incoming */
  _offer({ number, originator }) {
    let settled = false;
    const accept = () => {
      if (settled) return undefined;
      settled = true;
      const type = 'bindAddr' in this.place ? 'forwarded-tcpip' : 'forwarded-streamlocal@openssh.com';
      const channel = this.client._made(new Tunnel(type))._begin(number);
      hub.accept(number);
      return channel;
    };
    const reject = () => {
      if (settled) return;
      settled = true;
      hub.reject(number);
    };
    let heard;
    if ('bindAddr' in this.place) {
      const at = originator.lastIndexOf(':');
      const details = {
        destIP: this.place.bindAddr,
        destPort: this.place.bindPort,
        srcIP: originator.slice(0, at).replace(/^\[|\]$/g, ''),
        srcPort: Number(originator.slice(at + 1)),
      };
      heard = this.client.emit('tcp connection', details, accept, reject);
    } else {
      heard = this.client.emit('unix connection', { socketPath: this.place.socketPath }, accept, reject);
    }
    if (!heard) reject();
  }
}

/**
 * Whether a connection ended without the other side's word.
 * @param {import('./native').Fault} fault
 */
function isCutOff({ kind, errno }) {
  return kind === 'timeout' || errno !== undefined;
}

/**
 * Variables of an environment, as the engine takes them.
 * @param {NodeJS.ProcessEnv} env
 * @returns {string[][]}
 */
function pairs(env) {
  return Object.entries(env).map(([name, value]) => [name, String(value)]);
}

/**
 * @param {'exec' | 'shell' | 'subsystem'} kind
 * @param {string} text
 * @param {{ env?: NodeJS.ProcessEnv, pty?: any, stdio?: import('./index').Stdio } | null | undefined} options
 * @returns {import('./native').SessionOptions}
 */
function sessionOptions(kind, text, options) {
  const { env, pty, stdio, agentForward } = /** @type {any} */ (options ?? {});
  return {
    kind,
    text,
    stdio: stdioOptions(stdio),
    directory: stdio === undefined ? '' : process.cwd(),
    env: pairs(env ?? {}),
    pty: pty === true || (typeof pty === 'object' && pty !== null) ? terminal(pty) : undefined,
    agentForward: typeof agentForward === 'boolean' ? agentForward : undefined,
  };
}

/**
 * The agreement with the server, in ssh2's form, with the engine's details.
 * @param {any} details
 */
function negotiated(details) {
  const { kex, serverHostKey, cipher, mac, compressed } = details;
  const direction = { cipher, mac: mac ?? '', compress: compressed ? 'zlib@openssh.com' : 'none', lang: '' };
  return { ...details, srvHostKey: serverHostKey, kex, cs: direction, sc: { ...direction } };
}

module.exports = { Client, sessionOptions };
