"""Files on a server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ..._files import attributes
from ..._sftp import RemoteFile
from .file import BufferedFile
from .sftp_attr import SFTPAttributes
from .ssh_exception import SSHException

if TYPE_CHECKING:
    from ... import _native
    from .sftp_client import SFTPClient

_T = TypeVar("_T")


class Raw(RemoteFile):
    """An open file without a buffer, whose errors and limits are Paramiko's."""

    def __init__(
        self, sftp: SFTPClient, native: _native.RemoteFile, name: str, mode: str, reads: bool, writes: bool
    ) -> None:
        super().__init__(native, name, mode, reads, writes)
        self._sftp = sftp
        #: Whether what is written may arrive later, and errors be told later.
        self.pipelined = False

    def read(self, size: int = -1) -> bytes:
        return self._done(self._native.read(size))

    def write(self, data: Any) -> int:
        length = super().write(data)
        if not self.pipelined:
            self._done(self._native.flush())
        return length

    def _done(self, operation: _native.Operation[_T]) -> _T:
        return self._sftp.asked(operation)


class SFTPFile(BufferedFile):
    """An open file. Reading reads ahead: ``prefetch`` changes nothing. What is written without a buffer has arrived when
    ``write`` returns, unless ``set_pipelined`` was told that it need not have."""

    MAX_REQUEST_SIZE = 32768

    def __init__(self, sftp: SFTPClient, raw: Raw, mode: str, bufsize: int) -> None:
        super().__init__(raw, mode, bufsize)
        self.sftp = sftp
        self._file = raw
        #: Whether something was written that is not known to have arrived.
        self._pending = False
        self._is_buffered = bufsize >= 1

    def write(self, data: str | bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self._check()
        self._pending = True
        super().write(data)
        if not (self._is_buffered or self.pipelined):
            # What is open for reading too has a buffer all the same.
            self.flush()

    def flush(self) -> None:
        if self._pending:
            self._check()
            super().flush()
            self._pending = False

    def close(self) -> None:
        """Closes it. Of a session that has ended it raises only if something that was written may not have arrived."""
        try:
            super().close()
        except (OSError, SSHException):
            if self._pending:
                raise

    def _reading(self) -> None:
        super()._reading()
        self._check()

    def _check(self) -> None:
        """Raises where the session has ended."""
        _ = self.sftp.native

    def _opened(self) -> None:
        """Before the open file itself is asked for something."""
        if self.closed:
            # As a server says of a handle that it does not know.
            raise OSError("Failure")
        self._check()
        self.flush()

    def stat(self) -> SFTPAttributes:
        self._opened()
        return SFTPAttributes.from_stat(self._file.stat())

    def chmod(self, mode: int) -> None:
        self._set(mode=mode)

    def chown(self, uid: int, gid: int) -> None:
        self._set(owner=(uid, gid))

    def utime(self, times: tuple[float, float] | None) -> None:
        accessed, modified = times or (time.time(), time.time())
        self._set(times=(int(accessed), int(modified)))

    def truncate(self, size: int) -> None:
        self._opened()
        self._file.truncate(size)

    def _set(
        self, *, mode: int | None = None, owner: tuple[int, int] | None = None, times: tuple[int, int] | None = None
    ) -> None:
        self._opened()
        self._file._setstat(attributes(mode=mode, owner=owner, times=times))

    def readv(
        self, chunks: Iterable[tuple[int, int]], max_concurrent_prefetch_requests: int | None = None
    ) -> Iterator[bytes]:
        """Pieces of it, by offset and length."""
        for offset, length in chunks:
            self.seek(offset)
            yield self.read(length)

    def prefetch(self, file_size: int | None = None, max_concurrent_requests: int | None = None) -> None:
        """Nothing: reading reads ahead."""
        self._opened()

    @property
    def pipelined(self) -> bool:
        """The value given to ``set_pipelined``."""
        return self._file.pipelined

    def set_pipelined(self, pipelined: bool = True) -> None:
        """Whether ``write`` need not wait until the server has what is written: much faster where there is much of it."""
        self._file.pipelined = pipelined

    def settimeout(self, timeout: float | None) -> None:
        """Set how many seconds an answer of the server may take, in all of the SFTP session."""
        self.sftp.sock.settimeout(timeout)

    def gettimeout(self) -> float | None:
        return self.sftp.sock.gettimeout()

    def setblocking(self, blocking: bool) -> None:
        """``False`` is a timeout of 0."""
        self.sftp.sock.setblocking(blocking)
