import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';

import { configure } from '../lib/index.mjs';
import { all, ask, client, ending } from './testbed.mjs';

test('settings come before the first connection, and not later', () => {
  configure({ busyAbove: 2_000_000, busyBelow: 1_000_000, maxLanes: 4 });
  assert.throws(() => configure({ busyAbove: 1 }), /before the first connection/);
});

test('above the upper limit new streams take another connection, below the lower one they come back', async (t) => {
  const { client: ssh } = await client(t, { connections: 2 });
  const from = async () => (await all(await ask(ssh, 'exec', 'echo $SSH_CONNECTION'))).toString();
  const first = await from();
  assert.equal(await from(), first);
  const bulk = await ask(ssh, 'exec', 'cat /dev/zero');
  bulk.resume();
  const [away] = await once(ssh, 'placement');
  assert.equal(away.apart, true);
  const busy = away.lanes.find((lane) => lane.busy);
  assert.ok(busy.rate > 2_000_000, `${busy.rate} bit/s`);
  const second = await from();
  assert.notEqual(second, first);
  const { lanes } = await new Promise((resolve, reject) => {
    ssh.stats((error, stats) => (error ? reject(error) : resolve(stats)));
  });
  assert.deepEqual(lanes.map((lane) => lane.busy), [true, false]);
  const closed = ending(bulk);
  bulk.close();
  await closed;
  const [back] = await once(ssh, 'placement');
  assert.equal(back.apart, false);
  assert.equal(await from(), first);
});

test('a client has one connection, on which the server may refuse a session', async (t) => {
  const { client: ssh } = await client(t, {}, '--config', 'MaxSessions 2');
  const running = [await ask(ssh, 'exec', 'cat'), await ask(ssh, 'exec', 'cat')];
  for (const [method, ...args] of [['exec', 'true'], ['shell'], ['sftp']]) {
    await assert.rejects(ask(ssh, method, ...args), {
      message: '(SSH) Channel open failure: open failed',
      reason: 2,
      execution: 'did not start',
    }, method);
  }
  const closed = ending(running[0].resume());
  running[0].end();
  await closed;
  assert.equal((await all(await ask(ssh, 'exec', 'echo again'))).toString(), 'again\n');
  assert.equal(ssh.lanes().length, 1);
});
