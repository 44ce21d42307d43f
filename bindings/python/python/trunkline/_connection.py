"""Connections, for code that waits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from . import _native
from ._errors import ClosedError
from ._files import CopyResult, LocalPath, RemotePath, copied, copying, paths, remote
from ._forward import Address, BaseForward, address
from ._options import Ask, Daemon, Options, StrPath
from ._process import Process
from ._result import Command, CompletedProcess, Input, Terminal, check_codec, completed, input_bytes, wanted
from ._sftp import SFTP

if TYPE_CHECKING:
    from typing_extensions import Self


class Closable(Protocol):
    """What is closed with the connection that it was started through."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Lane:
    """One of a host's connections, as ``Connection.stats`` tells of it."""

    #: The server's identification; empty while the connection is being made.
    server: str
    #: Key exchange, host key algorithm and cipher.
    algorithms: str
    #: The round-trip time in seconds, as last measured.
    rtt: float | None
    #: Sessions that run.
    sessions: int
    #: Forwarded connections.
    tunnels: int
    #: Sessions opened ahead.
    spares: int
    #: Whether its traffic keeps new sessions away.
    busy: bool
    bytes_sent: int
    bytes_received: int


class Forward(BaseForward):
    """A forwarding, until it is closed or nobody has it any more. Connections that it carries then go on to their ends."""

    def close(self) -> None:
        """Ends the listening."""
        self._native.close(False).wait()

    def abort(self) -> None:
        """Ends the listening and what is being carried."""
        self._native.close(True).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def connect(
    destination: str,
    *,
    config: StrPath | None = None,
    user: str | None = None,
    port: int | None = None,
    identity: StrPath | Iterable[StrPath] | None = None,
    agent: bool | StrPath = True,
    known_hosts: StrPath | Literal[False] | None = None,
    password: str | None = None,
    passphrase: str | None = None,
    ask: Ask | None = None,
    options: Mapping[str, str] | None = None,
    ssh_args: Sequence[str] = (),
    timeout: float | None = None,
    share: bool = True,
    daemon: Daemon = "auto",
    wait: bool = True,
) -> Connection:
    """Connects to a host, or finds the connection that is there.

    ``destination`` is what ``ssh`` takes: an alias of ssh_config, ``user@host``, or an ``ssh://`` URI. What it means is
    what ssh_config says, as for ``ssh``; the arguments stand for ssh's own options:

    - ``config``: another file (``-F``);
    - ``user``, ``port``, ``identity`` (key files), ``options`` (any of ssh_config(5), by name);
    - ``agent``: ``False`` for none, or the path of a socket;
    - ``known_hosts``: another file, or ``False`` to believe any host key, as only a test may;
    - ``ssh_args``: further arguments, as on ssh's command line (``["-J", "gate"]``); those above win;
    - ``timeout``: seconds for connecting;
    - ``password``, ``passphrase``: answers to the questions for them;
    - ``ask``: answers other questions, called in a thread of the engine's; by default nobody is asked anything.

    Whoever connects to the same host with the same options shares its connection, and a password given later is then not
    looked at. ``share=False`` is a connection of one's own, which ends with ``close``. ``daemon=True`` uses the trunkline
    daemon, whose connections outlive this process, and starts it where none runs; ``"auto"`` uses one that runs already.

    ``wait=False`` does not wait for the connection: the first command then leaves in the same flight as the log-in, one
    round trip earlier, and brings the connection's errors.
    """
    chosen = Options(
        config=config,
        user=user,
        port=port,
        identity=identity,
        agent=agent,
        known_hosts=known_hosts,
        password=password,
        passphrase=passphrase,
        ask=ask,
        options=options,
        ssh_args=ssh_args,
        timeout=timeout,
        share=share,
        daemon=daemon,
    )
    connection = Connection(destination, chosen)
    if wait:
        try:
            connection._host.connect(timeout).wait()
        except BaseException:
            connection.close()
            raise
    return connection


