// One PostgreSQL server behind one connection: its polls, its log, and what is asked of it.

import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

import pg from 'pg';
import type { Channel, Connection } from 'trunkline';

import type { InstanceConfig } from './config.js';
import { duration, type LogRecord } from './log/record.js';
import { Statements } from './log/statements.js';
import type { Action, Backend, InstanceReport, Lock, LogEvent, Sample, Statement, WorkerSettings } from './messages.js';
import { unknownInstance } from './messages.js';
import * as queries from './queries.js';
import { Tail } from './tail.js';

const SHOWN = new Set(['WARNING', 'ERROR', 'FATAL', 'PANIC']);

/** Log events between two reports; a database in trouble writes more than anybody reads. */
const EVENTS = 100;

/** Milliseconds. A server that does not answer for so long is down. */
const QUERY_LIMIT = 10_000;

type Results = [
  pg.QueryResult<queries.CountersRow>,
  pg.QueryResult<queries.BackendsRow>,
  pg.QueryResult<queries.ActivityRow>,
  pg.QueryResult<queries.LogFilesRow>,
  pg.QueryResult<Statement>?,
];

export class Instance {
  #connection: Connection | null = null;
  #report: InstanceReport;
  #changed = true;
  #tail: Tail | null = null;
  #tailing: AbortController | null = null;
  readonly #statements = new Statements();
  #before: { at: number; lines: number; row: queries.CountersRow } | null = null;

  constructor(
    id: string,
    private readonly config: InstanceConfig,
    private readonly settings: WorkerSettings,
  ) {
    this.#report = unknownInstance(id);
  }

