"""The audit trail: what programs do with an engine of their own, beside what the daemon does, in one chain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKSPACE, Testbed

PROGRAM = os.environ.get("TRUNKLINE_PROGRAM", str(WORKSPACE / "target/debug/trunkline"))

# Four threads that run a command each, round after round, once a line has come on standard input.
WORKS = """
import os, sys, threading, trunkline
config, rounds = sys.argv[1], int(sys.argv[2])

def work(box, thread):
    for number in range(rounds):
        env = {'LC_SECRET': 'environment-of-mine'}
        box.run(f'cat; echo {os.getpid()} {thread} {number}', input=b'input-of-mine', env=env, check=True)

with trunkline.connect('box1', config=config, daemon=False) as box:
    threads = [threading.Thread(target=work, args=(box, thread)) for thread in range(4)]
    print('ready', flush=True)
    sys.stdin.readline()
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""

# The same in JavaScript, where promises are the threads.
WORKS_IN_NODE = """
const { connect } = require('trunkline');
const [config, rounds] = process.argv.slice(1);

async function work(box, thread) {
  for (let number = 0; number < Number(rounds); number += 1) {
    const options = { input: 'input-of-mine', env: { LC_SECRET: 'environment-of-mine' } };
    await box.run(`cat; echo ${process.pid} ${thread} ${number}`, options);
  }
}

connect('box1', { config, daemon: false }).then(async (box) => {
  console.log('ready');
  await require('node:events').once(process.stdin, 'data');
  await Promise.all([0, 1, 2, 3].map((thread) => work(box, thread)));
  process.exit();
});
"""


