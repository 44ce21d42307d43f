"""Servers, rules and a place of its own for a daemon, for one test with a client."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAMS = Path(os.environ["TRUNKLINE_PROGRAMS"])

RULES = """
[[allow]]
hosts = ["box*"]
commands = ["true", "echo ...", "cat", "sleep *", "seq *", "head -c * /dev/zero", "printf **", "id -un"]
read = ["{files}", "{files}-linked"]
write = ["{files}"]

[[ask-for]]
hosts = ["box*"]
commands = ["touch **"]

[[deny]]
hosts = ["box*"]
read = ["{files}/private"]
"""


class Bed:
    """Runs until it is left."""

    def __init__(self, servers: int = 2, rules: str = RULES, options: Sequence[str] = ()) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="tl-mcp-")
        self.place = Path(self._directory.name) / "place"
        self.files = Path(self._directory.name) / "files"
        self.place.mkdir(mode=0o700)
        self.files.mkdir()
        self._servers = subprocess.Popen(
            [PROGRAMS / "trunkline-testbed", "--servers", str(servers), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._servers.stdout is not None
        self.about: dict[str, Any] = json.loads(self._servers.stdout.readline())
        self.hosts: list[str] = self.about["aliases"]
        self.rules(f"ssh_config = {json.dumps(self.about['ssh_config'])}\n" + rules.replace("{files}", str(self.files)))
        self.env = {"TRUNKLINE_DIR": str(self.place), "TRUNKLINED": str(PROGRAMS / "trunklined")}
        self.command = str(PROGRAMS / "trunkline")

    def rules(self, text: str) -> None:
        path = self.place / "mcp.toml"
        path.write_text(text)
        path.chmod(0o600)

    def trunkline(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [self.command, *arguments]
        return subprocess.run(command, env={**os.environ, **self.env, **env}, capture_output=True, text=True, timeout=60)

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        self.trunkline("stop", "--now")
        self._servers.communicate()
        self._directory.cleanup()
