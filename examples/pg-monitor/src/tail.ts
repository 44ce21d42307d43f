// A log, as it grows.

import { once } from 'node:events';
import { StringDecoder } from 'node:string_decoder';

import type { Connection } from 'trunkline';

import { CsvLog } from './log/csvlog.js';
import { JsonLog } from './log/jsonlog.js';
import type { LogParser, LogRecord } from './log/record.js';
import type { LogState } from './messages.js';

/**
 * Follows one file over any number of connections. After a lost connection it continues with the byte behind the last that
 * came, so that nothing is missing and nothing comes twice.
 */
export class Tail {
  lines = 0;
  bytes = 0;
  #parser: LogParser;
  #decoder = new StringDecoder('utf8');

  constructor(
    readonly file: string,
    readonly format: LogState['format'],
    /** The place where it continues; null for the file's end. */
    private offset: number | null,
    private readonly take: (records: LogRecord[]) => void,
  ) {
    this.#parser = format === 'jsonlog' ? new JsonLog() : new CsvLog();
  }

  get malformed(): number {
    return this.#parser.malformed;
  }

  /** Follows it until the stream ends, the connection is lost or the signal comes. Only a lost connection is no error. */
  async follow(connection: Connection, signal: AbortSignal): Promise<void> {
    const stream = connection.stream(this.#command());
    const close = () => stream.close();
    signal.addEventListener('abort', close, { once: true });
    let complaint = '';
    stream.stderr.setEncoding('utf8').on('data', (text: string) => (complaint = (complaint + text).slice(-500)));
    try {
      let head: Buffer | null = Buffer.alloc(0);
      for await (const chunk of stream as AsyncIterable<Buffer>) {
        let data = chunk;
        if (head !== null) {
          // The first line says where the rest begins.
          head = Buffer.concat([head, chunk]);
          const end = head.indexOf('\n');
          if (end === -1) continue;
          const from = Number(head.subarray(0, end).toString());
          if (from !== this.offset) this.#decoder = new StringDecoder('utf8');
          this.offset = from;
          data = head.subarray(end + 1);
          head = null;
        }
        this.#received(data);
      }
      if (!signal.aborted) {
        if (stream.exitCode === undefined) await once(stream, 'close');
        throw new Error(`${this.file}: tail ended (${String(stream.exitCode ?? stream.exitSignal)}) ${complaint.trim()}`);
      }
    } catch (error) {
      // Being closed is what the signal is for.
      if (!signal.aborted) throw error;
    } finally {
      signal.removeEventListener('abort', close);
    }
  }

  #received(data: Buffer): void {
    this.offset = (this.offset ?? 0) + data.length;
    this.bytes += data.length;
    const records = this.#parser.push(this.#decoder.write(data));
    this.lines += records.length;
    if (records.length > 0) this.take(records);
  }

  /**
   * Prints the offset it begins at, and then the file from there on. A file that is shorter than it was is another one, and
   * is read from its beginning.
   */
  #command(): string {
    const script =
      'size=$(stat -Lc %s -- "$1") || exit; from=${2:-$size}; [ "$from" -le "$size" ] || from=0; ' +
      'echo "$from"; exec tail -c "+$((from + 1))" -f -- "$1"';
    return `exec sh -c ${quoted(script)} sh ${quoted(this.file)} ${this.offset ?? ''}`;
  }
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
