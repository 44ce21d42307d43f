"""``SSHClient``: one host."""

from __future__ import annotations

import getpass
import os
import posixpath
import socket
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .... import _errors, _native
from ...._files import copied, copying, remote
from ...._private import Explicit
from ...._result import Terminal, wanted
from .._jobs import Pool, Steps
from ..exceptions import (
    ConnectionError,
    InvalidAPIUseError,
    NoIPv6AddressFoundError,
    PKeyFileError,
    ProxyError,
    Timeout,
    translated,
)
from ..output import Channel, HostOutput
from ..utils import logger

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")

#: As parallel-ssh has them.
DEFAULT_RETRIES = 3
RETRY_DELAY = 5

_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ed25519")


class SSHClient:
    """A connection to one host, which is made at once. See ``ParallelSSHClient`` for the arguments.

    A host that known_hosts list with another key is refused. One that they do not list is believed, as by parallel-ssh, and
    its key is remembered for as long as the client lives: when it connects again, another key is refused.
    """

    def __init__(
        self,
        host: str,
        user: str | None = None,
        password: str | None = None,
        port: int | None = None,
        pkey: str | bytes | None = None,
        alias: str | None = None,
        num_retries: int = DEFAULT_RETRIES,
        retry_delay: float = RETRY_DELAY,
        allow_agent: bool = True,
        timeout: float | None = None,
        forward_ssh_agent: bool = False,
        proxy_host: str | None = None,
        proxy_port: int | None = None,
        proxy_pkey: str | bytes | None = None,
        proxy_user: str | None = None,
        proxy_password: str | None = None,
        keepalive_seconds: float = 60,
        identity_auth: bool = True,
        ipv6_only: bool = False,
        compress: bool = False,
        keyboard_interactive: bool = False,
        _pool: Pool | None = None,
    ) -> None:
        if keyboard_interactive and not password:
            raise InvalidAPIUseError("keyboard_interactive needs a password")
        self.host = host
        self.port = port or 22
        self.alias = alias
        self.user = user or getpass.getuser()
        self.password = password
        self.timeout = timeout
        self.num_retries = num_retries
        self.retry_delay = retry_delay
        self._keepalive = keepalive_seconds
        self._ipv6_only = ipv6_only
        self._compress = compress
        self._agent = os.environ.get("SSH_AUTH_SOCK") if allow_agent and pkey is None else None
        self._forward_agent = forward_ssh_agent
        self._keys = keys(pkey, identity_auth)
        self._native: _native.PrivateHost | None = None
        self._sftp: _native.Sftp | None = None
        self._proxy: SSHClient | None = None
        self._host_key = _HostKey()
        self.pool = _pool or Pool(1)
        if proxy_host is not None:
            self._proxy = SSHClient(
                proxy_host,
                user=proxy_user,
                password=proxy_password,
                port=proxy_port,
                pkey=proxy_pkey,
                num_retries=num_retries,
                retry_delay=retry_delay,
                allow_agent=allow_agent,
                timeout=timeout,
                keepalive_seconds=keepalive_seconds,
                identity_auth=identity_auth,
                _pool=self.pool,
            )
        if _pool is None:
            self._now(self.connected())

    # What a pool runs: each is a job's steps.

    def connected(self) -> Steps[_native.PrivateHost]:
        """Connects, unless it is connected."""
        if self._native is not None and self._native.is_ready():
            return self._native
        self._sftp = None
        for attempt in range(1, max(1, self.num_retries) + 1):
            try:
                self._native = yield from self._connected()
                return self._native
            except _errors.Error as error:
                failure = translated(error, self.host, self.port)
                # A wrong password is as wrong the next time, and locks accounts; so is a changed host key.
                if attempt >= self.num_retries or not error.may_pass:
                    raise failure from error
                logger.debug("%s: %s; trying again", self.host, error)
            yield self.retry_delay
        raise ConnectionError(f"{self.host} was not connected to")

    def _connected(self) -> Steps[_native.PrivateHost]:
        over: _native.Session | None = None
        if self._proxy is not None:
            try:
                proxy = yield from self._proxy.connected()
                over = yield proxy.tunnel(self.host, self.port, ("127.0.0.1", 0))
            except Exception as error:
                raise ProxyError(str(error), self._proxy.host) from error
        explicit: Explicit = {
            "host": self._ipv6_address() if self._ipv6_only else self.host,
            "port": self.port,
            "user": self.user,
            "timeout": self.timeout,
            "compress": self._compress,
            "agent": self._agent,
            "given_keys_only": self._agent is None,
            "forward_agent": self._forward_agent and self._agent is not None,
            "answers": self.password is not None,
            "certificates": [],
            "known_hosts": [os.path.expanduser("~/.ssh/known_hosts")],
            "known_types": [],
            "disabled": [],
        }
        host = _native.PrivateHost(explicit, self._keys, self._host_key, _answers(self.password), over)
        try:
            yield host.ready(self.timeout)
        except BaseException:
            host.close()
            raise
        host.keep_alive(self._keepalive)
        return host

    def ran(
        self,
        command: str | None,
        shell: str | None,
        sudo: bool,
        user: str | None,
        pty: bool,
        encoding: str,
        timeout: float | None,
    ) -> Steps[HostOutput]:
        """Starts a command, or a shell."""
        line = None if command is None else _command(command, shell, sudo, user).encode(encoding)
        host = yield from self.connected()
        try:
            session: _native.Session = yield host.start(wanted(line, None, Terminal() if pty else False))
            yield session.started()
        except _errors.Error as error:
            raise translated(error, self.host, self.port) from error
        channel = Channel(session, self.pool)
        return HostOutput(
            self.host,
            channel,
            self,
            alias=self.alias,
            encoding=encoding,
            read_timeout=timeout if timeout is not None else self.timeout,
            fully_qualified_command=line,
        )

    def copied(self, source: str, target: str, recurse: bool, upload: bool) -> Steps[None]:
        """Copies a file or a tree; folders that it goes to are made."""
        if upload and os.path.isdir(source) and not recurse:
            raise ValueError(f"{source} is a directory: set recurse to copy it")
        host = yield from self.connected()
        try:
            if self._sftp is None:
                self._sftp = yield host.sftp()
            sftp = self._sftp
            if upload:
                sources = [os.path.join(source, name) for name in os.listdir(source)] if os.path.isdir(source) else [source]
                yield from _made(sftp, target if os.path.isdir(source) else posixpath.dirname(target))
            else:
                about = yield sftp.stat(remote(source), True)
                is_folder = (about[3] or 0) & 0o170000 == 0o040000
                if is_folder and not recurse:
                    raise ValueError(f"{source} is a directory: set recurse to copy it")
                sources = [source]
                os.makedirs(target if is_folder else os.path.dirname(os.path.abspath(target)), exist_ok=True)
                if is_folder:
                    names = yield sftp.names(remote(source), False)
                    sources = [posixpath.join(source, os.fsdecode(name)) for name, _ in names]
            if sources:
                copy = sftp.copy([remote(each) for each in sources], remote(target), upload, copying(recursive=recurse))
                copied((yield copy))
        except _errors.Error as error:
            raise translated(error, self.host, self.port) from error

    # The same for one host.

    def run_command(
        self,
        command: str,
        sudo: bool = False,
        user: str | None = None,
        use_pty: bool = False,
        shell: str | None = None,
        encoding: str = "utf-8",
        timeout: float | None = None,
        read_timeout: float | None = None,
    ) -> HostOutput:
        """Starts a command."""
        return self._now(self.ran(command, shell, sudo, user, use_pty, encoding, read_timeout or timeout))

    def wait_finished(self, host_output: HostOutput, timeout: float | None = None) -> None:
        """Waits until a command has ended. ``Timeout`` after ``timeout`` seconds."""
        channel = host_output.channel
        if channel is not None and not self.pool.wait(lambda: channel.ended, timeout):
            raise Timeout(f"the command has not ended within {timeout} s", self.host)

    def finished(self, channel: Channel | None) -> bool:
        """Whether a command has ended."""
        return channel is None or channel.eof()

    def get_exit_status(self, channel: Channel) -> int | None:
        """A command's status; ``None`` while it runs."""
        return channel.status if channel.eof() else None

    def close_channel(self, channel: Channel) -> None:
        """Ends a command."""
        channel.close()

    def open_shell(self, encoding: str = "utf-8", read_timeout: float | None = None) -> InteractiveShell:
        """Opens a shell that commands are given to one after the other."""
        return InteractiveShell(self._now(self.ran(None, None, False, None, False, encoding, read_timeout)))

    def copy_file(self, local_file: str, remote_file: str, recurse: bool = False) -> None:
        """Copies a file to the host, or with ``recurse`` a tree."""
        self._now(self.copied(local_file, remote_file, recurse, True))

    def copy_remote_file(self, remote_file: str, local_file: str, recurse: bool = False, encoding: str = "utf-8") -> None:
        """Copies a file from the host, or with ``recurse`` a tree."""
        self._now(self.copied(remote_file, local_file, recurse, False))

    def scp_send(self, local_file: str, remote_file: str, recurse: bool = False) -> None:
        """As ``copy_file``, over SFTP too."""
        self.copy_file(local_file, remote_file, recurse)

    def scp_recv(self, remote_file: str, local_file: str, recurse: bool = False, encoding: str = "utf-8") -> None:
        """As ``copy_remote_file``, over SFTP too."""
        self.copy_remote_file(remote_file, local_file, recurse)

    def disconnect(self) -> None:
        """Ends the connection."""
        self._sftp = None
        if self._native is not None:
            self._native.close()
            self._native = None
        if self._proxy is not None:
            self._proxy.disconnect()

    def _now(self, steps: Steps[_T]) -> _T:
        return self.pool.spawn(steps).get()

    def _ipv6_address(self) -> str:
        try:
            return str(socket.getaddrinfo(self.host, self.port, socket.AF_INET6, socket.SOCK_STREAM)[0][4][0])
        except socket.gaierror as error:
            raise NoIPv6AddressFoundError(f"{self.host} has no IPv6 address", self.host, self.port) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.disconnect()


