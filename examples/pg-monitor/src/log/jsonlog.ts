import { LONGEST_RECORD, type LogParser, type LogRecord } from './record.js';

/** PostgreSQL's jsonlog (15 and later): an object a line; keys without a value are left out. */
export class JsonLog implements LogParser {
  malformed = 0;
  #rest = '';

  push(text: string): LogRecord[] {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop() ?? '';
    if (this.#rest.length > LONGEST_RECORD) {
      this.malformed++;
      this.#rest = '';
    }
    return lines.flatMap((line) => {
      const record = toRecord(line);
      if (record === null) this.malformed++;
      return record ?? [];
    });
  }
}

function toRecord(line: string): LogRecord | null {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return null;
  }
  if (typeof value !== 'object' || value === null || !('error_severity' in value)) return null;
  const keys = value as Record<string, unknown>;
  const text = (key: string) => (typeof keys[key] === 'string' ? keys[key] : '');
  return {
    time: text('timestamp'),
    user: text('user'),
    database: text('dbname'),
    pid: Number(keys['pid'] ?? 0),
    severity: text('error_severity'),
    state: text('state_code'),
    message: text('message'),
    statement: text('statement'),
    application: text('application_name'),
  };
}
