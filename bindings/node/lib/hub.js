'use strict';

// This environment's end of the native hub: one wake-up fetches everything that has happened, and each target hears its
// own part.

const { AsyncResource } = require('node:async_hooks');
const { isMainThread } = require('node:worker_threads');

const native = require('./native');

/**
 * The events of a target, with their numbers in the native module.
 * @type {Readonly<Record<import('./native').Kind, number>>}
 */
const KIND = Object.freeze(/** @type {any} */ (Object.fromEntries(native.kinds().map((name, number) => [name, number]))));

/**
 * Something with a number that hears events.
 * @typedef {{ _told(kind: number, value: any): void, _owner?: Owner }} Target
 */

/**
 * The client that a target belongs to: hears what handlers throw. What it throws itself is an uncaught exception.
 * @typedef {{ _threw(error: unknown): void }} Owner
 */

/** Targets, and the asynchronous context of whoever made each. @type {Map<number, { target: Target, scope: AsyncResource }>} */
const targets = new Map();

const hub = new native.Hub(wake);

// process.exit runs no clean-up of the native module's. Once, however often this module is loaded anew.
/** @type {any} */ (globalThis)[Symbol.for('trunkline.leaves')] ??= process.once('exit', () => hub.leave(isMainThread));

function wake() {
  const told = hub.drain();
  // V8 counts the memory of the chunks that it is lent, but looks at the count of young ones only when it is asked for memory
  // of its own (Heap::AllocateExternalBackingStore): above 32 MiB it then collects the young generation, in half a millisecond.
  // Without that the first thing to happen is a collection of everything, at 64 MiB, which takes 1 to 14 ms.
  void new ArrayBuffer(1);
  deliver(told);
}

/** The events that were fetched and wait for the program to run: the first of it is at `next`. @type {any[]} */
let waiting = [];
let next = 0;

/**
 * Tells the targets, in order.
 *
 * A program that awaits the opening of something hears of its end only if it runs in between. So where both have come
 * together, what is left is told when everything that the program does of the opening has been done.
 * @param {any[]} told triples of target, kind and value
 */
function deliver(told) {
  if (next < waiting.length) {
    for (const each of told) waiting.push(each);
    return;
  }
  waiting = told;
  next = 0;
  resume();
}

function resume() {
  /** Targets that have come to be, or failed to, in this turn. @type {Set<number>} */
  const fresh = new Set();
  while (next < waiting.length) {
    const number = waiting[next];
    const kind = waiting[next + 1];
    if (fresh.has(number)) {
      setImmediate(resume);
      return;
    }
    const value = waiting[next + 2];
    next += 3;
    const found = targets.get(number);
    if (found === undefined) continue;
    if (kind === KIND.OPEN || kind === KIND.FAIL) fresh.add(number);
    const { target, scope } = found;
    attempt(target._owner, () => scope.runInAsyncScope(target._told, target, kind, value));
  }
  waiting = [];
  next = 0;
}

/**
 * Does something that runs handlers of the program. Their exceptions are the program's, and must not cost other targets
 * their events.
 * @param {Owner | undefined} owner
 * @param {() => void} work
 */
function attempt(owner, work) {
  try {
    work();
  } catch (error) {
    try {
      if (owner === undefined) throw error;
      owner._threw(error);
    } catch (uncaught) {
      process.nextTick(rethrow, uncaught);
    }
  }
}

/** @param {unknown} error */
function rethrow(error) {
  throw error;
}

/**
 * Lets a target hear of a number, in the present asynchronous context: as of Node's own callbacks, what a program keeps in an
 * AsyncLocalStorage is there in its handlers.
 * @param {number} number
 * @param {Target} target
 */
function attach(number, target) {
  targets.set(number, { target, scope: new AsyncResource('TRUNKLINE') });
}

/** @param {number} number */
function detach(number) {
  targets.delete(number);
}

/**
 * Lets one answer be heard, for which the process stays. What is told before it, the target hears too.
 * @param {number} number
 * @param {Owner | undefined} owner
 * @param {(kind: number, value: any) => void} answered
 * @param {(value: any) => void} [step] hears each chunk before the answer
 */
function answer(number, owner, answered, step) {
  retain();
  attach(number, {
    _owner: owner,
    _told(kind, value) {
      if (kind === KIND.DATA) return step?.(value);
      detach(number);
      try {
        answered(kind, value);
      } finally {
        release();
      }
    },
  });
}

// The native wake-up does not keep the event loop alive: a timer does while something is to be told. The longest that a timer
// can wait for, 2^31 - 1 ms.
const LONGEST = 0x7fffffff;
/** @type {NodeJS.Timeout | undefined} */
let keeper;
let reasons = 0;

/** Something is to be told: the process has one more reason to stay. */
function retain() {
  reasons += 1;
  if (reasons === 1) keeper = setInterval(() => {}, LONGEST);
}

/** It has been told. */
function release() {
  reasons -= 1;
  if (reasons === 0) clearInterval(keeper);
}

module.exports = { KIND, hub, answer, attach, attempt, deliver, detach, retain, release };