class InteractiveShell:
    """A shell. ``output`` has what its commands answer; leaving a ``with`` block waits for them."""

    def __init__(self, output: HostOutput) -> None:
        self.output = output

    @property
    def stdout(self) -> Any:
        return self.output.stdout

    @property
    def stderr(self) -> Any:
        return self.output.stderr

    @property
    def stdin(self) -> Any:
        return self.output.stdin

    @property
    def exit_code(self) -> int | None:
        return self.output.exit_code

    def run(self, cmd: str) -> None:
        """Gives the shell a command."""
        self._channel.write(cmd.encode(self.output.encoding) + b"\n")

    def close(self) -> None:
        """Waits for its commands, and ends it."""
        channel = self._channel
        if not channel.ended:
            channel.send_eof()
            channel.pool.wait(lambda: channel.ended)

    @property
    def _channel(self) -> Channel:
        assert self.output.channel is not None
        return self.output.channel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def keys(pkey: str | bytes | None, identity_auth: bool) -> list[_native.Key]:
    """The keys to log in with: the one that was given, or else the user's own."""
    if isinstance(pkey, bytes):
        return [_key("a key in memory", pkey)]
    if pkey is not None:
        path = os.path.normpath(os.path.expanduser(pkey))
        if not os.path.exists(path):
            raise PKeyFileError(f"there is no file {path}", path)
        with open(path, "rb") as file:
            return [_key(path, file.read())]
    found = []
    for name in _IDENTITIES if identity_auth else ():
        path = os.path.expanduser(f"~/.ssh/{name}")
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found.append(_key(path, file.read()))
    return found


