"""One host: what the clients of both names are."""

from __future__ import annotations

import codecs
import collections
import contextlib
import getpass
import logging
import os
import posixpath
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ..... import _errors, _native
from ....._files import attributes, copied, copying, remote
from ....._private import Explicit
from ....._result import Terminal, wanted
from ..._jobs import Linked, Pool, Steps
from ...constants import DEFAULT_RETRIES, RETRY_DELAY
from ...exceptions import (
    AuthenticationError,
    NoIPv6AddressFoundError,
    ProxyError,
    SCPError,
    SessionError,
    SFTPError,
    SFTPIOError,
    SSHError,
    Timeout,
    connecting,
    running,
)
from ...output import BufferData, HostOutput, HostOutputBuffers
from ...utils import host_logger
from ..common import has_answer, key_or_path, key_path
from ..reader import ConcurrentRWBuffer

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")

logger = logging.getLogger("pssh.clients.base.single")

#: What libssh2 returns where nothing is there yet.
_EAGAIN = -37

#: How long the end of a command is waited for whose output is over, in seconds: its status is on its way, unless the command
#: has only closed its output.
_END_IS_NEAR = 1


class BaseSSHClient:
    """A connection to one host, which is made at once. See ``ParallelSSHClient`` for the arguments.

    A host that known_hosts list with another key is refused. One that they do not list is believed, as by parallel-ssh, and
    its key is remembered for as long as the client lives: when it connects again, another key is refused.
    """

    IDENTITIES = tuple(
        os.path.expanduser(f"~/.ssh/{name}") for name in ("id_rsa", "id_dsa", "identity", "id_ecdsa", "id_ed25519")
    )

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
        proxy_host: str | None = None,
        proxy_port: int | None = None,
        identity_auth: bool = True,
        ipv6_only: bool = False,
        compress: bool = False,
        keyboard_interactive: bool = False,
        _proxy_user: str | None = None,
        _proxy_password: str | None = None,
        _proxy_pkey: str | bytes | None = None,
        _cert_file: str | bytes | None = None,
        _forward_ssh_agent: bool = False,
        _keepalive_seconds: float = 60,
        _pool: Pool | None = None,
    ) -> None:
        has_answer(keyboard_interactive, password)
        self.host = host
        self.alias = alias
        self.user = user or getpass.getuser()
        self.password = password
        self.port = port or 22
        self.pkey = key_or_path(pkey)
        self.num_retries = num_retries
        self.retry_delay = retry_delay
        self.timeout = timeout or None
        self.allow_agent = allow_agent
        self.identity_auth = identity_auth
        self.ipv6_only = ipv6_only
        self.compress = compress
        self.keyboard_interactive = keyboard_interactive
        self.forward_ssh_agent = _forward_ssh_agent
        self.keepalive_seconds = _keepalive_seconds
        self._certificate = key_path(_cert_file)
        self._keys = self._all_keys()
        self._native: _native.PrivateHost | None = None
        self._sftp: _native.Sftp | None = None
        self._proxy: BaseSSHClient | None = None
        self._host_key = _HostKey()
        #: The number of commands that have not ended, by connection.
        self._commands: collections.Counter[_native.PrivateHost] = collections.Counter()
        self.pool = _pool or Pool(1)
        if proxy_host is not None:
            self._proxy = BaseSSHClient(
                proxy_host,
                user=user if _proxy_user is None else _proxy_user,
                password=password if _proxy_password is None else _proxy_password,
                port=port if proxy_port is None else proxy_port,
                pkey=pkey if _proxy_pkey is None else _proxy_pkey,
                num_retries=num_retries,
                retry_delay=retry_delay,
                allow_agent=allow_agent,
                timeout=timeout,
                identity_auth=identity_auth,
                compress=compress,
                keyboard_interactive=keyboard_interactive,
                _keepalive_seconds=_keepalive_seconds,
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
        attempts = max(1, self.num_retries)
        for attempt in range(1, attempts + 1):
            try:
                self._native = yield from self._connected()
                return self._native
            except _errors.Error as error:
                failure = connecting(error, self.host, self.port, attempt, attempts)
                # A wrong password is as wrong the next time, and locks accounts; so is a changed host key.
                if attempt == attempts or not error.may_pass or isinstance(failure, ConnectionRefusedError):
                    raise failure from error
                logger.debug("%s: %s; trying again", self.host, error)
            yield self.retry_delay
        raise AssertionError("the last attempt returns or raises")

    def _connected(self) -> Steps[_native.PrivateHost]:
        over: _native.Session | None = None
        if self._proxy is not None:
            try:
                proxy = yield from self._proxy.connected()
                over = yield proxy.tunnel(self.host, self.port, ("127.0.0.1", 0))
            except Exception as error:
                raise ProxyError("Proxy authentication failed. Exception from tunnel client: %s", error) from error
        agent = os.environ.get("SSH_AUTH_SOCK") if self.allow_agent and self.pkey is None else None
        explicit: Explicit = {
            "host": self._ipv6_address() if self.ipv6_only else self.host,
            "port": self.port,
            "user": self.user,
            "timeout": self.timeout,
            "compress": self.compress,
            "agent": agent,
            "given_keys_only": agent is None,
            "forward_agent": self.forward_ssh_agent and agent is not None,
            # Beside a key the password is the key's passphrase, which is not for the server.
            "answers": self.password is not None and self.pkey is None,
            "certificates": [] if self._certificate is None else [self._certificate],
            "known_hosts": [os.path.expanduser("~/.ssh/known_hosts")],
            "known_types": [],
            "disabled": [],
            "disabled_signatures": [],
            "led": False,
        }
        answers = _answers(self.password, self.pkey is not None)
        host = _native.PrivateHost(explicit, self._keys, self._host_key, answers, over)
        try:
            yield host.ready(self.timeout)
        except BaseException:
            host.close()
            raise
        if self.keepalive_seconds:
            host.keep_alive(self.keepalive_seconds)
        return host

    def started(self, channel: Channel, command: bytes | None, terminal: bool) -> Steps[Channel]:
        """Starts a command, or a shell, on a channel."""
        host = yield from self.connected()
        try:
            session: _native.Session = yield host.start(wanted(command, None, Terminal() if terminal else False))
            yield session.started()
        except _errors.Error as error:
            raise running(error) from error
        channel.began(session, host)
        return channel

    def ran(
        self,
        command: str | None,
        shell: str | None,
        sudo: bool,
        user: str | None,
        pty: bool,
        encoding: str,
        read_timeout: float | None,
    ) -> Steps[HostOutput]:
        """Starts a command, or a shell."""
        codecs.lookup(encoding)
        line = None if command is None else _command(command, shell, sudo, user).encode(encoding)
        channel = yield from self.started(Channel(self), line, pty)
        return self._output(channel, encoding, read_timeout, line)

    def copied(
        self, source: str, target: str, recurse: bool, upload: bool, makes_directories: bool = True, sends_mode: bool = False
    ) -> Steps[None]:
        """Copies a file or a tree; directories that it goes to are made. A file that is there gets the source's mode if it
        ``sends_mode``."""
        if upload and os.path.isdir(source) and not recurse:
            raise ValueError("Recurse must be true if local_file is a directory.")
        host = yield from self.connected()
        try:
            sftp = yield from self._files(host)
            if upload:
                sources = [os.path.join(source, name) for name in os.listdir(source)] if os.path.isdir(source) else [source]
                if makes_directories:
                    yield from self._directory_made(sftp, target if os.path.isdir(source) else posixpath.dirname(target))
            else:
                about = yield sftp.stat(remote(source), True)
                is_directory = (about[3] or 0) & 0o170000 == 0o040000
                if is_directory and not recurse:
                    raise ValueError("Recurse must be true if remote_file is a directory.")
                sources = [source]
                os.makedirs(target if is_directory else os.path.dirname(os.path.abspath(target)), exist_ok=True)
                if is_directory:
                    names = yield sftp.names(remote(source), False)
                    sources = [posixpath.join(source, os.fsdecode(name)) for name, _, _ in names]
            if sources:
                mode = (yield from self._mode_sent(sftp, source, target)) if sends_mode else None
                copy = sftp.copy([remote(each) for each in sources], remote(target), upload, copying(recursive=recurse))
                copied((yield copy))
                if mode is not None:
                    yield sftp.setstat(remote(target), attributes(mode=mode))
        except _errors.NoSuchFileError as error:
            raise self._no_such_file(error, source, upload) from error
        except _errors.FileError as error:
            if isinstance(error.filename, str) and _is_here(error.filename, source, target, upload):
                raise OSError(error.errno, os.strerror(error.errno or 0), error.filename) from error
            told = "Error writing to remote file %s - %s" if upload else "Error reading from remote file %s - %s"
            raise SFTPIOError(told, target if upload else source, error) from error
        except _errors.Error as error:
            raise SSHError(str(error), self.host) from error

    def _mode_sent(self, sftp: _native.Sftp, source: str, target: str) -> Steps[int | None]:
        """The mode that a file is to have which is there, if it has another one. Who is not to read what comes cannot from
        now on."""
        try:
            found = (yield sftp.stat(remote(target), True))[3] or 0
            mode = os.stat(source).st_mode & 0o777
        except OSError:
            # A new file has the source's mode; of one that is not there, the copy tells.
            return None
        if not stat.S_ISREG(found) or found & 0o777 == mode:
            return None
        yield sftp.setstat(remote(target), attributes(mode=found & (mode | 0o600)))
        return mode

    def copied_by_scp(self, source: str, target: str, recurse: bool, upload: bool) -> Steps[None]:
        """As ``copied``, with SCP's way of naming and its exceptions."""
        if upload and os.path.isdir(source) and not recurse:
            raise ValueError("Recurse must be True if local_file is a directory.")
        if target.endswith("/") and not recurse:
            target += source.rpartition("/")[2]
        try:
            sends_mode = upload and not os.path.isdir(source)
            yield from self.copied(source, target, recurse, upload, recurse or not upload, sends_mode)
        except (SFTPError, SSHError, ValueError) as error:
            cause = error.__cause__ or error
            if upload:
                told = "Error opening remote file %s for writing on host %s - %s"
                raise SCPError(told, target, self.host, cause) from error
            if recurse:
                raise SCPError("Remote file or directory %s does not exist", source) from error
            raise SCPError("Error copying file %s from host %s - %s", source, self.host, cause) from error

    def _no_such_file(self, error: _errors.FileError, source: str, upload: bool) -> Exception:
        if upload and not os.path.exists(source):
            return FileNotFoundError(error.errno, os.strerror(error.errno or 0), source)
        if upload:
            return SFTPError(error)
        return SFTPIOError("Remote file or directory %s on host %s does not exist", source, self.host)

    def _directory_made(self, sftp: _native.Sftp, directory: str) -> Steps[None]:
        try:
            yield from _made(sftp, directory)
        except _errors.FileError as error:
            text = "Error occured creating directory %s on host %s - %s"
            raise SFTPIOError(text, directory, self.host, error) from error

    def _files(self, host: _native.PrivateHost) -> Steps[_native.Sftp]:
        if self._sftp is None:
            self._sftp = yield host.sftp()
        return self._sftp

    # The same for one host.

    def open_session(self) -> Channel:
        """A session, for one command or a shell."""
        self._now(self.connected())
        return Channel(self)

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
        """Starts a command. ``read_timeout`` is for reading its output, in seconds."""
        return self._now(self.ran(command, shell, sudo, user, use_pty, encoding, read_timeout or timeout))

    def execute(self, cmd: str | bytes, use_pty: bool = False, channel: Channel | None = None) -> Channel:
        """Starts a command on a session."""
        line = cmd.encode() if isinstance(cmd, str) else cmd
        return self._now(self.started(channel or Channel(self), line, use_pty))

    def open_shell(self, encoding: str = "utf-8", read_timeout: float | None = None) -> InteractiveShell:
        """Opens a shell that commands are given to one after the other."""
        return InteractiveShell(self.open_session(), self, encoding, read_timeout)

    def _output(self, channel: Channel, encoding: str, read_timeout: float | None, line: bytes | None = None) -> HostOutput:
        out, err = (BufferData(reader, reader.buffer) for reader in channel.readers)
        return HostOutput(
            self.host,
            channel,
            Stdin(channel, self),
            self,
            alias=self.alias,
            encoding=encoding,
            read_timeout=read_timeout,
            buffers=HostOutputBuffers(out, err),
            fully_qualified_command=line,
        )

    # What it says.

    def read_output(self, stdout_buffer: ConcurrentRWBuffer, timeout: float | None = None) -> Iterator[bytes]:
        """Lines as they come, without their ends. ``Timeout`` after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout

        def waiting(done: Callable[[], bool]) -> None:
            if not self.pool.wait(done, None if end is None else max(0.0, end - time.monotonic())):
                raise Timeout(f"no output within {timeout} s", self.host)

        rest: list[bytes] = []
        for data in stdout_buffer.pieces(waiting):
            *lines, last = data.split(b"\n")
            for line in lines:
                whole = b"".join((*rest, line))
                rest.clear()
                yield whole[:-1] if whole.endswith(b"\r") else whole
            if last:
                rest.append(last)
        if rest:
            yield b"".join(rest)

    def read_stderr(self, stderr_buffer: ConcurrentRWBuffer, timeout: float | None = None) -> Iterator[bytes]:
        """As ``read_output``."""
        return self.read_output(stderr_buffer, timeout)

    def read_output_buffer(
        self,
        output_buffer: Iterable[bytes],
        prefix: str | None = None,
        callback: Callable[..., object] | None = None,
        callback_args: Iterable[Any] | None = None,
        encoding: str = "utf-8",
    ) -> Iterator[str]:
        """Lines as text, which are logged too. ``callback`` is called behind the last one."""
        for line in output_buffer:
            text = line.decode(encoding)
            host_logger.info("[%s]%s\t%s", self.host, prefix or "", text)
            yield text
        if callback is not None:
            callback(*(callback_args or ()))

    # How it ends.

    def wait_finished(self, host_output: HostOutput, timeout: float | None = None) -> None:
        """Waits until a command has ended. ``Timeout`` after ``timeout`` seconds."""
        if not isinstance(host_output, HostOutput):
            raise ValueError(f"{host_output} is not a HostOutput object")
        channel = host_output.channel
        if channel is not None and not self.pool.wait(lambda: channel.ended, timeout):
            raise Timeout(f"the command has not ended within {timeout} s", self.host)

    def finished(self, channel: Channel | None) -> bool | None:
        """Whether a command has ended; ``None`` for none."""
        return None if channel is None else channel.eof()

    def get_exit_status(self, channel: Channel) -> int | None:
        """A command's status; ``None`` while it runs."""
        status = channel.get_exit_status()
        return status if channel.eof() else None

    def close_channel(self, channel: Channel) -> None:
        """Ends a command."""
        channel.close()

    # Files.

    def copy_file(self, local_file: str, remote_file: str, recurse: bool = False, sftp: _native.Sftp | None = None) -> None:
        """Copies a file to the host, or with ``recurse`` a tree."""
        self._now(self.copied(local_file, remote_file, recurse, True))

    def copy_remote_file(
        self,
        remote_file: str,
        local_file: str,
        recurse: bool = False,
        sftp: _native.Sftp | None = None,
        encoding: str = "utf-8",
    ) -> None:
        """Copies a file from the host, or with ``recurse`` a tree."""
        self._now(self.copied(remote_file, local_file, recurse, False))

    def scp_send(self, local_file: str, remote_file: str, recurse: bool = False, sftp: _native.Sftp | None = None) -> None:
        """As ``copy_file``, over SFTP too; a file goes into a ``remote_file`` that ends with a slash."""
        self._now(self.copied_by_scp(local_file, remote_file, recurse, True))

    def scp_recv(
        self,
        remote_file: str,
        local_file: str,
        recurse: bool = False,
        sftp: _native.Sftp | None = None,
        encoding: str = "utf-8",
    ) -> None:
        """As ``copy_remote_file``, over SFTP too; a file goes into a ``local_file`` that ends with a slash."""
        self._now(self.copied_by_scp(remote_file, local_file, recurse, False))

    def sftp_put(self, sftp: _native.Sftp | None, local_file: str, remote_file: str) -> None:
        """Copies one file to the host."""
        self.copy_file(local_file, remote_file)

    def sftp_get(self, sftp: _native.Sftp | None, remote_file: str, local_file: str) -> None:
        """Copies one file from the host."""
        self.copy_remote_file(remote_file, local_file)

    def mkdir(self, sftp: _native.Sftp | None, directory: str) -> None:
        """Makes a directory and those above it."""

        def made() -> Steps[None]:
            host = yield from self.connected()
            sftp = yield from self._files(host)
            yield from self._directory_made(sftp, directory)

        self._now(made())

    # The connection.

    def auth(self) -> None:
        """Nothing: a client is logged in."""

    def configure_keepalive(self) -> None:
        """Looks every ``keepalive_seconds`` whether the server still answers."""
        if self._native is not None:
            self._native.keep_alive(self.keepalive_seconds)

    def poll(self, timeout: float | None = None) -> None:
        """Takes what has come."""
        self.pool.turn()

    def eagain(self, func: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Calls a channel's method, each of which does all of its work at once."""
        return func(*args, **kwargs)

    def eagain_write(self, write_func: Callable[[bytes], Any], data: bytes) -> None:
        """As ``eagain``."""
        write_func(data)

    def disconnect(self) -> None:
        """Ends the connection when its commands have ended: what they write can still be read."""
        host, self._native, self._sftp = self._native, None, None
        if host is not None:
            self._close_unused(host)
        if self._proxy is not None:
            self._proxy.disconnect()

    def _disconnect(self) -> None:
        """Ends the connection now."""
        for host in (self._native, *self._commands):
            if host is not None:
                host.close()
        self.disconnect()

    def begins(self, host: _native.PrivateHost) -> None:
        """Notes that a command has begun over a connection."""
        self._commands[host] += 1

    def ends(self, host: _native.PrivateHost) -> None:
        """Notes that a command over a connection has ended."""
        self._commands[host] -= 1
        if host is not self._native:
            self._close_unused(host)

    def _close_unused(self, host: _native.PrivateHost) -> None:
        if not self._commands[host]:
            del self._commands[host]
            host.close()

    def tunnel(self, host: str, port: int, origin: tuple[str, int]) -> _native.Session:
        """A connection from the host to another one, for ``tunnel.TunnelServer``, whose threads leave the pool alone."""
        if self._native is None:
            raise SSHError(f"{self.host} is not connected to")
        return self._native.tunnel(host, port, origin).wait()

    def _now(self, steps: Steps[_T]) -> _T:
        return self.pool.spawn(steps).get()

    def _ipv6_address(self) -> str:
        found = socket.getaddrinfo(self.host, self.port, proto=socket.IPPROTO_TCP)
        addresses = [str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET6]
        if not addresses:
            raise NoIPv6AddressFoundError(
                "Requested IPv6 only and no IPv6 addresses found for host %s from address list %s",
                self.host,
                [address for _, _, _, _, address in found],
            )
        return addresses[0]

    def _all_keys(self) -> list[_native.Key]:
        """The keys to log in with: the one that was given, or else the user's own."""
        if isinstance(self.pkey, bytes):
            return [self._key("a key in memory", self.pkey)]
        if self.pkey is not None:
            with open(self.pkey, "rb") as file:
                return [self._key(self.pkey, file.read())]
        found = []
        for path in self.IDENTITIES if self.identity_auth else ():
            if os.path.isfile(path):
                with open(path, "rb") as file, contextlib.suppress(AuthenticationError):
                    found.append(self._key(path, file.read()))
        return found

    def _key(self, name: str, content: bytes) -> _native.Key:
        try:
            return _native.Key(name, content)
        except ValueError as error:
            text = "Authentication error while connecting to %s:%s - %s - retries %s/%s"
            raise AuthenticationError(text, self.host, self.port, error, 1, self.num_retries) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._disconnect()


class Channel:
    """A session, by ssh2-python's names: a command's or a shell's, with what it has written so far."""

    def __init__(self, client: BaseSSHClient) -> None:
        self._client = client
        self._session: _native.Session | None = None
        self._host: _native.PrivateHost | None = None
        self._terminal = False
        self._may_end_soon = True
        self._status: int | None = None
        self.ended = False
        self.readers = (Reader(client.pool), Reader(client.pool))

    # How it starts.

    def pty(self, term: str = "vt100") -> int:
        """Asks for a terminal, for what is started next."""
        self._terminal = True
        return 0

    request_pty = pty

    def execute(self, command: str | bytes) -> int:
        """Starts a command."""
        self._client.execute(command, self._terminal, self)
        return 0

    request_exec = execute

    def shell(self) -> int:
        """Starts the login shell."""
        self._client._now(self._client.started(self, None, self._terminal))
        return 0

    request_shell = shell

    def began(self, session: _native.Session, host: _native.PrivateHost) -> None:
        """Takes what the session writes while anything is waited for: a command never waits for its output to be read."""
        self._session, self._host = session, host
        self._client.begins(host)
        for stream in (0, 1):
            self._read(stream)

    def _read(self, stream: int) -> None:
        def came(ok: bool, data: bytes) -> None:
            if ok and data:
                self.readers[stream].buffer.write(data)
                self._read(stream)
                return
            self.readers[stream].buffer.eof.set()
            if self._outputs_are_over():
                self._client.pool.begin(self._begun().wait(), ended)

        def ended(ok: bool, how: tuple[int, str | None]) -> None:
            if self._host is not None:
                self._client.ends(self._host)
                self._host = None
            self.ended = True
            self._status = how[0] if ok else None

        self._client.pool.begin(self._begun().read(stream + 1), came)

    # Its streams.

    def write(self, data: str | bytes) -> tuple[int, int]:
        """Writes all of it; returns 0 and how much that was, as ssh2-python does."""
        content = data.encode() if isinstance(data, str) else data
        try:
            self._begun().write(content).wait()
        except _errors.Error as error:
            raise SessionError(error) from error
        return 0, len(content)

    def flush(self) -> int:
        """Nothing: what is written leaves at once."""
        return 0

    def send_eof(self) -> int:
        """Ends the command's input."""
        self._begun().finish().wait()
        return 0

    def read(self, size: int = 1024) -> tuple[int, bytes]:
        """Return the available output, and its length: 0 at its end, -37 where nothing is there yet."""
        return self._taken(0)

    def read_stderr(self, size: int = 1024) -> tuple[int, bytes]:
        """As ``read``, of standard error."""
        return self._taken(1)

    def _taken(self, stream: int) -> tuple[int, bytes]:
        self._client.pool.turn()
        buffer = self.readers[stream].buffer
        data = buffer.read()
        if data is None:
            return (0 if buffer.eof.is_set() else _EAGAIN), b""
        return len(data), data

    # How it ends.

    def eof(self) -> bool:
        """Return whether the command has ended: of one whose output was read to the end it is known."""
        self.ends_soon()
        return self.ended

    is_eof = eof

    def wait_eof(self) -> int:
        """Waits until the command has ended."""
        self._client.pool.wait(lambda: self.ended)
        return 0

    wait_closed = wait_eof

    def ends_soon(self) -> None:
        """Waits for the end of a command whose output is over, once and not for long."""
        self._client.pool.turn()
        # The server says it of both streams at once, though their ends are told one by one.
        is_over = any(reader.buffer.eof.is_set() for reader in self.readers)
        if is_over and not self.ended and self._may_end_soon:
            self._may_end_soon = self._client.pool.wait(lambda: self.ended, _END_IS_NEAR)

    def get_exit_status(self) -> int | None:
        """Its status, as a shell would show it: 128 and the number for a signal; ``None`` while it runs."""
        self.ends_soon()
        return self._status

    def close(self) -> int:
        """Closes the session. sshd sends SIGHUP to a command on a terminal; another finds its streams closed."""
        if self._session is not None:
            self._session.close()
        return 0

    def _outputs_are_over(self) -> bool:
        return all(reader.buffer.eof.is_set() for reader in self.readers)

    def _begun(self) -> _native.Session:
        if self._session is None:
            raise SessionError("nothing was started on this session")
        return self._session


class Reader(Linked):
    """Takes what one stream of a session brings, until its end."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self.buffer = ConcurrentRWBuffer(pool.wait)

    def ready(self) -> bool:
        """Return whether the stream has ended."""
        self._pool.turn()
        return self.buffer.eof.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Waits for the stream's end, for at most ``timeout`` seconds."""
        self._pool.wait(self.buffer.eof.is_set, timeout)

    get = join


class Stdin:
    """A command's input."""

    __slots__ = ("_channel", "_client")

    def __init__(self, channel: Channel, client: BaseSSHClient) -> None:
        self._channel = channel
        self._client = client

    def write(self, data: str | bytes) -> tuple[int, int]:
        """Writes everything, text as UTF-8."""
        return self._client.eagain(self._channel.write, data)

    def flush(self) -> int:
        """Nothing: what is written leaves at once."""
        return self._client.eagain(self._channel.flush)

    def close(self) -> None:
        """Ends it."""
        self._channel.send_eof()


class InteractiveShell:
    """A shell. ``output`` has what its commands answer; leaving a ``with`` block waits for them."""

    def __init__(
        self, channel: Channel, client: BaseSSHClient, encoding: str = "utf-8", read_timeout: float | None = None
    ) -> None:
        self._channel = channel
        self._client = client
        if channel._session is None:
            channel.shell()
        self.output = client._output(channel, encoding, read_timeout)

    @property
    def stdout(self) -> Iterator[str] | None:
        """``output.stdout``"""
        return self.output.stdout

    @property
    def stderr(self) -> Iterator[str] | None:
        """``output.stderr``"""
        return self.output.stderr

    @property
    def stdin(self) -> Stdin | None:
        """``output.stdin``"""
        return self.output.stdin

    @property
    def exit_code(self) -> int | None:
        """``output.exit_code``"""
        return self.output.exit_code

    def run(self, cmd: str) -> None:
        """Gives the shell a command."""
        self._channel.write(cmd.encode(self.output.encoding) + b"\n")

    def close(self) -> Self:
        """Waits for its commands, and ends it."""
        if not self._channel.ended:
            self._channel.send_eof()
            self._channel.wait_eof()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _HostKey:
    """The key by which a host that known_hosts do not list is known while its client lives. It does not keep the client."""

    def __init__(self) -> None:
        self._first: bytes | None = None

    def __call__(self, host: str, key: bytes, objection: tuple[bool, str] | None) -> bool:
        """Return whether to believe a key."""
        if objection is not None:
            is_unknown, _ = objection
            if not is_unknown or self._first not in (None, key):
                return False
        self._first = key
        return True


def _answers(password: str | None, has_key: bool) -> Callable[[str, str, bool], str | None]:
    """Answers questions, without keeping the client: those for passphrases, and without a given key the server's."""
    return lambda kind, text, echo: None if echo or (has_key and kind != "passphrase") else password


def _command(command: str, shell: str | None, sudo: bool, user: str | None) -> str:
    """The line that parallel-ssh sends."""
    if not (sudo or user or shell):
        return command
    prefix = f"sudo -u {user} -S " if user else "sudo -S " if sudo else ""
    return f"{prefix}{shell or '$SHELL -c'} '{command}'"


def _is_here(path: str, source: str, target: str, upload: bool) -> bool:
    """Return whether a file that was not copied is one of this machine's."""
    root = source if upload else target
    return path == root or path.startswith(root.rstrip("/") + "/")


def _made(sftp: _native.Sftp, directory: str) -> Steps[None]:
    """Makes a directory and those above it."""
    if directory in ("", "/"):
        return
    try:
        yield sftp.stat(remote(directory), True)
    except _errors.NoSuchFileError:
        yield from _made(sftp, posixpath.dirname(directory))
        try:
            yield sftp.mkdir(remote(directory), None)
        except _errors.FileError:
            # Another job may have made it meanwhile: if not, what is copied into it says so.
            yield sftp.stat(remote(directory), True)
