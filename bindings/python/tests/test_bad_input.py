"""Wrong types and values, and what is used after its end: exceptions that say so, before anything is done."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trunkline
from conftest import Testbed
from trunkline import aio

NOT_BYTES = "a bytes-like object is required"


@pytest.mark.parametrize("connect", [trunkline.connect, trunkline.Group, aio.connect, aio.Group])
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("config", 7, "config is a path, not int"),
        ("user", b"me", "user is a str, not bytes"),
        ("port", "22", "port is a number, not str"),
        ("port", True, "port is a number, not bool"),
        ("identity", 7, "identity is a path, or several, not int"),
        ("agent", 7, "agent is a path, True or False, not int"),
        ("known_hosts", 7, "known_hosts is a path, or False, not int"),
        ("password", 7, "password is a str, not int"),
        ("passphrase", 7, "passphrase is a str, not int"),
        ("ask", "yes", "ask is a callable, not str"),
        ("options", "Port=22", "options is a mapping, not str"),
        ("options", {"Compression": True}, "the option Compression is a str or a number, not bool"),
        ("ssh_args", "-v", "ssh_args is a list of words, not str"),
        ("ssh_args", [7], "a word of ssh_args is a str, not int"),
        ("timeout", "1", "timeout is a number of seconds, not str"),
        ("share", "no", "share is True or False, not str"),
    ],
)
def test_an_option_of_a_wrong_type_is_named(connect: Callable[..., Any], option: str, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(words)}$"):
        connect("box1", **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("port", 0, "0 is not a port number"),
        ("port", 65536, "65536 is not a port number"),
        ("timeout", 0, "a timeout is a positive number of seconds"),
        ("timeout", float("nan"), "a timeout is a positive number of seconds"),
        ("daemon", "never", 'daemon is True, False or "auto"'),
        ("daemon", 7, 'daemon is True, False or "auto"'),
    ],
)
def test_an_option_of_a_wrong_value_is_told(option: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        trunkline.connect("box1", **{option: value})


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (7, {}, "a command is a line or a list of words, not int"),
        (None, {}, "a command is a line or a list of words, not NoneType"),
        (["echo", 7], {}, "a word of a command is str or bytes, not int"),
        ("true", {"env": ["A=B"]}, "env is a mapping, not list"),
        ("true", {"env": {"A": 7}}, "the environment variable A is a str, not int"),
        ("true", {"terminal": "xterm"}, "terminal is a Terminal, True or False, not str"),
        ("true", {"encoding": 7}, "argument must be str, not int"),
    ],
)
def test_a_command_of_a_wrong_type_is_not_started(
    box: trunkline.Connection, command: Any, options: dict[str, Any], words: str
) -> None:
    group = trunkline.Group("box1", daemon=False)
    for start in (box.run, box.start, group.run):
        with pytest.raises(TypeError, match=words):
            start(command, **options)


def test_input_of_a_wrong_type_runs_nothing(box: trunkline.Connection, tmp_path: Path) -> None:
    # Of a number, bytes() would make so many zeros.
    for wrong in (7, [1, 2]):
        with pytest.raises(TypeError, match=NOT_BYTES):
            box.run(["touch", str(tmp_path / "ran")], input=wrong)  # type: ignore[call-overload]
        with box.sftp() as sftp, pytest.raises(TypeError, match=NOT_BYTES):
            sftp.write_bytes(tmp_path / "ran", wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "ran").exists()


def test_a_wrong_value_runs_nothing(box: trunkline.Connection) -> None:
    with pytest.raises(ValueError, match="a command cannot contain a NUL character"):
        box.run("a\0b")
    with pytest.raises(ValueError, match="a command has at least one word"):
        box.run([])
    with pytest.raises(ValueError, match="an environment variable cannot contain a NUL character"):
        box.run("true", env={"A": "\0"})
    with pytest.raises(ValueError, match="time limit"):
        box.run("true", timeout=-1)
    with pytest.raises(TypeError, match="must be real number, not str"):
        box.run("true", timeout="1")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="-1 is not a terminal size"):
        trunkline.Terminal(columns=-1)
    with pytest.raises(ValueError, match="at_once is at least 1"):
        trunkline.Group("box1").run("true", at_once=0)
    with pytest.raises(TypeError, match="a host of a group is a str, not int"):
        trunkline.Group([7])  # type: ignore[list-item]


def test_files_addresses_and_signals_of_wrong_types_are_told(box: trunkline.Connection) -> None:
    with box.sftp() as sftp:
        with pytest.raises(TypeError, match="PathLike object, not int"):
            sftp.stat(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a mode is a str, not int"):
            sftp.open("/etc/hostname", 7)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="a source is a path, or several, not int"):
            sftp.get(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an address is a port, a host and a port, or a path, not float"):
        box.forward_local(7.5, 22)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a port is a number, not str"):
        box.forward_local(0, ("localhost", "22"))  # type: ignore[arg-type]
    with box.start("cat") as process, pytest.raises(TypeError, match="a signal is a name, not int"):
        process.send_signal(15)  # type: ignore[arg-type]


def test_what_is_closed_says_so(testbed: Testbed) -> None:
    box = trunkline.connect("box1", config=testbed.config, daemon=False, share=False)
    process, sftp = box.start("sleep 1000"), box.sftp()
    process.started()
    box.close()
    for use in (lambda: box.run("true"), lambda: box.start("true"), box.sftp, box.stats, lambda: box.forward_socks()):
        with pytest.raises(trunkline.ClosedError, match="the connection to box1 is closed"):
            use()
    with pytest.raises(ValueError, match="the SFTP session is closed"):
        sftp.listdir()
    with pytest.raises(trunkline.Error) as caught:
        process.wait(60)
    assert not isinstance(caught.value, trunkline.TimeoutError)
    assert caught.value.may_have_run
    group = trunkline.Group("box1", daemon=False)
    group.close()
    with pytest.raises(trunkline.ClosedError, match="the group is closed"):
        group.run("true")


def test_a_closed_connection_says_so_to_tasks(testbed: Testbed) -> None:
    async def main() -> None:
        box = await aio.connect("box1", config=testbed.config, daemon=False, share=False)
        box.close()
        with pytest.raises(trunkline.ClosedError, match="the connection to box1 is closed"):
            await box.run("true")
        with pytest.raises(TypeError, match="a command is a line or a list of words, not int"):
            await box.run(7)  # type: ignore[call-overload]

    asyncio.run(main())
