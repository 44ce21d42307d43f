"""Interpreters that are interrupted, forked and ended; what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import Testbed, run_python, wait_until

CONNECT = """
import os, sys, trunkline
def connect(**more):
    return trunkline.connect("box1", config=sys.argv[1], daemon=False, **more)
"""


def test_an_interpreter_ends_with_streams_open(testbed: Testbed) -> None:
    program = CONNECT + "p = connect().start('yes'); print(p.stdout.readline().strip())"
    done = run_python(program, testbed.config)
    assert (done.returncode, done.stdout, done.stderr) == (0, "y\n", "")


def test_an_interpreter_ends_while_a_thread_waits(testbed: Testbed) -> None:
    program = CONNECT + (
        "import threading\nbox = connect()\n"
        "p = box.start('echo up; sleep 1000')\np.stdout.readline()\n"
        "threading.Thread(target=p.wait, daemon=True).start()\nprint('ends')"
    )
    done = run_python(program, testbed.config)
    assert (done.returncode, done.stdout) == (0, "ends\n")


def test_control_c_interrupts_a_wait_and_ends_the_command(testbed: Testbed, tmp_path: Path) -> None:
    program = CONNECT + (
        "box = connect()\nprint('up', flush=True)\n"
        "try:\n    box.run('trap \"touch $GONE; exit\" HUP; export GONE=' + sys.argv[2] + '; touch $GONE.up; "
        "while :; do sleep 0.01; done')\n"
        "except KeyboardInterrupt:\n    print(box.run('echo interrupted').stdout, end='', flush=True)\n"
    )
    gone = tmp_path / "gone"
    process = subprocess.Popen([sys.executable, "-c", program, testbed.config, str(gone)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    wait_until(Path(f"{gone}.up").exists)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert process.returncode == 0


def test_a_forked_child_gets_a_clear_error_and_an_engine_of_its_own(testbed: Testbed) -> None:
    program = (
        CONNECT
        + """
box = connect()
running = box.start("cat")
running.started()
pid = os.fork()
if pid == 0:
    try:
        box.run("true")
    except trunkline.ForkError as error:
        print("child:", error, flush=True)
    del box, running
    print("child:", connect().run("echo fresh").stdout, end="", flush=True)
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("parent:", running.communicate("works")[0], box.run("echo too").stdout, end="")
"""
    )
    done = run_python(program, testbed.config)
    said = "child: this belongs to the parent process: connect again in a child made by fork"
    assert done.stdout.splitlines() == [said, "child: fresh", "parent: works too"], done.stderr


def test_forked_children_use_nothing_that_a_thread_of_their_parents_may_hold(testbed: Testbed) -> None:
    # SQLite's locks are such things, and so is the queue to logging. A child would wait for good, one time in hundreds: what
    # counts is that it does not use them.
    program = (
        CONNECT
        + """
import logging, threading
told = []
class Told(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())
logging.getLogger("trunkline").addHandler(Told())
logging.getLogger("trunkline").setLevel("DEBUG")
trunkline.enable_logging("DEBUG")
def databases():
    files = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sorted(file for file in files if "hosts.sqlite3" in (os.path.islink(file) and os.readlink(file) or ""))
over = threading.Event()
def work():
    while not over.is_set():
        with connect(share=False) as box:
            box.run("true")
connect().run("true")
assert databases()
workers = [threading.Thread(target=work) for _ in range(3)]
for worker in workers:
    worker.start()
