"""Many hosts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import trunkline
from conftest import Testbed, wait_until


@pytest.fixture
def group(testbed: Testbed) -> trunkline.Group:
    return trunkline.Group("box[1-3]", config=testbed.config, daemon=False)


def test_results_come_in_order_and_as_they_complete(group: trunkline.Group) -> None:
    assert group.hosts == ["box1", "box2", "box3"]
    results = group.run("echo $PPID").wait()
    assert [result.host for result in results] == group.hosts
    assert all(result.ok for result in results)
    assert {result.index for result in group.run("true")} == {0, 1, 2}


def test_the_slowest_host_holds_up_no_result(group: trunkline.Group, testbed: Testbed, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f'test "${{SSH_CONNECTION##* }}" != {testbed.ports[0]} || until test -e {gate}; do sleep 0.01; done'
    with group.run(command) as run:
        assert {next(run).host, next(run).host} == {"box2", "box3"}
        gate.touch()
        assert next(run).host == "box1"
        assert list(run) == []


def test_a_host_that_fails_is_a_value(testbed: Testbed) -> None:
    group = trunkline.Group(["box1", "no-such-host.invalid"], config=testbed.config, daemon=False)
    good, bad = group.run("echo x", at_once=1).wait()
    assert good.unwrap().stdout == "x\n"
    assert not bad.ok
    assert isinstance(bad.error, trunkline.NetworkError)
    assert not bad.error.may_have_run
    with pytest.raises(trunkline.NetworkError):
        bad.unwrap()


def test_a_status_is_an_error_where_that_was_asked_for(group: trunkline.Group) -> None:
    results = group.run("exit 3", check=True).wait()
    assert [type(result.error) for result in results] == [trunkline.CommandError] * 3
    assert all(result.error and result.error.may_have_run for result in results)


def test_hosts_of_which_half_do_not_answer_leave_nothing_behind(testbed: Testbed, tmp_path: Path) -> None:
    names = [f"host{number}" for number in range(40)]
    config = tmp_path / "config"
    config.write_text(re.sub(r"^Host box1$", "Host box1 host*", Path(testbed.config).read_text(), flags=re.MULTILINE))
    # Ports below 1024 that nobody listens on.
    silent = [f"ssh://127.0.0.1:{port}" for port in range(2, 12)]
    # The engine's own descriptors are there from its first use on.
    with trunkline.Group("box1", config=config, daemon=False) as first:
        first.run("true").wait()
    before = len(os.listdir("/proc/self/fd"))
    with trunkline.Group([*names, *silent], config=config, daemon=False, share=False) as group:
        results = group.run("true").wait()
        assert [result.ok for result in results] == [True] * 40 + [False] * 10
        assert all(isinstance(result.error, trunkline.NetworkError) for result in results[40:])
        del group
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_no_more_hosts_are_begun_than_allowed(group: trunkline.Group, tmp_path: Path) -> None:
    log = tmp_path / "log"
    results = group.run(f"echo begin >>{log}; sleep 0.05; echo end >>{log}", at_once=1).wait()
    assert all(result.ok for result in results)
    assert log.read_text().split() == ["begin", "end"] * 3


def test_what_is_cancelled_ends(group: trunkline.Group) -> None:
    with group.run("sleep 1000"):
        pass
    with pytest.raises(trunkline.TimeoutError):
        group.run("sleep 1000").wait(0.1)


def test_an_inventory_names_the_hosts(testbed: Testbed, ansible_on_path: None, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.ini"
    inventory.write_text(
        "[web]\nweb1 ansible_host=box1\nweb2 ansible_host=box2\n[db]\ndb1 ansible_host=box3\nhere ansible_connection=local\n"
    )
    group = trunkline.Group("web", inventory=inventory, config=testbed.config, daemon=False)
    assert group.hosts == ["web1", "web2"]
    assert all(result.ok for result in group.run("true"))
    everything = trunkline.Group(inventory=inventory, limit="db", config=testbed.config)
    assert everything.hosts == ["db1"]
    assert [name for name, _ in everything.skipped] == ["here"]


def test_files_go_to_every_host_and_come_back_into_directories_of_their_names(
    group: trunkline.Group, tmp_path: Path
) -> None:
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "back"
    source.write_text("content")
    there.mkdir()
    # The servers are one machine: one at a time writes the file there.
    assert all(result.ok for result in group.copy(source, there, at_once=1))
    assert [result.unwrap().bytes for result in group.get(there / "source", back).wait()] == [7, 7, 7]
    assert sorted(path.name for path in back.iterdir()) == ["box1", "box2", "box3"]
    missing = group.get(tmp_path / "none", back).wait()[0]
    assert isinstance(missing.error, trunkline.FileError)


@pytest.mark.parametrize("hosts", ["", "a[1-", "nothing-here*"])
def test_bad_expressions_are_value_errors(hosts: str, testbed: Testbed) -> None:
    with pytest.raises(ValueError, match=r"."):
        trunkline.Group(hosts, config=testbed.config)


def test_output_that_cannot_be_decoded_is_its_hosts_failure_alone(group: trunkline.Group, testbed: Testbed) -> None:
    command = f"test \"${{SSH_CONNECTION##* }}\" != {testbed.ports[0]} || printf '\\377'; printf x"
    bad, *good = group.run(command, errors="strict").wait(60)
    assert isinstance(bad.error, trunkline.Error)
    assert bad.error.execution == "finished"
    assert isinstance(bad.error.__cause__, UnicodeDecodeError)
    assert [result.unwrap().stdout for result in good] == ["x", "x"]


@pytest.mark.parametrize("at_once", [1, 2, 20])
def test_a_directory_that_cannot_be_made_is_its_hosts_failure_alone(
    group: trunkline.Group, tmp_path: Path, at_once: int
) -> None:
    (tmp_path / "box2").touch()
    run = group.get("/etc/hostname", tmp_path, at_once=at_once)
    first, second, third = run.wait(60)
    assert first.ok
    assert isinstance(second.error, trunkline.LocalError)
    assert not second.error.may_have_run
    assert third.ok
