'use strict';

// ssh2's SFTP: methods with callbacks, streams, whole files.

const { EventEmitter } = require('node:events');
const fs = require('node:fs');
const { Readable, Writable } = require('node:stream');
const { KIND, hub, attach, detach } = require('./hub');
const { toError } = require('./errors');

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

/** Attributes, with fs.Stats' questions. */
class Stats {
  /** @param {Record<string, number | null>} attributes */
  constructor(attributes) {
    this.mode = attributes.mode ?? 0;
    this.uid = attributes.uid ?? 0;
    this.gid = attributes.gid ?? 0;
    this.size = attributes.size ?? 0;
    this.atime = attributes.atime ?? 0;
    this.mtime = attributes.mtime ?? 0;
    /** What a server adds; ssh2 has it, and nothing is told of it here. */
    this.extended = undefined;
  }

  /** @param {number} type */
  _is(type) {
    return (this.mode & fs.constants.S_IFMT) === type;
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
 * A line of `ls -l`, which SFTP 3 servers send and programs take apart; owners by number.
 * @param {string} name
 * @param {Stats} attributes
 * @returns {string}
 */
function longName(name, attributes) {
  const types = /** @type {const} */ ([['isDirectory', 'd'], ['isSymbolicLink', 'l'], ['isBlockDevice', 'b'],
    ['isCharacterDevice', 'c'], ['isFIFO', 'p'], ['isSocket', 's']]);
  const type = types.find(([question]) => attributes[question]())?.[1] ?? '-';
  const rights = [6, 3, 0].map((shift) => {
    const bits = attributes.mode >> shift;
    return `${bits & 4 ? 'r' : '-'}${bits & 2 ? 'w' : '-'}${bits & 1 ? 'x' : '-'}`;
  });
  const time = new Date(attributes.mtime * 1000);
  const day = String(time.getDate()).padStart(2);
  const numbers = `${String(attributes.uid).padEnd(8)} ${String(attributes.gid).padEnd(8)} ${String(attributes.size).padStart(8)}`;
  return `${type}${rights.join('')}    1 ${numbers} ${MONTHS[time.getMonth()]} ${day} ${time.getFullYear()} ${name}`;
}

/**
 * Seconds since 1970 of what programs give for a time.
 * @param {Date | number | string} time
 * @returns {number}
 */
function seconds(time) {
  return Math.floor(time instanceof Date ? time.getTime() / 1000 : Number(time));
}

/**
 * @param {any} attributes
 * @returns {import('./native').SftpAttributes | undefined}
 */
function attributesToSet(attributes) {
  if (attributes === undefined || attributes === null) return undefined;
  const { mode, uid, gid, size, atime, mtime } = attributes;
  const whole = (/** @type {any} */ value) => (value === undefined || value === null ? undefined : Number(value));
  const time = (/** @type {any} */ value) => (value === undefined || value === null ? undefined : seconds(value));
  return {
    mode: typeof mode === 'string' ? parseInt(mode, 8) : whole(mode),
    uid: whole(uid),
    gid: whole(gid),
    size: whole(size),
    atime: time(atime),
    mtime: time(mtime),
  };
}

/** @typedef {(error?: Error, value?: any) => void} Callback */

/** ssh2's SFTPWrapper. Events: 'end' and 'close', when the session is over. */
class SFTP extends EventEmitter {
  /**
   * @param {number} id
   * @param {boolean} [isOpenssh] whether the server is OpenSSH's
   * @param {import('./client').Client} [owner]
   */
  constructor(id, isOpenssh = true, owner = undefined) {
    super();
    this._id = id;
    this._owner = owner;
    this._isOpenssh = isOpenssh;
    this._over = false;
    /** @type {Callback | undefined} */
    this._opening = undefined;
    /** What went wrong with its opening, in whose words. @type {(fault: import('./native').Fault) => Error} */
    this._explain = toError;
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
        opening?.(undefined, this);
        break;
      case KIND.FAIL:
        this._opening = undefined;
        this._over = true;
        detach(this._id);
        opening?.(this._explain(value));
        break;
      case KIND.CLOSE:
        this._over = true;
        detach(this._id);
        opening?.(new Error('Not connected'));
        this.emit('end');
        this.emit('close');
        break;
    }
  }

  /**
   * @param {import('./native').SftpCall} call
   * @param {Callback | undefined} callback
   * @param {(value: any) => any} [shape] what the callback gets of the outcome
   * @param {(step: any) => void} [step]
   * @returns {boolean}
   */
  _call(call, callback, shape = () => undefined, step = undefined) {
    if (this._over) throw new Error('Not connected');
    const id = hub.sftpCall(this._id, call);
    attach(id, {
      _owner: this._owner,
      _told(kind, value) {
        if (kind === KIND.DATA) return step?.(value);
        detach(id);
        if (kind === KIND.FAIL) callback?.(toError(value));
        else {
          const shaped = shape(value);
          // As ssh2: what gives nothing calls back with nothing.
          if (shaped === undefined) callback?.();
          else callback?.(undefined, shaped);
        }
      },
    });
    return true;
  }

  /** Closes the session, with everything that is open in it. */
  end() {
    if (!this._over) hub.closeSftp(this._id);
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
    // A directory's: nothing is open for it.
    if (isDirectory(handle)) {
      process.nextTick(() => callback?.());
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
    const data = buffer.subarray(offset, offset + length);
    return this._call({ op: 'write', handle: numberOf(handle), offset: position, data }, callback);
  }

  /** @param {Buffer} handle @param {Callback} callback */
  fstat(handle, callback) {
    return this._call({ op: 'fstat', handle: numberOf(handle) }, callback, stats);
  }

  /** @param {Buffer} handle @param {any} attributes @param {Callback} [callback] */
  fsetstat(handle, attributes, callback) {
    return this._call({ op: 'fsetstat', handle: numberOf(handle), attributes: attributesToSet(attributes) }, callback);
  }

  /** @param {Buffer} handle @param {Date | number} atime @param {Date | number} mtime @param {Callback} [callback] */
  futimes(handle, atime, mtime, callback) {
    return this.fsetstat(handle, { atime, mtime }, callback);
  }

  /** @param {Buffer} handle @param {number} uid @param {number} gid @param {Callback} [callback] */
  fchown(handle, uid, gid, callback) {
    return this.fsetstat(handle, { uid, gid }, callback);
  }

  /** @param {Buffer} handle @param {number | string} mode @param {Callback} [callback] */
  fchmod(handle, mode, callback) {
    return this.fsetstat(handle, { mode }, callback);
  }

  /** @param {string} path @param {Callback} callback */
  opendir(path, callback) {
    return this._call({ op: 'stat', path }, (error, attributes) => {
      if (error) return callback(error);
      if (!attributes.isDirectory()) return callback(status(STATUS_CODE.FAILURE, 'Not a directory'));
      callback(undefined, directoryHandle(path));
    }, stats);
  }

  /**
   * The names in a directory, all at once: by its path, or by opendir()'s handle, which is at its end the next time.
   * @param {string | Buffer} where
   * @param {any} options
   * @param {Callback} [callback]
   */
  readdir(where, options, callback) {
    if (typeof options === 'function') callback = options;
    if (typeof where !== 'string' && directories.get(where) === undefined) {
      process.nextTick(() => callback?.(endOfFile()));
      return true;
    }
    let path = /** @type {string} */ (where);
    if (typeof where !== 'string') {
      path = /** @type {string} */ (directories.get(where));
      directories.delete(where);
    }
    return this._call({ op: 'readdir', path }, callback, (names) => names.map((/** @type {any} */ { filename, attrs }) => {
      const attributes = new Stats(attrs);
      return { filename, longname: longName(filename, attributes), attrs: attributes };
    }));
  }

  /** @param {string} path @param {Callback} callback */
  stat(path, callback) { return this._call({ op: 'stat', path }, callback, stats); }

  /** @param {string} path @param {Callback} callback */
  lstat(path, callback) { return this._call({ op: 'lstat', path }, callback, stats); }

  /** @param {string} path @param {(exists: boolean) => void} callback */
  exists(path, callback) { return this.stat(path, (error) => callback(!error)); }

  /** @param {string} path @param {any} attributes @param {Callback} [callback] */
  setstat(path, attributes, callback) {
    return this._call({ op: 'setstat', path, attributes: attributesToSet(attributes) }, callback);
  }

  /** @param {string} path @param {Date | number} atime @param {Date | number} mtime @param {Callback} [callback] */
  utimes(path, atime, mtime, callback) { return this.setstat(path, { atime, mtime }, callback); }

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
  ext_openssh_rename(path, target, callback) { return this._call({ op: 'posixRename', path, target }, callback); }

  /** @param {string} path @param {string} target @param {Callback} [callback] */
  ext_openssh_hardlink(path, target, callback) { return this._call({ op: 'hardlink', path, target }, callback); }

  /** @param {Buffer} handle @param {Callback} [callback] */
  ext_openssh_fsync(handle, callback) { return this._call({ op: 'fsync', handle: numberOf(handle) }, callback); }

  /** @param {string} path @param {Callback} callback */
  ext_openssh_statvfs(path, callback) { return this._call({ op: 'statvfs', path }, callback, (state) => state); }

  /** Of a link, itself. @param {string} path @param {any} attributes @param {Callback} [callback] */
  ext_openssh_lsetstat(path, attributes, callback) {
    if (typeof attributes === 'function') [attributes, callback] = [undefined, attributes];
    return this._call({ op: 'lsetstat', path, attributes: attributesToSet(attributes) }, callback);
  }

  /** The same as realpath(), with ~ for a home directory. @param {string} path @param {Callback} callback */
  ext_openssh_expandPath(path, callback) { return this._call({ op: 'expandPath', path }, callback, (found) => found); }

  /** Makes the link `path`, which says `target`. @param {string} target @param {string} path @param {Callback} [callback] */
  symlink(target, path, callback) {
    // OpenSSH has the two the other way round than the draft (PROTOCOL, section 4.1), which others follow.
    const [first, second] = this._isOpenssh ? [target, path] : [path, target];
    return this._call({ op: 'symlink', path: second, target: first }, callback);
  }

  /** @param {string} path @param {Callback} callback */
  readlink(path, callback) { return this._call({ op: 'readlink', path }, callback, (target) => target); }

  /** @param {string} path @param {Callback} callback */
  realpath(path, callback) { return this._call({ op: 'realpath', path }, callback, (found) => found); }

  /**
   * A whole file of the server into one of this machine, written by the engine: no byte passes through JavaScript.
   * @param {string} remotePath
   * @param {string} localPath
   * @param {any} options step(done, chunk, total)
   * @param {Callback} [callback]
   */
  fastGet(remotePath, localPath, options, callback) {
    if (typeof options === 'function') [options, callback] = [{}, options];
    return this._call({ op: 'get', path: remotePath, target: localPath }, callback, undefined, stepOf(options));
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
    const attributes = options?.mode === undefined ? undefined : attributesToSet({ mode: options.mode });
    return this._call({ op: 'put', path: remotePath, target: localPath, attributes }, callback, undefined, stepOf(options));
  }

  /** @param {string} path @param {any} options or an encoding @param {Callback} [callback] */
  readFile(path, options, callback) {
    if (typeof options === 'function') [options, callback] = [undefined, options];
    const encoding = typeof options === 'string' ? options : options?.encoding;
    return this._call({ op: 'readFile', path }, callback, (data) => (encoding ? data.toString(encoding) : data));
  }

  /** @param {string} path @param {string | Buffer} data @param {any} options @param {Callback} [callback] */
  writeFile(path, data, options, callback) {
    if (typeof options === 'function') [options, callback] = [{}, options];
    if (typeof options === 'string') options = { encoding: options };
    const { encoding = 'utf8', mode = 0o666, flag = 'w' } = options ?? {};
    const bytes = typeof data === 'string' ? Buffer.from(data, encoding) : data;
    return this.open(path, flag, mode, (error, handle) => {
      if (error) return callback?.(error);
      const written = (/** @type {Error | undefined} */ failed) => {
        this.close(handle, (unclosed) => {
          const why = failed ?? unclosed;
          if (why) callback?.(why);
          else callback?.();
        });
      };
      if (bytes.length === 0) written(undefined);
      else this.write(handle, bytes, 0, bytes.length, 0, written);
    });
  }

  /** @param {string} path @param {string | Buffer} data @param {any} options @param {Callback} [callback] */
  appendFile(path, data, options, callback) {
    if (typeof options === 'function') [options, callback] = [{}, options];
    if (typeof options === 'string') options = { encoding: options };
    return this.writeFile(path, data, { ...options, flag: 'a' }, callback);
  }

  /** @param {string} path @param {any} [options] */
  createReadStream(path, options) {
    return new ReadStream(this, path, typeof options === 'string' ? { encoding: options } : options);
  }

  /** @param {string} path @param {any} [options] */
  createWriteStream(path, options) {
    return new WriteStream(this, path, typeof options === 'string' ? { encoding: options } : options);
  }
}

/** @param {any} value */
const stats = (value) => new Stats(value);

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

/** @param {Buffer} handle @returns {number} */
function numberOf(handle) {
  if (!Buffer.isBuffer(handle) || handle.length !== 4) throw new Error('handle is not a Buffer of open()');
  return handle.readUInt32BE();
}

/** Directories that opendir() has named and readdir() has not read. @type {WeakMap<Buffer, string>} */
const directories = new WeakMap();

/** @param {string} path */
function directoryHandle(path) {
  const handle = Buffer.from('directory');
  directories.set(handle, path);
  return handle;
}

/** @param {Buffer} handle */
function isDirectory(handle) {
  return Buffer.isBuffer(handle) && handle.length !== 4;
}

/** @param {number} code @param {string} message */
function status(code, message) {
  return Object.assign(new Error(message), { code });
}

function endOfFile() {
  return status(STATUS_CODE.EOF, 'End of file');
}

/** A file as it is read, with several reads under way. */
class ReadStream extends Readable {
  /** @param {SFTP} sftp @param {string} path @param {any} [options] start and end (inclusive), flags, mode, handle, autoClose */
  constructor(sftp, path, options = {}) {
    super({ highWaterMark: options.highWaterMark ?? CHUNK, encoding: options.encoding, emitClose: true });
    this.path = path;
    this.bytesRead = 0;
    this._sftp = sftp;
    this._options = options;
    this._handle = options.handle;
    this._next = options.start ?? 0;
    this._end = options.end ?? Infinity;
    /** Reads under way, oldest first. @type {Array<{ at: number, wanted: number, data?: Buffer, error?: Error }>} */
    this._ahead = [];
    this._wanted = false;
    this._atEnd = false;
  }

  /** @param {(error?: Error | null) => void} callback */
  _construct(callback) {
    if (this._handle !== undefined) return callback();
    const { flags = 'r', mode = 0o666 } = this._options;
    this._sftp.open(this.path, flags, mode, (error, handle) => {
      if (error) return callback(error);
      this._handle = handle;
      this.emit('open', handle);
      this.emit('ready');
      callback();
    });
  }

  _read() {
    this._wanted = true;
    this._fill();
    this._give();
  }

  /** As many reads as were given without a gap so far, plus one: short files are not read ahead of. */
  _depth() {
    return Math.min(AHEAD, 1 + Math.floor(this.bytesRead / CHUNK));
  }

  _fill() {
    while (!this._atEnd && this._ahead.length < this._depth() && this._next <= this._end) {
      const wanted = Math.min(CHUNK, this._end - this._next + 1);
      /** @type {{ at: number, wanted: number, data?: Buffer, error?: Error }} */
      const read = { at: this._next, wanted };
      this._ahead.push(read);
      const call = { op: 'read', handle: numberOf(this._handle), offset: this._next, length: wanted };
      this._next += wanted;
      try {
        this._sftp._call(call, (error, data) => {
          read.error = error;
          read.data = data;
          this._give();
        }, (data) => data);
      } catch (error) {
        this.destroy(/** @type {Error} */ (error));
        return;
      }
    }
    if (this._ahead.length === 0 && this._next > this._end && !this._atEnd) {
      this._atEnd = true;
      this.push(null);
    }
  }

  _give() {
    while (this._wanted && this._ahead.length > 0) {
      const [{ at, data, wanted, error }] = this._ahead;
      if (error) return void this.destroy(error);
      if (data === undefined) return;
      this._ahead.shift();
      if (data.length < wanted) {
        // The file ended there, and may have grown since: only a read that gives nothing is its end.
        this._ahead.length = 0;
        this._next = at + data.length;
        this._atEnd = data.length === 0;
      }
      this.bytesRead += data.length;
      this._wanted = false;
      this.push(this._atEnd ? null : data);
    }
  }

  /** @param {Error | null} error @param {(error?: Error | null) => void} callback */
  _destroy(error, callback) {
    closeHandle(this, error, callback);
  }

  /** @param {() => void} [callback] */
  close(callback) {
    if (callback) this.once('close', callback);
    this.destroy();
  }
}

/** A file as it is written, with several writes under way. */
class WriteStream extends Writable {
  /** @param {SFTP} sftp @param {string} path @param {any} [options] start, flags, mode, handle, autoClose */
  constructor(sftp, path, options = {}) {
    super({ highWaterMark: options.highWaterMark ?? CHUNK, decodeStrings: true, defaultEncoding: options.encoding ?? 'utf8' });
    this.path = path;
    this.bytesWritten = 0;
    this._sftp = sftp;
    this._options = options;
    this._handle = options.handle;
    this._position = options.start ?? 0;
    this._behind = 0;
    /** @type {(() => void) | undefined} */
    this._waiting = undefined;
  }

  /** @param {(error?: Error | null) => void} callback */
  _construct(callback) {
    if (this._handle !== undefined) return callback();
    const { flags = 'w', mode = 0o666 } = this._options;
    this._sftp.open(this.path, flags, mode, (error, handle) => {
      if (error) return callback(error);
      this._handle = handle;
      this.emit('open', handle);
      this.emit('ready');
      callback();
    });
  }

  /** @param {Buffer} chunk @param {BufferEncoding} _encoding @param {(error?: Error | null) => void} callback */
  _write(chunk, _encoding, callback) {
    const position = this._position;
    this._position += chunk.length;
    this._behind += chunk.length;
    try {
      this._sftp.write(this._handle, chunk, 0, chunk.length, position, (error) => {
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
    this._room(BEHIND, callback);
  }

  /** @param {(error?: Error | null) => void} callback */
  _final(callback) {
    this._room(1, callback);
  }

  /**
   * Goes on when less than so many bytes are without the server's word.
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
    if (callback) this.once('close', callback);
    if (this.writableFinished || this.destroyed) this.destroy();
    else this.end();
  }
}

/**
 * @param {ReadStream | WriteStream} stream
 * @param {Error | null} error
 * @param {(error?: Error | null) => void} callback
 */
function closeHandle(stream, error, callback) {
  const handle = stream._handle;
  if (handle === undefined || stream._options.autoClose === false || stream._sftp._over) return callback(error);
  stream._handle = undefined;
  stream._sftp.close(handle, (unclosed) => callback(error ?? unclosed));
}

module.exports = { SFTP, Stats, STATUS_CODE, OPEN_MODE, flagsToString, stringToFlags };
