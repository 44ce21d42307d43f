"""Messages: the protocol's data types (RFC 4251, section 5) in a row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .common import asbytes, max_byte, one_byte, zero_byte
from .util import deflate_long, inflate_long

if TYPE_CHECKING:
    from typing_extensions import Self


class Message:
    """Values that were read, or are to be written. What is not there any more reads as zeros, as with Paramiko."""

    big_int = 0xFF000000

    def __init__(self, content: bytes | None = None) -> None:
        self._content = bytearray(content or b"")
        self._place = 0

    def asbytes(self) -> bytes:
        """All of it."""
        return bytes(self._content)

    def __bytes__(self) -> bytes:
        return self.asbytes()

    def __repr__(self) -> str:
        return f"paramiko.Message({self.asbytes()!r})"

    def rewind(self) -> None:
        """Reads from the beginning again."""
        self._place = 0

    def get_so_far(self) -> bytes:
        """Return the part that was read."""
        return bytes(self._content[: self._place])

    def get_remainder(self) -> bytes:
        """Return the part that was not read."""
        return bytes(self._content[self._place :])

    # Reading.

    def get_bytes(self, n: int) -> bytes:
        """So many bytes; those that are missing are zeros."""
        found = bytes(self._content[self._place : self._place + n])
        self._place += len(found)
        return found + zero_byte * (n - len(found)) if len(found) < n < 1 << 20 else found

    def get_byte(self) -> bytes:
        return self.get_bytes(1)

    def get_boolean(self) -> bool:
        return self.get_byte() != zero_byte

    def get_int(self) -> int:
        """A uint32."""
        return int.from_bytes(self.get_bytes(4), "big")

    def get_int64(self) -> int:
        """A uint64."""
        return int.from_bytes(self.get_bytes(8), "big")

    def get_adaptive_int(self) -> int:
        """A uint32, or an mpint behind the byte 255."""
        first = self.get_byte()
        if first == max_byte:
            return inflate_long(self.get_binary())
        return int.from_bytes(first + self.get_bytes(3), "big")

    def get_mpint(self) -> int:
        return inflate_long(self.get_binary())

    def get_string(self) -> bytes:
        return self.get_bytes(self.get_int())

    get_binary = get_string

    def get_text(self) -> str:
        """A string as text."""
        return self.get_string().decode()

    def get_list(self) -> list[str]:
        """A name-list."""
        return self.get_text().split(",")

    # Writing.

    def add_bytes(self, b: bytes) -> Self:
        self._content += b
        self._place = len(self._content)
        return self

    def add_byte(self, b: bytes) -> Self:
        return self.add_bytes(b)

    def add_boolean(self, b: bool) -> Self:
        return self.add_bytes(one_byte if b else zero_byte)

    def add_int(self, n: int) -> Self:
        """A uint32."""
        return self.add_bytes(n.to_bytes(4, "big"))

    def add_int64(self, n: int) -> Self:
        """A uint64."""
        return self.add_bytes(n.to_bytes(8, "big"))

    def add_adaptive_int(self, n: int) -> Self:
        """A uint32, or for a large number an mpint behind the byte 255."""
        return self.add_bytes(max_byte).add_mpint(n) if n >= self.big_int else self.add_int(n)

    def add_mpint(self, z: int) -> Self:
        return self.add_string(deflate_long(z))

    def add_string(self, s: object) -> Self:
        content = asbytes(s)
        return self.add_int(len(content)).add_bytes(content)

    def add_list(self, l: Iterable[str]) -> Self:  # noqa: E741 (Paramiko's name)
        """A name-list."""
        return self.add_string(",".join(l))

    def add(self, *seq: Any) -> Self:
        """Each value by its type: booleans, numbers as ``add_adaptive_int``, lists, strings."""
        for value in seq:
            if isinstance(value, bool):
                self.add_boolean(value)
            elif isinstance(value, int):
                self.add_adaptive_int(value)
            elif isinstance(value, list):
                self.add_list(value)
            else:
                self.add_string(value)
        return self
