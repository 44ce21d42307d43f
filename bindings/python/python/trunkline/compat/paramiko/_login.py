"""One log-in: what it is made with, and what the engine asks meanwhile. It knows nothing of the transport that it is for,
so that a transport that nobody has any more is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ... import _errors, _native
from ..._private import Explicit
from .pkey import PKey
from .ssh_exception import BadHostKeyException, NoValidConnectionsError, SSHException, translated

#: Answers the questions of keyboard-interactive authentication: title, instructions, and each question with whether its
#: answer may be seen.
Handler = Callable[[str, str, Sequence["tuple[str, bool]"]], Sequence[str]]


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
    _refused: list[Exception] = field(default_factory=list)

    def connect(self) -> _native.PrivateHost:
        """Connects. Raises Paramiko's exceptions."""
        return self._ready(_native.PrivateHost(self.explicit, self._natives(), self._judge, self._answer, self.over))

    def connect_lending(self) -> _native.PrivateHost:
        """Makes another connection, whose sessions are all lent the agent."""
        if self.over is not None:
            raise SSHException("a connection that was made over a given socket cannot lend the agent")
        agent = self.explicit["agent"] or os.environ.get("SSH_AUTH_SOCK")
        explicit: Explicit = {**self.explicit, "forward_agent": True, "agent": agent}
        return self._ready(_native.PrivateHost(explicit, self._natives(), self._judge, self._answer))

    def _natives(self) -> list[_native.Key]:
        return [key.native for key in self.keys]

    def _ready(self, host: _native.PrivateHost) -> _native.PrivateHost:
        try:
            with translated():
                host.ready(self.explicit["timeout"]).wait()
        except BaseException as error:
            host.close()
            if self._refused:
                raise self._refused.pop() from None
            cause = error.__cause__
            if isinstance(cause, _errors.NetworkError):
                raise self._unreachable(cause) from cause
            raise
        return host

    def _unreachable(self, cause: _errors.NetworkError) -> Exception:
        """A failure to connect as Paramiko tells it: a name that has no address, an address that cannot be reached, or what
        went wrong behind that."""
        text = str(cause)
        if text.startswith("looking up "):
            return socket.gaierror(socket.EAI_NONAME, text)
        if text.startswith("connecting to "):
            return NoValidConnectionsError({(self.explicit["host"], self.explicit["port"]): cause})
        return SSHException(text)

    def _judge(self, host: str, blob: bytes, objection: tuple[bool, str] | None) -> bool:
        """An opinion on the host key, of which known_hosts have said what they have against it."""
        key = self.shown = PKey.from_blob(blob)
        if objection is None:
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
        return True

    def _answer(self, kind: str, text: str, echo: bool) -> str | None:
        if kind == "passphrase":
            return next((key.passphrase for key in self.keys if f"'{key.label}'" in text), None)
        if self.handler is not None and kind == "keyboard-interactive":
            return next(iter(self.handler("", "", [(text, echo)])), "")
        return self.password if kind in ("password", "keyboard-interactive") and not echo else None
