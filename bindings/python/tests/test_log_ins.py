"""The number of log-ins that all clients of a day need on one server: Ansible by both plugins, Python, and the programs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trunkline
from conftest import ANSIBLE_PLUGIN, Ansible, Testbed


@pytest.mark.parametrize("first", range(4))
def test_a_day_s_mix_logs_in_once_to_each_host_whoever_comes_first(
    environment: Path, daemon: None, tmp_path: Path, first: int
) -> None:
    bed = Testbed("--servers", "2")
    try:
        config, program = tmp_path / "config", os.environ["TRUNKLINE_PROGRAM"]
        config.write_text(Path(bed.config).read_text())
        ansible = Ansible(environment, tmp_path, bed)
        hosts = (tmp_path / "hosts").read_text().replace(bed.config, str(config))
        (tmp_path / "hosts").write_text(hosts)
        env = {"TRUNKLINE_UP_LIMIT": "20000"}

        def run(*command: str) -> None:
            done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, (command, done.stdout, done.stderr)

        def play(**more: str) -> None:
            done = ansible.run("ansible", "all", "-m", "ping", **env, **more)
            assert done.stdout.count("SUCCESS") == 2, done.stdout + done.stderr

        def python() -> None:
            for name in bed.aliases:
                with trunkline.connect(name, ssh_args=["-F", str(config)], daemon=True) as host:
                    assert host.run("echo there").stdout == "there\n"

        def stock_ssh() -> None:
            for name in bed.aliases:
                run("ssh", "-F", str(config), name, "true")

        def on_all(*options: str) -> None:
            run(program, "run", "-F", str(config), *options, "-H", ",".join(bed.aliases), "--", "true")

        run(program, "setup", "ssh", "--file", str(config))
        mix: list[Callable[[], None]] = [
            # The line of `trunkline setup ansible`: Ansible's own plugin, whose ssh comes through ssh_config.
            lambda: play(ANSIBLE_TRANSPORT="ssh", ANSIBLE_SSH_ARGS="-o ControlMaster=no"),
            lambda: on_all(),
            python,
            lambda: play(ANSIBLE_TRANSPORT=ANSIBLE_PLUGIN),
            stock_ssh,
            lambda: on_all("-o", "StrictHostKeyChecking=accept-new"),
        ]
        for come in mix[first:] + mix[:first]:
            come()
            logs = [Path(host["log"]).read_text() for host in bed.about["hosts"]]
            counts = [len(re.findall(r"^Accepted .* from ", log, re.MULTILINE)) for log in logs]
            if counts != [1, 1]:
                # What the connections differ in, and when each was made.
                ls = subprocess.run([program, "ls"], capture_output=True, text=True).stdout
                daemon_log = (Path(os.environ["TRUNKLINE_DIR"]) / "state/daemon.log").read_text()
                pytest.fail("\n".join([f"{counts} after {mix.index(come)}", *logs, ls, daemon_log]))
    finally:
        bed.close()
