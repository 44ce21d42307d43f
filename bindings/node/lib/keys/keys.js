'use strict';

// Keys as ssh2's utils give them: parsed from every format that people have, signed and verified with, made anew.

const crypto = require('node:crypto');
const { KIND, answer, hub } = require('../hub');
const native = require('../native');

/** Curves by key type: their names in OpenSSL's words, and bytes of a coordinate. @type {Record<string, [crv: string, bytes: number, hash: string]>} */
const CURVES = {
  'ecdsa-sha2-nistp256': ['P-256', 32, 'sha256'],
  'ecdsa-sha2-nistp384': ['P-384', 48, 'sha384'],
  'ecdsa-sha2-nistp521': ['P-521', 66, 'sha512'],
};

/** A private key in OpenSSH's format. */
const OPENSSH = /^-----BEGIN OPENSSH PRIVATE KEY-----\r?\n[\s\S]+\n-----END OPENSSH PRIVATE KEY-----$/;

/** A private key in PEM's older formats. */
const PEM = /^-----BEGIN (?:RSA |EC |DSA |ENCRYPTED )?PRIVATE KEY-----/;

/** The types that older formats name, */
const OLD_TYPES = /^-----BEGIN (?:RSA|EC|DSA) PRIVATE KEY-----/;

/** and their header of what has a passphrase (RFC 1421 section 4.6.1.1). */
const OLD_PEM = /^Proc-Type: 4,ENCRYPTED\r?$/m;

/** A key that ends before its last field does. */
class Truncated extends Error {}

/** A key's encoding is strings with their lengths in front (RFC 4251 section 5). */
class Reader {
  /** @param {Buffer} data */
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  /** @returns {Buffer} */
  string() {
    if (this.at + 4 > this.data.length) throw new Truncated('too short');
    const end = this.at + 4 + this.data.readUInt32BE(this.at);
    if (end > this.data.length) throw new Truncated('too short');
    const found = this.data.subarray(this.at + 4, end);
    this.at = end;
    return found;
  }

  /** A positive number, without the zeros in front. @returns {Buffer} */
  number() {
    const number = this.string();
    let at = 0;
    while (at < number.length - 1 && number[at] === 0) at += 1;
    return number.subarray(at);
  }
}

/** @param {Array<string | Buffer>} fields */
function strings(...fields) {
  return Buffer.concat(fields.flatMap((field) => {
    const bytes = Buffer.from(field);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    return [length, bytes];
  }));
}

/** A positive number as the protocol has it. @param {Buffer} bytes */
function mpint(bytes) {
  let at = 0;
  while (at < bytes.length - 1 && bytes[at] === 0) at += 1;
  const number = bytes.subarray(at);
  return number[0] & 0x80 ? Buffer.concat([Buffer.alloc(1), number]) : number;
}

/** @param {Buffer} bytes */
const url = (bytes) => bytes.toString('base64url');

/** @param {Buffer} bytes @param {number} length */
function padded(bytes, length) {
  return Buffer.concat([Buffer.alloc(Math.max(0, length - bytes.length)), bytes]);
}

/** @param {string} type @param {Buffer} point */
function curvePoint(type, point) {
  const [crv, size] = CURVES[type];
  if (point[0] !== 4 || point.length !== 1 + 2 * size) throw new Error('not a point');
  return { kty: 'EC', crv, x: url(point.subarray(1, 1 + size)), y: url(point.subarray(1 + size)) };
}

/** A key, parsed. */
class ParsedKey {
  /**
   * @param {string} type
   * @param {string} comment
   * @param {Buffer} blob its public half as the protocol has it
   * @param {crypto.KeyObject} publicKey
   * @param {crypto.KeyObject} [privateKey]
   */
  constructor(type, comment, blob, publicKey, privateKey) {
    this.type = type;
    this.comment = comment;
    this._blob = blob;
    this._public = publicKey;
    this._private = privateKey;
  }

  isPrivateKey() {
    return this._private !== undefined;
  }

  /** @returns {string | null} */
  getPrivatePEM() {
    if (this._private === undefined) return null;
    const type = this.type === 'ssh-rsa' ? 'pkcs1' : this.type in CURVES ? 'sec1' : 'pkcs8';
    return String(this._private.export(/** @type {any} */ ({ type, format: 'pem' }))).trimEnd();
  }

