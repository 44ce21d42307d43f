'use strict';

// ssh2's name `Server`, which throws: trunkline is a client.

/** ssh2's server, in name: trunkline is a client. */
class Server {
  constructor() {
    throw new Error('trunkline has no SSH server: take Server from ssh2 itself');
  }
}

module.exports = { Server };
