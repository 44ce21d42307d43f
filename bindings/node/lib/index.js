'use strict';

const { Client } = require('./client');
const { Channel, Tunnel } = require('./channel');
const { connect, Connection } = require('./connection');
const { hub } = require('./hub');
const { SFTP, STATUS_CODE, OPEN_MODE } = require('./sftp');

/** What programs take from ssh2's `utils`. */
const utils = { sftp: { STATUS_CODE, OPEN_MODE } };

/**
 * Sets what of the engine can be set, which all of the process's clients share. To be called before the first of them connects.
 * @param {import('./index').EngineSettings} settings
 */
function configure(settings) {
  if (!hub.configure(settings)) throw new Error('configure() comes before the first connection of the process');
}

module.exports = { Client, Channel, Tunnel, Connection, SFTP, configure, connect, utils };
