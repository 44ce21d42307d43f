"""A server's attributes of a file."""

from __future__ import annotations

import os
import stat
import time

from ..._files import FileStat
from .message import Message


class SFTPAttributes:
    """By the names of ``os.stat_result``; ``None`` for what is not known."""

    #: Of one that was listed.
    filename: str
    longname: str

    FLAG_SIZE, FLAG_UIDGID, FLAG_PERMISSIONS, FLAG_AMTIME, FLAG_EXTENDED = 1, 2, 4, 8, 2**31

    def __init__(self) -> None:
        #: What is known, in a message.
        self._flags = 0
        #: Extended attributes.
        self.attr: dict[bytes, bytes] = {}
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
        return made

    # As servers of Paramiko's read and write them (draft-ietf-secsh-filexfer-02, section 5).

    @classmethod
    def _from_msg(cls, msg: Message, filename: str | None = None, longname: str | None = None) -> SFTPAttributes:
        made = cls()
        made._unpack(msg)
        if filename is not None:
            made.filename = filename
        if longname is not None:
            made.longname = longname
        return made

    def _unpack(self, msg: Message) -> None:
        self._flags = msg.get_int()
        if self._flags & self.FLAG_SIZE:
            self.st_size = msg.get_int64()
        if self._flags & self.FLAG_UIDGID:
            self.st_uid, self.st_gid = msg.get_int(), msg.get_int()
        if self._flags & self.FLAG_PERMISSIONS:
            self.st_mode = msg.get_int()
        if self._flags & self.FLAG_AMTIME:
            self.st_atime, self.st_mtime = msg.get_int(), msg.get_int()
        if self._flags & self.FLAG_EXTENDED:
            # Each takes eight bytes at least: as many as there are.
            for _ in range(min(msg.get_int(), len(msg.get_remainder()) // 8)):
                name = msg.get_string()
                self.attr[name] = msg.get_string()

    def _pack(self, msg: Message) -> None:
        numbers = (self.st_uid, self.st_gid), (self.st_mode,), (self.st_atime, self.st_mtime)
        flags = self.FLAG_UIDGID, self.FLAG_PERMISSIONS, self.FLAG_AMTIME
        known = [(flag, each) for flag, each in zip(flags, numbers) if None not in each]
        self._flags = sum(flag for flag, _ in known)
        self._flags |= self.FLAG_SIZE if self.st_size is not None else 0
        self._flags |= self.FLAG_EXTENDED if self.attr else 0
        msg.add_int(self._flags)
        if self.st_size is not None:
            msg.add_int64(self.st_size)
        for _, each in known:
            for number in each:
                msg.add_int(int(number or 0))
        if self.attr:
            msg.add_int(len(self.attr))
            for name, value in self.attr.items():
                msg.add_string(name)
                msg.add_string(value)

    def __str__(self) -> str:
        """A line as ``ls -l`` has them."""
        mode = "?---------" if self.st_mode is None else stat.filemode(self.st_mode)
        when = "(unknown date)"
        if self.st_mtime is not None:
            recent = abs(time.time() - self.st_mtime) < 180 * 86400
            when = time.strftime("%d %b %H:%M" if recent else "%d %b %Y", time.localtime(self.st_mtime))
        numbers = (0 if value is None else value for value in (self.st_uid, self.st_gid, self.st_size))
        uid, gid, size = numbers
        return f"{mode}   1 {uid:<8} {gid:<8} {size:>8} {when:<12} {getattr(self, 'filename', '?')}"

    def asbytes(self) -> bytes:
        return str(self).encode()

    def __repr__(self) -> str:
        names = ("size", "uid", "gid", "mode", "atime", "mtime")
        found = {name: getattr(self, f"st_{name}") for name in names}
        told = [f"{name}={oct(value) if name == 'mode' else value}" for name, value in found.items() if value is not None]
        return f"<SFTPAttributes: [ {' '.join([*told, ''])}]>"
