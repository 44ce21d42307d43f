'use strict';

// ssh2's SFTP: methods with callbacks, streams, whole files.

const { EventEmitter } = require('node:events');
const fs = require('node:fs');
const { Readable, Transform, Writable, pipeline } = require('node:stream');
const { fileURLToPath } = require('node:url');
const { KIND, hub, answer, attach, attempt, detach } = require('../hub');
const { checkText, toError, toLocalError } = require('../errors');

const STATUS_CODE = Object.freeze({
  OK: 0, EOF: 1, NO_SUCH_FILE: 2, PERMISSION_DENIED: 3, FAILURE: 4, BAD_MESSAGE: 5, NO_CONNECTION: 6,
  CONNECTION_LOST: 7, OP_UNSUPPORTED: 8,
});

const OPEN_MODE = Object.freeze({ READ: 1, WRITE: 2, APPEND: 4, CREAT: 8, TRUNC: 16, EXCL: 32 });

/** Flags by fs.open()'s names. @type {Record<string, number>} */
const FLAGS = {
  r: 1, 'r+': 3, w: 2 | 8 | 16, 'w+': 1 | 2 | 8 | 16, wx: 2 | 8 | 16 | 32, xw: 2 | 8 | 16 | 32, 'wx+': 1 | 2 | 8 | 16 | 32,
  'xw+': 1 | 2 | 8 | 16 | 32, a: 2 | 4 | 8, 'a+': 1 | 2 | 4 | 8, ax: 2 | 4 | 8 | 32, xa: 2 | 4 | 8 | 32,
  'ax+': 1 | 2 | 4 | 8 | 32, 'xa+': 1 | 2 | 4 | 8 | 32,
};

/** The flags of a name as for fs.open(); null for none. @param {string} name */
function stringToFlags(name) {
  return FLAGS[name] ?? null;
}

/** A name of flags; null if they have none. @param {number} flags */
function flagsToString(flags) {
  return Object.keys(FLAGS).find((name) => FLAGS[name] === flags) ?? null;
}

/** One read of a stream: the engine asks the server for it in pieces of the server's size, all at once. */
const CHUNK = 256 * 1024;
/** Reads ahead, and bytes written behind: 4 MiB under way are 40 MB/s at 100 ms. */
const AHEAD = 16;
const BEHIND = 4 * 1024 * 1024;

/**
 * @param {string | number} flags
 * @returns {number}
 */
function openFlags(flags) {
  const known = typeof flags === 'number' ? flags : FLAGS[flags];
  if (known === undefined) throw new Error(`Unknown flags string: ${flags}`);
  return known;
}

/** Attributes, with fs.Stats' questions. What the server has not sent is undefined. */
class Stats {
  /** @param {Record<string, number | null>} attributes */
  constructor(attributes) {
    this.mode = attributes.mode ?? undefined;
    this.uid = attributes.uid ?? undefined;
    this.gid = attributes.gid ?? undefined;
    this.size = attributes.size ?? undefined;
    this.atime = attributes.atime ?? undefined;
    this.mtime = attributes.mtime ?? undefined;
    /** A server's extra attributes; ssh2 has them, and they stay empty here. */
    this.extended = undefined;
  }

  /** @param {number} type */
  _is(type) {
    return ((this.mode ?? 0) & fs.constants.S_IFMT) === type;
  }

  isDirectory() { return this._is(fs.constants.S_IFDIR); }
  isFile() { return this._is(fs.constants.S_IFREG); }
  isBlockDevice() { return this._is(fs.constants.S_IFBLK); }
  isCharacterDevice() { return this._is(fs.constants.S_IFCHR); }
  isSymbolicLink() { return this._is(fs.constants.S_IFLNK); }
  isFIFO() { return this._is(fs.constants.S_IFIFO); }
  isSocket() { return this._is(fs.constants.S_IFSOCK); }
}

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/**
 * A line of `ls -l`, which programs take apart, where the server has sent none; owners by number.
 * @param {string} name
 * @param {Stats} attributes
 * @returns {string}
 */
function longName(name, attributes) {
  const { mode = 0, uid = 0, gid = 0, size = 0, mtime = 0 } = attributes;
  const types = /** @type {const} */ ([['isDirectory', 'd'], ['isSymbolicLink', 'l'], ['isBlockDevice', 'b'],
    ['isCharacterDevice', 'c'], ['isFIFO', 'p'], ['isSocket', 's']]);
  const type = types.find(([question]) => attributes[question]())?.[1] ?? '-';
  const rights = [6, 3, 0].map((shift) => {
    const bits = mode >> shift;
    return `${bits & 4 ? 'r' : '-'}${bits & 2 ? 'w' : '-'}${bits & 1 ? 'x' : '-'}`;
  });
  const time = new Date(mtime * 1000);
  const day = String(time.getDate()).padStart(2);
  const numbers = `${String(uid).padEnd(8)} ${String(gid).padEnd(8)} ${String(size).padStart(8)}`;
  return `${type}${rights.join('')}    1 ${numbers} ${MONTHS[time.getMonth()]} ${day} ${time.getFullYear()} ${name}`;
}

/**
 * Seconds since 1970 of what programs give for a time.
 * @param {unknown} time
 * @returns {number}
 */
function seconds(time) {
  if (typeof time === 'number' && !Number.isNaN(time)) return Math.floor(time);
  if (time instanceof Date) return Math.floor(time.getTime() / 1000);
  throw new Error(`Cannot parse time: ${time}`);
}