  /** @returns {string} */
  getPublicPEM() {
    return String(this._public.export({ type: 'spki', format: 'pem' })).trimEnd();
  }

  /** @returns {Buffer} */
  getPublicSSH() {
    return this._blob;
  }

  /** @param {unknown} other */
  equals(other) {
    const parsed = parseKey(other);
    return isKey(parsed) && parsed.type === this.type && this._blob.equals(parsed.getPublicSSH())
      && parsed.isPrivateKey() === this.isPrivateKey();
  }

  /** The hash of a signature: another than Ed25519's own is an error of the signature. @param {unknown} algorithm */
  _hash(algorithm) {
    if (typeof algorithm === 'string' && algorithm !== '') return algorithm;
    if (this.type === 'ssh-ed25519') return null;
    return this.type in CURVES ? CURVES[this.type][2] : 'sha1';
  }

  /**
   * @param {Buffer} data
   * @param {string} [algorithm]
   * @returns {Buffer | Error}
   */
  sign(data, algorithm) {
    if (this._private === undefined) return new Error('No private key available');
    try {
      return crypto.sign(this._hash(algorithm), data, this._private);
    } catch (error) {
      return /** @type {Error} */ (error);
    }
  }

  /** The size of an RSA key. */
  bits() {
    return this._public.asymmetricKeyDetails?.modulusLength ?? 0;
  }

  /**
   * The same as sign(), on another thread.
   * @param {Buffer} data
   * @param {string} algorithm
   * @param {(error: Error | null, signature?: Buffer) => void} callback
   */
  signAside(data, algorithm, callback) {
    if (this._private === undefined) return callback(new Error('No private key available'));
    crypto.sign(this._hash(algorithm), data, this._private, callback);
  }

  /**
   * @param {Buffer} data
   * @param {Buffer} signature
   * @param {string} [algorithm]
   * @returns {boolean | Error}
   */
  verify(data, signature, algorithm) {
    try {
      return crypto.verify(this._hash(algorithm), data, this._public, signature);
    } catch (error) {
      return /** @type {Error} */ (error);
    }
  }
}

/** @param {string} type @param {string} comment @param {Record<string, any>} jwk @param {boolean} isPrivate */
function ofJwk(type, comment, jwk, isPrivate) {
  const half = { format: /** @type {const} */ ('jwk'), key: jwk };
  const privateKey = isPrivate ? crypto.createPrivateKey(half) : undefined;
  return ofKey(type, comment, privateKey ? crypto.createPublicKey(privateKey) : crypto.createPublicKey(half), privateKey);
}

/** @param {string} type @param {string} comment @param {crypto.KeyObject} publicKey @param {crypto.KeyObject} [privateKey] */
function ofKey(type, comment, publicKey, privateKey) {
  const jwk = /** @type {any} */ (publicKey.export({ format: 'jwk' }));
  const bytes = (/** @type {string} */ field) => Buffer.from(jwk[field], 'base64url');
  let blob;
  if (type === 'ssh-rsa') blob = strings(type, mpint(bytes('e')), mpint(bytes('n')));
  else if (type === 'ssh-ed25519') blob = strings(type, bytes('x'));
  else {
    const [, size] = CURVES[type];
    const point = Buffer.concat([Buffer.from([4]), padded(bytes('x'), size), padded(bytes('y'), size)]);
    blob = strings(type, type.slice('ecdsa-sha2-'.length), point);
  }
  return new ParsedKey(type, comment, blob, publicKey, privateKey);
}

/** A public key as the protocol has it. @param {Buffer} blob @param {string} comment */
function ofBlob(blob, comment) {
  const reader = new Reader(blob);
  const type = reader.string().toString();
  if (type === 'ssh-ed25519') return ofJwk(type, comment, { kty: 'OKP', crv: 'Ed25519', x: url(reader.string()) }, false);
  if (type === 'ssh-rsa') {
    const e = reader.number();
    return ofJwk(type, comment, { kty: 'RSA', e: url(e), n: url(reader.number()) }, false);
  }
  if (type in CURVES) {
    reader.string();
    return ofJwk(type, comment, curvePoint(type, reader.string()), false);
  }
  throw new Error(`Unsupported key type: ${type}`);
}

