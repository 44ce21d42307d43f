'use strict';

const { Client } = require('./client');
const { Channel } = require('./channel');
const { connect, Connection } = require('./connection');
const { SFTP, STATUS_CODE, OPEN_MODE } = require('./sftp');

/** What programs take from ssh2's `utils`. */
const utils = { sftp: { STATUS_CODE, OPEN_MODE } };

module.exports = { Client, Channel, Connection, SFTP, connect, utils };
