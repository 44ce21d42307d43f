"""One session of each library, operation by operation, in the way that the library's own documentation shows.

An operation is timed by ``with step(name)``. Operations that a library cannot tell apart are timed as the first of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

AUTHENTICATION = "authentication"
CHANNEL_OPEN = "channel open"
EXECUTE = "execute"
CHANNEL_READ = "channel read"
CLOSE = "close and exit status"
SFTP_READ = "SFTP read"

#: From the session's start until it is disconnected, with whatever the library does between operations.
TOTAL = "total"

OPERATIONS = (AUTHENTICATION, CHANNEL_OPEN, EXECUTE, CHANNEL_READ, CLOSE, SFTP_READ)

#: What a library gets at once of an output.
PIECE = 32 * 1024


@dataclass(frozen=True)
class Target:
    """A server to log in to, the way to log in, and the file to read there."""

    host: str
    port: int
    user: str
    #: A private key's file; through the agent of SSH_AUTH_SOCK where there is none.
    key: str | None
    known_hosts: str
    #: The command that writes ``output`` bytes, and the file of ``size`` bytes.
    command: str
    output: int
    file: str
    size: int


class Steps:
    """The seconds that each operation of a session took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, operation: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[operation] = time.perf_counter() - begun


Step = Callable[[str], AbstractContextManager[None]]


def check(target: Target, output: int, status: int | None, read: int) -> None:
    """Nobody is fast who does not do the work."""
    if (output, status, read) != (target.output, 0, target.size):
        raise RuntimeError(f"{output} bytes of output, status {status}, {read} bytes of the file")


def trunkline_options(target: Target) -> dict[str, Any]:
    return {
        "user": target.user,
        "port": target.port,
        "config": "none",
        "identity": target.key,
        "agent": target.key is None,
        "known_hosts": target.known_hosts,
        "daemon": False,
    }


def trunkline(target: Target, step: Step, share: bool = False, **options: str) -> None:
    """A connection of the session's own; with ``share``, those that the process has."""
    import trunkline

    with step(AUTHENTICATION):
        host = trunkline.connect(target.host, share=share, options=options, **trunkline_options(target))
    with step(CHANNEL_OPEN):
        process = host.start(target.command, encoding=None)
    with step(EXECUTE):
        process.started()
    with step(CHANNEL_READ):
        output = len(process.stdout.read())
    with step(CLOSE):
        status = process.wait()
        process.close()
    with step(SFTP_READ), host.sftp() as sftp, sftp.open(target.file, "rb") as file:
        read = sum(len(piece) for piece in iter(lambda: file.read(PIECE), b""))
    check(target, output, status, read)
    host.close()


def trunkline_warm(target: Target, step: Step) -> None:
    trunkline(target, step, share=True)


def trunkline_classical(target: Target, step: Step) -> None:
    """By the key exchange that the other libraries do."""
    trunkline(target, step, KexAlgorithms="curve25519-sha256")


def paramiko(target: Target, step: Step) -> None:
    import paramiko

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    with step(AUTHENTICATION):
        client.connect(
            target.host,
            target.port,
            target.user,
            key_filename=target.key,
            allow_agent=target.key is None,
            look_for_keys=False,
        )
    transport = client.get_transport()
    assert transport is not None
    with step(CHANNEL_OPEN):
        channel = transport.open_session()
    with step(EXECUTE):
        channel.exec_command(target.command)
    with step(CHANNEL_READ):
        output = sum(len(piece) for piece in iter(lambda: channel.recv(PIECE), b""))
    with step(CLOSE):
        status = channel.recv_exit_status()
        channel.close()
    with step(SFTP_READ), client.open_sftp() as sftp, sftp.open(target.file, "rb") as file:
        file.prefetch(target.size)
        read = sum(len(piece) for piece in iter(lambda: file.read(PIECE), b""))
    check(target, output, status, read)
    client.close()


def ssh2_python(target: Target, step: Step) -> None:
    from ssh2.session import Session
    from ssh2.sftp import LIBSSH2_FXF_READ

    with step(AUTHENTICATION):
        connection = socket.create_connection((target.host, target.port))
        session = Session()
        session.handshake(connection)
        if target.key is None:
            session.agent_auth(target.user)
        else:
            session.userauth_publickey_fromfile(target.user, target.key)
    with step(CHANNEL_OPEN):
        channel = session.open_session()
    with step(EXECUTE):
        channel.execute(target.command)
    with step(CHANNEL_READ):
        output = 0
        size, _ = channel.read(PIECE)
        while size > 0:
            output += size
            size, _ = channel.read(PIECE)
    with step(CLOSE):
        channel.close()
        channel.wait_closed()
        status = channel.get_exit_status()
    with step(SFTP_READ), session.sftp_init().open(target.file, LIBSSH2_FXF_READ, 0) as file:
        read = sum(size for size, _ in file)
    check(target, output, status, read)
    session.disconnect()
    connection.close()


def ssh_python(target: Target, step: Step) -> None:
    from ssh import options
    from ssh.key import import_privkey_file
    from ssh.session import Session

    session = Session()
    with step(AUTHENTICATION):
        session.options_set(options.HOST, target.host)
        session.options_set(options.USER, target.user)
        session.options_set_port(target.port)
        session.connect()
        if target.key is None:
            session.userauth_agent(target.user)
        else:
            session.userauth_publickey(import_privkey_file(target.key))
    with step(CHANNEL_OPEN):
        channel = session.channel_new()
        channel.open_session()
    with step(EXECUTE):
        channel.request_exec(target.command)
    with step(CHANNEL_READ):
        output = 0
        size, _ = channel.read(PIECE)
        while size > 0:
            output += size
            size, _ = channel.read(PIECE)
    with step(CLOSE):
        channel.close()
        status = channel.get_exit_status()
    with step(SFTP_READ):
        sftp = session.sftp_new()
        sftp.init()
        file = sftp.open(target.file, os.O_RDONLY, 0)
        read = sum(size for size, _ in file)
        file.close()
    check(target, output, status, read)
    session.disconnect()


async def asyncssh(target: Target, step: Step) -> None:
    import asyncssh

    with step(AUTHENTICATION):
        connection = await asyncssh.connect(
            target.host,
            target.port,
            username=target.user,
            client_keys=() if target.key is None else [target.key],
            agent_path=os.environ["SSH_AUTH_SOCK"] if target.key is None else None,
            known_hosts=target.known_hosts,
            config=None,
        )
    with step(CHANNEL_OPEN):
        process = await connection.create_process(target.command, encoding=None)
    with step(CHANNEL_READ):
        output = len(await process.stdout.read())
    with step(CLOSE):
        status = (await process.wait()).exit_status
        process.close()
    with step(SFTP_READ):
        async with connection.start_sftp_client() as sftp, sftp.open(target.file, "rb") as file:
            read = len(await file.read())
    check(target, output, status, read)
    connection.close()
    await connection.wait_closed()


#: By the names that reports use. Those that are coroutines share an event loop, the others have a thread for each session.
CLIENTS: dict[str, Callable[[Target, Step], Coroutine[Any, Any, None] | None]] = {
    "trunkline": trunkline,
    "trunkline, curve25519": trunkline_classical,
    "trunkline, warm": trunkline_warm,
    "Paramiko": paramiko,
    "ssh2-python": ssh2_python,
    "ssh-python": ssh_python,
    "asyncssh": asyncssh,
}
