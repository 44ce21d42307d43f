"""``SSHClient``: a host, from its name to sessions on it."""

from __future__ import annotations

import getpass
import logging
import os
import warnings
import weakref
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ... import _errors
from ._stream import Stream
from .agent import Agent
from .channel import Channel, ChannelFile, ChannelStderrFile, ChannelStdinFile
from .hostkeys import HostKeys
from .pkey import PKey, open_key
from .proxy import ProxyCommand
from .sftp_client import SFTPClient
from .ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    BadHostKeyException,
    PasswordRequiredException,
    SSHException,
)
from .transport import ClientAddress, Transport
from .util import ClosingContextManager

if TYPE_CHECKING:
    from .auth_strategy import AuthResult, AuthStrategy

#: Those of ssh's own that the engine can use, in ssh's order.
_DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")


#: How the names of certificates' files end.
_CERTIFICATE = "-cert.pub"


class MissingHostKeyPolicy:
    """Decides about hosts that are not known: raising refuses one."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        """Called in a thread of the engine's."""


class AutoAddPolicy(MissingHostKeyPolicy):
    """Believes the host and remembers it, in the file of ``load_host_keys`` too."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        client.get_host_keys().add(hostname, key.get_name(), key)
        if client.host_keys_filename is not None:
            client.save_host_keys(client.host_keys_filename)
        shown = hexlify(key.get_fingerprint())
        client._log(logging.DEBUG, f"Adding {key.get_name()} host key for {hostname}: {shown!r}")


class RejectPolicy(MissingHostKeyPolicy):
    """Refuses the host."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        shown = hexlify(key.get_fingerprint())
        client._log(logging.DEBUG, f"Rejecting {key.get_name()} host key for {hostname}: {shown!r}")
        raise SSHException(f"Server {hostname!r} not found in known_hosts (it showed {key.fingerprint})")


