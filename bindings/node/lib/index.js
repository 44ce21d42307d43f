'use strict';

const { BaseAgent, OpenSSHAgent, createAgent } = require('./agent');
const { Client } = require('./client');
const { Channel, Tunnel } = require('./channel');
const { connect, Connection } = require('./connection');
const { hub } = require('./hub');
const { generateKeyPair, generateKeyPairSync } = require('./keygen');
const { parseKey } = require('./keys');
const { SFTP, STATUS_CODE, OPEN_MODE, flagsToString, stringToFlags } = require('./sftp');

/** What programs take from ssh2's `utils`. */
const utils = { parseKey, generateKeyPair, generateKeyPairSync, sftp: { STATUS_CODE, OPEN_MODE, flagsToString, stringToFlags } };

/**
 * Sets what of the engine can be set, which all of the process's clients share. To be called before the first of them connects.
 * @param {import('./index').EngineSettings} settings
 */
function configure(settings) {
  if (!hub.configure(settings)) throw new Error('configure() comes before the first connection of the process');
}

module.exports = {
  BaseAgent, Channel, Client, Connection, OpenSSHAgent, SFTP, Tunnel, configure, connect, createAgent, utils,
};
