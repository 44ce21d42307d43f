"""Connections, for code that waits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload

from . import _native
from ._errors import ClosedError
from ._face import Closing, face, takes
from ._files import CopyOptions, CopyResult, LocalPath, RemotePath, copied, copying, paths, remote
from ._forward import Address, BaseForward, address
from ._options import ConnectOptions, Options
from ._process import Process
from ._result import Command, CompletedProcess, Run, RunOptions, Start, StartOptions, Terminal, command_line
from ._sftp import SFTP

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Closable(Protocol):
    """Something that is closed with the connection that it was started through."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Lane:
    """One of a host's connections, as ``Connection.stats`` tells of it."""

    #: The server's identification; empty while the connection is being made.
    server: str
    #: Key exchange, host key algorithm and cipher, with blanks between them.
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
    #: Whether its server has not answered for some time: new sessions get another connection, where there may be one.
    silent: bool
    bytes_sent: int
    bytes_received: int


class Forward(BaseForward, Closing):
    """A forwarding, until it is closed or nobody has it any more. Its connections then continue to their ends."""

    def close(self) -> None:
        """Ends the listening."""
        self._native.close(False).wait()

    def abort(self) -> None:
        """Ends the listening and what is being carried."""
        self._native.close(True).wait()


@takes(Options)
def connect(destination: str, *, wait: bool = True, **options: Unpack[ConnectOptions]) -> Connection:
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
    looked at. ``share=False`` is a connection of one's own, which ends with ``close``; what goes beyond the server's
    MaxSessions waits for a place on it, unless ``connections`` allows it to log in that many times. ``daemon=True`` uses the
    trunkline daemon, whose connections outlive this process, and starts it where none runs; ``"auto"`` uses one that runs
    already.

    ``wait=False`` does not wait for the connection: the first command then leaves in the same flight as the log-in, one
    round trip earlier, and brings the connection's errors.
    """
    connection = Connection(destination, Options(**options))
    if wait:
        try:
            connection._connecting().wait()
        except BaseException:
            connection.close()
            raise
    return connection


class BaseConnection:
    """The common part of both faces' connections."""

    def __init__(self, destination: str, options: Options) -> None:
        self.destination = destination
        self._engine = options.engine()
        self._own = not options.share
        self._timeout = options.timeout
        self._host = options.reached(self._engine)(destination, ())
        self._closed = False
        # Guards what is open, which threads add to.
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()

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

    def _connecting(self) -> _native.Operation[None]:
        return self._host.connect(self._timeout)

    def _use(self) -> _native.Host:
        if self._closed:
            raise ClosedError(f"the connection to {self.destination} is closed")
        return self._host

    def _keep(self, thing: Closable) -> None:
        """Notes what is to be closed with the connection, which may have been closed meanwhile."""
        with self._lock:
            if not self._closed:
                self._open.add(thing)
                return
        thing.close()
        self._use()

    def __repr__(self) -> str:
        return f"<{face(self)}.Connection {self.destination}{' closed' if self._closed else ''}>"


class Connection(BaseConnection, Closing):
    """A host, reached through connections that are made, shared and replaced as needed. Made by ``connect``.

    Any number of threads may use it at once. ``close`` and the end of a ``with`` block close what was started through it;
    the shared connection itself stays for whoever comes next, for ten idle minutes.
    """

    @overload
    def run(self, command: Command, *, encoding: str = "utf-8", **options: Unpack[RunOptions]) -> CompletedProcess[str]: ...

    @overload
    def run(self, command: Command, *, encoding: None, **options: Unpack[RunOptions]) -> CompletedProcess[bytes]: ...

    @takes(Run)
    def run(
        self, command: Command, *, encoding: str | None = "utf-8", **options: Unpack[RunOptions]
    ) -> CompletedProcess[Any]:
        """Runs a command to its end and returns what it left.

        ``command`` is a line for the login shell on the server, or a list of words, which arrive as they are. ``input`` is
        its standard input, which is empty without. ``env`` asks for environment variables; servers take those that their
        AcceptEnv names. ``encoding=None`` gives ``bytes``. ``terminal`` runs it on a terminal, which joins its outputs.

        Raises an ``Error`` when it could not be run, or not to its end, whose ``execution`` says how far it came;
        ``TimeoutError`` after ``timeout`` seconds, connecting included, when the command's session is closed; with
        ``check``, ``CommandError`` for a status other than 0.
        """
        run = Run(command, encoding, **options)
        return run.completed(run.on(self._use()).wait())

    @overload
    def start(self, command: Command, *, encoding: str = "utf-8", **options: Unpack[StartOptions]) -> Process[str]: ...

    @overload
    def start(self, command: Command, *, encoding: None, **options: Unpack[StartOptions]) -> Process[bytes]: ...

    @takes(Start)
    def start(self, command: Command, *, encoding: str | None = "utf-8", **options: Unpack[StartOptions]) -> Process[Any]:
        """Starts a command and returns at once; arguments as for ``run``.

        What prevents the start is raised by the process's methods; ``Process.started`` waits for it.
        """
        return self._start(Start(command_line(command), encoding, **options))

    def shell(
        self,
        *,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | bool = True,
        encoding: str | None = "utf-8",
    ) -> Process[Any]:
        """Starts the login shell, on a terminal unless ``terminal`` is ``False``."""
        return self._start(Start(None, encoding, env=env, terminal=terminal))

    def _start(self, start: Start) -> Process[Any]:
        process: Process[Any] = Process(self._use().start(start.wanted).wait(), start)
        self._keep(process)
        return process

    def sftp(self) -> SFTP:
        """Opens an SFTP session, without waiting for it: its first operation leaves at once."""
        sftp = SFTP(self._use().sftp().wait())
        self._keep(sftp)
        return sftp

    @takes(copying)
    def get(
        self, sources: RemotePath | Iterable[RemotePath], target: LocalPath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """As ``SFTP.get``, over as many sessions and connections as are worth having."""
        return copied(self._use().copy(paths(sources), remote(target), False, copying(**options)).wait())

    @takes(copying)
    def put(
        self, sources: LocalPath | Iterable[LocalPath], target: RemotePath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """As ``SFTP.put``, over as many sessions and connections as are worth having."""
        return copied(self._use().copy(paths(sources), remote(target), True, copying(**options)).wait())

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
