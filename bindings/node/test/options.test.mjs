// One list of options: what the types offer, what lib looks at, and what the native module takes have the same names.

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import ts from 'typescript';

const require = createRequire(import.meta.url);
const { connectOptions, destinationOptions } = require('../lib/options.js');
const { sessionOptions } = require('../lib/client.js');

const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8');
const sources = (directory, ending) => readdirSync(new URL(directory, import.meta.url))
  .filter((name) => name.endsWith(ending)).map((name) => read(`${directory}${name}`)).join('\n');

/** The interfaces of a file of types: their fields, and whether each may be missing. */
function interfaces(path) {
  const found = new Map();
  ts.forEachChild(ts.createSourceFile(path, read(path), ts.ScriptTarget.Latest), (node) => {
    if (!ts.isInterfaceDeclaration(node)) return;
    const fields = node.members.filter(ts.isPropertySignature);
    found.set(node.name.text, new Map(fields.map((field) => [field.name.text, field.questionToken !== undefined])));
  });
  return found;
}

/** The objects that the native module takes, by the Rust structs that they become. */
function objects() {
  const found = new Map();
  for (const [, name, body] of sources('../src/', '.rs').matchAll(/#\[napi\(object\)\][^{]*?pub struct (\w+) \{(.*?)\n\}/gs)) {
    const fields = [...body.matchAll(/^ {4}pub (\w+): (Option<)?/gm)];
    const camel = (field) => field.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
    found.set(name, new Map(fields.map(([, field, optional]) => [camel(field), optional !== undefined])));
  }
  return found;
}

const sorted = (fields) => [...fields].sort(([one], [other]) => (one < other ? -1 : 1));

test('what the native module takes is what its types say', () => {
  const types = interfaces('../lib/native.d.ts');
  const taken = objects();
  assert.ok(taken.size >= 9, [...taken.keys()].join());
  for (const [name, fields] of taken) assert.deepEqual(sorted(types.get(name) ?? []), sorted(fields), name);
});

test('what lib gives the native module is all that it takes', () => {
  const taken = objects();
  const names = (given) => Object.keys(given).sort();
  const { options } = connectOptions({ host: 'a', username: 'b' }, false);
  assert.deepEqual(names(options), [...taken.get('ConnectOptions').keys()].sort());
  assert.deepEqual(names(destinationOptions({ destination: 'a' })), [...taken.get('DestinationOptions').keys()].sort());
  assert.deepEqual(names(sessionOptions('exec', 'true', {})), [...taken.get('SessionOptions').keys()].sort());
});

/** The properties that a file of lib reads: of which object, if that has a name, and called what. */
function reads(path) {
  const found = [];
  const visit = (node) => {
    if (ts.isPropertyAccessExpression(node)) found.push([ts.isIdentifier(node.expression) ? node.expression.text : '', node.name.text]);
    if (ts.isBindingElement(node)) found.push(['', (node.propertyName ?? node.name).getText()]);
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(path, read(path), ts.ScriptTarget.Latest, true));
  return found;
}

test('every option of the types is looked at, or the guide says that it is not; lib looks at no other', () => {
  const offered = (path, name) => [...interfaces(path).get(name).keys()];
  const ssh2 = new URL('index.d.ts', pathToFileURL(require.resolve('ssh2-types/package.json'))).href;
  const options = [ssh2, '../lib/ssh2.d.ts'].flatMap((path) => offered(path, 'ConnectConfig'))
    .concat(offered('../lib/index.d.ts', 'DestinationConfig'));
  const files = ['options', 'authentication', 'client', 'errors', 'keys/agent'].flatMap((name) => reads(`../lib/${name}.js`));
  const looked = new Set(files.map(([, name]) => name));
  const guide = read('../../../docs/guide/node.md');
  assert.deepEqual(options.filter((name) => !looked.has(name) && !guide.includes(`\`${name}\``)), []);
  const ofConfig = files.filter(([object]) => object === 'config').map(([, name]) => name);
  assert.ok(ofConfig.length > 20);
  assert.deepEqual(ofConfig.filter((name) => !options.includes(name)), []);
});
