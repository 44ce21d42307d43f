"""What programs use of ``paramiko.util``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ... import _log
from .common import asbytes

if TYPE_CHECKING:
    from typing import IO

    from .config import SSHConfig
    from .hostkeys import HostKeys

__all__ = [
    "ClosingContextManager",
    "asbytes",
    "b",
    "get_logger",
    "load_host_keys",
    "log_to_file",
    "lookup_ssh_host_config",
    "parse_ssh_config",
    "u",
]


def get_logger(name: str) -> logging.Logger:
    """A logger."""
    return logging.getLogger(name)


def log_to_file(filename: str, level: int = logging.DEBUG) -> None:
    """Writes what the engine says to a file."""
    handler = logging.FileHandler(filename)
    handler.setFormatter(logging.Formatter("%(levelname)-.3s [%(asctime)s] %(name)s: %(message)s"))
    logging.getLogger("trunkline").addHandler(handler)
    _log.enable_logging(level)


def b(s: str | bytes, encoding: str = "utf8") -> bytes:
    """Text as bytes."""
    return s.encode(encoding) if isinstance(s, str) else bytes(s)


def u(s: str | bytes, encoding: str = "utf8") -> str:
    """Bytes as text."""
    return s if isinstance(s, str) else bytes(s).decode(encoding)


def load_host_keys(filename: str) -> HostKeys:
    """What a known_hosts file says."""
    from .hostkeys import HostKeys

    return HostKeys(filename)


def parse_ssh_config(file_obj: IO[str]) -> SSHConfig:
    """What a file of ssh_config says."""
    from .config import SSHConfig

    config = SSHConfig()
    config.parse(file_obj)
    return config


def lookup_ssh_host_config(hostname: str, config: SSHConfig) -> Any:
    """What it says of a host."""
    return config.lookup(hostname)


class ClosingContextManager:
    """Is closed where a ``with`` block ends."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # type: ignore[attr-defined]
