"""The guide's examples run as they are printed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import WORKSPACE, Testbed
from trunkline import aio
from trunkline.compat import paramiko
from trunkline.compat.pssh import clients
from trunkline.compat.pssh.config import HostConfig

paramiko.install()

import fabric  # noqa: E402
import fabric.config  # noqa: E402

GUIDE = (WORKSPACE / "docs/guide/python.md").read_text()
EXAMPLES = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def guide_hosts(testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the guide's hosts those of the tests, by an ssh_config of their own."""
    config = tmp_path / "config"
    text = Path(testbed.config).read_text()
    config.write_text(re.sub(r"^Host box(\d)$", r"Host box\1 db\1 web0\1", text, flags=re.MULTILINE))
    settings = fabric.config.Config(ssh_config=paramiko.SSHConfig.from_path(config), overrides={"run": {"in_stream": False}})
    monkeypatch.setattr(fabric, "Connection", functools.partial(fabric.Connection, config=settings))
    hosts = testbed.about["hosts"]
    monkeypatch.setattr(paramiko, "SSHClient", _client_of(hosts[0]))
    monkeypatch.setattr(clients, "ParallelSSHClient", _clients_of(hosts))
    for module, name in ((trunkline, "connect"), (trunkline, "Group"), (aio, "connect")):
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), config=config, daemon=False))


def _client_of(host: dict[str, Any]) -> type[paramiko.SSHClient]:
    class Client(paramiko.SSHClient):
        """Reaches a server of the tests, whatever it is asked for."""

        def connect(self, hostname: str, **arguments: Any) -> None:  # type: ignore[override]
            self.load_host_keys(host["known_hosts"])
            super().connect(host["address"], host["port"], host["user"], key_filename=host["key"], look_for_keys=False)

    return Client


def _clients_of(hosts: list[dict[str, Any]]) -> Callable[..., clients.ParallelSSHClient]:
    real = clients.ParallelSSHClient

    def make(names: list[str], **arguments: Any) -> clients.ParallelSSHClient:
        ways = [HostConfig(user=host["user"], port=host["port"], private_key=host["key"]) for host in hosts]
        addresses = [host["address"] for host in hosts]
        return real(addresses[: len(names)], host_config=ways[: len(names)], **arguments)

    return make


@pytest.mark.parametrize(("title", "example"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_runs(title: str, example: str, guide_hosts: None, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, title, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_every_example_is_found() -> None:
    assert len(EXAMPLES) == GUIDE.count("```python") == 10
