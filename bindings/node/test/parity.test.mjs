// The same programs on ssh2 and on trunkline: what they see is the same, or in the guide with the reason.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { DIFFERENT, compare } from './parity/parity.mjs';

/** What trunkline saw, where an error of ssh2's lacks a field that all of ours have. */
function asFull(ours, theirs) {
  if (/^\w+ undefined$/.test(theirs) && typeof ours === 'string') return theirs;
  return Array.isArray(ours) && Array.isArray(theirs) ? ours.map((each, at) => asFull(each, theirs[at])) : ours;
}

test('programs for ssh2 see the same on trunkline', async (t) => {
  const guide = readFileSync(new URL('../../../docs/guide/node.md', import.meta.url), 'utf8');
  await compare(t, (name, both) => t.test(name, { timeout: 30_000 }, async () => {
    const { ssh2, trunkline } = await both();
    const difference = DIFFERENT.get(name);
    if (difference === undefined) return assert.deepEqual(asFull(trunkline, ssh2), ssh2);
    assert.notDeepEqual(trunkline, ssh2, 'it is the same now: the guide need not speak of it');
    assert.ok(guide.includes(difference), `the guide does not speak of ${difference}`);
  }));
});
