import assert from 'node:assert/strict';
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { connect } from 'trunkline';

import { Servers } from '../src/demo/servers.js';
import type { LogRecord } from '../src/log/record.js';
import { Tail } from '../src/tail.js';

test('after a lost connection a tail goes on where it was, without gap or repetition', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'pg-monitor-tail-'));
  const servers = await Servers.start(1);
  t.after(async () => {
    await servers.stop();
    rmSync(directory, { recursive: true });
  });
  const file = join(directory, "it's a log.json");
  const line = (message: string) => `${JSON.stringify({ error_severity: 'LOG', message })}\n`;
  writeFileSync(file, line('from before'));

  const messages: string[] = [];
  let arrived: () => void = () => undefined;
  const take = (records: LogRecord[]) => {
    messages.push(...records.map(({ message }) => message));
    arrived();
  };
  /** Waits for a record. */
  const seen = async (message: string) => {
    while (messages.at(-1) !== message) await new Promise<void>((resolve) => (arrived = resolve));
  };
  const [ssh] = servers.ssh;
  assert.ok(ssh?.keyFile && ssh.host && ssh.port && ssh.username && ssh.knownHosts);
  const { host, port, username, knownHosts, keyFile } = ssh;
  const config = { host, port, username, knownHosts, privateKey: readFileSync(keyFile) };
  // From the beginning: when the end is looked for is the server's matter.
  const tail = new Tail(file, 'jsonlog', 0, take);

  const first = await connect(config);
  const lost = tail.follow(first, new AbortController().signal);
  await seen('from before');
  // Half of a record, and half of a character of it.
  const cut = Buffer.from(line('übrig'));
  appendFileSync(file, Buffer.concat([Buffer.from(line('one')), cut.subarray(0, cut.indexOf(0xc3) + 1)]));
  await seen('one');
  await Promise.all([assert.rejects(lost), first.close()]);

  appendFileSync(file, cut.subarray(cut.indexOf(0xc3) + 1));
  const second = await connect(config);
  const stop = new AbortController();
  const followed = tail.follow(second, stop.signal);
  await seen('übrig');
  appendFileSync(file, line('two'));
  await seen('two');
  stop.abort();
  await followed;
  await second.close();
  assert.deepEqual(messages, ['from before', 'one', 'übrig', 'two']);
  assert.equal(tail.malformed, 0);

  // A file that is not there is told in the server's words.
  const third = await connect(config);
  const missing = new Tail(join(directory, 'missing'), 'csvlog', null, take);
  await assert.rejects(missing.follow(third, new AbortController().signal), /missing.*No such file/s);
  await third.close();
});
