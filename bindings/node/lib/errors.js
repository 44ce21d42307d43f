'use strict';

/**
 * The error for what the engine says went wrong. `level` and `code` are as for ssh2; `kind` says who is to blame, and
 * `execution` whether a command may have run.
 * @param {import('./native').Fault} fault
 * @returns {import('./index').SshError}
 */
function toError(fault) {
  const { message, ...rest } = fault;
  return /** @type {import('./index').SshError} */ (Object.assign(new Error(message), rest));
}

module.exports = { toError };
