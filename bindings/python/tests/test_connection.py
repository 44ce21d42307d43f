"""Running commands, for code that waits."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import Testbed, time_is_up


def test_a_command_leaves_its_status_and_both_outputs(box: trunkline.Connection) -> None:
    result = box.run("echo out; echo err >&2; exit 3")
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.ok
    assert result.signal is None


def test_words_arrive_as_they_are(box: trunkline.Connection) -> None:
    words = ["printf", "%s|", "a b", "$HOME", "'", "*", "ü", ""]
    assert box.run(words).stdout == "a b|$HOME|'|*|ü||"


def test_check_raises_what_has_the_result(box: trunkline.Connection) -> None:
    with pytest.raises(trunkline.CommandError, match="status 3") as caught:
        box.run("echo out; exit 3", check=True)
    assert caught.value.result.stdout == "out\n"
    assert caught.value.may_have_run


def test_a_signal_that_ended_the_command_is_named(box: trunkline.Connection) -> None:
    result = box.run("kill -TERM $$")
    assert (result.signal, result.returncode) == ("TERM", 143)


def test_input_arrives_whole_and_ends(box: trunkline.Connection) -> None:
    data = os.urandom(3_000_000)
    assert box.run("cat", input=data, encoding=None).stdout == data
    assert box.run("cat", input="ü\n").stdout == "ü\n"
    assert box.run("cat").stdout == ""


def test_a_command_that_reads_nothing_ends_with_input_left(box: trunkline.Connection) -> None:
    assert box.run("true", input=bytes(8_000_000)).ok


def test_bytes_that_are_no_text_are_kept_legible(box: trunkline.Connection) -> None:
    assert box.run(r"printf 'a\377b'").stdout == r"a\xffb"
    assert box.run(r"printf 'a\377b'", encoding=None).stdout == b"a\xffb"


def test_an_unknown_encoding_runs_nothing(box: trunkline.Connection, tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        box.run(["touch", str(tmp_path / "ran")], encoding="no-such-codec")
    assert not (tmp_path / "ran").exists()


def test_environment_variables_that_the_server_accepts_arrive(box: trunkline.Connection) -> None:
    result = box.run('echo "$TEST_ONE-$OTHER"', env={"TEST_ONE": "a b", "OTHER": "x"})
    assert result.stdout == "a b-\n"


def test_a_terminal_has_the_size_that_was_asked_for(box: trunkline.Connection) -> None:
    result = box.run("tty -s && stty size; echo $TERM", terminal=trunkline.Terminal("vt100", 101, 33))
    assert result.stdout.split() == ["33", "101", "vt100"]


def test_time_that_is_up_closes_the_session_and_keeps_the_output(box: trunkline.Connection) -> None:
    error = time_is_up(lambda limit: box.run("echo early; exec sleep 1000", timeout=limit), b"early\n")
    assert isinstance(error, TimeoutError)
    assert error.execution == "may have started"
    assert box.run("true").ok


def test_fifty_threads_share_one_connection(testbed: Testbed) -> None:
    with trunkline.connect(testbed.aliases[1], config=testbed.config, daemon=False, share=False) as box:
        barrier = threading.Barrier(50)

        def work(number: int) -> str:
            barrier.wait()
            return box.run(f"echo {number}").stdout

        with ThreadPoolExecutor(50) as pool:
            assert [int(out) for out in pool.map(work, range(50))] == list(range(50))


def test_a_connection_of_ones_own_is_not_shared_and_ends(testbed: Testbed) -> None:
    def connect(share: bool) -> trunkline.Connection:
        return trunkline.connect(testbed.aliases[0], config=testbed.config, daemon=False, share=share)

    with connect(True) as one, connect(True) as two, connect(False) as own:
        server = "echo $SSH_CONNECTION"
        assert one.run(server).stdout == two.run(server).stdout
        assert own.run(server).stdout != one.run(server).stdout
        process = own.start("exec sleep 1000")
        process.started()
    with pytest.raises(trunkline.ClosedError):
        own.run("true")
    with pytest.raises(trunkline.Error):
        process.wait(5)


def test_the_first_command_may_leave_with_the_log_in(testbed: Testbed) -> None:
    with trunkline.connect(testbed.aliases[2], config=testbed.config, daemon=False, wait=False) as box:
        assert box.run("echo here").stdout == "here\n"


def test_stats_tell_of_the_connection(box: trunkline.Connection, testbed: Testbed) -> None:
    box.run("true")
    lane = box.stats()[0]
    assert lane.server.startswith("SSH-2.0-OpenSSH")
    assert lane.bytes_sent > 0
    assert lane.bytes_received > 0
    assert box.resolved()[1:] == ("127.0.0.1", testbed.ports[0])


def test_what_cannot_be_reached_is_a_network_error_that_ran_nothing() -> None:
    with pytest.raises(trunkline.NetworkError, match="refused") as caught:
        trunkline.connect("127.0.0.1", port=1, config="none", daemon=False)
    assert isinstance(caught.value, ConnectionError)
    assert not caught.value.may_have_run
    assert (caught.value.errno, caught.value.address) == (errno.ECONNREFUSED, ("127.0.0.1", 1))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.errno, again.address, str(again)) == (caught.value.errno, caught.value.address, str(caught.value))
    with pytest.raises(trunkline.UnknownHostError) as unknown:
        trunkline.connect("no-such-host.invalid", config="none", daemon=False)
    assert unknown.value.address is None


def test_who_is_not_let_in_is_told_what_the_server_takes(testbed: Testbed, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", tmp_path / "locked"], check=True)
    (host, *_) = testbed.about["hosts"]
    where: dict[str, Any] = {"config": "none", "known_hosts": False, "agent": False, "daemon": False, "share": False}
    for passphrase in ("wrong", "secret"):
        with pytest.raises(trunkline.AuthenticationError) as caught:
            trunkline.connect(
                host["address"],
                port=host["port"],
                user=host["user"],
                identity=tmp_path / "locked",
                passphrase=passphrase,
                **where,
            )
        assert (caught.value.allowed, caught.value.partial) == (("publickey",), False)


def test_an_unknown_host_key_is_an_error_of_its_own(testbed: Testbed, tmp_path: Path) -> None:
    with pytest.raises(trunkline.HostKeyError):
        trunkline.connect(
            testbed.aliases[0],
            config=testbed.config,
            known_hosts=tmp_path / "none",
            share=False,
            daemon=False,
        )


@pytest.mark.parametrize("daemon", [True, False])
@pytest.mark.parametrize("words", [["box2"], ["--", "box2"], ["-C", "ssh://box2"], ["-o", "Compression=no", "box2"]])
def test_a_stray_word_among_ssh_args_is_refused(testbed: Testbed, daemon: bool, words: list[str]) -> None:
    where: dict[str, Any] = {"config": testbed.config, "daemon": daemon, "ssh_args": words}
    with pytest.raises(trunkline.ConfigurationError, match=words[-1] if words[0] != "--" else "--|box2"):
        trunkline.connect("box1", **where).run("true")
    for result in trunkline.Group(["box1", "box3"], **where).run("true").wait():
        assert isinstance(result.error, trunkline.ConfigurationError)
        assert not result.error.may_have_run


def test_a_key_that_is_not_accepted_is_an_authentication_error(testbed: Testbed) -> None:
    with pytest.raises(trunkline.AuthenticationError, match="permission denied"):
        trunkline.connect(
            testbed.aliases[0],
            config=testbed.config,
            options={"PubkeyAuthentication": "no"},
            daemon=False,
        )


def test_a_callback_that_raises_is_no_answer(testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: raised.append(told.exc_value))

    def ask(kind: str, text: str, echo: bool) -> str:
        raise ValueError(kind)

    with pytest.raises(trunkline.HostKeyError):
        trunkline.connect(
            testbed.aliases[0],
            config=testbed.config,
            known_hosts=tmp_path / "none",
            options={"StrictHostKeyChecking": "ask", "BatchMode": "no"},
            ask=ask,
            share=False,
            daemon=False,
        )
    assert [str(error) for error in raised] == ["host key"]


def test_questions_are_answered_by_the_callable(testbed: Testbed, tmp_path: Path) -> None:
    asked = []

    def ask(kind: str, text: str, echo: bool) -> str:
        asked.append((kind, echo))
        return "yes"

    with trunkline.connect(
        testbed.aliases[0],
        config=testbed.config,
        known_hosts=tmp_path / "known",
        options={"StrictHostKeyChecking": "ask", "BatchMode": "no"},
        ask=ask,
        share=False,
        daemon=False,
    ) as box:
        assert box.run("true").ok
    assert asked == [("host key", True)]
    assert (tmp_path / "known").exists()


@pytest.mark.parametrize("destination", ["", "-oProxyCommand=x", "a b"])
def test_what_is_no_destination_is_refused(destination: str) -> None:
    with pytest.raises(ValueError, match="destination"):
        trunkline.connect(destination, daemon=False)


def test_errors_survive_pickling() -> None:
    import pickle

    error = trunkline.NetworkError("gone", execution="may have started", stdout=b"x")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.execution, copy.stdout) == ("gone", "may have started", b"x")


def test_further_arguments_are_as_for_ssh(testbed: Testbed) -> None:
    with trunkline.connect("elsewhere", ssh_args=["-F", testbed.config, "-o", "HostName=127.0.0.1"], wait=False) as host:
        assert host.resolved()[1] == "127.0.0.1"
    with pytest.raises(TypeError, match="words"):
        trunkline.connect("box1", ssh_args="-F none")


def test_a_connection_that_was_let_go_ends_with_what_runs_on_it(box: trunkline.Connection) -> None:
    with box.start("echo $SSH_CONNECTION; read line; echo $line") as process:
        first = process.stdout.readline()
        assert box.disconnect() >= 1
        assert box.run("echo $SSH_CONNECTION").stdout != first
        assert process.communicate("still there\n")[0] == "still there\n"
