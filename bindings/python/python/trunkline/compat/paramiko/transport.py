"""Transports: connections, from the log-in to their end."""

from __future__ import annotations

import errno
import functools
import getpass
import itertools
import logging
import os
import queue
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ... import _errors, _native
from ..._private import Explicit, Step
from . import _original
from ._login import Handler, Login
from ._stream import Stream, handed_over
from .channel import Channel
from .common import (
    CONNECTION_FAILED_CODE,
    DEFAULT_MAX_PACKET_SIZE,
    DEFAULT_WINDOW_SIZE,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_UNKNOWN_CHANNEL_TYPE,
)
from .packet import Packetizer
from .pkey import PKey
from .proxy import ProxyCommand
from .sftp_client import SFTPClient
from .ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    BadHostKeyException,
    ChannelException,
    IncompatiblePeer,
    ProxyCommandFailure,
    SSHException,
    translated,
)
from .util import ClosingContextManager

#: Called for each client of a port that the server listens on: its channel, where it comes from, where it went.
ForwardHandler = Callable[[Channel, "tuple[str, int]", "tuple[str, int]"], object]


#: How long, in seconds, the server's first line may take, if nothing else is said.
_BANNER_TIMEOUT = 15


#: The engine's algorithms by their kinds, and what Paramiko's transports call those that they may use.
_ALGORITHMS: Mapping[str, tuple[str, ...]] = _native.algorithms()
_PREFERRED = {
    "ciphers": "_preferred_ciphers",
    "digests": "_preferred_macs",
    "key_types": "_preferred_keys",
    "kex": "_preferred_kex",
    "compression": "_preferred_compression",
}


class ClientAddress(tuple[str, int]):
    """A host and port that a client's transport connects to with the log-in."""

    __slots__ = ()


