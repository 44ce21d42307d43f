"""Paramiko's exceptions, and which of them the engine's errors become."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ... import _errors
from .common import CONNECTION_FAILED_CODE
from .sftp import SFTP_DESC, SFTP_NO_SUCH_FILE, SFTP_PERMISSION_DENIED

if TYPE_CHECKING:
    from .pkey import PKey


class SSHException(Exception):
    """The protocol failed, or something was asked for that cannot be."""


class AuthenticationException(SSHException):
    """The server let nobody in with what it was shown."""


class PasswordRequiredException(AuthenticationException):
    """A private key needs a passphrase."""


class BadAuthenticationType(AuthenticationException):
    """The server does not take this kind of authentication."""

    allowed_types: Sequence[str] = ()

    def __init__(self, explanation: str, types: list[str]) -> None:
        super().__init__(explanation, types)
        self.explanation = explanation
        self.allowed_types = types

    def __str__(self) -> str:
        return f"{self.explanation}; allowed types: {self.allowed_types!r}"


class PartialAuthentication(AuthenticationException):
    """More is needed to log in: one of ``allowed_types``."""

    allowed_types: Sequence[str] = ()

    def __init__(self, types: list[str]) -> None:
        super().__init__(types)
        self.allowed_types = types

    def __str__(self) -> str:
        return f"Partial authentication; allowed types: {self.allowed_types!r}"


class UnableToAuthenticate(AuthenticationException):
    """Nothing led in."""


class ChannelException(SSHException):
    """A channel was not opened; ``code`` is one of ``OPEN_FAILED_…``."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"ChannelException({self.code!r}, {self.text!r})"


class BadHostKeyException(SSHException):
    """The server showed another host key than the one that is known."""

    def __init__(self, hostname: str, got_key: PKey, expected_key: PKey | None, reason: str = "") -> None:
        super().__init__(hostname, got_key, expected_key)
        self.hostname = hostname
        self.key = got_key
        self.expected_key = expected_key
        self._reason = reason

    def __str__(self) -> str:
        got = f"Host key for server {self.hostname!r} does not match: got {self.key.get_base64()!r}"
        return f"{got}, expected {self.expected_key.get_base64()!r}" if self.expected_key else f"{got}. {self._reason}"


class IncompatiblePeer(SSHException):
    """There is no algorithm that both sides have."""


class MessageOrderError(SSHException):
    """The server broke the order of messages."""


class ProxyCommandFailure(SSHException):
    """A proxy command has ended."""

    def __init__(self, command: str, error: str) -> None:
        super().__init__(command, error)
        self.command = command
        self.error = error

    def __str__(self) -> str:
        return f'ProxyCommand("{self.command}") returned nonzero exit status: {self.error}'


class NoValidConnectionsError(OSError):
    """No address of the host could be connected to; ``errors`` has the reason by address."""

    def __init__(self, errors: Mapping[tuple[str, int], Exception]) -> None:
        addresses = sorted(errors)
        *before, last = (host for host, _ in addresses)
        hosts = f"{', '.join(before)} or {last}" if before else last
        super().__init__(None, f"Unable to connect to port {addresses[0][1]} on {hosts}")
        self.errors = dict(errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)


class CouldNotCanonicalize(SSHException):
    """A host name could not be made canonical."""


class ConfigParseError(SSHException):
    """ssh does not understand the configuration."""


def as_os_error(error: _errors.FileError) -> OSError:
    """Return the error for an operation that the server refused, with the words for its code."""
    text = SFTP_DESC[error.status] if error.status is not None and error.status < len(SFTP_DESC) else str(error)
    if error.status in (SFTP_NO_SUCH_FILE, SFTP_PERMISSION_DENIED):
        return OSError(error.errno, text)
    return OSError(text)


@contextmanager
def translated() -> Iterator[None]:
    """Raises the engine's errors as Paramiko's, which have no cause; what the engine says remains their ``__context__``."""
    try:
        yield
    except _errors.FileError as error:
        raise as_os_error(error) from None
    except _errors.AuthenticationError:
        raise AuthenticationException("Authentication failed.") from None
    except _errors.TimeoutError as error:
        raise socket.timeout(str(error)) from None
    except _errors.SftpServerError:
        raise SSHException("EOF during negotiation") from None
    except _errors.LimitError as error:
        if error.reason:
            raise ChannelException(error.reason, CONNECTION_FAILED_CODE.get(error.reason, "(unknown code)")) from None
        # What was asked of a channel that is open.
        raise SSHException("Channel closed.") from None
    except _errors.PeerError as error:
        raise IncompatiblePeer(str(error)) from None
    except _errors.Error as error:
        raise SSHException(str(error)) from None
    except builtins.TimeoutError as error:
        # Of a wait, not of the engine.
        raise socket.timeout(str(error)) from None
