"""Files on a server, for asyncio."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from .._errors import FileError, NoSuchFileError, is_there
from .._expect import plain
from .._face import AsyncClosing, takes
from .._files import (
    BUFFER,
    FAILURE,
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
from ._bridge import outcome
from ._opening import Opening

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .. import _native

_T = TypeVar("_T")


class SFTP(AsyncClosing):
    """An SFTP session. Made by ``Connection.sftp``; any number of tasks may use it at once, and none waits for another.

    What goes wrong with a file is a ``FileError``, which is an ``OSError``: ``FileNotFoundError`` and ``PermissionError``
    where the server says so.
    """

    def __init__(self, native: _native.Sftp) -> None:
        self._native: _native.Sftp | None = native

    # Files.

    def open(self, path: RemotePath, mode: str = "rb") -> Opening[RemoteFile]:
        """Opens a file of bytes, with the built-in ``open``'s modes. Reading reads ahead and writing writes behind: a
        write's failure is told by a later one, by ``flush`` or by ``close``."""

        async def opened() -> RemoteFile:
            found, _, _, _ = flags(mode)
            opening = self._use().open(remote(path), found, None)
            file = RemoteFile(await (self._make(opening, path) if "x" in mode else outcome(opening)))
            if "a" in mode:
                await file.seek(0, os.SEEK_END)
            return file

        return Opening(opened())

    async def _make(self, operation: _native.Operation[_T], path: RemotePath) -> _T:
        """Waits for what makes a new name; ``FileThereError`` where it is there already, which OpenSSH does not say."""
        try:
            return await outcome(operation)
        except FileError as error:
            if error.status == FAILURE:
                with contextlib.suppress(FileError):
                    await self.lstat(path)
                    error = is_there(error, text(remote(path)))
            raise error from None

    async def read_bytes(self, path: RemotePath) -> bytes:
        """All of a file."""
        return await outcome(self._use().read(remote(path)))

    async def read_text(self, path: RemotePath, encoding: str = "utf-8") -> str:
        """All of a file, decoded."""
        return (await self.read_bytes(path)).decode(encoding)

    async def write_bytes(self, path: RemotePath, content: bytes) -> None:
        """Makes a file of these bytes, or replaces what is in it."""
        await outcome(self._use().write(remote(path), plain(content)))

    async def write_text(self, path: RemotePath, content: str, encoding: str = "utf-8") -> None:
        """Makes a file of this text, or replaces what is in it."""
        await self.write_bytes(path, content.encode(encoding))

    async def remove(self, path: RemotePath) -> None:
        """Removes a file or a symbolic link."""
        await outcome(self._use().remove(remote(path)))

    async def rename(self, source: RemotePath, target: RemotePath) -> None:
        """Renames, over what is there where the server can."""
        await outcome(self._use().rename(remote(source), remote(target)))

    async def symlink(self, target: RemotePath, link: RemotePath) -> None:
        """Makes a symbolic link that says ``target``."""
        await self._make(self._use().symlink(remote(target), remote(link)), link)

    async def link(self, source: RemotePath, link: RemotePath) -> None:
        """Makes another name for a file."""
        await self._make(self._use().hardlink(remote(source), remote(link)), link)

    async def readlink(self, path: RemotePath) -> str:
        """Return the target of a symbolic link."""
        return text(await outcome(self._use().readlink(remote(path))))

    async def realpath(self, path: RemotePath) -> str:
        """A path made absolute and without links."""
        return text(await outcome(self._use().realpath(remote(path))))

    # Attributes.

    async def stat(self, path: RemotePath, *, follow_symlinks: bool = True) -> FileStat:
        """Return the server's attributes of a file."""
        return told(await outcome(self._use().stat(remote(path), follow_symlinks)))

    async def lstat(self, path: RemotePath) -> FileStat:
        """Return the server's attributes of a file, of the link itself if it is one."""
        return await self.stat(path, follow_symlinks=False)

    async def exists(self, path: RemotePath) -> bool:
        """Return whether there is something, behind links too."""
        try:
            await self.stat(path)
        except NoSuchFileError:
            return False
        return True

    async def chmod(self, path: RemotePath, mode: int) -> None:
        """Sets the permission bits."""
        await outcome(self._use().setstat(remote(path), attributes(mode=mode)))

    async def chown(self, path: RemotePath, uid: int, gid: int) -> None:
        """Sets owner and group, by number."""
        await outcome(self._use().setstat(remote(path), attributes(owner=(uid, gid))))

    async def utime(self, path: RemotePath, times: tuple[int, int]) -> None:
        """Sets the times of access and modification, in whole seconds since 1970."""
        await outcome(self._use().setstat(remote(path), attributes(times=times)))

    async def truncate(self, path: RemotePath, size: int) -> None:
        """Sets the size."""
        await outcome(self._use().setstat(remote(path), attributes(size=size)))

    # Directories.

    async def mkdir(self, path: RemotePath, mode: int | None = None, *, parents: bool = False) -> None:
        """Makes a directory; with ``parents`` those above it too, and it is not an error if it is there."""
        if not parents:
            return await self._make(self._use().mkdir(remote(path), mode), path)
        directory = text(remote(path)).rstrip("/")
        above = posixpath.dirname(directory)
        if not directory or await self._is_dir(directory):
            return None
        if above:
            await self.mkdir(above, mode, parents=True)
        return await outcome(self._use().mkdir(remote(directory), mode))

    async def _is_dir(self, path: str) -> bool:
        return await self.exists(path) and (await self.stat(path)).is_dir()

    async def rmdir(self, path: RemotePath) -> None:
        """Removes an empty directory."""
        await outcome(self._use().rmdir(remote(path)))

    async def listdir(self, path: RemotePath = ".") -> list[str]:
        """The names in a directory, sorted."""
        return [entry.name for entry in await self.scandir(path)]

    async def scandir(self, path: RemotePath = ".") -> list[DirEntry]:
        """The names in a directory with their attributes, sorted by name."""
        return entries(text(remote(path)), await outcome(self._use().names(remote(path), False)))

    async def walk(self, top: RemotePath) -> list[tuple[str, list[str], list[str]]]:
        """A tree as ``os.walk`` tells it, top down, read as a whole. Links are not followed."""
        return tree(text(remote(top)), await outcome(self._use().names(remote(top), True)))

    # Copies.

    @takes(copying)
    async def get(
        self, sources: RemotePath | Iterable[RemotePath], target: LocalPath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """Copies from the server, as ``cp`` does: into ``target`` if it is a directory. The last part of a source may be a
        pattern with ``*``, ``?`` and ``[…]``. ``preserve`` keeps times and all permission bits; ``update`` leaves out what
        the target has in the same version or a newer one. Files are whole before they get their names."""
        return copied(await outcome(self._use().copy(paths(sources), remote(target), False, copying(**options))))

    @takes(copying)
    async def put(
        self, sources: LocalPath | Iterable[LocalPath], target: RemotePath = ".", **options: Unpack[CopyOptions]
    ) -> CopyResult:
        """Copies to the server; arguments as for ``get``."""
        return copied(await outcome(self._use().copy(paths(sources), remote(target), True, copying(**options))))

    def close(self) -> None:
        """Ends the session, once the files that are open are closed. Can be called again."""
        self._native = None

    def _use(self) -> _native.Sftp:
        if self._native is None:
            raise ValueError("the SFTP session is closed")
        return self._native


class RemoteFile:
    """An open file. One task uses it at a time; ``async for`` gives its content piece by piece."""

    def __init__(self, native: _native.RemoteFile) -> None:
        self._native = native

    async def read(self, size: int = -1) -> bytes:
        """``size`` bytes, fewer only where the file ends; everything up to the end without a size."""
        if size < 0:
            return await outcome(self._native.read_rest())
        pieces = []
        while size > 0:
            piece = await outcome(self._native.read(min(size, BUFFER)))
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    async def write(self, data: bytes) -> None:
        """Writes all of ``data``."""
        await outcome(self._native.write(plain(data)))

    async def flush(self) -> None:
        """Waits until the server has taken what was written."""
        await outcome(self._native.flush())

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a place, and tells it."""
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"{whence!r} is not a valid whence")
        return await outcome(self._native.seek(offset, whence))

    async def truncate(self, size: int) -> None:
        """Sets the size."""
        await outcome(self._native.truncate(size))

    async def stat(self) -> FileStat:
        """Return the server's attributes of it."""
        return told(await outcome(self._native.stat()))

    async def sync(self) -> None:
        """Has the server write it to its disk."""
        await outcome(self._native.sync())

    async def close(self) -> None:
        """Closes it: the server's last word on whether all was written. Can be called again."""
        await outcome(self._native.close())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = await outcome(self._native.read(BUFFER))
        if not piece:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
