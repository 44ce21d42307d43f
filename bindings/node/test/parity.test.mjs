// The same programs on ssh2 and on trunkline: what they see is the same, or in the guide with the reason.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { test } from 'node:test';

import { DIFFERENT, compare } from './parity/parity.mjs';
import { userKey } from './ssh2-server.mjs';

/** trunkline's results, without the fields that an error of ssh2's lacks. */
function asFull(ours, theirs) {
  if (/^\w+ undefined$/.test(theirs) && typeof ours === 'string') return theirs;
  return Array.isArray(ours) && Array.isArray(theirs) ? ours.map((each, at) => asFull(each, theirs[at])) : ours;
}

/** The parts of ssh2's SFTP class that belong to its server. */
const SERVERS = ['attrs', 'data', 'handle', 'name', 'push', 'status'];

const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8');

test('each method, event and option of ssh2\'s documentation is in a program or in the guide', () => {
  const require = createRequire(import.meta.url);
  const readme = read('../node_modules/ssh2-original/README.md');
  const text = readme.slice(readme.indexOf('### Client\n'), readme.indexOf('### Server\n')) + readme.slice(readme.indexOf('### Utilities\n'));
  const documented = [...text.matchAll(/^ {0,4}\* \*\*([\w ]+)\*\*/gm)].map(([, name]) => name);
  assert.ok(documented.length > 80);
  const key = require('ssh2-original').utils.parseKey(userKey.public);
  const methods = [
    require('ssh2-original').Client.prototype, require('ssh2-original/lib/Channel.js').Channel.prototype,
    require('ssh2-original/lib/protocol/SFTP.js').SFTP.prototype, Object.getPrototypeOf(key), key,
  ].flatMap((kind) => Object.getOwnPropertyNames(kind)).filter((name) => !name.startsWith('_') && name !== 'constructor');
  const [guide, programs] = [read('../../../docs/guide/node.md'), read('./parity/programs.mjs')];
  const untold = [...documented, ...methods].filter((name) =>
    !SERVERS.includes(name) && !new RegExp(`\\b${name}\\b`).test(programs) && !guide.includes(`\`${name}\``));
  assert.deepEqual(untold, []);
});

test('everything that ssh2 exports is there, with the same values, but for its server', () => {
  const require = createRequire(import.meta.url);
  const missing = [];
  const look = (theirs, ours, path) => {
    for (const name of Object.getOwnPropertyNames(theirs)) {
      if (['length', 'name', 'prototype'].includes(name)) continue;
      const [value, at] = [theirs[name], `${path}.${name}`];
      if (!(name in Object(ours)) || typeof ours[name] !== typeof value) missing.push(at);
      else if (value !== null && typeof value === 'object') look(value, ours[name], at);
      else if (typeof value === 'function' && path === 'ssh2') look(value.prototype ?? {}, ours[name].prototype ?? {}, at);
      else if (typeof value !== 'function' && ours[name] !== value) missing.push(at);
    }
  };
  look(require('ssh2-original'), require('../lib/index.js'), 'ssh2');
  assert.deepEqual(missing.filter((name) => !name.startsWith('ssh2.Server.')), []);
});

test('programs for ssh2 see the same on trunkline', async (t) => {
  const guide = read('../../../docs/guide/node.md');
  await compare(t, (name, both) => t.test(name, { timeout: 200_000 }, async () => {
    const { ssh2, trunkline } = await both();
    const difference = DIFFERENT.get(name);
    if (difference === undefined) return assert.deepEqual(asFull(trunkline, ssh2), ssh2);
    assert.notDeepEqual(trunkline, ssh2, 'it is the same now: the guide need not speak of it');
    assert.ok(guide.includes(difference), `the guide does not speak of ${difference}`);
  }));
});
