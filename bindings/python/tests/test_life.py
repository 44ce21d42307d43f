"""Interpreters that are interrupted, forked and ended; what is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
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
    assert process.communicate(timeout=30)[0] == "interrupted\n"
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
        print("child:", type(error).__name__, flush=True)
    del box, running
    print("child:", connect().run("echo fresh").stdout, end="", flush=True)
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("parent:", running.communicate("works")[0], box.run("echo too").stdout, end="")
"""
    )
    done = run_python(program, testbed.config)
    assert done.stdout.splitlines() == ["child: ForkError", "child: fresh", "parent: works too"], done.stderr


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


def test_five_hundred_hosts_of_which_half_never_answer_leave_nothing(testbed: Testbed, tmp_path: Path) -> None:
    text = Path(testbed.config).read_text()
    with socket.create_server(("127.0.0.1", 0), backlog=500) as silent:
        # The others may take as long as this machine needs.
        silence = f"Host silent*\n  HostName 127.0.0.1\n  Port {silent.getsockname()[1]}\n  ConnectTimeout 1\n"
        config = tmp_path / "config"
        config.write_text(re.sub(r"^Host box1$", "Host box1 host*", text, flags=re.MULTILINE) + silence)

        def ask(count: int) -> list[trunkline.HostResult[Any]]:
            names = [f"{kind}{number}" for number in range(count) for kind in ("host", "silent")]
            with trunkline.Group(names, config=config, daemon=False, share=False) as group:
                return group.run("true", at_once=250).wait()

        ask(5)
        before = descriptors(), threading.active_count(), tasks(), resident()
        results = ask(250)
        assert [str(result.error) for result in results[::2] if not result.ok] == []
        unanswered = (trunkline.TimeoutError, trunkline.NetworkError)
        assert [str(result.error) for result in results[1::2] if not isinstance(result.error, unanswered)] == []
        assert not any(result.error and result.error.may_have_run for result in results)
    wait_until(lambda: descriptors() <= before[0])
    assert threading.active_count() <= before[1]
    # The engine's own threads: as many as processors, and those for blocking work, which end after ten idle seconds.
    assert tasks() - before[2] <= 100
    # 250 hosts that stayed would show with a buffer of 256 KiB each.
    assert resident() - before[3] < 40_000_000


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