def _key(name: str, content: bytes) -> _native.Key:
    try:
        return _native.Key(name, content)
    except ValueError as error:
        raise PKeyFileError(str(error)) from error


class _HostKey:
    """The key by which a host that known_hosts do not list is known while its client lives. It does not keep the client."""

    def __init__(self) -> None:
        self._first: bytes | None = None

    def __call__(self, host: str, key: bytes, objection: tuple[bool, str] | None) -> bool:
        """Whether to believe a key."""
        if objection is not None:
            is_unknown, _ = objection
            if not is_unknown or self._first not in (None, key):
                return False
        self._first = key
        return True


def _answers(password: str | None) -> Callable[[str, str, bool], str | None]:
    """Answers the server's questions, without keeping the client."""
    return lambda kind, text, echo: None if echo or kind == "passphrase" else password


def _command(command: str, shell: str | None, sudo: bool, user: str | None) -> str:
    """The line that parallel-ssh sends."""
    if not (sudo or user or shell):
        return command
    prefix = f"sudo -u {user} -S " if user else "sudo -S " if sudo else ""
    return f"{prefix}{shell or '$SHELL -c'} '{command}'"


def _made(sftp: _native.Sftp, folder: str) -> Steps[None]:
    """Makes a folder and those above it."""
    if folder in ("", "/"):
        return
    try:
        yield sftp.stat(remote(folder), True)
    except _errors.NoSuchFileError:
        yield from _made(sftp, posixpath.dirname(folder))
        try:
            yield sftp.mkdir(remote(folder), None)
        except _errors.FileError:
            # Another job may have made it meanwhile: if not, what is copied into it says so.
            yield sftp.stat(remote(folder), True)
