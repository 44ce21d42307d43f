// What an agent of the program's may be told by who is not its friend.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';

import * as trunkline from '../lib/index.mjs';
import original from '../lib/index.js';

const { AgentProtocol } = trunkline;

for (const [what, isClient, bytes] of [
  ['an answer that nobody asked for', true, [0, 0, 0, 1, 6]],
  ['a message without a type', false, [0, 0, 0, 0]],
  ['a message of 4 GiB', false, [255, 255, 255, 255, 11]],
]) {
  test(`${what} ends the connection to the agent`, async () => {
    const end = new AgentProtocol(isClient);
    const failed = once(end, 'error');
    end.write(Buffer.from(bytes));
    await failed;
    assert.ok(end.destroyed);
  });
}

for (const [what, bytes] of [
  ['of another kind', [0, 0, 0, 1, 14]],
  ['with a count that it does not hold', [0, 0, 0, 5, 12, 255, 255, 255, 255]],
  ['that is cut off', [0, 0, 0, 9, 12, 0, 0, 0, 1, 0, 0, 0, 200]],
]) {
  test(`an answer ${what} is an error of who asked`, async () => {
    const asking = new AgentProtocol(true);
    asking.on('error', () => {});
    const answer = new Promise((resolve) => asking.getIdentities(resolve));
    asking.write(Buffer.from(bytes));
    assert.ok((await answer) instanceof Error);
  });
}

test('a request that is cut off is refused', async () => {
  const answering = new AgentProtocol(false);
  answering.on('sign', () => assert.fail('it is none'));
  answering.write(Buffer.from([0, 0, 0, 5, 13, 0, 0, 0, 200]));
  const [reply] = await once(answering, 'data');
  assert.deepEqual([...reply], [0, 0, 0, 1, 5]);
});

test('a module has the same names, however it is imported', () => {
  const names = Object.keys(trunkline).filter((name) => name !== 'default').sort();
  assert.deepEqual(names, Object.keys(original).sort());
});
