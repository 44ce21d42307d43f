'use strict';

// What programs for ssh2 look for in a client's `_sock`.

const { EventEmitter } = require('node:events');
const { isIP } = require('node:net');

/** The number of times in a time-out's length that the traffic is checked. */
const LOOKS = 4;

/** Stands for a client's socket, which is the engine's. Events: 'connect', 'timeout', 'end' and 'close'. */
class Socket extends EventEmitter {
  /**
   * @param {import('../client').Client} client
   * @param {string | undefined} host
   * @param {number | undefined} port
   */
  constructor(client, host, port) {
    super();
    this._client = client;
    this.connecting = true;
    this.destroyed = false;
    /** Known where the program has given an address. */
    this.remoteAddress = host !== undefined && isIP(host) ? host : undefined;
    this.remoteFamily = this.remoteAddress === undefined ? undefined : `IPv${isIP(this.remoteAddress)}`;
    this.remotePort = port;
    /** Looks at the traffic. @type {NodeJS.Timeout | undefined} */
    this._idle = undefined;
  }

  get readable() {
    return !this.destroyed;
  }

  /** Programs look here whether a client can be used: its end() is the socket's. */
  get writable() {
    return !(this.destroyed || (this._client._ending && this._client._sock === this));
  }

  /** The part of a stream's state that programs look at. */
  get _readableState() {
    return { ended: this.destroyed, destroyed: this.destroyed };
  }

  get _writableState() {
    return { ended: !this.writable, destroyed: this.destroyed };
  }

  /** Nagle's algorithm is always off. */
  setNoDelay() {
    return this;
  }

  /** `keepaliveInterval` is what notices that the other side is gone. */
  setKeepAlive() {
    return this;
  }

  /**
   * Tells 'timeout' each time that nothing was received or sent for so long, as a socket does. Connections of the daemon's are
   * not looked at.
   * @param {number} timeout in milliseconds; 0 for never
   * @param {() => void} [callback] is told of the first one
   */
  setTimeout(timeout, callback) {
    clearInterval(this._idle);
    if (callback) {
      if (timeout > 0) this.once('timeout', callback);
      else this.off('timeout', callback);
    }
    if (!(timeout > 0) || this.destroyed) return this;
    let [carried, quiet] = [this._carried(), 0];
    this._idle = setInterval(() => {
      const now = this._carried();
      quiet = now === carried ? quiet + 1 : 0;
      carried = now;
      if (quiet === LOOKS) this.emit('timeout');
    }, Math.max(1, timeout / LOOKS)).unref();
    return this;
  }

  /** Bytes so far in both directions. */
  _carried() {
    return this._client.lanes().reduce((sum, { bytesSent, bytesReceived }) => sum + bytesSent + bytesReceived, 0);
  }

  /** It has ended. */
  _close() {
    clearInterval(this._idle);
    this.destroyed = true;
  }

  ref() {
    return this._keep(true);
  }

  /** The process may end, though the client is connected. */
  unref() {
    return this._keep(false);
  }

  /** @param {boolean} held */
  _keep(held) {
    const { _client: client } = this;
    if (!this.destroyed && client._sock === this && client._id !== undefined) client._hold(held);
    return this;
  }

  end() {
    this._client.end();
    return this;
  }

  destroy() {
    this._client.destroy();
    return this;
  }
}

module.exports = { Socket };