class WarningPolicy(MissingHostKeyPolicy):
    """Warns, and believes the host."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        warnings.warn(f"Unknown {key.get_name()} host key for {hostname}: {key.fingerprint}", stacklevel=2)


class SSHClient(ClosingContextManager):
    """A connection to a host, which nobody shares."""

    def __init__(self) -> None:
        self._transport: Transport | None = None
        self._policy: MissingHostKeyPolicy = RejectPolicy()
        #: What ``load_system_host_keys`` was told; and with that, what ``load_host_keys`` was.
        self._system_files: list[str] = []
        self._known_hosts: list[str] = []
        self._host_keys = HostKeys()
        self.host_keys_filename: str | None = None
        self._log_channel: str | None = None

    # Host keys.

    def load_system_host_keys(self, filename: str | None = None) -> None:
        """Believes what the user's known_hosts say, or another file, which must be there."""
        path = os.path.expanduser("~/.ssh/known_hosts") if filename is None else os.path.abspath(filename)
        if filename is not None:
            with open(filename):
                pass
        self._system_files.append(path)
        self._known_hosts.append(path)

    def load_host_keys(self, filename: str) -> None:
        """Believes what a file says; ``AutoAddPolicy`` adds to it."""
        self._host_keys.load(filename)
        self._known_hosts.append(os.path.abspath(filename))
        self.host_keys_filename = filename

    def save_host_keys(self, filename: str) -> None:
        """Writes the keys of ``get_host_keys`` to a file."""
        if self.host_keys_filename is not None:
            # Another program may have added some.
            others = HostKeys(self.host_keys_filename)
            for hostname, keys in others.items():
                for keytype, key in keys.items():
                    if not self._host_keys.lookup(hostname):
                        self._host_keys.add(hostname, keytype, key)
        self._host_keys.save(filename)

    def get_host_keys(self) -> HostKeys:
        """Return the keys that were loaded with ``load_host_keys`` or added since."""
        return self._host_keys

    def set_missing_host_key_policy(self, policy: MissingHostKeyPolicy | type[MissingHostKeyPolicy]) -> None:
        """Set the policy for unknown hosts."""
        self._policy = policy() if isinstance(policy, type) else policy

    # Connecting.

    def connect(
        self,
        hostname: str,
        port: int = 22,
        username: str | None = None,
        password: str | None = None,
        pkey: PKey | None = None,
        key_filename: str | Sequence[str] | None = None,
        timeout: float | None = None,
        allow_agent: bool = True,
        look_for_keys: bool = True,
        compress: bool = False,
        sock: Channel | ProxyCommand | Stream | None = None,
        banner_timeout: float | None = None,
        auth_timeout: float | None = None,
        channel_timeout: float | None = None,
        passphrase: str | None = None,
        disabled_algorithms: Mapping[str, Iterable[str]] | None = None,
        transport_factory: Callable[..., Transport] | None = None,
        auth_strategy: AuthStrategy | None = None,
        gss_auth: bool = False,
        gss_kex: bool = False,
        gss_deleg_creds: bool = True,
        gss_host: str | None = None,
        gss_trust_dns: bool = True,
    ) -> AuthResult | None:
        """Connects and logs in, with the first that the server takes: ``pkey``, keys of files, the agent's, those in
        ``~/.ssh``, the password. ssh_config takes no part.

        ``timeout`` is for all of it, in seconds; ``sock`` is talked over instead of a connection to ``hostname``.
        """
        if gss_auth or gss_kex:
            raise SSHException("GSSAPI is not available")
        shown_name = hostname if port == 22 else f"[{hostname}]:{port}"
        known: Mapping[str, PKey] = self._host_keys.lookup(shown_name) or {}

        # The engine keeps it, which must not keep the client.
        asked = weakref.ref(self)

        def verify(key: PKey) -> None:
            client = asked()
            if client is None:
                raise SSHException("the client is gone")
            known: Mapping[str, PKey] = client._host_keys.lookup(shown_name) or {}
            if not known:
                client._policy.missing_host_key(client, shown_name, key)
            elif known.get(key.get_name()) != key:
                # A host that is known by a key of another type is not an unknown host: an impostor chooses what he shows.
                raise BadHostKeyException(hostname, key, known.get(key.get_name()) or next(iter(known.values())))

        def prepare() -> Transport:
            transport = (transport_factory or Transport)(
                ClientAddress((hostname, port)), disabled_algorithms=disabled_algorithms
            )
            for name, limit in (("banner", banner_timeout), ("auth", auth_timeout), ("channel", channel_timeout)):
                if limit is not None:
                    setattr(transport, f"{name}_timeout", limit)
            if sock is not None:
                transport.over(sock)
            transport.use_compression(compress)
            if self._log_channel is not None:
                transport.set_log_channel(self._log_channel)
            transport.believe(verify, self._known_hosts, list(known))
            # Paramiko's clients connect before there is a transport.
            transport.hostname = None
            self._transport = transport
            return transport

        transport = prepare()
        if auth_strategy is not None:
            return auth_strategy.authenticate(transport=transport)
        passphrase = passphrase if passphrase is not None else password
        files = [key_filename] if isinstance(key_filename, (str, os.PathLike)) else list(key_filename or ())
        given = [*([] if pkey is None else [pkey]), *_opened(files, passphrase)]
        beside = (os.path.expanduser(f"~/.ssh/{name}") for name in _DEFAULT_KEYS)
        found = _opened([path for path in beside if os.path.isfile(path)], passphrase) if look_for_keys else []
        keys = [key for key in (*given, *found) if isinstance(key, PKey)]
        agent = os.environ.get("SSH_AUTH_SOCK") if allow_agent else None
        user = getpass.getuser() if username is None else username
        if any(key.signs_in_python for key in keys):
            shown_keys = [*given, *(_agents_keys() if agent is not None else ()), *found]
            _log_in_by_steps(transport, user, shown_keys, password, timeout)
            return None
        try:
            transport.log_in(user, keys=keys, password=password, agent=agent, timeout=timeout)
        except AuthenticationException as error:
            refusal = error.__context__
            if (
                password is not None
                and isinstance(refusal, _errors.AuthenticationError)
                and refusal.allowed
                and "password" not in refusal.allowed
            ):
                # Paramiko shows a password last, and whatever the server names: some take more than they name.
                if sock is not None or refusal.partial or "keyboard-interactive" in refusal.allowed:
                    raise BadAuthenticationType("Bad authentication type", list(refusal.allowed)) from None
                _log_in_by_steps(prepare(), user, (), password, timeout)
                return None
            # In Paramiko's order; it tells what became of the last one.
            shown = [
                *given,
                *(_agents_keys() if agent is not None else ()),
                *found,
                *(() if password is None else (password,)),
            ]
            if not shown:
                raise SSHException("No authentication methods available") from None
            if isinstance(shown[-1], Exception):
                raise shown[-1] from None
            raise
        return None

    def close(self) -> None:
        """Ends the connection and everything on it."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def get_transport(self) -> Transport | None:
        """The connection."""
        return self._transport

    # What runs on it.

    def _session(self, timeout: float | None = None) -> Channel:
        """A session that is opened with its command."""
        if self._transport is None:
            # As Paramiko's client says that it is closed.
            raise AttributeError("'NoneType' object has no attribute 'open_session'")
        return self._transport.session(timeout)

    def exec_command(
        self,
        command: str | bytes,
        bufsize: int = -1,
        timeout: float | None = None,
        get_pty: bool = False,
        environment: Mapping[str | bytes, str | bytes] | None = None,
    ) -> tuple[ChannelStdinFile, ChannelFile, ChannelStderrFile]:
        """Starts a command: its input, output and error output. ``timeout`` is for its start, and for each reading and
        writing of them."""
        channel = self._session(timeout)
        if get_pty:
            channel.get_pty()
        channel.settimeout(timeout)
        if environment:
            channel.update_environment(environment)
        channel.exec_command(command)
        return channel.makefile_stdin("wb", bufsize), channel.makefile("r", bufsize), channel.makefile_stderr("r", bufsize)

    def invoke_shell(
        self,
        term: str = "vt100",
        width: int = 80,
        height: int = 24,
        width_pixels: int = 0,
        height_pixels: int = 0,
        environment: Mapping[str | bytes, str | bytes] | None = None,
    ) -> Channel:
        """Starts the login shell on a terminal."""
        channel = self._session()
        channel.get_pty(term, width, height, width_pixels, height_pixels)
        if environment:
            channel.update_environment(environment)
        channel.invoke_shell()
        return channel

    def open_sftp(self) -> SFTPClient:
        """Opens an SFTP session."""
        return self._connected.open_sftp_client()

    def set_log_channel(self, name: str) -> None:
        """The logger of the connections that it makes; the engine's own is ``trunkline``."""
        self._log_channel = name

    def _log(self, level: int, msg: str | Sequence[str]) -> None:
        # Policies of programs' own use it, as Paramiko's do.
        self._connected._log(level, msg)

    @property
    def _system_host_keys(self) -> HostKeys:
        # Ansible's plugin for Paramiko writes them beside those that it learns. The engine reads the files by itself.
        keys = HostKeys()
        for filename in filter(os.path.exists, self._system_files):
            keys.load(filename)
        return keys

    @property
    def _host_keys_filename(self) -> str | None:
        # As they do this.
        return self.host_keys_filename

    @_host_keys_filename.setter
    def _host_keys_filename(self, filename: str | None) -> None:
        self.host_keys_filename = filename

    @property
    def _connected(self) -> Transport:
        # Of a client that is not connected, Paramiko's programs expect the AttributeError of None.
        return cast("Transport", self._transport)


