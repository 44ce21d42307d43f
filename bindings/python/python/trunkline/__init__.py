"""One warm SSH connection per host, shared by everything you run.

    import trunkline

    with trunkline.connect("db1") as db1:
        print(db1.run("uptime").stdout)

``trunkline.aio`` is the same for asyncio, ``trunkline.Group`` runs commands on many hosts.
"""

import atexit as _atexit

from . import _native
from ._agent import add_to_agent
from ._connection import Connection, Forward, Lane, connect
from ._errors import (
    AuthenticationError,
    ClosedError,
    CommandError,
    ConfigurationError,
    Error,
    FileError,
    FilePermissionError,
    FileThereError,
    FleetError,
    ForkError,
    HostKeyError,
    IsDirectoryError,
    LimitError,
    LocalError,
    LocalFileError,
    LocalPermissionError,
    NetworkError,
    NoSuchFileError,
    NoSuchLocalFileError,
    NotDirectoryError,
    PeerError,
    SftpServerError,
    TimeoutError,
    UnknownHostError,
)
from ._files import CopyResult, DirEntry, FileStat
from ._forward import ForwardCounters
from ._group import Group, GroupRun, HostFailure, HostResult, HostSuccess
from ._log import enable_logging
from ._process import Process
from ._result import CompletedProcess, Terminal
from ._sftp import SFTP
from ._sftp import flush_written as _flush_written

__version__ = _native.VERSION

__all__ = [
    "SFTP",
    "AuthenticationError",
    "ClosedError",
    "CommandError",
    "CompletedProcess",
    "ConfigurationError",
    "Connection",
    "CopyResult",
    "DirEntry",
    "Error",
    "FileError",
    "FilePermissionError",
    "FileStat",
    "FileThereError",
    "FleetError",
    "ForkError",
    "Forward",
    "ForwardCounters",
    "Group",
    "GroupRun",
    "HostFailure",
    "HostKeyError",
    "HostResult",
    "HostSuccess",
    "IsDirectoryError",
    "Lane",
    "LimitError",
    "LocalError",
    "LocalFileError",
    "LocalPermissionError",
    "NetworkError",
    "NoSuchFileError",
    "NoSuchLocalFileError",
    "NotDirectoryError",
    "PeerError",
    "Process",
    "SftpServerError",
    "Terminal",
    "TimeoutError",
    "UnknownHostError",
    "add_to_agent",
    "connect",
    "enable_logging",
]

# Connections are told that they end; a server that does not listen gets this many seconds.
_atexit.register(_native.shut_down, 0.5)
# Before that: what is registered last is called first.
_atexit.register(_flush_written)
