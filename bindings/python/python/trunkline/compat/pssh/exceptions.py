"""parallel-ssh's exceptions, and which of them the engine's errors become."""

from __future__ import annotations

import builtins
import errno
import os

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
    """``host_config`` is not a list."""


class InvalidAPIUseError(Exception):
    """The request makes no sense."""


UnknownHostException = UnknownHostError
ConnectionErrorException = ConnectionError
AuthenticationException = AuthenticationError
SSHException = SSHError
HostArgumentException = HostArgumentError


class ConnectTimeout(Timeout, ConnectionError):
    """A host did not answer in time, which parallel-ssh tells by either class."""

    def __init__(self, *arguments: object) -> None:
        super().__init__()
        # OSError would take them for an errno and a file's name.
        self.args = arguments


def connecting(error: Exception, host: str, port: int, attempt: int, attempts: int) -> Exception:
    """Return the reason why a host was not connected to, in parallel-ssh's form: a text, and what fills it in."""
    if isinstance(error, _errors.AuthenticationError):
        text = "Authentication error while connecting to %s:%s - %s - retries %s/%s"
        return AuthenticationError(text, host, port, error, attempt, attempts)
    if isinstance(error, _errors.UnknownHostError):
        # As the system says it.
        words = str(error).rpartition(": ")[2]
        return UnknownHostError("Unknown host %s - %s - retry %s/%s", host, words, attempt, attempts)
    if isinstance(error, _errors.NetworkError) and error.errno == errno.ECONNREFUSED:
        refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        refused.args += (host, port)
        return refused
    if isinstance(error, _errors.NetworkError):
        words = os.strerror(error.errno) if error.errno else str(error)
        return ConnectionError("Error connecting to host '%s:%s' - %s - retry %s/%s", host, port, words, attempt, attempts)
    kind = ConnectTimeout if isinstance(error, _errors.TimeoutError) else SSHError
    return kind("Error connecting to host %s:%s - %s", host, port, error)


def running(error: Exception) -> Exception:
    """Return the reason why a session was not opened."""
    return Timeout(str(error)) if isinstance(error, _errors.TimeoutError) else SessionError(error)
