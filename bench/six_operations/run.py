"""The six operations of an SSH client, for Python's libraries, beside each other: ``run.py --help``.

For each number of sessions at once, the libraries take turns, round after round. What was measured goes to
``results.json``; ``report.html`` shows it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import metrics
import report
from clients import CHANNEL_OPEN, CLIENTS, EXECUTE, OPERATIONS, SFTP_READ, TOTAL, Target

OUTPUT, FILE = 26 * 1024, 11_000_000

#: How sessions log in: by the agent, or with a key's file.
SERIES = ("agent", "key file")


def main() -> None:
    arguments = parse()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    sinks: list[metrics.Sink] = []
    if arguments.graphite:
        sinks.append(metrics.Graphite(arguments.graphite))
    if arguments.influx:
        sinks.append(metrics.Influx(arguments.influx))
    records: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with servers(arguments.testbed) as (target, agent):
        for series in arguments.series:
            chosen = {**asdict(target), "key": None if series == "agent" else target.key}
            environment = {**os.environ, "SSH_AUTH_SOCK": agent}
            for count in arguments.sessions:
                print(f"{series}, {count} at once", file=sys.stderr, flush=True)
                for library, runs in turns(arguments, chosen, count, environment, failures).items():
                    figures = summary(runs, count)
                    records.append({"series": series, "library": library, "sessions": count, **figures})
                    for sink in sinks:
                        sink.write(series, library, count, flat(figures))
                results = {"facts": facts(arguments), "failures": failures, "records": records}
                (arguments.directory / "results.json").write_text(json.dumps(results, indent=1))
    report.write(results, arguments.directory)
    print(f"The report: {arguments.directory}/report.html")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--testbed", type=Path, default=Path("target/release/trunkline-testbed"), help="the program that starts the server")
    add("--directory", type=Path, default=Path("target/bench/six_operations"), help="where the report goes")
    add("--sessions", type=numbers, default=list(range(1, 51)), metavar="1-50", help="how many at once, such as 1,10,20-30")
    add("--rounds", type=int, default=3, help="how often each library has its turn")
    add("--series", type=lambda text: text.split(","), default=list(SERIES), help="agent, key file, or both")
    add("--libraries", type=lambda text: text.split("/"), default=list(CLIENTS), help=" / ".join(CLIENTS), metavar="A/B")
    add("--graphite", metavar="HOST:PORT", help="send figures to Graphite as they come")
    add("--influx", type=Path, metavar="FILE", help="append figures to a file in InfluxDB's line protocol")
    arguments = parser.parse_args()
    if unknown := (set(arguments.libraries) - set(CLIENTS)) | (set(arguments.series) - set(SERIES)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return arguments


def numbers(text: str) -> list[int]:
    """``1,10,20-22`` as 1, 10, 20, 21, 22."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [number for end in ends for number in range(end[0], end[-1] + 1)]


@contextlib.contextmanager
def servers(testbed: Path) -> Iterator[tuple[Target, str]]:
    """A stock sshd that lets as many in at once as come, what is read there, and an agent that has its key."""
    command = [str(testbed), "--config", "MaxStartups 4000"]
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert bed.stdin is not None
        assert bed.stdout is not None
        stack.callback(bed.stdin.close)
        host = json.loads(bed.stdout.readline())["hosts"][0]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="six-")))
        (directory / "output").write_bytes(os.urandom(OUTPUT))
        (directory / "file").write_bytes(os.urandom(FILE))
        # Host memory, which the engine keeps in the user's directories, starts empty.
        os.environ["TRUNKLINE_DIR"] = str(directory / "state")
        socket = str(directory / "agent")
        agent = stack.enter_context(subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL))
        stack.callback(agent.terminate)
        while not Path(socket).exists():
            if agent.poll() is not None:
                raise RuntimeError("ssh-agent has ended")
        subprocess.run(["ssh-add", "-q", host["key"]], env={**os.environ, "SSH_AUTH_SOCK": socket}, check=True)
        yield (
            Target(
                host=host["address"],
                port=host["port"],
                user=host["user"],
                key=host["key"],
                known_hosts=host["known_hosts"],
                command=f"cat {directory}/output",
                output=OUTPUT,
                file=f"{directory}/file",
                size=FILE,
            ),
            socket,
        )


def turns(
    arguments: argparse.Namespace, target: dict[str, Any], count: int, environment: dict[str, str], failures: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """The output of each library's processes. One that fails is out."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for round_ in range(arguments.rounds):
        turn = round_ % len(arguments.libraries)
        for library in arguments.libraries[turn:] + arguments.libraries[:turn]:
            if library in failures:
                continue
            command = [sys.executable, Path(__file__).with_name("sessions.py"), library, str(count), json.dumps(target)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            if done.returncode == 0:
                runs.setdefault(library, []).append(json.loads(done.stdout))
            else:
                failures[library] = f"{count} at once: {done.stderr.strip().splitlines()[-1:]}"
                print(f"  {library}: {done.stderr}", file=sys.stderr)
    return runs


def summary(runs: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """One library's figures: seconds of each operation of a session, over the sessions of all rounds; of the sessions
    together; CPU seconds for a session; bytes of memory."""
    sessions = [session for run in runs for session in run["sessions"]]
    sums = {operation: [operation] for operation in OPERATIONS}
    sums[report.OPEN_AND_EXECUTE] = [CHANNEL_OPEN, EXECUTE]
    sums[report.WITHOUT_SFTP] = [operation for operation in OPERATIONS if operation != SFTP_READ]
    sums[TOTAL] = [TOTAL]
    operations = {}
    for name, parts in sums.items():
        values = sorted(sum(session.get(part, 0) for part in parts) for session in sessions)
        if any(values):
            operations[name] = {"median": statistics.median(values), "p99": values[(len(values) * 99 - 1) // 100]}
    return {
        "operations": operations,
        "wall": statistics.median(run["wall"] for run in runs),
        "cpu": statistics.median(run["cpu"] for run in runs) / count,
        "memory": max(run["memory"] for run in runs),
    }


def flat(figures: dict[str, Any]) -> dict[str, float]:
    """Figures without levels, in seconds and bytes."""
    named = {
        f"{operation} {kind}": value for operation, kinds in figures["operations"].items() for kind, value in kinds.items()
    }
    return {**named, "wall": figures["wall"], "cpu": figures["cpu"], "memory": figures["memory"]}


def facts(arguments: argparse.Namespace) -> dict[str, str]:
    """The facts behind the figures."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ":")
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True).stderr.strip()
    return {
        "machine": f"{os.cpu_count()} CPUs of {model.partition(':')[2].strip()}, load {os.getloadavg()[0]:.1f}",
        "server": f"{version}, on loopback",
        "rounds": str(arguments.rounds),
        "Python": sys.version.split()[0],
    }


if __name__ == "__main__":
    main()