class Trail:
    def __init__(self, directory: Path, settings: str) -> None:
        self.directory = directory
        self.env = {**os.environ, "TRUNKLINE_DIR": str(directory), "TRUNKLINE_PROGRAM": str(PROGRAM)}
        (directory / "config.toml").write_text(settings)

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def python(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        return self.start(sys.executable, "-c", program, *arguments)

    def node(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Runs it with the package for Node, of the sources and of the module that was built beside the programs."""
        package = self.directory / "node_modules/trunkline"
        if not package.exists():
            package.mkdir(parents=True)
            (package / "package.json").symlink_to(WORKSPACE / "bindings/node/package.json")
            (package / "lib").symlink_to(WORKSPACE / "bindings/node/lib")
            (package / "trunkline.node").symlink_to(Path(PROGRAM).parent / "libtrunkline_node.so")
        self.env["NODE_PATH"] = str(package.parent)
        return self.start("node", "--preserve-symlinks", "-e", program, "--", *arguments)

    def run(self, program: str, *arguments: str) -> str:
        process = self.python(program, *arguments)
        out, err = process.communicate("\n")
        assert (process.returncode, err) == (0, "")
        return out

    def verify(self) -> dict[str, Any]:
        done = subprocess.run([PROGRAM, "audit", "verify", "--json"], env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        verdict: dict[str, Any] = json.loads(done.stdout)
        return verdict

    def records(self) -> list[dict[str, Any]]:
        files = [*sorted((self.directory / "state/audit").glob("audit-*.jsonl")), self.directory / "state/audit/audit.jsonl"]
        return [json.loads(line) for file in files for line in file.read_text().splitlines() if line.startswith("{")]

    def stop(self) -> None:
        subprocess.run([PROGRAM, "stop", "--now"], env=self.env, capture_output=True, check=False)


def begin(*programs: subprocess.Popen[str]) -> None:
    """Lets them work, once all of them can."""
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tl-") as directory:
        yield Path(directory)


@pytest.mark.parametrize("mode", ["on", "strict"])
def test_programs_in_python_and_node_and_the_daemon_write_one_chain(testbed: Testbed, directory: Path, mode: str) -> None:
    trail = Trail(directory, f"audit = '{mode}'\naudit_file_size = 16384\naudit_files = 0\n")
    start = {"python": (trail.python, WORKS), "node": (trail.node, WORKS_IN_NODE)}
    programs = [
        (language, run(program, testbed.config, "10")) for language, (run, program) in start.items() for _ in range(2)
    ]
    runs = 0
    try:
        begin(*(process for _, process in programs))
        while runs < 5 or any(process.poll() is None for _, process in programs):
            run = [PROGRAM, "run", "-F", testbed.config, "-H", ",".join(testbed.aliases), "echo by the daemon"]
            subprocess.run(run, env=trail.env, capture_output=True, check=True)
            runs += 1
        for _, process in programs:
            assert (process.returncode, process.communicate()[1]) == (0, "")
    finally:
        trail.stop()
    verdict = trail.verify()
    assert (verdict["intact"], verdict["first"], verdict["unfinished"]) == (True, 1, 0)
    assert verdict["files"] > 3
    records = trail.records()
    for language, process in programs:
        own = [record for record in records if record.get("asker", {}).get("pid") == process.pid]
        assert all(record["engine"] == "program" and language in record["asker"]["program"] for record in own)
        commands = [f"cat; echo {process.pid} {thread} {number}" for thread in range(4) for number in range(10)]
        for event in ["begin", "end"]:
            assert sorted(record["command"] for record in own if record["event"] == event) == sorted(commands)
        ends = [record for record in own if record["event"] == "end"]
        assert all((end["execution"], end["status"], end["sent_bytes"]) == ("finished", 0, 13) for end in ends)
    by_daemon = [record for record in records if record.get("command") == "echo by the daemon"]
    assert len(by_daemon) == 2 * runs * len(testbed.aliases)
    assert not any("engine" in record for record in by_daemon)
    # Nobody wrote alone.
    writers = [record["asker"]["pid"] if "engine" in record else 0 for record in records if "asker" in record]
    assert sum(one != next_one for one, next_one in zip(writers, writers[1:])) > 2 * len(programs)
    assert "of-mine" not in json.dumps(records)


def test_a_program_that_is_killed_leaves_a_trail_that_can_be_verified(testbed: Testbed, directory: Path) -> None:
    trail = Trail(directory, "audit = 'on'\naudit_file_size = 8192\naudit_files = 0\n")
    for _ in range(3):
        other = trail.python(WORKS, testbed.config, "10")
        killed = trail.python(WORKS, testbed.config, "1000000")
        begin(other, killed)
        audit = directory / "state/audit/audit.jsonl"
        while not audit.exists() or str(killed.pid) not in audit.read_text():
            pass
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        _, err = other.communicate()
        assert (other.returncode, err) == (0, "")
        # Where a line was cut, whoever writes next says so.
        trail.run(WORKS, testbed.config, "1")
        assert trail.verify()["intact"]
    records = trail.records()
    numbers = [record["number"] for record in records]
    assert numbers == list(range(1, len(numbers) + 1))


def test_what_a_program_leaves_open_ends_with_it(testbed: Testbed, directory: Path) -> None:
    trail = Trail(directory, "audit = 'on'\n")
    program = (
        "import sys, trunkline\n"
        "box = trunkline.connect('box1', config=sys.argv[1], daemon=False)\n"
        "box.start('echo begun; exec sleep 1000').stdout.readline()\n"
        "files = box.sftp()\n"
        "files.write_bytes(sys.argv[2], b'content-of-mine')\n"
        "box.get(sys.argv[2], sys.argv[2] + '.copy')\n"
        "forward = box.forward_local(0, 1)\n"
    )
    trail.run(program, testbed.config, str(directory / "file"))
    verdict = trail.verify()
    assert (verdict["intact"], verdict["unfinished"]) == (True, 0)
    ends = {record["kind"]: record for record in trail.records() if record["event"] == "end"}
    assert set(ends) == {"session", "copy", "forwarding"}
    commands = {record.get("command"): record for record in trail.records() if record["event"] == "end"}
    assert commands["echo begun; exec sleep 1000"]["execution"] == "may have started"
    assert commands["sftp"]["execution"] == "finished"
    assert ends["copy"]["received_bytes"] == 15
    assert "of-mine" not in json.dumps(trail.records())


def test_the_faces_of_other_libraries_are_recorded(testbed: Testbed, directory: Path) -> None:
    trail = Trail(directory, "audit = 'strict'\n")
    program = (
        "import sys, trunkline.compat.paramiko as paramiko\n"
        "about = dict(line.split(None, 1) for line in sys.argv[1:])\n"
        "client = paramiko.SSHClient()\n"
        "client.set_missing_host_key_policy(paramiko.AutoAddPolicy())\n"
        "client.connect('127.0.0.1', port=int(about['port']), username=about['user'], key_filename=about['key'])\n"
        "_, out, _ = client.exec_command('echo by paramiko')\n"
        "print(out.read(), out.channel.recv_exit_status())\n"
        "client.close()\n"
    )
    host = testbed.about["hosts"][0]
    said = trail.run(program, f"port {host['port']}", f"user {host['user']}", f"key {host['key']}")
    assert said == "b'by paramiko\\n' 0\n"
    assert trail.verify()["unfinished"] == 0
    ends = [record for record in trail.records() if record["event"] == "end"]
    assert [(end["command"], end["execution"], end["engine"]) for end in ends] == [
        ("echo by paramiko", "finished", "program")
    ]


def test_nothing_runs_where_the_trail_is_strict_and_cannot_be_written(testbed: Testbed, directory: Path) -> None:
    trail = Trail(directory, "audit = 'strict'\n")
    (directory / "state").mkdir(mode=0o700)
    (directory / "state/audit").write_text("in its place")
    program = (
        "import sys, trunkline\n"
        "try:\n"
        "    trunkline.connect('box1', config=sys.argv[1], daemon=False).run('touch ' + sys.argv[2])\n"
        "except trunkline.LocalError as error:\n"
        "    print(error)\n"
    )
    assert "nothing was run, because it cannot be recorded in " in trail.run(program, testbed.config, str(directory / "ran"))
    assert not (directory / "ran").exists()
