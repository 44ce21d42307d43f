import assert from 'node:assert/strict';
import { test } from 'node:test';

import { WriteQueue } from '../src/queue.js';

/** A writer that ends when it is told to. */
class Writer {
  batches: number[][] = [];
  #waiting: ((error?: Error) => void)[] = [];

  write = (batch: number[]): Promise<void> => {
    this.batches.push(batch);
    return new Promise((resolve, reject) => this.#waiting.push((error) => (error ? reject(error) : resolve())));
  };

  /** Ends the write that is going on, and lets the queue go on. */
  async end(error?: Error): Promise<void> {
    const waiting = this.#waiting.shift();
    assert.ok(waiting, 'something is being written');
    waiting(error);
    await new Promise(setImmediate);
  }
}

test('items are written in order, in batches, one at a time', async () => {
  const writer = new Writer();
  const queue = new WriteQueue(writer.write, { limit: 100, batch: 2 });
  queue.push([1]);
  queue.push([2, 3]);
  queue.push([4]);
  assert.deepEqual(writer.batches, [[1]]);
  assert.equal(queue.state.length, 3);
  await writer.end();
  assert.deepEqual(writer.batches, [[1], [2, 3]]);
  await writer.end();
  await writer.end();
  assert.deepEqual(writer.batches, [[1], [2, 3], [4]]);
  assert.deepEqual(queue.state, { length: 0, written: 4, dropped: 0, problem: null });
});

test('a full queue loses its oldest items, and counts them', async () => {
  const writer = new Writer();
  const queue = new WriteQueue(writer.write, { limit: 3, batch: 10 });
  queue.push([1]);
  queue.push([2, 3, 4, 5]);
  assert.deepEqual([queue.state.length, queue.state.dropped], [3, 1]);
  await writer.end();
  await writer.end();
  assert.deepEqual(writer.batches, [[1], [3, 4, 5]]);
});

test('a batch that failed is tried again with the next push, in front of what has come since', async () => {
  const writer = new Writer();
  const queue = new WriteQueue(writer.write, { limit: 10, batch: 2 });
  queue.push([1]);
  queue.push([2]);
  await writer.end(new Error('the disk is full'));
  assert.deepEqual(queue.state, { length: 2, written: 0, dropped: 0, problem: 'the disk is full' });
  queue.push([3]);
  await writer.end();
  await writer.end();
  assert.deepEqual(writer.batches, [[1], [1, 2], [3]]);
  assert.deepEqual(queue.state, { length: 0, written: 3, dropped: 0, problem: null });
});

test('draining waits for everything, and gives up after one more failure', async () => {
  const writer = new Writer();
  const queue = new WriteQueue(writer.write, { limit: 10, batch: 1 });
  queue.push([1, 2]);
  const drained = queue.drain();
  await writer.end();
  await writer.end(new Error('gone'));
  await writer.end(new Error('gone'));
  await drained;
  assert.equal(queue.state.length, 1);
});
