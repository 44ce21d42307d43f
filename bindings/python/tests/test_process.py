"""Commands that run on, with their streams."""

from __future__ import annotations

import csv
import gzip
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import trunkline
from conftest import Testbed, wait_until


def test_lines_come_as_they_are_written(box: trunkline.Connection) -> None:
    with box.start("while read line; do echo got $line; done; echo end") as process:
        for word in ("one", "two"):
            process.stdin.write(f"{word}\n")
            assert process.stdout.readline() == f"got {word}\n"
        process.stdin.close()
        assert process.stdout.read() == "end\n"
        assert process.wait() == 0


def test_poll_does_not_wait(box: trunkline.Connection) -> None:
    with box.start("read line") as process:
        assert process.poll() is None
        process.stdin.write("\n")
        assert process.wait() == 0
        assert process.poll() == 0


def test_streams_are_files_for_the_standard_library(box: trunkline.Connection) -> None:
    with box.start("gzip -c; exit 4", encoding=None) as process:
        with gzip.open(process.stdout) as unpacked:
            process.stdin.write(b"a,b\nc,d\n")
            process.stdin.close()
            assert unpacked.read() == b"a,b\nc,d\n"
        assert process.wait() == 4
    with box.start("printf 'a,b\nc,d\n'") as text:
        assert list(csv.reader(text.stdout)) == [["a", "b"], ["c", "d"]]
    with (
        box.start("head -c 1000000 /dev/zero", encoding=None) as source,
        box.start("wc -c", encoding=None) as sink,
    ):
        shutil.copyfileobj(source.stdout, sink.stdin)
        assert sink.communicate()[0].strip() == b"1000000"


def test_communicate_loses_nothing_when_time_is_up(box: trunkline.Connection) -> None:
    process = box.start("printf 'first line\nsecond'; read line; echo $line; echo err >&2")
    assert process.stdout.readline() == "first line\n"
    with pytest.raises(trunkline.TimeoutError):
        # No end of input was sent: the first call's input is empty, but ends it.
        box.start("sleep 1000").communicate(timeout=0.05)
    assert process.communicate("third\n") == ("secondthird\n", "err\n")
    assert process.returncode == 0


def test_input_is_given_once_however_often_communicate_is_called(box: trunkline.Connection) -> None:
    process = box.start("echo first; sleep 0.5; wc -c")
    with pytest.raises(trunkline.TimeoutError):
        process.communicate("a" * 20_000_000, timeout=0.3)
    with pytest.raises(ValueError, match="earlier call"):
        process.communicate("more")
    with pytest.raises(BrokenPipeError):
        process.stdin.write("more")
    assert process.communicate() == ("first\n20000000\n", "")


def test_output_that_came_before_an_interrupt_is_kept(box: trunkline.Connection, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    process = box.start(f"echo first; until test -e {gate}; do sleep 0.01; done; echo second")
    interrupt = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        process.communicate()
    assert process.stdout.readline() == "first\n"
    gate.touch()
    assert process.communicate() == ("second\n", "")


def test_complete_is_a_result(box: trunkline.Connection) -> None:
    result = box.start("cat; exit 2").complete("x")
    assert (result.returncode, result.stdout, result.command) == (2, "x", "cat; exit 2")


def test_writing_to_a_command_that_has_ended_is_a_broken_pipe(box: trunkline.Connection) -> None:
    process = box.start("true", encoding=None)
    process.wait()
    with pytest.raises(BrokenPipeError):
        process.stdin.write(b"x")


def test_signals_arrive(box: trunkline.Connection, testbed: Testbed) -> None:
    process = box.start("trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.01; done")
    assert process.stdout.readline() == "ready\n"
    process.send_signal("SIGUSR1")
    if os.geteuid() == 0:
        # sshd has no process between itself and root's session that could signal (session.c, session_signal_req).
        log = testbed.directory / "sshd.log"
        wait_until(lambda: "session signalling requires privilege separation" in log.read_text())
        process.close()
        return
    assert process.stdout.read() == "caught\n"
    assert process.wait() == 9


def test_a_closed_process_says_so(box: trunkline.Connection) -> None:
    with box.start("sleep 1000") as process:
        process.started()
    assert process.stdout.read() == ""
    with pytest.raises(BrokenPipeError):
        process.stdin.write("x")


def test_a_stalled_reader_holds_up_nobody_else(box: trunkline.Connection) -> None:
    with box.start("head -c 30000000 /dev/zero", encoding=None) as stalled:
        stalled.started()
        assert box.run("echo free").stdout == "free\n"
        assert len(stalled.stdout.read()) == 30000000


def test_a_shell_runs_on_a_terminal(box: trunkline.Connection) -> None:
    with box.shell() as shell:
        shell.stdin.write("exec sh -c 'tty -s && echo terminal-$((1 + 1))'\n")
        assert any("terminal-2" in line for line in shell.stdout)
