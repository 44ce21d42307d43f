"""A password that a program gives is good for the further connections too, made while the first ones are in use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import Ansible, Testbed
from trunkline.compat import paramiko
from trunkline.compat.pssh.clients import ParallelSSHClient

PASSWORD = "open sesame"
NO_KEYS = {"PubkeyAuthentication": "no"}


class Doors:
    """Two servers with a password, which open one session on a connection."""

    def __init__(self) -> None:
        self.bed = Testbed("--servers", "2", "--password", PASSWORD, "--config", "MaxSessions 1")
        self.hosts: list[dict[str, Any]] = self.bed.about["hosts"]

    def log_ins(self) -> list[str]:
        """The methods of all log-ins to the first server."""
        lines = Path(self.hosts[0]["log"]).read_text().splitlines()
        return [line.partition("Accepted ")[2].split()[0] for line in lines if "Accepted " in line]


@pytest.fixture
def doors() -> Iterator[Doors]:
    doors = Doors()
    yield doors
    doors.bed.close()


def together(directory: Path) -> str:
    """A command that ends when two of it run at the same time."""
    return f"touch {directory}/$$; while [ $(ls {directory} | wc -l) -lt 2 ]; do sleep 0.05; done; echo both"


@pytest.mark.parametrize(
    "where",
    [{"daemon": False}, {"daemon": True}, {"share": False, "connections": 2}],
    ids=["in this process", "the daemon's", "one's own"],
)
@pytest.mark.usefixtures("daemon")
def test_of_a_connection(where: dict[str, Any], doors: Doors, tmp_path: Path) -> None:
    with (
        trunkline.connect("box1", config=doors.bed.config, password=PASSWORD, options=NO_KEYS, **where) as box,
        ThreadPoolExecutor(2) as threads,
    ):
        both = [threads.submit(box.run, together(tmp_path)) for _ in range(2)]
        assert [each.result().stdout for each in both] == ["both\n", "both\n"]
    assert len(doors.log_ins()) == 2
    assert "publickey" not in doors.log_ins()


@pytest.mark.parametrize("where", [{"daemon": False}, {"daemon": True}], ids=["in this process", "the daemon's"])
@pytest.mark.usefixtures("daemon")
def test_of_a_group(where: dict[str, Any], doors: Doors, tmp_path: Path) -> None:
    with (
        trunkline.Group("box1", config=doors.bed.config, password=PASSWORD, options=NO_KEYS, **where) as group,
        ThreadPoolExecutor(2) as threads,
    ):
        both = [threads.submit(list, group.run(together(tmp_path), check=True)) for _ in range(2)]
        assert [len(each.result()) for each in both] == [1, 1]
    assert len(doors.log_ins()) == 2


@pytest.mark.usefixtures("ssh_agent")
def test_of_paramikos_client_for_a_session_that_is_lent_the_agent(doors: Doors) -> None:
    host = doors.hosts[0]
    with paramiko.SSHClient() as client:
        client.load_host_keys(host["known_hosts"])
        client.connect(host["address"], host["port"], host["user"], PASSWORD, look_for_keys=False, allow_agent=False)
        transport = client.get_transport()
        assert transport is not None
        session = transport.open_session()
        session.request_forward_agent()
        session.exec_command("ssh-add -l")
        assert session.makefile().read() == b"The agent has no identities.\n"
    assert len(doors.log_ins()) == 2


def test_of_parallel_sshs_client_whose_connection_is_lost(doors: Doors) -> None:
    proxy, host = doors.hosts[1], doors.hosts[0]
    client = ParallelSSHClient(
        [host["address"]],
        user=host["user"],
        password=PASSWORD,
        port=host["port"],
        proxy_host=proxy["address"],
        proxy_port=proxy["port"],
        allow_agent=False,
        identity_auth=False,
        num_retries=1,
    )
    client.join(client.run_command("kill -9 $PPID", stop_on_errors=False))
    (output,) = client.run_command("echo again")
    assert list(output.stdout or ()) == ["again"]
    client.disconnect()
    assert len(doors.log_ins()) == 2


def test_of_ansibles_hosts(environment: Path, daemon: None, doors: Doors, tmp_path: Path) -> None:
    ansible = Ansible(environment, tmp_path, doors.bed)
    (tmp_path / "hosts").write_text(
        f"one ansible_host=box1\ntwo ansible_host=box1\n[all:vars]\nansible_password='{PASSWORD}'\n"
        f"ansible_ssh_common_args='-F {doors.bed.config} -o PubkeyAuthentication=no'\n"
    )
    (tmp_path / "marks").mkdir()
    done = ansible.run("ansible", "all", "-m", "raw", "-a", together(tmp_path / "marks"))
    assert done.stdout.count("both") == 2, done.stdout + done.stderr
    assert len(doors.log_ins()) == 2
