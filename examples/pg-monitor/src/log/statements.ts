import type { LogRecord } from './record.js';

/** Backends that are remembered: those that began a statement last. */
const BACKENDS = 1_000;
/** Characters of a statement that are remembered. */
const LONGEST = 2_000;

const BEGINS = /^(?:statement|execute [^:]*): /;
const ENDS = /^duration: [0-9.]+ ms$/;

/**
 * The statements that backends began. Where log_statement has PostgreSQL log one at its beginning, the record of its end
 * (log_min_duration_statement) has the duration only.
 */
export class Statements {
  readonly #last = new Map<number, string>();

  /** A record's message, with the statement that it is about. */
  message({ message, pid }: LogRecord): string {
    if (BEGINS.test(message)) {
      this.#last.delete(pid);
      this.#last.set(pid, message.slice(0, LONGEST));
      if (this.#last.size > BACKENDS) this.#last.delete(this.#last.keys().next().value ?? pid);
    }
    const begun = this.#last.get(pid);
    return begun !== undefined && ENDS.test(message) ? `${message}  ${begun}` : message;
  }
}
