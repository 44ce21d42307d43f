'use strict';

// The private native module, built by `npm install` from the Rust sources beside this package.

const { join } = require('node:path');

/** @returns {import('./native').Native} */
function load() {
  const file = join(__dirname, '..', 'trunkline.node');
  try {
    return require(file);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new Error(`trunkline's native module cannot be loaded; build it with "npm rebuild trunkline" (${reason})`);
  }
}

module.exports = load();
