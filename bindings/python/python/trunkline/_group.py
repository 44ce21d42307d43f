"""Many hosts at once, from one thread."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, overload

from . import _native
from ._errors import ClosedError, ConfigurationError, Error, TimeoutError, of_system
from ._expect import expect
from ._face import Closing, face, takes
from ._files import Copied, Copying, CopyOptions, CopyResult, LocalPath, RemotePath, copied, copying, paths, remote
from ._options import ConnectOptions, Options, StrPath, program
from ._result import Command, CompletedProcess, Run, RunOptions

if TYPE_CHECKING:
    from typing_extensions import Self, TypeAlias, Unpack


_T = TypeVar("_T", bound="CompletedProcess[Any] | CopyResult")


@dataclass(frozen=True)
class BaseHostResult(Generic[_T]):
    """The result of one host of a group."""

    #: Its name, as the group has it.
    host: str
    #: Its place in the group.
    index: int
    #: What the command left, or the copy did.
    result: _T | None
    #: Why there is no result; ``execution`` says whether the command may have run.
    error: Error | None

    @property
    def ok(self) -> bool:
        """Whether the command ended with status 0, or everything was copied."""
        return self.result is not None and self.result.ok

    def unwrap(self) -> _T:
        """The result; raises the error."""
        if self.result is None:
            raise self.error or Error("there is no result")
        return self.result


@dataclass(frozen=True)
class HostSuccess(BaseHostResult[_T]):
    """A result."""

    result: _T
    error: None = None


@dataclass(frozen=True)
class HostFailure(BaseHostResult[_T]):
    """An error. Where ``error`` is looked at, type checkers know which of the two it is."""

    result: None
    error: Error


#: What one host of a group answered: a result, or the error in its place.
HostResult = Union[HostSuccess[_T], HostFailure[_T]]

#: A host's name, and what makes the operation that is to be done there.
Job: TypeAlias = "tuple[str, Callable[[], _native.Operation[Any]]]"


@dataclass(frozen=True)
class Jobs:
    """The work on the hosts of a group."""

    jobs: Iterator[Job]
    #: How many are begun at a time.
    at_once: int
    #: Ends all of them elsewhere, where closing sessions here does not.
    cancel: Callable[[], None] | None = None


def host_result(name: str, index: int, ok: bool, value: Any, finish: Callable[[Any], _T]) -> HostResult[_T]:
    """Return the result of one job, made by ``finish`` from its outcome."""
    failed: Any = value
    if ok:
        try:
            return HostSuccess(name, index, finish(value))
        except Exception as error:
            # Its traceback would keep the run, and its descriptor, for as long as the result.
            failed = error.with_traceback(None)
    if isinstance(failed, Error):
        return HostFailure(name, index, None, failed)
    # Such as a UnicodeDecodeError, which has the output.
    made = Error(f"{type(failed).__name__}: {failed}", execution="finished" if ok else "may have started")
    made.__cause__ = failed
    return HostFailure(name, index, None, made)


def begin(
    jobs: Iterator[tuple[int, Job]],
    ready: Callable[[HostResult[_T]], None],
    start: Callable[[int, str, _native.Operation[Any]], None],
) -> bool:
    """Starts the next job; whether there was one. What fails before it starts is a result, and the one behind it is
    next."""
    for index, (name, make) in jobs:
        try:
            operation = make()
        except OSError as error:
            ready(HostFailure(name, index, None, of_system(error)))
        else:
            start(index, name, operation)
            return True
    return False


def host_directory(target: LocalPath, name: str) -> bytes:
    """A directory for one host's files, which is made. A name that is a URI has slashes, which a directory's cannot have."""
    directory = os.path.join(os.fspath(target), name.replace("/", "_"))
    os.makedirs(directory, exist_ok=True)
    return os.fsencode(directory)


class BaseGroup:
    """Hosts to run commands on: names, ranges and lists such as ``db[01-20],web1``, patterns of ssh_config's aliases such
    as ``web*``, files of names as ``@FILE``; or hosts of Ansible inventories, of which ``hosts`` then picks some by
    Ansible's patterns (all, when it is ``None``) and ``limit`` fewer.

    The other arguments are those of ``connect``. Connections are made as hosts are used, and shared with whatever else
    uses them.

    With ``fleet``, the address of a fleet's NATS such as ``"nats://nats1:4222"``, or ``True`` for the one that this machine
    belongs to, the fleet's nodes run the commands on the hosts, which they reach by their own ssh_config: none of the other
    arguments can be given then, and there are no files.
    """

    @takes(Options)
    def __init__(
        self,
        hosts: str | Iterable[str] | None = None,
        *,
        inventory: StrPath | Iterable[StrPath] | None = None,
        limit: str | None = None,
        fleet: str | bool = False,
        **options: Unpack[ConnectOptions],
    ) -> None:
        expect("fleet", "an address, True or False", fleet, str, bool)
        if fleet and options:
            raise ValueError(f"a fleet's nodes reach hosts by their own ssh_config: leave out {', '.join(options)}")
        self._fleet = fleet
        self._options = Options(**options)
        self._engine = self._options.engine()
        #: Hosts of an inventory that cannot be reached so (another connection plugin, no name), each with the reason.
        self.skipped: list[tuple[str, str]] = []
        targets = self._targets(hosts, inventory, limit)
        self._closed = False
        self._hosts: dict[str, _native.Host] = {}
        #: Names and destinations of hosts that a fleet reaches.
        self._of_fleet: list[tuple[str, str]] = []
        if fleet:
            for name, destination, args in targets:
                if args:
                    raise ValueError(f"{name} needs options of ssh, which a fleet's nodes have in their own ssh_config")
                self._of_fleet.append((name, destination))
        else:
            reached = self._options.reached(self._engine)
            self._hosts = {name: reached(destination, args) for name, destination, args in targets}

    def _targets(
        self,
        hosts: str | Iterable[str] | None,
        inventory: StrPath | Iterable[StrPath] | None,
        limit: str | None,
    ) -> list[tuple[str, str, list[str]]]:
        expressions = [hosts] if isinstance(hosts, str) else hosts
        if expressions is not None:
            expect("hosts", "a str, or several", expressions, Iterable)
            expressions = list(expressions)
        for expression in expressions or ():
            expect("a host of a group", "a str", expression, str)
        if inventory is not None:
            sources = [inventory] if isinstance(inventory, str) or not isinstance(inventory, Iterable) else inventory
            pattern = "all" if expressions is None else ",".join(expressions)
            targets, self.skipped = _native.inventory(list(sources), pattern, limit).wait()
            return targets
        if expressions is None:
            raise ValueError("a group needs hosts, or an inventory")
        if limit is not None:
            raise ValueError("a limit narrows an inventory")
        names = dict.fromkeys(
            name for expression in expressions for name in _native.expand(expression, self._options.config)
        )
        if not names:
            raise ValueError("the group names no host")
        return [(name, name, []) for name in names]

    @property
    def hosts(self) -> list[str]:
        """The names of its hosts, in order, each once."""
        return [name for name, _ in self._of_fleet] or list(self._hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    def _jobs(self, run: Run, at_once: int) -> Jobs:
        """Return the jobs for every host."""
        self._check(at_once)
        if not self._fleet:
            return Jobs(((name, functools.partial(run.on, host)) for name, host in self._hosts.items()), at_once)
        converse = [program("fleet"), "fleet", "converse"]
        if isinstance(self._fleet, str):
            converse += ["--url", self._fleet]
        job = run.on_fleet(converse, self._of_fleet, at_once)
        jobs = ((name, functools.partial(job.host, place)) for place, (name, _) in enumerate(self._of_fleet))
        # It is the fleet that counts.
        return Jobs(jobs, len(self._of_fleet), job.cancel)

    def _copy_jobs(
        self, upload: bool, sources: Iterable[bytes], target: Callable[[str], bytes], options: Copying, at_once: int
    ) -> Jobs:
        """Return the copies, to or from every host; ``target`` places each by the host's name."""
        self._check(at_once)
        if self._fleet:
            raise ConfigurationError(
                "a fleet runs commands and copies no files: use a group without fleet, or a command's input"
            )
        several = list(sources)

        def copy(name: str, host: _native.Host) -> _native.Operation[Copied]:
            return host.copy(several, target(name), upload, options)

        return Jobs(((name, functools.partial(copy, name, host)) for name, host in self._hosts.items()), at_once)

    def _check(self, at_once: int) -> None:
        if self._closed:
            raise ClosedError("the group is closed")
        expect("at_once", "a number", at_once, int)
        if at_once < 1:
            raise ValueError("at_once is at least 1")

    def close(self) -> None:
        """With ``share=False``, closes its connections."""
        self._closed = True
        if not self._options.share:
            self._engine.close()

    def __repr__(self) -> str:
        return f"<{face(self)}.Group of {len(self)} hosts>"


