'use strict';

const { Client } = require('./client');
const { Channel } = require('./channel');
const { connect, Connection } = require('./connection');

module.exports = { Client, Channel, Connection, connect };