/** @param {unknown} mode a number, or one in octal as text @returns {number} */
function modeOf(mode) {
  const number = typeof mode === 'string' ? parseInt(mode, 8) : mode;
  if (typeof number === 'number' && !Number.isNaN(number)) return number;
  throw new Error(`Cannot parse mode: ${number}`);
}

/**
 * As ssh2: what has another type is left out, and so is half of an owner or of the times.
 * @param {any} attributes
 * @returns {import('../native').SftpAttributes | undefined}
 */
function attributesToSet(attributes) {
  if (typeof attributes !== 'object' || attributes === null) return undefined;
  const { mode, uid, gid, size, atime, mtime } = attributes;
  const isNumber = (/** @type {unknown} */ value) => typeof value === 'number';
  const isTime = (/** @type {unknown} */ value) => isNumber(value) || value instanceof Date;
  return {
    mode: isNumber(mode) || typeof mode === 'string' ? modeOf(mode) : undefined,
    ...(isNumber(uid) && isNumber(gid) ? { uid, gid } : {}),
    size: isNumber(size) ? size : undefined,
    ...(isTime(atime) && isTime(mtime) ? { atime: seconds(atime), mtime: seconds(mtime) } : {}),
  };
}

/** @param {unknown} options @returns {any} what readFile() and its kin are given, but for an encoding alone */
function fileOptions(options) {
  const given = typeof options === 'string' ? { encoding: options } : options || {};
  if (typeof given !== 'object') throw new TypeError('Bad arguments');
  const { encoding } = /** @type {any} */ (given);
  if (encoding && !Buffer.isEncoding(encoding)) throw new Error(`Unknown encoding: ${encoding}`);
  return given;
}

/**
 * Checks the part of a buffer that is read into or written from.
 * @param {unknown} buffer
 * @param {boolean} isRead
 * @param {number} offset
 * @param {number} length
 * @param {number | null} position
 */
function checkPart(buffer, isRead, offset, length, position) {
  if (!Buffer.isBuffer(buffer)) throw new Error('buffer is not a Buffer');
  if (offset < 0 || (isRead ? offset >= buffer.length : offset > buffer.length)) throw new Error('offset is out of bounds');
  if (offset + length > buffer.length) throw new Error('length extends beyond buffer');
  if (position === null) throw new Error('null position currently unsupported');
}

/** As Node's own fs streams. @param {unknown} position @param {string} name */
function checkPosition(position, name) {
  if (typeof position !== 'number') {
    const error = new TypeError(`The "${name}" argument must be of type number. Received type ${typeof position}`);
    throw Object.assign(error, { code: 'ERR_INVALID_ARG_TYPE' });
  }
  if (!Number.isInteger(position)) throw outOfRange(name, 'an integer', position);
  if (!Number.isSafeInteger(position) || position < 0) throw outOfRange(name, '>= 0 and <= 2 ** 53 - 1', position);
}

/** @param {string} name @param {string} range @param {number} position */
function outOfRange(name, range, position) {
  const error = new RangeError(`The value of "${name}" is out of range. It must be ${range}. Received ${position}`);
  return Object.assign(error, { code: 'ERR_OUT_OF_RANGE' });
}

/** @param {unknown} options @returns {any} of a stream */
function streamOptions(options) {
  if (typeof options === 'string') return { encoding: options };
  if (options === undefined) return {};
  if (options === null || typeof options !== 'object') throw new TypeError('"options" argument must be a string or an object');
  const { start, handle, flags = 'r', mode } = /** @type {any} */ (options);
  if (start !== undefined) checkPosition(start, 'start');
  if (!Buffer.isBuffer(handle)) {
    openFlags(flags);
    attributesToSet({ mode });
  }
  return options;
}

/** @param {unknown} options @returns {any} of a stream that is read, which may have an end */
function readOptions(options) {
  const given = streamOptions(options);
  const { start, end } = given;
  if (end !== undefined && end !== Infinity) {
    checkPosition(end, 'end');
    if (start > end) throw outOfRange('start', `<= "end" (here: ${end})`, start);
  }
  return given;
}

/** @typedef {(error?: Error, value?: any) => void} Callback */

/** ssh2's SFTPWrapper. Events: 'end' and 'close', when the session is over. */
class SFTP extends EventEmitter {
  /**
   * @param {number} id
   * @param {import('../client').Client} owner
   */
  constructor(id, owner) {
    super();
    this._id = id;
    this._owner = owner;
    this.type = 'session';
    this.subtype = 'subsystem';
    this.server = false;
    this._over = false;
    /** `end()` was called. */
    this._ending = false;
    /** The server's announced extensions: names and versions. @type {Array<[string, string]>} */
    this._extensions = [];
    /** Directories that opendir() has read, and what readdir() has not told, by their handles' numbers. @type {Map<number, { path: string, names?: any[] }>} */
    this._directories = new Map();
    this._nextDirectory = 0;
    /** @type {Callback | undefined} */
    this._opening = undefined;
    /** The converter for an error of its opening. @type {(fault: import('../native').Fault) => Error} */
    this._explain = toError;
    /** And with one of its requests. @type {(fault: import('../native').Fault) => Error} */
    this._explainCall = toError;
    attach(id, this);
  }

