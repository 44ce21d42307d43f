"""Logging, by parallel-ssh's names."""

from __future__ import annotations

import logging

host_logger = logging.getLogger("pssh.host_logger")
logger = logging.getLogger("pssh")
# Nothing is printed unless somebody wants it.
host_logger.addHandler(logging.NullHandler())
logger.addHandler(logging.NullHandler())


def enable_logger(_logger: logging.Logger, level: int = logging.INFO) -> None:
    """Writes what a logger is told to standard error."""
    _logger.setLevel(level)
    if any(isinstance(handler, logging.StreamHandler) for handler in _logger.handlers):
        logger.warning("Logger already has a StreamHandler attached")
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(name)-15s %(message)s"))
    _logger.addHandler(handler)


def enable_host_logger() -> None:
    """Writes the lines of all hosts as they are read."""
    enable_logger(host_logger)


def enable_debug_logger() -> None:
    """Writes what the clients do."""
    enable_logger(logger, logging.DEBUG)
