// What the threads tell each other, and what the page is told.

import type { InstanceConfig, HostConfig } from './config.js';

/** The counts of one moment, and the changes since the moment before. */
export interface Sample {
  /** Milliseconds since 1970. */
  time: number;
  /** A second, since the sample before. */
  transactions: number;
  rollbacks: number;
  /** Of the blocks that were wanted, the part found in PostgreSQL's memory; null where none were. */
  cacheHit: number | null;
  logLines: number;
  /** Now. */
  backends: { active: number; idle: number; idleInTransaction: number; other: number };
  waiting: number;
  /** Seconds; 0 without one. */
  longestTransaction: number;
  /** Milliseconds that the queries of this sample took, there and back. */
  pollTime: number;
}

/** A backend, and what marks the statement that it runs. */
export interface Backend {
  pid: number;
  user: string;
  database: string;
  application: string;
  state: string;
  query: string;
  /** PostgreSQL's text of the moment when the query began: with the pid, it names one query. */
  queryStart: string;
  /** Seconds. */
  seconds: number;
}

/** Somebody who waits for a lock, and who holds it. */
export interface Lock {
  waiter: Backend;
  /** The locked object: "relation accounts", "transactionid", … */
  what: string;
  holders: Backend[];
}

/** One of pg_stat_statements. */
export interface Statement {
  query: string;
  calls: number;
  /** Milliseconds. */
  mean: number;
  /** Milliseconds since the statistics were reset. */
  total: number;
  rows: number;
}

/** A line of the log that the page shows: a warning or worse, or a slow query. */
export interface LogEvent {
  /** PostgreSQL's own words for the time. */
  time: string;
  severity: string;
  message: string;
  user: string;
  database: string;
  /** Milliseconds, where it is about how long a statement took. */
  duration?: number;
}

/** The state of the log. */
export interface LogState {
  file: string;
  format: 'jsonlog' | 'csvlog';
  /** Since the monitor was started. */
  lines: number;
  bytes: number;
  malformed: number;
}

/** A worker's report on one instance. */
export interface InstanceReport {
  id: string;
  state: 'connecting' | 'up' | 'down';
  /** The reason why it is down, or the missing parts. */
  problem: string | null;
  version: string;
  /** Milliseconds to the server and back. */
  rtt: number | null;
  log: LogState | null;
  /** The socket for PostgreSQL clients of this machine. */
  socket: string | null;
  sample: Sample | null;
  locks: Lock[];
  running: Backend[];
  statements: Statement[];
  /** New since the report before. */
  events: LogEvent[];
}

/** An instance of which nothing is known yet. */
export function unknownInstance(id: string): InstanceReport {
  return {
    id,
    state: 'connecting',
    problem: null,
    version: '',
    rtt: null,
    log: null,
    socket: null,
    sample: null,
    locks: [],
    running: [],
    statements: [],
    events: [],
  };
}

/** Delays of an event loop over the last second, in milliseconds. */
export interface LoopDelay {
  thread: string;
  mean: number;
  p99: number;
  max: number;
  /** The part of the time in which the loop was busy. */
  utilization: number;
}

/** A person's request. */
export type Action =
  | { kind: 'cancel' | 'terminate'; instance: string; pid: number; queryStart: string }
  | { kind: 'reset'; instance: string };

/** The start options of a worker. */
export interface WorkerStart {
  name: string;
  hosts: HostConfig[];
  settings: WorkerSettings;
}

export interface WorkerSettings {
  /** Seconds between polls. */
  interval: number;
  /** Milliseconds from which on a statement is slow. */
  slow: number;
  /** The directory of local sockets, or null for none. */
  sockets: string | null;
}

export type ToWorker = { kind: 'act'; request: number; action: Action } | { kind: 'stop' };

export type FromWorker =
  | { kind: 'reports'; reports: InstanceReport[]; loop: LoopDelay }
  | { kind: 'answer'; request: number; text: string }
  | { kind: 'refusal'; request: number; text: string };

/** An instance, as everybody else names it. */
export function instanceId(host: HostConfig, instance: InstanceConfig): string {
  return host.instances.length === 1 ? host.name : `${host.name}:${instance.socket ?? String(instance.port)}`;
}
