"""The data that has come and was not read yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

#: Waits until something is so.
Waiting = Callable[[Callable[[], bool]], object]


class _Eof(threading.Event):
    """Nothing more will be written."""

    def __init__(self, changed: threading.Condition) -> None:
        super().__init__()
        self._changed = changed

    def set(self) -> None:
        super().set()
        with self._changed:
            self._changed.notify_all()


class ConcurrentRWBuffer:
    """Bytes that one side writes while another reads. Iterating gives them as they come, until ``eof`` is set."""

    def __init__(self, _waiting: Waiting | None = None) -> None:
        self._data = bytearray()
        self._changed = threading.Condition()
        self._waiting = _waiting or self._wait
        self.eof = _Eof(self._changed)

    def write(self, data: bytes) -> None:
        """Adds bytes."""
        with self._changed:
            self._data += data
            self._changed.notify_all()

    def read(self) -> bytes | None:
        """Takes what is there; ``None`` if nothing is."""
        with self._changed:
            data = bytes(self._data)
            self._data.clear()
        return data or None

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces(self._waiting)

    def pieces(self, waiting: Waiting) -> Iterator[bytes]:
        """The bytes as they come; ``waiting`` waits for them."""
        while True:
            data = self.read()
            if data is not None:
                yield data
            elif self.eof.is_set():
                return
            else:
                waiting(self._is_over)

    def _is_over(self) -> bool:
        """Return whether there is nothing to wait for."""
        return bool(self._data) or self.eof.is_set()

    def _wait(self, done: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(done)
