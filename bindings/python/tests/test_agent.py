"""Keys that are in no file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import trunkline
from conftest import Testbed


def list_keys() -> list[str]:
    done = subprocess.run(["ssh-add", "-L"], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line.startswith("ssh-")]


def test_a_key_that_is_in_no_file_leads_in(ssh_agent: Path, testbed: Testbed, tmp_path: Path) -> None:
    about = testbed.about["hosts"][0]
    private = Path(about["key"]).read_text()
    line = trunkline.add_to_agent(private)
    assert trunkline.add_to_agent(private.encode(), agent=ssh_agent) == line
    assert list_keys() == [line]
    (tmp_path / "key.pub").write_text(line)
    with trunkline.connect(
        about["address"],
        config="none",
        user=about["user"],
        port=about["port"],
        identity=tmp_path / "key.pub",
        known_hosts=about["known_hosts"],
        options={"IdentitiesOnly": "yes"},
        daemon=False,
    ) as connection:
        assert connection.run("echo in").stdout == "in\n"


@pytest.mark.parametrize("name", ["a b", "a\tb", "%h%%", "back\\slash", "it's"])
def test_paths_mean_what_they_say(ssh_agent: Path, testbed: Testbed, tmp_path: Path, name: str) -> None:
    about = testbed.about["hosts"][0]
    trunkline.add_to_agent(Path(about["key"]).read_text())
    (tmp_path / f"agent {name}").symlink_to(ssh_agent)
    (tmp_path / f"known {name}").write_text(Path(about["known_hosts"]).read_text())
    with trunkline.connect(
        about["address"],
        config="none",
        user=about["user"],
        port=about["port"],
        agent=tmp_path / f"agent {name}",
        known_hosts=tmp_path / f"known {name}",
        share=False,
        daemon=False,
    ) as connection:
        assert connection.run("echo in").stdout == "in\n"


def test_a_passphrase_opens_the_key(ssh_agent: Path, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "sesame", "-f", tmp_path / "key"], check=True)
    private = (tmp_path / "key").read_text()
    for passphrase in (None, "wrong"):
        with pytest.raises(ValueError, match="passphrase"):
            trunkline.add_to_agent(private, passphrase=passphrase)
    assert not list_keys()
    line = trunkline.add_to_agent(private, passphrase="sesame", lifetime=1000)
    assert list_keys() == [line] == [(tmp_path / "key.pub").read_text().strip()]


def test_what_is_no_key_and_a_missing_agent_are_told(ssh_agent: Path, testbed: Testbed, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="private key"):
        trunkline.add_to_agent("no key")
    with pytest.raises(trunkline.LocalError, match="no SSH agent"):
        trunkline.add_to_agent(Path(testbed.about["hosts"][0]["key"]).read_text(), agent=tmp_path / "nobody")
