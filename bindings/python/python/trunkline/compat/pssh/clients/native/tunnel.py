"""Ports of this machine that lead through a host to another one."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from queue import Queue
from typing import TYPE_CHECKING

from ..... import _errors
from ...constants import DEFAULT_RETRIES

if TYPE_CHECKING:
    from ..... import _native
    from ..base.single import BaseSSHClient

#: Read from a connection at once.
_PIECE = 65536


class TunnelServer:
    """A port of this machine whose connections ``client`` leads on to ``host``'s ``port``. It listens from ``start`` on."""

    def __init__(
        self,
        client: BaseSSHClient,
        host: str,
        port: int,
        bind_address: str = "127.0.0.1",
        num_retries: int = DEFAULT_RETRIES,
    ) -> None:
        self.client = client
        self.host = host
        self.port = port
        self.bind_address = bind_address
        #: What went wrong last.
        self.exception: Exception | None = None
        self.socket: socket.socket | None = None
        self._attempts = num_retries
        self._connections: set[socket.socket] = set()

    @property
    def started(self) -> bool:
        """Whether it listens."""
        return self.socket is not None

    @property
    def listen_port(self) -> int | None:
        """The port; ``None`` while it does not listen."""
        return None if self.socket is None else int(self.socket.getsockname()[1])

    def start(self) -> None:
        """Begins to listen."""
        if self.socket is None:
            self.socket = socket.create_server((self.bind_address, 0))
            threading.Thread(target=self._accept, args=(self.socket,), daemon=True).start()

    def stop(self, timeout: float | None = None) -> None:
        """Ends the listening, and its connections."""
        listening, self.socket = self.socket, None
        for each in (*self._connections, *([listening] if listening else [])):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, origin = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._lead, args=(connection, origin), daemon=True).start()

    def _lead(self, connection: socket.socket, origin: tuple[str, int]) -> None:
        """Opens the way for one connection, and moves what comes in both directions."""
        self._connections.add(connection)
        try:
            session = self._open(origin)
            inwards = threading.Thread(target=self._send, args=(connection, session), daemon=True)
            inwards.start()
            while data := session.read(1).wait():
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            inwards.join()
        except (OSError, _errors.Error) as error:
            self.exception = error
        finally:
            self._connections.discard(connection)
            connection.close()

    def _open(self, origin: tuple[str, int]) -> _native.Session:
        for attempt in range(1, self._attempts + 1):
            try:
                return self.client.tunnel(self.host, self.port, origin)
            except _errors.LimitError:
                if attempt == self._attempts:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    def _send(connection: socket.socket, session: _native.Session) -> None:
        with suppress(OSError, _errors.Error):
            while data := connection.recv(_PIECE):
                session.write(data).wait()
            session.finish().wait()


class LocalForwarder(threading.Thread):
    """Makes tunnels: what is put in by ``enqueue`` comes out of ``out_q`` as the port to connect to."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.in_q: Queue[tuple[BaseSSHClient, str, int] | None] = Queue(1)
        self.out_q: Queue[int | None] = Queue(1)
        self.started = threading.Event()
        self.shutdown_triggered = threading.Event()
        self._servers: dict[BaseSSHClient, TunnelServer] = {}

    def enqueue(self, client: BaseSSHClient, host: str, port: int) -> None:
        """Has a tunnel made, through a client's host to another one."""
        self.in_q.put((client, host, port))

    def run(self) -> None:
        """Makes tunnels until ``shutdown``."""
        self.started.set()
        while (wanted := self.in_q.get()) is not None:
            server = self._servers[wanted[0]] = TunnelServer(*wanted)
            server.start()
            self.out_q.put(server.listen_port)

    def cleanup_server(self, client: BaseSSHClient) -> None:
        """Ends a client's tunnel."""
        self._servers.pop(client).stop()

    def shutdown(self) -> None:
        """Ends all tunnels, and the thread."""
        self.shutdown_triggered.set()
        for client in list(self._servers):
            self.cleanup_server(client)
        if self.is_alive():
            self.in_q.put(None)
            self.join()


#: The one that programs share. Nothing here needs it: clients with a proxy host go through it without a port.
FORWARDER = LocalForwarder()
