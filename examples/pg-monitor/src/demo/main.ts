// Three databases, twenty hosts that share them, some load, and the monitor.

import { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { parseConfig } from '../config.js';
import { Monitor } from '../monitor.js';
import { Database } from './databases.js';
import { Servers } from './servers.js';

const { values } = parseArgs({
  options: {
    hosts: { type: 'string', default: '20' },
    listen: { type: 'string', default: '127.0.0.1:8017' },
    rate: { type: 'string', default: '20' },
  },
});

/** The processes to end, last first. */
const ends: (() => Promise<void>)[] = [];
let isEnding = false;

async function end(): Promise<void> {
  if (isEnding) return;
  isEnding = true;
  for (const one of ends.reverse()) await one().catch((error: unknown) => console.error(error));
}

process.once('SIGINT', () => void end());
process.once('SIGTERM', () => void end());

try {
  const directory = mkdtempSync(join(tmpdir(), 'pg-monitor-'));
  ends.push(() => rm(directory, { recursive: true }));
  const databases: Database[] = [];
  for (const format of ['jsonlog', 'csvlog', 'jsonlog'] as const) {
    const database = await Database.start(format);
    ends.push(() => database.stop());
    await database.load(Number(values.rate));
    databases.push(database);
  }
  const servers = await Servers.start(Number(values.hosts));
  ends.push(() => servers.stop());
  const hosts = servers.ssh.map((ssh, n) => {
    const database = databases[n % databases.length];
    return { name: `db${String(n + 1).padStart(2, '0')}`, ssh, instances: [{ port: database?.port, password: database?.password }] };
  });
  const monitor = await Monitor.start(parseConfig({ listen: values.listen, sockets: 'sockets', hosts }, directory));
  ends.push(() => monitor.stop());
  console.log(`The monitor: ${monitor.address}`);
  console.log('To see a lock, run this twice, each in a window of its own, and stay in the transaction:');
  const [first] = databases;
  console.log(
    `  PGPASSWORD=${first?.password ?? ''} psql -h 127.0.0.1 -p ${first?.port ?? ''} -U app postgres -c 'BEGIN' ` +
      `-c 'UPDATE accounts SET balance = balance + 1 WHERE id = 1' -c 'SELECT pg_sleep(60)'`,
  );
  console.log('Ctrl-C ends everything.');
} catch (error) {
  console.error(error);
  process.exitCode = 1;
  await end();
}