  /**
   * @param {number} kind
   * @param {any} value
   */
  _told(kind, value) {
    const opening = this._opening;
    switch (kind) {
      case KIND.OPEN:
        this._opening = undefined;
        this._extensions = value;
        opening?.(undefined, this);
        break;
      case KIND.FAIL:
        this._opening = undefined;
        this._over = true;
        detach(this._id);
        opening?.(this._explain(value));
        this._owner._left(this);
        break;
      case KIND.CLOSE:
        this._over = true;
        detach(this._id);
        opening?.(new Error('Not connected'));
        this.emit('end');
        this.emit('close');
        this._owner._left(this);
        break;
    }
  }

  /** Whether something is left to be told. */
  _isHeard() {
    return !this._over;
  }

  /**
   * @param {import('../native').SftpCall} call
   * @param {Callback | undefined} callback
   * @param {(value: any) => any} [shape] what the callback gets of the outcome
   * @param {(step: any) => void} [step]
   * @returns {boolean}
   */
  _call(call, callback, shape = () => undefined, step = undefined) {
    for (const field of /** @type {const} */ (['path', 'target'])) if (field in call) checkText(call[field]);
    if (this._over) throw new Error('Not connected');
    const { op, target } = call;
    const explain = (/** @type {import('../native').Fault} */ fault) => fault.level === 'local' && target !== undefined
      ? toLocalError(fault, target, op === 'put')
      : this._explainCall(fault);
    const id = hub.sftpCall(this._id, call);
    const answered = (/** @type {number} */ kind, /** @type {any} */ value) => {
      if (kind === KIND.FAIL) return callback?.(explain(value));
      const shaped = shape(value);
      // As ssh2: what gives nothing calls back with nothing.
      if (shaped === undefined) callback?.();
      else callback?.(undefined, shaped);
    };
    answer(id, this._owner, answered, step);
    return true;
  }

  /**
   * A request of an extension. As ssh2, which throws where the server has not announced it.
   * @param {string} name
   * @param {string} [version]
   */
  _needs(name, version = '1') {
    if (this._extensions.some(([announced, of]) => announced === name && of === version)) return;
    throw new Error('Server does not support this extended request');
  }

  /** Closes the session, with everything that is open in it. */
  end() {
    this._ending = true;
    if (!this._over) hub.closeSftp(this._id);
  }

  /** Returns true if this side has ended the session, or the connection under it. */
  _isEnding() {
    return this._ending || this._owner._ending;
  }

  /** The same. */
  destroy() {
    this.end();
  }

  /**
   * @param {string} path
   * @param {string | number} flags
   * @param {any} attributes or a mode
   * @param {Callback} [callback]
   */
  open(path, flags, attributes, callback) {
    if (typeof attributes === 'function') [attributes, callback] = [undefined, attributes];
    if (typeof attributes === 'number' || typeof attributes === 'string') attributes = { mode: attributes };
    return this._call({ op: 'open', path, flags: openFlags(flags), attributes: attributesToSet(attributes) }, callback, handleOf);
  }

  /** @param {Buffer} handle @param {Callback} [callback] */
  close(handle, callback) {
    checkHandle(handle);
    // A directory's: the server has nothing open for it.
    if (this._directories.delete(directoryOf(handle))) {
      process.nextTick(() => attempt(this._owner, () => callback?.()));
      return true;
    }
    return this._call({ op: 'close', handle: numberOf(handle) }, callback);
  }

  /**
   * @param {Buffer} handle
   * @param {Buffer} buffer
   * @param {number} offset in the buffer
   * @param {number} length
   * @param {number} position in the file
   * @param {(error?: Error, bytesRead?: number, buffer?: Buffer, position?: number) => void} callback
   */
  read(handle, buffer, offset, length, position, callback) {
    checkHandle(handle);
    checkPart(buffer, true, offset, length, position);
    return this._call({ op: 'read', handle: numberOf(handle), offset: position, length }, (error, data) => {
      if (error) return callback(error);
      data.copy(buffer, offset);
      callback(undefined, data.length, buffer.subarray(offset, offset + data.length), position);
    }, (data) => data);
  }

  /**
   * @param {Buffer} handle
   * @param {Buffer} buffer
   * @param {number} offset in the buffer
   * @param {number} length
   * @param {number} position in the file
   * @param {Callback} [callback]
   */
  write(handle, buffer, offset, length, position, callback) {
    checkHandle(handle);
    checkPart(buffer, false, offset, length, position);
    if (!length) {
      process.nextTick(() => callback?.(undefined, 0));
      return true;
    }
    const data = buffer.subarray(offset, offset + length);
    // As ssh2: where in the buffer it has come to.
    return this._call({ op: 'write', handle: numberOf(handle), offset: position, data }, callback, () => offset + length);
  }

  /**
   * The same as read(), under ssh2's older name.
   * @param {[handle: Buffer, buffer: Buffer, offset: number, length: number, position: number, callback: any]} given
   */
  readData(...given) {
    return this.read(...given);
  }

  /**
   * The same as write(), under ssh2's older name.
   * @param {[handle: Buffer, buffer: Buffer, offset: number, length: number, position: number, callback?: any]} given
   */
  writeData(...given) {
    return this.write(...given);
  }

  /** @param {Buffer} handle @param {Callback} callback */
  fstat(handle, callback) {
    return this._call({ op: 'fstat', handle: numberOf(handle) }, callback, stats);
  }

