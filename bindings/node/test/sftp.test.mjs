import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  closeSync,
  constants,
  createReadStream,
  createWriteStream,
  lstatSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { test } from 'node:test';

import { NodeSSH } from 'node-ssh';
import SftpClient from 'ssh2-sftp-client';

import { all, ask, client, config, ending, servers } from './testbed.mjs';

async function session(t) {
  const { client: ssh } = await client(t);
  const sftp = await ask(ssh, 'sftp');
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-sftp-'));
  t.after(() => rmSync(directory, { recursive: true }));
  return { ssh, sftp, directory };
}

function scratch(t) {
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-sftp-'));
  t.after(() => rmSync(directory, { recursive: true }));
  return directory;
}

test('files are written, read and described', async (t) => {
  const { sftp, directory } = await session(t);
  const path = join(directory, 'file');
  await ask(sftp, 'writeFile', path, 'hello', { mode: 0o640 });
  await ask(sftp, 'appendFile', path, ' world');
  assert.equal(await ask(sftp, 'readFile', path, 'utf8'), 'hello world');
  const attributes = await ask(sftp, 'stat', path);
  assert.ok(attributes.isFile() && !attributes.isDirectory());
  assert.equal(attributes.size, 11);
  assert.equal(attributes.mode & 0o777, 0o640);
  await ask(sftp, 'chmod', path, 0o600);
  await ask(sftp, 'utimes', path, 1000, new Date(2_000_000));
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.equal(statSync(path).mtimeMs, 2_000_000);
  await ask(sftp, 'rename', path, `${path}2`);
  await ask(sftp, 'symlink', `${path}2`, path);
  assert.equal(await ask(sftp, 'readlink', path), `${path}2`);
  assert.ok((await ask(sftp, 'lstat', path)).isSymbolicLink());
  assert.equal(await ask(sftp, 'realpath', path), `${path}2`);
  assert.equal(await ask(sftp, 'ext_openssh_expandPath', directory), directory);
  await ask(sftp, 'ext_openssh_lsetstat', path, { mtime: 3000, atime: 3000 });
  assert.deepEqual([lstatSync(path).mtimeMs, statSync(path).mtimeMs], [3_000_000, 2_000_000]);
  await ask(sftp, 'unlink', path);
  assert.equal(await new Promise((resolve) => sftp.exists(path, resolve)), false);
});

test('directories are made, listed and removed', async (t) => {
  const { sftp, directory } = await session(t);
  const path = join(directory, 'directory');
  await ask(sftp, 'mkdir', path, { mode: 0o700 });
  writeFileSync(join(path, 'one'), '1');
  const [entry] = await ask(sftp, 'readdir', path);
  assert.equal(entry.filename, 'one');
  assert.match(entry.longname, /^-rw-r--r--.* one$/);
  const handle = await ask(sftp, 'opendir', path);
  assert.equal((await ask(sftp, 'readdir', handle)).length, 1);
  await assert.rejects(ask(sftp, 'readdir', handle), { code: 1 });
  await ask(sftp, 'close', handle);
  await ask(sftp, 'unlink', join(path, 'one'));
  await ask(sftp, 'rmdir', path);
});

test('a file that is missing says so by the server\'s code', async (t) => {
  const { sftp, directory } = await session(t);
  await assert.rejects(ask(sftp, 'stat', join(directory, 'missing')), { code: 2, message: 'No such file' });
  const [error] = await once(sftp.createReadStream(join(directory, 'missing')), 'error');
  assert.equal(error.code, 2);
});

