"""The engine's log, handed to ``logging``."""

from __future__ import annotations

import logging

from . import _native


def enable_logging(level: int | str = logging.INFO) -> None:
    """Sends what the engine says, at ``level`` and above, to the loggers named ``trunkline...``.

    Until this is called the engine's log costs nothing. A handler that is too slow loses events; the engine never waits
    for one.
    """
    number = logging.getLevelName(level) if isinstance(level, str) else level
    if not isinstance(number, int):
        raise ValueError(f"{level!r} is not a logging level")
    _native.log_to(max(0, min(number, 255)), _tell)


def _tell(level: int, target: str, text: str) -> None:
    logging.getLogger(target.replace("::", ".")).log(level, "%s", text)
