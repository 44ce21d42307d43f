"""Work under way when a connection or the daemon is lost: each in a process of its own, which ends and says how."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Testbed

#: Operations that do not end by themselves, on ``box`` and ``directory``.
OPERATIONS = {
    "run": "box.run('sleep 1000')",
    "run, with output": "box.run('while echo line; do echo line >&2; sleep 0.02; done')",
    "run, with input": "box.run('sleep 1000', input=bytes(8_000_000))",
    "lines": "[None for line in box.start('while echo line; do sleep 0.02; done').stdout]",
    "wait": "box.start('sleep 1000').wait()",
    "input": "[box.start('sleep 1000', encoding=None).stdin.write(bytes(8_000_000)) for turn in range(2)]",
    "sftp, a read": "box.sftp().read_bytes(f'{directory}/fifo')",
    "sftp, a file": "every(box.sftp().open('/dev/zero', 'rb'))",
}
ASYNC_OPERATIONS = {
    "run": "await box.run('sleep 1000')",
    "run, with output": "await box.run('while echo line; do echo line >&2; sleep 0.02; done')",
    "run, with input": "await box.run('sleep 1000', input=bytes(8_000_000))",
    "lines": "[None async for line in (await box.start('while echo line; do sleep 0.02; done')).stdout]",
    "wait": "await (await box.start('sleep 1000')).wait()",
    "sftp, a read": "await (await box.sftp()).read_bytes(f'{directory}/fifo')",
}
PROGRAM = """
import sys, threading, trunkline
directory, config, daemon = sys.argv[1], sys.argv[2], sys.argv[3] == "daemon"
def every(file):
    while file.read(65536): pass
begun = threading.Event()
def operate():
    begun.set()
    try:
        OPERATION
    except trunkline.Error as error:
        print(type(error).__name__, flush=True)
    except BrokenPipeError as error:
        print(type(error.__cause__).__name__, flush=True)
box = trunkline.connect("box1", config=config, daemon=daemon)
server = box.run("echo $PPID").stdout.strip()
operation = threading.Thread(target=operate)
operation.start()
begun.wait()
# Each a round trip behind what was asked before it.
for turn in range(5): box.run("true")
print("pending", server, flush=True)
operation.join()
"""
ASYNC_PROGRAM = """
import asyncio, sys, trunkline, trunkline.aio
directory, config, daemon = sys.argv[1], sys.argv[2], sys.argv[3] == "daemon"
async def main():
    box = await trunkline.aio.connect("box1", config=config, daemon=daemon)
    server = (await box.run("echo $PPID")).stdout.strip()
    async def operate():
        OPERATION
    operation = asyncio.create_task(operate())
    await asyncio.sleep(0)
    for turn in range(5): await box.run("true")
    print("pending", server, flush=True)
    try:
        await operation
    except trunkline.Error as error:
        print(type(error).__name__, flush=True)
asyncio.run(main())
"""
PROGRAMS = {
    **{name: PROGRAM.replace("OPERATION", code) for name, code in OPERATIONS.items()},
    **{f"aio {name}": ASYNC_PROGRAM.replace("OPERATION", code) for name, code in ASYNC_OPERATIONS.items()},
}


def losing(bed: Testbed, way: str, directory: Path, lose: Callable[[set[int]], None]) -> None:
    """Starts each operation; ``lose`` is told of the server's processes. All end, with an error of ours."""
    os.mkfifo(directory / "fifo")
    children = {
        name: subprocess.Popen(
            [sys.executable, "-c", program, str(directory), bed.config, way],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, program in PROGRAMS.items()
    }
    try:
        servers = set()
        for child in children.values():
            assert child.stdout is not None
            pending = child.stdout.readline().split()
            assert pending[:1] == ["pending"], child.communicate(timeout=60)
            servers.add(int(pending[1]))
        lose(servers)
        ends = {name: (*child.communicate(timeout=60), child.returncode) for name, child in children.items()}
    finally:
        for child in children.values():
            child.kill()
            child.communicate()
    told = {"NetworkError\n", "LocalError\n"}
    wrong = {name: end for name, end in ends.items() if end[0] not in told or end[1:] != ("", 0)}
    # A pipe whose reader has gone, as everywhere.
    assert wrong.pop("input", ("ClosedError\n", "", 0)) == ("ClosedError\n", "", 0)
    assert wrong == {}


def parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def kill_servers(servers: set[int]) -> None:
    # The one that listens first: what begins only now does not begin anew elsewhere. Of its connections, some have carried
    # nothing that said whose child it was.
    (listening,) = {parent(Path(f"/proc/{server}")) for server in servers}
    os.kill(listening, signal.SIGSTOP)
    connections = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if parent(process) == listening:
                connections.append(int(process.name))
    assert servers <= {*connections}
    for server in (listening, *connections):
        os.kill(server, signal.SIGKILL)


@pytest.fixture
def roomy() -> Iterator[Testbed]:
    bed = Testbed("--config", "MaxSessions 200", "--config", "MaxStartups 200")
    yield bed
    bed.close()


def daemon_killed(_servers: set[int]) -> None:
    told = subprocess.check_output([os.environ["TRUNKLINE_PROGRAM"], "status", "--json"], text=True)
    os.kill(json.loads(told)["pid"], signal.SIGKILL)


def daemon_stopped(_servers: set[int]) -> None:
    subprocess.run([os.environ["TRUNKLINE_PROGRAM"], "stop", "--now"], check=True)


def test_what_is_under_way_when_the_connection_is_lost_settles(roomy: Testbed, tmp_path: Path) -> None:
    losing(roomy, "engine", tmp_path, kill_servers)


@pytest.mark.parametrize("lose", [kill_servers, daemon_killed, daemon_stopped])
def test_what_is_under_way_over_the_daemon_settles(
    lose: Callable[[set[int]], None], roomy: Testbed, daemon: None, tmp_path: Path
) -> None:
    losing(roomy, "daemon", tmp_path, lose)
