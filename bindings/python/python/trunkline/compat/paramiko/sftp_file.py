"""Files on a server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..._files import attributes, remote
from ..._sftp import RemoteFile
from .file import BufferedFile
from .sftp_attr import SFTPAttributes

if TYPE_CHECKING:
    from .sftp_client import SFTPClient


class SFTPFile(BufferedFile):
    """An open file. Reading reads ahead and writing writes behind: ``prefetch`` and ``set_pipelined`` change nothing."""

    MAX_REQUEST_SIZE = 32768

    def __init__(self, sftp: SFTPClient, raw: RemoteFile, mode: str, bufsize: int) -> None:
        super().__init__(raw, mode, bufsize)
        self.sftp = sftp
        self._file = raw

    def stat(self) -> SFTPAttributes:
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