class Transport(ClosingContextManager):
    """A connection to one server, to an address, or over a socket, a ``ProxyCommand`` or a tunnel of another connection.

    An address is connected to at once; SSH begins with ``start_client`` or a log-in.
    """

    def __init__(
        self,
        sock: str | tuple[str, int] | Channel | ProxyCommand | Stream,
        default_window_size: int = DEFAULT_WINDOW_SIZE,
        default_max_packet_size: int = DEFAULT_MAX_PACKET_SIZE,
        gss_kex: bool = False,
        gss_deleg_creds: bool = True,
        disabled_algorithms: Mapping[str, Iterable[str]] | None = None,
        server_sig_algs: bool = True,
        strict_kex: bool = True,
        packetizer_class: object = None,
    ) -> None:
        if gss_kex:
            raise SSHException("GSSAPI is not available")
        self._over: Channel | ProxyCommand | Stream | None = None
        #: The connection to the address, unless it is a client's.
        self._dialled: socket.socket | None = None
        self._address = ("", 22)
        #: Seconds for connecting and the key exchange, and for the log-in.
        self.banner_timeout: float | None = _BANNER_TIMEOUT
        self.handshake_timeout: float | None = 15
        self.auth_timeout: float | None = 30
        self.channel_timeout: float | None = 3600
        self.daemon = True
        self.name = "paramiko.transport"
        self.logger = logging.getLogger(self.name)
        self.log_name = self.name
        self.server_mode = False
        self.hostname = sock.partition(":")[0] if isinstance(sock, str) else sock[0] if isinstance(sock, tuple) else None
        #: What programs look at or set, and what does not decide anything here.
        self.packetizer = Packetizer()
        self.default_window_size = default_window_size
        self.default_max_packet_size = default_max_packet_size
        self.disabled_algorithms = disabled_algorithms or {}
        self.server_sig_algs = server_sig_algs
        self.advertise_strict_kex = strict_kex
        self.clear_to_send_timeout = 30.0
        #: What failed in a thread of its own.
        self._failure: Exception | None = None
        #: GSSAPI, which is not available.
        self.gss_kex_used = False
        self.use_gss_kex = False
        self.kexgss_ctxt: object = None
        self.gss_host: str | None = None
        self.gss_deleg_creds = gss_deleg_creds
        if isinstance(sock, str):
            host, _, port = sock.partition(":")
            self._address = (host, int(port or 22))
        elif isinstance(sock, tuple):
            self._address = (sock[0], int(sock[1]))
        else:
            self._over = sock
        if self._over is None and not isinstance(sock, ClientAddress):
            self._dialled = _dial(*self._address)
        self.sock: Channel | ProxyCommand | Stream | Peer = self._over or self._dialled or Peer(self._address)
        self._verify: Callable[[PKey], object] | None = None
        self._known_hosts: Sequence[str] = ()
        self._known_types: Sequence[str] = ()
        # Those under "pubkeys" are of users' keys, which the engine chooses by what the server takes: host keys of the
        # same names may be shown.
        disabled = (disabled_algorithms or {}).items()
        self._disabled = [name for kind, names in disabled if kind != "pubkeys" for name in names]
        self._keepalive = 0.0
        self._closed = False
        self._host: _native.PrivateHost | None = None
        self._lending_host: _native.PrivateHost | None = None
        self._login: Login | None = None
        # Guards the tables of what the server listens on and of what the connection carries.
        self._lock = threading.Lock()
        self._listeners: dict[tuple[str, int], _native.Listener] = {}
        self._incoming: queue.Queue[Channel] = queue.Queue()
        self._channels = itertools.count()
        #: What the connection carries.
        self._carried: weakref.WeakSet[Channel] = weakref.WeakSet()

    # The other side: what serves is a transport of Paramiko's own.

    def add_server_key(self, key: PKey) -> None:
        """Has the server show this host key."""
        self._serving().add_server_key(_original.key(key))

    def set_subsystem_handler(self, name: str, handler: Any, *args: Any, **kwargs: Any) -> None:
        """Has the server offer a subsystem."""
        self._serving().set_subsystem_handler(name, handler, *args, **kwargs)

    def start_server(self, event: threading.Event | None = None, server: Any = None) -> None:
        """Serves whoever is at the other end of the socket."""
        self._serving().start_server(event, server)

    @staticmethod
    def load_server_moduli(filename: str | None = None) -> bool:
        """Reads the groups for the key exchange that a server offers."""
        return bool(_original.transport_class().load_server_moduli(filename))

    def _serving(self) -> Any:
        """Becomes a server."""
        if self._over is None:
            raise SSHException("a server needs a socket")
        original = _original.transport_class()(
            self._over,
            default_window_size=self.default_window_size,
            default_max_packet_size=self.default_max_packet_size,
            disabled_algorithms=self.disabled_algorithms,
            server_sig_algs=self.server_sig_algs,
            strict_kex=self.advertise_strict_kex,
        )
        if "local_version" in vars(self):
            original.local_version = self.local_version
        for name in _PREFERRED.values():
            if getattr(self, name) is not getattr(Transport, name):
                setattr(original, name, tuple(getattr(self, name)))
        vars(self).clear()
        vars(self)["original"] = original
        self.__class__ = ServerTransport
        return self

    def _log(self, level: int, msg: str | Sequence[str], *args: object) -> None:
        for line in [msg] if isinstance(msg, str) else msg:
            self.logger.log(level, line, *args)

    def next_channel(self) -> int:
        """A number for a channel."""
        return next(self._channels)

    def carry(self, channel: Channel) -> None:
        """Takes a channel that was opened: what has come over it outlasts the connection."""
        with self._lock:
            self._carried.add(channel)

    def over(self, sock: Channel | ProxyCommand | Stream) -> None:
        """Talks over this instead of connecting to the address, which remains the host's name."""
        self._over = self.sock = sock

    def _handed_over(self) -> _native.Session | _native.Handover | None:
        """Return the connection for the engine, in its form; ``None`` if it is to connect."""
        sock = self._over or self._dialled
        return None if sock is None else handed_over(sock)

    def believe(
        self,
        verify: Callable[[PKey], object] | None,
        known_hosts: Sequence[str] = (),
        known_types: Sequence[str] = (),
    ) -> None:
        """Set which host keys to accept: those of known_hosts files, and of others those for which ``verify`` does not
        raise. ``known_types`` are asked for first."""
        self._verify, self._known_hosts, self._known_types = verify, known_hosts, known_types

    # Logging in.

    def start_client(self, event: threading.Event | None = None, timeout: float | None = None) -> None:
        """Connects as far as the server can be shown something to log in with: ``get_remote_server_key`` has its key."""
        if event is not None:
            self._begin(event, functools.partial(self.start_client, timeout=timeout))
            return
        if self._closed:
            raise SSHException("No existing session")
        if self._host is not None:
            return
        limits = [limit for limit in (timeout, self.banner_timeout) if limit is not None]
        login = self._login_with("nobody", verify=self._verify, over=self._handed_over())
        with self._connecting(login):
            self._host = login.begin(min(limits, default=None), self.handshake_timeout)
        self._log_connected()

    def _begin(self, event: threading.Event, work: Callable[[], object]) -> None:
        """Does it in a thread, which sets the event at the end; ``get_exception`` tells what failed."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._failure = error
            finally:
                event.set()

        threading.Thread(target=run, name="paramiko-login", daemon=True).start()

    def connect(
        self,
        hostkey: PKey | None = None,
        username: str = "",
        password: str | None = None,
        pkey: PKey | None = None,
        gss_host: str | None = None,
        gss_auth: bool = False,
        gss_kex: bool = False,
        gss_deleg_creds: bool = True,
        gss_trust_dns: bool = True,
    ) -> None:
        """Logs in with a key, or with a password. Believes any host key if none is given, as Paramiko does."""
        if gss_auth or gss_kex:
            raise SSHException("GSSAPI is not available")

        def verify(key: PKey) -> None:
            if hostkey is not None and key != hostkey:
                raise BadHostKeyException(self._address[0], key, hostkey)

        self.believe(verify)
        if pkey is None and password is None:
            return self.start_client()
        if pkey is not None:
            self.auth_publickey(username, pkey)
        else:
            self.auth_password(username, password or "")
        return None

    def auth_password(
        self, username: str, password: str, event: threading.Event | None = None, fallback: bool = True
    ) -> list[str]:
        """Logs in with a password, which with ``fallback`` may also be the answer to the server's only question. Returns the
        methods that are needed besides, if any are."""
        try:
            return self._step("password", username, event, password=password)
        except BadAuthenticationType as error:
            if not fallback or "keyboard-interactive" not in error.allowed_types:
                raise

            def answers(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
                if len(prompts) > 1:
                    raise SSHException("Fallback authentication failed.")
                return [_text(password) for _ in prompts]

            try:
                return self.auth_interactive(username, answers)
            except SSHException:
                raise error from None

    def auth_publickey(self, username: str, key: PKey, event: threading.Event | None = None) -> list[str]:
        """Logs in with a key. Returns the methods that are needed besides, if any are."""
        if "rsa" in key.get_name() and not any("rsa" in name for name in self.preferred_pubkeys):
            raise SSHException("An RSA key was specified, but no RSA pubkey algorithms are configured!")
        return self._step("publickey", username, event, key=key)

    def auth_interactive(self, username: str, handler: Handler, submethods: str = "") -> list[str]:
        """Logs in by answering the server's questions, which are put one at a time. Returns the methods that are needed
        besides, if any are."""
        return self._step("keyboard-interactive", username, None, handler=handler)

    def auth_interactive_dumb(self, username: str, handler: Handler | None = None, submethods: str = "") -> list[str]:
        """As ``auth_interactive``, on the terminal."""

        def asked(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
            for line in (title, instructions):
                if line:
                    print(line.strip())
            return [input(prompt) if echo else getpass.getpass(prompt) for prompt, echo in prompts]

        return self.auth_interactive(username, handler or asked, submethods)

    def auth_none(self, username: str) -> list[str]:
        """Logs in without anything, where the server allows it; ``BadAuthenticationType`` tells what it wants instead."""
        return self._step("none", username, None)

    def _step(
        self,
        method: str,
        username: str,
        event: threading.Event | None,
        *,
        password: str | None = None,
        key: PKey | None = None,
        handler: Handler | None = None,
    ) -> list[str]:
        """Shows the server one thing to log in with."""
        if event is not None:
            self._begin(
                event,
                lambda: self._step(method, username, None, password=password, key=key, handler=handler),
            )
            return []
        self.start_client()
        host, login = self._host, self._login
        if host is None or login is None or not self.is_active():
            raise SSHException("No existing session")
        if host.is_ready():
            raise SSHException("this transport is logged in already")
        login.handler = handler
        step: Step = {
            "user": _text(username),
            "method": method,
            "password": None if password is None else _text(password),
            "blob": b"" if key is None else key.shown_blob,
            "sign": None if key is None else login.signer(key),
        }
        try:
            turn = login.show(host, step, self.auth_timeout)
        except BaseException as error:
            self._log_failure(error, [])
            raise
        if turn is not None and not turn[1]:
            allowed = turn[0] or []
            if method not in allowed:
                raise BadAuthenticationType("Bad authentication type", allowed)
            self._log(logging.INFO, f"Authentication ({method}) failed.")
            raise AuthenticationException("Authentication failed.")
        login.with_step(step, key)
        if turn is not None:
            self._log(logging.INFO, "Authentication continues...")
            return turn[0] or []
        self._logged_in()
        return []

    def log_in(
        self,
        username: str,
        *,
        keys: Sequence[PKey] = (),
        password: str | None = None,
        handler: Handler | None = None,
        agent: str | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Connects and logs in with whatever of this the server takes: keys, the agent's and these, a password, answers.

        Returns an empty list: no method is left to continue with.
        """
        if self._closed:
            raise SSHException("No existing session")
        if self._host is not None:
            raise SSHException("this transport is connected already")
        if not username:
            # Every server refuses it, and the engine asks none.
            raise AuthenticationException("Authentication failed.")
        login = self._login_with(
            username,
            keys=keys,
            password=password,
            handler=handler,
            agent=agent,
            timeout=timeout,
            verify=self._verify,
            over=self._handed_over(),
        )
        with self._connecting(login, ["publickey"] * bool(keys or agent) + ["password"] * (password is not None)):
            self._host = login.connect(self._limit_of_key(timeout), self.auth_timeout)
        self._log_connected()
        self._logged_in()
        return []

    def _logged_in(self) -> None:
        self._log_success()
        if self._keepalive and self._host is not None:
            self._host.keep_alive(self._keepalive)

    def _limit_of_key(self, timeout: float | None) -> float | None:
        """Return how many seconds the host key may take, connecting included. Paramiko's default for the server's first
        line, which does not include connecting there, does not shorten the given limit."""
        if not timeout:
            return self.banner_timeout
        chosen = self.banner_timeout if self.banner_timeout != _BANNER_TIMEOUT else None
        return min(timeout, chosen or timeout)

    def _log_connected(self) -> None:
        _, number, software = f"{self.remote_version}--".split("-", 2)
        self._log(logging.INFO, f"Connected (version {number}, client {software.rstrip('-').partition(' ')[0]})")

    def _log_success(self) -> None:
        *_, banner, method = self._info()
        if banner:
            self._log(logging.INFO, f"Auth banner: {banner.encode()!r}")
        self._log(logging.INFO, f"Authentication ({method}) successful!")

    def _log_failure(self, error: BaseException, methods: Iterable[str]) -> None:
        cause = error.__context__
        if isinstance(cause, _errors.AuthenticationError):
            for method in methods:
                if cause.partial:
                    self._log(logging.INFO, "Authentication continues...")
                    break
                if method in cause.allowed:
                    self._log(logging.INFO, f"Authentication ({method}) failed.")
        elif isinstance(cause, _errors.Error) and isinstance(error, SSHException):
            self._log(logging.ERROR, f"Exception (client): {error}")

    @contextmanager
    def _connecting(self, login: Login, methods: Iterable[str] = ()) -> Iterator[None]:
        """Tells of a connection that could not be made as Paramiko's transports do."""
        self._login = login
        try:
            yield
        except BaseException as error:
            self._log_failure(error, methods)
            ended = self._over if isinstance(self._over, ProxyCommand) and self._over.closed else None
            self._close_sock()
            if ended is not None and type(error) is SSHException:
                raise ProxyCommandFailure(" ".join(ended.cmd), os.strerror(errno.EPIPE)) from None
            raise

    def _login_with(
        self,
        username: str,
        *,
        keys: Sequence[PKey] = (),
        password: str | None = None,
        handler: Handler | None = None,
        agent: str | None = None,
        timeout: float | None = None,
        verify: Callable[[PKey], object] | None,
        over: _native.Session | _native.Handover | None = None,
    ) -> Login:
        host, port = self._address
        if host == "" and over is None:
            # The engine would take it for this machine.
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        disabled = [*self._disabled, *self._left_out()]
        if set(_ALGORITHMS["kex"]) <= set(disabled):
            raise IncompatiblePeer("Incompatible ssh peer (no acceptable kex algorithm)")
        explicit: Explicit = {
            "host": host or "localhost",
            "port": port,
            "user": _text(username),
            "timeout": timeout,
            "compress": self._compresses,
            "agent": agent or next((key.agent_socket for key in keys if key.agent_socket), None),
            "given_keys_only": agent is None,
            "forward_agent": False,
            "answers": password is not None or handler is not None,
            "certificates": [key.certificate for key in keys if key.certificate],
            "known_hosts": list(self._known_hosts),
            "known_types": list(self._known_types),
            "disabled": disabled,
            "disabled_signatures": self._unsigned(),
            "led": False,
        }
        return Login(explicit, keys, None if password is None else _text(password), handler, verify, over)

    def host(self, lending_agent: bool = False) -> _native.PrivateHost:
        """The native host; one with connections of its own for sessions that are lent the agent."""
        if self._host is None or self._login is None or not self.is_authenticated():
            raise SSHException("SSH session not active")
        if not lending_agent:
            return self._host
        if self._over is not None:
            raise SSHException("a connection that was made over a given socket cannot lend the agent")
        if self._lending_host is None or not self._lending_host.is_ready():
            self._lending_host = self._login.connect_lending()
        return self._lending_host

    # Channels.

    def open_session(
        self, window_size: int | None = None, max_packet_size: int | None = None, timeout: float | None = None
    ) -> Channel:
        """A session, for one command. The server has ``timeout`` seconds to open it, and to start the command."""
        return self.open_channel("session", timeout=timeout)

    def session(self, timeout: float | None = None) -> Channel:
        """A session that is opened with its command, which has ``timeout`` seconds to start."""
        self._ready()
        channel = Channel(self)
        channel.open_timeout = self.channel_timeout if timeout is None else timeout
        return channel

    def _ready(self) -> None:
        if not self.is_active():
            raise SSHException("SSH session not active")
        if not self.is_authenticated():
            # A server that follows RFC 4252 refuses it; sshd says nothing.
            code = OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
            raise ChannelException(code, CONNECTION_FAILED_CODE[code])

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
        if kind == "session":
            channel = self.session(timeout)
            channel.open()
            return channel
        self._ready()
        limit = self.channel_timeout if timeout is None else timeout
        if kind != "direct-tcpip":
            code = OPEN_FAILED_UNKNOWN_CHANNEL_TYPE
            raise ChannelException(code, CONNECTION_FAILED_CODE[code])
        if dest_addr is None:
            raise ValueError("a direct-tcpip channel needs dest_addr")
        origin = src_addr or ("127.0.0.1", 0)
        try:
            with translated():
                return Channel(self, self.host().tunnel(dest_addr[0], dest_addr[1], (origin[0], origin[1])).wait(limit))
        except ChannelException as error:
            self.log_refusal(self.next_channel(), error)
            raise
        except socket.timeout:
            raise SSHException("Timeout opening channel.") from None

    def log_refusal(self, number: int, error: ChannelException) -> None:
        """Logs that the server did not open a channel."""
        reason = CONNECTION_FAILED_CODE.get(error.code, "(unknown code)")
        words = getattr(error.__context__, "words", "")
        self._log(logging.ERROR, f"Secsh channel {number} open FAILED: {words}: {reason}")

    def open_sftp_client(self) -> SFTPClient:
        """An SFTP session."""
        return SFTPClient.from_transport(self)

    def request_port_forward(self, address: str, port: int, handler: ForwardHandler | None = None) -> int:
        """Has the server listen; returns its port, which it chooses for 0. Each client is given to ``handler``, in a thread
        of this port's own, or without one to ``accept``."""
        host = self.host()
        try:
            with translated():
                listener = host.listen((address, port)).wait()
        except SSHException:
            raise SSHException("TCP forwarding request denied") from None
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
        """Return whether it is connected, logged in or not."""
        return not self._closed and self._host is not None and self._host.is_open()

    def is_authenticated(self) -> bool:
        """Return whether it is logged in."""
        return not self._closed and self._host is not None and self._host.is_ready()

    is_alive = is_active

    @property
    def active(self) -> bool:
        return self.is_active()

    @property
    def authenticated(self) -> bool:
        return self.is_authenticated()

    @property
    def initial_kex_done(self) -> bool:
        return self.is_active()

    def set_gss_host(self, gss_host: str | None, trust_dns: bool = True, gssapi_requested: bool = True) -> None:
        """Keeps the name, which GSSAPI would take."""
        self.gss_host = gss_host

    def auth_gssapi_with_mic(self, username: str, gss_host: str, gss_deleg_creds: bool) -> list[str]:
        """Raises ``SSHException``."""
        raise SSHException("GSSAPI is not available")

    def auth_gssapi_keyex(self, username: str) -> list[str]:
        """Raises ``SSHException``."""
        raise SSHException("GSSAPI is not available")

    def get_security_options(self) -> SecurityOptions:
        """The algorithms that may be used, which can be changed before the log-in."""
        return SecurityOptions(self)

    # What programs set, of one transport, of their own class or of all. The engine has its own order.
    _preferred_ciphers: Sequence[str] = _ALGORITHMS["ciphers"]
    _preferred_macs: Sequence[str] = _ALGORITHMS["digests"]
    _preferred_keys: Sequence[str] = _ALGORITHMS["key_types"]
    _preferred_pubkeys: Sequence[str] = _ALGORITHMS["key_types"]
    _preferred_kex: Sequence[str] = _ALGORITHMS["kex"]
    _preferred_compression: Sequence[str] = ("none",)

    def _left_out(self) -> list[str]:
        """Return the algorithms that are not used."""
        preferred = {kind: getattr(self, name) for kind, name in _PREFERRED.items() if kind != "compression"}
        return [name for kind, names in preferred.items() for name in _ALGORITHMS[kind] if name not in names]

    def _unsigned(self) -> list[str]:
        """Return the algorithms that users' RSA keys do not sign with: as for Paramiko, other keys have no choice."""
        left_out = [name for name in ("rsa-sha2-512", "rsa-sha2-256") if name not in self.preferred_pubkeys]
        return [*left_out, *(f"{name}-cert-v01@openssh.com" for name in left_out)]

    @property
    def _compresses(self) -> bool:
        return not {"zlib", "zlib@openssh.com"}.isdisjoint(self._preferred_compression)

    def _filter_algorithm(self, type_: str) -> tuple[str, ...]:
        disabled = self.disabled_algorithms.get(type_, ())
        return tuple(name for name in getattr(self, f"_preferred_{type_}") if name not in disabled)

    @property
    def preferred_ciphers(self) -> tuple[str, ...]:
        return self._filter_algorithm("ciphers")

    @property
    def preferred_macs(self) -> tuple[str, ...]:
        return self._filter_algorithm("macs")

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        names = self._filter_algorithm("keys")
        return (*names, *(f"{name}-cert-v01@openssh.com" for name in names))

    @property
    def preferred_pubkeys(self) -> tuple[str, ...]:
        return self._filter_algorithm("pubkeys")

    @property
    def preferred_kex(self) -> tuple[str, ...]:
        return self._filter_algorithm("kex")

    @property
    def preferred_compression(self) -> tuple[str, ...]:
        return self._filter_algorithm("compression")

    def global_request(self, kind: str, data: Iterable[Any] | None = None, wait: bool = True) -> None:
        """Nothing: the engine makes those that are needed."""

    def send_ignore(self, byte_count: int | None = None) -> None:
        """Nothing."""

    def get_log_channel(self) -> str:
        return self.log_name

    def get_hexdump(self) -> bool:
        return False

    def getName(self) -> str:
        return self.name

    def setName(self, name: str) -> None:
        self.name = name

    def isDaemon(self) -> bool:
        return self.daemon

    def setDaemon(self, daemonic: bool) -> None:
        self.daemon = daemonic

    def start(self) -> None:
        """Nothing: there is no thread to start."""

    def join(self, timeout: float | None = None) -> None:
        """Nothing: there is no thread to wait for."""

    def atfork(self) -> None:
        """Lets the parent process's connection be: a child of ``os.fork`` has none."""
        self._closed = True

    def get_username(self) -> str | None:
        return self._login.explicit["user"] if self._login is not None and self.is_authenticated() else None

    def get_remote_server_key(self) -> PKey:
        """The server's host key."""
        shown = self.host_key
        if shown is None or not self.is_active():
            raise SSHException("No existing session")
        return shown

    @property
    def host_key(self) -> PKey | None:
        """The same, or nothing as long as it is not known."""
        return None if self._login is None else self._login.shown

    @property
    def _agreed_pubkey_algorithm(self) -> str:
        # Programs tell by it which signature an RSA key made.
        return "" if self._login is None else self._login.signed_as

    @property
    def saved_exception(self) -> Exception | None:
        """The exception that ``get_exception`` will return."""
        return self._failure

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

    @property
    def remote_mac(self) -> str:
        """Empty where the cipher authenticates by itself."""
        return self._info()[4] or ""

    local_mac = remote_mac

    @property
    def remote_compression(self) -> str:
        """Whether it was asked for."""
        return "zlib@openssh.com" if self._compresses else "none"

    local_compression = remote_compression

    local_version = "SSH-2.0-trunkline"

    def _info(self) -> tuple[str, str, str, str, str | None, str, str]:
        return (self._host.info() if self._host is not None else None) or ("", "", "", "", None, "", "")

    def getpeername(self) -> tuple[str, int]:
        """The server's address."""
        told = getattr(self.sock, "getpeername", lambda: ("unknown", 0))()
        return cast("tuple[str, int]", told)

    def get_exception(self) -> Exception | None:
        """Return, once, the last failure that an event was to report; other failures are raised by the calls that they
        affect."""
        failure, self._failure = self._failure, None
        return failure

    def get_banner(self) -> bytes | None:
        """Return the server's text at the log-in; it goes to ``logging``, too."""
        return self._info()[5].encode() or None

    # Settings.

    def set_keepalive(self, interval: float) -> None:
        """Looks every so many seconds whether the server still answers; 0 for no longer."""
        self._keepalive = float(interval)
        if self._host is not None:
            self._host.keep_alive(self._keepalive)

    def use_compression(self, compress: bool = True) -> None:
        """Whether to ask for compression; before the log-in."""
        self._preferred_compression = ("zlib@openssh.com", "zlib", "none") if compress else ("none",)

    def renegotiate_keys(self) -> None:
        """Exchanges keys anew."""
        self.host().rekey()

    def set_log_channel(self, name: str) -> None:
        """The logger of this connection; the engine's own is ``trunkline``."""
        self.log_name = name
        self.logger = logging.getLogger(name)

    def set_hexdump(self, hexdump: bool) -> None:
        """Nothing: packets are not logged."""

    def close(self) -> None:
        """Ends the connection and everything on it."""
        self._closed = True
        with self._lock:
            channels = list(self._carried)
        for channel in channels:
            channel.keep_output()
        for host in (self._host, self._lending_host):
            if host is not None:
                host.close()
        for channel in channels:
            channel.end_output()
        self._close_sock()

    def _close_sock(self) -> None:
        """Closes what the connection went over: it is used up."""
        for sock in (self._over, self._dialled):
            if sock is not None:
                sock.close()

    stop_thread = close

    @property
    def was_closed(self) -> bool:
        """Whether this side has closed it."""
        return self._closed

    def __repr__(self) -> str:
        host, port = self._address
        return f"<paramiko.Transport to {host}:{port} ({'active' if self.is_active() else 'not connected'})>"


