"""Exceptions, one class for each of the engine's kinds of error."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ._result import CompletedProcess


class Error(Exception):
    """Something went wrong.

    ``execution`` says what it means for the command that was asked for: ``"did not start"`` (trying again is safe),
    ``"may have started"``, or ``"finished"``. ``stdout`` and ``stderr`` are what it had written by then.
    """

    kind = "error"

    #: Whether such a failure may pass by itself, so that it is worth trying again later; it says nothing of the command.
    #: As the engine's ``ErrorKind::may_pass``.
    may_pass = False

    def __init__(
        self,
        message: str,
        *,
        execution: str = "did not start",
        stdout: bytes = b"",
        stderr: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.execution = execution
        self.stdout = stdout
        self.stderr = stderr

    @property
    def may_have_run(self) -> bool:
        """Whether the command may have run, in part or to its end."""
        return self.execution != "did not start"

    def __bool__(self) -> Literal[True]:
        # Type checkers then know of ``if result.error`` what it says of the result.
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (multiprocessing, pytest-xdist) by pickling, which knows no keywords.
        return type(self), self.args, self.__dict__.copy()


class _SystemError(Error, OSError):
    """An error that has an errno too."""

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own attributes are not in its dictionary.
        make, arguments, state = super().__reduce__()
        about = {"errno": self.errno, "filename": self.filename, "filename2": self.filename2}
        return make, arguments, {**state, **{name: value for name, value in about.items() if value is not None}}

    def __str__(self) -> str:
        # OSError would put its number in front.
        return str(self.args[0]) if self.args else ""


class PeerError(Error):
    """The server broke the protocol, or shares no algorithm with this side."""

    kind = "peer"
    may_pass = True


class NetworkError(_SystemError, ConnectionError):
    """The network: unreachable, refused, reset, ended. ``errno`` is the system's number, if it gave one."""

    kind = "network"
    may_pass = True

    #: The address and the port that could not be connected to.
    address: tuple[str, int] | None = None


class UnknownHostError(NetworkError):
    """A host's name has no address, or nobody could be asked for it."""


class TimeoutError(Error, builtins.TimeoutError):
    """Something took longer than it may."""

    kind = "timeout"
    may_pass = True


class HostKeyError(Error):
    """The host key is unknown, changed or revoked. Nothing was signed and nothing sent."""

    kind = "host_key"


class AuthenticationError(Error):
    """The server accepted none of the authentication methods.

    ``allowed`` are the methods with which it would have gone on, such as ``"publickey"``; ``partial`` is whether it wants
    one of them besides what it was shown, which was right.
    """

    kind = "authentication"

    allowed: tuple[str, ...] = ()
    partial = False


class ConfigurationError(Error):
    """ssh_config, or what was asked for."""

    kind = "configuration"


class LimitError(Error):
    """The server refused: a session, a forwarding, a command."""

    kind = "limit"
    may_pass = True

    #: The reason for which it opened no channel (RFC 4254, section 5.1); 0 for other refusals.
    reason = 0
    #: What it said to that, or nothing.
    words = ""


class SftpServerError(LimitError):
    """The server's SFTP program ended before it began: the message has its exit status, and what it said."""

    kind = "sftp_server"


class LocalError(Error):
    """This machine: a file, a socket, the daemon."""

    kind = "local"
    may_pass = True


class LocalFileError(_SystemError, LocalError):
    """This machine did not do something to a file, or to a socket; ``errno`` says why not."""


class NoSuchLocalFileError(LocalFileError, FileNotFoundError):
    """There is no such file on this machine."""


class LocalPermissionError(LocalFileError, PermissionError):
    """The user may not do that to a file on this machine."""


class FileError(_SystemError):
    """The server did not do something to a file. ``status`` is SFTP's code for it, if the server said one."""

    kind = "file"

    #: SSH_FX_… (draft-ietf-secsh-filexfer-02, section 7).
    status: int | None = None


class NoSuchFileError(FileError, FileNotFoundError):
    """There is no such file on the server."""


class FilePermissionError(FileError, PermissionError):
    """The server's user may not do that to the file."""


class FileThereError(FileError, FileExistsError):
    """There is such a file already."""


class IsDirectoryError(FileError, IsADirectoryError):
    """It is a directory."""


