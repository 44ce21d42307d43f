"""Forwardings: what is listened on at one end of a connection, and carried to the other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _native
from ._expect import expect

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

#: A TCP port, ``(host, port)``, or the path of a Unix socket.
Address: TypeAlias = "int | tuple[str, int] | str | os.PathLike[str]"


@dataclass(frozen=True)
class ForwardCounters:
    """The counters of a forwarding."""

    #: Clients that came.
    accepted: int
    #: Of them, those that are being served.
    open: int
    #: Of them, those that were sent away, because their target could not be reached.
    refused: int
    bytes_sent: int
    bytes_received: int


class BaseForward:
    """The common part of both faces' forwardings."""

    def __init__(self, native: _native.Forward) -> None:
        self._native = native

    @property
    def listening(self) -> list[tuple[str | None, int | None]]:
        """The places where it can be reached: address (if one was given) and port, or the path of a socket and ``None``."""
        return self._native.listening()

    @property
    def port(self) -> int:
        """The TCP port, also where 0 let the system choose one."""
        for _, port in self.listening:
            if port is not None:
                return port
        raise ValueError("this forwarding has no TCP port")

    @property
    def counters(self) -> ForwardCounters:
        """Its counters so far."""
        return ForwardCounters(*self._native.counters())


def address(given: Address) -> int | tuple[str, int] | str:
    """An address as the native module takes it."""
    if isinstance(given, bool) or (isinstance(given, int) and not 0 <= given < 65536):
        raise ValueError(f"{given!r} is not a port number")
    if isinstance(given, (int, str)):
        return given
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    expect("an address", "a port, a host and a port, or a path", given, tuple, list)
    if len(given) != 2:
        raise ValueError(f"{given!r} is not a host and port")
    host, port = given
    expect("a host", "a str", host, str)
    expect("a port", "a number", port, int)
    return host, port
