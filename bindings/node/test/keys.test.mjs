// Keys behind a passphrase, which the engine's threads open, and what the native module says of itself.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const require = createRequire(import.meta.url);
const { KIND } = require('../lib/hub.js');
const { isSealed, openSealed, parseKey } = require('../lib/keys/keys.js');

/** The same key in every format that has a passphrase, and without one. */
function keys(t) {
  const directory = mkdtempSync(join(tmpdir(), 'trunkline-keys-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const pem = (options) => String(privateKey.export({ format: 'pem', passphrase: 'secret', ...options }));
  const openssh = join(directory, 'key');
  execFileSync('ssh-keygen', ['-q', '-t', 'rsa', '-b', '2048', '-N', 'secret', '-f', openssh]);
  return {
    plain: String(privateKey.export({ type: 'pkcs8', format: 'pem' })),
    sealed: {
      'PKCS#8': pem({ type: 'pkcs8', cipher: 'aes-256-cbc' }),
      'PKCS#8 with a cipher that only OpenSSL reads': pem({ type: 'pkcs8', cipher: 'des-ede3-cbc' }),
    },
    old: {
      'PEM': pem({ type: 'pkcs1', cipher: 'aes-128-cbc' }),
      'PEM with a cipher that only OpenSSL reads': pem({ type: 'pkcs1', cipher: 'des-ede3-cbc' }),
    },
    openssh: readFileSync(openssh, 'utf8'),
  };
}

test('a key behind a passphrase is opened on the engine’s threads, but for old PEM, which takes no time', async (t) => {
  const { plain, sealed, old, openssh } = keys(t);
  const wanted = parseKey(plain).getPrivatePEM();
  for (const [format, text] of Object.entries(sealed)) {
    assert.equal(isSealed(text, 'secret'), true, format);
    const opened = await openSealed(text, 'secret');
    assert.equal(opened.getPrivatePEM(), wanted, format);
    const refused = await openSealed(text, 'wrong');
    assert.match(refused.message, /passphrase/, format);
  }
  for (const [format, text] of Object.entries(old)) {
    assert.equal(isSealed(text, 'secret'), false, format);
    assert.equal(parseKey(text, 'secret').getPrivatePEM(), wanted, format);
    assert.match(parseKey(text, 'wrong').message, /passphrase/, format);
  }
  assert.equal(isSealed(openssh, 'secret'), true);
  assert.equal((await openSealed(openssh, 'secret')).getPrivatePEM(), parseKey(openssh, 'secret').getPrivatePEM());
  assert.equal(isSealed(plain, 'secret'), false);
});

test('every kind of event that the JavaScript knows is one of the native module’s', () => {
  const directory = new URL('../lib/', import.meta.url);
  const used = readdirSync(directory, { recursive: true })
    .filter((name) => name.endsWith('.js'))
    .flatMap((name) => [...readFileSync(new URL(name, directory), 'utf8').matchAll(/\bKIND\.(\w+)/g)].map(([, kind]) => kind));
  assert.deepEqual([...new Set(used)].sort(), Object.keys(KIND).sort());
});

test('a key of a type that is not read is an error in words', () => {
  const key = readFileSync(new URL('../node_modules/ssh2-original/test/fixtures/keyParser/openssh_new_dsa', import.meta.url));
  assert.equal(parseKey(key).message, 'Unsupported key type: ssh-dss');
});
