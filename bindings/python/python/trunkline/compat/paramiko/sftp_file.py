"""Files on a server."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..._files import FileStat, attributes, remote
from ..._sftp import RemoteFile
from .file import BufferedFile
from .sftp_attr import SFTPAttributes
from .ssh_exception import SSHException, translated

if TYPE_CHECKING:
    from .sftp_client import SFTPClient


class Raw(RemoteFile):
    """An open file without a buffer, whose errors are Paramiko's."""

    def readinto(self, buffer: Any) -> int:
        with translated():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with translated():
            return super().readall()

    def write(self, data: Any) -> int:
        with translated():
            return super().write(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        with translated():
            return super().seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        with translated():
            return super().truncate(size)

    def flush(self) -> None:
        with translated():
            super().flush()

    def stat(self) -> FileStat:
        with translated():
            return super().stat()

    def close(self) -> None:
        with translated():
            super().close()


class SFTPFile(BufferedFile):
    """An open file. Reading reads ahead and writing writes behind: ``prefetch`` and ``set_pipelined`` change nothing."""

    MAX_REQUEST_SIZE = 32768

    def __init__(self, sftp: SFTPClient, raw: Raw, mode: str, bufsize: int) -> None:
        super().__init__(raw, mode, bufsize)
        self.sftp = sftp
        self._file = raw
        #: Whether something was written that is not known to have arrived.
        self._pending = False

    def write(self, data: str | bytes) -> None:
        if not self.closed:
            self._check()
        self._pending = True
        super().write(data)

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

    def _reading(self) -> io.BufferedReader | io.BufferedRandom:
        reader = super()._reading()
        self._check()
        return reader

    def _check(self) -> None:
        """Raises where the session has ended."""
        _ = self.sftp.native

    def stat(self) -> SFTPAttributes:
        self._check()
        self.flush()
        return SFTPAttributes.from_stat(self._file.stat())

    def chmod(self, mode: int) -> None:
        self._set(mode=mode)

    def chown(self, uid: int, gid: int) -> None:
        self._set(owner=(uid, gid))

    def utime(self, times: tuple[float, float] | None) -> None:
        accessed, modified = times or (time.time(), time.time())
        self._set(times=(int(accessed), int(modified)))

    def truncate(self, size: int) -> None:
        self.flush()
        self._file.truncate(size)

    def _set(
        self, *, mode: int | None = None, owner: tuple[int, int] | None = None, times: tuple[int, int] | None = None
    ) -> None:
        self.flush()
        native = self.sftp.native
        self.sftp.asked(native.setstat(remote(self._file.name), attributes(mode=mode, owner=owner, times=times)))

    def readv(
        self, chunks: Iterable[tuple[int, int]], max_concurrent_prefetch_requests: int | None = None
    ) -> Iterator[bytes]:
        """Pieces of it, by offset and length."""
        for offset, length in chunks:
            self.seek(offset)
            yield self.read(length)

    def prefetch(self, file_size: int | None = None, max_concurrent_requests: int | None = None) -> None:
        """Nothing: reading reads ahead."""

    def set_pipelined(self, pipelined: bool = True) -> None:
        """Nothing: writing writes behind."""

    def settimeout(self, timeout: float | None) -> None:
        """Nothing: keepalive finds a server that is gone."""

    def gettimeout(self) -> float | None:
        return None

    def setblocking(self, blocking: bool) -> None:
        """Nothing."""
