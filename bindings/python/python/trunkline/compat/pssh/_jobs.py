"""Work on many hosts from one thread: generators that yield the engine's operations."""

from __future__ import annotations

import collections
import heapq
import itertools
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, Union

from ... import _native
from .exceptions import Timeout

_T = TypeVar("_T")

#: Yields operations, whose outcomes it is sent, and numbers of seconds to pause.
Steps = Generator[Union["_native.Operation[Any]", float], Any, _T]


#: How long a greenlet waits for outcomes, in seconds, before it looks for those that another one took.
_SLICE = 0.05


class Linked:
    """An object that ``gevent.joinall`` accepts in place of a greenlet."""

    def __init__(self) -> None:
        self._links: dict[Callable[[Any], object], Any] = {}

    def join(self, timeout: float | None = None) -> None:
        """Waits until it is over, for at most ``timeout`` seconds."""
        raise NotImplementedError

    def rawlink(self, callback: Callable[[Any], object]) -> None:
        """Calls back from gevent's loop when it is over."""
        import gevent

        def follow() -> None:
            self.join()
            gevent.get_hub().loop.run_callback(callback, self)

        self._links[callback] = gevent.spawn(follow)

    def unlink(self, callback: Callable[[Any], object]) -> None:
        """Does not call back any more."""
        greenlet = self._links.pop(callback, None)
        if greenlet is not None:
            greenlet.kill(block=False)


class Job(Linked, Generic[_T]):
    """Something under way, which continues while something is waited for."""

    def __init__(self, pool: Pool, steps: Steps[_T]) -> None:
        super().__init__()
        self._pool = pool
        self._steps = steps
        self._done = False
        self.value: _T | None = None
        self.exception: BaseException | None = None

    def ready(self) -> bool:
        """Return whether it is over."""
        self._pool.turn()
        return self._done

    def successful(self) -> bool:
        """Return whether it went well."""
        return self.ready() and self.exception is None

    def join(self, timeout: float | None = None) -> None:
        """Waits until it is over, for at most ``timeout`` seconds."""
        self._pool.wait(lambda: self._done, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Waits for what came of it; raises what went wrong."""
        self.join(timeout if block else 0)
        if not self._done:
            raise Timeout(f"not done within {timeout} s")
        if self.exception is not None:
            raise self.exception
        return self.value  # type: ignore[return-value]

    def _finish(self, value: _T | None, exception: BaseException | None) -> None:
        self._done, self.value, self.exception = True, value, exception


class Pool:
    """Jobs, of which ``size`` run at a time, and what else is waited for together with them."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Held by the thread that takes outcomes.
        self._lock = threading.RLock()
        self._completions = _native.Completions()
        self._tokens = itertools.count()
        self._awaited: dict[int, Callable[[bool, Any], object]] = {}
        self._pauses: list[tuple[float, int, Callable[[bool, Any], object]]] = []
        self._waiting: collections.deque[Job[Any]] = collections.deque()
        self._running = 0

    def spawn(self, steps: Steps[_T]) -> Job[_T]:
        """Begins a job, or has it wait for its turn."""
        job = Job(self, steps)
        with self._lock:
            self._waiting.append(job)
            self._begin()
        return job

    def begin(self, operation: _native.Operation[Any], then: Callable[[bool, Any], object]) -> None:
        """Begins an operation; ``then`` is called with whether it went well, and the outcome or the exception."""
        token = next(self._tokens)
        self._awaited[token] = then
        operation.begin(self._completions, token)
        self._completions.go()

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Takes outcomes until something is done, or ``timeout`` seconds are over; whether it is done."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self.turn()
            if done():
                return True
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._pauses:
                pause = max(0.0, self._pauses[0][0] - time.monotonic())
                left = pause if left is None else min(left, pause)
            self._look(left)

    def _look(self, limit: float | None) -> None:
        """Waits for outcomes, for at most ``limit`` seconds and never for long. A program with gevent goes on in its other
        greenlets, and its ``Timeout`` interrupts this."""
        if (gevent := sys.modules.get("gevent")) is None:
            self._completions.wait(limit)
            return
        limit = _SLICE if limit is None else min(limit, _SLICE)
        with gevent.Timeout(limit, False):
            gevent.get_hub().wait(gevent.get_hub().loop.io(self._completions.fileno(), 1))

    def join(self, timeout: float | None = None) -> bool:
        """Waits until no job is left, for at most ``timeout`` seconds; whether none is."""
        return self.wait(lambda: not self._waiting and not self._running, timeout)

    def turn(self) -> None:
        """Takes the outcomes that are there."""
        with self._lock:
            for token, ok, value in self._completions.drain():
                self._awaited.pop(token)(ok, value)
            while self._pauses and self._pauses[0][0] <= time.monotonic():
                heapq.heappop(self._pauses)[2](True, None)
            self._begin()

    def _begin(self) -> None:
        """Begins what waits for its turn, as far as there is room."""
        while self._waiting and self._running < self.size:
            self._running += 1
            self._step(self._waiting.popleft(), True, None)

    def _step(self, job: Job[Any], ok: bool, value: Any) -> None:
        """Continues with a job, whose operation came to this."""
        try:
            awaited = job._steps.send(value) if ok else job._steps.throw(value)
        except StopIteration as stop:
            job._finish(stop.value, None)
        except Exception as error:
            # Its traceback would keep what the job had, connections included.
            job._finish(None, error.with_traceback(None))
        else:
            if isinstance(awaited, (int, float)):
                pause = time.monotonic() + awaited, next(self._tokens), lambda ok, value: self._step(job, ok, value)
                heapq.heappush(self._pauses, pause)
            else:
                self.begin(awaited, lambda ok, value: self._step(job, ok, value))
            return
        self._running -= 1