class NotDirectoryError(FileError, NotADirectoryError):
    """A part of the path is not a directory."""


class ClosedError(Error):
    """The object that was used is closed."""

    kind = "closed"


class ForkError(Error):
    """The object that was used belongs to the parent process; a child made by ``os.fork`` connects anew."""

    kind = "fork"


class FleetError(Error):
    """The fleet did not do it, or tells no more of it: no node may, the job was cancelled, its input is too long, output is
    lost. What a node says of a host is told as the host's own errors are."""

    kind = "fleet"


class CommandError(Error):
    """A command that was run with ``check=True`` ended with another status than 0. ``result`` has all there is."""

    kind = "command"

    def __init__(self, result: CompletedProcess[Any]) -> None:
        ended = f"signal {result.signal}" if result.signal else f"status {result.returncode}"
        super().__init__(f"the command {result.command!r} ended with {ended}", execution="finished")
        self.result = result
        self.stdout = result.stdout
        self.stderr = result.stderr

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.result,)


_BY_KIND: dict[str, type[Error]] = {
    kind.kind: kind
    for kind in (
        PeerError,
        NetworkError,
        TimeoutError,
        HostKeyError,
        AuthenticationError,
        ConfigurationError,
        LimitError,
        SftpServerError,
        LocalError,
        FileError,
        ClosedError,
        ForkError,
        FleetError,
    )
}
_BY_KIND["lookup"] = UnknownHostError


#: By errno; others are ``FileError``.
_BY_NUMBER: dict[int, type[FileError]] = {
    errno.ENOENT: NoSuchFileError,
    errno.EACCES: FilePermissionError,
    errno.EPERM: FilePermissionError,
    errno.EEXIST: FileThereError,
    errno.EISDIR: IsDirectoryError,
    errno.ENOTDIR: NotDirectoryError,
}

_BY_LOCAL_NUMBER: dict[int, type[LocalFileError]] = {
    errno.ENOENT: NoSuchLocalFileError,
    errno.EACCES: LocalPermissionError,
    errno.EPERM: LocalPermissionError,
}


def not_copied(path: bytes, message: str, number: int | None, more: int) -> FileError:
    """The exception for a file that was not copied, and ``more`` others that were not either."""
    error = _file_error(f"{message} (and {more} more)" if more else message, number, "finished")
    error.filename = os.fsdecode(path)
    return error


def _file_error(message: str, number: int | None, execution: str) -> FileError:
    error = _BY_NUMBER.get(number or 0, FileError)(message, execution=execution)
    error.errno = number or errno.EIO
    return error


def is_there(error: FileError, path: str) -> FileError:
    """The exception for a new name, which the server did not make, where there is such a file."""
    made = _file_error(f"{path}: there is such a file already", errno.EEXIST, error.execution)
    made.status, made.filename = error.status, path
    return made


def of_system(error: OSError) -> LocalFileError:
    """The exception for what this machine did not do to a file before anything was begun on a host."""
    made = _BY_LOCAL_NUMBER.get(error.errno or 0, LocalFileError)(str(error))
    made.errno, made.filename = error.errno, error.filename
    return made


def from_native(
    kind: str,
    message: str,
    execution: str,
    stdout: bytes,
    stderr: bytes,
    code: int | None,
    number: int | None,
    allowed: tuple[Sequence[str], bool],
    address: tuple[str, int] | None,
    words: str | None = None,
) -> Error:
    """The exception for a failure of the native module, which calls this. ``code`` is SFTP's, where the server did
    not do something to a file, and RFC 4254's reason, where it opened no channel; ``number`` is an errno."""
    if kind == "file":
        error = _file_error(message, number, execution)
        error.status = code
        return error
    chosen = _BY_KIND.get(kind, Error)
    if kind == "local" and number:
        chosen = _BY_LOCAL_NUMBER.get(number, LocalFileError)
    made = chosen(message, execution=execution, stdout=stdout, stderr=stderr)
    if isinstance(made, NetworkError):
        made.errno, made.address = number, address
    elif isinstance(made, LocalFileError):
        made.errno = number
    elif isinstance(made, LimitError):
        made.reason, made.words = code or 0, words or ""
    elif isinstance(made, AuthenticationError):
        made.allowed, made.partial = tuple(allowed[0]), allowed[1]
    return made