  /** @param {Buffer} handle @param {any} attributes @param {Callback} [callback] */
  fsetstat(handle, attributes, callback) {
    if (typeof attributes === 'function') [attributes, callback] = [undefined, attributes];
    return this._call({ op: 'fsetstat', handle: numberOf(handle), attributes: attributesToSet(attributes) }, callback);
  }

  /** @param {Buffer} handle @param {Date | number} atime @param {Date | number} mtime @param {Callback} [callback] */
  futimes(handle, atime, mtime, callback) {
    return this.fsetstat(handle, { atime: seconds(atime), mtime: seconds(mtime) }, callback);
  }

  /** @param {Buffer} handle @param {number} uid @param {number} gid @param {Callback} [callback] */
  fchown(handle, uid, gid, callback) {
    return this.fsetstat(handle, { uid, gid }, callback);
  }

  /** @param {Buffer} handle @param {number | string} mode @param {Callback} [callback] */
  fchmod(handle, mode, callback) {
    return this.fsetstat(handle, { mode }, callback);
  }

  /**
   * Reads the directory too: the engine has no handles of directories.
   * @param {string} path
   * @param {Callback} callback
   */
  opendir(path, callback) {
    return this._list(path, false, callback, (names) => {
      const number = this._nextDirectory++;
      this._directories.set(number, { path, names });
      return directoryHandle(number);
    });
  }

  /**
   * To the engine an empty path is the directory where the session began. To OpenSSH's server it is none: the server is asked, for
   * a program that has lost its path must not work on another directory.
   * @param {string} path
   * @param {boolean} full
   * @param {Callback | undefined} callback
   * @param {(names: any[]) => any} shape
   * @returns {boolean}
   */
  _list(path, full, callback, shape) {
    const list = () => this._call({ op: 'readdir', path, full }, callback, shape);
    if (path !== '') return list();
    return this.stat(path, (error) => {
      if (error) callback?.(error);
      else list();
    });
  }

  /**
   * The names in a directory, all at once: by its path, or by opendir()'s handle, which is at its end the next time.
   * @param {string | Buffer} where
   * @param {any} options full: `.` and `..` are among them
   * @param {Callback} [callback]
   */
  readdir(where, options, callback) {
    if (typeof options === 'function') [options, callback] = [undefined, options];
    if (typeof where !== 'string' && !Buffer.isBuffer(where)) throw new Error('missing directory handle or path');
    const full = Boolean(options?.full);
    if (typeof where !== 'string') {
      const directory = this._directories.get(directoryOf(where));
      if (!full || directory?.names === undefined) {
        const error = directory === undefined ? status(STATUS_CODE.FAILURE, 'the directory is not open') : status(STATUS_CODE.EOF, 'End of file');
        /** @type {[Error | undefined, any[]?]} */
        const told = directory?.names === undefined ? [error] : [undefined, directory.names.map(entryOf)];
        if (directory !== undefined) directory.names = undefined;
        process.nextTick(() => attempt(this._owner, () => callback?.(...told)));
        return true;
      }
      directory.names = undefined;
      where = directory.path;
    }
    return this._list(where, full, callback, (names) => names.map(entryOf));
  }

  /** @param {string} path @param {Callback} callback */
  stat(path, callback) { return this._call({ op: 'stat', path }, callback, stats); }

  /** @param {string} path @param {Callback} callback */
  lstat(path, callback) { return this._call({ op: 'lstat', path }, callback, stats); }

  /** @param {string} path @param {(exists: boolean) => void} callback */
  exists(path, callback) { return this.stat(path, (error) => callback(!error)); }

  /** @param {string} path @param {any} attributes @param {Callback} [callback] */
  setstat(path, attributes, callback) {
    if (typeof attributes === 'function') [attributes, callback] = [undefined, attributes];
    return this._call({ op: 'setstat', path, attributes: attributesToSet(attributes) }, callback);
  }

  /** @param {string} path @param {Date | number} atime @param {Date | number} mtime @param {Callback} [callback] */
  utimes(path, atime, mtime, callback) { return this.setstat(path, { atime: seconds(atime), mtime: seconds(mtime) }, callback); }

  /** @param {string} path @param {number} uid @param {number} gid @param {Callback} [callback] */
  chown(path, uid, gid, callback) { return this.setstat(path, { uid, gid }, callback); }

  /** @param {string} path @param {number | string} mode @param {Callback} [callback] */
  chmod(path, mode, callback) { return this.setstat(path, { mode }, callback); }

  /** @param {string} path @param {any} attributes @param {Callback} [callback] */
  mkdir(path, attributes, callback) {
    if (typeof attributes === 'function') [attributes, callback] = [undefined, attributes];
    return this._call({ op: 'mkdir', path, attributes: attributesToSet(attributes) }, callback);
  }

  /** @param {string} path @param {Callback} [callback] */
  rmdir(path, callback) { return this._call({ op: 'rmdir', path }, callback); }

  /** @param {string} path @param {Callback} [callback] */
  unlink(path, callback) { return this._call({ op: 'unlink', path }, callback); }

  /** Fails where something has the new name. @param {string} path @param {string} target @param {Callback} [callback] */
  rename(path, target, callback) { return this._call({ op: 'rename', path, target }, callback); }

  /** Replaces what is there. @param {string} path @param {string} target @param {Callback} [callback] */
  ext_openssh_rename(path, target, callback) {
    this._needs('posix-rename@openssh.com');
    return this._call({ op: 'posixRename', path, target }, callback);
  }

