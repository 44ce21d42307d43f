"""Files as Paramiko has them: ``read`` gives bytes, lines are text unless the mode says "b"."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class BufferedFile:
    """A file with one buffer, for reading; what is written leaves at once unless ``bufsize`` is above 1."""

    SEEK_SET, SEEK_CUR, SEEK_END = 0, 1, 2

    FLAG_READ, FLAG_WRITE, FLAG_APPEND, FLAG_BINARY, FLAG_BUFFERED = 1, 2, 4, 16, 32
    FLAG_LINE_BUFFERED, FLAG_UNIVERSAL_NEWLINE = 64, 128

    def __init__(self, raw: io.RawIOBase, mode: str = "r", bufsize: int = -1) -> None:
        self._raw = raw
        self._text = "b" not in mode
        both = "+" in mode or {"r", "w"} <= set(mode)
        self._reader: io.BufferedReader | io.BufferedRandom | None = None
        self._writer: io.RawIOBase | io.BufferedWriter | io.BufferedRandom | None = None
        #: The ends of lines that were found, in universal newline mode, which there is none of.
        self.newlines: object = None
        #: What was read, where it cannot be asked.
        self._place = 0
        size = bufsize if bufsize > 1 else io.DEFAULT_BUFFER_SIZE
        if raw.seekable() and both:
            self._reader = self._writer = io.BufferedRandom(raw, size)
        else:
            if both or "r" in mode:
                self._reader = io.BufferedReader(raw, size)
            if both or set(mode) & set("wax"):
                self._writer = io.BufferedWriter(raw, bufsize) if bufsize > 1 else raw

    def readable(self) -> bool:
        return self._reader is not None

    def writable(self) -> bool:
        return self._writer is not None

    def seekable(self) -> bool:
        return self._raw.seekable()

    @property
    def closed(self) -> bool:
        return self._raw.closed

    def read(self, size: int | None = None) -> bytes:
        """As many bytes as are asked for, or all; fewer only at the end."""
        data = self._reading().read(-1 if size is None else size) or b""
        self._place += len(data)
        return data

    def readinto(self, buff: bytearray) -> int:
        data = self.read(len(buff))
        buff[: len(data)] = data
        return len(data)

    def xreadlines(self) -> Self:
        """Itself, an iterator of lines."""
        return self

    def readline(self, size: int | None = None) -> str | bytes:
        """One line with its end; nothing at the file's end."""
        line = self._reading().readline(-1 if size is None else size)
        self._place += len(line)
        return line.decode() if self._text else line

    def readlines(self, sizehint: int | None = None) -> list[str | bytes]:
        """All lines, or as many as ``sizehint`` bytes are reached with."""
        lines: list[str | bytes] = []
        length = 0
        for line in self:
            lines.append(line)
            length += len(line)
            if sizehint is not None and length >= sizehint:
                break
        return lines

    def __iter__(self) -> Iterator[str | bytes]:
        return iter(self.readline, "" if self._text else b"")

    def __next__(self) -> str | bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def write(self, data: str | bytes) -> None:
        """Writes everything, text as UTF-8."""
        if self.closed:
            raise OSError("File is closed")
        if self._writer is None:
            raise OSError("File not open for writing")
        self._writer.write(data.encode() if isinstance(data, str) else data)

    def writelines(self, sequence: Iterable[str | bytes]) -> None:
        for line in sequence:
            self.write(line)

    def seek(self, offset: int, whence: int = 0) -> None:
        if not self.seekable():
            raise OSError("File does not support seeking.")
        (self._reader or self._raw).seek(offset, whence)

    def tell(self) -> int:
        return (self._reader or self._raw).tell() if self.seekable() else self._place

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        (self._writer or self._reader or self._raw).close()

    def _reading(self) -> io.BufferedReader | io.BufferedRandom:
        if self.closed:
            raise OSError("File is closed")
        if self._reader is None:
            raise OSError("File is not open for reading")
        return self._reader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
