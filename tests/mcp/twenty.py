"""A session of twenty steps by two real clients: why a service fails on three servers is found, files are changed, the service is
restarted and its log followed, by the rules of the guide."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import unittest
from typing import Any

from demo import CONF, GOOD, STEPS, Demo
from mcp import Client, StdioServerParameters, types


def filled(value: Any, kept: dict[str, Any]) -> Any:
    return kept[value[1:]] if isinstance(value, str) and value.startswith("$") else value


async def in_python(demo: Demo, form: str) -> None:
    """The official Python client takes the steps."""
    asked: list[str] = []
    kept: dict[str, Any] = {}

    async def person(_: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": "once"})

    server = StdioServerParameters(command=demo.command, args=["mcp"], env=demo.env)
    info = types.Implementation(name="python", version="2")
    async with Client(server, mode=form, elicitation_callback=person, client_info=info) as client:  # type: ignore[arg-type]
        for number, step in enumerate(STEPS, 1):
            asked.clear()
            arguments = {name: filled(value, kept) for name, value in step.get("with", {}).items()}
            result = await client.call_tool(step["tool"], arguments)
            text = "\n".join(block.text for block in result.content)  # type: ignore[union-attr]
            where = f"step {number}, {form}: {step}\n{text}"
            assert bool(result.is_error) == ("denied" in step), where
            assert all(words in text for words in [*step.get("has", []), step.get("denied", "")]), where
            assert len(asked) == ("asks" in step) and step.get("asks", "") in "".join(asked), f"{where}\n{asked}"
            for name, key in step.get("keep", {}).items():
                answer = result.structured_content or {}
                kept[name] = answer.get(key) or answer["hosts"][0][key]


class Twenty(unittest.TestCase):
    def done(self, client: str, work: Any) -> None:
        with Demo() as demo:
            work(demo)
            for host in ("web1", "web2"):
                self.assertEqual(demo.file(host, "nginx/nginx.conf").read_text(), GOOD)
                self.assertTrue(demo.file(host, "state/active").exists())
            self.assertFalse(demo.file("db1", "state/active").exists())
            shown = demo.trunkline("audit", "show", "--who", client, "--json")
            calls = [json.loads(line) for line in shown.stdout.splitlines()]
            calls = [call for call in calls if call["kind"] == "call" and call["event"] == "end"]
            # Each step but those that read what another one began is in the trail, once for each host.
            self.assertEqual(
                [call["decision"] for call in calls if "yes" in call["decision"] or "denied" in call["decision"]],
                ["denied"] * 3 + ["rule ask-for 1: yes by the person, once"] * 5,
            )
            self.assertEqual(demo.trunkline("audit", "verify").returncode, 0)

    def test_in_python(self) -> None:
        for form in ("2026-07-28", "legacy"):
            self.done("python 2", lambda demo: asyncio.run(in_python(demo, form)))

    @unittest.skipUnless(os.environ.get("NODE_CLIENTS"), "tests/mcp/run all")
    def test_in_typescript(self) -> None:
        def work(demo: Demo) -> None:
            script = os.environ["NODE_CLIENTS"] + "/twenty.mjs"
            env = {**os.environ, **demo.env, "BED_COMMAND": demo.command, "STEPS": json.dumps(STEPS)}
            done = subprocess.run(["node", script], env=env, timeout=300, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

        self.done("typescript 2", work)


if __name__ == "__main__":
    assert CONF and len(STEPS) == 20
    sys.exit(unittest.main())
