'use strict';

// Errors as ssh2's programs know them, with the engine's own words beside.

const { constants } = require('node:os');
const { getSystemErrorMap, inspect } = require('node:util');

/**
 * The error for what the engine says went wrong. `level` and `code` are as for ssh2; `kind` says who is to blame,
 * `execution` whether a command may have run, and `mayPass` whether another attempt is worth while.
 * @param {import('./native').Fault} fault
 * @returns {import('./index').SshError}
 */
function toError(fault) {
  const { message, level, code, kind, execution, mayPass, reason } = fault;
  const told = { level, code, kind, execution, mayPass, ...(reason === undefined ? {} : { reason }) };
  return /** @type {import('./index').SshError} */ (Object.assign(new Error(message), told));
}

/**
 * The host that a client's `config` names.
 * @param {Record<string, any>} config
 */
const hostOf = (config) => config.hostname || config.host || 'localhost';

/** The meaning of a server's reason without words (RFC 4253 section 11.1). */
const DISCONNECT_REASONS = [
  '', 'HOST_NOT_ALLOWED_TO_CONNECT', 'PROTOCOL_ERROR', 'KEY_EXCHANGE_FAILED', 'RESERVED', 'MAC_ERROR', 'COMPRESSION_ERROR',
  'SERVICE_NOT_AVAILABLE', 'PROTOCOL_VERSION_NOT_SUPPORTED', 'HOST_KEY_NOT_VERIFIABLE', 'CONNECTION_LOST', 'BY_APPLICATION',
  'TOO_MANY_CONNECTIONS', 'AUTH_CANCELED_BY_USER', 'NO_MORE_AUTH_METHODS_AVAILABLE', 'ILLEGAL_USER_NAME',
];

/** ssh2's name for a kind of algorithm of which the server shares none. */
const ALGORITHMS = {
  kex: 'key exchange algorithm', host_key: 'host key format', cipher: 'C->S cipher', mac: 'C->S MAC', compression: 'C->S compression',
};

/** SSH_DISCONNECT_BY_APPLICATION: the other side has closed in good order. */
const BY_APPLICATION = 11;

/** getaddrinfo's EAI_NONAME, as libuv numbers it. */
const UV_EAI_NONAME = -3008;

/**
 * The same, of a connection, in the words that ssh2's programs look for; what the engine says is its `cause`.
 * @param {import('./native').Fault} fault
 * @param {{ config: any, ready: boolean, agreed: boolean }} connection `agreed`: the handshake is over
 * @returns {import('./index').SshError}
 */
function toConnectionError(fault, { config, ready, agreed }) {
  const { kind, execution, mayPass, code, disconnect, lacking, address, port, errno } = fault;
  const told = (/** @type {string} */ message, /** @type {Record<string, unknown>} */ more) =>
    /** @type {import('./index').SshError} */ (
      Object.assign(new Error(message, { cause: new Error(fault.message) }), { level: fault.level, code, kind, execution, mayPass }, more)
    );
  if (disconnect !== undefined) {
    const { reason, words } = disconnect;
    return told(words || (DISCONNECT_REASONS[reason] ?? `Unexpected disconnection reason: ${reason}`), { code: reason, level: 'client-ssh' });
  }
  if (kind === 'authentication') return told('All configured authentication methods failed', { level: 'client-authentication' });
  if (kind === 'host_key' && typeof config?.hostVerifier === 'function') return told('Host denied (verification failed)', {});
  if (lacking !== undefined) return told(`Handshake failed: no matching ${ALGORITHMS[lacking]}`, { level: 'handshake' });
  if (kind === 'timeout' && ready) return told('Keepalive timeout', { level: 'client-timeout' });
  if (kind !== 'network' || !config) return toError(fault);
  const host = hostOf(config);
  if (fault.level === 'client-dns') {
    const failed = `getaddrinfo ENOTFOUND ${host}`;
    const family = config.forceIPv4 === config.forceIPv6 ? undefined : config.forceIPv4 ? 'IPv4' : 'IPv6';
    if (family !== undefined) return told(`Error while looking up ${family} address for '${host}': Error: ${failed}`, { level: 'client-dns' });
    return told(failed, { level: 'client-socket', errno: UV_EAI_NONAME, code: 'ENOTFOUND', syscall: 'getaddrinfo', hostname: host });
  }
  if (errno === undefined) return agreed ? toError(fault) : told('Connection lost before handshake', { level: 'protocol' });
  if (ready || address === undefined) return told(`read ${code}`, { errno, syscall: 'read' });
  return told(`connect ${code} ${address}:${port}`, { errno, syscall: 'connect', address, port });
}

/**
 * The same, of a session, a tunnel or a listener that a client of ssh2's asked for.
 * @param {import('./native').Fault} fault
 * @param {string} unable what ssh2 says where the server refuses
 * @returns {import('./index').SshError}
 */
function toRequestError(fault, unable) {
  const { kind, reason, unstarted, words = '' } = fault;
  const error = toError(fault);
  const cause = new Error(error.message);
  if (unstarted !== undefined) {
    const { status, signal } = unstarted;
    if (signal !== null) return Object.assign(error, { message: `Received signal SIG${signal} while establishing SFTP session`, code: null, signal: `SIG${signal}`, cause });
    const received = status === null ? 'unexpected SFTP session termination' : `exit code ${status} while establishing SFTP session`;
    return Object.assign(error, { message: `Received ${received}`, code: status ?? undefined, signal: undefined, cause });
  }
  if (reason !== undefined) error.message = `(SSH) Channel open failure: ${words}`;
  else if (kind === 'limit') error.message = unable;
  else if (kind === 'network' || fault.code === 'ERR_CLOSED') error.message = 'No response from server';
  else return error;
  return Object.assign(error, { cause });
}

/**
 * The same, of a file of this machine, as Node's fs has it; what the engine says is its `cause`.
 * @param {import('./native').Fault} fault
 * @param {string} path
 * @param {boolean} isRead
 * @returns {Error}
 */
function toLocalError(fault, path, isRead) {
  const { code } = fault;
  const number = /** @type {Record<string, number>} */ (constants.errno)[code];
  if (number === undefined) return toError(fault);
  const words = getSystemErrorMap().get(-number)?.[1];
  // A directory can be opened, and not read.
  const found = isRead && code === 'EISDIR' ? { syscall: 'read' } : { syscall: 'open', path };
  const of = found.path === undefined ? '' : ` '${path}'`;
  const error = Object.assign(toError(fault), { errno: -number, ...found });
  const cause = new Error(error.message);
  error.message = `${code}: ${words}, ${found.syscall}${of}`;
  return Object.assign(error, { cause });
}

/** @param {unknown} value @returns {string} as Node's own errors describe what they were given */
function received(value) {
  if (value === null || value === undefined) return `Received ${value}`;
  return `Received type ${typeof value} (${inspect(value)})`;
}

/**
 * Has what is not text be a TypeError, as where ssh2 takes its length.
 * @param {unknown[]} values
 */
function checkText(...values) {
  for (const value of values) {
    if (typeof value === 'string') continue;
    Buffer.byteLength(/** @type {any} */ (value));
    throw Object.assign(new TypeError('argument must be a string'), { code: 'ERR_INVALID_ARG_TYPE' });
  }
}

module.exports = { BY_APPLICATION, checkText, hostOf, received, toLocalError, toRequestError, toConnectionError, toError };