  /** @param {string} path @param {string} target @param {Callback} [callback] */
  ext_openssh_hardlink(path, target, callback) {
    this._needs('hardlink@openssh.com');
    return this._call({ op: 'hardlink', path, target }, callback);
  }

  /** @param {Buffer} handle @param {Callback} [callback] */
  ext_openssh_fsync(handle, callback) {
    this._needs('fsync@openssh.com');
    return this._call({ op: 'fsync', handle: numberOf(handle) }, callback);
  }

  /** @param {string} path @param {Callback} callback */
  ext_openssh_statvfs(path, callback) {
    this._needs('statvfs@openssh.com', '2');
    return this._call({ op: 'statvfs', path }, callback, volume);
  }

  /** @param {Buffer} handle @param {Callback} callback */
  ext_openssh_fstatvfs(handle, callback) {
    this._needs('fstatvfs@openssh.com', '2');
    return this._call({ op: 'fstatvfs', handle: numberOf(handle) }, callback, volume);
  }

  /** Of a link, itself. @param {string} path @param {any} attributes @param {Callback} [callback] */
  ext_openssh_lsetstat(path, attributes, callback) {
    this._needs('lsetstat@openssh.com');
    if (typeof attributes === 'function') [attributes, callback] = [undefined, attributes];
    return this._call({ op: 'lsetstat', path, attributes: attributesToSet(attributes) }, callback);
  }

  /** The same as realpath(), with ~ for a home directory. @param {string} path @param {Callback} callback */
  ext_openssh_expandPath(path, callback) {
    this._needs('expand-path@openssh.com');
    return this._call({ op: 'expandPath', path }, callback, asIs);
  }

  /**
   * Has the server copy from one open file into another.
   * @param {Buffer} from
   * @param {number} offset
   * @param {number} length 0 for all up to its end
   * @param {Buffer} to
   * @param {number} toOffset
   * @param {Callback} [callback]
   */
  ext_copy_data(from, offset, length, to, toOffset, callback) {
    this._needs('copy-data');
    checkHandle(from, 'Source handle');
    checkHandle(to, 'Destination handle');
    const call = { op: 'copyData', handle: numberOf(from), offset, length, targetHandle: numberOf(to), targetOffset: toOffset };
    return this._call(call, callback);
  }

  /** The home directory of a user. @param {string} user @param {Callback} callback */
  ext_home_dir(user, callback) {
    this._needs('home-directory');
    if (typeof user !== 'string') throw new TypeError('username is not a string');
    return this._call({ op: 'homeDirectory', path: user }, callback, asIs);
  }

  /**
   * Names of users and groups; empty where the server knows none.
   * @param {number[]} uids
   * @param {number[]} gids
   * @param {(error?: Error, users?: string[], groups?: string[]) => void} [callback]
   */
  ext_users_groups(uids, gids, callback) {
    this._needs('users-groups-by-id@openssh.com');
    checkIds(uids, 'uid');
    checkIds(gids, 'gid');
    return this._call({ op: 'usersGroups', uids, gids }, (error, names) => {
      if (error) callback?.(error);
      else callback?.(undefined, names.users, names.groups);
    }, asIs);
  }

  /** Makes the link `path`, which says `target`. @param {string} target @param {string} path @param {Callback} [callback] */
  symlink(target, path, callback) {
    return this._call({ op: 'symlink', path, target }, callback);
  }

  /** @param {string} path @param {Callback} callback */
  readlink(path, callback) { return this._call({ op: 'readlink', path }, callback, asIs); }

  /** @param {string} path @param {Callback} callback */
  realpath(path, callback) { return this._call({ op: 'realpath', path }, callback, asIs); }

  /**
   * A whole file of the server into one of this machine, written by the engine: no byte passes through JavaScript.
   * @param {string} remotePath
   * @param {string} localPath
   * @param {any} options step(done, chunk, total), mode
   * @param {Callback} [callback]
   */
  fastGet(remotePath, localPath, options, callback) {
    if (typeof options === 'function') [options, callback] = [{}, options];
    localPath = localText(localPath);
    if (typeof options?.fileSize === 'number' && options.fileSize > 0) {
      checkText(remotePath, localPath);
      return this._copyPart(this.createReadStream(remotePath, { end: options.fileSize - 1 }), fs, localPath, options, callback);
    }
    const attributes = attributesToSet({ mode: options?.mode });
    return this._call({ op: 'get', path: remotePath, target: localPath, attributes }, callback, undefined, stepOf(options));
  }

  /**
   * A whole file of this machine into one of the server's.
   * @param {string} localPath
   * @param {string} remotePath
   * @param {any} options step(done, chunk, total), mode
   * @param {Callback} [callback]
   */
  fastPut(localPath, remotePath, options, callback) {
    if (typeof options === 'function') [options, callback] = [{}, options];
    localPath = localText(localPath);
    if (typeof options?.fileSize === 'number' && options.fileSize > 0) {
      checkText(remotePath, localPath);
      return this._copyPart(fs.createReadStream(localPath, { end: options.fileSize - 1 }), this, remotePath, options, callback);
    }
    const attributes = attributesToSet({ mode: options?.mode });
    return this._call({ op: 'put', path: remotePath, target: localPath, attributes }, callback, undefined, stepOf(options));
  }

