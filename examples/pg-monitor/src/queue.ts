/** The state of a queue. */
export interface QueueState {
  /** The number of waiting items. */
  length: number;
  written: number;
  /** Left out because the queue was full. */
  dropped: number;
  /** The reason why the last attempt to write failed; null after one that succeeded. */
  problem: string | null;
}

/**
 * The items to write, in batches, one after the other. Whoever pushes never waits: a writer that is too slow makes the
 * queue grow up to its limit, and then the oldest go.
 *
 * A batch that could not be written stays, and is tried again with the next push.
 */
export class WriteQueue<Item> {
  #items: Item[] = [];
  #writing: Promise<void> | null = null;
  #written = 0;
  #dropped = 0;
  #problem: string | null = null;

  constructor(
    private readonly write: (batch: Item[]) => Promise<void>,
    private readonly bounds: { limit: number; batch: number },
  ) {}

  get state(): QueueState {
    return { length: this.#items.length, written: this.#written, dropped: this.#dropped, problem: this.#problem };
  }

  push(items: Item[]): void {
    this.#items.push(...items);
    this.#shorten();
    this.#writing ??= this.#run();
  }

  /** Waits until everything has been written, or one more attempt has failed. */
  async drain(): Promise<void> {
    while (this.#writing !== null) await this.#writing;
    if (this.#items.length > 0) await (this.#writing = this.#run());
  }

  async #run(): Promise<void> {
    try {
      while (this.#items.length > 0) {
        // Taken out while it is written, so that what the limit takes away is never half of it.
        const batch = this.#items.splice(0, this.bounds.batch);
        try {
          await this.write(batch);
        } catch (error) {
          this.#items.unshift(...batch);
          this.#shorten();
          throw error;
        }
        this.#written += batch.length;
        this.#problem = null;
      }
    } catch (error) {
      this.#problem = error instanceof Error ? error.message : String(error);
    } finally {
      this.#writing = null;
    }
  }

  #shorten(): void {
    const surplus = this.#items.length - this.bounds.limit;
    if (surplus <= 0) return;
    this.#items.splice(0, surplus);
    this.#dropped += surplus;
  }
}
