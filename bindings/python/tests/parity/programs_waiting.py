"""Programs for Paramiko that learn of channels without reading them: from descriptors, their ends, and what is logged."""

from __future__ import annotations

import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .programs_paramiko import Program, See, _client, kind, raised


def wait_until(holds: Callable[[], object]) -> bool:
    """Waits until it holds; whether it ever does."""
    pause = threading.Event()
    return any(holds() or pause.wait(0.01) for _ in range(1000))


def _readable(channel: Any, limit: float) -> bool:
    return bool(select.select([channel], [], [], limit)[0])


def descriptors_before_commands(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    with selectors.DefaultSelector() as selector:
        number = channel.fileno()
        selector.register(channel, selectors.EVENT_READ)
        spent = time.process_time()
        see(selector.select(0), channel.recv_ready(), channel.recv_stderr_ready(), channel.closed, channel.eof_received)
        see(len(selector.select(0.5)), time.process_time() - spent < 0.25)
        channel.exec_command("read line; echo $line; echo err >&2; exec sleep 0.1")
        see(selector.select(0))
        channel.sendall(b"one\n")
        see(len(selector.select(30)), channel.fileno() == number)
        while not channel.recv_stderr_ready():
            _readable(channel, 1)
        see(channel.recv_stderr(10), _readable(channel, 30), channel.recv(10))
        # The end can be read, too, and goes on being so.
        see(_readable(channel, 30), channel.recv(10), _readable(channel, 0), channel.recv_exit_status())
    shell = client.get_transport().open_session()
    shell.fileno()
    shell.invoke_shell()
    shell.sendall(b"echo there; exit 3\n")
    see(_readable(shell, 30), shell.recv(100), shell.recv_exit_status())
    client.close()


def descriptors_and_threads(paramiko: Any, see: See, about: Any) -> None:
    """One thread waits for what another begins, or closes."""
    client = _client(paramiko, about)
    for begin in (lambda channel: channel.exec_command("echo there"), lambda channel: channel.close()):
        channel = client.get_transport().open_session()
        channel.fileno()
        timer = threading.Timer(0.2, begin, (channel,))
        timer.start()
        see(_readable(channel, 30), channel.recv(100))
        timer.join()
    channel = client.get_transport().open_session()
    channel.close()
    channel.fileno()
    see(_readable(channel, 0), channel.recv(100))
    client.close()


def errors_behind_output(paramiko: Any, see: See, about: Any) -> None:
    """Standard error is read while standard output, which came before, is not."""
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    channel.fileno()
    channel.settimeout(30)
    channel.exec_command("head -c 100000 /dev/zero; sleep 0.2; echo err >&2; sleep 0.2; echo more >&2")
    see(channel.recv_stderr(100), channel.recv_stderr(100), channel.recv_stderr(100))
    see(sum(len(piece) for piece in iter(lambda: channel.recv(50000), b"")))
    channel = client.get_transport().open_session()
    channel.fileno()
    channel.settimeout(0.2)
    channel.exec_command("echo out; exec sleep 30")
    see(_readable(channel, 30))
    spent = time.process_time()
    see(kind(lambda: channel.recv_stderr(100)), time.process_time() - spent < 0.15)
    see(channel.recv(100))
    client.close()


@contextmanager
def _other_side(work: Callable[[socket.socket], object]) -> Iterator[tuple[str, int]]:
    """A server for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as peer:
                work(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join(30)


def ends_of_tunnels(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    transport = client.get_transport()
    heard: list[bytes] = []

    def half(peer: socket.socket) -> None:
        peer.sendall(b"all of it")
        peer.shutdown(socket.SHUT_WR)
        heard.append(b"".join(iter(lambda: peer.recv(100), b"")))

    with _other_side(half) as address:
        tunnel = transport.open_channel("direct-tcpip", address, ("127.0.0.1", 0))
        see(tunnel.closed, tunnel.exit_status_ready())
        # Known before anything is read.
        see(wait_until(lambda: tunnel.eof_received), tunnel.closed, tunnel.recv_ready())
        see(tunnel.recv(100), tunnel.recv(100), tunnel.closed, tunnel.eof_received, tunnel.recv_ready())
        # The other direction is there for as long as this side wants it.
        see(tunnel.send_ready(), tunnel.send(b"answer"), tunnel.closed)
        tunnel.shutdown_write()
        see(tunnel.eof_sent, wait_until(lambda: tunnel.closed))
    see(heard, tunnel.recv(1), raised(lambda: tunnel.send(b"more")), tunnel.recv_exit_status())
    with _other_side(lambda peer: peer.recv(100)) as address:
        tunnel = transport.open_channel("direct-tcpip", address, ("127.0.0.1", 0))
        see(_readable(tunnel, 0.1), tunnel.closed, tunnel.eof_received, tunnel.active)
        tunnel.sendall(b"x")
        see(_readable(tunnel, 30), tunnel.recv(1))
        tunnel.close()
        see(tunnel.closed, tunnel.recv(1))
    client.close()


def ends_of_commands(paramiko: Any, see: See, about: Any) -> None:
    """A command ends, its output does not: a child has it."""
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    channel.exec_command("sleep 2 & echo there; exit 3")
    see(channel.recv(100), channel.recv_exit_status(), channel.exit_status_ready(), channel.closed, channel.eof_received)
    see(channel.recv(100), channel.eof_received, wait_until(lambda: channel.closed))
    channel = client.get_transport().open_session()
    channel.exec_command("echo unread")
    see(
        wait_until(lambda: channel.eof_received), wait_until(lambda: channel.closed), channel.recv_ready(), channel.recv(100)
    )
    channel = client.get_transport().open_session()
    channel.fileno()
    see(kind(lambda: channel.invoke_subsystem("nothing")), channel.closed, _readable(channel, 30), channel.recv(1))
    channel = client.get_transport().open_session()
    client.close()
    see(channel.closed, channel.recv(1))


def log(paramiko: Any, see: See, about: Any) -> None:
    """The log at levels that programs have on."""
    said: list[list[Any]] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append([record.levelname, record.name, record.getMessage()])

    def take_said() -> list[list[Any]]:
        took = said[:]
        said.clear()
        return took

    logger = logging.getLogger("paramiko")
    handler, level = Keeping(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    client = _client(paramiko, about)
    see(take_said())
    client.exec_command("true")[1].channel.recv_exit_status()
    sftp = client.open_sftp()
    see(take_said(), sftp.listdir("/") != [])
    sftp.close()
    see(take_said())
    transport = client.get_transport()
    see(
        raised(lambda: transport.open_channel("direct-tcpip", ("127.0.0.1", about["unused"]), ("127.0.0.1", 0)))[0],
        take_said(),
    )
    transport.set_log_channel("paramiko.mine")
    see(transport.get_log_channel(), transport.open_session().logger.name)
    client.open_sftp()
    see([record[1] for record in take_said()])
    client.close()
    client = paramiko.SSHClient()
    client.set_log_channel("paramiko.chosen")

    class Own(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        """As Paramiko's documentation has one."""

        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            client._host_keys.add(hostname, key.get_name(), key)
            see(client._host_keys_filename)
            client._log(paramiko.common.INFO, f"Adding {key.get_name()} host key for {hostname}")

    client.set_missing_host_key_policy(Own())
    options = {"port": about["port"], "username": about["user"], "allow_agent": False, "look_for_keys": False}
    client.connect(about["address"], key_filename=about["key"], **options)
    see(sorted(take_said()))
    client.close()
    logger.removeHandler(handler)
    logger.setLevel(level)


on_openssh: dict[str, Program] = {
    "descriptors before commands": descriptors_before_commands,
    "descriptors and threads": descriptors_and_threads,
    "errors behind output": errors_behind_output,
    "ends of tunnels": ends_of_tunnels,
    "ends of commands whose output goes on": ends_of_commands,
    "log": log,
}
