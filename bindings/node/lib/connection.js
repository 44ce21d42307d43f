'use strict';

// The promise API: connect() and what it resolves to.

const { Client, sessionOptions } = require('./client');
const { hub } = require('./hub');
const { printable } = require('./native');

/**
 * Connects.
 * @param {string | import('./index').ConnectConfig | import('./index').DestinationConfig} where a destination of ssh_config, or
 *   everything that connect() of a Client takes
 * @param {Omit<import('./index').DestinationConfig, 'destination'>} [more] how to reach a destination
 * @returns {Promise<Connection>} rejected with what ssh2's 'error' would tell
 */
function connect(where, more) {
  const config = typeof where === 'string' ? { ...more, destination: where } : where;
  return new Promise((resolve, reject) => {
    const client = new Client();
    client._strict = true;
    client.once('ready', () => {
      client.removeListener('error', reject);
      resolve(new Connection(client));
    });
    client.once('error', reject);
    client.once('close', () => reject(new Error('Not connected')));
    client.connect(config);
  });
}

/** A connection to a host. */
class Connection {
  /** @param {Client} client */
  constructor(client) {
    /** ssh2's view of it. */
    this.client = client;
    /** The reason why it was lost, if it was. @type {Error | undefined} */
    this.lost = undefined;
    // A lost connection is told to everything that uses it, and by `closed`.
    client.on('error', (error) => {
      this.lost = error;
    });
    /** Resolves when the connection has ended, to the reason if it was lost. @type {Promise<Error | undefined>} */
    this.closed = new Promise((resolve) => client.once('close', () => resolve(this.lost)));
  }

  /**
   * Runs a command to its end.
   * @param {string} command
   * @param {import('./index').RunOptions} [options]
   * @returns {Promise<import('./index').RunResult>}
   */
  async run(command, options = {}) {
    const channel = this.stream(command, options);
    // The status comes behind the output.
    const closed = new Promise((resolve) => channel.once('close', resolve));
    const { input, encoding = 'utf8', check = false } = options;
    if (input === undefined || input === null) channel.end();
    else if (typeof input === 'string' || input instanceof Uint8Array) channel.end(input);
    else input.pipe(channel);
    const [stdout, stderr] = await Promise.all([collect(channel), collect(channel.stderr)]);
    await closed;
    const shown = (/** @type {Buffer} */ bytes) => (encoding === 'buffer' ? bytes : bytes.toString(encoding));
    const result = {
      code: channel.exitCode ?? null,
      signal: channel.exitSignal,
      stdout: shown(stdout),
      stderr: shown(stderr),
    };
    if (check && result.code !== 0) {
      const how = result.signal === undefined ? `status ${result.code}` : result.signal;
      const error = new Error(`the command ended with ${how}: ${printable(stderr.toString().trim())}`);
      throw Object.assign(error, { level: 'command', code: 'ERR_EXIT', execution: 'finished', mayPass: false, result });
    }
    return /** @type {any} */ (result);
  }

  /**
   * A command's output as it comes: an async iterable of chunks, and a Duplex. A lost connection is an error where the
   * output was cut off; leaving the loop ends the command.
   * @param {string} command
   * @param {import('./index').ExecOptions} [options]
   */
  stream(command, options) {
    return this.client._session(sessionOptions('exec', command, options), { strict: true });
  }

  /**
   * The user's shell, on a terminal.
   * @param {import('./index').PseudoTtyOptions | false} [window]
   */
  shell(window) {
    const pty = window === false ? undefined : (window ?? true);
    return this.client._session(sessionOptions('shell', '', { pty }), { strict: true });
  }

  /**
   * A connection from the server to a TCP port.
   * @param {string} host
   * @param {number} port
   * @returns {Promise<import('./streams/channel').Tunnel>}
   */
  forwardOut(host, port) {
    return new Promise((resolve, reject) => {
      const id = hub.openTcp(this.client._connected(), host, port, '127.0.0.1', 0);
      this.client._tunnel('direct-tcpip', id, settle(resolve, reject), { strict: true });
    });
  }

  /**
   * A connection to a Unix socket of the server.
   * @param {string} path
   * @returns {Promise<import('./streams/channel').Tunnel>}
   */
  forwardOutStreamLocal(path) {
    return new Promise((resolve, reject) => {
      const id = hub.openSocket(this.client._connected(), path);
      this.client._tunnel('direct-streamlocal@openssh.com', id, settle(resolve, reject), { strict: true });
    });
  }

  /**
   * Listens on a Unix socket of this machine, and carries its clients to a TCP port or a Unix socket as seen from the server.
   * @param {string} localSocketPath
   * @param {string} target a host, with a port behind it, or the path of a socket
   * @param {number} [port]
   * @returns {Promise<{ close(): Promise<void> }>}
   */
  forwardOutLocalSocket(localSocketPath, target, port) {
    return new Promise((resolve, reject) => {
      this.client.forwardOutLocalSocket(localSocketPath, target, port, settle(resolve, reject));
    });
  }

  /**
   * An SFTP session.
   * @returns {Promise<import('./streams/sftp').SFTP>}
   */
  sftp() {
    return new Promise((resolve, reject) => {
      this.client.sftp(settle(resolve, reject));
    });
  }

  /**
   * The connections behind it, whosever they are, and what each carries.
   * @returns {Promise<import('./index').ConnectionStats>}
   */
  stats() {
    return new Promise((resolve, reject) => {
      this.client.stats(settle(resolve, reject));
    });
  }

  /** The connections of this process behind it: what each carries. */
  lanes() {
    return this.client.lanes();
  }

  /**
   * Ends it, with everything that goes over it.
   * @returns {Promise<void>}
   */
  async close() {
    this.client.end();
    await this.closed;
  }

  [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    return this.close();
  }
}

/**
 * @template T
 * @param {(value: T) => void} resolve
 * @param {(error: Error) => void} reject
 * @returns {(error?: Error, value?: T) => void}
 */
function settle(resolve, reject) {
  return (error, value) => (error ? reject(error) : resolve(/** @type {T} */ (value)));
}

/**
 * @param {import('node:stream').Readable} stream
 * @returns {Promise<Buffer>}
 */
async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}

module.exports = { connect, Connection };
