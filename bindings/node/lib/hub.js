'use strict';

// This environment's end of the native hub: one wake-up fetches everything that has happened, and each target hears its
// own part.

const native = require('./native');

/** What happens to a target. The numbers are those of `Kind` in src/outbox.rs. */
const KIND = Object.freeze({
  DATA: 0,
  ERROR_DATA: 1,
  END: 2,
  ERROR_END: 3,
  DRAIN: 4,
  OPEN: 5,
  FAIL: 6,
  EXIT: 7,
  CLOSE: 8,
  NOTICE: 9,
  HOST_KEY: 10,
  QUESTIONS: 11,
  INCOMING: 12,
  PLACEMENT: 13,
});

/**
 * Something with a number that hears events.
 * @typedef {{ _told(kind: number, value: any): void }} Target
 */

/** @type {Map<number, Target>} */
const targets = new Map();

const hub = new native.Hub(wake);

function wake() {
  const told = hub.drain();
  // V8 counts the memory of the chunks that it is lent, but looks at the count of young ones only when it is asked for memory
  // of its own (Heap::AllocateExternalBackingStore): above 32 MiB it then collects the young generation, in half a millisecond.
  // Without that the first thing to happen is a collection of everything, at 64 MiB, which takes 1 to 14 ms.
  void new ArrayBuffer(1);
  for (let at = 0; at < told.length; at += 3) {
    const target = targets.get(/** @type {number} */ (told[at]));
    if (target === undefined) continue;
    try {
      target._told(/** @type {number} */ (told[at + 1]), told[at + 2]);
    } catch (error) {
      // A handler's exception is the program's, and must not cost the other targets their events.
      process.nextTick(rethrow, error);
    }
  }
}

/** @param {unknown} error */
function rethrow(error) {
  throw error;
}

/**
 * Lets a target hear of a number.
 * @param {number} number
 * @param {Target} target
 */
function attach(number, target) {
  targets.set(number, target);
}

/** @param {number} number */
function detach(number) {
  targets.delete(number);
}

// The native wake-up does not keep the event loop alive: a timer does while there are clients. The longest that a timer can
// wait for, 2^31 - 1 ms.
const LONGEST = 0x7fffffff;
/** @type {NodeJS.Timeout | undefined} */
let keeper;
let clients = 0;

/** A client is there: the process has a reason to stay. */
function retain() {
  clients += 1;
  if (clients === 1) keeper = setInterval(() => {}, LONGEST);
}

/** A client has ended. */
function release() {
  clients -= 1;
  if (clients === 0) clearInterval(keeper);
}

module.exports = { KIND, hub, attach, detach, retain, release };
