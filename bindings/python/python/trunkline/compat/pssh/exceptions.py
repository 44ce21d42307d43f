"""parallel-ssh's exceptions, and which of them the engine's errors become."""

from __future__ import annotations

import builtins

from ... import _errors

ConnectionError = builtins.ConnectionError


class NoIPv6AddressFoundError(Exception):
    """A host has no IPv6 address."""


class UnknownHostError(Exception):
    """A host's name has no address."""


class AuthenticationError(Exception):
    """The server let nobody in with what it was shown."""


class SSHError(Exception):
    """The protocol failed."""


class HostArgumentError(Exception):
    """The arguments for hosts do not match the hosts."""


class SessionError(Exception):
    """A session was not opened."""


class SFTPError(Exception):
    """Files could not be reached."""


class SFTPIOError(SFTPError):
    """The server did not do something to a file."""


class ProxyError(Exception):
    """The proxy host could not be reached, or not let in to."""


class Timeout(Exception):
    """Something took longer than it may."""


class SCPError(Exception):
    """A file could not be copied."""


class PKeyFileError(Exception):
    """There is no such private key."""


class ShellError(Exception):
    """A shell took no command."""


class HostConfigError(Exception):
    """``host_config`` is no list."""


class InvalidAPIUseError(Exception):
    """What was asked for makes no sense."""


UnknownHostException = UnknownHostError
ConnectionErrorException = ConnectionError
AuthenticationException = AuthenticationError
SSHException = SSHError
HostArgumentException = HostArgumentError


def translated(error: _errors.Error, host: str, port: int) -> Exception:
    """An error of the engine as parallel-ssh's."""
    text = str(error)
    if isinstance(error, _errors.TimeoutError):
        return Timeout(text, host, port)
    if isinstance(error, _errors.NetworkError):
        return (UnknownHostError if text.startswith("looking up ") else ConnectionError)(text, host, port)
    if isinstance(error, _errors.AuthenticationError):
        return AuthenticationError(text, host, port)
    if isinstance(error, _errors.FileError):
        return SFTPIOError(text, host)
    if isinstance(error, _errors.LimitError):
        return SessionError(text, host)
    return SSHError(text, host)
