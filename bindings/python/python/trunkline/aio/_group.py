"""Many hosts at once, for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar, overload

from .._face import AsyncClosing, takes
from .._files import CopyOptions, CopyResult, LocalPath, RemotePath, copied, copying, paths, remote
from .._group import BaseGroup, HostResult, Jobs, begin, host_directory, host_result
from .._result import Command, CompletedProcess, Run, RunOptions
from ._bridge import Begun, bridge

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .. import _native


_T = TypeVar("_T", bound="CompletedProcess[Any] | CopyResult")


class Group(BaseGroup, AsyncClosing):
    __doc__ = (BaseGroup.__doc__ or "") + "\n    Inventories are read when the group is made, which may run their scripts."

    @overload
    def run(
        self, command: Command, *, encoding: str = "utf-8", at_once: int = 100, **options: Unpack[RunOptions]
    ) -> GroupRun[CompletedProcess[str]]: ...

    @overload
    def run(
        self, command: Command, *, encoding: None, at_once: int = 100, **options: Unpack[RunOptions]
    ) -> GroupRun[CompletedProcess[bytes]]: ...

    @takes(Run)
    def run(
        self, command: Command, *, encoding: str | None = "utf-8", at_once: int = 100, **options: Unpack[RunOptions]
    ) -> GroupRun[CompletedProcess[Any]]:
        """As ``trunkline.Group.run``: what it returns is for ``async for`` and ``await``."""
        run = Run(command, encoding, **options)
        return GroupRun(self._jobs(run, at_once), run.completed)

    @takes(copying)
    def copy(
        self,
        sources: LocalPath | Iterable[LocalPath],
        target: RemotePath = ".",
        *,
        at_once: int = 20,
        **options: Unpack[CopyOptions],
    ) -> GroupRun[CopyResult]:
        """As ``trunkline.Group.copy``."""
        there = remote(target)
        jobs = self._copy_jobs(True, paths(sources), lambda _: there, copying(**options), at_once)
        return GroupRun(jobs, copied)

    @takes(copying)
    def get(
        self,
        sources: RemotePath | Iterable[RemotePath],
        target: LocalPath = ".",
        *,
        at_once: int = 20,
        **options: Unpack[CopyOptions],
    ) -> GroupRun[CopyResult]:
        """As ``trunkline.Group.get``."""
        directory = functools.partial(host_directory, target)
        jobs = self._copy_jobs(False, paths(sources), directory, copying(**options), at_once)
        return GroupRun(jobs, copied)


class GroupRun(Generic[_T]):
    """A command under way on many hosts; an asynchronous iterator of ``HostResult``, as they complete.

    Leaving an ``async with`` block early closes what still runs; on a fleet, so does cancelling what waits for a result.
    """

    def __init__(self, jobs: Jobs, finish: Callable[[Any], _T]) -> None:
        self._jobs = enumerate(jobs.jobs)
        self._cancel = jobs.cancel
        self._finish = finish
        self._bridge = bridge()
        self._running: dict[int, Begun] = {}
        self._ready: list[HostResult[_T]] = []
        #: Something has come since it was last cleared.
        self._came = asyncio.Event()
        for _ in range(jobs.at_once):
            if not self._begin():
                break

    def _begin(self) -> bool:
        return begin(self._jobs, self._ready.append, self._start)

    def _start(self, index: int, name: str, operation: _native.Operation[Any]) -> None:
        self._running[index] = self._bridge.begin(operation, self._done(index, name))

    def _done(self, index: int, name: str) -> Callable[[bool, Any], None]:
        def done(ok: bool, value: Any) -> None:
            del self._running[index]
            self._ready.append(host_result(name, index, ok, value, self._finish))
            self._came.set()
            self._begin()

        return done

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> HostResult[_T]:
        while not self._ready:
            if not self._running:
                raise StopAsyncIteration
            await self._pause()
        return self._ready.pop(0)

    async def _pause(self) -> None:
        """Until something has come."""
        self._came.clear()
        try:
            await self._came.wait()
        except asyncio.CancelledError:
            # A fleet goes on without this process.
            if self._cancel is not None:
                self.cancel()
            raise

    async def wait(self) -> list[HostResult[_T]]:
        """Waits for all that have not been iterated over, and returns them in the hosts' order. When waiting is given up,
        what has come by then is kept for the next call."""
        while self._running:
            await self._pause()
        results, self._ready[:] = sorted(self._ready, key=lambda result: result.index), ()
        return results

    def cancel(self) -> None:
        """Closes what still runs and begins nothing more; results that are there can still be taken."""
        self._jobs = enumerate(())
        if self._cancel is not None and self._running:
            self._cancel()
        for begun in self._running.values():
            begun.abort()
        self._running.clear()
        self._came.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
