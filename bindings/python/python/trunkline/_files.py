"""Files on a server, as both faces see them: paths, attributes, modes of opening, copies."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from ._errors import not_copied
from ._expect import expect

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

#: A path on a server, relative to the user's home or absolute; what is not text comes and goes by ``surrogateescape``.
RemotePath: TypeAlias = "str | bytes | os.PathLike[str]"

#: A path on this machine.
LocalPath: TypeAlias = "str | os.PathLike[str]"

#: Size, user, group, mode, times of access and modification.
Attributes: TypeAlias = "tuple[int | None, int | None, int | None, int | None, int | None, int | None]"

#: What a copy came to: files, bytes, names left out, failures.
Copied: TypeAlias = "tuple[int, int, int, list[tuple[bytes, str, int | None]]]"

#: What is asked for at once by a file that is read through: eight of OpenSSH's largest replies.
BUFFER = 8 * 255 * 1024

#: What OpenSSH says of a new name that is there already, and of much else (SSH_FX_FAILURE).
FAILURE = 4

_READ, _WRITE, _APPEND, _CREATE, _TRUNCATE, _EXCLUSIVE = 1, 2, 4, 8, 16, 32


class CopyOptions(TypedDict, total=False):
    """The keyword arguments of ``get``, ``put`` and ``copy``."""

    recursive: bool
    preserve: bool
    update: bool


class Copying(TypedDict):
    """The native module's options of a copy."""

    recursive: bool
    preserve: bool
    update: bool
    umask: int


@dataclass(frozen=True)
class FileStat:
    """The server's attributes of a file, by the names of ``os.stat_result``; 0 for those that it did not send."""

    st_mode: int
    st_size: int
    st_uid: int
    st_gid: int
    st_atime: int
    st_mtime: int

    def is_dir(self) -> bool:
        """Return whether it is a directory."""
        return stat.S_ISDIR(self.st_mode)

    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return stat.S_ISREG(self.st_mode)

    def is_symlink(self) -> bool:
        """Return whether it is a symbolic link."""
        return stat.S_ISLNK(self.st_mode)


@dataclass(frozen=True)
class DirEntry:
    """A name in a directory, with the attributes that came with it: of the link itself, if it is one."""

    name: str
    path: str
    stat: FileStat


@dataclass(frozen=True)
class CopyResult:
    """The result of a copy."""

    #: Files, directories and links that were copied.
    files: int
    bytes: int
    #: Names that the target had already.
    skipped: int

    @property
    def ok(self) -> bool:
        """Whether everything was copied: a failure would have been raised."""
        return True


def remote(path: RemotePath) -> bytes:
    """A path in the server's bytes."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("a path cannot contain a NUL character")
    return encoded or b"."


def text(path: bytes) -> str:
    """A server's path as text."""
    return os.fsdecode(path)


def told(attributes: Attributes) -> FileStat:
    """Attributes as the native module has them."""
    size, uid, gid, mode, accessed, modified = (value or 0 for value in attributes)
    return FileStat(mode, size, uid, gid, accessed, modified)


def attributes(
    *,
    size: int | None = None,
    owner: tuple[int, int] | None = None,
    mode: int | None = None,
    times: tuple[int, int] | None = None,
) -> Attributes:
    """Attributes to set."""
    uid, gid = owner or (None, None)
    accessed, modified = times or (None, None)
    return size, uid, gid, mode, accessed, modified


def flags(mode: str) -> tuple[int, bool, bool, bool]:
    """Return the meaning of a mode of ``open``: SSH_FXF_… flags, whether it reads, whether it writes, and whether it is
    for bytes."""
    expect("a mode", "a str", mode, str)
    letters = set(mode)
    kinds = letters & set("rwxa")
    if len(letters) != len(mode) or letters - set("rwxabt+") or len(kinds) != 1 or {"b", "t"} <= letters:
        raise ValueError(f"{mode!r} is not a mode in which a file can be opened")
    both = "+" in letters
    kind = kinds.pop()
    found = {
        "r": _READ,
        "w": _WRITE | _CREATE | _TRUNCATE,
        "x": _WRITE | _CREATE | _EXCLUSIVE,
        "a": _WRITE | _CREATE | _APPEND,
    }[kind]
    if both:
        found |= _READ | _WRITE
    return found, kind == "r" or both, kind != "r" or both, "b" in letters


def entries(directory: str, found: Iterable[tuple[bytes, Attributes, bytes]]) -> list[DirEntry]:
    """Names as the native module tells them, sorted."""
    made = [DirEntry(text(name), posixpath.join(directory, text(name)), told(about)) for name, about, _ in found]
    return sorted(made, key=lambda entry: entry.name)


def tree(top: str, found: Iterable[tuple[bytes, Attributes, bytes]]) -> list[tuple[str, list[str], list[str]]]:
    """A tree as ``os.walk`` tells it: directories before what is in them, names sorted."""
    directories: dict[str, tuple[list[str], list[str]]] = {"": ([], [])}
    for path, about, _ in found:
        parent, name = posixpath.split(text(path))
        names = directories.setdefault(parent, ([], []))
        if told(about).is_dir():
            names[0].append(name)
            directories.setdefault(text(path), ([], []))
        else:
            names[1].append(name)
    return [
        (posixpath.join(top, directory) if directory else top, sorted(inner), sorted(files))
        for directory, (inner, files) in sorted(directories.items())
    ]


def copying(*, recursive: bool = False, preserve: bool = False, update: bool = False) -> Copying:
    """Options of a copy, for the native module."""
    # Python tells the mask by setting it, which other threads would see; Linux tells it in /proc.
    umask = 0o022
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                umask = int(line.split()[1], 8)
    return {"recursive": recursive, "preserve": preserve, "update": update, "umask": umask}


def paths(sources: RemotePath | Iterable[RemotePath]) -> list[bytes]:
    """One path, or several."""
    expect("a source", "a path, or several", sources, str, bytes, os.PathLike, Iterable)
    several = [sources] if isinstance(sources, (str, bytes, os.PathLike)) else list(sources)
    return [remote(source) for source in several]


def copied(outcome: Copied) -> CopyResult:
    """The result of a copy. Raises the first failure, if anything failed."""
    files, length, skipped, failures = outcome
    if failures:
        raise not_copied(*failures[0], len(failures) - 1)
    return CopyResult(files, length, skipped)
