"""The checks of arguments."""

from __future__ import annotations

import os

from ..exceptions import InvalidAPIUseError, PKeyFileError


def key_path(path: str | bytes | None) -> str | None:
    """The path of a key or a certificate, which must be there."""
    if path is None:
        return None
    found = os.path.normpath(os.path.expanduser(os.fsdecode(path)))
    if not os.path.exists(found):
        raise PKeyFileError(
            "File %s does not exist. Please use either absolute or relative to user directory paths like '~/.ssh/my_key' "
            "for pkey parameter",
            found,
        )
    return found


def key_or_path(key: str | bytes | None) -> str | bytes | None:
    """A key in memory as it is, or the path of one."""
    return key if isinstance(key, bytes) else key_path(key)


def has_answer(keyboard_interactive: bool, password: str | None) -> None:
    """Questions need an answer."""
    if keyboard_interactive and not password:
        raise InvalidAPIUseError(
            "Keyboard interactive authentication is enabled but no password is provided - cannot continue"
        )
