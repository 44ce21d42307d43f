"""One log-in: what it is made with, and what the engine asks meanwhile. It knows nothing of the transport that it is for,
so that a transport that nobody has any more is gone."""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ... import _errors, _native
from ..._private import Explicit, Step
from .pkey import PKey
from .ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    NoValidConnectionsError,
    SSHException,
    translated,
)

#: Answers the questions of keyboard-interactive authentication: title, instructions, and each question with whether its
#: answer may be seen.
Handler = Callable[[str, str, Sequence["tuple[str, bool]"]], Sequence[str]]


#: What Paramiko says when the server ends the connection during authentication.
_HUNG_UP = "Authentication failed: transport shut down or saw EOF"


@dataclass
class Login:
    """Makes connections."""

    explicit: Explicit
    keys: Sequence[PKey]
    password: str | None
    handler: Handler | None
    #: Raises for a host key that known_hosts do not hold and that is not to be believed.
    verify: Callable[[PKey], object] | None
    over: _native.Session | _native.Handover | None
    #: The host key that was shown.
    shown: PKey | None = None
    #: When that was, by the monotonic clock.
    shown_at: float | None = None
    #: The one that was believed, and is for further connections too.
    believed: PKey | None = None
    #: The algorithm of the last signature that Python made.
    signed_as: str = ""
    _refused: list[Exception] = field(default_factory=list)

    def connect(self, first: float | None, then: float | None) -> _native.PrivateHost:
        """Connects, with so many seconds until the server's host key is there and for the log-in. Raises Paramiko's
        exceptions."""
        host = self._host(self.explicit, self.over)
        with self._ended_with(host):
            self._wait(host.ready, first, then)
        return host

    def begin(self, first: float | None, then: float | None) -> _native.PrivateHost:
        """Connects as far as the server can be shown something to log in with, by ``show``."""
        host = self._host({**self.explicit, "led": True}, self.over)
        with self._ended_with(host):
            self._wait(host.turn, first, then)
        return host

    def show(self, host: _native.PrivateHost, step: Step, limit: float | None) -> tuple[list[str] | None, bool] | None:
        """Shows the server something: ``None`` if that leads in, else the methods that it takes, and whether what was shown
        is right but not enough."""
        with self._ended_with(host):
            host.step(step)
            try:
                turn = host.turn(limit).wait()
            except _errors.TimeoutError:
                raise AuthenticationException("Authentication timeout.") from None
        if self._refused:
            raise self._refused.pop() from None
        return turn

    def with_step(self, step: Step, key: PKey | None) -> None:
        """Keeps what the server has taken, for further connections."""
        self.explicit = {
            **self.explicit,
            "user": step["user"],
            "answers": self.explicit["answers"] or step["method"] in ("password", "keyboard-interactive"),
        }
        self.password = self.password if step["password"] is None else step["password"]
        if key is not None:
            certificate, agent = key.certificate, key.agent_socket
            self.explicit["certificates"] = [*self.explicit["certificates"], *([certificate] if certificate else [])]
            self.explicit["agent"] = self.explicit["agent"] or agent
            self.keys = [*self.keys, key]

    def signer(self, key: PKey) -> Callable[[bytes, str], bytes | None]:
        """Signs with a key; what that raises is raised by the log-in."""

        def sign(data: bytes, algorithm: str) -> bytes | None:
            self.signed_as = algorithm
            try:
                signed = key.sign_ssh_data(data, algorithm)
                return signed if isinstance(signed, bytes) else signed.asbytes()
            except Exception as error:
                self._refused.append(error)
                return None

        return sign

    def connect_lending(self) -> _native.PrivateHost:
        """Makes another connection, whose sessions are all lent the agent."""
        agent = self.explicit["agent"] or os.environ.get("SSH_AUTH_SOCK")
        explicit: Explicit = {**self.explicit, "forward_agent": True, "agent": agent}
        host = self._host(explicit)
        with self._ended_with(host):
            self._wait(host.ready, explicit["timeout"], explicit["timeout"])
        return host

    def _host(self, explicit: Explicit, over: _native.Session | _native.Handover | None = None) -> _native.PrivateHost:
        keys = [] if explicit["led"] else [key.native for key in self.keys]
        handler = None if self.handler is None and not explicit["led"] else self._handled
        return _native.PrivateHost(explicit, keys, self._judge, self._answer, over, handler)

    @contextmanager
    def _ended_with(self, host: _native.PrivateHost) -> Iterator[None]:
        """Raises what went wrong as Paramiko does, and ends the connection."""
        try:
            with translated():
                yield
        except BaseException as error:
            host.close()
            if self._refused:
                raise self._refused.pop() from None
            cause = error.__context__
            if isinstance(cause, _errors.AuthenticationError) and not cause.allowed:
                # It named no way to go on: it has ended the connection.
                raise AuthenticationException(_HUNG_UP) from None
            if isinstance(cause, _errors.NetworkError):
                raise self._unreachable(cause) from None
            raise

    def _wait(self, step: Callable[[float | None], _native.Operation[Any]], first: float | None, then: float | None) -> None:
        """Waits until it has come so far: ``first`` seconds for the host key, and from then on ``then`` for the log-in."""
        limit_of_key = math.inf if first is None else time.monotonic() + first
        limit_of_log_in = math.inf if then is None else then
        while True:
            now = time.monotonic()
            # Of a host key that is shown meanwhile, the log-in's time is not over before.
            end = min(limit_of_key, now + limit_of_log_in) if self.shown_at is None else self.shown_at + limit_of_log_in
            try:
                step(None if end == math.inf else max(end - now, 0.001)).wait()
                return
            except _errors.TimeoutError:
                if self.shown_at is None and time.monotonic() < limit_of_key:
                    continue
                if self.shown_at is None:
                    timeout = self.explicit["timeout"]
                    if timeout is not None and (first is None or first >= timeout):
                        raise
                    raise SSHException("Error reading SSH protocol banner: no answer in time") from None
                if time.monotonic() >= self.shown_at + limit_of_log_in:
                    raise AuthenticationException("Authentication timeout.") from None

    def _unreachable(self, cause: _errors.NetworkError) -> Exception:
        """A failure to connect as Paramiko tells it: a name that has no address, an address that cannot be reached, or what
        went wrong behind that."""
        text = str(cause)
        if isinstance(cause, _errors.UnknownHostError):
            return socket.gaierror(socket.EAI_NONAME, text)
        if cause.address is not None:
            number = cause.errno or errno.EIO
            return NoValidConnectionsError({cause.address: OSError(number, os.strerror(number))})
        if self.shown is not None:
            # As servers do who have seen enough wrong passwords.
            return AuthenticationException(_HUNG_UP)
        # Servers close a connection before they introduce themselves when too many log in at once.
        return SSHException(f"Error reading SSH protocol banner: {text}")

    def _judge(self, host: str, blob: bytes, objection: tuple[bool, str] | None) -> bool:
        """An opinion on the host key, of which known_hosts have said what they have against it."""
        key = self.shown = PKey.from_blob(blob)
        self.shown_at = time.monotonic()
        if objection is None or key == self.believed:
            return True
        is_unknown, text = objection
        try:
            if not is_unknown:
                raise BadHostKeyException(host, key, None, text)
            if self.verify is not None:
                self.verify(key)
        except Exception as error:
            self._refused.append(error)
            return False
        self.believed = key
        return True

    def _handled(self, title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> Sequence[str] | None:
        """The handler's answers; what it raises is raised by the log-in."""
        try:
            return self.handler(title, instructions, prompts) if self.handler is not None else None
        except Exception as error:
            self._refused.append(error)
            return None

    def _answer(self, kind: str, text: str, echo: bool) -> str | None:
        if kind == "passphrase":
            return next((key.passphrase for key in self.keys if f"'{key.label}'" in text), None)
        return self.password if kind in ("password", "keyboard-interactive") and not echo else None
