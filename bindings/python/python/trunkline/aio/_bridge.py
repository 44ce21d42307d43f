"""From the engine's threads to an event loop: one descriptor for each loop wakes it, once for many outcomes."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from .. import _native

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

_T = TypeVar("_T")


class Bridge:
    """Operations that an event loop waits for."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._completions = _native.Completions()
        self._tokens = itertools.count()
        self._waiting: dict[int, Callable[[bool, Any], None]] = {}
        self._going = False
        loop.add_reader(self._completions.fileno(), self._drain)

    def begin(self, operation: _native.Operation[Any], done: Callable[[bool, Any], None]) -> Begun:
        """Begins an operation, together with those that the loop begins in the same turn; ``done`` gets whether it went
        well, and the value or the exception."""
        token = next(self._tokens)
        running = operation.begin(self._completions, token)
        self._waiting[token] = done
        if not self._going:
            self._going = True
            asyncio.get_running_loop().call_soon(self._go)
        return Begun(self, token, running)

    def _go(self) -> None:
        self._going = False
        self._completions.go()

    def forget(self, token: int) -> None:
        """Nobody waits for this outcome any more."""
        self._waiting.pop(token, None)

    def _drain(self) -> None:
        for token, ok, value in self._completions.drain():
            done = self._waiting.pop(token, None)
            if done is None:
                continue
            try:
                done(ok, value)
            except Exception as error:
                # The others' outcomes are taken already.
                context = {"message": "an outcome was not taken", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


class Begun:
    """An operation that was begun."""

    def __init__(self, bridge: Bridge, token: int, running: _native.Running) -> None:
        self._bridge = bridge
        self._token = token
        self._running = running

    def abort(self) -> None:
        """Gives it up: a session that it is about is closed, and there is no outcome."""
        self._running.abort()
        self._bridge.forget(self._token)


_bridges: weakref.WeakKeyDictionary[AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()


def bridge() -> Bridge:
    """The running loop's."""
    loop = asyncio.get_running_loop()
    found = _bridges.get(loop)
    if found is None:
        found = _bridges[loop] = Bridge(loop)
    return found


def begin(operation: _native.Operation[_T]) -> tuple[Future[_T], Begun]:
    """Begins an operation: its future in the running loop, and what gives it up."""
    future: Future[_T] = asyncio.get_running_loop().create_future()

    def done(ok: bool, value: Any) -> None:
        if future.done():
            return
        if ok:
            future.set_result(value)
        else:
            future.set_exception(value)
            # asyncio reports what nobody waits for any more, as after a close, where this was not asked.
            future.exception()

    return future, bridge().begin(operation, done)


async def outcome(operation: _native.Operation[_T]) -> _T:
    """Waits for an operation. Cancelling this gives it up: a session that it was about is closed."""
    future, begun = begin(operation)
    try:
        return await future
    except asyncio.CancelledError:
        begun.abort()
        raise
