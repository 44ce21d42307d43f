"""What a host answers to a command."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ... import _errors, _native
from .exceptions import SessionError, Timeout
from .utils import host_logger

if TYPE_CHECKING:
    from ._jobs import Pool
    from .clients import SSHClient


class Channel:
    """A running command's session, with what it has written so far."""

    def __init__(self, session: _native.Session, pool: Pool) -> None:
        self.session = session
        self.pool = pool
        self.status: int | None = None
        self.ended = False
        self.outputs = (bytearray(), bytearray())
        self._open = [True, True]
        for stream in (0, 1):
            self._read(stream)

    def _read(self, stream: int) -> None:
        """Takes what comes while anything is waited for: a command never waits for its output to be read."""

        def came(ok: bool, data: bytes) -> None:
            if ok and data:
                self.outputs[stream].extend(data)
                self._read(stream)
                return
            self._open[stream] = False
            if not any(self._open):
                self.pool.begin(self.session.wait(), ended)

        def ended(ok: bool, how: tuple[int, str | None]) -> None:
            self.ended = True
            self.status = how[0] if ok else None

        self.pool.begin(self.session.read(stream + 1), came)

    def is_open(self, stream: int) -> bool:
        """Whether more may come."""
        return self._open[stream]

    def write(self, data: bytes) -> None:
        """Writes to the command."""
        try:
            self.session.write(data).wait()
        except _errors.Error as error:
            raise SessionError(str(error)) from error

    def send_eof(self) -> None:
        """Ends the command's input."""
        self.session.finish().wait()

    def close(self) -> None:
        """Closes the session. sshd sends SIGHUP to a command on a terminal; another finds its streams closed."""
        self.session.close()

    def eof(self) -> bool:
        """Whether the command has ended."""
        self.pool.turn()
        return self.ended

    def get_exit_status(self) -> int | None:
        """Its status, as a shell would show it: 128 and the number for a signal."""
        return self.status


class Stdin:
    """A command's input."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, data: str | bytes) -> None:
        """Writes everything, text as UTF-8."""
        self._channel.write(data.encode() if isinstance(data, str) else data)

    def flush(self) -> None:
        """Nothing: what is written leaves at once."""

    def close(self) -> None:
        """Ends it."""
        self._channel.send_eof()


class HostOutput:
    """A host's answer: its output as it comes, line by line; or why there is none."""

    def __init__(
        self,
        host: str,
        channel: Channel | None = None,
        client: SSHClient | None = None,
        alias: str | None = None,
        exception: BaseException | None = None,
        encoding: str = "utf-8",
        read_timeout: float | None = None,
        fully_qualified_command: bytes | None = None,
    ) -> None:
        self.host = host
        self.channel = channel
        self.stdin = None if channel is None else Stdin(channel)
        self.client = client
        self.alias = alias
        self.exception = exception
        self.encoding = encoding
        self.read_timeout = read_timeout
        self.fully_qualified_command = fully_qualified_command

    @property
    def stdout(self) -> Iterator[str] | None:
        """The lines of its output, without their ends. ``Timeout`` after ``read_timeout`` seconds."""
        return None if self.channel is None else self._lines(self.channel, 0, "")

    @property
    def stderr(self) -> Iterator[str] | None:
        """As ``stdout``, of standard error."""
        return None if self.channel is None else self._lines(self.channel, 1, "\t[err]")

    @property
    def exit_code(self) -> int | None:
        """Its status; ``None`` while it runs."""
        if self.channel is None or not self.channel.eof():
            return None
        return self.channel.status

    def _lines(self, channel: Channel, stream: int, mark: str) -> Iterator[str]:
        codecs.lookup(self.encoding)
        end = None if self.read_timeout is None else time.monotonic() + self.read_timeout
        buffer = channel.outputs[stream]
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not channel.pool.wait(lambda: b"\n" in buffer or not channel.is_open(stream), left):
                raise Timeout(f"no output within {self.read_timeout} s", self.host)
            found = buffer.find(b"\n")
            if found < 0 and not buffer:
                return
            length = found + 1 if found >= 0 else len(buffer)
            line = bytes(buffer[:length]).rstrip(b"\r\n" if found >= 0 else b"").decode(self.encoding)
            del buffer[:length]
            host_logger.info("[%s]%s\t%s", self.host, mark, line)
            yield line

    def __repr__(self) -> str:
        names = ("host", "alias", "exit_code", "channel", "exception", "encoding", "read_timeout", "fully_qualified_command")
        return "\n".join(f"\t{name}={getattr(self, name)}" for name in names)