test('handles read and write at any place', async (t) => {
  const { sftp, directory } = await session(t);
  const path = join(directory, 'file');
  const handle = await ask(sftp, 'open', path, 'w+');
  await ask(sftp, 'write', handle, Buffer.from('xxhelloxx'), 2, 5, 3);
  const buffer = Buffer.alloc(8);
  await ask(sftp, 'read', handle, buffer, 0, 8, 0);
  assert.equal(buffer.toString(), '\0\0\0hello');
  assert.equal(await ask(sftp, 'read', handle, buffer, 0, 8, 100), 0);
  assert.equal((await ask(sftp, 'fstat', handle)).size, 8);
  await ask(sftp, 'close', handle);
  await assert.rejects(ask(sftp, 'fstat', handle), /not open/);
});

test('streams carry large files both ways', async (t) => {
  const { sftp, directory } = await session(t);
  const local = join(directory, 'local');
  const content = randomBytes(9_000_001);
  writeFileSync(local, content);
  const remote = join(directory, 'remote');
  await pipeline(createReadStream(local), sftp.createWriteStream(remote));
  assert.ok(readFileSync(remote).equals(content));
  const back = join(directory, 'back');
  await pipeline(sftp.createReadStream(remote), createWriteStream(back));
  assert.ok(readFileSync(back).equals(content));
  const part = await all(sftp.createReadStream(remote, { start: 1_000_000, end: 3_999_999 }));
  assert.ok(part.equals(content.subarray(1_000_000, 4_000_000)));
  assert.equal((await all(sftp.createReadStream(local, { start: content.length }))).length, 0);
});

test('a read stream whose file became shorter ends with what happened', async (t) => {
  const { sftp, directory } = await session(t);
  const path = join(directory, 'shrinks');
  writeFileSync(path, '');
  // Longer than what is asked for ahead.
  truncateSync(path, 256 * 1024 * 1024);
  const stream = sftp.createReadStream(path);
  stream.once('data', () => truncateSync(path, 0));
  await assert.rejects(pipeline(stream, new Writable({ write: (_piece, _encoding, done) => done() })), {
    code: 4,
    message: /^it changed while it was read: \d+ of its 268435456 bytes came$/,
  });
});

test('long pieces are appended in their order', async (t) => {
  const { sftp, directory } = await session(t);
  const path = join(directory, 'log');
  const pieces = Array.from({ length: 40 }, (_, number) => Buffer.alloc(1 + ((number * 79_190) % 600_000), 97 + (number % 26)));
  // The server appends what comes as it comes.
  const stream = sftp.createWriteStream(path, { flags: 'a' });
  for (const piece of pieces) stream.write(piece);
  stream.end();
  await once(stream, 'close');
  assert.ok(Buffer.concat(pieces).equals(readFileSync(path)));
});

test('whole files are carried by the engine, and tell how far they are', async (t) => {
  const { sftp, directory } = await session(t);
  const content = randomBytes(5_000_000);
  const [local, remote, back] = ['local', 'remote', 'back'].map((name) => join(directory, name));
  writeFileSync(local, content);
  const steps = [];
  await ask(sftp, 'fastPut', local, remote, { mode: 0o600, step: (done, chunk, total) => steps.push([done, total]) });
  assert.equal(statSync(remote).mode & 0o777, 0o600);
  assert.deepEqual(steps.at(-1), [content.length, content.length]);
  await ask(sftp, 'fastGet', remote, back);
  assert.ok(readFileSync(back).equals(content));
  await assert.rejects(ask(sftp, 'fastGet', join(directory, 'missing'), back), { code: 2 });
  await assert.rejects(ask(sftp, 'fastPut', join(directory, 'missing'), remote), { code: 'ENOENT' });
});

test('a session that has ended fails what is asked of it, and lets the client go on', async (t) => {
  const { ssh, sftp, directory } = await session(t);
  const closed = once(sftp, 'close');
  sftp.end();
  await closed;
  assert.throws(() => sftp.stat(directory, () => {}), /Not connected/);
  assert.equal((await all(await ask(ssh, 'exec', 'echo on'))).toString(), 'on\n');
});