class Group(BaseGroup, Closing):
    __doc__ = BaseGroup.__doc__

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
        """Runs a command on every host, on ``at_once`` of them at a time; the other arguments are those of
        ``Connection.run``, ``timeout`` for each host.

        Iterate over what it returns for results as they complete, or call ``wait`` on it for all of them in the hosts'
        order. Nothing is raised for a host that fails: its result holds the error.
        """
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
        """Copies to every host, as ``Connection.put`` does; results as for ``run``."""
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
        """Copies from every host, as ``Connection.get`` does, into a directory of the host's name in the directory
        ``target``, both of which are made; results as for ``run``."""
        directory = functools.partial(host_directory, target)
        jobs = self._copy_jobs(False, paths(sources), directory, copying(**options), at_once)
        return GroupRun(jobs, copied)


class GroupRun(Generic[_T]):
    """A command under way on many hosts; an iterator of ``HostResult``, as they complete.

    It continues while something is waited for; on a fleet, in any case. ``cancel``, and leaving a ``with`` block early,
    close what still runs; on a fleet, an exception while something is waited for (Ctrl-C) does that, too.
    """

    def __init__(self, jobs: Jobs, finish: Callable[[Any], _T]) -> None:
        self._jobs = enumerate(jobs.jobs)
        self._cancel = jobs.cancel
        self._finish = finish
        self._completions = _native.Completions()
        self._running: dict[int, tuple[str, _native.Running]] = {}
        self._ready: list[HostResult[_T]] = []
        self._begin(jobs.at_once)

    def _begin(self, count: int) -> None:
        while count and begin(self._jobs, self._ready.append, self._start):
            count -= 1
        self._completions.go()

    def _start(self, index: int, name: str, operation: _native.Operation[Any]) -> None:
        self._running[index] = (name, operation.begin(self._completions, index))

    def __iter__(self) -> Iterator[HostResult[_T]]:
        return self

    def __next__(self) -> HostResult[_T]:
        while not self._ready:
            if not self._running:
                raise StopIteration
            self._pause()
            self._collect()
        return self._ready.pop(0)

    def _pause(self, limit: float | None = None) -> None:
        """Until something has come, or for a while."""
        try:
            self._completions.wait(limit)
        except BaseException:
            # A fleet goes on without this process.
            if self._cancel is not None:
                self.cancel()
            raise

    def _collect(self) -> None:
        ended = 0
        for index, ok, value in self._completions.drain():
            if index not in self._running:
                # It was cancelled as it ended.
                continue
            name, _ = self._running.pop(index)
            self._ready.append(host_result(name, index, ok, value, self._finish))
            ended += 1
        self._begin(ended)

    def wait(self, timeout: float | None = None) -> list[HostResult[_T]]:
        """Waits for all that have not been iterated over, and returns them in the hosts' order.

        Raises ``TimeoutError`` after ``timeout`` seconds; what has come by then is kept for the next call.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self._running:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(
                    f"{len(self._running)} hosts have not answered within {timeout} s", execution="may have started"
                )
            self._pause(None if end is None else max(0.0, end - time.monotonic()))
            self._collect()
        results, self._ready = sorted(self._ready, key=lambda result: result.index), []
        return results

    def cancel(self) -> None:
        """Closes what still runs and begins nothing more; results that are there can still be taken."""
        self._jobs = enumerate(())
        if self._cancel is not None and self._running:
            self._cancel()
        for _, running in self._running.values():
            running.abort()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()