def _text(words: str | bytes) -> str:
    """A user's name or a password, which programs give as bytes, too."""
    if not isinstance(words, (str, bytes)):
        raise TypeError(f"Expected unicode or bytes, got {type(words)}")
    return words.decode() if isinstance(words, bytes) else words


def _dial(host: str, port: int) -> socket.socket:
    """Connects to the first of a name's addresses that answers."""
    why = "No suitable address family"
    for family, kind, _, _, address in socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM):
        sock = socket.socket(family, kind)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            why = str(error)
        else:
            return sock
    raise SSHException(f"Unable to connect to {host}: {why}")


class Peer:
    """In place of the socket of a transport that connects by itself."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._timeout: float | None = None

    def getpeername(self) -> tuple[Any, ...]:
        """The address that the name leads to."""
        host, port = self._address
        return tuple(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4])

    def settimeout(self, timeout: float | None) -> None:
        """Nothing is waited for here."""
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        return self._timeout

    def setsockopt(self, *_option: object) -> None:
        """Nothing: the engine knows what its connections need."""

    def fileno(self) -> int:
        """There is none."""
        return -1

    def close(self) -> None:
        """Nothing: the transport is closed itself."""


#: Algorithms of Paramiko's that the engine does not offer: they may be named.
_PARAMIKOS = {
    "ciphers": ("aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"),
    "digests": ("hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"),
    "key_types": ("ssh-rsa", "ssh-rsa-cert-v01@openssh.com", "ssh-dss", "ssh-dss-cert-v01@openssh.com"),
    "kex": (
        "diffie-hellman-group1-sha1",
        "diffie-hellman-group14-sha1",
        "diffie-hellman-group-exchange-sha1",
    ),
    "compression": ("zlib",),
}


def _algorithms(kind: str) -> property:
    """The property of ``SecurityOptions`` for the algorithms of one kind."""

    def names(options: SecurityOptions) -> tuple[str, ...]:
        return tuple(getattr(options._transport, _PREFERRED[kind]))

    def choose(options: SecurityOptions, names: Iterable[str]) -> None:
        names = tuple(names)
        for name in names:
            if name not in _ALGORITHMS[kind] and name not in _PARAMIKOS[kind]:
                raise ValueError("unknown cipher")
        setattr(options._transport, _PREFERRED[kind], names)

    return property(names, choose)


class SecurityOptions:
    """The algorithms that a transport may use, in order; those that are left out are not used."""

    ciphers = _algorithms("ciphers")
    digests = _algorithms("digests")
    key_types = _algorithms("key_types")
    kex = _algorithms("kex")
    compression = _algorithms("compression")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<paramiko.SecurityOptions for {self._transport!r}>"


class ServiceRequestingTransport(Transport):
    """The same: the engine asks for the authentication service by itself."""


class ServerTransport(Transport):
    """A transport that serves: all that it does is done by one of Paramiko's own."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        original = vars(self)["original"]
        if name == "add_server_key":
            return lambda key: original.add_server_key(_original.key(key))
        return getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["original"], name, value)

    def __repr__(self) -> str:
        return repr(vars(self)["original"])
