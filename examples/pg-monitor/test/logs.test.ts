import assert from 'node:assert/strict';
import { test } from 'node:test';

import { CsvLog } from '../src/log/csvlog.js';
import { JsonLog } from '../src/log/jsonlog.js';
import { duration, LONGEST_RECORD, type LogParser, type LogRecord } from '../src/log/record.js';
import { Statements } from '../src/log/statements.js';

/** A record of PostgreSQL 15's csvlog: 26 columns. */
function csv(message: string, statement = ''): string {
  return (
    '2026-11-21 20:15:01.123 UTC,"app","shop",4711,"127.0.0.1:50412",6921.1267,3,"UPDATE",2026-11-21 20:14:59 UTC,4/12,731,' +
    `ERROR,40P01,${quoted(message)},,,,,,${quoted(statement)},,,"checkout","client backend",,0\n`
  );
}

function quoted(text: string): string {
  return text === '' ? '' : `"${text.replaceAll('"', '""')}"`;
}

const MESSAGE = 'deadlock "detected"\nin two lines, with a comma\nand "quotes"';
const STATEMENT = 'UPDATE "accounts"\n   SET note = \'a, b\'\n WHERE id = 1 -- "';

/** Feeds a text in pieces of a size. */
function inPieces(parser: LogParser, text: string, size: number): LogRecord[] {
  const records: LogRecord[] = [];
  for (let at = 0; at < text.length; at += size) records.push(...parser.push(text.slice(at, at + size)));
  return records;
}

test('csvlog: quotes, commas and line ends within a field, in pieces of any size', () => {
  const text = csv('first') + csv(MESSAGE, STATEMENT) + csv('last');
  for (const size of [1, 2, 7, 64, text.length]) {
    const parser = new CsvLog();
    const records = inPieces(parser, text, size);
    assert.deepEqual(records.map(({ message }) => message), ['first', MESSAGE, 'last']);
    assert.equal(parser.malformed, 0);
    assert.deepEqual(records[1], {
      time: '2026-11-21 20:15:01.123 UTC',
      user: 'app',
      database: 'shop',
      pid: 4711,
      severity: 'ERROR',
      state: '40P01',
      message: MESSAGE,
      statement: STATEMENT,
      application: 'checkout',
    });
  }
});

test('csvlog: a tail that begins within a quoted field finds the next record', () => {
  const whole = csv(MESSAGE, STATEMENT);
  for (let cut = 1; cut < whole.length; cut++) {
    const parser = new CsvLog();
    const messages = parser.push(whole.slice(cut) + csv('next') + csv(MESSAGE)).map(({ message }) => message);
    assert.deepEqual(messages.slice(-2), ['next', MESSAGE], `cut at ${cut}`);
  }
});

test('csvlog: the columns of PostgreSQL 12 and 13', () => {
  const columns = csv('hello').trimEnd().split(',');
  for (const count of [23, 24]) {
    const parser = new CsvLog();
    const [record] = parser.push(`${columns.slice(0, count).join(',')}\n`);
    assert.equal(record?.message, 'hello');
    assert.equal(record.application, 'checkout');
  }
});

test('csvlog: what is not a record is counted, and does not fill the memory', () => {
  const parser = new CsvLog();
  assert.deepEqual(parser.push('PANIC? no\n2026-11-21 20:15:01.123 UTC,"a"b\n2026-11-21 20:15:01.123 UTC,only,three\n'), []);
  assert.equal(parser.malformed, 3);
  parser.push(`2026-11-21 20:15:01.123 UTC,"${'x'.repeat(LONGEST_RECORD)}`);
  assert.equal(parser.malformed, 4);
  assert.deepEqual(parser.push(`\n${csv('after')}`).map(({ message }) => message), ['after']);
});

test('jsonlog: escaped line ends, absent keys, in pieces of any size', () => {
  const first = { timestamp: '2026-11-21 20:15:01.123 UTC', pid: 12, error_severity: 'LOG', message: 'checkpoint starting: time' };
  const second = {
    ...first,
    user: 'app',
    dbname: 'shop',
    error_severity: 'ERROR',
    state_code: '40P01',
    message: MESSAGE,
    statement: STATEMENT,
    application_name: 'checkout',
  };
  const text = `${JSON.stringify(first)}\n${JSON.stringify(second)}\n`;
  for (const size of [1, 3, text.length]) {
    const parser = new JsonLog();
    const records = inPieces(parser, text, size);
    assert.equal(parser.malformed, 0);
    assert.deepEqual(records.map(({ message }) => message), [first.message, MESSAGE]);
    assert.equal(records[0]?.user, '');
    assert.equal(records[1]?.statement, STATEMENT);
    assert.equal(records[1].state, '40P01');
  }
});

test('jsonlog: what is not a record is counted, and does not fill the memory', () => {
  const parser = new JsonLog();
  const good = '{"error_severity":"LOG","message":"ready"}';
  const records = parser.push(`half of a line"}\n{"message":"of another program"}\nnull\n[]\n${good}\n`);
  assert.deepEqual(records.map(({ message }) => message), ['ready']);
  assert.equal(parser.malformed, 4);
  parser.push('x'.repeat(LONGEST_RECORD + 1));
  assert.equal(parser.malformed, 5);
  // The rest of the line that was given up is not a record either.
  assert.deepEqual(parser.push(`end\n${good}\n`).map(({ message }) => message), ['ready']);
});

test('a statement\'s duration is told by its message', () => {
  const [slow, other] = new CsvLog().push(csv('duration: 1234.567 ms  statement: SELECT 1') + csv('it took a duration: 5 ms'));
  assert.equal(slow && duration(slow), 1234.567);
  assert.equal(other && duration(other), undefined);
});

test('a duration that PostgreSQL logs alone is put to the statement that its backend began', () => {
  const statements = new Statements();
  const told = (pid: number, message: string) => statements.message({ pid, message } as LogRecord);
  told(1, 'statement: UPDATE a SET b = 1');
  told(2, 'execute s1: UPDATE c SET d = 2');
  assert.equal(told(1, 'duration: 110.5 ms'), 'duration: 110.5 ms  statement: UPDATE a SET b = 1');
  assert.equal(told(2, 'duration: 3.2 ms'), 'duration: 3.2 ms  execute s1: UPDATE c SET d = 2');
  assert.equal(told(3, 'duration: 4.5 ms'), 'duration: 4.5 ms');
  assert.equal(told(1, 'duration: 5.0 ms  statement: END;'), 'duration: 5.0 ms  statement: END;');
  // Only so many backends are remembered.
  for (let pid = 10; pid < 1_010; pid++) told(pid, 'statement: DELETE FROM e');
  assert.equal(told(1, 'duration: 6.0 ms'), 'duration: 6.0 ms');
});
