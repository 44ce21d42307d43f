"""Files on a server, for code that waits."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from ._errors import FileError, NoSuchFileError, is_there
from ._expect import plain
from ._face import Closing, takes
from ._files import (
    BUFFER,
    FAILURE,
    Attributes,
    CopyOptions,
    CopyResult,
    DirEntry,
    FileStat,
    LocalPath,
    RemotePath,
    attributes,
    copied,
    copying,
    entries,
    flags,
    paths,
    remote,
    text,
    told,
    tree,
)

if TYPE_CHECKING:
    from typing_extensions import TypeAlias, Unpack

    from . import _native

_T = TypeVar("_T")

#: Modes of opening a file of bytes.
BinaryMode: TypeAlias = """Literal[
    "rb", "wb", "ab", "xb", "br", "bw", "ba", "bx",
    "r+b", "rb+", "+rb", "w+b", "wb+", "+wb", "a+b", "ab+", "+ab", "x+b", "xb+", "+xb",
]"""

#: Modes of opening a file of text.
TextMode: TypeAlias = """Literal[
    "r", "w", "a", "x", "rt", "wt", "at", "xt", "r+", "w+", "a+", "x+", "+r", "+w", "+a", "+x",
    "r+t", "rt+", "w+t", "wt+", "a+t", "at+", "x+t", "xt+",
]"""


class SFTP(Closing):
    """An SFTP session. Made by ``Connection.sftp``; any number of threads may use it at once, and none waits for another.

    What goes wrong with a file is a ``FileError``, which is an ``OSError``: ``FileNotFoundError`` and ``PermissionError``
    where the server says so.
    """

    def __init__(self, native: _native.Sftp) -> None:
        self._native: _native.Sftp | None = native

    # Files.

    @overload
    def open(self, path: RemotePath, mode: BinaryMode) -> IO[bytes]: ...

    @overload
    def open(
        self, path: RemotePath, mode: TextMode = "r", *, encoding: str = "utf-8", errors: str = "strict"
    ) -> IO[str]: ...

    @overload
    def open(self, path: RemotePath, mode: str, *, encoding: str = "utf-8", errors: str = "strict") -> IO[Any]: ...

    def open(self, path: RemotePath, mode: str = "r", *, encoding: str = "utf-8", errors: str = "strict") -> IO[Any]:
        """Opens a file as the built-in ``open`` does, with its modes. Reading reads ahead and writing writes behind: a
        write's failure is told by a later one, by ``flush`` or by ``close``."""
        file: IO[Any] = self._open(path, mode)
        if "b" not in mode:
            file = io.TextIOWrapper(cast("Any", file), encoding=encoding, errors=errors)
        if file.writable():
            _written.add(file)
        return file

    def _open(self, path: RemotePath, mode: str, permissions: int | None = None) -> Any:
        """Opens a file for bytes; one that is made has ``permissions``, less the server's umask."""
        found, reads, writes, _ = flags(mode)
        opening = self._use().open(remote(path), found, permissions)
        native = self._make(opening, path) if "x" in mode else opening.wait()
        raw = RemoteFile(native, text(remote(path)), mode, reads, writes)
        if "a" in mode:
            raw.seek(0, io.SEEK_END)
        if reads and writes:
            return _Random(raw, BUFFER)
        return _Writer(raw, BUFFER) if writes else io.BufferedReader(raw, BUFFER)

    def _make(self, operation: _native.Operation[_T], path: RemotePath) -> _T:
        """Waits for what makes a new name; ``FileThereError`` where it is there already, which OpenSSH does not say."""
        try:
            return operation.wait()
        except FileError as error:
            if error.status == FAILURE:
                with contextlib.suppress(FileError):
                    self.lstat(path)
                    error = is_there(error, text(remote(path)))
            raise error from None

    def read_bytes(self, path: RemotePath) -> bytes:
        """All of a file."""
        return self._use().read(remote(path)).wait()

    def read_text(self, path: RemotePath, encoding: str = "utf-8") -> str:
        """All of a file, decoded."""
        return self.read_bytes(path).decode(encoding)

    def write_bytes(self, path: RemotePath, content: bytes) -> None:
        """Makes a file of these bytes, or replaces what is in it."""
        self._use().write(remote(path), plain(content)).wait()

    def write_text(self, path: RemotePath, content: str, encoding: str = "utf-8") -> None:
        """Makes a file of this text, or replaces what is in it."""
        self.write_bytes(path, content.encode(encoding))

    def remove(self, path: RemotePath) -> None:
        """Removes a file or a symbolic link."""
        self._use().remove(remote(path)).wait()

    def rename(self, source: RemotePath, target: RemotePath) -> None:
        """Renames, over what is there where the server can."""
        self._use().rename(remote(source), remote(target)).wait()

    def symlink(self, target: RemotePath, link: RemotePath) -> None:
        """Makes a symbolic link that says ``target``."""
        self._make(self._use().symlink(remote(target), remote(link)), link)

    def link(self, source: RemotePath, link: RemotePath) -> None:
        """Makes another name for a file."""
        self._make(self._use().hardlink(remote(source), remote(link)), link)

    def readlink(self, path: RemotePath) -> str:
        """Return the target of a symbolic link."""
        return text(self._use().readlink(remote(path)).wait())

    def realpath(self, path: RemotePath) -> str:
        """A path made absolute and without links."""
        return text(self._use().realpath(remote(path)).wait())

    # Attributes.

    def stat(self, path: RemotePath, *, follow_symlinks: bool = True) -> FileStat:
        """Return the server's attributes of a file."""
        return told(self._use().stat(remote(path), follow_symlinks).wait())

    def lstat(self, path: RemotePath) -> FileStat:
        """Return the server's attributes of a file, of the link itself if it is one."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: RemotePath) -> bool:
        """Return whether there is something, behind links too."""
        try:
            self.stat(path)
        except NoSuchFileError:
            return False
        return True

    def chmod(self, path: RemotePath, mode: int) -> None:
        """Sets the permission bits."""
        self._use().setstat(remote(path), attributes(mode=mode)).wait()

    def chown(self, path: RemotePath, uid: int, gid: int) -> None:
        """Sets owner and group, by number."""
        self._use().setstat(remote(path), attributes(owner=(uid, gid))).wait()

    def utime(self, path: RemotePath, times: tuple[int, int]) -> None:
        """Sets the times of access and modification, in whole seconds since 1970."""
        self._use().setstat(remote(path), attributes(times=times)).wait()

    def truncate(self, path: RemotePath, size: int) -> None:
        """Sets the size."""
        self._use().setstat(remote(path), attributes(size=size)).wait()

    # Directories.

    def mkdir(self, path: RemotePath, mode: int | None = None, *, parents: bool = False) -> None:
        """Makes a directory; with ``parents`` those above it too, and it is not an error if it is there."""
        if not parents:
            return self._make(self._use().mkdir(remote(path), mode), path)
        directory = text(remote(path)).rstrip("/")
        above = posixpath.dirname(directory)
        if not directory or self._is_dir(directory):
            return None
        if above:
            self.mkdir(above, mode, parents=True)
        return self._use().mkdir(remote(directory), mode).wait()

    def _is_dir(self, path: str) -> bool:
        return self.exists(path) and self.stat(path).is_dir()

    def rmdir(self, path: RemotePath) -> None:
        """Removes an empty directory."""
        self._use().rmdir(remote(path)).wait()

    def listdir(self, path: RemotePath = ".") -> list[str]:
        """The names in a directory, sorted."""
        return [entry.name for entry in self.scandir(path)]

    def scandir(self, path: RemotePath = ".") -> list[DirEntry]:
        """The names in a directory with their attributes, sorted by name."""
        return entries(text(remote(path)), self._use().names(remote(path), False).wait())

    def walk(self, top: RemotePath) -> Iterator[tuple[str, list[str], list[str]]]:
        """A tree as ``os.walk`` tells it, top down, read as a whole. Links are not followed."""
        return iter(tree(text(remote(top)), self._use().names(remote(top), True).wait()))

    # Copies.

    @takes(copying)
    def get(
        self, sources: RemotePath | Iterable[RemotePath], target: LocalPath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """Copies from the server, as ``cp`` does: into ``target`` if it is a directory. The last part of a source may be a
        pattern with ``*``, ``?`` and ``[…]``. ``preserve`` keeps times and all permission bits; ``update`` leaves out what
        the target has in the same version or a newer one. Files are whole before they get their names."""
        return copied(self._use().copy(paths(sources), remote(target), False, copying(**options)).wait())

    @takes(copying)
    def put(
        self, sources: LocalPath | Iterable[LocalPath], target: RemotePath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """Copies to the server; arguments as for ``get``."""
        return copied(self._use().copy(paths(sources), remote(target), True, copying(**options)).wait())

    def close(self) -> None:
        """Ends the session, once the files that are open are closed. Can be called again."""
        self._native = None

    def _use(self) -> _native.Sftp:
        if self._native is None:
            raise ValueError("the SFTP session is closed")
        return self._native


class _Writer(io.BufferedWriter):
    """A buffer whose ``flush`` waits for the server, as the file's own does."""

    def flush(self) -> None:
        super().flush()
        self.raw.flush()


