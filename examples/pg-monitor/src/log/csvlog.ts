import { LONGEST_RECORD, type LogParser, type LogRecord } from './record.js';

/** The number of columns of each version: up to 12, 13, from 14 on. */
const COLUMNS = new Set([23, 24, 26]);

/** A record's first column. */
const BEGINNING = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [^,]+,/;

const FIELD = /("(?:[^"]|"")*"|[^,"]*)(,|$)/y;

/**
 * PostgreSQL's csvlog (its manual, "Using CSV-Format Log Output"): quoted fields may hold line ends and doubled quotes, so a
 * record ends with the first line up to which its quotes are even.
 *
 * Not a library for CSV, because a tail may begin within a quoted field, where one would count quotes the wrong way round to
 * the end. Here a record begins with a line that begins with a time.
 */
export class CsvLog implements LogParser {
  malformed = 0;
  /** A line without its end. */
  #rest = '';
  /** The lines of a record, so far. */
  #record: string | null = null;
  #quoted = false;

  push(text: string): LogRecord[] {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop() ?? '';
    const records = lines.flatMap((line) => this.#line(line) ?? []);
    if (this.#rest.length + (this.#record?.length ?? 0) > LONGEST_RECORD) {
      this.malformed++;
      this.#rest = '';
      this.#record = null;
    }
    return records;
  }

  #line(line: string): LogRecord | null {
    if (this.#record === null) {
      if (!BEGINNING.test(line)) {
        this.malformed++;
        return null;
      }
      this.#record = line;
      this.#quoted = false;
    } else {
      this.#record += `\n${line}`;
    }
    if (quotes(line) % 2 === 1) this.#quoted = !this.#quoted;
    if (this.#quoted) return null;
    const record = toRecord(this.#record);
    if (record === null) this.malformed++;
    this.#record = null;
    return record;
  }
}

function quotes(line: string): number {
  let count = 0;
  for (let at = line.indexOf('"'); at !== -1; at = line.indexOf('"', at + 1)) count++;
  return count;
}

function toRecord(line: string): LogRecord | null {
  const fields = split(line);
  if (fields === null || !COLUMNS.has(fields.length)) return null;
  const column = (n: number) => fields[n] ?? '';
  return {
    time: column(0),
    user: column(1),
    database: column(2),
    pid: Number(column(3)),
    severity: column(11),
    state: column(12),
    message: column(13),
    statement: column(19),
    application: column(22),
  };
}

function split(record: string): string[] | null {
  const fields = [];
  FIELD.lastIndex = 0;
  for (;;) {
    const found = FIELD.exec(record);
    if (found === null) return null;
    const field = found[1] ?? '';
    fields.push(field.startsWith('"') ? field.slice(1, -1).replaceAll('""', '"') : field);
    if (found[2] === '') return fields;
  }
}
