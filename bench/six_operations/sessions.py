"""Sessions of one library at once, in a process of its own: sessions.py LIBRARY COUNT TARGET.

TARGET is a ``clients.Target`` as JSON. Prints the seconds of each operation of each session, of all sessions together,
the process's CPU time for them, and the most memory that it has had.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clients import CLIENTS, TOTAL, Steps, Target


def at_once(library: str, target: Target, count: int) -> list[Steps]:
    """Runs so many sessions, which begin together."""
    session, steps = CLIENTS[library], [Steps() for _ in range(count)]
    if inspect.iscoroutinefunction(session):

        async def whole(step: Steps) -> None:
            with step(TOTAL):
                await session(target, step)

        async def together() -> None:
            await asyncio.gather(*map(whole, steps))

        asyncio.run(together())
        return steps

    begin = threading.Barrier(count)

    def one(step: Steps) -> None:
        begin.wait()
        with step(TOTAL):
            session(target, step)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, steps))
    return steps


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def most_memory() -> int:
    """The most bytes that were resident. ``ru_maxrss`` would know of what was there before this program, too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    library, count, target = sys.argv[1], int(sys.argv[2]), Target(**json.loads(sys.argv[3]))
    # The first session of a process imports the library. Of what is warm, all sessions come twice.
    at_once(library, target, count if library.endswith("warm") else 1)
    cpu_before, begun = cpu(), time.perf_counter()
    steps = at_once(library, target, count)
    result = {
        "sessions": [step.seconds for step in steps],
        "wall": time.perf_counter() - begun,
        "cpu": cpu() - cpu_before,
        "memory": most_memory(),
    }
    print(json.dumps(result))


main()
