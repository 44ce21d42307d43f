"""Transports: connections, from the log-in to their end."""

from __future__ import annotations

import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ... import _native
from ..._private import Explicit
from ._login import Handler, Login
from .channel import Channel
from .common import OPEN_FAILED_UNKNOWN_CHANNEL_TYPE
from .pkey import PKey
from .proxy import ProxyCommand
from .sftp_client import SFTPClient
from .ssh_exception import BadHostKeyException, ChannelException, SSHException, translated

if TYPE_CHECKING:
    from typing_extensions import Self


#: Called for each client of a port that the server listens on: its channel, where it comes from, where it went.
ForwardHandler = Callable[[Channel, "tuple[str, int]", "tuple[str, int]"], object]


class Transport:
    """A connection to one server, to an address, or over a socket, a ``ProxyCommand`` or a tunnel of another connection.

    Logging in connects: key exchange and authentication share round trips, and ``start_client`` waits for neither.
    """

    def __init__(
        self,
        sock: str | tuple[str, int] | Channel | ProxyCommand | socket.socket,
        default_window_size: int | None = None,
        default_max_packet_size: int | None = None,
        gss_kex: bool = False,
        gss_deleg_creds: bool = True,
        disabled_algorithms: Mapping[str, Iterable[str]] | None = None,
        server_sig_algs: bool = True,
        strict_kex: bool = True,
        packetizer_class: object = None,
    ) -> None:
        if gss_kex:
            raise SSHException("GSSAPI is not available")
        self._over: Channel | ProxyCommand | socket.socket | None = None
        self._address = ("", 22)
        if isinstance(sock, str):
            host, _, port = sock.partition(":")
            self._address = (host, int(port or 22))
        elif isinstance(sock, tuple):
            self._address = (sock[0], int(sock[1]))
        else:
            self._over = sock
        self._verify: Callable[[PKey], object] | None = None
        self._known_hosts: Sequence[str] = ()
        self._known_types: Sequence[str] = ()
        self._disabled = [name for names in (disabled_algorithms or {}).values() for name in names]
        self._compress = False
        self._keepalive = 0.0
        self._closed = False
        self._host: _native.PrivateHost | None = None
        self._lending_host: _native.PrivateHost | None = None
        self._login: Login | None = None
        # Guards the tables of what the server listens on.
        self._lock = threading.Lock()
        self._listeners: dict[tuple[str, int], _native.Listener] = {}
        self._incoming: queue.Queue[Channel] = queue.Queue()

    def over(self, sock: Channel | ProxyCommand | socket.socket) -> None:
        """Talks over this instead of connecting to the address, which remains the host's name."""
        self._over = sock

    def believe(
        self,
        verify: Callable[[PKey], object] | None,
        known_hosts: Sequence[str] = (),
        known_types: Sequence[str] = (),
    ) -> None:
        """Which host keys to believe: those of known_hosts files, and of others those for which ``verify`` does not raise.
        ``known_types`` are asked for first."""
        self._verify, self._known_hosts, self._known_types = verify, known_hosts, known_types

    # Logging in.

    def start_client(self, event: threading.Event | None = None, timeout: float | None = None) -> None:
        """Does nothing yet: the log-in connects."""
        if event is not None:
            event.set()

    def connect(
        self,
        hostkey: PKey | None = None,
        username: str = "",
        password: str | None = None,
        pkey: PKey | None = None,
    ) -> None:
        """Logs in with a key, or with a password. Believes any host key if none is given, as Paramiko does."""

        def verify(key: PKey) -> None:
            if hostkey is not None and key != hostkey:
                raise BadHostKeyException(self._address[0], key, hostkey)

        self.believe(verify)
        self.log_in(username, keys=[] if pkey is None else [pkey], password=password)

    def auth_password(
        self, username: str, password: str, event: threading.Event | None = None, fallback: bool = True
    ) -> list[str]:
        """Logs in with a password."""
        return self.log_in(username, password=password, event=event)

    def auth_publickey(self, username: str, key: PKey, event: threading.Event | None = None) -> list[str]:
        """Logs in with a key."""
        return self.log_in(username, keys=[key], event=event)

    def auth_interactive(self, username: str, handler: Handler, submethods: str = "") -> list[str]:
        """Logs in by answering the server's questions, which are put one at a time."""
        return self.log_in(username, handler=handler)

    def auth_none(self, username: str) -> list[str]:
        """Logs in without anything, where the server allows it."""
        return self.log_in(username)

    def log_in(
        self,
        username: str,
        *,
        keys: Sequence[PKey] = (),
        password: str | None = None,
        handler: Handler | None = None,
        agent: str | None = None,
        timeout: float | None = None,
        event: threading.Event | None = None,
    ) -> list[str]:
        """Connects and logs in with whatever of this the server takes: keys, the agent's and these, a password, answers.

        Returns an empty list: no method is left to go on with.
        """
        if self._host is not None and self._host.is_ready():
            raise SSHException("this transport is logged in already")
        host, port = self._address
        explicit: Explicit = {
            "host": host or "localhost",
            "port": port,
            "user": username,
            "timeout": timeout,
            "compress": self._compress,
            "agent": agent or next((key.agent for key in keys if key.agent), None),
            "given_keys_only": agent is None,
            "forward_agent": False,
            "answers": password is not None or handler is not None,
            "certificates": [key.certificate for key in keys if key.certificate],
            "known_hosts": list(self._known_hosts),
            "known_types": list(self._known_types),
            "disabled": self._disabled,
        }
        over = None if self._over is None else _over(self._over)
        self._login = Login(explicit, keys, password, handler, self._verify, over)
        self._host = self._login.connect()
        if self._keepalive:
            self._host.keep_alive(self._keepalive)
        if event is not None:
            event.set()
        return []

    def host(self, lending_agent: bool = False) -> _native.PrivateHost:
        """The native host; one with connections of its own for sessions that are lent the agent."""
        if self._host is None or self._login is None:
            raise SSHException("SSH session not active")
        if not lending_agent:
            return self._host
        if self._lending_host is None or not self._lending_host.is_ready():
            self._lending_host = self._login.connect_lending()
        return self._lending_host

    # Channels.

    def open_session(
        self, window_size: int | None = None, max_packet_size: int | None = None, timeout: float | None = None
    ) -> Channel:
        """A session, for one command."""
        return self.open_channel("session")

    def open_channel(
        self,
        kind: str,
        dest_addr: tuple[str, int] | None = None,
        src_addr: tuple[str, int] | None = None,
        window_size: int | None = None,
        max_packet_size: int | None = None,
        timeout: float | None = None,
    ) -> Channel:
        """A "session", or a "direct-tcpip" tunnel to ``dest_addr``, which the server connects to."""
        if not self.is_active():
            raise SSHException("SSH session not active")
        if kind == "session":
            return Channel(self)
        if kind != "direct-tcpip":
            raise ChannelException(OPEN_FAILED_UNKNOWN_CHANNEL_TYPE, f"{kind} channels are not available")
        if dest_addr is None:
            raise ValueError("a direct-tcpip channel needs dest_addr")
        origin = src_addr or ("127.0.0.1", 0)
        with translated():
            return Channel(self, self.host().tunnel(dest_addr[0], dest_addr[1], (origin[0], origin[1])).wait())

    def open_sftp_client(self) -> SFTPClient:
        """An SFTP session."""
        return SFTPClient.from_transport(self)

    def request_port_forward(self, address: str, port: int, handler: ForwardHandler | None = None) -> int:
        """Has the server listen; returns its port, which it chooses for 0. Each client is given to ``handler``, in a thread
        of this port's own, or without one to ``accept``."""
        try:
            with translated():
                listener = self.host().listen((address, port)).wait()
        except ChannelException as error:
            raise SSHException(f"TCP forwarding request denied: {error.text}") from error
        bound = listener.port() or port
        with self._lock:
            self._listeners[address, bound] = listener
        threading.Thread(
            target=self._serve, args=(listener, (address, bound), handler), name=f"paramiko-forward-{bound}", daemon=True
        ).start()
        return bound

    def _serve(self, listener: _native.Listener, server: tuple[str, int], handler: ForwardHandler | None) -> None:
        while (client := listener.next().wait()) is not None:
            session, came_from = client
            host, _, port = came_from.rpartition(":")
            channel = Channel(self, session)
            channel.origin_addr = origin = (host.strip("[]"), int(port or 0))
            if handler is None:
                self._incoming.put(channel)
                continue
            try:
                handler(channel, origin, server)
            except Exception:
                # As an exception of a thread's: nobody else waits for it.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
                channel.close()

    def cancel_port_forward(self, address: str, port: int) -> None:
        """Has the server listen no more."""
        with self._lock:
            listener = self._listeners.pop((address, port), None)
        if listener is not None:
            listener.close().wait()

    def accept(self, timeout: float | None = None) -> Channel | None:
        """The next client of a port that was requested without a handler; ``None`` after ``timeout`` seconds."""
        try:
            return self._incoming.get(timeout=timeout)
        except queue.Empty:
            return None

    # What it is.

    def is_active(self) -> bool:
        """Whether it is connected."""
        return not self._closed and self._host is not None and self._host.is_ready()

    is_alive = is_authenticated = is_active

    @property
    def active(self) -> bool:
        return self.is_active()

    @property
    def authenticated(self) -> bool:
        return self.is_active()

    def get_username(self) -> str | None:
        return self._login.explicit["user"] if self._login is not None and self.is_active() else None

    def get_remote_server_key(self) -> PKey:
        """The server's host key."""
        if self._login is None or self._login.shown is None:
            raise SSHException("No existing session")
        return self._login.shown

    @property
    def remote_version(self) -> str:
        """The server's identification line."""
        return self._info()[0]

    @property
    def host_key_type(self) -> str:
        return self._info()[2]

    @property
    def remote_cipher(self) -> str:
        return self._info()[3]

    local_cipher = remote_cipher

    def _info(self) -> tuple[str, str, str, str]:
        return (self._host.info() if self._host is not None else None) or ("", "", "", "")

    def getpeername(self) -> tuple[str, int]:
        """The server's address, as it was given."""
        return self._address

    def get_exception(self) -> Exception | None:
        """Nothing: failures are raised where they matter."""
        return None

    def get_banner(self) -> bytes | None:
        """Nothing: what a server says before the log-in goes to ``logging``."""
        return None

    # Settings.

    def set_keepalive(self, interval: float) -> None:
        """Looks every so many seconds whether the server still answers; 0 for no longer."""
        self._keepalive = float(interval)
        if self._host is not None:
            self._host.keep_alive(self._keepalive)

    def use_compression(self, compress: bool = True) -> None:
        """Whether to ask for compression; before the log-in."""
        self._compress = compress

    def renegotiate_keys(self) -> None:
        """Exchanges keys anew."""
        self.host().rekey()

    def set_log_channel(self, name: str) -> None:
        """Nothing: ``trunkline.enable_logging`` is how the engine logs."""

    def set_hexdump(self, hexdump: bool) -> None:
        """Nothing: packets are not logged."""

    def close(self) -> None:
        """Ends the connection and everything on it."""
        self._closed = True
        for host in (self._host, self._lending_host):
            if host is not None:
                host.close()
        if self._over is not None:
            self._over.close()

    stop_thread = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        host, port = self._address
        return f"<paramiko.Transport to {host}:{port} ({'active' if self.is_active() else 'not connected'})>"


class ServiceRequestingTransport(Transport):
    """The same: the engine asks for the authentication service by itself."""


def _over(sock: Channel | ProxyCommand | socket.socket) -> _native.Session | _native.Handover:
    """A channel or a socket as the native module takes it. A socket is the engine's from then on."""
    if isinstance(sock, Channel):
        return sock.native()
    receiver, number = _native.Handover.pair()
    with socket.socket(fileno=number) as sender:
        socket.send_fds(sender, [b"\0"], [sock.fileno()])
    return receiver