  /**
   * As much of a file as the program says that there is (`fileSize`), through JavaScript.
   * @param {import('node:stream').Readable} source
   * @param {any} where what has the target: fs, or this session
   * @param {string} target
   * @param {any} options
   * @param {Callback} [callback]
   */
  _copyPart(source, where, target, { fileSize, mode, step }, callback) {
    const over = (/** @type {any} */ error) => attempt(this._owner, () => (error ? callback?.(error) : callback?.()));
    let done = 0;
    const count = new Transform({
      transform(chunk, encoding, next) {
        done += chunk.length;
        if (typeof step === 'function') step(done, chunk.length, fileSize);
        next(null, chunk);
      },
    });
    source.once('error', over);
    // What cannot be read leaves nothing behind.
    source.once('open', () => {
      source.off('error', over);
      pipeline(source, count, where.createWriteStream(target), (/** @type {any} */ error) => {
        if (error || mode === undefined) over(error);
        else where.chmod(target, modeOf(mode), over);
      });
    });
    return true;
  }

  /** @param {string} path @param {any} options or an encoding @param {Callback} [callback] */
  readFile(path, options, callback) {
    if (typeof options === 'function') [options, callback] = [undefined, options];
    const { encoding } = fileOptions(options);
    return this._call({ op: 'readFile', path }, callback, (data) => (encoding ? data.toString(encoding) : data));
  }

  /** @param {string} path @param {string | Buffer} data @param {any} options @param {Callback} [callback] */
  writeFile(path, data, options, callback) {
    if (typeof options === 'function') [options, callback] = [undefined, options];
    const { encoding, mode = 0o666, flag } = fileOptions(options);
    return this.open(path, flag || 'w', mode, (error, handle) => {
      if (error) return callback?.(error);
      const bytes = Buffer.isBuffer(data) ? data : Buffer.from(`${data}`, encoding || 'utf8');
      const written = (/** @type {Error | undefined} */ failed) => {
        this.close(handle, (unclosed) => {
          const why = failed ?? unclosed;
          if (why) callback?.(why);
          else callback?.();
        });
      };
      if (bytes.length === 0) return written(undefined);
      startOf(this, handle, path, flag, 0, (unknown, position) => {
        if (unknown) written(unknown);
        else this.write(handle, bytes, 0, bytes.length, position, written);
      });
    });
  }

  /** @param {string} path @param {string | Buffer} data @param {any} options @param {Callback} [callback] */
  appendFile(path, data, options, callback) {
    if (typeof options === 'function') [options, callback] = [undefined, options];
    return this.writeFile(path, data, { flag: 'a', ...fileOptions(options) }, callback);
  }

  /** @param {string} path @param {any} [options] */
  createReadStream(path, options) {
    return new ReadStream(this, path, readOptions(options));
  }

  /** @param {string} path @param {any} [options] */
  createWriteStream(path, options) {
    return new WriteStream(this, path, streamOptions(options));
  }
}

/** @param {any} value */
const stats = (value) => new Stats(value);

/** @param {any} value */
const asIs = (value) => value;

/**
 * A volume's numbers, which are never bigints, as for ssh2: programs write them as JSON.
 * @param {Record<string, number | bigint>} found
 */
function volume(found) {
  return Object.fromEntries(Object.entries(found).map(([name, value]) => [name, Number(value)]));
}

/** @param {any} options */
function stepOf(options) {
  const step = options?.step;
  return typeof step === 'function'
    ? (/** @type {any} */ { done, chunk, total }) => step(done, chunk, total)
    : undefined;
}

// Handles are Buffers for ssh2's users, who do not look into them.

/** @param {number} number */
function handleOf(number) {
  const handle = Buffer.alloc(4);
  handle.writeUInt32BE(number);
  return handle;
}

/** @param {unknown} handle @param {string} [what] */
function checkHandle(handle, what = 'handle') {
  if (!Buffer.isBuffer(handle)) throw new Error(`${what} is not a Buffer`);
}

/** A path of this machine as text, which fs takes in other forms, too. @param {any} path */
function localText(path) {
  if (Buffer.isBuffer(path)) return path.toString();
  return path instanceof URL ? fileURLToPath(path) : path;
}

/** @param {unknown} ids @param {'uid' | 'gid'} what */
function checkIds(ids, what) {
  if (!Array.isArray(ids)) throw new TypeError(`${what}s is not an array`);
  if (ids.every((id) => Number.isInteger(id) && id >= 0 && id <= 0xffffffff)) return;
  throw new Error(`${what} values must all be 32-bit unsigned integers`);
}

/** @param {Buffer} handle @returns {number} */
function numberOf(handle) {
  checkHandle(handle);
  // One that open() did not give: no file has such a number.
  return handle.length === 4 ? handle.readUInt32BE() : 0xffffffff;
}

/** The mark that distinguishes a directory's handle from a file's. */
const DIRECTORY = 'directory';

/** One name of a directory, with its attributes. @param {any} entry */
function entryOf({ filename, longname, attrs }) {
  const attributes = new Stats(attrs);
  return { filename, longname: longname || longName(filename, attributes), attrs: attributes };
}

/** @param {number} number */
function directoryHandle(number) {
  return Buffer.concat([Buffer.from(DIRECTORY), handleOf(number)]);
}

/** @param {Buffer} handle @returns {number} -1: it is not a directory's */
function directoryOf(handle) {
  const isOne = handle.length === DIRECTORY.length + 4 && handle.toString('latin1', 0, DIRECTORY.length) === DIRECTORY;
  return isOne ? handle.readUInt32BE(DIRECTORY.length) : -1;
}

