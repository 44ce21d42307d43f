"""The arguments of ``connect``, as ssh's own options: what a destination means is decided by ssh_config."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import _native
from ._expect import expect

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

#: A path, as for ``open``.
StrPath: TypeAlias = "str | os.PathLike[str]"

#: Asked with the kind of question ("password", "passphrase", "host key", "keyboard-interactive" or "confirm"), its text,
#: and whether the answer may be seen as it is typed; ``None`` is not an answer.
Ask: TypeAlias = "Callable[[str, str, bool], str | None]"

#: Where the connections are: in a process of their own that all programs share, or in this one.
Daemon: TypeAlias = 'bool | Literal["auto"]'


class ConnectOptions(TypedDict, total=False):
    """The keyword arguments of ``connect`` and of groups, as type checkers and editors see them."""

    config: StrPath | None
    user: str | None
    port: int | None
    identity: StrPath | Iterable[StrPath] | None
    agent: bool | StrPath
    known_hosts: StrPath | Literal[False] | None
    password: str | None
    passphrase: str | None
    ask: Ask | None
    options: Mapping[str, str | int] | None
    ssh_args: Sequence[str]
    timeout: float | None
    share: bool
    connections: int
    daemon: Daemon


class _AtHand:
    """Answers that were given ahead, so that nobody is bothered by giving them again to a further connection."""

    at_hand = True

    def __init__(self, answer: Ask) -> None:
        self._answer = answer

    def __call__(self, kind: str, text: str, echo: bool) -> str | None:
        return self._answer(kind, text, echo)


@dataclass(frozen=True)
class Options:
    """The options of a connection, by ``ConnectOptions``; see ``connect`` for each."""

    config: StrPath | None = None
    user: str | None = None
    port: int | None = None
    identity: StrPath | Iterable[StrPath] | None = None
    agent: bool | StrPath = True
    known_hosts: StrPath | Literal[False] | None = None
    password: str | None = None
    passphrase: str | None = None
    ask: Ask | None = None
    options: Mapping[str, str | int] | None = None
    ssh_args: Sequence[str] = ()
    timeout: float | None = None
    share: bool = True
    connections: int = 1
    daemon: Daemon = "auto"

    def __post_init__(self) -> None:
        for name, (words, *kinds) in _KINDS.items():
            if getattr(self, name) is not None:
                expect(name, words, getattr(self, name), *kinds)
        if self.connections < 1:
            raise ValueError("connections is at least 1")
        if self.share and self.connections > 1:
            raise ValueError("connections are counted with share=False only")
        for name, value in (self.options or {}).items():
            expect("the name of an option", "a str", name, str)
            expect(f"the option {name}", "a str or a number", value, str, int)
        if isinstance(self.ssh_args, str):
            raise TypeError("ssh_args is a list of words, not str")
        for word in self.ssh_args:
            expect("a word of ssh_args", "a str", word, str, os.PathLike)

    def as_ssh_args(self) -> list[str]:
        """All of them, as arguments for ssh."""
        args: list[str] = []
        if self.config is not None:
            args += ["-F", os.fspath(self.config)]
        if self.user is not None:
            args += ["-l", self.user]
        if self.port is not None:
            if not 0 < self.port < 65536:
                raise ValueError(f"{self.port} is not a port number")
            args += ["-p", str(self.port)]
        identities = [self.identity] if isinstance(self.identity, (str, os.PathLike)) else self.identity
        for identity in identities or ():
            args += ["-i", os.fspath(identity)]
        settings = dict(self.options or {})
        if self.agent is not True:
            settings["IdentityAgent"] = "none" if self.agent is False else quoted(os.fspath(self.agent))
        if self.known_hosts is False:
            settings["StrictHostKeyChecking"] = "no"
            # With "none" ssh could not remember the key, and refuses it for that.
            settings["UserKnownHostsFile"] = settings["GlobalKnownHostsFile"] = os.devnull
        elif self.known_hosts is not None:
            settings["UserKnownHostsFile"] = quoted(os.fspath(self.known_hosts))
        if self.password is not None and self.ask is None:
            # The same wrong answer three times locks accounts.
            settings["NumberOfPasswordPrompts"] = "1"
        if self.timeout is not None:
            if not self.timeout > 0:
                raise ValueError("a timeout is a positive number of seconds")
            settings["ConnectTimeout"] = str(max(1, round(self.timeout)))
        # A session runs what it is given, and listens nowhere unasked.
        settings.update(RemoteCommand="none", ClearAllForwardings="yes")
        for name, value in settings.items():
            args += ["-o", f"{name}={value}"]
        return [*args, *self.ssh_args]

    def asker(self) -> Ask | None:
        """Return the answerer of questions."""
        if self.password is None and self.passphrase is None:
            return self.ask
        return _AtHand(self._answer) if self.ask is None else self._answer

    def _answer(self, kind: str, text: str, echo: bool) -> str | None:
        if kind == "passphrase" and self.passphrase is not None:
            return self.passphrase
        if kind in ("password", "keyboard-interactive") and not echo and self.password is not None:
            return self.password
        return self.ask(kind, text, echo) if self.ask else None

    def engine(self) -> _native.Engine:
        """Return the engine with its connections, unless they are the daemon's."""
        return _native.Engine.shared() if self.share else _native.Engine.apart(self.connections)

    def daemon_command(self) -> list[str] | None:
        """``None`` for connections in this process, else how the daemon is started; empty for the daemon where one runs."""
        if self.daemon is False or not self.share:
            return None
        if self.daemon == "auto":
            return []
        if self.daemon is not True:
            raise ValueError('daemon is True, False or "auto"')
        return [program(), "daemon", "--detach"]

    def reached(self, engine: _native.Engine) -> Callable[[str, Sequence[str]], _native.Host]:
        """Return the function that makes hosts of destinations and further arguments for ssh, on the connections of
        ``engine``."""
        args, ask, daemon = self.as_ssh_args(), self.asker(), self.daemon_command()
        world = _native.World()

        def reach(destination: str, more: Sequence[str] = ()) -> _native.Host:
            if not isinstance(destination, str):
                raise TypeError(f"a destination is a str, not {type(destination).__name__}")
            return _native.Host(engine, world, destination, [*args, *more], ask, daemon)

        return reach