/** @param {{ n: Buffer, e: Buffer, d: Buffer, iqmp: Buffer, p: Buffer, q: Buffer }} numbers */
function rsaJwk({ n, e, d, iqmp, p, q }) {
  const big = (/** @type {Buffer} */ bytes) => BigInt(`0x${bytes.toString('hex')}`);
  const part = (/** @type {Buffer} */ prime) => {
    const hex = (big(d) % (big(prime) - 1n)).toString(16);
    return url(Buffer.from(hex.padStart(hex.length + (hex.length % 2), '0'), 'hex'));
  };
  return { kty: 'RSA', n: url(n), e: url(e), d: url(d), p: url(p), q: url(q), dp: part(p), dq: part(q), qi: url(iqmp) };
}

/** @param {string} type @param {string} comment @param {Buffer} point @param {Buffer} scalar */
function ofScalar(type, comment, point, scalar) {
  return ofJwk(type, comment, { ...curvePoint(type, point), d: url(padded(scalar, CURVES[type][1])) }, true);
}

/** The fields of a private key in OpenSSH's format, and its comment. @param {string} text @param {string | undefined} passphrase */
function opened(text, passphrase) {
  try {
    return native.openKey(Buffer.from(text), passphrase);
  } catch (error) {
    // What ssh2 makes of ECDSA's numbers is not always what OpenSSH and the engine take: those it reads itself.
    const body = Buffer.from(text.split('\n').filter((line) => !line.startsWith('-----')).join(''), 'base64');
    const reader = new Reader(body.subarray('openssh-key-v1\0'.length));
    if (reader.string().toString() !== 'none') throw error;
    reader.string();
    reader.string();
    reader.at += 4;
    reader.string();
    const secret = reader.string();
    if (!secret.subarray(0, 4).equals(secret.subarray(4, 8))) throw new Error('OpenSSH key integrity check failed', { cause: error });
    return secret.subarray(8);
  }
}

/** A private key in OpenSSH's format, by its fields and comment. @param {Buffer} fields */
function ofFields(fields) {
  const reader = new Reader(fields);
  const type = reader.string().toString();
  if (type === 'ssh-ed25519') {
    const x = url(reader.string());
    const d = url(reader.string().subarray(0, 32));
    return ofJwk(type, reader.string().toString(), { kty: 'OKP', crv: 'Ed25519', x, d }, true);
  }
  if (type === 'ssh-rsa') {
    const [n, e, d, iqmp, p, q] = Array.from({ length: 6 }, () => reader.number());
    return ofJwk(type, reader.string().toString(), rsaJwk({ n, e, d, iqmp, p, q }), true);
  }
  if (!(type in CURVES)) throw new Error(`Unsupported key type: ${type}`);
  reader.string();
  const point = reader.string();
  const scalar = reader.number();
  return ofScalar(type, reader.string().toString(), point, scalar);
}

/** A private key in PEM's older formats. @param {string} text @param {string | undefined} passphrase */
function ofPem(text, passphrase) {
  const isOld = OLD_PEM.test(text);
  // As ssh2: an empty passphrase is one.
  if (isOld ? passphrase === undefined : text.startsWith('-----BEGIN ENCRYPTED') && !passphrase) {
    throw new Error('Encrypted OpenSSH private key detected, but no passphrase given');
  }
  let key;
  try {
    key = crypto.createPrivateKey({ key: text, passphrase });
  } catch {
    if (isOld) throw new Error('Malformed OpenSSH private key. Bad passphrase?');
    if (OLD_TYPES.test(text)) throw new Error('Malformed OpenSSH private key');
    throw new Error(passphrase ? 'Malformed private key, or a wrong passphrase' : 'Malformed private key');
  }
  const { asymmetricKeyType: kind, asymmetricKeyDetails: details } = key;
  const named = { prime256v1: 'nistp256', secp384r1: 'nistp384', secp521r1: 'nistp521' };
  const type = kind === 'rsa' ? 'ssh-rsa' : kind === 'ed25519' ? 'ssh-ed25519'
    : `ecdsa-sha2-${named[/** @type {keyof named} */ (details?.namedCurve)]}`;
  if (kind !== 'rsa' && kind !== 'ed25519' && !(type in CURVES)) throw new Error(`Unsupported key type: ${kind}`);
  return ofKey(type, '', crypto.createPublicKey(key), key);
}

