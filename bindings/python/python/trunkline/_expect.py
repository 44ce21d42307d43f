"""Arguments of wrong types, told by what was expected."""

from __future__ import annotations

from typing import Any


def expect(what: str, words: str, value: Any, *kinds: type) -> None:
    """Raises ``TypeError`` ("WHAT is WORDS, not TYPE") unless ``value`` is of one of these kinds.

    A ``bool`` does not count as an ``int``."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{what} is {words}, not {type(value).__name__}")


def plain(data: Any) -> bytes:
    """A copy of what is like bytes, which a number, of which ``bytes`` makes zeros, is not."""
    return bytes(memoryview(data))
