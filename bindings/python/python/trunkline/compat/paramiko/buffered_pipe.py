"""Bytes from one thread to another."""

from __future__ import annotations

import threading

from .util import b


class PipeTimeout(OSError):
    """Nothing came in time."""


class BufferedPipe:
    """A pipe that one thread feeds and others read."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by ``_changed``, as all of this.
        self._content = bytearray()
        self._closed = False
        self._event: threading.Event | None = None

    def set_event(self, event: threading.Event) -> None:
        """Has the event set while something can be read, or the pipe is closed."""
        with self._changed:
            self._event = event
            self._tell()

    def feed(self, data: str | bytes) -> None:
        """Adds to it."""
        with self._changed:
            self._content += b(data)
            self._tell()

    def read_ready(self) -> bool:
        """Return whether ``read`` would give bytes at once."""
        return len(self) > 0

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Up to so many bytes; none if it is closed and empty. ``PipeTimeout`` if none came in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._content or self._closed, timeout):
                raise PipeTimeout()
            return self._taken(nbytes)

    def empty(self) -> bytes:
        """All that is there."""
        with self._changed:
            return self._taken(len(self._content))

    def close(self) -> None:
        """Ends it: what is there can still be read."""
        with self._changed:
            self._closed = True
            self._tell()

    def __len__(self) -> int:
        with self._changed:
            return len(self._content)

    def _taken(self, count: int) -> bytes:
        taken = bytes(self._content[:count])
        del self._content[:count]
        self._tell()
        return taken

    def _tell(self) -> None:
        self._changed.notify_all()
        if self._event is not None:
            (self._event.set if self._content or self._closed else self._event.clear)()
