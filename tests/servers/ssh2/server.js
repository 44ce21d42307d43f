// An SSH server on ssh2, like the examples of its documentation: commands by child_process, SFTP with node:fs's plain
// callbacks.
//
//     server.js HOSTKEY [PORT]
//
// prints the port on which it listens and serves until it is killed. Any public key is accepted.
'use strict'

const { spawn } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { Server, utils } = require('ssh2')

const { OPEN_MODE, STATUS_CODE, flagsToString } = utils.sftp
const NAMES = 100

const [hostKey, port] = process.argv.slice(2)
const server = new Server({ hostKeys: [fs.readFileSync(hostKey)] }, serve)
server.listen(Number(port || 0), '127.0.0.1', () => console.log(server.address().port))

function serve(client) {
  client.on('authentication', (auth) => (auth.method === 'publickey' ? auth.accept() : auth.reject(['publickey'])))
  client.on('error', (error) => console.error('connection:', error.message))
  client.on('ready', () => client.on('session', (accept) => session(accept())))
}

function session(session) {
  session.on('pty', (accept) => accept && accept())
  session.on('exec', (accept, reject, info) => run(accept(), ['-c', info.command]))
  session.on('shell', (accept) => run(accept(), []))
  session.on('sftp', (accept) => files(accept()))
}

// Joins a command's standard streams with its channel, and tells how it ended.
function run(channel, words) {
  const child = spawn('/bin/sh', words)
  child.stdin.on('error', () => {})
  channel.on('error', (error) => console.error('channel:', error.message))
  channel.pipe(child.stdin)
  child.stdout.pipe(channel, { end: false })
  child.stderr.pipe(channel.stderr, { end: false })
  child.on('close', (code) => {
    channel.exit(code === null ? 255 : code)
    channel.end()
  })
}

function files(sftp) {
  const opened = new Map()
  let last = 0

  const handleOf = (what) => {
    const handle = Buffer.alloc(4)
    handle.writeUInt32BE(++last)
    opened.set(last, what)
    return handle
  }
  const of = (handle) => (handle.length === 4 ? opened.get(handle.readUInt32BE()) : undefined)
  const statusOf = (error) => {
    if (!error) return STATUS_CODE.OK
    if (error.code === 'ENOENT') return STATUS_CODE.NO_SUCH_FILE
    return error.code === 'EACCES' || error.code === 'EPERM' ? STATUS_CODE.PERMISSION_DENIED : STATUS_CODE.FAILURE
  }
  const done = (id) => (error) => sftp.status(id, statusOf(error))
  const attributes = (id) => (error, stat) => (error ? done(id)(error) : sftp.attrs(id, attrsOf(stat)))

  sftp.on('error', (error) => console.error('sftp:', error.message))
  // Without this, which ssh2's example leaves out, sftp(1) waits for the channel's end forever.
  sftp.on('end', () => sftp.end())
  sftp.on('OPEN', (id, name, flags, attrs) => {
    fs.open(name, flagsOf(flags), attrs.mode === undefined ? 0o666 : attrs.mode & 0o7777, (error, fd) => {
      if (error) return done(id)(error)
      sftp.handle(id, handleOf({ fd }))
    })
  })
  sftp.on('READ', (id, handle, offset, length) => {
    const file = of(handle)
    if (!file || file.fd === undefined) return sftp.status(id, STATUS_CODE.FAILURE)
    const buffer = Buffer.alloc(length)
    fs.read(file.fd, buffer, 0, length, offset, (error, count) => {
      if (error) return done(id)(error)
      if (count === 0) return sftp.status(id, STATUS_CODE.EOF)
      sftp.data(id, buffer.subarray(0, count))
    })
  })
  sftp.on('WRITE', (id, handle, offset, data) => {
    const file = of(handle)
    if (!file || file.fd === undefined) return sftp.status(id, STATUS_CODE.FAILURE)
    fs.write(file.fd, data, 0, data.length, offset, done(id))
  })
  sftp.on('FSTAT', (id, handle) => {
    const file = of(handle)
    if (!file || file.fd === undefined) return sftp.status(id, STATUS_CODE.FAILURE)
    fs.fstat(file.fd, attributes(id))
  })
  sftp.on('FSETSTAT', (id, handle, attrs) => {
    const file = of(handle)
    if (!file || file.fd === undefined) return sftp.status(id, STATUS_CODE.FAILURE)
    setAttributes(attrs, file.fd, [fs.ftruncate, fs.fchmod, fs.futimes], done(id))
  })
  sftp.on('SETSTAT', (id, name, attrs) => setAttributes(attrs, name, [fs.truncate, fs.chmod, fs.utimes], done(id)))
  sftp.on('CLOSE', (id, handle) => {
    const file = of(handle)
    if (!file) return sftp.status(id, STATUS_CODE.FAILURE)
    opened.delete(handle.readUInt32BE())
    if (file.fd === undefined) return sftp.status(id, STATUS_CODE.OK)
    fs.close(file.fd, done(id))
  })
  sftp.on('OPENDIR', (id, name) => {
    fs.readdir(name, (error, names) => (error ? done(id)(error) : sftp.handle(id, handleOf({ name, names }))))
  })
  sftp.on('READDIR', (id, handle) => {
    const directory = of(handle)
    if (!directory || !directory.names) return sftp.status(id, STATUS_CODE.FAILURE)
    if (directory.names.length === 0) return sftp.status(id, STATUS_CODE.EOF)
    const some = directory.names.splice(0, NAMES)
    let left = some.length
    const entries = []
    for (const filename of some) {
      fs.lstat(path.join(directory.name, filename), (error, stat) => {
        if (!error) entries.push({ filename, longname: longnameOf(filename, stat), attrs: attrsOf(stat) })
        if (--left === 0) sftp.name(id, entries)
      })
    }
  })
  sftp.on('STAT', (id, name) => fs.stat(name, attributes(id)))
  sftp.on('LSTAT', (id, name) => fs.lstat(name, attributes(id)))
  sftp.on('REMOVE', (id, name) => fs.unlink(name, done(id)))
  sftp.on('RMDIR', (id, name) => fs.rmdir(name, done(id)))
  sftp.on('MKDIR', (id, name, attrs) => fs.mkdir(name, attrs.mode === undefined ? 0o777 : attrs.mode & 0o7777, done(id)))
  sftp.on('RENAME', (id, from, to) => fs.rename(from, to, done(id)))
  sftp.on('SYMLINK', (id, linkPath, targetPath) => fs.symlink(targetPath, linkPath, done(id)))
  sftp.on('READLINK', (id, name) => {
    fs.readlink(name, (error, filename) => {
      if (error) return done(id)(error)
      sftp.name(id, [{ filename, longname: filename, attrs: {} }])
    })
  })
  sftp.on('REALPATH', (id, name) => {
    fs.realpath(name, (error, found) => {
      const filename = error ? path.resolve(name) : found
      sftp.name(id, [{ filename, longname: filename, attrs: {} }])
    })
  })
}

