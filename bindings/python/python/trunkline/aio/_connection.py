"""Connections, for asyncio."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import _native
from .._connection import Closable, Lane
from .._errors import ClosedError
from .._files import CopyResult, LocalPath, RemotePath, copied, copying, paths, remote
from .._forward import Address, BaseForward, address
from .._options import Ask, Daemon, Options, StrPath
from .._result import Command, CompletedProcess, Input, Terminal, check_codec, completed, input_bytes, wanted
from ._bridge import begin, outcome
from ._process import Process
from ._sftp import SFTP

if TYPE_CHECKING:
    from typing_extensions import Self


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
) -> Connecting:
    """As ``trunkline.connect``: to be awaited, or entered by ``async with``."""
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
    return Connecting(destination, chosen, wait)


class Forward(BaseForward):
    """A forwarding, until it is closed or nobody has it any more. Connections that it carries then go on to their ends."""

    def close(self) -> None:
        """Ends the listening, without waiting until it has ended."""
        begin(self._native.close(False))

    def abort(self) -> None:
        """Ends the listening and what is being carried, without waiting until they have ended."""
        begin(self._native.close(True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await outcome(self._native.close(False))


class Connecting:
    """A connection that is to be made."""

    def __init__(self, destination: str, options: Options, wait: bool) -> None:
        self._destination = destination
        self._options = options
        self._wait = wait
        self._connection: Connection | None = None

    async def _connect(self) -> Connection:
        connection = Connection(self._destination, self._options)
        if self._wait:
            try:
                await outcome(connection._host.connect(self._options.timeout))
            except BaseException:
                connection.close()
                raise
        return connection

    def __await__(self) -> Generator[Any, Any, Connection]:
        return self._connect().__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self._connect()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()


class Connection:
    """A host, reached through connections that are made, shared and replaced as needed. Made by ``connect``.

    Any number of tasks may use it at once. A cancelled task's session is closed. ``close`` and the end of an ``async with``
    block close what was started through it; the shared connection itself stays for whoever comes next.
    """

    def __init__(self, destination: str, options: Options) -> None:
        self.destination = destination
        self._engine = _native.Engine.shared() if options.share else _native.Engine.apart()
        self._own = not options.share
        self._host = options.reached(self._engine)(destination, ())
        self._closed = False
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()

    @overload
    async def run(
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
    async def run(
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

    async def run(
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
        """As ``trunkline.Connection.run``."""
        check_codec(encoding, errors)
        start = wanted(command, env, terminal)
        ended = await outcome(self._use().run(start, input_bytes(input, encoding), timeout))
        result = completed(start["program"] or b"", ended, encoding, errors)
        if check:
            result.check_returncode()
        return result

    @overload
    async def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        encoding: str = "utf-8",
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> Process[str]: ...

    @overload
    async def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        encoding: None,
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> Process[bytes]: ...

    async def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        encoding: str | None = "utf-8",
        errors: str = "backslashreplace",
        terminal: Terminal | bool = False,
    ) -> Process[Any]:
        """As ``trunkline.Connection.start``."""
        return await self._start(wanted(command, env, terminal), encoding, errors)

    async def shell(
        self,
        *,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | bool = True,
        encoding: str | None = "utf-8",
    ) -> Process[Any]:
        """Starts the login shell, on a terminal unless ``terminal`` is ``False``."""
        return await self._start(wanted(None, env, terminal), encoding, "backslashreplace")

    async def _start(self, start: Any, encoding: str | None, errors: str) -> Process[Any]:
        check_codec(encoding, errors)
        session = await outcome(self._use().start(start))
        process: Process[Any] = Process(session, start["program"] or b"", encoding, errors)
        self._keep(process)
        return process

    def _keep(self, thing: Closable) -> None:
        """Notes what is to be closed with the connection, which may have been closed meanwhile."""
        if self._closed:
            thing.close()
        self._use()
        self._open.add(thing)

    async def sftp(self) -> SFTP:
        """Opens an SFTP session, without waiting for it: its first operation leaves at once."""
        sftp = SFTP(await outcome(self._use().sftp()))
        self._keep(sftp)
        return sftp

    async def get(
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
        return copied(await outcome(self._use().copy(paths(sources), remote(target), False, options)))

    async def put(
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
        return copied(await outcome(self._use().copy(paths(sources), remote(target), True, options)))

    async def forward_local(self, listen: Address, target: Address) -> Forward:
        """As ``trunkline.Connection.forward_local``."""
        return await self._forward(False, listen, target)

    async def forward_remote(self, listen: Address, target: Address) -> Forward:
        """As ``trunkline.Connection.forward_remote``."""
        return await self._forward(True, listen, target)

    async def forward_socks(self, listen: Address = 0) -> Forward:
        """As ``trunkline.Connection.forward_socks``."""
        return await self._forward(False, listen, None)

    async def _forward(self, remote: bool, listen: Address, target: Address | None) -> Forward:
        where = None if target is None else address(target)
        forward = Forward(await outcome(self._use().forward(remote, address(listen), where)))
        self._keep(forward)
        return forward

    async def stats(self) -> list[Lane]:
        """The host's connections."""
        return [Lane(*lane) for lane in await outcome(self._use().lanes())]

    async def resolved(self) -> tuple[str, str, int]:
        """User, host name and port, as ssh_config resolves the destination."""
        return await outcome(self._use().resolve())

    async def disconnect(self) -> int:
        """As ``trunkline.Connection.disconnect``."""
        return await outcome(self._use().disconnect())

    def close(self) -> None:
        """Closes what was started through this, and with ``share=False`` the connection. Can be called again."""
        self._closed = True
        for thing in list(self._open):
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<trunkline.aio.Connection {self.destination}{' closed' if self._closed else ''}>"