/**
 * The place of the first byte in a file: of one that is appended to behind its end, which servers look for at the offset, whatever
 * the flags.
 * @param {SFTP} sftp
 * @param {Buffer} handle
 * @param {string} path
 * @param {unknown} flags
 * @param {number} otherwise
 * @param {(error: Error | undefined, position: number) => void} callback
 */
function startOf(sftp, handle, path, flags, otherwise, callback) {
  if (typeof flags !== 'string' || !flags.includes('a')) return callback(undefined, otherwise);
  sftp.fstat(handle, (error, found) => {
    if (!error) return callback(undefined, found.size ?? 0);
    // There are servers without fstat.
    sftp.stat(path, (unknown, named) => (unknown ? callback(error, 0) : callback(undefined, named.size ?? 0)));
  });
}

/** @param {number} code @param {string} message */
function status(code, message) {
  return Object.assign(new Error(message), { code });
}

/** A file as it is read, with several reads under way. */
class ReadStream extends Readable {
  /** @param {SFTP} sftp @param {string} path @param {any} [options] start and end (inclusive), flags, mode, handle, autoClose, highWaterMark */
  constructor(sftp, path, options = {}) {
    const { autoClose = true, encoding, highWaterMark = CHUNK, signal } = options;
    super({ highWaterMark, encoding, signal, emitClose: true, autoDestroy: Boolean(autoClose) });
    this.path = path;
    this.bytesRead = 0;
    this.sftp = sftp;
    this.flags = options.flags ?? 'r';
    this.mode = options.mode ?? 0o666;
    this.autoClose = autoClose;
    this.start = options.start;
    this.end = options.end ?? Infinity;
    this.handle = options.handle ?? null;
    this._next = options.start ?? 0;
    /** The largest piece that a program wants, and what is asked for at once: as many of them as fit. */
    this._piece = Math.min(options.highWaterMark || CHUNK, CHUNK);
    this._request = CHUNK - (CHUNK % this._piece);
    /** Reads under way, oldest first. @type {Array<{ at: number, wanted: number, data?: Buffer, error?: Error }>} */
    this._ahead = [];
    this._wanted = false;
    this._atEnd = false;
    /** The file's size when reading began, before which it may not end. @type {number | undefined} */
    this._told = undefined;
  }

  /** Whether the file is not open yet. */
  get pending() {
    return this.handle === null;
  }

  /** Opens the file. The stream does so by itself: nothing is left to be done. */
  open() {}

  /** @param {(error?: Error | null) => void} callback */
  _construct(callback) {
    openHandle(this, callback);
  }

  _read() {
    this._wanted = true;
    if (this._told === undefined && this.end === Infinity) this._askSize();
    this._fill();
    this._give();
  }

  /** As many reads as were given without a gap so far, plus one: short files are not read ahead of. */
  _depth() {
    return Math.min(AHEAD, 1 + Math.floor(this.bytesRead / CHUNK));
  }

  _fill() {
    while (!this._atEnd && this._ahead.length < this._depth() && this._next <= this.end) {
      const wanted = Math.min(this._request, this.end - this._next + 1);
      /** @type {{ at: number, wanted: number, data?: Buffer, error?: Error }} */
      const read = { at: this._next, wanted };
      this._ahead.push(read);
      const call = { op: 'read', handle: numberOf(this.handle), offset: this._next, length: wanted };
      this._next += wanted;
      try {
        this.sftp._call(call, (error, data) => {
          read.error = error;
          read.data = data;
          this._give();
        }, (data) => data);
      } catch (error) {
        this.destroy(/** @type {Error} */ (error));
        return;
      }
    }
    if (this._ahead.length === 0 && this._next > this.end && !this._atEnd) {
      this._atEnd = true;
      this.push(null);
    }
  }

  _askSize() {
    this._told = 0;
    this.sftp._call({ op: 'fstat', handle: numberOf(this.handle) }, (error, about) => {
      if (!error) this._told = about.size;
    }, (about) => about);
  }

  /** Nothing more comes: the end, unless the file was to be longer. @param {number} at */
  _endAt(at) {
    if (this._told === undefined || this._told <= at) return void this.push(null);
    const call = { op: 'checkEnd', handle: numberOf(this.handle), offset: at, length: this._told };
    this.sftp._call(call, (error) => {
      if (error) this.destroy(error);
      else this.push(null);
    });
  }

  _give() {
    while (this._wanted && this._ahead.length > 0) {
      const [read] = this._ahead;
      const { at, data, wanted, error } = read;
      if (error) return void this.destroy(error);
      if (data === undefined) return;
      const piece = data.subarray(0, this._piece);
      if (data.length < wanted) {
        // The file ended there, and may have grown since: only a read that gives nothing is its end.
        this._ahead.length = 1;
        this._next = at + data.length;
        this._atEnd = data.length === 0;
      }
      if (piece.length === data.length) this._ahead.shift();
      else Object.assign(read, { at: at + piece.length, data: data.subarray(piece.length), wanted: data.length - piece.length });
      this.bytesRead += piece.length;
      this._wanted = false;
      if (this._atEnd) this._endAt(at);
      else this.push(piece);
    }
  }

  /** @param {Error | null} error @param {(error?: Error | null) => void} callback */
  _destroy(error, callback) {
    closeHandle(this, error, callback);
  }

