"""Files as Paramiko has them: ``read`` gives bytes, lines are text unless the mode says "b"."""

from __future__ import annotations

import contextlib
import io
import sys
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


#: How much is asked for at once where everything is wanted.
_PIECE = 256 * 1024


class BufferedFile:
    """A file with one buffer, for reading; what is written leaves at once unless ``bufsize`` is above 1."""

    SEEK_SET, SEEK_CUR, SEEK_END = 0, 1, 2

    FLAG_READ, FLAG_WRITE, FLAG_APPEND, FLAG_BINARY, FLAG_BUFFERED = 1, 2, 4, 16, 32
    FLAG_LINE_BUFFERED, FLAG_UNIVERSAL_NEWLINE = 64, 128

    #: What is below the buffers, and these.
    _raw: io.RawIOBase
    _reader: io.BufferedReader | io.BufferedRandom | None = None
    _writer: io.RawIOBase | io.BufferedWriter | io.BufferedRandom | None = None

    def __init__(self, raw: io.RawIOBase | None = None, mode: str = "r", bufsize: int = -1) -> None:
        """A class of one's own, which has ``_read`` and ``_write``, gives no ``raw`` and calls ``_set_mode``."""
        #: The ends of lines that were found in universal newline mode: one, or several as a tuple.
        self.newlines: bytes | tuple[bytes, ...] | None = None
        #: What was read, where it cannot be asked.
        self._place = 0
        #: Whether the last line ended with a carriage return, of which a line feed is a part.
        self._after_return = False
        if raw is not None:
            self._use(raw, mode, bufsize)

    def _set_mode(self, mode: str = "r", bufsize: int = -1) -> None:
        """Opens what ``_read`` and ``_write`` are of."""
        self._use(_Overridden(self), mode, bufsize)

    def _read(self, size: int) -> bytes:
        """Up to so many bytes, at least one; none at the end, or ``EOFError``."""
        raise EOFError

    def _write(self, data: bytes) -> int:
        """Writes some of it; returns how many bytes."""
        raise OSError("write not implemented")

    def _use(self, raw: io.RawIOBase, mode: str, bufsize: int) -> None:
        self._raw = raw
        self._text = "b" not in mode
        self._universal = "U" in mode
        self._by_lines = bufsize == 1
        both = "+" in mode or {"r", "w"} <= set(mode)
        size = bufsize if bufsize > 1 else io.DEFAULT_BUFFER_SIZE
        if raw.seekable() and both:
            self._reader = self._writer = io.BufferedRandom(raw, size)
        else:
            if both or "r" in mode or "U" in mode:
                self._reader = io.BufferedReader(raw, size)
            if both or set(mode) & set("wax"):
                self._writer = io.BufferedWriter(raw, size) if bufsize >= 1 else raw

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
        reader = self._reading()
        if size is None or size < 0 or self._raw.seekable():
            data = reader.read(-1 if size is None else size) or b""
        else:
            # Not more than is wanted: who reads from the channel itself finds the rest there.
            pieces = bytearray()
            while len(pieces) < size and (piece := reader.read1(size - len(pieces))):
                pieces += piece
            data = bytes(pieces)
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
        limit = -1 if size is None else size
        reader = self._reading()
        line = self._universal_line(reader, limit) if self._universal else reader.readline(limit)
        self._place += len(line)
        return line.decode() if self._text else line

    def _universal_line(self, reader: io.BufferedReader | io.BufferedRandom, limit: int) -> bytes:
        """A line that ends as it likes, with a line feed as its end."""
        line = bytearray()
        while len(line) != limit and (byte := reader.read(1)):
            if self._after_return:
                self._after_return = False
                self._found(b"\r\n" if byte == b"\n" else b"\r")
                if byte == b"\n":
                    continue
            if byte == b"\r":
                self._after_return = True
                line += b"\n"
                break
            line += byte
            if byte == b"\n":
                self._found(byte)
                break
        return bytes(line)

    def _found(self, end: bytes) -> None:
        """Remembers an end of a line."""
        if self.newlines is None:
            self.newlines = end
        elif isinstance(self.newlines, bytes) and self.newlines != end:
            self.newlines = (self.newlines, end)
        elif isinstance(self.newlines, tuple) and end not in self.newlines:
            self.newlines += (end,)

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

    def __iter__(self) -> Self:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self

    def __next__(self) -> str | bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def write(self, data: str | bytes | bytearray | memoryview) -> None:
        """Writes everything, text as UTF-8."""
        if self.closed:
            raise OSError("File is closed")
        if self._writer is None:
            raise OSError("File not open for writing")
        content = data.encode() if isinstance(data, str) else bytes(memoryview(data))
        if not self._by_lines:
            self._writer.write(content)
            return
        whole, end, rest = content.rpartition(b"\n")
        self._writer.write(whole + end)
        if end:
            self._writer.flush()
        self._writer.write(rest)

    def writelines(self, sequence: Iterable[str | bytes]) -> None:
        for line in sequence:
            self.write(line)

    def seek(self, offset: int, whence: int = 0) -> None:
        if not self.seekable():
            raise OSError("File does not support seeking.")
        self.flush()
        (self._reader or self._raw).seek(offset, whence)

    def tell(self) -> int:
        return (self._reader or self._raw).tell() if self.seekable() else self._place

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        (self._writer or self._reader or self._raw).close()

    def __del__(self) -> None:
        # At the end of the interpreter everything ends by itself.
        if isinstance(getattr(self, "_raw", None), _Overridden) and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()

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


class _Overridden(io.RawIOBase):
    """What a class of one's own reads and writes."""

    def __init__(self, file: BufferedFile) -> None:
        # A file that nobody has any more is to be closed at once.
        self._its = weakref.ref(file)

    @property
    def _file(self) -> BufferedFile:
        file = self._its()
        if file is None:
            raise OSError("File is closed")
        return file

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file._read(len(buffer))
        except EOFError:
            return 0
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        content = bytearray()
        with contextlib.suppress(EOFError):
            while data := self._file._read(_PIECE):
                content += data
        return bytes(content)

    def write(self, data: Any) -> int:
        rest = bytes(memoryview(data))
        length = len(rest)
        while rest:
            rest = rest[self._file._write(rest) :]
        return length
