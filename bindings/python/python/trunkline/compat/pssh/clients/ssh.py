"""The clients, where parallel-ssh has them too."""

from .parallel import ParallelSSHClient
from .single import SSHClient

__all__ = ["ParallelSSHClient", "SSHClient"]
