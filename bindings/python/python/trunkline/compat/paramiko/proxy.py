"""Proxy commands: programs that connections are made through."""

from __future__ import annotations

import shlex
import socket
import subprocess
import tempfile

from .ssh_exception import ProxyCommandFailure
from .util import ClosingContextManager


class ProxyCommand(ClosingContextManager):
    """A program whose standard input and output are the way to a server; give it to ``connect`` as ``sock``. What it says on
    standard error can be read from ``process.stderr``."""

    def __init__(self, command_line: str) -> None:
        self.cmd = shlex.split(command_line)
        self.timeout: float | None = None
        self._here, there = socket.socketpair()
        # Not a pipe, or a program that says much would wait for somebody who reads it.
        with there, tempfile.NamedTemporaryFile() as errors:
            self.process = subprocess.Popen(self.cmd, stdin=there.fileno(), stdout=there.fileno(), stderr=errors)
            self.process.stderr = open(errors.name, "rb")  # noqa: SIM115 (as long as the program)

    def fileno(self) -> int:
        """This side's end."""
        return self._here.fileno()

    def send(self, content: bytes) -> int:
        """Writes to the program."""
        try:
            return self._here.send(content)
        except OSError as error:
            raise ProxyCommandFailure(" ".join(self.cmd), error.strerror or str(error)) from error

    def recv(self, size: int) -> bytes:
        """Reads from the program."""
        self._here.settimeout(self.timeout)
        return self._here.recv(size)

    def settimeout(self, timeout: float) -> None:
        self.timeout = timeout

    @property
    def closed(self) -> bool:
        """Whether the program has ended."""
        return self.process.poll() is not None

    def close(self) -> None:
        """Ends the program."""
        self._here.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
