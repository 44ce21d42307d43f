"""Packets, which are the engine's: what programs set of them has a place here, and changes nothing."""

from __future__ import annotations

from typing import Any


class NeedRekeyException(Exception):
    """Never raised: the engine exchanges keys by itself."""


def first_arg(e: BaseException) -> Any:
    """The first of an exception's arguments."""
    return e.args[0] if e.args else None


class Packetizer:
    """A transport's ``packetizer``, for programs that raise its limits. The engine exchanges keys when their cipher
    demands it (after 64 GiB, or 1 GiB for ChaCha20), which interrupts nothing."""

    REKEY_PACKETS = 2**29
    REKEY_BYTES = 2**29
    REKEY_PACKETS_OVERFLOW_MAX = 2**29
    REKEY_BYTES_OVERFLOW_MAX = 2**29

    def need_rekey(self) -> bool:
        """Return whether keys are to be exchanged: it is done before anybody could ask."""
        return False
