"""Ansible's connection plugin over a fleet, beside itself without one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from conftest import ANSIBLE_PLAYBOOKS, VOLATILE, Ansible, Fleet, Testbed


@pytest.fixture
def ansible(environment: Path, testbed: Testbed, fleet: Fleet, tmp_path: Path) -> Ansible:
    ansible = Ansible(environment, tmp_path, testbed)
    (tmp_path / "large").write_bytes(os.urandom(700_001))
    (tmp_path / "template.j2").write_text("{{ 1 + 1 }}: 汉语 $HOME\n")
    return ansible


def inventory(bed: Testbed, fleet: Fleet) -> dict[str, Any]:
    """Each server twice: by a fleet, and without."""
    direct = {f"direct{n}": {"ansible_host": box} for n, box in enumerate(bed.aliases)}
    by_fleet = {f"byfleet{n}": {"ansible_host": box} for n, box in enumerate(bed.aliases)}
    return {
        "all": {
            "children": {
                "direct": {"hosts": direct, "vars": {"ansible_ssh_common_args": f"-F {bed.config}"}},
                "byfleet": {"hosts": by_fleet, "vars": {"ansible_trunkline_fleet": fleet.url}},
            }
        }
    }


def records(lines: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Outcome and result of each task and host, without what differs from run to run."""
    told = {}
    for line in lines:
        result = {key: value for key, value in line["result"].items() if key not in VOLATILE | {"src"}}
        text = json.dumps([line["outcome"], result], sort_keys=True)
        told[line["task"], line["host"]] = text.replace(line["host"], "HOST")
    return told


@pytest.mark.parametrize("pipelining", ["yes", "no"])
def test_a_playbook_does_by_a_fleet_what_it_does_without(
    ansible: Ansible, testbed: Testbed, fleet: Fleet, pipelining: str
) -> None:
    play = json.dumps(inventory(testbed, fleet))
    (ansible.directory / "hosts.json").write_text(play)
    record = ansible.directory / "record"
    done = ansible.run(
        "ansible-playbook",
        str(ANSIBLE_PLAYBOOKS / "fleet.yml"),
        "-i",
        "hosts.json",
        "-e",
        f"directory={ansible.directory}",
        ANSIBLE_CALLBACK_PLUGINS=f"{ANSIBLE_PLAYBOOKS}/callback_plugins",
        ANSIBLE_CALLBACKS_ENABLED="record",
        ANSIBLE_PIPELINING=pipelining,
        RECORD=str(record),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = records([json.loads(line) for line in record.read_text().splitlines()])
    tasks = {task for task, _ in told}
    assert len(tasks) == 18
    for task in tasks:
        for n in range(len(testbed.aliases)):
            assert told[task, f"byfleet{n}"] == told[task, f"direct{n}"], task
    large = (ansible.directory / "large").read_bytes()
    for n in range(len(testbed.aliases)):
        there, back = ansible.directory / f"byfleet{n}", ansible.directory / "back" / f"byfleet{n}"
        assert (there / "copied").read_bytes() == large
        assert stat.S_IMODE((there / "copied").stat().st_mode) == 0o640
        assert (back / "copied").read_bytes() == large
        assert stat.S_IMODE((back / "copied").stat().st_mode) == 0o640
        assert (there / "empty").read_bytes() == b""
        assert (there / "汉语/it's.conf").read_text() == "2: 汉语 $HOME\n"


def test_what_a_fleet_does_not_do_is_refused_in_one_sentence(ansible: Ansible, fleet: Fleet) -> None:
    by_fleet = ("-e", f"ansible_trunkline_fleet={fleet.url}", "-e", "ansible_ssh_common_args=")
    password = ("-b", "-e", "ansible_become_password=secret")
    result = ansible.task("command", "true", *by_fleet, *password)
    assert "takes no sudo password" in result["msg"]
    assert "secret" not in json.dumps(result)
    jobs = [job["job"] for job in fleet.status()["jobs"]]
    for option, value in (("ansible_ssh_common_args", "-C"), ("ansible_password", "x"), ("ansible_private_key_file", "/x")):
        result = ansible.task("raw", "true", *by_fleet, "-e", f"{option}={value}")
        assert "leave out" in result["msg"]
    # Nothing of that was a job.
    assert [job["job"] for job in fleet.status()["jobs"]] == jobs


def test_what_may_have_run_has_failed_and_what_did_not_is_unreachable(
    ansible: Ansible, fleet: Fleet, testbed: Testbed
) -> None:
    by_fleet = ("-e", f"ansible_trunkline_fleet={fleet.url}", "-e", "ansible_ssh_common_args=")
    result = ansible.task("raw", "true", *by_fleet, "-e", "ansible_host=nowhere.invalid")
    assert result["unreachable"]
    result = ansible.task("raw", "true", *by_fleet, "-e", "ansible_user=stranger")
    assert result["unreachable"]
    assert "does not let" in result["msg"]
    result = ansible.task(
        "raw", "true", "-e", "ansible_trunkline_fleet=nats://127.0.0.1:1", "-e", "ansible_ssh_common_args="
    )
    assert result["unreachable"]
    # The server ends under its command.
    end = "p=$$; until grep -q sshd /proc/$p/comm; do p=$(sed -n 's/^PPid:.//p' /proc/$p/status); done; kill -9 $p; sleep 9"
    ledger = ansible.directory / "ledger"
    result = ansible.task("raw", f"echo x >>{ledger}; {end}", *by_fleet, "-e", "ansible_ssh_retries=3")
    assert not result.get("unreachable")
    assert "may have run" in result["msg"]
    assert ledger.read_text() == "x\n"


@pytest.mark.parametrize(("mode", "made"), [(0o600, "700"), (0o644, "744")])
def test_what_goes_to_a_host_by_a_fleet_is_as_private_as_its_source(
    ansible: Ansible, fleet: Fleet, mode: int, made: str
) -> None:
    show = ansible.directory / "show"
    show.write_text('#!/bin/sh\nstat -c %a "$0"\n')
    show.chmod(mode)
    by_fleet = ("-e", f"ansible_trunkline_fleet={fleet.url}", "-e", "ansible_ssh_common_args=")
    assert ansible.task("script", str(show), *by_fleet)["stdout"].strip() == made
