"""The faces beside the libraries whose names they have: what they offer, and what programs see of them."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Testbed
from parity import (
    programs_closed,
    programs_documented,
    programs_given,
    programs_kept,
    programs_keys,
    programs_members,
    programs_own,
    programs_paramiko,
    programs_pssh,
    programs_steps,
    programs_waiting,
)
from parity.differences import DIFFERENCES

GUIDE = Path(__file__).resolve().parents[3] / "docs/guide/python.md"
PARITY = Path(__file__).parent / "parity"
#: The tables of programs for Paramiko, and their modules.
FOR_PARAMIKO = [
    (programs_paramiko, "on_openssh"),
    (programs_closed, "on_openssh"),
    (programs_documented, "on_openssh"),
    (programs_given, "on_openssh"),
    (programs_kept, "on_openssh"),
    (programs_keys, "on_openssh"),
    (programs_members, "on_openssh"),
    (programs_own, "on_openssh"),
    (programs_steps, "on_openssh"),
    (programs_waiting, "on_openssh"),
    (programs_paramiko, "on_paramiko"),
    (programs_documented, "on_paramiko"),
    (programs_steps, "on_paramiko"),
]
#: How long all programs of a table may take.
TIMEOUT = 300


@pytest.mark.parametrize("library", DIFFERENCES)
def test_every_name_is_there_or_in_the_table_of_differences(library: str) -> None:
    patterns = DIFFERENCES[library]
    # In a process of its own: here others may have put trunkline in the library's place.
    command = [sys.executable, str(PARITY / "inventory.py"), library, f"trunkline.compat.{library}"]
    found = json.loads(subprocess.check_output(command, text=True))
    unknown = [each for each in found if not any(fnmatch.fnmatchcase(each[0], pattern) for pattern in patterns)]
    assert unknown == []
    unused = [pattern for pattern in patterns if not fnmatch.filter((name for name, _ in found), pattern)]
    assert unused == []


@pytest.mark.parametrize("library", DIFFERENCES)
def test_the_guide_has_every_reason(library: str) -> None:
    guide = GUIDE.read_text()
    assert [reason for reason in dict.fromkeys(DIFFERENCES[library].values()) if f"| {reason} |" not in guide] == []


@pytest.fixture(scope="module")
def about(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The servers and keys that the programs use."""
    directory = tmp_path_factory.mktemp("keys")

    def key(name: str, passphrase: str = "") -> str:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "me", "-f", directory / name], check=True
        )
        return str(directory / name)

    hosts = testbed.about["hosts"]
    shutil.copy(f"{hosts[0]['key']}.pub", directory / "mine.pub")
    subprocess.run(
        ["ssh-keygen", "-q", "-s", key("authority"), "-I", "me", "-n", "nobody", directory / "mine.pub"], check=True
    )
    server = subprocess.Popen(
        [sys.executable, PARITY / "server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server, socket.socket() as silent:
        assert server.stdout is not None
        # A port that nobody listens on, and that nobody else is given.
        silent.bind(("127.0.0.1", 0))
        yield {
            **{name: hosts[0][name] for name in ("address", "port", "user", "key")},
            "hosts": hosts,
            "keys": str(directory),
            "paramiko": int(server.stdout.readline()),
            "unused": silent.getsockname()[1],
            "other_key": key("other"),
            "encrypted": key("encrypted", "secret"),
            "certificate": str(directory / "mine-cert.pub"),
        }


def _seen(library: str, tables: list[tuple[str, str]], about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the output of each program, on the original and on trunkline."""
    environment = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
    seen: dict[str, dict[str, Any]] = {"original": {}, "trunkline": {}}
    for implementation, programs in seen.items():
        # Each table in a process of its own: connections that one leaves open end, and are logged, in the time of another.
        for table in tables:
            command = [
                sys.executable,
                str(PARITY / "run.py"),
                library,
                implementation,
                json.dumps({**about, "programs": table}),
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, cwd=about["keys"]
            )
            assert done.returncode == 0, done.stderr
            programs.update(json.loads(done.stdout.splitlines()[-1]))
    return seen


@pytest.fixture(scope="module")
def on_paramiko(about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return _seen("paramiko", [(module.__name__.rpartition(".")[2], table) for module, table in FOR_PARAMIKO], about)


@pytest.fixture(scope="module")
def on_pssh(about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return _seen("pssh", [("programs_pssh", "on_openssh")], about)


@pytest.mark.parametrize("program", [program for module, table in FOR_PARAMIKO for program in getattr(module, table)])
def test_a_program_for_paramiko_sees_the_same(program: str, on_paramiko: dict[str, dict[str, Any]]) -> None:
    assert on_paramiko["trunkline"][program] == on_paramiko["original"][program]


@pytest.mark.parametrize("program", programs_pssh.on_openssh)
def test_a_program_for_parallel_ssh_sees_the_same(program: str, on_pssh: dict[str, dict[str, Any]]) -> None:
    assert on_pssh["trunkline"][program] == on_pssh["original"][program]
