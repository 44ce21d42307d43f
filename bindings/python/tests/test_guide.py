"""The guide's examples run as they are printed."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import trunkline
from conftest import WORKSPACE, Testbed
from trunkline import aio

GUIDE = (WORKSPACE / "docs/guide/python.md").read_text()
EXAMPLES = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def guide_hosts(testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the guide's hosts those of the tests, by an ssh_config of their own."""
    config = tmp_path / "config"
    text = Path(testbed.config).read_text()
    config.write_text(re.sub(r"^Host box(\d)$", r"Host box\1 db\1 web0\1", text, flags=re.MULTILINE))
    for module, name in ((trunkline, "connect"), (trunkline, "Group"), (aio, "connect")):
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), config=config, daemon=False))


@pytest.mark.parametrize(("title", "example"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_runs(title: str, example: str, guide_hosts: None, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, title, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_every_example_is_found() -> None:
    assert len(EXAMPLES) == GUIDE.count("```python") == 7
