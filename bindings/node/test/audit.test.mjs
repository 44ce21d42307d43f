// The audit trail: what programs do with an engine of their own, beside what the daemon does, in one chain.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { daemonPlace, testbed, trunklineProgram } from './testbed.mjs';

const index = fileURLToPath(new URL('../lib/index.js', import.meta.url));

/** Runs commands, four at a time. */
const WORKS = `
  const { connect } = require(process.argv[1]);
  const [config, rounds] = process.argv.slice(2);
  (async () => {
    const box = await connect('box1', { config, daemon: false });
    const work = async () => {
      for (let number = 0; number < Number(rounds); number += 1) {
        const options = { input: 'input-of-mine', env: { LC_SECRET: 'environment-of-mine' } };
        await box.run('cat; echo ' + process.pid + ' ' + number, options);
      }
    };
    console.log('works');
    await Promise.all([work(), work(), work(), work()]);
    // Nothing waits for the trail but the end of the process.
    process.exit();
  })();`;

const node = (source, ...args) =>
  spawn(process.execPath, ['-e', source, index, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });

const directory = (dir) => join(dir, 'state', 'audit');

function verify() {
  const done = spawnSync(trunklineProgram, ['audit', 'verify', '--json'], { encoding: 'utf8' });
  assert.equal(done.status, 0, done.stdout + done.stderr);
  return JSON.parse(done.stdout);
}

function records(dir) {
  const older = readdirSync(directory(dir)).filter((name) => /^audit-.*jsonl$/.test(name)).sort();
  const text = [...older, 'audit.jsonl'].map((name) => readFileSync(join(directory(dir), name), 'utf8')).join('');
  return text.split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
}

/** The number of records while they are written: files are renamed meanwhile, and a line may be incomplete. */
function recordedSoFar(dir) {
  try {
    return records(dir).length;
  } catch (error) {
    if (error.code !== 'ENOENT' && !(error instanceof SyntaxError)) throw error;
    return 0;
  }
}

for (const mode of ['on', 'strict']) {
  test(`programs and the daemon write one chain: ${mode}`, async (t) => {
    const dir = daemonPlace(t);
    const bed = await testbed(t);
    writeFileSync(join(dir, 'config.toml'), `audit = "${mode}"\naudit_file_size = 16384\naudit_files = 0\n`);
    const programs = [1, 2].map(() => node(WORKS, bed.ssh_config, '10'));
    const ends = programs.map((program) => once(program, 'exit'));
    for (let number = 0; number < 5; number += 1) {
      const run = spawnSync(trunklineProgram, ['run', '-F', bed.ssh_config, '-H', 'box1', 'echo by the daemon']);
      assert.equal(run.status, 0, String(run.stderr));
    }
    assert.deepEqual(await Promise.all(ends), [[0, null], [0, null]]);
    spawnSync(trunklineProgram, ['stop', '--now']);
    const verdict = verify();
    assert.deepEqual([verdict.intact, verdict.first, verdict.unfinished], [true, 1, 0]);
    assert.ok(verdict.files > 2);
    const all = records(dir);
    for (const program of programs) {
      const own = all.filter((record) => record.asker?.pid === program.pid);
      assert.equal(own.length, 80);
      assert.ok(own.every((record) => record.engine === 'program' && record.host === 'box1'));
      for (const { execution, status, sent_bytes: sent } of own.filter((record) => record.event === 'end')) {
        assert.deepEqual([execution, status, sent], ['finished', 0, 13]);
      }
    }
    const byDaemon = all.filter((record) => record.command === 'echo by the daemon');
    assert.equal(byDaemon.length, 10);
    assert.ok(byDaemon.every((record) => record.engine === undefined));
    assert.doesNotMatch(JSON.stringify(all), /of-mine/);
  });
}

test('a program that is killed leaves a trail that can be verified', async (t) => {
  const dir = daemonPlace(t);
  const bed = await testbed(t);
  writeFileSync(join(dir, 'config.toml'), 'audit = "on"\naudit_file_size = 8192\naudit_files = 0\n');
  const killed = node(WORKS, bed.ssh_config, '1000000');
  await once(killed.stdout, 'data');
  while (recordedSoFar(dir) < 20) await setImmediate();
  killed.kill('SIGKILL');
  await once(killed, 'exit');
  const next = node(WORKS, bed.ssh_config, '1');
  assert.deepEqual(await once(next, 'exit'), [0, null]);
  assert.ok(verify().intact);
  const numbers = records(dir).map((record) => record.number);
  assert.deepEqual(numbers, numbers.map((_, at) => at + 1));
});

test('what a program of ssh2 does is recorded, and what it leaves open ends with it', async (t) => {
  const dir = daemonPlace(t);
  const bed = await testbed(t);
  const [host] = bed.hosts;
  writeFileSync(join(dir, 'config.toml'), 'audit = "strict"\n');
  const program = node(
    `
    const { Client } = require(process.argv[1]);
    const host = JSON.parse(process.argv[2]);
    const client = new Client();
    client.on('ready', () => client.exec('sleep 1000', () => client.sftp(() => client.exec('exit 7', (_, stream) => {
      stream.on('close', () => process.exit()).resume();
    }))));
    client.connect({ host: host.address, port: host.port, username: host.user,
      privateKey: require('node:fs').readFileSync(host.key), knownHosts: host.known_hosts });`,
    JSON.stringify(host),
  );
  assert.deepEqual(await once(program, 'exit'), [0, null]);
  assert.equal(verify().unfinished, 0);
  const ends = records(dir).filter((record) => record.event === 'end');
  const told = Object.fromEntries(ends.map((end) => [end.command, [end.execution, end.status ?? end.error]]));
  assert.deepEqual(told, {
    'exit 7': ['finished', 7],
    'sleep 1000': ['may have started', 'its program ended'],
    sftp: ['finished', undefined],
  });
});
