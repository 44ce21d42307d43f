"""A command that runs, with streams for asyncio."""

from __future__ import annotations

import asyncio
import codecs
from typing import TYPE_CHECKING, AnyStr, Generic, cast

from .._errors import ClosedError
from .._face import AsyncClosing
from .._process import BaseProcess, still_running
from .._result import CompletedProcess, Input, Start, input_bytes
from ._bridge import begin, outcome

if TYPE_CHECKING:
    from asyncio import Future

    from typing_extensions import Self

    from .. import _native


class Reader(Generic[AnyStr]):
    """The output of a command: ``async for`` gives its lines. Tasks that read at once each get what comes next, in
    the order in which they asked.

    Giving up a wait, as ``asyncio.wait_for`` does when time is up, loses nothing: what has come is read next.
    """

    def __init__(self, session: _native.Session, stream: int, encoding: str | None, errors: str) -> None:
        self._session = session
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors) if encoding else None
        self._buffer: AnyStr = cast("AnyStr", "" if encoding else b"")
        self._newline: AnyStr = cast("AnyStr", "\n" if encoding else b"\n")
        self._pending: Future[bytes] | None = None
        self._ended = False

    async def read(self, size: int = -1) -> AnyStr:
        """Up to ``size`` bytes or characters, at least one but for the end; everything up to the end without a size."""
        while not self._ended and (size < 0 or (size > 0 and not self._buffer)):
            await self._fill()
        if size < 0:
            size = len(self._buffer)
        return self._take(size)

    async def readline(self) -> AnyStr:
        """The next line with its end; the last may have none, and is empty at the end of the stream."""
        searched = 0
        while True:
            at = self._buffer.find(self._newline, searched)
            if at >= 0:
                return self._take(at + 1)
            if self._ended:
                return self._take(len(self._buffer))
            searched = len(self._buffer)
            await self._fill()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyStr:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    def _take(self, size: int) -> AnyStr:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    async def _fill(self) -> None:
        if self._pending is None:
            self._pending, _ = begin(self._session.read(self._stream))
        pending = self._pending
        data = await asyncio.shield(pending)
        # The first of those who wait for it.
        if self._pending is pending:
            self._pending = None
            self._feed(data, final=not data)

    def _feed(self, data: bytes, final: bool) -> None:
        self._ended = self._ended or final
        self._buffer += cast("AnyStr", self._decoder.decode(data, final) if self._decoder else data)


class Writer(Generic[AnyStr]):
    """The input of a command."""

    def __init__(self, session: _native.Session, encoding: str | None) -> None:
        self._session = session
        self._encoding = encoding

    async def write(self, data: AnyStr) -> None:
        """Hands over the data; waits for as long as the engine has no room for it."""
        try:
            await outcome(self._session.write(input_bytes(data, self._encoding) or b""))
        except ClosedError as error:
            raise BrokenPipeError(str(error)) from error

    async def close(self) -> None:
        """Ends the input, behind what was written."""
        await outcome(self._session.finish())


class Process(BaseProcess[AnyStr], AsyncClosing):
    """A running command, much like ``asyncio.subprocess.Process``.

    What is not read stays with the server, which stops the command when its window is full. Leaving an ``async with`` block
    closes the session, if the command still runs: the server then sends it SIGHUP.
    """

    def __init__(self, session: _native.Session, start: Start) -> None:
        super().__init__(session, start)
        self.stdin: Writer[AnyStr] = Writer(session, start.encoding)
        self.stdout: Reader[AnyStr] = Reader(session, 1, start.encoding, start.errors)
        self.stderr: Reader[AnyStr] = Reader(session, 2, start.encoding, start.errors)

    async def started(self) -> None:
        """Waits until the server has confirmed the start. Raises what prevented it."""
        await outcome(self._session.started())

    async def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the status. Raises ``TimeoutError`` if it still runs after ``timeout`` seconds."""
        if self._ended is None:
            self._ended = await outcome(self._session.wait(timeout))
        if self._ended is None:
            raise still_running(timeout)
        return self._ended[0]

    async def communicate(self, input: Input | None = None) -> tuple[AnyStr, AnyStr]:
        """Writes ``input``, ends the input, reads both outputs and waits for the end.

        Giving up the wait, as ``asyncio.wait_for`` does when time is up, loses nothing: the command runs on and gets the
        rest of the input, and this can be called again, without input then.
        """
        self._ended = await outcome(self._session.communicate(input_bytes(input, self._encoding)))
        return await self.stdout.read(), await self.stderr.read()

    async def complete(self, input: Input | None = None) -> CompletedProcess[AnyStr]:
        """As ``communicate``, with the status and both outputs in one result."""
        stdout, stderr = await self.communicate(input)
        returncode, signal = self._ended or (255, None)
        return CompletedProcess(self.command, returncode, signal, stdout, stderr)

    def close(self) -> None:
        """Closes the session; a command that still runs gets SIGHUP."""
        self._session.close()
