'use strict';

// What programs for ssh2 look for in a client's `_sock`.

const { EventEmitter } = require('node:events');
const { isIP } = require('node:net');

/** Stands for a client's socket, which is the engine's. Events: 'connect', 'end' and 'close'. */
class Socket extends EventEmitter {
  /**
   * @param {import('./client').Client} client
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
  }

  get readable() {
    return !this.destroyed;
  }

  get writable() {
    return !this.destroyed;
  }

  /** Nagle's algorithm is always off. */
  setNoDelay() {
    return this;
  }

  /** `keepaliveInterval` is what notices that the other side is gone. */
  setKeepAlive() {
    return this;
  }

  setTimeout() {
    return this;
  }

  ref() {
    return this;
  }

  unref() {
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
