"""Files as Paramiko has them: ``read`` gives bytes, lines are text unless the mode says "b"."""

from __future__ import annotations

import contextlib
import io
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .util import ClosingContextManager

if TYPE_CHECKING:
    from typing_extensions import Self


#: How much is asked for at once where everything is wanted.
_PIECE = 256 * 1024


class BufferedFile(ClosingContextManager):
    """A file with one buffer, for reading, which keeps what has come when a read fails: the next one has it. What is written
    leaves at once unless ``bufsize`` is above 1."""

    SEEK_SET, SEEK_CUR, SEEK_END = 0, 1, 2

    FLAG_READ, FLAG_WRITE, FLAG_APPEND, FLAG_BINARY, FLAG_BUFFERED = 1, 2, 4, 16, 32
    FLAG_LINE_BUFFERED, FLAG_UNIVERSAL_NEWLINE = 64, 128

    #: What is below the buffers, and these.
    _raw: io.RawIOBase
    _reads = False
    _writer: io.RawIOBase | io.BufferedWriter | None = None

    def __init__(self, raw: io.RawIOBase | None = None, mode: str = "r", bufsize: int = -1) -> None:
        """A class of one's own, which has ``_read`` and ``_write``, gives no ``raw`` and calls ``_set_mode``."""
        #: The ends of lines that were found in universal newline mode: one, or several as a tuple.
        self.newlines: bytes | tuple[bytes, ...] | None = None
        #: What was read and nobody has taken.
        self._kept = bytearray()
        #: How much was read and written, where there is no other place; and where it was closed.
        self._place = 0
        #: How much was written since the last flush.
        self._unflushed = 0
        #: Whether something was read or sought since the end of what is appended to was the place.
        self._is_elsewhere = False
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
        self._appends = "a" in mode
        self._by_lines = bufsize == 1
        self._size = bufsize if bufsize > 1 else io.DEFAULT_BUFFER_SIZE
        both = "+" in mode or {"r", "w"} <= set(mode)
        self._reads = both or "r" in mode or "U" in mode
        if both or set(mode) & set("wax"):
            self._writer = io.BufferedWriter(raw, self._size) if bufsize >= 1 else raw

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writer is not None

    def seekable(self) -> bool:
        return self._raw.seekable()

    @property
    def closed(self) -> bool:
        return self._raw.closed

    def read(self, size: int | None = None) -> bytes:
        """As many bytes as are asked for, or all; fewer only at the end."""
        self._reading()
        if size is None or size < 0:
            while self._more(_PIECE):
                pass
            return self._taken(len(self._kept))
        while len(self._kept) < size:
            # Not more than is wanted: who reads from the channel itself finds the rest there.
            wanted = size - len(self._kept)
            if not self._more(max(wanted, self._size) if self.seekable() else wanted):
                break
        return self._taken(size)

    def readinto(self, buff: bytearray) -> int:
        data = self.read(len(buff))
        buff[: len(data)] = data
        return len(data)

    def xreadlines(self) -> Self:
        """Itself, an iterator of lines."""
        return self

    def readline(self, size: int | None = None) -> str | bytes:
        """One line with its end; nothing at the file's end."""
        self._reading()
        if size is None and not self._universal and (end := self._kept.find(b"\n") + 1):
            # There may be very many of them.
            line = self._kept[:end]
            del self._kept[:end]
            self._place += end
            return line.decode() if self._text else bytes(line)
        return self._line(-1 if size is None else size)

    def _line(self, limit: int) -> str | bytes:
        """A line that may be longer than what is here."""
        looked = 0
        while True:
            looked, end = self._end_of_line(looked)
            if 0 <= limit < (end or len(self._kept) + 1):
                line = self._taken(limit)
                break
            if end or not self._more(self._size if limit < 0 else min(self._size, limit - len(self._kept))):
                line = self._taken(end or len(self._kept))
                break
        if self._universal:
            line = self._ended(line)
        return line.decode() if self._text else line

    def _end_of_line(self, looked: int) -> tuple[int, int]:
        """Return how far the search for a line's end has gone, and where the end is; 0 if it is not there."""
        self._skip_feed()
        ends = [self._kept.find(b"\n", looked)]
        if self._universal:
            ends.append(self._kept.find(b"\r", looked))
        found = min((end for end in ends if end >= 0), default=-1)
        return len(self._kept), found + 1

    def _ended(self, line: bytes) -> bytes:
        """A line that ends as it likes, with a line feed as its end."""
        if line.endswith(b"\n"):
            self._found(b"\n")
        if not line.endswith(b"\r"):
            return line
        # The line feed behind it may not have come yet.
        self._after_return = True
        self._skip_feed()
        return line[:-1] + b"\n"

    def _skip_feed(self) -> None:
        """Leaves out the line feed behind a carriage return that has ended a line."""
        if self._after_return and self._kept:
            self._after_return = False
            is_pair = self._kept.startswith(b"\n")
            self._found(b"\r\n" if is_pair else b"\r")
            if is_pair:
                del self._kept[:1]

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
        self._reading()
        lines: list[str | bytes] = []
        length = 0
        try:
            for line in self:
                lines.append(line)
                length += len(line)
                if sizehint is not None and length >= sizehint:
                    break
        except OSError:
            taken = b"".join(line.encode() if isinstance(line, str) else line for line in lines)
            self._kept[:0] = taken
            self._place -= len(taken)
            raise
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
        self._go_to_write()
        if self._by_lines:
            whole, end, rest = content.rpartition(b"\n")
            self._writer.write(whole + end)
            if end:
                self._writer.flush()
            self._writer.write(rest)
        else:
            self._writer.write(content)
            self._unflushed += len(content)
            if self._unflushed >= self._size and isinstance(self._writer, io.BufferedWriter):
                # A full buffer leaves as a whole.
                self._writer.flush()
                self._unflushed = 0
        self._place += len(content)

    def _go_to_write(self) -> None:
        """Before something is written: behind what was read, or at the end of what is appended to."""
        if not self.seekable():
            return
        if self._appends and self._is_elsewhere:
            self._go(0, self.SEEK_END)
            self._is_elsewhere = False
        elif self._kept:
            self._go(-len(self._kept), self.SEEK_CUR)

    def writelines(self, sequence: Iterable[str | bytes]) -> None:
        for line in sequence:
            self.write(line)

    def seek(self, offset: int, whence: int = 0) -> None:
        if not self.seekable():
            raise OSError("File does not support seeking.")
        if self.closed:
            return
        self.flush()
        self._go(offset - len(self._kept) if whence == self.SEEK_CUR else offset, whence)

    def _go(self, offset: int, whence: int) -> None:
        """Discard data that was read ahead, and go on elsewhere in the file."""
        self._kept.clear()
        self._raw.seek(offset, whence)
        self._is_elsewhere = True

    def tell(self) -> int:
        """Return the place of the next read; for a file without seeking, the number of bytes read and written."""
        if self.closed or not self.seekable():
            return self._place
        return (self._writer or self._raw).tell() - len(self._kept)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()
            self._unflushed = 0

    def close(self) -> None:
        if self.seekable() and not self.closed:
            with contextlib.suppress(Exception):
                self._place = self.tell()
        (self._writer or self._raw).close()

    def __del__(self) -> None:
        # At the end of the interpreter everything ends by itself.
        if isinstance(getattr(self, "_raw", None), _Overridden) and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()

    def _reading(self) -> None:
        """Before something is read."""
        if self.closed:
            raise OSError("File is closed")
        if not self._reads:
            raise OSError("File is not open for reading")
        if self._writer is not None and self.seekable():
            # What was written is read.
            self.flush()

    def _more(self, size: int) -> bool:
        """Keeps more of what comes, up to so many bytes; whether there was any."""
        self._is_elsewhere = True
        piece = self._raw.read(size)
        if not piece:
            return False
        self._kept += piece
        return True

    def _taken(self, count: int) -> bytes:
        """So many bytes of what is kept."""
        with memoryview(self._kept) as kept:
            taken = bytes(kept[:count])
        del self._kept[:count]
        self._place += len(taken)
        return taken


class _Overridden(io.RawIOBase):
    """The file behind a class of one's own that reads and writes."""

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

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file._read(size) or b""
        except EOFError:
            return b""

    def write(self, data: Any) -> int:
        rest = bytes(memoryview(data))
        length = len(rest)
        while rest:
            rest = rest[self._file._write(rest) :]
        return length
