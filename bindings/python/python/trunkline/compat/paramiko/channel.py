"""Channels: sessions and tunnels."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ... import _errors, _native
from ..._result import Terminal, wanted
from .file import BufferedFile
from .ssh_exception import ChannelException, SSHException, translated
from .util import ClosingContextManager

if TYPE_CHECKING:
    from .transport import Transport

_T = TypeVar("_T")

#: What ``sendall`` gives at once.
_PIECE = 256 * 1024

#: How much of one stream is kept when another is looked at: Paramiko's window.
_AHEAD = 2 * 1024 * 1024

#: How often, in seconds, whoever waits for a channel to be started looks whether the connection is there.
_LOOK = 1.0

#: How long, in seconds, the end of a connection that this side has closed is waited for.
_ENDING = 5.0


class Ended:
    """The end of a channel's command, for those who wait for it as for an event."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def is_set(self) -> bool:
        """Return whether it has ended."""
        return self._channel.exit_status_ready()

    #: The older name, as an event has it.
    isSet = is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for it, for so many seconds; whether it has ended."""
        return self._channel.wait_for_end(timeout)


class Channel(ClosingContextManager):
    """A session, whose command is chosen by ``exec_command``, ``invoke_shell`` or ``invoke_subsystem``; or a tunnel.

    A session that was not opened before is opened with its command, in one flight.
    """

    def __init__(self, transport: Transport, session: _native.Session | None = None) -> None:
        self.transport = transport
        self.chanid = transport.next_channel()
        self.origin_addr: tuple[str, int] | None = None
        self._name = str(self.chanid)
        self._session: _native.Session | None = None
        #: The session in which the command will run, if it was opened before.
        self._opened_before: _native.Opened | None = None
        self._env: dict[str, str] = {}
        self._terminal: Terminal | None = None
        self._lends_agent = False
        self._timeout: float | None = None
        #: How many seconds its start may take.
        self.open_timeout: float | None = None
        #: There is something to read, or never will be.
        self._begun = threading.Event()
        self._status: int | None = None
        self._over = False
        self._closed = False
        self.eof_sent = False
        #: Whether ``shutdown`` has ended reading, which ``eof_received`` then tells.
        self._feigns_end = False
        self.logger = logging.getLogger(transport.get_log_channel())
        self.ultra_debug = False
        self._output = _Output()
        if session is not None:
            self._begin(session)

    def open(self) -> None:
        """Opens the session, for a command that is chosen later."""
        with self._opening():
            self._opened_before = self.transport.host().open().wait(self.open_timeout)

    def native(self) -> _native.Session:
        """Return the session over which the engine makes another connection."""
        return self._opened()

    # What to run.

    def get_pty(
        self, term: str | bytes = "vt100", width: int = 80, height: int = 24, width_pixels: int = 0, height_pixels: int = 0
    ) -> None:
        """Asks for a terminal, for the command that is run next."""
        self._unused()
        self._terminal = Terminal(_text(term), width, height, width_pixels, height_pixels)

    def resize_pty(self, width: int = 80, height: int = 24, width_pixels: int = 0, height_pixels: int = 0) -> None:
        """Tells of the terminal's new size."""
        if self.closed:
            raise SSHException("Channel is not open")
        if self._session is not None:
            self._session.resize(width, height, width_pixels, height_pixels)
        elif self._terminal is not None:
            # Which is asked for together with the command.
            self._terminal = Terminal(self._terminal.term, width, height, width_pixels, height_pixels)

    def update_environment(self, environment: Mapping[str | bytes, str | bytes]) -> None:
        """Asks for environment variables; servers take those that their AcceptEnv names."""
        for name, value in environment.items():
            self.set_environment_variable(name, value)

    def set_environment_variable(self, name: str | bytes, value: str | bytes) -> None:
        """As ``update_environment``, for one."""
        self._unused()
        self._env[_text(name)] = _text(value)

    def request_forward_agent(self, handler: object = None) -> bool:
        """Lends the agent of this side to the command that is run next. The engine serves it: no handler is called.

        sshd would lend it to every later session of the same connection: this session gets a connection of its own.
        """
        self._unused()
        self._lends_agent = True
        return True

    def exec_command(self, command: str | bytes) -> None:
        """Runs a command line."""
        # The engine takes nothing for the login shell.
        command = command if isinstance(command, str) else bytes(memoryview(command))
        self._start(wanted(command, self._env, self._terminal or False))

    def invoke_shell(self) -> None:
        """Starts the login shell."""
        self._start(wanted(None, self._env, self._terminal or False))

    def invoke_subsystem(self, subsystem: str) -> None:
        """Starts a subsystem, such as "sftp"."""
        self._start(wanted(subsystem, self._env, self._terminal or False, subsystem=True))

    def _start(self, start: Any) -> None:
        self._unused()
        with self._opening():
            opened, self._opened_before = self._opened_before, None
            if self._lends_agent and opened is not None:
                opened.close()
                opened = None
            host = self.transport.host(self._lends_agent)
            session = host.start(start, opened, self.combine_stderr).wait(self.open_timeout)
            session.started().wait(self.open_timeout)
        self._begin(session)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Closes it if it cannot be opened or started."""
        try:
            with translated():
                yield
        except socket.timeout:
            raise SSHException("Timeout opening channel.") from None
        except BaseException as error:
            if isinstance(error, ChannelException):
                self.transport.log_refusal(self.chanid, error)
            # Whoever waits for output need not wait for more.
            self.close()
            raise

    def _begin(self, session: _native.Session) -> None:
        self._session = session
        self._output.begin(session)
        self.transport.carry(self)
        self._begun.set()

    def _has_begun(self, limit: float | None) -> bool:
        """Waits until it is started, or never will be."""
        end = None if limit is None else time.monotonic() + limit
        while not self._begun.wait(_LOOK if end is None else max(0.0, min(_LOOK, end - time.monotonic()))):
            if not self.transport.is_active():
                break
            if end is not None and time.monotonic() >= end:
                return False
        return True

    def _unused(self) -> None:
        if self.closed or not self.transport.is_active():
            raise SSHException("Channel is not open")
        if self._session is not None:
            raise SSHException("Channel is already in use")

    def _opened(self) -> _native.Session:
        if self._session is None:
            raise SSHException("Channel is not open")
        return self._session

    # Its end.

    def exit_status_ready(self) -> bool:
        """Return whether ``recv_exit_status`` would not wait."""
        return self._closed or self._knows_status(0)

    def recv_exit_status(self) -> int:
        """Waits for the command's status; -1 if there is none: it was ended by a signal, or the connection was lost."""
        self.wait_for_end(None)
        return -1 if self._status is None else self._status

    def wait_for_end(self, limit: float | None) -> bool:
        """Waits for the command's end, for so many seconds; whether it has ended."""
        end = None if limit is None else time.monotonic() + limit
        self._has_begun(limit)
        rest = None if end is None else max(0.0, end - time.monotonic())
        return self._closed or self._knows_status(rest) or (limit is None)

    def _knows_status(self, limit: float | None) -> bool:
        """Waits for the command's status. The channel may stay open: a child may have the command's output."""
        if self._status is None and self._session is not None:
            self._status = self._end_within(self._session.exited, limit, -1)
        return self._status is not None

    def _is_over(self) -> bool:
        """Return whether nothing more comes from the server."""
        if not self._over and self._session is not None:
            lost: tuple[int, str | None] = (-1, None)
            self._over = self._end_within(self._session.wait, 0, lost) is not None
        return self._over

    def _end_within(
        self, wait: Callable[[float | None], _native.Operation[_T | None]], limit: float | None, lost: _T
    ) -> _T | None:
        """Return the result within the limit; ``lost`` if the connection was."""
        if limit is not None and self.transport.was_closed:
            # The end is on its way.
            limit = max(limit, _ENDING)
        try:
            return wait(limit).wait()
        except _errors.Error:
            return lost

    @property
    def exit_status(self) -> int:
        return -1 if self._status is None else self._status

    @property
    def closed(self) -> bool:
        """Whether it was closed here, or the server has: then what came before can still be read."""
        return self._closed or self._is_over() or (self._session is None and not self.transport.is_active())

    @property
    def status_event(self) -> Ended:
        """The event that ``recv_exit_status`` waits for."""
        return Ended(self)

    @property
    def active(self) -> bool:
        """Whether it was opened; ``closed`` tells of its end."""
        return True

    @property
    def eof_received(self) -> bool:
        """Whether the other side has ended what it sends, all of which need not have been read."""
        return self._feigns_end or (self._session is not None and self._session.has_heard_end())

    def keep_output(self) -> None:
        """Takes what has come and was not read, which can still be read when the connection is closed."""
        self._output.keep()

    def end_output(self) -> None:
        """Nothing more comes."""
        self._output.end()

    def close(self) -> None:
        """Closes it. sshd sends SIGHUP to a command on a terminal; another finds its streams closed. What has come can still
        be read."""
        if self._closed:
            return
        self._knows_status(0)
        self._closed = True
        self._begun.set()
        if self._opened_before is not None:
            self._opened_before.close()
        if self._session is not None:
            self.keep_output()
            self._session.close()
        self.end_output()

    def shutdown(self, how: int) -> None:
        """As for a socket: 0 ends reading, 1 writing, 2 both."""
        if how in (0, 2):
            self.shutdown_read()
        if how in (1, 2):
            self.shutdown_write()

    def shutdown_read(self) -> None:
        """Has ``eof_received`` tell of an end. As with Paramiko, what has come and what still comes can be read."""
        self._feigns_end = True

    def shutdown_write(self) -> None:
        """Ends what is written: the command finds the end of its input."""
        if self._session is not None and not self._closed:
            self._session.finish().wait()
            self.eof_sent = True

    # Data.

    def recv(self, nbytes: int) -> bytes:
        """Some bytes, at least one; none at the end. ``socket.timeout`` after ``settimeout``'s seconds."""
        return self.take(0, nbytes, self._timeout)

    @property
    def in_buffer(self) -> Buffer:
        """The unread data of standard output."""
        return Buffer(self, 0)

    @property
    def in_stderr_buffer(self) -> Buffer:
        """The same for standard error."""
        return Buffer(self, 1)

    def recv_ready(self) -> bool:
        """Return whether ``recv`` would not wait and give bytes."""
        return self._output.is_ready(0)

    def recv_stderr(self, nbytes: int) -> bytes:
        """As ``recv``, from standard error."""
        return self.take(1, nbytes, self._timeout)

    def take(self, which: int, nbytes: int, timeout: float | None) -> bytes:
        """Some bytes of standard output (0) or standard error (1)."""
        # A thread may read before another starts the command.
        if not self._has_begun(timeout):
            raise socket.timeout("timed out")
        return b"" if self._session is None else self._output.take(which, nbytes, timeout)

    def recv_stderr_ready(self) -> bool:
        """As ``recv_ready``, for standard error."""
        return self._output.is_ready(1)

    @property
    def combine_stderr(self) -> bool:
        """The value given to ``set_combine_stderr``."""
        return self._output.combined

    @property
    def timeout(self) -> float | None:
        """The value given to ``settimeout``."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def set_combine_stderr(self, combine: bool) -> bool:
        """Return whether ``recv`` gives standard error too; returns whether it did."""
        return self._output.combine(combine)

    def send(self, s: str | bytes) -> int:
        """Writes as much of it as the server takes, once it takes some, and returns how many bytes, or characters of text,
        which are not divided. ``socket.timeout`` if it takes nothing for ``settimeout``'s seconds."""
        if self.eof_sent and not self.closed:
            return 0
        data = _bytes(s)
        written = self._send(data)
        if not isinstance(s, str):
            return written
        rest = data[written:]
        # In UTF-8 a character goes on with 10xxxxxx.
        while rest and rest[0] >> 6 == 0b10:
            size = self._send(rest[:1])
            rest = rest[size:]
        return len(s) - len(rest.decode())

    def sendall(self, s: str | bytes) -> None:
        """Writes everything; it is on its way when this returns. As after ``send``, ``socket.timeout`` tells of a command
        that stopped reading; then nobody knows how much it took."""
        rest = memoryview(_bytes(s))
        while rest:
            rest = rest[self._send(bytes(rest[:_PIECE])) :]

    def _send(self, data: bytes) -> int:
        if self._closed or self.eof_sent:
            raise OSError("Socket is closed")
        try:
            written = self._opened().write_some(data, self._timeout).wait()
        except _errors.Error:
            raise OSError("Socket is closed") from None
        if written is None:
            raise socket.timeout("timed out")
        return written

    def send_ready(self) -> bool:
        """Return whether ``send`` would not wait: it does not where it raises either."""
        if self._session is None or self._closed or self.eof_sent:
            return self._closed or self.eof_sent
        try:
            return self._session.window().wait() > 0
        except _errors.Error:
            return True

    def fileno(self) -> int:
        """A descriptor for ``select`` and ``poll``, which can be read while ``recv`` or ``recv_stderr`` would not wait,
        also where the command is chosen later. Nothing can be read from it itself."""
        return self._output.fileno()

    def makefile(self, mode: str = "r", bufsize: int = -1) -> ChannelFile:
        """A file that reads what the command writes, or writes what it reads."""
        return ChannelFile(self, mode, bufsize)

    def makefile_stderr(self, mode: str = "r", bufsize: int = -1) -> ChannelStderrFile:
        """A file that reads standard error."""
        return ChannelStderrFile(self, mode, bufsize)

    def makefile_stdin(self, mode: str = "w", bufsize: int = -1) -> ChannelStdinFile:
        """A file for the command's input, which ends when the file is closed."""
        return ChannelStdinFile(self, mode, bufsize)

    # Settings.

    def settimeout(self, timeout: float | None) -> None:
        """Set how many seconds reading, and writing, may take."""
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        return self._timeout

    def setblocking(self, blocking: bool) -> None:
        """``False`` is a timeout of 0."""
        self.settimeout(None if blocking else 0.0)

    def get_transport(self) -> Transport:
        return self.transport

    def getpeername(self) -> tuple[str, int]:
        return self.transport.getpeername()

    def set_name(self, name: str) -> None:
        self._name = name

    def get_name(self) -> str:
        return self._name

    def get_id(self) -> int:
        return self.chanid

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._session is not None else "new"
        return f"<paramiko.Channel {self.chanid} ({state}) -> {self.transport!r}>"


