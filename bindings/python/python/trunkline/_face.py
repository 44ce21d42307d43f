"""The common part of the faces, for code that waits and for asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

_F = TypeVar("_F", bound=Callable[..., Any])


class Closing:
    """Is closed at the end of a ``with`` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing:
    """Is closed at the end of an ``async with`` block."""

    def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def takes(source: Callable[..., Any]) -> Callable[[_F], _F]:
    """Has ``help`` and ``inspect`` show the arguments of ``source``, with their defaults, in place of the ``**options``
    that a function passes on to it."""

    def show(function: _F) -> _F:
        signature = inspect.signature(function)
        own = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        more = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in inspect.signature(source).parameters.items()
            if name not in own
        ]
        function.__signature__ = signature.replace(parameters=[*own.values(), *more])  # type: ignore[attr-defined]
        return function

    return show


def face(thing: object) -> str:
    """The public package that something belongs to."""
    return type(thing).__module__.partition("._")[0]
