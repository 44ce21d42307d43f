'use strict';

// The private native module: built from the Rust sources beside this package, or in a package of its own, which npm has chosen
// for this machine.

const { existsSync } = require('node:fs');
const { join } = require('node:path');

/** @returns {import('./native').Native} */
function load() {
  const built = join(__dirname, '..', 'trunkline.node');
  const packaged = `@trunkline/${process.platform}-${process.arch}-gnu`;
  const [from, advice] = existsSync(built)
    ? [built, 'build it with "npm rebuild trunkline"']
    : [packaged, `it is in the package ${packaged}, which "npm install --omit=optional" leaves out`];
  try {
    return require(from);
  } catch (error) {
    const reason = error instanceof Error ? error.message.split('\n')[0] : String(error);
    throw new Error(`trunkline's native module cannot be loaded; ${advice} (${reason})`);
  }
}

module.exports = load();
