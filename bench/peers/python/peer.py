"""trunkline.aio as a program: peer.py TASK ADDRESS USER KEY KNOWN_HOSTS COUNT, with the tasks `warm` and `together` that
bench/README.md describes for all peers."""

from __future__ import annotations

import asyncio
import sys
import time

from trunkline import aio

AT_ONCE = 100


async def main() -> None:
    task, address, user, key, known_hosts, count = sys.argv[1:]
    host, _, port = address.rpartition(":")
    options = {"BatchMode": "yes", "GlobalKnownHostsFile": "/dev/null", "Ciphers": "aes128-gcm@openssh.com"}
    reached = aio.connect(
        host,
        config="none",
        user=user,
        port=int(port),
        identity=key,
        agent=False,
        known_hosts=known_hosts,
        options={**options, "IdentitiesOnly": "yes"},
        daemon=False,
    )
    async with reached as connection:
        work = {"warm": one, "together": together}[task]
        for number in range(-(int(count) // 10 + 1), int(count)):
            begun = time.perf_counter_ns()
            await work(connection)
            if number >= 0:
                print(time.perf_counter_ns() - begun)


async def one(connection: aio.Connection) -> None:
    await connection.run("true", check=True)


async def together(connection: aio.Connection) -> None:
    await asyncio.gather(*(one(connection) for _ in range(AT_ONCE)))


asyncio.run(main())
