"""Servers that let their user in once, or open few sessions: what one connection can carry is done on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import Testbed
from trunkline.compat import paramiko


@pytest.fixture
def small() -> Iterator[Callable[[int], Testbed]]:
    """Makes a server that opens so many sessions on a connection."""
    beds: list[Testbed] = []

    def make(sessions: int) -> Testbed:
        beds.append(Testbed("--config", f"MaxSessions {sessions}"))
        return beds[-1]

    yield make
    for bed in beds:
        bed.close()


def log_ins(reached: Any) -> int:
    """Return the number of connections that the engine behind a connection or a group has made."""
    counters: dict[str, int] = dict(reached._engine.counters())
    return counters["connections_authenticated"]


def together(count: int, directory: Path) -> str:
    """A command that ends when so many of it run at the same time."""
    return f"touch {directory}/$$; while [ $(ls {directory} | wc -l) -lt {count} ]; do sleep 0.05; done"


def test_a_connection_of_ones_own_logs_in_once_whatever_runs_on_it(small: Callable[[int], Testbed]) -> None:
    bed = small(2)
    with (
        trunkline.connect("box1", config=bed.config, share=False) as box,
        ThreadPoolExecutor(9) as threads,
    ):
        results = [threads.submit(box.run, f"echo {n}") for n in range(9)]
        assert [result.result().stdout for result in results] == [f"{n}\n" for n in range(9)]
        assert log_ins(box) == 1


def test_it_logs_in_as_often_as_it_is_allowed_to(small: Callable[[int], Testbed], tmp_path: Path) -> None:
    bed = small(1)
    with (
        trunkline.connect("box1", config=bed.config, share=False, connections=2) as box,
        ThreadPoolExecutor(2) as threads,
    ):
        both = [threads.submit(box.run, together(2, tmp_path)) for _ in range(2)]
        assert all(result.result().ok for result in both)
        assert box.run("true").ok
        assert log_ins(box) == 2


def test_a_group_does_so_for_each_of_its_hosts(small: Callable[[int], Testbed], tmp_path: Path) -> None:
    bed = small(1)
    with (
        trunkline.Group("box1", config=bed.config, share=False, connections=2) as group,
        ThreadPoolExecutor(2) as threads,
    ):
        both = [threads.submit(list, group.run(together(2, tmp_path), check=True)) for _ in range(2)]
        assert [len(result.result()) for result in both] == [1, 1]
        assert log_ins(group) == 2


def test_connections_are_counted_where_they_are_ones_own() -> None:
    for wrong in ({"connections": 2}, {"connections": 0, "share": False}):
        with pytest.raises(ValueError, match="connections"):
            trunkline.connect("box1", **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="connections"):
        trunkline.connect("box1", connections="2", share=False)  # type: ignore[arg-type]


def test_a_shared_connection_does_without_log_ins_that_are_refused(small: Callable[[int], Testbed]) -> None:
    bed = small(2)
    with (
        trunkline.connect("box1", config=bed.config, daemon=False) as box,
        ThreadPoolExecutor(9) as threads,
    ):
        # The user's keys are no longer accepted.
        Path(bed.about["hosts"][0]["known_hosts"]).with_name("authorized_keys").write_text("")
        results = [threads.submit(box.run, f"echo {n}") for n in range(9)]
        assert [result.result().stdout for result in results] == [f"{n}\n" for n in range(9)]


def test_paramikos_channels_are_refused_where_the_server_refuses_them(small: Callable[[int], Testbed]) -> None:
    host = small(2).about["hosts"][0]
    with paramiko.SSHClient() as client:
        client.load_host_keys(host["known_hosts"])
        client.connect(
            host["address"], host["port"], host["user"], key_filename=host["key"], look_for_keys=False, allow_agent=False
        )
        running = [client.exec_command("cat") for _ in range(2)]
        for attempt in (lambda: client.exec_command("true"), client.invoke_shell, client.open_sftp):
            with pytest.raises(paramiko.ChannelException) as refused:
                attempt()
            assert refused.value.code == 2
        stdin, stdout, _ = running[0]
        stdin.channel.shutdown_write()
        assert stdout.read() == b""
        assert stdout.channel.recv_exit_status() == 0
        stdout.channel.close()
        assert client.exec_command("echo again")[1].read() == b"again\n"
