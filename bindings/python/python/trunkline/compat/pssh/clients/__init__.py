"""The clients: of one host, and of many."""

from .parallel import ParallelSSHClient
from .single import InteractiveShell, SSHClient

__all__ = ["InteractiveShell", "ParallelSSHClient", "SSHClient"]
