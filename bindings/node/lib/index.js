'use strict';

// The package `trunkline`: ssh2's names, the promises, and the engine's settings.

const { BaseAgent, CygwinAgent, OpenSSHAgent, PageantAgent, createAgent } = require('./keys/agent');
const { AgentProtocol } = require('./keys/agent-protocol');
const { Client } = require('./client');
const { Channel, Tunnel } = require('./streams/channel');
const { connect, Connection } = require('./connection');
const { HTTPAgent, HTTPSAgent } = require('./http-agents');
const { hub } = require('./hub');
const { generateKeyPair, generateKeyPairSync } = require('./keys/keygen');
const { parseKey } = require('./keys/keys');
const { Server } = require('./server');
const { SFTP, STATUS_CODE, OPEN_MODE, flagsToString, stringToFlags } = require('./streams/sftp');

/** The part of ssh2's `utils` that programs use. */
const utils = { parseKey, generateKeyPair, generateKeyPairSync, sftp: { STATUS_CODE, OPEN_MODE, flagsToString, stringToFlags } };

/**
 * Sets what of the engine can be set, which all of the process's clients share. To be called before the first of them connects.
 * @param {import('./index').EngineSettings} settings
 */
function configure(settings) {
  if (!hub.configure(settings)) throw new Error('configure() comes before the first connection of the process');
}

module.exports = {
  AgentProtocol, BaseAgent, Channel, Client, Connection, CygwinAgent, HTTPAgent, HTTPSAgent, OpenSSHAgent, PageantAgent, SFTP,
  Server, Tunnel, configure, connect, createAgent, utils,
};
