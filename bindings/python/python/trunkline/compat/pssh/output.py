"""A host's answer to a command."""

from __future__ import annotations

from collections.abc import Iterator
from os import linesep
from typing import TYPE_CHECKING

from .clients.reader import ConcurrentRWBuffer
from .utils import logger

if TYPE_CHECKING:
    from .clients.base.single import BaseSSHClient, Channel, Reader, Stdin


class BufferData:
    """The data of one stream, and the task that takes it from the server."""

    __slots__ = ("reader", "rw_buffer")

    def __init__(self, reader: Reader, rw_buffer: ConcurrentRWBuffer) -> None:
        self.reader = reader
        self.rw_buffer = rw_buffer


class HostOutputBuffers:
    """The data of both streams."""

    __slots__ = ("stderr", "stdout")

    def __init__(self, stdout: BufferData, stderr: BufferData) -> None:
        self.stdout = stdout
        self.stderr = stderr


class HostOutput:
    """A host's answer: its output as it comes, line by line; or why there is none."""

    __slots__ = (
        "alias",
        "buffers",
        "channel",
        "client",
        "encoding",
        "exception",
        "fully_qualified_command",
        "host",
        "read_timeout",
        "stdin",
    )

    def __init__(
        self,
        host: str,
        channel: Channel | None,
        stdin: Stdin | None,
        client: BaseSSHClient | None,
        alias: str | None = None,
        exception: BaseException | None = None,
        encoding: str = "utf-8",
        read_timeout: float | None = None,
        buffers: HostOutputBuffers | None = None,
        fully_qualified_command: bytes | None = None,
    ) -> None:
        self.host = host
        self.channel = channel
        self.stdin = stdin
        self.client = client
        self.alias = alias
        self.exception = exception
        self.encoding = encoding
        self.read_timeout = read_timeout
        self.buffers = buffers
        self.fully_qualified_command = fully_qualified_command

    @property
    def stdout(self) -> Iterator[str] | None:
        """The lines of its output, without their ends. ``Timeout`` after ``read_timeout`` seconds."""
        if self.client is None or self.buffers is None:
            return None
        lines = self.client.read_output(self.buffers.stdout.rw_buffer, timeout=self.read_timeout)
        return self.client.read_output_buffer(lines, encoding=self.encoding)

    @property
    def stderr(self) -> Iterator[str] | None:
        """As ``stdout``, of standard error."""
        if self.client is None or self.buffers is None:
            return None
        lines = self.client.read_stderr(self.buffers.stderr.rw_buffer, timeout=self.read_timeout)
        return self.client.read_output_buffer(lines, prefix="\t[err]", encoding=self.encoding)

    @property
    def exit_code(self) -> int | None:
        """Its status; ``None`` while it runs."""
        if self.client is None or self.channel is None:
            return None
        try:
            return self.client.get_exit_status(self.channel)
        except Exception as error:
            logger.error("the exit status of a command on %s is not known: %s", self.host, error)
            return None

    def __repr__(self) -> str:
        names = ("host", "alias", "exit_code", "channel", "exception", "encoding", "read_timeout", "fully_qualified_command")
        return linesep.join(f"\t{name}={getattr(self, name)}" for name in names)
