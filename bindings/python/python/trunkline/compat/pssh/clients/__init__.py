"""The clients: of one host, and of many."""

from .native import ParallelSSHClient, SSHClient

__all__ = ["ParallelSSHClient", "SSHClient"]
