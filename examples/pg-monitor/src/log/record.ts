/** A record of PostgreSQL's log, whichever its format. */
export interface LogRecord {
  /** PostgreSQL's own words for the time, with its log_timezone. */
  time: string;
  user: string;
  database: string;
  pid: number;
  severity: string;
  /** SQLSTATE. */
  state: string;
  message: string;
  /** The statement that it is about, where PostgreSQL says so. */
  statement: string;
  application: string;
}

/** Takes a log in as it comes, in pieces of any size, and gives its records out. */
export interface LogParser {
  /** Records that could not be understood, so far. */
  readonly malformed: number;
  push(text: string): LogRecord[];
}

/**
 * The most that may wait for its end. PostgreSQL has no bound for the length of a record; this one keeps a file that is not a log from
 * filling the memory.
 */
export const LONGEST_RECORD = 4 * 1024 * 1024;

const DURATION = /^duration: ([0-9.]+) ms/;

/** The duration of a statement in milliseconds, if the record has it (log_min_duration_statement). */
export function duration(record: LogRecord): number | undefined {
  const found = DURATION.exec(record.message);
  return found?.[1] === undefined ? undefined : Number(found[1]);
}
