// What PostgreSQL is asked. Version 13 and later; a role with pg_monitor may see all of it.

import type { Backend } from './messages.js';

/** The name under which the monitor's own sessions are known, and left out. */
export const APPLICATION = 'pg-monitor';

/** Once for each session. */
export const IDENTITY = `
  SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
         to_regclass('pg_stat_statements') IS NOT NULL AS statements,
         has_function_privilege('pg_current_logfile(text)', 'EXECUTE') AS logs`;

export interface IdentityRow {
  version: string;
  number: number;
  statements: boolean;
  /** Whether the role may ask for the log's file: pg_monitor alone does not let it. */
  logs: boolean;
}

/** Counters of all databases. */
export const COUNTERS = `
  SELECT sum(xact_commit)::float8 AS commits, sum(xact_rollback)::float8 AS rollbacks,
         sum(blks_hit)::float8 AS hits, sum(blks_read)::float8 AS reads
    FROM pg_stat_database`;

export interface CountersRow {
  commits: number;
  rollbacks: number;
  hits: number;
  reads: number;
}

/** The number of sessions by state. */
export const BACKENDS = `
  SELECT coalesce(state, 'unknown') AS state, count(*)::int AS count,
         greatest(max(extract(epoch FROM now() - xact_start)), 0)::float8 AS longest
    FROM pg_stat_activity
   WHERE backend_type = 'client backend' AND application_name <> '${APPLICATION}'
   GROUP BY 1`;

export interface BackendsRow {
  state: string;
  count: number;
  longest: number;
}

/** Sessions that are in a transaction, wait for a lock, or hold what another one waits for. */
export const ACTIVITY = `
  WITH sessions AS (
    SELECT *, CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) END AS holders
      FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND application_name <> '${APPLICATION}'
  )
  SELECT pid, coalesce(usename, '') AS "user", coalesce(datname, '') AS database, application_name AS application,
         coalesce(state, '') AS state, left(query, 1000) AS query, coalesce(query_start::text, '') AS "queryStart",
         greatest(extract(epoch FROM now() - query_start), 0)::float8 AS seconds, holders,
         CASE WHEN holders IS NOT NULL THEN (
           SELECT locktype || coalesce(' ' || relation::regclass::text, '')
             FROM pg_locks WHERE pg_locks.pid = sessions.pid AND NOT granted LIMIT 1
         ) END AS what
    FROM sessions
   WHERE state <> 'idle' OR pid IN (SELECT unnest(holders) FROM sessions)
   ORDER BY holders IS NULL, query_start
   LIMIT 100`;

export interface ActivityRow extends Backend {
  holders: number[] | null;
  what: string | null;
}

/** The statements that took the most time since the statistics were reset. */
export const STATEMENTS = `
  SELECT left(query, 500) AS query, calls::float8, mean_exec_time AS mean, total_exec_time AS total, rows::float8
    FROM pg_stat_statements
   ORDER BY total_exec_time DESC
   LIMIT 10`;

/** The log's current file, absolute; null without one. jsonlog is asked for where it exists. */
export function logFiles({ number, logs }: IdentityRow): string {
  if (!logs) return 'SELECT NULL AS jsonlog, NULL AS csvlog';
  const file = (format: string) => `
    (SELECT CASE WHEN file LIKE '/%' THEN file ELSE current_setting('data_directory') || '/' || file END
       FROM pg_current_logfile('${format}') AS file)`;
  return `SELECT ${number >= 150000 ? file('jsonlog') : 'NULL'} AS jsonlog, ${file('csvlog')} AS csvlog`;
}

export interface LogFilesRow {
  jsonlog: string | null;
  csvlog: string | null;
}

/** A query is named by its backend and its beginning: what has begun since then is not meant. */
export const CANCEL = `
  SELECT pg_cancel_backend(pid) AS done FROM pg_stat_activity WHERE pid = $1 AND query_start = $2::timestamptz`;
export const TERMINATE = `
  SELECT pg_terminate_backend(pid) AS done FROM pg_stat_activity WHERE pid = $1 AND query_start = $2::timestamptz`;

export const RESET = `SELECT pg_stat_reset(), pg_stat_statements_reset()`;
