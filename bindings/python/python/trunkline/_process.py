"""A command that runs, with its streams as files."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any, AnyStr, Generic, cast

from ._errors import ClosedError, TimeoutError
from ._expect import expect, plain
from ._face import Closing, face
from ._result import CompletedProcess, Input, Start, input_bytes

if TYPE_CHECKING:
    from . import _native

_BUFFER = 64 * 1024


class BaseProcess(Generic[AnyStr]):
    """The common part of both faces' processes."""

    def __init__(self, session: _native.Session, start: Start) -> None:
        self._session = session
        self._line = start.line
        self._encoding = start.encoding
        self._ended: tuple[int, str | None] | None = None

    @property
    def command(self) -> str:
        """As it was sent to the server."""
        return self._line.decode("utf-8", "backslashreplace")

    @property
    def returncode(self) -> int | None:
        """Its status, once ``wait``, ``poll`` or ``communicate`` has seen its end; see ``CompletedProcess``."""
        return None if self._ended is None else self._ended[0]

    @property
    def signal(self) -> str | None:
        """The name, without "SIG", of the signal that ended it."""
        return None if self._ended is None else self._ended[1]

    def send_signal(self, name: str) -> None:
        """Sends a signal, by name ("TERM", "SIGTERM"). Servers before OpenSSH 7.9 take none."""
        expect("a signal", "a name", name, str)
        self._session.signal(name.removeprefix("SIG"))

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal("TERM")

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal("KILL")

    def resize(self, columns: int, rows: int, width: int = 0, height: int = 0) -> None:
        """Tells of the terminal's new size, in characters and, if known, in pixels."""
        self._session.resize(columns, rows, width, height)

    def __repr__(self) -> str:
        state = "running" if self._ended is None else f"status {self._ended[0]}"
        return f"<{face(self)}.Process {self.command!r} {state}>"


class Process(BaseProcess[AnyStr], Closing):
    """A running command, much like ``subprocess.Popen``.

    ``stdin``, ``stdout`` and ``stderr`` are files, of ``str`` if there is an encoding. What is written leaves at once. What
    is not read stays with the server, which stops the command when its window is full: a command that writes much on both
    of its outputs wants ``communicate``, or a thread for each.

    Leaving a ``with`` block closes the session, if the command still runs: the server then sends it SIGHUP.
    """

    def __init__(self, session: _native.Session, start: Start) -> None:
        super().__init__(session, start)
        self._outputs = (_Output(session, 1), _Output(session, 2))
        stdout, stderr = (io.BufferedReader(raw, _BUFFER) for raw in self._outputs)
        self._input = stdin = _Input(session)
        self.stdin: IO[AnyStr]
        self.stdout: IO[AnyStr]
        self.stderr: IO[AnyStr]
        if start.encoding is None:
            self.stdin = cast("IO[AnyStr]", stdin)
            self.stdout, self.stderr = cast("IO[AnyStr]", stdout), cast("IO[AnyStr]", stderr)
        else:
            text: dict[str, Any] = {"encoding": start.encoding, "errors": start.errors, "newline": "\n"}
            self.stdin = cast("IO[AnyStr]", io.TextIOWrapper(cast("Any", stdin), write_through=True, **text))
            self.stdout = cast("IO[AnyStr]", io.TextIOWrapper(stdout, **text))
            self.stderr = cast("IO[AnyStr]", io.TextIOWrapper(stderr, **text))

    def started(self) -> None:
        """Waits until the server has confirmed the start. Raises what prevented it."""
        self._session.started().wait()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the status. Raises ``TimeoutError`` if it still runs after ``timeout`` seconds."""
        if self._ended is None:
            self._ended = self._session.wait(timeout).wait()
        if self._ended is None:
            raise still_running(timeout)
        return self._ended[0]

    def poll(self) -> int | None:
        """The status, if it has ended; does not wait."""
        if self._ended is None:
            self._ended = self._session.wait(0).wait()
        return self.returncode

    def communicate(self, input: Input | None = None, timeout: float | None = None) -> tuple[AnyStr, AnyStr]:
        """Writes ``input``, ends the input, reads both outputs and waits for the end.

        When ``timeout`` seconds are over before, ``TimeoutError`` is raised; the command runs on and gets the rest of the
        input, nothing is lost, and this can be called again, without input then. The same holds after Ctrl-C.
        """
        operation = self._session.communicate(input_bytes(input, self._encoding), timeout)
        # Closing the file waits for nothing then.
        self._input.end()
        self._ended = operation.wait()
        if self._ended is None:
            raise still_running(timeout)
        return self.stdout.read(), self.stderr.read()

    def complete(self, input: Input | None = None, timeout: float | None = None) -> CompletedProcess[AnyStr]:
        """As ``communicate``, with the status and both outputs in one result."""
        stdout, stderr = self.communicate(input, timeout)
        returncode, signal = self._ended or (255, None)
        return CompletedProcess(self.command, returncode, signal, stdout, stderr)

    def close(self) -> None:
        """Closes the session; a command that still runs gets SIGHUP."""
        self._session.close()
        for raw in (self._input, *self._outputs):
            raw.end()


def still_running(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"the command has not ended within {timeout} s", execution="may have started")


class _Output(io.RawIOBase):
    """The output of the command."""

    def __init__(self, session: _native.Session, stream: int) -> None:
        self._session = session
        self._stream = stream
        self._ready = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready and not self._ended:
            self._ready = memoryview(self._session.read(self._stream).wait())
            self._ended = not self._ready
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def end(self) -> None:
        """No more than what is here already."""
        self._ended = True


class _Input(io.RawIOBase):
    """The input of the command. Writing waits until the engine has taken everything."""

    def __init__(self, session: _native.Session) -> None:
        self._session = session
        self._ended = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        if self._ended:
            raise BrokenPipeError("the command's input has ended")
        copy = plain(data)
        try:
            self._session.write(copy).wait()
        except ClosedError as error:
            raise BrokenPipeError(str(error)) from error
        return len(copy)

    def close(self) -> None:
        if not self.closed:
            super().close()
            if not self._ended:
                self._session.finish().wait()

    def end(self) -> None:
        """Nobody reads any more, or all of the input was given."""
        self._ended = True