class Buffer:
    """The unread data of one of a channel's outputs."""

    def __init__(self, channel: Channel, which: int) -> None:
        self._channel = channel
        self._which = which

    def __len__(self) -> int:
        return self._channel._output.waiting(self._which)

    def read_ready(self) -> bool:
        """Return whether there is something."""
        return len(self) > 0

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """As ``Channel.recv``."""
        return self._channel.take(self._which, nbytes, timeout)


class _Output:
    """The output of a session, as far as it has come: standard output (0) and standard error (1). As long as there is no
    session, there is nothing, and no end."""

    def __init__(self) -> None:
        #: Whether both are one.
        self.combined = False
        self._session: _native.Session | None = None
        # Guards what follows. It is not held while something is waited for.
        self._lock = threading.Lock()
        self._data = (bytearray(), bytearray())
        self._ended = [False, False]
        self._watch: _Watch | None = None
        #: Whether the session is about to be closed: nothing is read ahead any more.
        self._is_ending = False

    def begin(self, session: _native.Session) -> None:
        """From now on it is this session's."""
        with self._lock:
            self._session = session
            self._settle()

    def combine(self, combined: bool) -> bool:
        """Make standard error a part of standard output, behind what has come of that, or part them. Returns whether it
        was."""
        before = self.combined
        if self._session is not None and combined != before:
            self._session.merge_stderr(combined)
            if combined:
                self._keep_ahead()
        with self._lock:
            self.combined = combined
            if combined:
                self._data[0].extend(self._data[1])
                self._data[1].clear()
                # There may be more of the other than was taken.
                self._ended[0] = all(self._ended)
            self._settle()
        return before

    def take(self, which: int, size: int, timeout: float | None) -> bytes:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self.is_readable(which):
                    piece = bytes(self._data[which][:size])
                    del self._data[which][:size]
                    self._settle()
                    return piece
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self._fetch(which, left) and left == 0:
                raise socket.timeout("timed out")

    def is_ready(self, which: int) -> bool:
        """Return whether there are bytes."""
        if not self.is_readable(which):
            self._fetch(which, 0)
        return bool(self._data[which])

    def waiting(self, which: int) -> int:
        """Return how many bytes have come."""
        self.is_ready(which)
        return len(self._data[which])

    def is_readable(self, which: int) -> bool:
        """Return whether taking would not wait."""
        return bool(self._data[which]) or self._ended[which]

    def keep(self) -> None:
        """Takes what has come, as much as a window of Paramiko's holds: the session is about to be closed."""
        if self._session is None:
            return
        with self._lock:
            self._is_ending = True
        if self._watch is not None:
            self._watch.wait(0)
            with self._lock:
                self._add(0, self._watch.read(), True)
        self._keep_ahead()

    def _keep_ahead(self) -> None:
        """Takes what has come, as much as a window of Paramiko's holds."""
        for which in (0,) if self.combined else (0, 1):
            before = -1
            while before < len(self._data[which]) < _AHEAD and not self._ended[which]:
                before = len(self._data[which])
                self._fetch(which, 0)

    def end(self) -> None:
        """No more than what is here already."""
        with self._lock:
            self._ended = [True, True]
            self._settle()

    def fileno(self) -> int:
        """A descriptor that can be read while taking would not wait. From now on something is always read ahead."""
        with self._lock:
            if self._watch is None:
                self._watch = _Watch()
                self._settle()
            return self._watch.epoll.fileno()

    def _fetch(self, which: int, timeout: float | None) -> bool:
        """Waits for more; whether it has come, or the end."""
        if self._session is None:
            return False
        if self._watch is not None and not self._is_ending:
            with self._lock:
                # What waits on the other stream does not keep this one from being read, as long as that is not much.
                if not self.is_readable(which) and (timeout != 0 or len(self._data[1 - which]) < _AHEAD):
                    self._watch.begin(self._session)
            self._watch.wait(timeout)
            with self._lock:
                return self._add(which, self._watch.read(), True)
        try:
            if self.combined:
                came = self._session.read_either(timeout).wait()
            else:
                data = self._session.read(which + 1, timeout).wait()
                came = None if data is None else (which + 1, data)
        except _errors.Error:
            # Of a connection that is lost, the status tells.
            came = which + 1, b""
        with self._lock:
            return self._add(which, came, self.combined)

    def _add(self, which: int, came: tuple[int, bytes] | None, of_both: bool) -> bool:
        """Keeps what has come, for one stream or ``of_both``; whether there was anything, for this stream."""
        if came is None:
            return self.is_readable(which)
        stream, data = came
        self._data[0 if self.combined else stream - 1].extend(data)
        if not data and of_both:
            self._ended = [True, True]
        elif not data:
            self._ended[which] = True
        self._settle()
        return True

    def _settle(self) -> None:
        """After something was taken or has come: tells the watch, which reads ahead when nothing is here."""
        if self._watch is not None:
            ready = any(self.is_readable(which) for which in (0, 1))
            self._watch.tell(ready)
            if not (ready or self._is_ending) and self._session is not None:
                self._watch.begin(self._session)