  /** @param {() => void} [callback] */
  close(callback) {
    tellClosed(this, callback);
    this.destroy();
  }
}

/** A file as it is written, with several writes under way. */
class WriteStream extends Writable {
  /** @param {SFTP} sftp @param {string} path @param {any} [options] start, flags, mode, handle, autoClose */
  constructor(sftp, path, options = {}) {
    const { autoClose = true, encoding, defaultEncoding = 'utf8', highWaterMark = CHUNK, signal } = options;
    super({ highWaterMark, defaultEncoding: encoding || defaultEncoding, signal, autoDestroy: Boolean(autoClose) });
    this.path = path;
    this.bytesWritten = 0;
    this.sftp = sftp;
    this.flags = options.flags ?? 'w';
    this.mode = options.mode ?? 0o666;
    /** The mode that the file gets whatever the server's umask is. */
    this._wantedMode = options.mode;
    this.autoClose = autoClose;
    this.start = options.start;
    this.handle = options.handle ?? null;
    this._position = options.start ?? 0;
    const flags = typeof this.flags === 'string' ? stringToFlags(this.flags) : this.flags;
    this._appends = (flags & OPEN_MODE.APPEND) !== 0;
    this._behind = 0;
    /** @type {(() => void) | undefined} */
    this._waiting = undefined;
  }

  /** Whether the file is not open yet. */
  get pending() {
    return this.handle === null;
  }

  /** Opens the file. The stream does so by itself: nothing is left to be done. */
  open() {}

  /** @param {(error?: Error | null) => void} callback */
  _construct(callback) {
    openHandle(this, callback);
  }

  /** @param {Buffer} chunk @param {BufferEncoding} _encoding @param {(error?: Error | null) => void} callback */
  _write(chunk, _encoding, callback) {
    const position = this._position;
    this._position += chunk.length;
    this._behind += chunk.length;
    try {
      this.sftp.write(this.handle, chunk, 0, chunk.length, position, (error) => {
        this._behind -= chunk.length;
        if (error) this.destroy(error);
        else this.bytesWritten += chunk.length;
        const waiting = this._waiting;
        this._waiting = undefined;
        waiting?.();
      });
    } catch (error) {
      return callback(/** @type {Error} */ (error));
    }
    // A server that appends by itself does so in the order of requests, of which a long piece takes several.
    this._room(this._appends ? 1 : BEHIND, callback);
  }

  /** @param {(error?: Error | null) => void} callback */
  _final(callback) {
    this._room(1, callback);
  }

  /**
   * Continues when less than so many bytes are without the server's word.
   * @param {number} limit
   * @param {() => void} callback
   */
  _room(limit, callback) {
    if (this._behind < limit || this.destroyed) callback();
    else this._waiting = () => this._room(limit, callback);
  }

  /** @param {Error | null} error @param {(error?: Error | null) => void} callback */
  _destroy(error, callback) {
    closeHandle(this, error, callback);
  }

  /** @param {() => void} [callback] */
  close(callback) {
    tellClosed(this, callback);
    if (this.writableFinished || this.destroyed) return void this.destroy();
    if (!this.autoClose) this.once('finish', () => this.destroy());
    this.end();
  }

  /** As of a socket: there is no shorter way to end it. */
  destroySoon() {
    this.end();
  }
}

/**
 * @param {ReadStream | WriteStream} stream
 * @param {(() => void) | undefined} callback told of its close, which may be over
 */
function tellClosed(stream, callback) {
  if (!callback) return;
  if (stream.closed) process.nextTick(callback);
  else stream.once('close', callback);
}

/**
 * @param {ReadStream | WriteStream} stream
 * @param {(error?: Error | null) => void} callback
 */
function openHandle(stream, callback) {
  if (stream.handle !== null) return callback();
  stream.sftp.open(stream.path, stream.flags, stream.mode, (error, handle) => {
    if (error) return callback(error);
    const found = (/** @type {Error | undefined} */ unknown, /** @type {number} */ position) => {
      stream.handle = handle;
      if (unknown) return callback(unknown);
      if (stream instanceof WriteStream) stream._position = position;
      stream.emit('open', handle);
      stream.emit('ready');
      callback();
    };
    const opened = () => {
      if (stream instanceof WriteStream) startOf(stream.sftp, handle, stream.path, stream.flags, stream._position, found);
      else found(undefined, 0);
    };
    // Before anything is written or closed. As for ssh2, a server that cannot does not fail the stream.
    if (stream instanceof WriteStream && stream._wantedMode !== undefined) stream.sftp.fchmod(handle, stream._wantedMode, opened);
    else opened();
  });
}

/**
 * Without `autoClose` the handle outlasts an error.
 * @param {ReadStream | WriteStream} stream
 * @param {Error | null} error
 * @param {(error?: Error | null) => void} callback
 */
function closeHandle(stream, error, callback) {
  const handle = stream.handle;
  if (handle === null || (error && !stream.autoClose) || stream.sftp._over) return callback(error);
  stream.handle = null;
  stream.sftp.close(handle, (unclosed) => {
    // With the session the server closes what is open in it: programs end theirs at 'finish'. What the server refuses has a number.
    const told = typeof (/** @type {any} */ (unclosed)?.code) === 'number' || !stream.sftp._isEnding();
    callback(error ?? (told ? unclosed : undefined));
  });
}

module.exports = { SFTP, Stats, STATUS_CODE, OPEN_MODE, flagsToString, stringToFlags };
