// Samples in SQLite. The database is written by a thread of its own: SQLite's calls wait for the disk.

import { existsSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

import sqlite from 'node-sqlite3-wasm';

import type { LogEvent, Sample } from './messages.js';
import { WriteQueue, type QueueState } from './queue.js';

/** A row of one of the tables. */
export type Row =
  | { table: 'samples'; instance: string; sample: Sample }
  | { table: 'events'; instance: string; time: number; event: LogEvent };

/** Rows that may wait: some minutes of 2,000 instances. */
const LIMIT = 200_000;
const BATCH = 2_000;

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS samples (
    time INTEGER NOT NULL, instance TEXT NOT NULL, transactions REAL NOT NULL, rollbacks REAL NOT NULL, cache_hit REAL,
    log_lines REAL NOT NULL, active INTEGER NOT NULL, idle INTEGER NOT NULL, idle_in_transaction INTEGER NOT NULL,
    waiting INTEGER NOT NULL, longest_transaction REAL NOT NULL, poll_time REAL NOT NULL
  );
  CREATE INDEX IF NOT EXISTS samples_of_instance ON samples (instance, time);
  CREATE INDEX IF NOT EXISTS samples_by_time ON samples (time);
  CREATE TABLE IF NOT EXISTS events (
    time INTEGER NOT NULL, instance TEXT NOT NULL, severity TEXT NOT NULL, message TEXT NOT NULL, username TEXT NOT NULL,
    database TEXT NOT NULL, duration REAL
  );
  CREATE INDEX IF NOT EXISTS events_by_time ON events (time);
`;

interface StoreStart {
  file: string;
  keepDays: number;
}

/** The file, from the main thread. */
export class Store {
  #worker: Worker;
  #queue: WriteQueue<Row>;

  private constructor(worker: Worker) {
    this.#worker = worker;
    this.#queue = new WriteQueue((batch) => this.#write(batch), { limit: LIMIT, batch: BATCH });
  }

  /** Opens or makes it. */
  static async open(file: string, keepDays: number): Promise<Store> {
    const worker = new Worker(new URL(import.meta.url), { workerData: { file, keepDays } satisfies StoreStart });
    // Its first message says that the file is open; a failure is an 'error', which rejects.
    await once(worker, 'message');
    return new Store(worker);
  }

  get state(): QueueState {
    return this.#queue.state;
  }

  push(rows: Row[]): void {
    this.#queue.push(rows);
  }

  /** Writes what waits, and closes the file. */
  async close(): Promise<void> {
    await this.#queue.drain();
    const ended = once(this.#worker, 'exit');
    this.#worker.postMessage(null);
    await ended;
  }

  async #write(batch: Row[]): Promise<void> {
    const answered = once(this.#worker, 'message');
    this.#worker.postMessage(batch);
    const [problem] = (await answered) as [string | null];
    if (problem !== null) throw new Error(problem);
  }
}

/** The thread that writes. */
function serve(port: NonNullable<typeof parentPort>, { file, keepDays }: StoreStart): void {
  claim(file);
  const database = new sqlite.Database(file);
  database.exec(SCHEMA);
  const sample = database.prepare('INSERT INTO samples VALUES (?,?,?,?,?,?,?,?,?,?,?,?)');
  const event = database.prepare('INSERT INTO events VALUES (?,?,?,?,?,?,?)');
  let nextClearing = 0;

  const insert = (row: Row): void => {
    if (row.table === 'samples') {
      const { time, transactions, rollbacks, cacheHit, logLines, backends, waiting, longestTransaction, pollTime } = row.sample;
      const { active, idle, idleInTransaction } = backends;
      const counts = [active, idle, idleInTransaction, waiting, longestTransaction, pollTime];
      sample.run([time, row.instance, transactions, rollbacks, cacheHit, logLines, ...counts]);
    } else {
      const { severity, message, user, database: name, duration } = row.event;
      event.run([row.time, row.instance, severity, message, user, name, duration ?? null]);
    }
  };

  port.on('message', (batch: Row[] | null) => {
    if (batch === null) {
      sample.finalize();
      event.finalize();
      database.close();
      rmSync(`${file}.pid`, { force: true });
      port.close();
      return;
    }
    try {
      database.exec('BEGIN IMMEDIATE');
      batch.forEach(insert);
      const now = Date.now();
      if (now > nextClearing) {
        database.run('DELETE FROM samples WHERE time < ?', now - keepDays * 86_400_000);
        database.run('DELETE FROM events WHERE time < ?', now - keepDays * 86_400_000);
        nextClearing = now + 600_000;
      }
      database.exec('COMMIT');
      port.postMessage(null);
    } catch (error) {
      if (database.inTransaction) database.exec('ROLLBACK');
      port.postMessage(error instanceof Error ? error.message : String(error));
    }
  });
  port.postMessage(null);
}

/**
 * node-sqlite3-wasm locks a file by a directory beside it, which a process that was killed leaves behind. Who has the file is
 * written down, so that a lock of nobody's can be told from another monitor's.
 */
function claim(file: string): void {
  const owner = existsSync(`${file}.pid`) ? Number(readFileSync(`${file}.pid`, 'utf8')) : 0;
  if (owner > 0 && owner !== process.pid && existsSync(`/proc/${owner}`)) {
    throw new Error(`${file} is in use by the process ${owner} (if that is not a monitor, remove ${file}.pid)`);
  }
  if (existsSync(`${file}.lock`)) rmdirSync(`${file}.lock`);
  writeFileSync(`${file}.pid`, String(process.pid));
}

if (!isMainThread && parentPort !== null) serve(parentPort, workerData as StoreStart);
