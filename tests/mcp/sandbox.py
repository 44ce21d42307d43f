"""What the guide says of keeping an agent to the rules, tried: bubblewrap, and a user of the agent's own, with no way to the daemon, the
keys or the rules but the server that is handed in as a socket."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import unittest
from pathlib import Path

from bed import PROGRAMS, Bed

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/mcp.md"

# What an agent in a sandbox does: it speaks to the server by its socket, and tries every other way to the host.
AGENT = r"""
import json, os, socket, subprocess, sys
server, trunkline, place, key, config = sys.argv[1:]
line = socket.socket(socket.AF_UNIX)
line.connect(server)
file = line.makefile("rw")
def ask(number, method, params):
    file.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
    file.flush()
    return json.loads(file.readline())["result"]
meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "in a sandbox", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}}
def run(number, command):
    return ask(number, "tools/call", {"_meta": meta, "name": "run", "arguments": {"hosts": ["box1"], "command": command}})
said = {"allowed": run(1, "echo here")["structuredContent"]["hosts"][0]["stdout"]["text"], "denied": run(2, "id")["isError"]}
def opens(path):
    try:
        open(path).read()
        return True
    except OSError:
        return False
said["reads"] = [path for path in (key, place + "/mcp.toml") if opens(path)]
def writes(path):
    try:
        open(path, "a").close()
        return True
    except OSError:
        return False
said["writes"] = writes(place + "/mcp.toml")
def connects(path):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        return True
    except OSError:
        return False
said["connects"] = [path for path in (place + "/control.sock", os.environ.get("SSH_AUTH_SOCK", "/none")) if connects(path)]
if os.path.exists(trunkline):
    ran = subprocess.run([trunkline, "ssh", "-F", config, "box1", "echo", "out"], env={**os.environ, "TRUNKLINE_DIR": place},
                         capture_output=True, text=True, timeout=60)
    said["ran"] = ran.stdout
print(json.dumps(said))
"""


class Handed(Bed):
    """A bed whose server listens on a socket, as `socat UNIX-LISTEN:…,fork EXEC:'trunkline mcp'` has it."""

    def __init__(self) -> None:
        super().__init__(servers=1)
        self.trunkline("up", "-F", self.about["ssh_config"], "box1")
        self.door = self.files / "door"
        self.door.mkdir()
        command = ["socat", f"UNIX-LISTEN:{self.door}/mcp.sock,fork,mode=666", f"EXEC:{self.command} mcp"]
        self._door = subprocess.Popen(command, env={**os.environ, **self.env})
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(f"{self.door}/mcp.sock")
                return
            except OSError:
                if self._door.poll() is not None:
                    raise

    def arguments(self, door: str) -> list[str]:
        host = self.about["hosts"][0]
        return ["-c", AGENT, f"{door}/mcp.sock", self.command, str(self.place), host["key"], self.about["ssh_config"]]

    def __exit__(self, *error: object) -> None:
        self._door.terminate()
        self._door.wait()
        super().__exit__(*error)


class Sandboxes(unittest.TestCase):
    def said(self, command: list[str]) -> dict[str, object]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def kept(self, said: dict[str, object]) -> None:
        self.assertEqual((said["allowed"], said["denied"]), ("here\n", True), said)
        self.assertEqual((said["reads"], said["writes"], said["connects"], said.get("ran", "")), ([], False, [], ""), said)

    @unittest.skipUnless(shutil.which("socat"), "needs socat")
    def test_without_a_sandbox_the_rules_bind_nobody(self) -> None:
        with Handed() as bed:
            said = self.said([sys.executable, *bed.arguments(str(bed.door))])
            host = bed.about["hosts"][0]
            self.assertEqual((said["allowed"], said["denied"]), ("here\n", True), said)
            self.assertEqual((said["reads"], said["writes"]), ([host["key"], f"{bed.place}/mcp.toml"], True), said)
            self.assertEqual((said["connects"], said["ran"]), ([f"{bed.place}/control.sock"], "out\n"), said)

    @unittest.skipUnless(shutil.which("bwrap") and shutil.which("socat"), "needs bwrap and socat")
    def test_bubblewrap(self) -> None:
        with Handed() as bed:
            command = re.search(r"\$ (bwrap .*?) AGENT$", GUIDE.read_text(), re.S | re.M)
            assert command
            agent = shlex.join(["/usr/bin/python3", *bed.arguments("/run/mcp")])
            script = command[1].replace("~/mcp-door", str(bed.door)) + f" {agent}"
            self.kept(self.said(["sh", "-c", f"cd {bed.files} && {script}"]))

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv") and shutil.which("socat"), "needs root, setpriv and socat")
    def test_a_user_without_the_socket(self) -> None:
        with Handed() as bed:
            # The way to the socket is open, the daemon's directory and the key are the person's.
            for path in (bed.files.parent, bed.files, bed.door):
                path.chmod(0o755)
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", *bed.arguments(str(bed.door))]
            self.kept(self.said(command))


if __name__ == "__main__":
    assert Path(PROGRAMS).exists()
    unittest.main()
