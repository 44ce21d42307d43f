"""The stream that a transport is given, in the engine's form."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Protocol

from ... import _native
from .channel import Channel
from .proxy import ProxyCommand

#: What is read at once.
_PIECE = 64 * 1024


#: How many seconds a read may take before the stream is asked again, as with Paramiko: some do not wake their reader when
#: they end.
_LOOK = 0.1


class Stream(Protocol):
    """Anything with a socket's methods."""

    def send(self, data: bytes, /) -> int: ...

    def recv(self, size: int, /) -> bytes: ...

    def close(self) -> object: ...


def handed_over(stream: Channel | ProxyCommand | Stream) -> _native.Session | _native.Handover:
    """A channel, a socket or what behaves like one. A socket is the engine's from then on."""
    if isinstance(stream, Channel):
        return stream.native()
    plain: Any = stream
    if not (isinstance(stream, ProxyCommand) or _is_plain(stream)):
        # What its descriptor carries, if it has one, is not what it sends: TLS, for example.
        plain = _carried(stream)
    receiver, number = _native.Handover.pair()
    with socket.socket(fileno=number) as sender:
        socket.send_fds(sender, [b"\0"], [plain.fileno()])
    if plain is not stream:
        plain.close()
    return receiver


def _is_plain(stream: Stream) -> bool:
    """Return whether it is a socket that sends and receives as sockets do."""
    kind = type(stream)
    return isinstance(stream, socket.socket) and kind.send is socket.socket.send and kind.recv is socket.socket.recv


def _carried(stream: Stream) -> socket.socket:
    """A socket whose bytes two threads carry from and to the stream."""
    near, far = socket.socketpair()
    if hasattr(stream, "settimeout"):
        stream.settimeout(_LOOK)
    for name, work in (("in", _carry_in), ("out", _carry_out)):
        threading.Thread(target=work, args=(stream, near), name=f"paramiko-stream-{name}", daemon=True).start()
    return far


def _carry_in(stream: Stream, near: socket.socket) -> None:
    # Whatever it raises is its end.
    with contextlib.suppress(Exception):
        while True:
            try:
                data = stream.recv(_PIECE)
            except socket.timeout:
                continue
            if not data:
                break
            near.sendall(data)
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_WR)


def _carry_out(stream: Stream, near: socket.socket) -> None:
    with near, contextlib.suppress(Exception):
        while data := near.recv(_PIECE):
            while data:
                try:
                    data = data[stream.send(data) :]
                except socket.timeout:
                    continue
    # The engine needs it no longer.
    with contextlib.suppress(Exception):
        stream.close()
