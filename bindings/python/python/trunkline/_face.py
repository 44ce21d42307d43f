"""The common part of the faces, for code that waits and for asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


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
