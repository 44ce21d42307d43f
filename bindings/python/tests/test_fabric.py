"""Fabric, as it is, on the face of Paramiko."""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Testbed
from trunkline.compat import paramiko

paramiko.install()

import fabric  # noqa: E402
import fabric.config  # noqa: E402
from invoke.exceptions import UnexpectedExit  # noqa: E402


@pytest.fixture
def config(testbed: Testbed) -> fabric.config.Config:
    """The testbed's hosts, by an ssh_config of their own."""
    ssh_config = paramiko.SSHConfig.from_path(testbed.config)
    quiet = {"run": {"in_stream": False, "hide": True}, "connect_kwargs": {"look_for_keys": False}}
    return fabric.config.Config(ssh_config=ssh_config, overrides=quiet)


@pytest.fixture
def box(testbed: Testbed, config: fabric.config.Config) -> Iterator[fabric.Connection]:
    with fabric.Connection(testbed.aliases[0], config=config) as connection:
        yield connection


def test_it_is_fabric_on_this_engine(box: fabric.Connection) -> None:
    assert type(box.client) is paramiko.SSHClient


def test_commands_run(box: fabric.Connection) -> None:
    result = box.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 0)
    assert box.run("tty", pty=True).stdout.startswith("/dev/pts/")
    assert box.run("echo $NAME", env={"NAME": "value"}).stdout == "value\n"
    assert box.run("cat", in_stream=io.StringIO("typed")).stdout == "typed"
    with pytest.raises(UnexpectedExit) as failed:
        box.run("exit 3")
    assert failed.value.result.return_code == 3
    assert box.run("exit 4", warn=True).return_code == 4


def test_much_output_arrives(box: fabric.Connection) -> None:
    assert len(box.run("head -c 1000000 /dev/zero | tr '\\0' x").stdout) == 1_000_000


def test_sudo_answers_its_prompt(box: fabric.Connection, tmp_path: Path) -> None:
    # Stands for sudo where the tests have none: asks as sudo is told to, and runs the rest.
    sudo = tmp_path / "sudo"
    sudo.write_text(
        '#!/bin/sh\nprintf "%s" "$3" >&2\nread -r given\ntest "$given" = swordfish || exit 1\nshift 4\nexec "$@"\n'
    )
    sudo.chmod(0o755)
    box.config.sudo.password = "swordfish"
    assert box.sudo("echo root", env={"PATH": f"{tmp_path}:$PATH"}).stdout == "root\n"


def test_files_go_there_and_back(box: fabric.Connection, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(100_000))
    source.chmod(0o640)
    put = box.put(source, str(tmp_path / "there"))
    assert put.remote == str(tmp_path / "there")
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o640
    box.get(str(tmp_path / "there"), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    into = io.BytesIO()
    box.get(str(tmp_path / "there"), into)
    assert into.getvalue() == source.read_bytes()
    box.put(io.BytesIO(b"content"), str(tmp_path / "typed"))
    assert (tmp_path / "typed").read_bytes() == b"content"


def echo_server() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.sendall(client.recv(1024).upper())

    threading.Thread(target=serve, daemon=True).start()
    return listener


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize("direction", ["forward_local", "forward_remote"])
def test_ports_are_forwarded(direction: str, box: fabric.Connection) -> None:
    with echo_server() as target:
        port, there = free_port(), target.getsockname()[1]
        hosts: dict[str, Any] = {"local_host": "127.0.0.1", "remote_host": "127.0.0.1"}
        ports = (port, there)
        with getattr(box, direction)(*ports, **hosts):
            answer = b""
            while not answer:
                try:
                    with socket.create_connection(("127.0.0.1", port)) as outside:
                        outside.sendall(b"through")
                        answer = outside.recv(1024)
                except ConnectionRefusedError:
                    # Fabric listens in a thread that it does not wait for.
                    continue
            assert answer == b"THROUGH"


@pytest.mark.parametrize("kind", ["connection", "command"])
def test_a_gateway_leads_to_the_host(
    kind: str, testbed: Testbed, config: fabric.config.Config, box: fabric.Connection
) -> None:
    # Fabric's own %p is 22, whatever the port.
    gateway = box if kind == "connection" else f"ssh -F {testbed.config} -W %h:{testbed.ports[1]} {testbed.aliases[0]}"
    with fabric.Connection(testbed.aliases[1], config=config, gateway=gateway) as inner:
        assert inner.run("echo ${SSH_CONNECTION##* }").stdout == f"{testbed.ports[1]}\n"


@pytest.mark.parametrize("group", [fabric.SerialGroup, fabric.ThreadingGroup])
def test_groups_run_everywhere(group: Any, testbed: Testbed, config: fabric.config.Config) -> None:
    with group(*testbed.aliases, config=config) as hosts:
        results = hosts.run("echo ${SSH_CONNECTION##* }")
        assert sorted(int(result.stdout) for result in results.values()) == sorted(testbed.ports)


def test_the_strategy_of_openssh_leads_in(testbed: Testbed, config: fabric.config.Config) -> None:
    from fabric.auth import OpenSSHAuthStrategy

    config.authentication.strategy_class = OpenSSHAuthStrategy
    with fabric.Connection(testbed.aliases[0], config=config) as connection:
        assert connection.run("echo in").stdout == "in\n"
