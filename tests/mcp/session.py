"""The official Python client, in both forms of the protocol, works on hosts by rules."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import threading
import unittest
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
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
        linked = Path(f"{self.bed.files}-linked")
        linked.symlink_to(self.bed.files)
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
                # A rule may name a link; what is denied where it leads is denied.
                self.assertEqual((await one.done("read", host="box1", path=f"{linked}/a.conf"))["content"], "two\n")
                await one.refused("read", host="box1", path=f"{linked}/private/a")
                found = await one.done("search", host="box1", path=str(linked), pattern="tw|secret|root")
                self.assertEqual([match["path"] for match in found["matches"]], [f"{linked}/a.conf"])
                tail = await one.done("tail", host="box1", path=path, lines=1)
                self.assertEqual(tail["text"], "two\n")
                await one.done(
                    "copy", from_host="box1", from_path=path, to_host="box2", to_path=f"{path}.copy", overwrite=True
                )
                self.assertEqual(open(f"{path}.copy").read(), "two\n")
                names = {
                    entry["name"] for entry in (await one.done("list", host="box1", path=str(self.bed.files)))["entries"]
                }
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
        self.bed.rules('[[allow]]\nhosts = ["box1"]\ncommands = ["a | b"]\n')
        async with session(self.bed, FORMS[0]) as one:
            told = await one.refused("run", hosts=["box1"], command="true")
            self.assertIn("line 3", told)
            self.assertIn("^", told)


class Raw:
    """A client that says whatever it likes."""

    META: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "plain", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }

    def __init__(self, bed: Bed) -> None:
        env = {**os.environ, **bed.env}
        self.server = subprocess.Popen([bed.command, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def say(self, **message: Any) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.server.stdin.flush()

    def hear(self) -> Any:
        assert self.server.stdout is not None
        return json.loads(self.server.stdout.readline())

    def call(self, number: int, command: str, **more: Any) -> None:
        arguments = {"hosts": ["box1"], "command": command}
        params = {"_meta": self.META, "name": "run", "arguments": arguments, **more}
        self.say(id=number, method="tools/call", params=params)

    def begin(self) -> None:
        """As the older form of the protocol has it."""
        info = {"name": "plain", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": info}
        self.say(id=0, method="initialize", params=params)
        self.hear()
        self.say(method="notifications/initialized")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.communicate(timeout=60)


class Hostile(unittest.TestCase):
    """Clients that want more than they were given."""

    def setUp(self) -> None:
        self.bed = self.enterContext(Bed(servers=1))

    def test_a_yes_counts_for_what_was_shown_and_once(self) -> None:
        path, other = self.bed.files / "a", self.bed.files / "b"
        with Raw(self.bed) as client:

            def asked(number: int, command: str) -> str:
                client.call(number, command)
                result = client.hear()["result"]
                self.assertEqual(result["resultType"], "input_required", result)
                self.assertIn(command, result["inputRequests"]["permission"]["params"]["message"])
                return str(result["requestState"])

            def answered(number: int, command: str, state: str) -> bool:
                said = {"permission": {"action": "accept", "content": {"answer": "once"}}}
                client.call(number, command, requestState=state, inputResponses=said)
                return not client.hear()["result"]["isError"]

            state = asked(1, f"touch {path}")
            self.assertFalse(answered(2, f"touch {other}", state))
            self.assertFalse(answered(3, f"touch {path}", state[:-2] + "AA"))
            self.assertFalse(answered(4, f"touch {path}", "made up"))
            self.assertFalse(path.exists() or other.exists())
            self.assertTrue(answered(5, f"touch {path}", state))
            self.assertTrue(path.exists())
            path.unlink()
            self.assertFalse(answered(6, f"touch {path}", state))
            self.assertFalse(path.exists())

    def test_a_yes_after_the_call_was_cancelled_is_no(self) -> None:
        path = self.bed.files / "a"
        with Raw(self.bed) as client:
            client.begin()
            client.call(1, f"touch {path}", _meta={})
            question = client.hear()
            self.assertEqual(question["method"], "elicitation/create")
            client.say(method="notifications/cancelled", params={"requestId": 1})
            # The question is withdrawn, which shows that the cancellation was heard.
            self.assertEqual(client.hear()["method"], "notifications/cancelled")
            client.say(id=question["id"], result={"action": "accept", "content": {"answer": "session"}})
            # Nothing was remembered either: the same is asked for again.
            client.call(2, f"touch {path}", _meta={})
            question = client.hear()
            self.assertEqual(question["method"], "elicitation/create", question)
            self.assertFalse(path.exists())
            client.say(id=question["id"], result={"action": "decline"})
            self.assertTrue(client.hear()["result"]["isError"])
        self.assertFalse(path.exists())

    def test_ten_thousand_calls_at_once_have_answers(self) -> None:
        count = 10_000
        with Raw(self.bed) as client:
            writing = threading.Thread(target=lambda: [client.call(number, "true") for number in range(count)])
            writing.start()
            answers = [client.hear() for _ in range(count)]
            writing.join()
        self.assertEqual({answer["id"] for answer in answers}, set(range(count)))
        for answer in answers:
            result = answer["result"]
            self.assertTrue(not result["isError"] or "did not start" in result["content"][0]["text"], result)
        self.assertTrue(any(not answer["result"]["isError"] for answer in answers))


class Ends(unittest.TestCase):
    """The effects of a client's leaving, without any client's library."""

    def setUp(self) -> None:
        self.bed = self.enterContext(Bed(servers=1))

    def begin(self, **arguments: Any) -> tuple[subprocess.Popen[bytes], int]:
        """A server with a command that notes its number and goes on; that number."""
        self.bed.rules((self.bed.place / "mcp.toml").read_text() + '\n[[allow]]\nhosts = ["box1"]\nshell = true\n')
        client = Raw(self.bed)
        noted = self.bed.files / "pid"
        # Whatever the server does with signals (sshd takes none for root), its channel's end ends what writes.
        command = f"echo $$ > {noted}.new && mv {noted}.new {noted}; while echo on; do sleep 0.1; done"
        more = {"shell": True, "wait_seconds": 0, **arguments}
        call = {"hosts": ["box1"], "command": command, **more}
        client.call(1, command, arguments=call)
        answer = client.hear()
        server = client.server
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
        server = subprocess.run(
            [self.bed.command, "mcp"], stdin=subprocess.DEVNULL, env={**os.environ, **self.bed.env}, timeout=60
        )
        self.assertEqual(server.returncode, 0)
        self.assertEqual(sorted(path.name for path in self.bed.place.iterdir()), before)


if __name__ == "__main__":
    unittest.main()
