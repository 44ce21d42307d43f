"""The clients by the names of parallel-ssh's on libssh2, which are its usual ones."""

from .parallel import ParallelSSHClient
from .single import SSHClient, logger

__all__ = ["ParallelSSHClient", "SSHClient", "logger"]
