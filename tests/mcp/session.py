"""The official Python client, in both forms of the protocol, works on hosts by rules."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import unittest
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bed import Bed
from mcp import Client, StdioServerParameters, types

FORMS = ["2026-07-28", "legacy"]


class Session:
    """A client, and what its person says."""

    def __init__(self, client: Client, asked: list[str]) -> None:
        self.client = client
        self.asked = asked

    async def result(self, tool: str, **arguments: Any) -> types.CallToolResult:
        return await self.client.call_tool(tool, arguments)

    async def done(self, tool: str, **arguments: Any) -> Any:
        result = await self.result(tool, **arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self.result(tool, **arguments)
        assert result.is_error, result.structured_content
        return result.content[0].text  # type: ignore[union-attr]

    async def ran(self, host: str, command: str, **arguments: Any) -> Any:
        (ran,) = (await self.done("run", hosts=[host], command=command, **arguments))["hosts"]
        return ran


@asynccontextmanager
async def session(bed: Bed, form: str, says: str = "no") -> AsyncIterator[Session]:
    asked: list[str] = []

    async def person(_: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": says})

    server = StdioServerParameters(command=bed.command, args=["mcp"], env=bed.env)
    info = types.Implementation(name="a-test", version="7.5")
    async with Client(server, mode=form, elicitation_callback=person, client_info=info) as client:  # type: ignore[arg-type]
        yield Session(client, asked)


class Works(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.bed = self.enterContext(Bed())

    async def test_commands_run_and_say_how_they_ended(self) -> None:
        for form in FORMS:
            async with session(self.bed, form) as one:
                names = {tool.name for tool in (await one.client.list_tools()).tools}
                self.assertLessEqual({"hosts", "run", "follow", "stop", "read", "write"}, names)
                ran = await one.ran("box1", "echo 'a b' \"c;d\"")
                self.assertEqual((ran["state"], ran["exit_status"], ran["stdout"]["text"]), ("finished", 0, "a b c;d\n"))
                both = (await one.done("run", hosts=self.bed.hosts, command="cat", input="to both"))["hosts"]
                self.assertEqual([ran["stdout"]["text"] for ran in both], ["to both"] * 2)
                listed = (await one.done("hosts"))["hosts"]
                self.assertTrue(all(host["connected"] for host in listed) and listed, listed)

    async def test_what_no_rule_allows_is_not_done(self) -> None:
        async with session(self.bed, FORMS[0]) as one:
            for command in ["id", "true; id", "true\nid", "echo $(id)", "sleep -1", "/bin/true"]:
                told = await one.refused("run", hosts=["box1"], command=command)
                self.assertTrue("did not start" in told or "nothing was done" in told, told)
            for host in ["other", "root@box1", "box1:22", "-oProxyCommand=id", "ssh://box1", "box1,box2", "box1.evil"]:
                await one.refused("run", hosts=[host], command="true")
            await one.refused("run", hosts=["box1"], command="true", timeout=5)
            await one.refused("run", host="box1", command="true")
            await one.refused("run", hosts=["box1"], command="true", shell=True)
            await one.refused("run", hosts=["box1"], command="true", sudo=True)
            await one.refused("nonsense")
            self.assertEqual(one.asked, [])

    async def test_long_output_is_bounded_and_can_be_read(self) -> None:
        async with session(self.bed, FORMS[0]) as one:
            ran = await one.ran("box1", "seq 100000")
            whole = "".join(f"{number}\n" for number in range(1, 100001))
            self.assertEqual(ran["stdout"]["total_bytes"], len(whole))
            self.assertTrue(ran["stdout"]["text"].startswith("1\n2\n") and ran["stdout"]["text"].endswith("100000\n"))
            read, offset = "", 0
            while offset < len(whole):
                more = await one.done("follow", job=ran["job"], stdout_offset=offset, stderr_offset=0)
                read += more["stdout"]["text"]
                offset = more["stdout"]["next_offset"]
            self.assertEqual(read, whole)
            huge = await one.result("run", hosts=["box1"], command="head -c 50000000 /dev/zero")
            self.assertLess(len(huge.model_dump_json()), 1_000_000)
            escaped = await one.ran("box1", "printf '\\033[2J\\377'")
            self.assertEqual((escaped["stdout"]["text"], escaped["stdout"]["encoding"]), ("\\033[2J\\377", "escaped"))

    async def test_a_command_goes_on_in_the_background_and_is_stopped(self) -> None:
        async with session(self.bed, FORMS[0]) as one:
            ran = await one.ran("box1", "sleep 600", wait_seconds=0)
            self.assertEqual(ran["state"], "running")
            stopped = await one.done("stop", job=ran["job"])
            self.assertNotEqual(stopped["state"], "running")
            timed = await one.result("run", hosts=["box1"], command="sleep 601", timeout_seconds=1)
            self.assertTrue(timed.is_error)

    async def test_files_are_read_and_written_where_rules_allow(self) -> None:
        (self.bed.files / "private").mkdir()
        (self.bed.files / "private/a").write_text("secret")
        (self.bed.files / "out").symlink_to("/etc/passwd")
        (self.bed.files / "in").symlink_to("private/a")
        path = str(self.bed.files / "a.conf")
        for form in FORMS:
            async with session(self.bed, form) as one:
                await one.done("write", host="box1", path=path, content="one\n")
                os.chmod(path, 0o640)
                read = await one.done("read", host="box1", path=path)
                self.assertEqual((read["content"], read["encoding"], read["end"]), ("one\n", "utf-8", True))
                self.assertIn("expected_sha256", await one.refused("write", host="box1", path=path, content="x"))
                wrong = hashlib.sha256(b"x").hexdigest()
                await one.refused("write", host="box1", path=path, content="x", expected_sha256=wrong)
                await one.done("write", host="box1", path=path, content="two\n", expected_sha256=read["sha256"])
                self.assertEqual((open(path).read(), os.stat(path).st_mode & 0o777), ("two\n", 0o640))
                for wrong_path in ["/etc/passwd", f"{path}/../../x", "relative", str(self.bed.files / "private/a")]:
                    await one.refused("read", host="box1", path=wrong_path)
                for link in ["out", "in"]:
                    self.assertIn("no rule allows", await one.refused("read", host="box1", path=str(self.bed.files / link)))
                    await one.refused("write", host="box1", path=str(self.bed.files / link), content="x")
                found = await one.done("search", host="box1", path=str(self.bed.files), pattern="tw|secret|root")
                self.assertEqual([match["path"] for match in found["matches"]], [path])
                tail = await one.done("tail", host="box1", path=path, lines=1)
                self.assertEqual(tail["text"], "two\n")
                await one.done("copy", from_host="box1", from_path=path, to_host="box2", to_path=f"{path}.copy", overwrite=True)
                self.assertEqual(open(f"{path}.copy").read(), "two\n")
                names = {entry["name"] for entry in (await one.done("list", host="box1", path=str(self.bed.files)))["entries"]}
                self.assertEqual(names, {"private", "out", "in", "a.conf", "a.conf.copy"})
                resource = await one.client.read_resource(f"host://box1{path}")
                self.assertEqual(resource.contents[0].text, "two\n")  # type: ignore[union-attr]
            os.remove(path)
            os.remove(f"{path}.copy")

    async def test_the_person_is_asked(self) -> None:
        for form in FORMS:
            for says, made in [("no", False), ("yes", False), ("once", True)]:
                path = self.bed.files / f"{form}-{says}"
                async with session(self.bed, form, says) as one:
                    result = await one.result("run", hosts=["box1"], command=f"touch {path}")
                    self.assertEqual(bool(result.is_error), not made, result)
                    self.assertEqual(len(one.asked), 1)
                    self.assertIn(f"touch {path}", one.asked[0])
                    self.assertEqual(path.exists(), made)
            async with session(self.bed, form, "session") as one:
                for _ in range(2):
                    await one.done("run", hosts=["box1"], command=f"touch {self.bed.files}/s")
                self.assertEqual(len(one.asked), 1)
                await one.done("run", hosts=["box1"], command=f"touch {self.bed.files}/t")
                self.assertEqual(len(one.asked), 2)

    async def test_each_call_is_recorded_with_its_client(self) -> None:
        async with session(self.bed, FORMS[0]) as one:
            await one.ran("box1", "true")
            await one.refused("run", hosts=["box1"], command="id")
        shown = self.bed.trunkline("audit", "show", "--who", "a-test 7.5", "--json")
        records = [json.loads(line) for line in shown.stdout.splitlines()]
        calls = [record for record in records if record["kind"] == "call" and record["event"] == "end"]
        self.assertEqual([call["command"] for call in calls], ["run true", "run id"], shown)
        self.assertEqual((calls[0]["decision"], calls[0]["status"]), ("allowed by rule allow 1", 0))
        self.assertEqual((calls[1]["decision"], calls[1]["execution"]), ("denied", "did not start"))
        verified = self.bed.trunkline("audit", "verify")
        self.assertEqual(verified.returncode, 0, verified.stdout)

    async def test_mistakes_in_the_rules_are_told(self) -> None:
        self.bed.rules("[[allow]]\nhosts = [\"box1\"]\ncommands = [\"a | b\"]\n")
        async with session(self.bed, FORMS[0]) as one:
            told = await one.refused("run", hosts=["box1"], command="true")
            self.assertIn("line 3", told)
            self.assertIn("^", told)


class Ends(unittest.TestCase):
    """What a client's leaving does, without any client's library."""

    def setUp(self) -> None:
        self.bed = self.enterContext(Bed(servers=1))

    def begin(self, **arguments: Any) -> tuple[subprocess.Popen[bytes], int]:
        """A server with a command that notes its number and goes on; that number."""
        self.bed.rules(
            (self.bed.place / "mcp.toml").read_text() + '\n[[allow]]\nhosts = ["box1"]\nshell = true\n'
        )
        server = subprocess.Popen(
            [self.bed.command, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **self.bed.env}
        )
        assert server.stdin is not None and server.stdout is not None
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "plain", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        noted = self.bed.files / "pid"
        # Whatever the server does with signals (sshd takes none for root), its channel's end ends what writes.
        command = f"echo $$ > {noted}.new && mv {noted}.new {noted}; while echo on; do sleep 0.1; done"
        params = {
            "_meta": meta,
            "name": "run",
            "arguments": {"hosts": ["box1"], "command": command, "shell": True, "wait_seconds": 0, **arguments},
        }
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        self.assertEqual(answer["result"]["structuredContent"]["hosts"][0]["state"], "running", answer)
        self.wait_for(noted.exists)
        return server, int(noted.read_text())

    def wait_for(self, is_so: Any) -> None:
        async def until() -> None:
            while not is_so():
                await asyncio.sleep(0.02)

        asyncio.run(asyncio.wait_for(until(), 60))

    @staticmethod
    def runs(pid: int) -> bool:
        return os.path.exists(f"/proc/{pid}")

    def test_the_end_of_input_ends_commands(self) -> None:
        server, pid = self.begin()
        assert server.stdin is not None
        server.stdin.close()
        self.assertEqual(server.wait(60), 0)
        self.wait_for(lambda: not self.runs(pid))

    def test_sigterm_ends_commands_though_input_stays_open(self) -> None:
        server, pid = self.begin()
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(60), 0)
        self.wait_for(lambda: not self.runs(pid))

    def test_what_is_to_go_on_goes_on(self) -> None:
        server, pid = self.begin(keep_running=True)
        assert server.stdin is not None
        server.stdin.close()
        self.assertEqual(server.wait(60), 0)
        self.assertTrue(self.runs(pid))
        os.kill(pid, signal.SIGKILL)

    def test_starting_has_no_effect(self) -> None:
        before = sorted(path.name for path in self.bed.place.iterdir())
        server = subprocess.run([self.bed.command, "mcp"], stdin=subprocess.DEVNULL, env={**os.environ, **self.bed.env}, timeout=60)
        self.assertEqual(server.returncode, 0)
        self.assertEqual(sorted(path.name for path in self.bed.place.iterdir()), before)


if __name__ == "__main__":
    unittest.main()
