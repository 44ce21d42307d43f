"""Commands as they are given, and what is left of them."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, AnyStr, Generic, TypedDict

from . import _native
from ._errors import CommandError, ConfigurationError
from ._expect import expect, plain
from ._face import takes

if TYPE_CHECKING:
    from typing_extensions import TypeAlias, Unpack

#: A line for the user's login shell on the server, or words, which are quoted for it.
Command: TypeAlias = "str | bytes | Iterable[str | bytes]"

#: What the native module tells of a run: status, signal, both outputs.
Outcome: TypeAlias = "tuple[int, str | None, bytes, bytes]"

#: Data for a command.
Input: TypeAlias = "str | bytes | bytearray | memoryview"


class Wanted(TypedDict):
    """The native module's description of a command to start."""

    program: bytes | None
    subsystem: bool
    env: list[tuple[str, bytes]]
    terminal: tuple[str, int, int, int, int] | None


@dataclass(frozen=True)
class Terminal:
    """A terminal for a command: the kind that programs are to take it for, its size in characters, and its width and height
    in pixels, of which 0 is unknown."""

    term: str = "xterm-256color"
    columns: int = 80
    rows: int = 24
    width: int = 0
    height: int = 0

    def __post_init__(self) -> None:
        expect("term", "a str", self.term, str)
        for size in (self.columns, self.rows, self.width, self.height):
            expect("a terminal's size", "a number", size, int)
            if not 0 <= size < 2**32:
                raise ValueError(f"{size} is not a terminal size")


@dataclass(frozen=True)
class CompletedProcess(Generic[AnyStr]):
    """The result of a command, much like ``subprocess.CompletedProcess``."""

    #: As it was sent to the server.
    command: str
    #: Its status as a shell would show it: 128 and the number for a signal, 255 if the server told nothing.
    returncode: int
    #: The name, without "SIG", of the signal that ended it.
    signal: str | None
    stdout: AnyStr
    stderr: AnyStr

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0."""
        return self.returncode == 0

    def check_returncode(self) -> None:
        """Raises ``CommandError`` unless the status is 0."""
        if not self.ok:
            raise CommandError(self)


class StartOptions(TypedDict, total=False):
    """The keyword arguments of ``start``, besides ``encoding``, which decides on the type of what it returns."""

    env: Mapping[str, str] | None
    errors: str
    terminal: Terminal | bool


class RunOptions(StartOptions, total=False):
    """The keyword arguments of ``run``, besides ``encoding``."""

    input: Input | None
    timeout: float | None
    check: bool


class Start:
    """A command that is to be started. Raises ``LookupError`` for what cannot decode, before anything is run."""

    def __init__(
        self,
        command: Command | None,
        encoding: str | None,
        *,
        env: Mapping[str, str] | None = None,
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> None:
        if encoding is not None:
            codecs.lookup(encoding)
            codecs.lookup_error(errors)
        self.encoding = encoding
        self.errors = errors
        self.wanted = wanted(command, env, terminal)

    @property
    def line(self) -> bytes:
        """The line for the server's shell; empty for the login shell."""
        return self.wanted["program"] or b""


class Run(Start):
    """A command that is to be run to its end."""

    @takes(Start)
    def __init__(
        self,
        command: Command,
        encoding: str | None,
        *,
        input: Input | None = None,
        timeout: float | None = None,
        check: bool = False,
        **options: Unpack[StartOptions],
    ) -> None:
        super().__init__(command_line(command), encoding, **options)
        self._input = input_bytes(input, encoding)
        self._timeout = timeout
        self._check = check

    def on(self, host: _native.Host) -> _native.Operation[Outcome]:
        """To be done on one host."""
        return host.run(self.wanted, self._input, self._timeout)

    def on_fleet(self, program: list[str], hosts: list[tuple[str, str]], at_once: int) -> _native.FleetJob:
        """To be done on hosts that a fleet reaches, on ``at_once`` of them at a time."""
        if self.wanted["terminal"]:
            raise ConfigurationError("a fleet gives commands no terminal")
        line = b""
        for name, value in self.wanted["env"]:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is not the name of a variable")
            # What cannot be set must not be missing silently.
            line += b"export %s=%s || exit 255; " % (name.encode(), quoted(value))
        return _native.FleetJob(program, hosts, line + self.line, self._input, min(at_once, 2**32 - 1), self._timeout)

    def completed(self, outcome: Outcome) -> CompletedProcess[Any]:
        """Return the result, decoded if there is an encoding. Raises ``CommandError`` where that was asked for."""
        code, signal, stdout, stderr = outcome
        command = self.line.decode("utf-8", "backslashreplace")
        result: CompletedProcess[Any] = CompletedProcess(command, code, signal, self._text(stdout), self._text(stderr))
        if self._check:
            result.check_returncode()
        return result

    def _text(self, output: bytes) -> str | bytes:
        return output if self.encoding is None else output.decode(self.encoding, self.errors)


def wanted(
    command: Command | None,
    env: Mapping[str, str] | None = None,
    terminal: Terminal | bool = False,
    subsystem: bool = False,
) -> Wanted:
    """The native module's form of a command; ``None`` is the login shell."""
    expect("terminal", "a Terminal, True or False", terminal, Terminal, bool)
    if env is not None:
        expect("env", "a mapping", env, Mapping)
    for name, value in (env or {}).items():
        expect("the name of an environment variable", "a str", name, str)
        expect(f"the environment variable {name}", "a str", value, str)
        if "\0" in name + value:
            raise ValueError("an environment variable cannot contain a NUL character")
    if terminal is True:
        terminal = Terminal()
    return {
        "program": None if command is None else command_line(command),
        "subsystem": subsystem,
        "env": [(name, value.encode("utf-8", "surrogateescape")) for name, value in (env or {}).items()],
        "terminal": (terminal.term, terminal.columns, terminal.rows, terminal.width, terminal.height) if terminal else None,
    }


def command_line(command: Command) -> bytes:
    """The line that the server's shell gets: words are quoted, so that they arrive as they are."""
    if isinstance(command, bytes):
        line = command
    elif isinstance(command, str):
        line = command.encode("utf-8", "surrogateescape")
    else:
        expect("a command", "a line or a list of words", command, Iterable)
        words = []
        for word in command:
            expect("a word of a command", "str or bytes", word, str, bytes)
            words.append(word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else word)
        if not words:
            raise ValueError("a command has at least one word")
        line = shlex.join(words).encode("utf-8", "surrogateescape")
    if b"\0" in line:
        raise ValueError("a command cannot contain a NUL character")
    return line


def quoted(value: bytes) -> bytes:
    """One word for a shell."""
    return shlex.quote(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def input_bytes(data: Input | None, encoding: str | None) -> bytes | None:
    """Return the bytes for the command's standard input."""
    if data is None:
        return None
    if isinstance(data, str):
        return data.encode(encoding or "utf-8")
    return plain(data)