// The strings of node's fs.open; ssh2's own table lacks combinations without TRUNC, which are numbers there too.
function flagsOf(flags) {
  const known = flagsToString(flags)
  if (known) return known
  const { constants } = fs
  const access = flags & OPEN_MODE.WRITE ? (flags & OPEN_MODE.READ ? constants.O_RDWR : constants.O_WRONLY) : constants.O_RDONLY
  return (
    access |
    (flags & OPEN_MODE.APPEND ? constants.O_APPEND : 0) |
    (flags & OPEN_MODE.CREAT ? constants.O_CREAT : 0) |
    (flags & OPEN_MODE.TRUNC ? constants.O_TRUNC : 0) |
    (flags & OPEN_MODE.EXCL ? constants.O_EXCL : 0)
  )
}

function attrsOf(stat) {
  const seconds = (time) => Math.floor(time / 1000)
  return {
    mode: stat.mode,
    uid: stat.uid,
    gid: stat.gid,
    size: stat.size,
    atime: seconds(stat.atimeMs),
    mtime: seconds(stat.mtimeMs),
  }
}

function longnameOf(name, stat) {
  const kind = stat.isDirectory() ? 'd' : stat.isSymbolicLink() ? 'l' : '-'
  return `${kind}rw-r--r-- 1 ${stat.uid} ${stat.gid} ${stat.size} Jan 1 1970 ${name}`
}

// Size, permissions and times, one after the other.
function setAttributes(attrs, target, [truncate, chmod, utimes], done) {
  const steps = []
  if (attrs.size !== undefined) steps.push((next) => truncate(target, attrs.size, next))
  if (attrs.mode !== undefined) steps.push((next) => chmod(target, attrs.mode & 0o7777, next))
  if (attrs.mtime !== undefined) steps.push((next) => utimes(target, attrs.atime, attrs.mtime, next))
  const next = (error) => (error || steps.length === 0 ? done(error) : steps.shift()(next))
  next()
}
