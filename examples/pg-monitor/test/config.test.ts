import assert from 'node:assert/strict';
import { test } from 'node:test';

import { parseConfig } from '../src/config.js';

test('a list of names is enough; defaults and paths are filled in', () => {
  const config = parseConfig(
    {
      sockets: 'sockets',
      workers: 8,
      defaults: { ssh: { username: 'postgres', keyFile: 'key' }, instance: { user: 'watch' } },
      hosts: ['db1', { name: 'db2', ssh: { host: '10.0.0.2', keyFile: '/etc/key' }, instances: [{ port: 5432 }, { port: 5433 }] }],
    },
    '/etc/pg-monitor',
  );
  assert.equal(config.workers, 2);
  assert.equal(config.sockets, '/etc/pg-monitor/sockets');
  assert.deepEqual(config.hosts[0], {
    name: 'db1',
    ssh: { username: 'postgres', keyFile: '/etc/pg-monitor/key' },
    instances: [{ address: '127.0.0.1', port: 5432, user: 'watch', database: 'postgres' }],
  });
  assert.deepEqual(config.hosts[1]?.ssh, { host: '10.0.0.2', username: 'postgres', keyFile: '/etc/key' });
  assert.deepEqual(config.hosts[1].instances.map(({ port }) => port), [5432, 5433]);
});

test('mistakes are named', () => {
  assert.throws(() => parseConfig({ hosts: [] }, '/'), /hosts/);
  assert.throws(() => parseConfig({ hosts: ['a', 'a'] }, '/'), /two hosts are called a/);
  assert.throws(() => parseConfig({ hosts: ['a'], intervall: 3 }, '/'), /intervall/);
  assert.throws(() => parseConfig({ hosts: [{ name: 'a', instances: [{ port: 70_000 }] }] }, '/'), /70000|65535/);
});