  /** The news; null if there are none. */
  report(): InstanceReport | null {
    if (!this.#changed) return null;
    const tail = this.#tail;
    const log = tail && { file: tail.file, format: tail.format, lines: tail.lines, bytes: tail.bytes, malformed: tail.malformed };
    const report = { ...this.#report, log };
    this.#report.events = [];
    this.#changed = false;
    return report;
  }

  /** Works over a connection until it is lost, or the signal comes. A database that is down is tried again and again. */
  async run(connection: Connection, signal: AbortSignal): Promise<void> {
    this.#connection = connection;
    try {
      await this.#listen(connection);
      while (!signal.aborted) {
        try {
          await this.#poll(connection, signal);
        } catch (error) {
          if (!signal.aborted) this.down(error);
        }
        await pause(this.settings.interval * 1000, signal);
      }
    } finally {
      this.#connection = null;
    }
  }

  /** Says that nothing comes from it. */
  down(error: unknown): void {
    this.#before = null;
    const problem = error instanceof Error ? error.message : String(error);
    this.#tell({ state: 'down', problem, sample: null, locks: [], running: [] });
  }

  /** Does what a person asked for, in a session of its own, which no poll holds up. */
  async act(action: Action): Promise<string> {
    const connection = this.#connection;
    if (connection === null) throw new Error('there is no connection to the server');
    const { socket } = this.#report;
    const client = this.#client(socket === null ? await this.#stream(connection) : socket);
    await client.connect();
    try {
      if (action.kind === 'reset') {
        await client.query(queries.RESET);
        return 'The statistics were reset.';
      }
      const text = action.kind === 'cancel' ? queries.CANCEL : queries.TERMINATE;
      const { rows } = await client.query<{ done: boolean }>(text, [action.pid, action.queryStart]);
      if (rows[0] === undefined) return `Backend ${action.pid} has gone on to something else; nothing was done.`;
      return rows[0].done ? `Backend ${action.pid} was told.` : `Backend ${action.pid} has ended already.`;
    } finally {
      await client.end();
    }
  }

  /** Makes the local socket, by which any PostgreSQL client of this machine reaches the server. */
  async #listen(connection: Connection): Promise<void> {
    if (this.settings.sockets === null) return;
    const directory = join(this.settings.sockets, this.#report.id.replaceAll('/', '_'));
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const path = join(directory, `.s.PGSQL.${this.config.port}`);
    const { socket, address, port } = this.config;
    await (socket === undefined
      ? connection.forwardOutLocalSocket(path, address, port)
      : connection.forwardOutLocalSocket(path, socket));
    this.#tell({ socket: directory });
  }

  /** One session, for as long as it works. */
  async #poll(connection: Connection, signal: AbortSignal): Promise<void> {
    const client = this.#client(await this.#stream(connection));
    // Between two queries, too; what a query then says is only that there was an error before.
    const lost = new AbortController();
    client.on('error', (error) => lost.abort(error));
    const close = () => void client.end();
    try {
      await client.connect();
      signal.addEventListener('abort', close, { once: true });
      const { rows } = await client.query<queries.IdentityRow>(queries.IDENTITY);
      const identity = rows[0];
      if (identity === undefined) throw new Error('the server does not say what it is');
      this.#tell({ version: identity.version });
      const parts = [queries.COUNTERS, queries.BACKENDS, queries.ACTIVITY, queries.logFiles(identity)];
      if (identity.statements) parts.push(queries.STATEMENTS);
      // Together they are one round trip.
      const text = parts.join(';');
      while (!signal.aborted) {
        const begun = performance.now();
        const results = (await client.query(text)) as unknown as Results;
        const pollTime = performance.now() - begun;
        const { lanes } = await connection.stats();
        this.#polled(connection, results, pollTime, lanes[0]?.rtt ?? null);
        if (!identity.logs) this.#tell({ problem: 'the role may not execute pg_current_logfile(text)' });
        await pause(this.settings.interval * 1000, AbortSignal.any([signal, lost.signal]));
        lost.signal.throwIfAborted();
      }
    } catch (error) {
      throw lost.signal.aborted ? lost.signal.reason : error;
    } finally {
      signal.removeEventListener('abort', close);
      await client.end();
    }
  }

  #polled(connection: Connection, results: Results, pollTime: number, rtt: number | null): void {
    const [counters, backends, activity, logFiles, statements] = results;
    this.#follow(connection, logFiles.rows[0]);
    this.#tell({
      state: 'up',
      problem: this.#tail === null ? 'PostgreSQL writes neither jsonlog nor csvlog' : null,
      rtt,
      sample: this.#sample(counters.rows[0], backends.rows, activity.rows, pollTime),
      locks: locksOf(activity.rows),
      running: activity.rows.filter((row) => row.state !== 'idle').slice(0, 20).map(toBackend),
      statements: statements?.rows ?? [],
    });
  }

  #sample(
    row: queries.CountersRow | undefined,
    backends: queries.BackendsRow[],
    activity: queries.ActivityRow[],
    pollTime: number,
  ): Sample | null {
    if (row === undefined) return null;
    const now = { at: performance.now(), lines: this.#tail?.lines ?? 0, row };
    const before = this.#before;
    this.#before = now;
    // Counters begin anew when they are reset.
    if (before === null || row.commits < before.row.commits) return this.#report.sample;
    const seconds = (now.at - before.at) / 1000;
    const hits = row.hits - before.row.hits;
    const reads = row.reads - before.row.reads;
    const count = (...states: string[]) =>
      backends.filter(({ state }) => states.includes(state)).reduce((sum, { count }) => sum + count, 0);
    const all = backends.reduce((sum, { count }) => sum + count, 0);
    const active = count('active');
    const idle = count('idle');
    const idleInTransaction = count('idle in transaction', 'idle in transaction (aborted)');
    return {
      time: Date.now(),
      transactions: (row.commits + row.rollbacks - before.row.commits - before.row.rollbacks) / seconds,
      rollbacks: (row.rollbacks - before.row.rollbacks) / seconds,
      cacheHit: hits + reads > 0 ? hits / (hits + reads) : null,
      logLines: Math.max(0, now.lines - before.lines) / seconds,
      backends: { active, idle, idleInTransaction, other: all - active - idle - idleInTransaction },
      waiting: activity.filter((session) => session.holders !== null).length,
      longestTransaction: Math.max(0, ...backends.map(({ longest }) => longest)),
      pollTime,
    };
  }

  /** Follows the log that PostgreSQL writes now: it has another file after each rotation. */
  #follow(connection: Connection, files: queries.LogFilesRow | undefined): void {
    const format = files?.jsonlog ? 'jsonlog' : 'csvlog';
    const file = files?.[format] ?? null;
    if (file === null) {
      this.#tailing?.abort();
      this.#tail = null;
      return;
    }
    if (this.#tail?.file !== file) {
      this.#tailing?.abort();
      this.#tailing = null;
      this.#tail = new Tail(file, format, this.#tail === null ? null : 0, (records) => this.#logged(records));
    }
    if (this.#tailing !== null) return;
    const tailing = new AbortController();
    this.#tailing = tailing;
    this.#tail.follow(connection, tailing.signal).then(
      () => undefined,
      (error: unknown) => this.#event({ severity: 'MONITOR', message: error instanceof Error ? error.message : String(error) }),
    ).finally(() => {
      // The next poll begins anew.
      if (this.#tailing === tailing) this.#tailing = null;
    });
  }

  #logged(records: LogRecord[]): void {
    for (const record of records) {
      const message = this.#statements.message(record);
      const took = duration(record);
      const isSlow = took !== undefined && took >= this.settings.slow && record.application !== queries.APPLICATION;
      if (!isSlow && !SHOWN.has(record.severity)) continue;
      this.#event({
        time: record.time,
        severity: record.severity,
        message: message.slice(0, 2000),
        user: record.user,
        database: record.database,
        ...(took !== undefined && { duration: took }),
      });
    }
    this.#changed = true;
  }

  #event(event: Partial<LogEvent>): void {
    const { events } = this.#report;
    events.push({ time: '', severity: '', message: '', user: '', database: '', ...event });
    if (events.length > EVENTS) events.shift();
    this.#changed = true;
  }

  #tell(news: Partial<InstanceReport>): void {
    Object.assign(this.#report, news);
    this.#changed = true;
  }

  #stream(connection: Connection): Promise<Channel> {
    const { socket, address, port } = this.config;
    return socket === undefined ? connection.forwardOut(address, port) : connection.forwardOutStreamLocal(socket);
  }

  /** A session through a tunnel, or through the directory of a local socket. */
  #client(through: Channel | string): pg.Client {
    const { user, password, database, address, port } = this.config;
    return new pg.Client({
      // With a tunnel, the address is only what ~/.pgpass is asked for.
      ...(typeof through === 'string' ? { host: through } : { host: address, stream: () => through }),
      port,
      user,
      database,
      ...(password !== undefined && { password }),
      application_name: queries.APPLICATION,
      connectionTimeoutMillis: QUERY_LIMIT,
      query_timeout: QUERY_LIMIT,
      statement_timeout: QUERY_LIMIT,
    });
  }
}

function toBackend(row: queries.ActivityRow): Backend {
  const { pid, user, database, application, state, query, queryStart, seconds } = row;
  return { pid, user, database, application, state, query, queryStart, seconds };
}

function locksOf(rows: queries.ActivityRow[]): Lock[] {
  return rows.flatMap((row) => {
    if (row.holders === null) return [];
    const holders = rows.filter(({ pid }) => row.holders?.includes(pid)).map(toBackend);
    return { waiter: toBackend(row), what: row.what ?? '', holders };
  });
}

/** Waits, or until the signal comes. */
export async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await delay(milliseconds, undefined, { signal }).catch(() => undefined);
}