class _Watch:
    """A descriptor that can be read while there is something to read: an epoll of what is read ahead, and of the writing
    end of a pipe, which is always ready and looked at while something is here already."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._ahead = _native.Completions()
        self._reading = False
        held, self._gate = os.pipe2(os.O_CLOEXEC)
        weakref.finalize(self, _close, held, self._gate)
        self.epoll.register(self._gate, 0)
        self.epoll.register(self._ahead.fileno(), select.EPOLLIN)

    def tell(self, ready: bool) -> None:
        self.epoll.modify(self._gate, select.EPOLLOUT if ready else 0)

    def begin(self, session: _native.Session) -> None:
        if not self._reading:
            self._reading = True
            session.read_either().begin(self._ahead, 0)
            self._ahead.go()

    def wait(self, timeout: float | None) -> None:
        """Waits until something was read, for so many seconds and never for long."""
        if self._reading:
            self._ahead.wait(timeout)

    def read(self) -> tuple[int, bytes] | None:
        """Return the data that was read, if there was any and no other thread took it."""
        for _, ok, value in self._ahead.drain():
            self._reading = False
            return cast("tuple[int, bytes]", value) if ok else (1, b"")
        return None


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class ChannelFile(BufferedFile):
    """A channel as a file, made by ``Channel.makefile``."""

    def __init__(self, channel: Channel, mode: str = "r", bufsize: int = -1) -> None:
        self.channel = channel
        super().__init__()
        self._set_mode(mode, bufsize)

    def _read(self, size: int) -> bytes:
        return self.channel.recv(size)

    def _write(self, data: bytes) -> int:
        self.channel.sendall(data)
        return len(data)

    def __repr__(self) -> str:
        return f"<paramiko.{type(self).__name__} from {self.channel!r}>"


class ChannelStderrFile(ChannelFile):
    """Standard error as a file."""

    def _read(self, size: int) -> bytes:
        return self.channel.recv_stderr(size)


class ChannelStdinFile(ChannelFile):
    """The command's input as a file. Who lets go of it has nothing more to write: the input ends."""

    def close(self) -> None:
        super().close()
        self.channel.shutdown_write()


def _bytes(data: str | bytes) -> bytes:
    # Of a number, bytes() makes so many zeros.
    return data.encode() if isinstance(data, str) else bytes(memoryview(data))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