def _log_in_by_steps(
    transport: Transport, user: str, keys: Iterable[PKey | Exception], password: str | None, timeout: float | None
) -> None:
    """Shows one key after the other, as Paramiko does, for keys that the engine does not sign with; then the password."""
    transport.start_client(timeout=timeout)
    failure: Exception = SSHException("No authentication methods available")
    left: list[str] = []
    for key in keys:
        if isinstance(key, Exception):
            failure = key
            continue
        try:
            left = transport.auth_publickey(user, key)
        except SSHException as error:
            failure = error
            continue
        if not left:
            return
        break
    try:
        if password is not None:
            left = transport.auth_password(user, password)
        elif left:
            left = transport.auth_interactive_dumb(user)
        else:
            raise failure
    except SSHException as error:
        raise error from None
    if left:
        raise AuthenticationException("Authentication failed.")


def _opened(paths: Iterable[str | os.PathLike[str]], passphrase: str | None) -> list[PKey | Exception]:
    """The keys in the files, and what is wrong with those that cannot be opened."""
    return [_key_of(os.path.expanduser(path), passphrase) for path in paths]


def _key_of(path: str, passphrase: str | None) -> PKey | Exception:
    certificate = None
    if path.endswith(_CERTIFICATE):
        # The key stands beside it.
        certificate, path = path, path[: -len(_CERTIFICATE)]
    try:
        key = open_key(path, passphrase)
        if certificate is not None:
            key.load_certificate(certificate)
    except PasswordRequiredException as error:
        return PasswordRequiredException(f"{path}: {error}")
    except (SSHException, OSError) as error:
        return error
    return key


def _agents_keys() -> Sequence[PKey]:
    """Return the agent's keys; the agent may have ended."""
    try:
        return Agent().get_keys()
    except (SSHException, OSError):
        return ()
