"""The clients by the names of parallel-ssh's on libssh, which take certificates."""

from .parallel import ParallelSSHClient
from .single import SSHClient

__all__ = ["ParallelSSHClient", "SSHClient"]
