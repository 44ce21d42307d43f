"""An object that is being opened, as in asyncio: awaited, or entered by ``async with``."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Protocol, TypeVar


class _Opened(Protocol):
    """Something whose ``async with`` block closes it."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


_T = TypeVar("_T", bound=_Opened)


class Opening(Coroutine[Any, Any, _T]):
    """A coroutine of something that is opened. ``async with`` awaits it, and closes what was opened at the block's end."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> _T:
        self._opened = await self._coroutine
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)
