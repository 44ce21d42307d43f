"""Strategies: which ways of logging in are tried, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .agent import AgentKey
from .pkey import PKey
from .ssh_exception import AuthenticationException
from .transport import Transport
from .util import get_logger


class AuthSource:
    """One way of logging in."""

    def __init__(self, username: str) -> None:
        self.username = username

    def authenticate(self, transport: Transport) -> list[str]:
        """Logs in; raises if the server does not let it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._repr()

    def _repr(self, **known: object) -> str:
        """Its name and what is known of it."""
        told = ", ".join(f"{name}={value!r}" for name, value in known.items())
        return f"{type(self).__name__}({told})"


class NoneAuth(AuthSource):
    """Without anything."""

    def authenticate(self, transport: Transport) -> list[str]:
        return transport.auth_none(self.username)


class Password(AuthSource):
    """With a password, which is asked for when it is needed."""

    def __init__(self, username: str, password_getter: Callable[[], str]) -> None:
        super().__init__(username)
        self.password_getter = password_getter

    def authenticate(self, transport: Transport) -> list[str]:
        return transport.auth_password(self.username, self.password_getter())

    def __repr__(self) -> str:
        return self._repr(user=self.username)


class PrivateKey(AuthSource):
    """With a key."""

    pkey: PKey

    def authenticate(self, transport: Transport) -> list[str]:
        return transport.auth_publickey(self.username, self.pkey)


class InMemoryPrivateKey(PrivateKey):
    """With a key that is there already, or that the agent has."""

    def __init__(self, username: str, pkey: PKey) -> None:
        super().__init__(username)
        self.pkey = pkey

    def __repr__(self) -> str:
        return self._repr(pkey=self.pkey) + (" [agent]" if isinstance(self.pkey, AgentKey) else "")


class OnDiskPrivateKey(PrivateKey):
    """With a key of a file."""

    def __init__(self, username: str, source: str, path: Path | str, pkey: PKey) -> None:
        super().__init__(username)
        allowed = ("ssh-config", "python-config", "implicit-home")
        if source not in allowed:
            raise ValueError(f"source argument must be one of: {allowed!r}")
        self.source = source
        self.path = path
        self.pkey = pkey

    def __repr__(self) -> str:
        return self._repr(key=self.pkey, source=self.source, path=str(self.path))


class SourceResult(NamedTuple):
    """The result of one way to log in: the methods that are left, or why it failed."""

    source: AuthSource
    result: list[str] | Exception


class AuthResult(list[SourceResult]):
    """The attempts, in order."""

    def __init__(self, strategy: AuthStrategy, *args: Any) -> None:
        super().__init__(*args)
        self.strategy = strategy

    def __str__(self) -> str:
        return "\n".join(f"{tried.source} -> {tried.result or 'success'}" for tried in self)


class AuthFailure(AuthenticationException):
    """Nothing led in; ``result`` has what was tried."""

    def __init__(self, result: AuthResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return f"\n{self.result}"


class AuthStrategy:
    """The ways to log in, in the order in which they are tried: ``get_sources`` tells, in a class of one's own."""

    def __init__(self, ssh_config: Any) -> None:
        self.ssh_config = ssh_config
        self.log = get_logger("paramiko.auth_strategy")

    def get_sources(self) -> Iterable[AuthSource]:
        """The ways, in the order in which they are tried."""
        raise NotImplementedError

    def authenticate(self, transport: Transport) -> AuthResult:
        """Tries them until one leads in."""
        tried = AuthResult(self)
        for source in self.get_sources():
            self.log.debug(f"Trying {source}")
            try:
                tried.append(SourceResult(source, source.authenticate(transport)))
            except Exception as error:
                self.log.info(f"Authentication via {source} failed with {type(error).__name__}")
                tried.append(SourceResult(source, error))
            else:
                return tried
        raise AuthFailure(tried)
