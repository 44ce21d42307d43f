'use strict';

// New pairs of keys, in OpenSSH's format.

const crypto = require('node:crypto');
const { parseKey, strings } = require('./keys');

/** @type {Record<number, string>} */
const CURVES = { 256: 'prime256v1', 384: 'secp384r1', 521: 'secp521r1' };

/** Those that ssh2 encrypts keys with. */
const CIPHERS = /^(aes(128|192|256)-(cbc|ctr|gcm|gcm@openssh\.com)|chacha20-poly1305@openssh\.com|3des-cbc)$/;

/** @typedef {{ bits?: number, passphrase?: unknown, cipher?: any, rounds?: unknown, comment?: unknown, format?: unknown }} KeyOptions */

/**
 * Throws for what cannot be written down.
 * @param {KeyOptions | undefined} options
 */
function checkForm({ passphrase, cipher, rounds, format } = {}) {
  if (passphrase) {
    if (typeof passphrase !== 'string' && !Buffer.isBuffer(passphrase)) throw new Error('Invalid passphrase');
    if (cipher === undefined) throw new Error('Missing cipher name');
    if (!CIPHERS.test(cipher)) throw new Error('Invalid cipher name');
    if (rounds !== undefined && !Number.isInteger(rounds)) throw new TypeError('rounds must be an integer');
    throw new Error('Keys are made without a passphrase: give them one with ssh-keygen -p');
  }
  if (typeof format === 'string' && format && format !== 'new') throw new Error('Invalid output key format');
}

/**
 * @param {string} type
 * @param {KeyOptions | undefined} options
 * @returns {[string, any]} what Node's crypto makes it of
 */
function kindOf(type, options) {
  if (typeof type !== 'string') throw new TypeError('Key type must be a string');
  const bits = /** @type {number} */ (options?.bits);
  switch (type.toLowerCase()) {
    case 'ed25519':
      return ['ed25519', {}];
    case 'rsa':
      if (typeof options !== 'object' || options === null) throw new TypeError('Missing options object for RSA key');
      if (!Number.isInteger(bits)) throw new TypeError('RSA bits must be an integer');
      if (bits <= 0 || bits > 16384) throw new RangeError('RSA bits must be non-zero and <= 16384');
      return ['rsa', { modulusLength: bits }];
    case 'ecdsa':
      if (typeof options !== 'object' || options === null) throw new TypeError('Missing options object for ECDSA key');
      if (!Number.isInteger(bits)) throw new TypeError('ECDSA bits must be an integer');
      if (CURVES[bits] === undefined) throw new Error('ECDSA bits must be 256, 384, or 521');
      return ['ec', { namedCurve: CURVES[bits] }];
    default:
      throw new Error(`Unsupported key type: ${type}`);
  }
}

/** @param {Buffer} number with zeros in front as needed */
function positive(number) {
  return number[0] & 0x80 ? Buffer.concat([Buffer.alloc(1), number]) : number;
}

/**
 * @param {crypto.KeyObject} privateKey
 * @param {KeyOptions} [options]
 */
function pair(privateKey, options) {
  checkForm(options ?? undefined);
  const comment = typeof options?.comment === 'string' ? options.comment : '';
  const pem = privateKey.export({ type: 'pkcs8', format: 'pem' });
  const key = /** @type {import('./keys').ParsedKey} */ (parseKey(pem));
  const blob = key.getPublicSSH();
  const jwk = /** @type {any} */ (privateKey.export({ format: 'jwk' }));
  const field = (/** @type {string} */ name) => Buffer.from(jwk[name], 'base64url');
  let fields;
  if (key.type === 'ssh-rsa') {
    const numbers = ['n', 'e', 'd', 'qi', 'p', 'q'].map((name) => positive(field(name)));
    fields = strings(key.type, ...numbers);
  } else if (key.type === 'ssh-ed25519') {
    fields = strings(key.type, field('x'), Buffer.concat([field('d'), field('x')]));
  } else {
    fields = Buffer.concat([blob, strings(positive(field('d')))]);
  }
  // PROTOCOL.key: two equal numbers, the key, its comment, and 1, 2, 3, … up to a block of 8.
  const check = crypto.randomBytes(4);
  const secret = Buffer.concat([check, check, fields, strings(comment)]);
  const padding = Buffer.from(Array.from({ length: (8 - (secret.length % 8)) % 8 }, (_, at) => at + 1));
  const one = Buffer.from([0, 0, 0, 1]);
  const encoded = Buffer.concat([
    Buffer.from('openssh-key-v1\0'), strings('none', 'none', ''), one, strings(blob, Buffer.concat([secret, padding])),
  ]);
  const lines = encoded.toString('base64').match(/.{1,70}/g) ?? [];
  return {
    private: `-----BEGIN OPENSSH PRIVATE KEY-----\n${lines.join('\n')}\n-----END OPENSSH PRIVATE KEY-----\n`,
    public: `${key.type} ${blob.toString('base64')}${comment ? ` ${comment}` : ''}`,
  };
}

/** @param {string} type @param {any} [options] */
function generateKeyPairSync(type, options) {
  const [kind, settings] = kindOf(type, options);
  const { privateKey } = crypto.generateKeyPairSync(/** @type {any} */ (kind), settings);
  return pair(/** @type {any} */ (privateKey), options);
}

/**
 * An error in the type or its size is thrown; other errors go to the callback, as in ssh2.
 * @param {string} type @param {any} options @param {(error: Error | null, keys?: { private: string, public: string }) => void} [callback]
 */
function generateKeyPair(type, options, callback) {
  if (typeof options === 'function') [options, callback] = [undefined, options];
  const told = callback ?? (() => {});
  const [kind, settings] = kindOf(type, options);
  /** @type {any} */ (crypto).generateKeyPair(kind, settings, (/** @type {Error | null} */ error, /** @type {any} */ _public, /** @type {any} */ made) => {
    if (error) return told(error);
    let keys;
    try {
      keys = pair(made, options);
    } catch (wrong) {
      return told(/** @type {Error} */ (wrong));
    }
    told(null, keys);
  });
}

module.exports = { generateKeyPair, generateKeyPairSync };
