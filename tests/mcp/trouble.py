"""What goes wrong on the way to a host, or in the person's own files: each is one answer that says what happened, that nothing ran, and
what to do; and nothing that ssh_config says makes the rules wider."""

from __future__ import annotations

import json
import re
import shlex
import unittest
from pathlib import Path
from typing import Any

from bed import Bed
from session import FORMS, Session, session

RULES = """
[[allow]]
hosts = ["box*", "other"]
users = ["jo"]
commands = ["true", "printenv SSH_CONNECTION"]
read = ["/etc"]

[[deny]]
hosts = ["127.0.0.9"]
"""


class Trouble(unittest.IsolatedAsyncioTestCase):
    def bed(self, *options: str) -> Bed:
        self.the_bed = self.enterContext(Bed(servers=2, rules=RULES, options=options))
        self.config = Path(self.the_bed.about["ssh_config"])
        return self.the_bed

    def prepend(self, text: str) -> None:
        self.config.write_text(text + self.config.read_text())

    async def failed(self, one: Session, host: str) -> Any:
        """A command that cannot be run: the answer is an error that says so of this host."""
        result = await one.result("run", hosts=[host], command="true")
        self.assertTrue(result.is_error, result)
        assert result.structured_content is not None
        (ran,) = result.structured_content["hosts"]
        self.assertEqual(ran["state"], "did not start", ran)
        self.assertIn(ran["error"], result.content[0].text)  # type: ignore[union-attr]
        return ran["error"]

    async def test_a_host_key_that_has_changed(self) -> None:
        bed = self.bed()
        known = Path(bed.about["hosts"][0]["known_hosts"])
        keys = known.read_text().splitlines()
        other = Path(bed.about["hosts"][1]["known_hosts"]).read_text().splitlines()
        changed = [" ".join([mine.split()[0], *theirs.split()[1:]]) for mine, theirs in zip(keys, other)]
        known.write_text("\n".join(changed) + "\n")
        for form in FORMS:
            async with session(bed, form) as one:
                error = await self.failed(one, "box1")
                self.assertIn("host key", error.lower())
                self.assertIn("in a terminal: `trunkline warm -F ", error)
                # Files are no way around it, and another host is not held up.
                self.assertIn("host key", (await one.refused("stat", host="box1", path="/etc/hostname")).lower())
                self.assertEqual((await one.ran("box2", "true"))["exit_status"], 0)

    async def test_a_password_that_nobody_can_give(self) -> None:
        bed = self.bed("--password", "secret")
        self.prepend("Host box1\n  PreferredAuthentications password\n  PubkeyAuthentication no\n")
        for form in FORMS:
            async with session(bed, form) as one:
                error = await self.failed(one, "box1")
                self.assertEqual((await one.ran("box2", "true"))["exit_status"], 0)
                # What it says to do helps.
                advice = shlex.split(error.split("`")[-2])
                self.assertEqual(advice[:2], ["trunkline", "warm"], error)
                askpass = bed.files / "askpass"
                askpass.write_text("#!/bin/sh\necho secret\n")
                askpass.chmod(0o755)
                warmed = bed.trunkline(*advice[1:], SSH_ASKPASS=str(askpass), SSH_ASKPASS_REQUIRE="force")
                self.assertEqual(warmed.returncode, 0, warmed)
                self.assertEqual((await one.ran("box1", "true"))["exit_status"], 0)
                self.assertEqual(bed.trunkline("close", "--all").returncode, 0)

    async def test_names_run_nothing_of_ssh_config_that_no_rule_is_about(self) -> None:
        bed = self.bed()
        mark = bed.files / "ran"
        # What a person may well have in there: each runs for names that it is asked about.
        self.prepend(
            f'Match exec "echo %n %r >> {mark}; false"\n  User nobody\n'
            f'Match originalhost x* exec "touch {mark}.x"\n  ProxyCommand touch {mark}.proxy\n'
        )
        hostile = ["x", "x;id", "$(id)", "`id`", "jo;id@box1", "$(id)@box1", "-oProxyCommand=id", "box1 -oProxyCommand=id"]
        hostile += ["box1,other", "box1%h", "../box1", "ssh://box1", "root@box1", "box1:22", "box1.evil", "box1\n", "127.0.0.9"]
        async with session(bed, FORMS[0]) as one:
            for host in hostile:
                await one.refused("run", hosts=[host], command="true")
                await one.refused("read", host=host, path="/etc/hostname")
            self.assertFalse(mark.exists() or Path(f"{mark}.x").exists() or Path(f"{mark}.proxy").exists())
            self.assertEqual((await one.ran("box1", "true"))["exit_status"], 0)
            # The person's own configuration counts for what is allowed.
            self.assertIn("box1", mark.read_text())

    async def test_a_name_that_leads_to_a_denied_host_is_denied(self) -> None:
        bed = self.bed()
        included = bed.files / "included"
        included.write_text("")
        self.prepend(f"Include {included}\n")
        async with session(bed, FORMS[0]) as one:
            self.assertEqual((await one.ran("box1", "true"))["exit_status"], 0)
            # Though a connection by that name is open.
            for condition in ["Host box1", "Match originalhost box1 exec true"]:
                included.write_text(f"{condition}\n  HostName 127.0.0.9\nHost *\n")
                told = await one.refused("run", hosts=["box1"], command="true")
                self.assertIn("denied", told)
                await one.refused("read", host="box1", path="/etc/hostname")
            included.write_text("")
            self.assertEqual((await one.ran("box1", "true"))["exit_status"], 0)

    async def test_a_name_that_means_another_host_by_now_reaches_that(self) -> None:
        bed = self.bed()
        ports = [str(host["port"]) for host in bed.about["hosts"]]
        async with session(bed, FORMS[0]) as one:

            async def reached() -> str:
                ran = await one.ran("box1", "printenv SSH_CONNECTION")
                return str(ran["stdout"]["text"].split()[3])

            self.assertEqual(await reached(), ports[0])
            text = self.config.read_text()
            self.config.write_text(re.sub(r"box(\d)", lambda name: f"box{3 - int(name[1])}", text))
            self.assertEqual(await reached(), ports[1])

    async def test_a_proxy_command_that_fails(self) -> None:
        bed = self.bed()
        self.prepend("Host box1\n  ProxyCommand echo no way >&2; exit 7\n")
        async with session(bed, FORMS[0]) as one:
            error = await self.failed(one, "box1")
            self.assertIn("ProxyCommand", error)

    async def test_a_configuration_with_a_mistake(self) -> None:
        bed = self.bed()
        self.prepend("Host box1\n  NoSuchDirective yes\n")
        async with session(bed, FORMS[0]) as one:
            told = await one.refused("run", hosts=["box1"], command="true")
            self.assertIn("line 2", told)
            self.assertIn("did not start", told)

    async def test_rules_with_a_mistake(self) -> None:
        bed = self.bed()
        for line, rule in [
            (2, 'hosts = ["-oProxyCommand=id"]'),
            (3, 'hosts = ["box1"]\ncommand = ["true"]'),
            (3, 'hosts = ["box1"]\ncommands = ["a | b"]'),
            (3, 'hosts = ["box1"]\nread = ["log"]'),
            (3, 'hosts = ["box1"]\nports = [70000]'),
            (1, 'commands = ["true"]'),
            (1, 'hosts = ["box*"]\nshell = true'),
            (2, 'hosts = ["box1"'),
        ]:
            bed.rules(f"[[allow]]\n{rule}\n")
            for form in FORMS:
                async with session(bed, form) as one:
                    told = await one.refused("run", hosts=["box1"], command="true")
                    self.assertRegex(told, rf"line {line}, column \d+(.|\n)*\^", rule)
            checked = bed.trunkline("mcp", "check")
            self.assertNotEqual(checked.returncode, 0)
            self.assertIn(f"line {line}", checked.stderr)
        bed.rules("")
        (bed.place / "mcp.toml").chmod(0o666)
        async with session(bed, FORMS[0]) as one:
            self.assertIn("chmod go-w", await one.refused("run", hosts=["box1"], command="true"))

    async def test_a_refusal_is_recorded_with_its_reason(self) -> None:
        bed = self.bed()
        async with session(bed, FORMS[0]) as one:
            await one.refused("run", hosts=["box1"], command="id")
        shown = bed.trunkline("audit", "show", "--json").stdout
        ends = [record for record in map(json.loads, shown.splitlines()) if record["event"] == "end"]
        self.assertEqual([(end["decision"], end["execution"]) for end in ends], [("denied", "did not start")])
        self.assertIn("no rule allows", ends[0]["error"])


if __name__ == "__main__":
    unittest.main()