test('an end of the session at the end of a stream is not an error of the stream', async (t) => {
  for (const ends of ['sftp', 'ssh']) {
    for (const [method, event] of [['createReadStream', 'end'], ['createWriteStream', 'finish']]) {
      const { [ends]: ended, sftp, directory } = await session(t);
      await ask(sftp, 'writeFile', join(directory, 'file'), 'content');
      const stream = sftp[method](join(directory, 'file'));
      const errors = [];
      stream.on('error', (error) => errors.push(error)).on(event, () => ended.end());
      const over = Promise.all([ending(stream), ending(ended)]);
      if (method === 'createReadStream') stream.resume();
      else stream.end('text');
      await over;
      assert.deepEqual(errors, []);
    }
  }
});

test('what an end cuts off has no response', async (t) => {
  const { sftp, directory } = await session(t);
  const fifo = join(directory, 'fifo');
  execFileSync('mkfifo', [fifo]);
  // The server waits for somebody who writes to it.
  const asked = ask(sftp, 'open', fifo, 'r');
  sftp.end();
  try {
    await assert.rejects(asked, { message: 'No response from server' });
  } finally {
    closeSync(openSync(fifo, constants.O_RDWR));
  }
});

test('ssh2-sftp-client runs on it unchanged', async (t) => {
  const [host] = await servers(t);
  const directory = scratch(t);
  const sftp = new SftpClient();
  await sftp.connect(config(host));
  const file = join(directory, 'file');
  await sftp.put(Buffer.from('content'), file);
  assert.equal((await sftp.get(file)).toString(), 'content');
  assert.equal(await sftp.exists(file), '-');
  assert.equal(await sftp.exists(join(directory, 'missing')), false);
  await sftp.mkdir(join(directory, 'a/b/c'), true);
  const [made] = (await sftp.list(directory)).filter(({ name }) => name === 'a');
  assert.equal(made.type, 'd');
  assert.equal((await sftp.stat(file)).size, 7);
  await sftp.fastPut(file, join(directory, 'a/copy'));
  await sftp.fastGet(join(directory, 'a/copy'), join(directory, 'back'));
  assert.equal(readFileSync(join(directory, 'back'), 'utf8'), 'content');
  await sftp.append(Buffer.from('!'), file);
  await sftp.rename(file, `${file}2`);
  assert.equal((await sftp.get(`${file}2`)).toString(), 'content!');
  await sftp.uploadDir(join(directory, 'a'), join(directory, 'up'));
  await sftp.downloadDir(join(directory, 'up'), join(directory, 'down'), { useFastget: true });
  assert.equal(readFileSync(join(directory, 'down/copy'), 'utf8'), 'content');
  await sftp.delete(`${file}2`);
  await sftp.rmdir(join(directory, 'a'), true);
  await assert.rejects(sftp.get(join(directory, 'missing')), /No such file/);
  await sftp.end();
});

test('node-ssh runs on it unchanged', async (t) => {
  const [host] = await servers(t);
  const directory = scratch(t);
  const ssh = new NodeSSH();
  await ssh.connect({ ...config(host), privateKey: readFileSync(host.key, 'utf8') });
  const result = await ssh.execCommand('cat; echo err >&2; exit 3', { stdin: 'in', cwd: directory });
  assert.deepEqual([result.stdout, result.stderr, result.code], ['in', 'err', 3]);
  assert.equal(await ssh.exec('echo', ['one two']), 'one two');
  const local = join(directory, 'local');
  writeFileSync(local, 'content');
  await ssh.putFile(local, join(directory, 'sub/remote'));
  await ssh.getFile(join(directory, 'back'), join(directory, 'sub/remote'));
  assert.equal(readFileSync(join(directory, 'back'), 'utf8'), 'content');
  await ssh.mkdir(join(directory, 'x/y'));
  await ssh.putDirectory(join(directory, 'sub'), join(directory, 'x/y'));
  assert.equal(readFileSync(join(directory, 'x/y/remote'), 'utf8'), 'content');
  ssh.dispose();
});
