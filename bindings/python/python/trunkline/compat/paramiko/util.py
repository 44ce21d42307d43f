"""What programs use of ``paramiko.util``."""

from __future__ import annotations

import logging

from ... import _log


def get_logger(name: str) -> logging.Logger:
    """A logger."""
    return logging.getLogger(name)


def log_to_file(filename: str, level: int = logging.DEBUG) -> None:
    """Writes what the engine says to a file."""
    handler = logging.FileHandler(filename)
    handler.setFormatter(logging.Formatter("%(levelname)-.3s [%(asctime)s] %(name)s: %(message)s"))
    logging.getLogger("trunkline").addHandler(handler)
    _log.enable_logging(level)
