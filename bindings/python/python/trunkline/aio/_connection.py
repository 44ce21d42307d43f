"""Connections, for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from .._connection import BaseConnection, Lane
from .._face import AsyncClosing, takes
from .._files import CopyOptions, CopyResult, LocalPath, RemotePath, copied, copying, paths, remote
from .._forward import Address, BaseForward, address
from .._options import ConnectOptions, Options
from .._result import Command, CompletedProcess, Run, RunOptions, Start, StartOptions, Terminal, command_line
from ._bridge import begin, outcome
from ._opening import Opening
from ._process import Process
from ._sftp import SFTP

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


@takes(Options)
def connect(destination: str, *, wait: bool = True, **options: Unpack[ConnectOptions]) -> Opening[Connection]:
    """As ``trunkline.connect``: to be awaited, or entered by ``async with``, as is everything here that opens something."""
    return Opening(_connected(destination, Options(**options), wait))


async def _connected(destination: str, options: Options, wait: bool) -> Connection:
    connection = Connection(destination, options)
    if wait:
        try:
            await outcome(connection._connecting())
        except BaseException:
            connection.close()
            raise
    return connection


class Forward(BaseForward):
    """A forwarding, until it is closed or nobody has it any more. Its connections then continue to their ends."""

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


class Connection(BaseConnection, AsyncClosing):
    """A host, reached through connections that are made, shared and replaced as needed. Made by ``connect``.

    Any number of tasks may use it at once. A cancelled task's session is closed. ``close`` and the end of an ``async with``
    block close what was started through it; the shared connection itself stays for whoever comes next.
    """

    @overload
    async def run(
        self, command: Command, *, encoding: str = "utf-8", **options: Unpack[RunOptions]
    ) -> CompletedProcess[str]: ...

    @overload
    async def run(self, command: Command, *, encoding: None, **options: Unpack[RunOptions]) -> CompletedProcess[bytes]: ...

    @takes(Run)
    async def run(
        self, command: Command, *, encoding: str | None = "utf-8", **options: Unpack[RunOptions]
    ) -> CompletedProcess[Any]:
        """As ``trunkline.Connection.run``."""
        run = Run(command, encoding, **options)
        return run.completed(await outcome(run.on(self._use())))

    @overload
    def start(
        self, command: Command, *, encoding: str = "utf-8", **options: Unpack[StartOptions]
    ) -> Opening[Process[str]]: ...

    @overload
    def start(self, command: Command, *, encoding: None, **options: Unpack[StartOptions]) -> Opening[Process[bytes]]: ...

    @takes(Start)
    def start(
        self, command: Command, *, encoding: str | None = "utf-8", **options: Unpack[StartOptions]
    ) -> Opening[Process[Any]]:
        """As ``trunkline.Connection.start``."""
        return self._start(Start(command_line(command), encoding, **options))

    def shell(
        self,
        *,
        env: Mapping[str, str] | None = None,
        terminal: Terminal | bool = True,
        encoding: str | None = "utf-8",
    ) -> Opening[Process[Any]]:
        """Starts the login shell, on a terminal unless ``terminal`` is ``False``."""
        return self._start(Start(None, encoding, env=env, terminal=terminal))

    def _start(self, start: Start) -> Opening[Process[Any]]:
        async def begun() -> Process[Any]:
            process: Process[Any] = Process(await outcome(self._use().start(start.wanted)), start)
            self._keep(process)
            return process

        return Opening(begun())

    def sftp(self) -> Opening[SFTP]:
        """Opens an SFTP session, without waiting for it: its first operation leaves at once."""

        async def opened() -> SFTP:
            sftp = SFTP(await outcome(self._use().sftp()))
            self._keep(sftp)
            return sftp

        return Opening(opened())

    @takes(copying)
    async def get(
        self, sources: RemotePath | Iterable[RemotePath], target: LocalPath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """As ``SFTP.get``, over as many sessions and connections as are worth having."""
        return copied(await outcome(self._use().copy(paths(sources), remote(target), False, copying(**options))))

    @takes(copying)
    async def put(
        self, sources: LocalPath | Iterable[LocalPath], target: RemotePath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """As ``SFTP.put``, over as many sessions and connections as are worth having."""
        return copied(await outcome(self._use().copy(paths(sources), remote(target), True, copying(**options))))

    def forward_local(self, listen: Address, target: Address) -> Opening[Forward]:
        """As ``trunkline.Connection.forward_local``."""
        return self._forward(False, listen, target)

    def forward_remote(self, listen: Address, target: Address) -> Opening[Forward]:
        """As ``trunkline.Connection.forward_remote``."""
        return self._forward(True, listen, target)

    def forward_socks(self, listen: Address = 0) -> Opening[Forward]:
        """As ``trunkline.Connection.forward_socks``."""
        return self._forward(False, listen, None)

    def _forward(self, remote: bool, listen: Address, target: Address | None) -> Opening[Forward]:
        async def begun() -> Forward:
            where = None if target is None else address(target)
            forward = Forward(await outcome(self._use().forward(remote, address(listen), where)))
            self._keep(forward)
            return forward

        return Opening(begun())

    async def stats(self) -> list[Lane]:
        """The host's connections."""
        return [Lane(*lane) for lane in await outcome(self._use().lanes())]

    async def resolved(self) -> tuple[str, str, int]:
        """User, host name and port, as ssh_config resolves the destination."""
        return await outcome(self._use().resolve())

    async def disconnect(self) -> int:
        """As ``trunkline.Connection.disconnect``."""
        return await outcome(self._use().disconnect())