class _Random(io.BufferedRandom):
    """The same, for a file that is read, too."""

    def flush(self) -> None:
        super().flush()
        self.raw.flush()


#: Files that are open to be written, whose buffers may hold something.
_written: weakref.WeakSet[IO[Any]] = weakref.WeakSet()

# They are the parent's, whose other threads may use them just now.
os.register_at_fork(after_in_child=_written.clear)


def flush_written() -> None:
    """Has what was written arrive, as the end of the interpreter does for other files. Raises one of the failures."""
    RemoteFile.limit = 10
    failed = None
    for file in list(_written):
        try:
            file.flush()
        except Exception as error:
            failed = error
    if failed is not None:
        raise failed


class RemoteFile(io.RawIOBase):
    """An open file, without a buffer of its own."""

    #: Seconds that the server has for what is asked of it; the connection has its own limits.
    limit: float | None = None

    def __init__(self, native: _native.RemoteFile, name: str, mode: str, reads: bool, writes: bool) -> None:
        self._native = native
        self.name = name
        self.mode = mode
        self._reads = reads
        self._writes = writes

    def _done(self, operation: _native.Operation[_T]) -> _T:
        """Waits for what was asked of the server."""
        return operation.wait(self.limit)

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        data = self._done(self._native.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        return self._done(self._native.read_rest())

    def write(self, data: Any) -> int:
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        copy = plain(data)
        self._done(self._native.write(copy))
        return len(copy)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"{whence!r} is not a valid whence")
        return self._done(self._native.seek(offset, whence))

    def tell(self) -> int:
        return self.seek(0, io.SEEK_CUR)

    def truncate(self, size: int | None = None) -> int:
        wanted = self.tell() if size is None else size
        self._done(self._native.truncate(wanted))
        return wanted

    def flush(self) -> None:
        super().flush()
        if self._writes and not sys.is_finalizing():
            self._done(self._native.flush())

    def stat(self) -> FileStat:
        """Return the server's attributes of it."""
        return told(self._done(self._native.stat()))

    def _setstat(self, wanted: Attributes) -> None:
        """Of the open file, whatever has its name by now."""
        self._done(self._native.setstat(wanted))

    def sync(self) -> None:
        """Has the server write it to its disk."""
        self._done(self._native.sync())

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                # At the end of the interpreter the connections have ended already.
                if not sys.is_finalizing():
                    self._done(self._native.close())
