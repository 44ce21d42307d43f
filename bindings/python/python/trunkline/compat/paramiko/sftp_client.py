"""SFTP sessions."""

from __future__ import annotations

import errno
import io
import logging
import os
import posixpath
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, TypeVar

from ... import _native
from ..._files import BUFFER, attributes, remote, text, told
from .channel import Channel
from .sftp import (
    SFTP_FLAG_APPEND,
    SFTP_FLAG_CREATE,
    SFTP_FLAG_EXCL,
    SFTP_FLAG_READ,
    SFTP_FLAG_TRUNC,
    SFTP_FLAG_WRITE,
    SFTPError,
)
from .sftp_attr import SFTPAttributes
from .sftp_file import Raw, SFTPFile
from .ssh_exception import SSHException, translated
from .util import ClosingContextManager

if TYPE_CHECKING:
    from .transport import Transport

_T = TypeVar("_T")

#: After how many bytes a copy's progress is told, as Paramiko tells it.
_STEP = 32 * 1024

#: Told of a copy's progress: bytes that were copied, and how many there are.
Callback = Callable[[int, int], object]


class SFTPClient(ClosingContextManager):
    """Files on a server. Relative paths begin at the directory of ``chdir``; what the server refuses is an ``OSError``."""

    def __init__(self, native: _native.Sftp, channel: Channel) -> None:
        self._native: _native.Sftp | None = native
        #: In place of its channel.
        self.sock = channel
        #: The connection lives for as long as somebody has a session on it.
        self._transport: Transport | None = None
        self._cwd: str | None = None
        self.logger = logging.getLogger(f"{channel.get_transport().get_log_channel()}.sftp")
        self.ultra_debug = False
        # The engine speaks no other version.
        self._log(logging.INFO, "Opened sftp connection (server version 3)")

    @classmethod
    def from_transport(cls, t: Transport, window_size: int | None = None, max_packet_size: int | None = None) -> SFTPClient:
        """A session on a connection."""
        host = t.host()
        try:
            with translated():
                native = host.sftp().wait(t.channel_timeout)
                native.ready().wait(t.channel_timeout)
        except socket.timeout:
            raise SSHException("Timeout opening channel.") from None
        client = cls(native, Channel(t))
        client._transport = t
        return client

    def _log(self, level: int, msg: str | Sequence[str], *args: object) -> None:
        for line in [msg] if isinstance(msg, str) else msg:
            self.logger.log(level, f"[chan %s] {line}", self.sock.get_name(), *args)

    @property
    def native(self) -> _native.Sftp:
        if self._native is None or (self._transport is not None and not self._transport.is_active()):
            raise OSError("Socket is closed")
        return self._native

    def asked(self, operation: _native.Operation[_T]) -> _T:
        """Waits for what was asked, for as long as the channel's timeout allows; what the server refuses is an
        ``OSError``."""
        with translated():
            return operation.wait(self.sock.gettimeout())

    def get_channel(self) -> Channel:
        """In place of its channel: its name, its number, its timeout, and whether it is closed. No data go over it."""
        return self.sock

    def close(self) -> None:
        """Ends the session, once the files that are open are closed."""
        self._log(logging.INFO, "sftp session closed.")
        self._native = None
        self.sock.close()

    # Directories.

    def listdir(self, path: str = ".") -> list[str]:
        """The names in a directory."""
        return [about.filename for about in self.listdir_attr(path)]

    def listdir_attr(self, path: str = ".") -> list[SFTPAttributes]:
        """The names in a directory, with what the server tells of each."""
        listed = []
        directory = self._path(path)
        if not directory:
            # The engine would list the user's home: the server says what is wrong.
            self.stat(path)
        for name, about, longname in self.asked(self.native.names(directory, False)):
            attributes = SFTPAttributes.from_stat(told(about), text(name))
            attributes.longname = text(longname)
            listed.append(attributes)
        return sorted(listed, key=lambda attributes: attributes.filename)

    def listdir_iter(self, path: str = ".", read_aheads: int = 50) -> Iterator[SFTPAttributes]:
        """As ``listdir_attr``, one by one. The server is asked for the first."""
        yield from self.listdir_attr(path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self.asked(self.native.mkdir(self._path(path), mode))

    def rmdir(self, path: str) -> None:
        self.asked(self.native.rmdir(self._path(path)))

    def chdir(self, path: str | None = None) -> None:
        """Set the directory where relative paths begin; ``None`` for the server's own."""
        if path is None:
            self._cwd = None
            return
        if not stat.S_ISDIR(self.stat(path).st_mode or 0):
            raise SFTPError(errno.ENOTDIR, f"{os.strerror(errno.ENOTDIR)}: {path}")
        self._cwd = self.normalize(path)

    def getcwd(self) -> str | None:
        """Return the directory where relative paths begin, if ``chdir`` set one."""
        return self._cwd

    # Names.

    def normalize(self, path: str) -> str:
        """A path made absolute and without links."""
        return text(self.asked(self.native.realpath(self._path(path))))

    def remove(self, path: str) -> None:
        self.asked(self.native.remove(self._path(path)))

    unlink = remove

    def rename(self, oldpath: str, newpath: str) -> None:
        """Renames, where nothing has the new name yet."""
        self._rename(oldpath, newpath, False)

    def posix_rename(self, oldpath: str, newpath: str) -> None:
        """Renames, over what has the new name, on servers that have OpenSSH's extension for it."""
        self._rename(oldpath, newpath, True)

    def _rename(self, oldpath: str, newpath: str, posix: bool) -> None:
        self.asked(self.native.rename_by(self._path(oldpath), self._path(newpath), posix))

    def symlink(self, source: str, dest: str) -> None:
        """Makes ``dest`` a symbolic link that says ``source``."""
        self.asked(self.native.symlink(_named(source), self._path(dest)))

    def readlink(self, path: str) -> str | None:
        """Return the target of a symbolic link."""
        return text(self.asked(self.native.readlink(self._path(path))))

    # Attributes.

    def stat(self, path: str) -> SFTPAttributes:
        return SFTPAttributes.from_stat(told(self.asked(self.native.stat(self._path(path), True))))

    def lstat(self, path: str) -> SFTPAttributes:
        """As ``stat``, of the link itself if it is one."""
        return SFTPAttributes.from_stat(told(self.asked(self.native.stat(self._path(path), False))))

    def chmod(self, path: str, mode: int) -> None:
        self.asked(self.native.setstat(self._path(path), attributes(mode=mode)))

    def chown(self, path: str, uid: int, gid: int) -> None:
        self.asked(self.native.setstat(self._path(path), attributes(owner=(uid, gid))))

    def utime(self, path: str, times: tuple[float, float] | None) -> None:
        """Times of access and modification; ``None`` is now."""
        accessed, modified = times or (time.time(), time.time())
        self.asked(self.native.setstat(self._path(path), attributes(times=(int(accessed), int(modified)))))

    def truncate(self, path: str, size: int) -> None:
        self.asked(self.native.setstat(self._path(path), attributes(size=size)))

    # Files.

    def open(self, filename: str, mode: str = "r", bufsize: int = -1) -> SFTPFile:
        """Opens a file; "x" makes one that must not be there."""
        found = _flags(mode)
        reads, writes = bool(found & SFTP_FLAG_READ), bool(found & SFTP_FLAG_WRITE)
        path = self._path(filename)
        raw = Raw(self, self.asked(self.native.open(path, found, None)), text(path), mode, reads, writes)
        if "a" in mode:
            raw.seek(0, io.SEEK_END)
        return SFTPFile(self, raw, mode, bufsize)

    file = open

    def get(
        self,
        remotepath: str,
        localpath: str | os.PathLike[str],
        callback: Callback | None = None,
        prefetch: bool = True,
        max_concurrent_prefetch_requests: int | None = None,
    ) -> None:
        """Copies a file from the server."""
        with open(localpath, "wb") as target:
            size = self.getfo(remotepath, target, callback)
        written = os.stat(localpath).st_size
        if written != size:
            raise OSError(f"size mismatch in get!  {written} != {size}")

    def getfo(
        self,
        remotepath: str,
        fl: IO[bytes],
        callback: Callback | None = None,
        prefetch: bool = True,
        max_concurrent_prefetch_requests: int | None = None,
    ) -> int:
        """Copies a file from the server into an open one; returns its size."""
        with self.open(remotepath, "rb", BUFFER) as source:
            return self._transfer_with_callback(source, fl, self.stat(remotepath).st_size or 0, callback)

    def put(
        self,
        localpath: str | os.PathLike[str],
        remotepath: str,
        callback: Callback | None = None,
        confirm: bool = True,
    ) -> SFTPAttributes:
        """Copies a file to the server, and looks there whether its size is right unless ``confirm`` is ``False``."""
        with open(localpath, "rb") as source:
            return self.putfo(source, remotepath, os.stat(localpath).st_size, callback, confirm)

    def putfo(
        self,
        fl: IO[bytes],
        remotepath: str,
        file_size: int = 0,
        callback: Callback | None = None,
        confirm: bool = True,
    ) -> SFTPAttributes:
        """As ``put``, from an open file."""
        with self.open(remotepath, "wb") as target:
            target.set_pipelined()
            size = self._transfer_with_callback(fl, target, file_size, callback)
        if not confirm:
            return SFTPAttributes()
        about = self.stat(remotepath)
        if about.st_size != size:
            raise OSError(f"size mismatch in put!  {about.st_size} != {size}")
        return about

    def _transfer_with_callback(
        self, reader: IO[bytes] | SFTPFile, writer: IO[bytes] | SFTPFile, file_size: int, callback: Callback | None
    ) -> int:
        """Copies from one open file into another; returns how much. Programs resume copies with it."""
        copied = 0
        piece = BUFFER if callback is None else _STEP
        while data := reader.read(piece):
            writer.write(data)
            copied += len(data)
            if callback is not None:
                callback(copied, file_size)
        return copied

    def _path(self, path: str | bytes) -> bytes:
        return _named(posixpath.join(os.fsencode(self._cwd or ""), os.fsencode(path)))


class SFTP(SFTPClient):
    """The same, by an older name."""


def _named(path: str | bytes) -> bytes:
    """A path in the server's bytes. An empty one leads nowhere, as with Paramiko, and not to the user's home."""
    return remote(path) if path else b""


def _flags(mode: str) -> int:
    """Return the flags of a mode of ``open``. Paramiko looks for letters: "rw" is "w+", "wx" is "x"."""
    letters = set(mode)
    if not letters & set("rwax+"):
        raise ValueError(f"{mode!r} is not a mode in which a file can be opened")
    found = {
        SFTP_FLAG_READ: letters & set("r+"),
        SFTP_FLAG_WRITE: letters & set("wax+"),
        SFTP_FLAG_APPEND: letters & set("a"),
        SFTP_FLAG_CREATE: letters & set("wax"),
        SFTP_FLAG_TRUNC: letters & set("w"),
        SFTP_FLAG_EXCL: letters & set("x"),
    }
    return sum(flag for flag, asked in found.items() if asked)
