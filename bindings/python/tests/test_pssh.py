"""The face of parallel-ssh, beyond what programs see of both (test_parity)."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Testbed, wait_until
from trunkline.compat.pssh import config as pssh_config
from trunkline.compat.pssh import exceptions, utils
from trunkline.compat.pssh.clients import ParallelSSHClient, SSHClient
from trunkline.compat.pssh.clients.base import single


@pytest.fixture
def arguments(testbed: Testbed) -> dict[str, Any]:
    host = testbed.about["hosts"][0]
    return {"user": host["user"], "pkey": host["key"]}


@pytest.fixture
def client(testbed: Testbed, arguments: dict[str, Any]) -> Iterator[ParallelSSHClient]:
    hosts = [host["address"] for host in testbed.about["hosts"]]
    settings = [
        pssh_config.HostConfig(port=port, private_key=host["key"])
        for port, host in zip(testbed.ports, testbed.about["hosts"])
    ]
    client = ParallelSSHClient(hosts, host_config=settings, num_retries=1, **arguments)
    yield client
    client.disconnect()


def test_a_host_that_fails_is_raised_or_a_value(client: ParallelSSHClient) -> None:
    client.host_config = None
    client.hosts = ["no-such-host.invalid"]
    with pytest.raises(exceptions.UnknownHostError):
        client.run_command("true")
    client.hosts = ["127.0.0.1"]
    client.port = 1
    (output,) = client.run_command("true", stop_on_errors=False)
    assert isinstance(output.exception, ConnectionError)
    assert (output.stdout, output.exit_code) == (None, None)
    client.join([output])


def test_a_status_is_known_when_the_end_of_one_stream_is(
    testbed: Testbed, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "_END_IS_NEAR", 60)
    client = SSHClient("127.0.0.1", port=testbed.ports[0], **arguments)
    output = client.run_command("read x; exit 3")
    assert output.channel is not None
    assert output.stdin is not None
    output.channel.readers[0].buffer.eof.set()
    output.stdin.write("go\n")
    assert output.exit_code == 3
    assert output.channel.get_exit_status() == 3
    client.disconnect()


def test_a_wrong_key_is_not_tried_again(testbed: Testbed, tmp_path: Path, arguments: dict[str, Any]) -> None:
    from trunkline.compat.paramiko import Ed25519Key

    Ed25519Key.generate().write_private_key_file(tmp_path / "key")
    wrong = {**arguments, "pkey": str(tmp_path / "key"), "allow_agent": False}
    with pytest.raises(exceptions.AuthenticationError):
        SSHClient("127.0.0.1", port=testbed.ports[0], retry_delay=1000, **wrong)
    with pytest.raises(exceptions.PKeyFileError):
        SSHClient("127.0.0.1", port=testbed.ports[0], **{**arguments, "pkey": "/no/such/key"})


def test_a_proxy_leads_to_the_host(testbed: Testbed) -> None:
    hosts = testbed.about["hosts"]
    with SSHClient(
        hosts[1]["address"],
        user=hosts[1]["user"],
        port=hosts[1]["port"],
        pkey=Path(hosts[1]["key"]).read_bytes(),
        proxy_host=hosts[0]["address"],
        proxy_port=hosts[0]["port"],
        proxy_user=hosts[0]["user"],
        proxy_pkey=hosts[0]["key"],
    ) as inner:
        output = inner.run_command("echo ${SSH_CONNECTION##* }")
        assert list(output.stdout or ()) == [str(hosts[1]["port"])]


def test_lines_are_logged_as_they_are_read(client: ParallelSSHClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "pssh.host_logger"):
        client.join(client.run_command("echo line; echo trouble >&2"), consume_output=True)
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        ["[127.0.0.1]\tline", "[127.0.0.1]\t[err]\ttrouble"] * 3
    )
    utils.enable_host_logger()
    utils.host_logger.handlers.clear()


def test_no_thread_is_made_for_a_host(client: ParallelSSHClient) -> None:
    client.join(client.run_command("true"))
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        client.join(client.run_command("true"))
    assert threading.active_count() == threads
    # What tests before this one had may end meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_what_makes_no_sense_is_said() -> None:
    with pytest.raises(TypeError):
        ParallelSSHClient("localhost")
    with pytest.raises(ValueError, match="Host config entries"):
        ParallelSSHClient(["a", "b"], host_config=[pssh_config.HostConfig()])
    with pytest.raises(exceptions.HostConfigError):
        ParallelSSHClient(["a"], host_config="b")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Port 22 is not"):
        pssh_config.HostConfig(port="22")  # type: ignore[arg-type]
    with pytest.raises(exceptions.InvalidAPIUseError):
        ParallelSSHClient(["a"], keyboard_interactive=True)


def test_clients_that_are_forgotten_leave_nothing(testbed: Testbed, arguments: dict[str, Any]) -> None:
    def forget() -> None:
        client = ParallelSSHClient(["127.0.0.1"], port=testbed.ports[0], **arguments)
        (output,) = client.run_command("yes")
        assert next(output.stdout or iter(())) == "y"

    forget()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        forget()
    gc.collect()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