/** A private key of PuTTY's, version 2, or 3 without a passphrase. @param {string} text @param {string | undefined} passphrase */
function ofPutty(text, passphrase) {
  const lines = text.split(/\r?\n/);
  /** @type {Record<string, string>} */
  const fields = {};
  for (let at = 0; at < lines.length; at += 1) {
    const colon = lines[at].indexOf(': ');
    if (colon < 0) continue;
    const name = lines[at].slice(0, colon);
    fields[name] = lines[at].slice(colon + 2);
    if (name.endsWith('-Lines')) {
      const count = Number(fields[name]);
      fields[name] = lines.slice(at + 1, at + 1 + count).join('');
      at += count;
    }
  }
  const version = 'PuTTY-User-Key-File-3' in fields ? 3 : 2;
  const type = fields[`PuTTY-User-Key-File-${version}`];
  const { Encryption: encryption, Comment: comment = '' } = fields;
  const blob = Buffer.from(fields['Public-Lines'] ?? '', 'base64');
  let secret = Buffer.from(fields['Private-Lines'] ?? '', 'base64');
  if (encryption !== 'none') {
    if (encryption !== 'aes256-cbc') throw new Error(`Unsupported cipher for PPK key: ${encryption}`);
    if (!passphrase) throw new Error('Encrypted PPK private key detected, but no passphrase given');
    if (version === 3) throw new Error('PPK keys of version 3 with a passphrase are not supported: convert them (puttygen -O private-openssh)');
    const half = (/** @type {number} */ n) => crypto.createHash('sha1').update(Buffer.from([0, 0, 0, n])).update(passphrase).digest();
    const decipher = crypto.createDecipheriv('aes-256-cbc', Buffer.concat([half(0), half(1)]).subarray(0, 32), Buffer.alloc(16));
    decipher.setAutoPadding(false);
    secret = Buffer.concat([decipher.update(secret), decipher.final()]);
  }
  const [hash, key] = version === 3
    ? ['sha256', Buffer.alloc(0)]
    : ['sha1', crypto.createHash('sha1').update('putty-private-key-file-mac-key').update(encryption === 'none' ? '' : passphrase ?? '').digest()];
  const mac = crypto.createHmac(hash, key).update(strings(type, encryption, comment, blob, secret)).digest();
  const claimed = Buffer.from(fields['Private-MAC'] ?? '', 'hex');
  if (claimed.length !== mac.length || !crypto.timingSafeEqual(claimed, mac)) {
    throw new Error(encryption === 'none' ? 'PPK private key integrity check failed' : 'PPK private key integrity check failed -- bad passphrase?');
  }
  const [shown, hidden] = [new Reader(blob), new Reader(secret)];
  shown.string();
  if (type === 'ssh-rsa') {
    const [e, n] = [shown.number(), shown.number()];
    const [d, p, q, iqmp] = [hidden.number(), hidden.number(), hidden.number(), hidden.number()];
    return ofJwk(type, comment, rsaJwk({ n, e, d, iqmp, p, q }), true);
  }
  if (type === 'ssh-ed25519') {
    return ofJwk(type, comment, { kty: 'OKP', crv: 'Ed25519', x: url(shown.string()), d: url(padded(hidden.number(), 32)) }, true);
  }
  if (!(type in CURVES)) throw new Error(`Unsupported key type: ${type}`);
  shown.string();
  return ofScalar(type, comment, shown.string(), hidden.number());
}

/** A public key as RFC 4716 writes it. @param {string} text */
function ofRfc4716(text) {
  const body = /^---- BEGIN SSH2 PUBLIC KEY ----\r?\n([\s\S]*?)\r?\n---- END SSH2 PUBLIC KEY ----/.exec(text);
  if (body === null) throw new Error('Malformed RFC4716 public key');
  const joined = body[1].replace(/\\\r?\n/g, '');
  const lines = joined.split(/\r?\n/);
  const comment = lines.map((line) => /^Comment: *"?(.*?)"?$/i.exec(line)?.[1]).find((found) => found !== undefined) ?? '';
  return ofBlob(Buffer.from(lines.filter((line) => !line.includes(':')).join(''), 'base64'), comment);
}

/** @param {unknown} value @returns {value is ParsedKey} */
function isKey(value) {
  return value instanceof ParsedKey || (typeof value === 'object' && value !== null
    && typeof (/** @type {any} */ (value).getPublicSSH) === 'function' && typeof (/** @type {any} */ (value).sign) === 'function');
}

