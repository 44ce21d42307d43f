"""The content of a failure: which exception, may the command have run, and nothing that a terminal would act on."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import Testbed, time_is_up
from trunkline.compat import paramiko
from trunkline.compat.pssh.clients import SSHClient
from trunkline.compat.pssh.exceptions import SSHError

NOT, MAYBE = "did not start", "may have started"

#: What a terminal acts on: controls, and what turns text around; as well as bytes that are not text.
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

#: The places in which a server has words (the testkit's `Steering`), and what comes of a command there. ``None``: it runs.
PLACES: dict[str, tuple[type[trunkline.Error], str] | None] = {
    "Greeting": (trunkline.NetworkError, NOT),
    "OldIdentification": (trunkline.PeerError, NOT),
    "Identification": None,
    "KexNames": (trunkline.PeerError, NOT),
    "CipherNames": (trunkline.PeerError, NOT),
    "DisconnectInKeyExchange": (trunkline.NetworkError, NOT),
    # The command leaves with the log-in, before or after the answer comes.
    "Service": (trunkline.PeerError, f"{NOT} or {MAYBE}"),
    "Banner": None,
    "Methods": (trunkline.AuthenticationError, NOT),
    "Questions": (trunkline.AuthenticationError, NOT),
    "OpenFailure": (trunkline.LimitError, NOT),
    "ExitSignal": None,
    "Disconnect": (trunkline.NetworkError, MAYBE),
    "SftpText": None,
    "SftpStatus": None,
    "SftpStderr": None,
}


@pytest.fixture(scope="module")
def steering() -> Iterator[Testbed]:
    bed = Testbed("--steering")
    yield bed
    bed.close()


def is_plain(error: BaseException) -> None:
    """Asserts that whatever is shown of an exception, of its causes too, steers no terminal."""
    seen: BaseException | None = error
    while seen is not None:
        copied = pickle.loads(pickle.dumps(seen))
        shown = "".join((str(seen), repr(seen), *map(str, seen.args), str(copied), *traceback.format_exception_only(seen)))
        assert not STEERS.search(shown), ascii(shown)
        seen = seen.__cause__ or seen.__context__


def test_every_place_is_in_the_table(steering: Testbed) -> None:
    assert sorted(steering.aliases) == sorted(PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_a_servers_words_are_printable_and_the_failure_says_what_ran(
    place: str, steering: Testbed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with trunkline.connect(place, config=steering.config, daemon=False, share=False, wait=False) as box:
        expected = PLACES[place]
        if expected is None:
            result = box.run("true")
            assert result.signal is None or not STEERS.search(result.signal)
        else:
            kind, execution = expected
            with pytest.raises(kind) as failure:
                box.run("true")
            assert type(failure.value) is kind, failure.value
            assert failure.value.execution in execution.split(" or "), failure.value
            is_plain(failure.value)
    with trunkline.connect(place, config=steering.config, daemon=False, share=False, wait=False) as box:
        with pytest.raises((trunkline.Error, OSError)) as broken, box.sftp() as sftp:
            sftp.stat("/there")
        is_plain(broken.value)
    assert not any(STEERS.search(record.getMessage()) for record in caplog.records)


@pytest.mark.parametrize("place", PLACES)
def test_a_servers_words_are_printable_in_the_faces(place: str, steering: Testbed, tmp_path: Path) -> None:
    about = steering.about["hosts"][steering.aliases.index(place)]
    key, port, user = about["key"], about["port"], about["user"]

    def with_paramiko() -> None:
        with paramiko.SSHClient() as client:
            client.load_host_keys(about["known_hosts"])
            client.connect(about["address"], port, user, key_filename=key, look_for_keys=False, allow_agent=False)
            transport = client.get_transport()
            assert transport is not None
            assert not STEERS.search(transport.remote_version + repr(transport))
            _, stdout, _ = client.exec_command("true")
            stdout.channel.recv_exit_status()
            client.open_sftp().stat("/there")

    def with_pssh() -> None:
        with SSHClient(about["address"], user, port=port, pkey=key, allow_agent=False, num_retries=1) as client:
            client.wait_finished(client.run_command("true"))
            client.copy_remote_file("/there", str(tmp_path / "here"))

    for program in (with_paramiko, with_pssh):
        with pytest.raises(Exception) as failure:  # noqa: PT011 - any that there is
            program()
        assert not isinstance(failure.value, AssertionError), failure.value
        is_plain(failure.value)


# The table of failures by stage: whatever happens to a command here happens to a real one.


def before_session(box: Callable[..., Any]) -> dict[str, tuple[Callable[[], Any], type[trunkline.Error]]]:
    """Failures before there is a session."""
    return {
        "a name without an address": (lambda: box(options={"HostName": "nobody.invalid"}), trunkline.UnknownHostError),
        "a port that refuses": (lambda: box(port=1), trunkline.NetworkError),
        "a proxy that ends": (lambda: box(options={"ProxyCommand": "false"}), trunkline.NetworkError),
        "an unknown host": (
            lambda: box(options={"UserKnownHostsFile": "/dev/null", "StrictHostKeyChecking": "yes"}),
            trunkline.HostKeyError,
        ),
        "no key that is accepted": (lambda: box(options={"PubkeyAuthentication": "no"}), trunkline.AuthenticationError),
        "an option that ssh does not know": (lambda: box(options={"NoSuchOption": "1"}), trunkline.ConfigurationError),
    }


def test_what_was_never_let_in_did_not_start(testbed: Testbed) -> None:
    def box(**options: Any) -> None:
        with trunkline.connect("box1", config=testbed.config, daemon=False, share=False, wait=False, **options) as box:
            box.run("true")

    for what, (attempt, kind) in before_session(box).items():
        with pytest.raises(kind) as failure:
            attempt()
        assert (type(failure.value), failure.value.execution) == (kind, NOT), f"{what}: {failure.value}"
        assert not failure.value.may_have_run
    # The results of a group say the same.
    for result in trunkline.Group(["box1"], config=testbed.config, daemon=False, port=1).run("true"):
        assert result.error is not None
        assert result.error.execution == NOT


def test_what_is_cut_off_may_have_started(testbed: Testbed) -> None:
    with trunkline.connect("box1", config=testbed.config, daemon=False, share=False) as box:
        late = time_is_up(lambda limit: box.run("echo out; sleep 1000", timeout=limit), b"out\n")
        assert late.execution == MAYBE
        with pytest.raises(trunkline.CommandError) as ended:
            box.run("exit 3", check=True)
        assert ended.value.execution == "finished"
        process = box.start("echo begun; sleep 1000")
        assert process.stdout.readline() == "begun\n"
        # Its connection is cut.
        with pytest.raises(trunkline.Error) as cut:
            box.run(["kill", "-9", box.run("echo $PPID").stdout.strip()])
        assert cut.value.execution == MAYBE
        with pytest.raises(trunkline.Error) as gone:
            process.wait(60)
        assert gone.value.execution == MAYBE


# Host keys in the faces that bring an opinion of their own.


def test_parallel_ssh_refuses_a_host_that_is_listed_with_another_key(
    testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = testbed.about["hosts"][0]
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    known = tmp_path / ".ssh" / "known_hosts"
    arguments = {"user": about["user"], "port": about["port"], "pkey": about["key"], "num_retries": 1}
    client = SSHClient(about["address"], **arguments)
    assert not known.exists(), "nothing is written"
    client.disconnect()
    name = f"[{about['address']}]:{about['port']}"
    right = {line.split()[0]: line.split()[1] for line in about["host_keys"]}
    for key in (paramiko.Ed25519Key.generate(), paramiko.ECDSAKey.generate()):
        # Whichever type it has: an impostor chooses what he shows.
        known.write_text(f"{name} {key.get_name()} {key.get_base64()}\n")
        with pytest.raises(SSHError, match="host key"):
            SSHClient(about["address"], **arguments)
    known.write_text("".join(f"{name} {kind} {blob}\n" for kind, blob in right.items()))
    SSHClient(about["address"], **arguments).disconnect()
    known.write_text("".join(f"@revoked {name} {kind} {blob}\n" for kind, blob in right.items()))
    with pytest.raises(SSHError, match="host key"):
        SSHClient(about["address"], **arguments)


def test_parallel_ssh_knows_a_host_again_while_its_client_lives(
    testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = testbed.about["hosts"][:2]
    monkeypatch.setenv("HOME", str(tmp_path))
    client = SSHClient(one["address"], user=one["user"], port=one["port"], pkey=one["key"], num_retries=1)
    client.disconnect()
    assert list(client.run_command("echo again").stdout or ()) == ["again"]
    client.disconnect()
    # Another server has its place.
    client.port = other["port"]
    with pytest.raises(SSHError, match="host key"):
        client.run_command("true")


def test_paramiko_refuses_a_host_that_is_known_by_a_key_of_another_type(testbed: Testbed) -> None:
    about = testbed.about["hosts"][0]
    name = f"[{about['address']}]:{about['port']}"
    shown: list[paramiko.PKey] = []

    class Accepts(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            shown.append(key)

    arguments = {"key_filename": about["key"], "look_for_keys": False, "allow_agent": False}
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(Accepts())
        client.connect(about["address"], about["port"], about["user"], **arguments)
    (key,) = shown
    other = paramiko.ECDSAKey.generate(bits=521)
    assert other.get_name() != key.get_name()
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(Accepts())
        client.get_host_keys().add(name, other.get_name(), other)
        with pytest.raises(paramiko.BadHostKeyException):
            client.connect(about["address"], about["port"], about["user"], **arguments)
    assert shown == [key]


@pytest.mark.parametrize("block", ["Host box1\n  ProxyCommand {ask}", "Match exec {ask}\n  Port 1"])
def test_what_asks_on_the_terminal_is_told_and_does_not_hang(testbed: Testbed, tmp_path: Path, block: str) -> None:
    """A program in its own process does not lend its terminal: what wants it would stand still in the background."""
    ask, config = tmp_path / "ask", tmp_path / "config"
    ask.write_text("#!/bin/sh\nread -r code </dev/tty\n")
    ask.chmod(0o755)
    config.write_text(f"{block.format(ask=ask)}\nMatch all\n{Path(testbed.config).read_text()}")
    program = (
        "import sys, trunkline\n"
        "try:\n    trunkline.connect('box1', config=sys.argv[1], daemon=False)\n"
        "except trunkline.Error as error:\n    print(error)\n"
    )
    ours, terminal = os.openpty()
    try:
        said = subprocess.run(
            ["setsid", "--ctty", "--wait", sys.executable, "-c", program, config],
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(ours)
        os.close(terminal)
    assert "asks on the terminal" in said.stdout, said
