"""What a server tells of a file."""

from __future__ import annotations

import os
import stat
import time

from ..._files import FileStat


class SFTPAttributes:
    """By the names of ``os.stat_result``; ``None`` for what is not known."""

    FLAG_SIZE, FLAG_UIDGID, FLAG_PERMISSIONS, FLAG_AMTIME, FLAG_EXTENDED = 1, 2, 4, 8, 2**31

    def __init__(self) -> None:
        self.filename = ""
        self.longname = ""
        self.attr: dict[str, str] = {}
        self.st_size: int | None = None
        self.st_uid: int | None = None
        self.st_gid: int | None = None
        self.st_mode: int | None = None
        self.st_atime: int | None = None
        self.st_mtime: int | None = None

    @classmethod
    def from_stat(cls, obj: os.stat_result | FileStat, filename: str | None = None) -> SFTPAttributes:
        """Of what ``os.stat`` gives."""
        made = cls()
        for name in ("st_size", "st_uid", "st_gid", "st_mode", "st_atime", "st_mtime"):
            setattr(made, name, int(getattr(obj, name)))
        if filename is not None:
            made.filename = filename
            made.longname = str(made)
        return made

    def __str__(self) -> str:
        """A line as ``ls -l`` has them."""
        mode = "?---------" if self.st_mode is None else stat.filemode(self.st_mode)
        when = "(unknown date)"
        if self.st_mtime is not None:
            recent = abs(time.time() - self.st_mtime) < 180 * 86400
            when = time.strftime("%d %b %H:%M" if recent else "%d %b  %Y", time.localtime(self.st_mtime))
        numbers = (0 if value is None else value for value in (self.st_uid, self.st_gid, self.st_size))
        uid, gid, size = numbers
        return f"{mode}   1 {uid:<8} {gid:<8} {size:>8} {when:<12} {self.filename or '?'}"

    def asbytes(self) -> bytes:
        return str(self).encode()

    def __repr__(self) -> str:
        names = ("size", "uid", "gid", "mode", "atime", "mtime")
        found = {name: getattr(self, f"st_{name}") for name in names}
        told = [f"{name}={oct(value) if name == 'mode' else value}" for name, value in found.items() if value is not None]
        return f"<SFTPAttributes: [ {' '.join([*told, ''])}]>"
