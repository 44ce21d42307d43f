"""Groups whose hosts the nodes of a fleet reach."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trunkline
import trunkline.aio
from conftest import Fleet, Testbed, time_is_up, wait_until

HOSTS = "box[1-3]"


@pytest.fixture
def group(fleet: Fleet) -> trunkline.Group:
    return trunkline.Group(HOSTS, fleet=fleet.url)


def stays(begun: Path) -> str:
    """A command that says when it has begun, and stays."""
    return f"touch {begun} && exec sleep 600"


def test_results_are_those_of_a_group_without_a_fleet(group: trunkline.Group, testbed: Testbed) -> None:
    direct = trunkline.Group(HOSTS, config=testbed.config, daemon=False)
    assert group.hosts == direct.hosts
    assert len(group) == 3
    commands: list[tuple[Any, dict[str, Any]]] = [
        ("echo out; echo err >&2", {}),
        ("echo no; exit 3", {"encoding": None}),
        ("kill -TERM $$", {}),
        (["printf", "%s|", "it's", "$HOME"], {}),
        ("cat", {"input": bytes(range(256)) * 3000, "encoding": None}),
        ("cat", {"input": "汉语"}),
        ("cat", {}),
        ('echo "$TEST_A"', {"env": {"TEST_A": "it's; $HOME"}}),
    ]
    for command, options in commands:
        for ours, theirs in zip(group.run(command, **options).wait(), direct.run(command, **options).wait()):
            assert (ours.host, ours.index) == (theirs.host, theirs.index)
            assert ours.unwrap() == theirs.unwrap()
    assert {result.index for result in group.run("true")} == {0, 1, 2}
    errors = [result.error for result in group.run("exit 3", check=True).wait()]
    assert [type(error) for error in errors] == [trunkline.CommandError] * 3


def test_the_fleet_of_this_machine_needs_no_address(fleet: Fleet) -> None:
    assert trunkline.Group("box1", fleet=True).run("echo x").wait()[0].unwrap().stdout == "x\n"


def test_errors_say_whether_the_command_may_have_run(fleet: Fleet) -> None:
    group = trunkline.Group(["box1", "nowhere.invalid", "stranger@box2"], fleet=fleet.url)
    slow = trunkline.Group("box1", fleet=fleet.url)
    error = time_is_up(lambda limit: slow.run("echo some; sleep 600", timeout=limit).wait()[0].unwrap(), b"some\n")
    assert error.execution == "may have started"
    _, nowhere, stranger = group.run("true").wait()
    assert isinstance(nowhere.error, trunkline.NetworkError)
    assert nowhere.error.execution == "did not start"
    # The allow list names no users.
    assert isinstance(stranger.error, trunkline.FleetError)
    assert not stranger.error.may_have_run
    assert "does not let" in str(stranger.error)
    # No NATS is there.
    (result,) = trunkline.Group("box1", fleet="nats://127.0.0.1:1").run("true").wait()
    assert isinstance(result.error, trunkline.FleetError)
    assert not result.error.may_have_run
    (result,) = trunkline.Group("box1", fleet=fleet.url).run("cat", input=b"x" * ((64 << 20) + 1)).wait()
    assert isinstance(result.error, trunkline.FleetError)
    assert "64 MiB" in str(result.error)


def test_a_daemon_that_is_killed_leaves_it_open_whether_the_command_ran(fleet: Fleet, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    run = trunkline.Group("box1", fleet=fleet.url).run(stays(begun))
    wait_until(begun.exists)
    fleet.stop_daemons()
    (result,) = run.wait()
    assert result.error is not None
    assert result.error.execution == "may have started"


def test_what_is_cancelled_ends_on_the_hosts(fleet: Fleet, group: trunkline.Group, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with trunkline.Group("box1", fleet=fleet.url).run(stays(begun)):
        wait_until(begun.exists)
    wait_until(fleet.is_idle)
    with group.run("sleep 1000", at_once=1) as run, pytest.raises(trunkline.TimeoutError):
        run.wait(0.1)
    wait_until(fleet.is_idle)


def test_ctrl_c_ends_the_job(fleet: Fleet, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    program = f"import trunkline\ntrunkline.Group('box1', fleet={fleet.url!r}).run({stays(begun)!r}).wait()"
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    wait_until(begun.exists)
    os.kill(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    wait_until(fleet.is_idle)


def test_cancelling_a_task_of_asyncio_ends_the_job(fleet: Fleet, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def main() -> None:
        group = trunkline.aio.Group(HOSTS, fleet=fleet.url)
        results = await group.run("cat", input="x").wait()
        assert [result.unwrap().stdout for result in results] == ["x"] * 3
        task = asyncio.ensure_future(trunkline.aio.Group("box1", fleet=fleet.url).run(stays(begun)).wait())
        await asyncio.get_running_loop().run_in_executor(None, wait_until, begun.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(fleet.is_idle)


def test_what_a_fleet_cannot_do_is_said(group: trunkline.Group, tmp_path: Path) -> None:
    with pytest.raises(trunkline.ConfigurationError, match="copies no files"):
        group.copy(tmp_path, "x")
    with pytest.raises(trunkline.ConfigurationError, match="copies no files"):
        group.get("x", tmp_path)
    with pytest.raises(trunkline.ConfigurationError, match="no terminal"):
        group.run("true", terminal=True)
    with pytest.raises(ValueError, match="leave out user"):
        trunkline.Group(HOSTS, fleet=True, user="root")
    with pytest.raises(ValueError, match="not the name of a variable"):
        group.run("true", env={"A;b": "c"})
    with pytest.raises(TypeError):
        trunkline.Group(HOSTS, fleet=3)  # type: ignore[arg-type]