#: Of each option that is given: what it is in words, and its types.
_KINDS: dict[str, tuple[Any, ...]] = {
    "config": ("a path", str, os.PathLike),
    "user": ("a str", str),
    "port": ("a number", int),
    "identity": ("a path, or several", str, os.PathLike, Iterable),
    "agent": ("a path, True or False", bool, str, os.PathLike),
    "known_hosts": ("a path, or False", bool, str, os.PathLike),
    "password": ("a str", str),
    "passphrase": ("a str", str),
    "ask": ("a callable", Callable),
    "options": ("a mapping", Mapping),
    "ssh_args": ("a list of words", Sequence),
    "timeout": ("a number of seconds", int, float),
    "share": ("True or False", bool),
    "connections": ("a number", int),
}


def program(what: str = "daemon=True") -> str:
    """The program trunkline's file. Raises ``FileNotFoundError``, which says ``what`` needs it, where there is none."""
    found = os.environ.get("TRUNKLINE_PROGRAM") or _packaged_program() or shutil.which("trunkline")
    if found is None:
        raise FileNotFoundError(f"{what} needs the program trunkline on PATH, or TRUNKLINE_PROGRAM set to its file")
    return found


def _packaged_program() -> str | None:
    """The program that was installed with this package, as wheels bring it."""
    try:
        files = importlib.metadata.files("trunkline") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    programs = (str(file.locate()) for file in files if file.parts[-2:] == ("bin", "trunkline"))
    return next(filter(os.path.isfile, programs), None)


def quoted(value: str) -> str:
    """A path of which ssh_config takes each character as it is."""
    escaped = re.sub(r'(["\\])', r"\\\1", value).replace("%", "%%")
    return f'"{escaped}"'