/**
 * Parses a private or public key in any of OpenSSH's, PEM's, PuTTY's and RFC 4716's formats.
 * @param {unknown} data
 * @param {Buffer | string} [passphrase]
 * @returns {ParsedKey | Error} an error where it is none
 */
function parseKey(data, passphrase) {
  if (isKey(data)) return data;
  if (typeof data !== 'string' && !Buffer.isBuffer(data)) return new Error('Key data must be a Buffer or string');
  if (passphrase !== undefined && passphrase !== null && typeof passphrase !== 'string' && !Buffer.isBuffer(passphrase)) {
    return new Error('Passphrase must be a string or Buffer when supplied');
  }
  const text = data.toString().trim();
  const given = passphrase?.toString();
  const phrase = given || undefined;
  try {
    if (OPENSSH.test(text)) return ofFields(opened(`${text}\n`, phrase));
    if (PEM.test(text)) return ofPem(text, given);
    if (text.startsWith('PuTTY-User-Key-File-')) return ofPutty(text, phrase);
    if (text.startsWith('---- BEGIN SSH2 PUBLIC KEY ----')) return ofRfc4716(text);
    const line = /^([a-z0-9@.-]+)\s+([A-Za-z0-9+/=]+)(?:\s+(.*))?$/.exec(text);
    if (line !== null) {
      const blob = Buffer.from(line[2], 'base64');
      if (new Reader(blob).string().toString() === line[1]) return ofBlob(blob, line[3] ?? '');
    }
    if (Buffer.isBuffer(data)) {
      try {
        return ofBlob(data, '');
      } catch {
        // Nor is it one as the protocol has them.
      }
    }
  } catch (error) {
    if (error instanceof Truncated) return new Error(`Malformed OpenSSH ${OPENSSH.test(text) ? 'private' : 'public'} key`);
    return error instanceof Error ? error : new Error(String(error));
  }
  return new Error('Unsupported key format');
}

/**
 * Whether a key costs much to open: a private key behind a passphrase. PuTTY's, of which version 2 is read, takes two hashes, an
 * old PEM's four at most.
 * @param {unknown} data
 * @param {unknown} passphrase
 * @returns {boolean} false for what parseKey() opens, or refuses, in no time
 */
function isSealed(data, passphrase) {
  if ((typeof data !== 'string' && !Buffer.isBuffer(data)) || !passphrase) return false;
  const text = data.toString().trim();
  try {
    return (OPENSSH.test(text) || (PEM.test(text) && !OLD_PEM.test(text))) && native.isSealed(Buffer.from(`${text}\n`));
  } catch {
    return false;
  }
}

/**
 * Opens such a key while the event loop keeps running.
 * @param {Buffer | string} data
 * @param {Buffer | string} passphrase
 * @returns {Promise<ParsedKey | Error>}
 */
function openSealed(data, passphrase) {
  const text = data.toString().trim();
  const isPem = PEM.test(text);
  return new Promise((resolve) => {
    const id = hub.openKey(Buffer.from(`${text}\n`), passphrase.toString());
    answer(id, undefined, (kind, value) => {
      // OpenSSL knows more ciphers.
      if (kind === KIND.FAIL && value === null) return resolve(parseKey(data, passphrase));
      if (kind === KIND.FAIL) return resolve(new Error(isPem ? 'Malformed private key, or a wrong passphrase' : value));
      try {
        resolve(ofFields(value));
      } catch (error) {
        resolve(/** @type {Error} */ (error));
      }
    });
  });
}

/**
 * A signature as the protocol has it, of what Node's crypto and agents of programs make.
 * @param {string} algorithm
 * @param {Buffer} signature for ECDSA the two numbers, in DER or as the protocol has them
 */
function encodeSignature(algorithm, signature) {
  // The length of the protocol's first number begins with a zero, DER with a tag.
  if (!algorithm.startsWith('ecdsa-sha2-') || signature[0] === 0) return strings(algorithm, signature);
  // SEQUENCE, its length in one or two bytes, and two INTEGERs.
  let at = signature[1] & 0x80 ? 3 : 2;
  const numbers = [0, 1].map(() => {
    const length = signature[at + 1];
    const number = signature.subarray(at + 2, at + 2 + length);
    at += 2 + length;
    return mpint(number);
  });
  return strings(algorithm, strings(...numbers));
}

module.exports = { ParsedKey, Reader, encodeSignature, isKey, isSealed, openSealed, parseKey, strings };