class Connection:
    """A host, reached through connections that are made, shared and replaced as needed. Made by ``connect``.

    Any number of threads may use it at once. ``close`` and the end of a ``with`` block close what was started through it;
    the shared connection itself stays for whoever comes next, for ten idle minutes.
    """

    def __init__(self, destination: str, options: Options) -> None:
        self.destination = destination
        self._engine = _native.Engine.shared() if options.share else _native.Engine.apart()
        self._own = not options.share
        self._host = options.reached(self._engine)(destination, ())
        self._closed = False
        # Guards what is open, which threads add to.
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()

    @overload
    def run(
        self,
        command: Command,
        *,
        input: Input | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
        encoding: str = "utf-8",
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> CompletedProcess[str]: ...

    @overload
    def run(
        self,
        command: Command,
        *,
        input: Input | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
        encoding: None,
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> CompletedProcess[bytes]: ...

    def run(
        self,
        command: Command,
        *,
        input: Input | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
        encoding: str | None = "utf-8",
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> CompletedProcess[Any]:
        """Runs a command to its end and returns what it left.

        ``command`` is a line for the login shell on the server, or a list of words, which arrive as they are. ``input`` is
        its standard input, which is empty without. ``env`` asks for environment variables; servers take those that their
        AcceptEnv names. ``encoding=None`` gives ``bytes``. ``terminal`` runs it on a terminal, which joins its outputs.

        Raises an ``Error`` when it could not be run, or not to its end, whose ``execution`` says how far it came;
        ``TimeoutError`` after ``timeout`` seconds, connecting included, when the command's session is closed; with
        ``check``, ``CommandError`` for a status other than 0.
        """
        check_codec(encoding, errors)
        start = wanted(command, env, terminal)
        operation = self._use().run(start, input_bytes(input, encoding), timeout)
        result = completed(start["program"] or b"", operation.wait(), encoding, errors)
        if check:
            result.check_returncode()
        return result

    @overload
    def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        encoding: str = "utf-8",
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> Process[str]: ...

    @overload
    def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        encoding: None,
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> Process[bytes]: ...

    def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        encoding: str | None = "utf-8",
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> Process[Any]:
        """Starts a command and returns at once; arguments as for ``run``.

        What prevents the start is raised by the process's methods; ``Process.started`` waits for it.
        """
        return self._start(wanted(command, env, terminal), encoding, errors)

    def shell(
        self,
        *,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | bool = True,
        encoding: str | None = "utf-8",
    ) -> Process[Any]:
        """Starts the login shell, on a terminal unless ``terminal`` is ``False``."""
        return self._start(wanted(None, env, terminal), encoding, "backslashreplace")

    def _start(self, start: Any, encoding: str | None, errors: str) -> Process[Any]:
        check_codec(encoding, errors)
        session = self._use().start(start).wait()
        process: Process[Any] = Process(session, start["program"] or b"", encoding, errors)
        self._keep(process)
        return process

    def sftp(self) -> SFTP:
        """Opens an SFTP session, without waiting for it: its first operation leaves at once."""
        sftp = SFTP(self._use().sftp().wait())
        self._keep(sftp)
        return sftp

    def get(
        self,
        sources: RemotePath | Iterable[RemotePath],
        target: LocalPath = ".",
        *,
        recursive: bool = False,
        preserve: bool = False,
        update: bool = False,
    ) -> CopyResult:
        """As ``SFTP.get``, over as many sessions and connections as are worth having."""
        options = copying(recursive, preserve, update)
        return copied(self._use().copy(paths(sources), remote(target), False, options).wait())

    def put(
        self,
        sources: LocalPath | Iterable[LocalPath],
        target: RemotePath = ".",
        *,
        recursive: bool = False,
        preserve: bool = False,
        update: bool = False,
    ) -> CopyResult:
        """As ``SFTP.put``, over as many sessions and connections as are worth having."""
        options = copying(recursive, preserve, update)
        return copied(self._use().copy(paths(sources), remote(target), True, options).wait())

    def forward_local(self, listen: Address, target: Address) -> Forward:
        """Listens here, and carries each client to ``target``, which the server connects to. A port of 0 is a free one; a
        port without a host is for this machine's own programs, or the server's."""
        return self._forward(False, listen, target)

    def forward_remote(self, listen: Address, target: Address) -> Forward:
        """Has the server listen, and carries each client to ``target``, which is connected to from here."""
        return self._forward(True, listen, target)

    def forward_socks(self, listen: Address = 0) -> Forward:
        """Listens here for SOCKS 4, 4a and 5 clients, and carries each to where it asks, as seen from the server."""
        return self._forward(False, listen, None)

    def _forward(self, remote: bool, listen: Address, target: Address | None) -> Forward:
        where = None if target is None else address(target)
        forward = Forward(self._use().forward(remote, address(listen), where).wait())
        self._keep(forward)
        return forward

    def stats(self) -> list[Lane]:
        """The host's connections."""
        return [Lane(*lane) for lane in self._use().lanes().wait()]

    def resolved(self) -> tuple[str, str, int]:
        """User, host name and port, as ssh_config resolves the destination."""
        return self._use().resolve().wait()

    def disconnect(self) -> int:
        """Closes the shared connections to this host's account once what runs on them has ended, and tells how many they
        are. What is started from now on connects anew: the server then knows of groups and limits that have changed."""
        return self._use().disconnect().wait()

    def close(self) -> None:
        """Closes what was started through this, and with ``share=False`` the connection. Can be called again."""
        with self._lock:
            self._closed = True
            opened = list(self._open)
        for thing in opened:
            thing.close()
        if self._own:
            self._engine.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def _use(self) -> _native.Host:
        if self._closed:
            raise ClosedError(f"the connection to {self.destination} is closed")
        return self._host

    def _keep(self, thing: Closable) -> None:
        """Notes what is to be closed with the connection."""
        with self._lock:
            if not self._closed:
                self._open.add(thing)
                return
        thing.close()
        raise ClosedError(f"the connection to {self.destination} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<trunkline.Connection {self.destination}{' closed' if self._closed else ''}>"