for number in range(10):
    pid = os.fork()
    if pid == 0:
        told.clear()
        before = databases()
        said = connect().run(f"echo {number}").stdout
        print(int(said) == number, before == databases(), bool(told), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
over.set()
for worker in workers:
    worker.join()
"""
    )
    done = run_python(program, testbed.config)
    assert done.stdout == "True True True\n" * 10, done.stderr


def test_gevent_may_replace_everything(testbed: Testbed) -> None:
    pytest.importorskip("gevent")
    program = (
        "from gevent import monkey; monkey.patch_all()\nimport gevent\n"
        + CONNECT
        + "import logging; trunkline.enable_logging()\nbox = connect()\n"
        "jobs = [gevent.spawn(box.run, f'echo {n}') for n in range(5)]\n"
        "gevent.joinall(jobs)\nprint(sorted(int(job.value.stdout) for job in jobs))"
    )
    done = run_python(program, testbed.config)
    assert done.stdout == "[0, 1, 2, 3, 4]\n", done.stderr


def test_nothing_is_left_of_what_was_closed(testbed: Testbed) -> None:
    def work() -> None:
        with trunkline.connect("box1", config=testbed.config, daemon=False, share=False) as box:
            box.run("true")
            with box.start("yes") as process:
                process.stdout.readline()

    work()
    before = descriptors(), threading.active_count(), resident()
    for _ in range(30):
        work()
    wait_until(lambda: descriptors() <= before[0])
    assert threading.active_count() <= before[1]
    # One connection's buffers are 256 KiB each: thirty that stayed would show.
    assert resident() - before[2] < 8_000_000


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """Names of so many hosts. Every second one does not answer; of the others, some have a server and some refuse to be
    connected to."""
    bed = Testbed("--any-address", "--config", "MaxStartups 500")
    with socket.socket() as silent:
        silent.bind(("", 0))
        # Nobody accepts: the first are connected and hear nothing, and the kernel does not answer the others.
        silent.listen(20)
        ports = {"127.1": bed.ports[0], "127.2": 1, "127.3": silent.getsockname()[1]}
        other = ("host", "hostname", "port", "connecttimeout", "kexalgorithms")
        told = subprocess.check_output(["ssh", "-TG", "-F", bed.config, "box1"], text=True)
        same = "".join(line for line in told.splitlines(keepends=True) if line.split()[0] not in other)
        # Those that answer do so in the end, however busy the machine is.
        limits = {"127.1": 60, "127.2": 60, "127.3": 1}
        cases = " ".join(f"{net}.*) port={port} limit={limits[net]};;" for net, port in ports.items())
        # ssh itself takes 5 ms of CPU time to say what a host is, and other key exchanges longer than the rest of a log-in.
        ssh = tmp_path / "ssh"
        ssh.write_text(
            f"#!/bin/sh\nfor host; do :; done\ncase $host in {cases} esac\n"
            f'echo "host $host\nhostname $host\nport $port\nconnecttimeout $limit\n'
            f"kexalgorithms curve25519-sha256\n\"'{same}'\n"
        )
        ssh.chmod(0o755)
        monkeypatch.setenv("TRUNKLINE_SSH", str(ssh))

        def names(count: int) -> list[str]:
            each = [
                (f"127.{2 if n % 50 else 1}.{n >> 8}.{n & 255}", f"127.3.{n >> 8}.{n & 255}")
                for n in range(1, count // 2 + 1)
            ]
            return [name for pair in each for name in pair]

        yield names
    bed.close()


#: A minute of both cores: make nightly has all of them.
MANY = 10_000 if os.environ.get("TRUNKLINE_NIGHTLY") else 2_000


def test_thousands_of_hosts_of_which_half_do_not_answer_leave_nothing(fleet: Callable[[int], list[str]]) -> None:
    def ask(count: int) -> list[trunkline.HostResult[Any]]:
        # Of other hosts' ssh_config nothing takes part.
        with trunkline.Group(fleet(count), config="none", daemon=False, share=False) as group:
            return group.run("true", at_once=400).wait()

    def resources() -> tuple[int, int, int, int]:
        return descriptors(), threading.active_count(), tasks(), resident()

    ask(400)
    before = resources()
    results = ask(MANY)
    assert len(results) == MANY
    assert not any(result.error and result.error.may_have_run for result in results)
    by_net = {net: [each for each in results if each.host.startswith(net)] for net in ("127.1.", "127.2.", "127.3.")}
    assert [str(each.error) for each in by_net["127.1."] if not each.ok] == []
    assert {(type(each.error), str(each.error).split(": ")[-1]) for each in by_net["127.2."]} == {
        (trunkline.NetworkError, "Connection refused")
    }
    assert {type(each.error) for each in by_net["127.3."]} == {trunkline.TimeoutError}
    del results, by_net
    # The engine's own threads: as many as processors, and those for blocking work, which end after ten idle seconds.
    wait_until(lambda: descriptors() <= before[0] and tasks() <= before[2])
    after = resources()
    assert after[1] <= before[1]
    # What ssh said of 8,192 hosts is remembered.
    assert after[3] - before[3] < min(MANY, 8192) * 25_000
    ask(1000)
    # A thousand hosts that stayed with 16 KB each would show.
    assert resident() - after[3] < 16_000_000


def test_the_engine_says_through_logging_what_it_does(testbed: Testbed, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "trunkline"):
        trunkline.enable_logging("DEBUG")
        with trunkline.connect("box1", config=testbed.config, daemon=False, share=False) as box:
            box.run("true")
        wait_until(lambda: any(record.name.startswith("trunkline") for record in caplog.records))
        trunkline.enable_logging(255)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_files_that_are_open_at_the_end_are_let_go_without_a_word(testbed: Testbed, tmp_path: Path) -> None:
    program = (
        "import sys, trunkline\n"
        "box = trunkline.connect(sys.argv[1], config=sys.argv[2], daemon=False)\n"
        "read, written = (box.sftp().open(f'{sys.argv[3]}/{mode}', mode) for mode in ('w+b', 'ab'))\n"
        "print('end')\n"
    )
    command = [sys.executable, "-X", "dev", "-c", program, testbed.aliases[0], testbed.config, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_what_was_written_arrives_though_its_file_is_open_at_the_end(testbed: Testbed, tmp_path: Path) -> None:
    program = """
import os, sys, trunkline
box = trunkline.connect(sys.argv[1], config=sys.argv[2], daemon=False)
sftp = box.sftp()
files = [(mode, sftp.open(f"{sys.argv[3]}/{mode}", mode)) for mode in ("w", "wb", "a", "x+b")]
for mode, file in files:
    file.write(b"content" if "b" in mode else "content")
if os.fork() == 0:
    sys.exit()
os.wait()
"""
    done = run_python(program, testbed.aliases[0], testbed.config, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert [(tmp_path / mode).read_text() for mode in ("w", "wb", "a", "x+b")] == ["content"] * 4


def test_what_does_not_arrive_at_the_end_is_told(testbed: Testbed) -> None:
    program = """
import sys, trunkline
file = trunkline.connect(sys.argv[1], config=sys.argv[2], daemon=False).sftp().open("/dev/full", "w")
file.write("content")
"""
    done = run_python(program, testbed.aliases[0], testbed.config)
    assert "FileError" in done.stderr
