'use strict';

// HTTP and HTTPS through an SSH server: agents as ssh2's programs give them to http.request().

const http = require('node:http');
const https = require('node:https');
const tls = require('node:tls');
const { Client } = require('./client');

/**
 * One of Node's agents, with a connection of SSH's for each connection that it makes, which ends with it.
 * @param {any} Agent
 * @param {(tunnel: import('./streams/channel').Tunnel, options: any) => import('node:stream').Duplex} dress makes of a tunnel what the
 *   request goes over
 */
function through(Agent, dress) {
  return class extends Agent {
    /**
     * @param {any} config what Client.connect() takes
     * @param {any} [options] of Node's agent, and `srcIP`: what the server is told of who asks
     */
    constructor(config, options) {
      super(options);
      this._config = config;
      this._source = options?.srcIP || 'localhost';
    }

    /**
     * @param {any} options of the request
     * @param {(error: Error | null, stream?: import('node:stream').Duplex) => void} callback
     */
    createConnection(options, callback) {
      const client = new Client();
      let told = false;
      const tell = (/** @type {Error | null} */ error, /** @type {any} */ tunnel = undefined) => {
        if (told) return;
        told = true;
        if (tunnel === undefined) callback(error);
        else callback(null, dress(tunnel, options));
      };
      client
        .on('ready', () => {
          const { localAddress, localPort, host, port } = options;
          client.forwardOut(localAddress || this._source, localPort || 0, host, port, (error, tunnel) => {
            if (error) client.end();
            else tunnel?.once('close', () => client.end());
            tell(error ?? null, tunnel);
          });
        })
        .on('error', tell)
        .on('close', () => tell(new Error('Unexpected connection close')))
        .connect(this._config);
    }
  };
}

class HTTPAgent extends through(http.Agent, (tunnel) => tunnel) {}

class HTTPSAgent extends through(https.Agent, (socket, options) => tls.connect({ ...options, socket })) {}

module.exports = { HTTPAgent, HTTPSAgent };
