"""Programs for Paramiko that use what was closed: what each call raises is Paramiko's."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from .programs_paramiko import Program, See, _client, raised


def each(see: See, target: Any, *calls: tuple[Any, ...]) -> None:
    """Calls the methods, and says what each raised or returned."""
    for name, *arguments in calls:
        returned: list[Any] = []
        error = raised(lambda: returned.append(getattr(target, name)(*arguments)))  # noqa: B023
        value = returned[0] if returned else None
        see(name, error, value if isinstance(value, (int, str, bytes, type(None))) else type(value).__name__)


CLIENT = (("exec_command", "true"), ("invoke_shell",), ("open_sftp",), ("get_transport",), ("close",))


def clients(paramiko: Any, see: See, about: Any) -> None:
    each(see, paramiko.SSHClient(), *CLIENT)
    client = _client(paramiko, about)
    client.close()
    each(see, client, *CLIENT)
    client = _client(paramiko, about)
    client.get_transport().close()
    each(see, client, ("exec_command", "true"), ("invoke_shell",), ("open_sftp",), ("close",))
    # The same client may connect again.
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect(about["address"], port=about["port"], username=about["user"], key_filename=about["key"])
    see(client.exec_command("echo again")[1].read())
    client.close()


def channels(paramiko: Any, see: See, about: Any) -> None:
    calls: tuple[tuple[Any, ...], ...] = (
        ("send", b"x"),
        ("sendall", b"x"),
        ("send", b""),
        ("recv", 1),
        ("recv_stderr", 1),
        ("recv_ready",),
        ("recv_stderr_ready",),
        ("send_ready",),
        ("exit_status_ready",),
        ("recv_exit_status",),
        ("exec_command", "true"),
        ("invoke_shell",),
        ("invoke_subsystem", "sftp"),
        ("get_pty",),
        ("resize_pty",),
        ("update_environment", {"A": "b"}),
        ("set_environment_variable", "A", "b"),
        ("request_forward_agent", lambda *_: None),
        ("shutdown", 2),
        ("shutdown_write",),
        ("settimeout", 1),
        ("gettimeout",),
        ("setblocking", 1),
        ("getpeername",),
        ("set_combine_stderr", True),
        ("set_name", "x"),
        ("get_name",),
        ("close",),
    )
    for end in ("channel", "client"):
        client = _client(paramiko, about)
        channel = client.get_transport().open_session()
        channel.exec_command("cat; exit 3")
        stdin, stdout = channel.makefile_stdin("wb"), channel.makefile("rb")
        (channel if end == "channel" else client).close()
        see(end, channel.closed, channel.active, channel.eof_received)
        each(see, channel, *(call for call in calls if call[0] not in ("getpeername", "get_name")))
        each(see, stdin, ("write", b"x"), ("flush",), ("close",), ("write", b"x"))
        each(see, stdout, ("read",), ("readline",), ("close",), ("read",))
        client.close()


def transports(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    transport = client.get_transport()
    transport.close()
    see(transport.is_active(), transport.is_authenticated(), transport.get_username() == about["user"])
    each(
        see,
        transport,
        ("open_session",),
        ("open_channel", "session"),
        ("open_channel", "direct-tcpip", ("a", 1), ("b", 2)),
        ("open_sftp_client",),
        ("request_port_forward", "127.0.0.1", 0),
        ("cancel_port_forward", "127.0.0.1", 1),
        ("global_request", "x@example.com", None, True),
        ("auth_password", "x", "y"),
        ("auth_none", "x"),
        ("auth_publickey", "x", paramiko.Ed25519Key.from_private_key_file(about["key"])),
        ("auth_interactive", "x", lambda *_: []),
        ("get_remote_server_key",),
        ("get_banner",),
        ("accept", 0.01),
        ("set_keepalive", 1),
        ("close",),
    )
    never = paramiko.Transport((about["address"], about["port"]))
    each(
        see,
        never,
        ("open_session",),
        ("open_sftp_client",),
        ("get_remote_server_key",),
        ("get_username",),
        ("get_banner",),
        ("get_exception",),
        ("close",),
    )


def files(paramiko: Any, see: See, about: Any) -> None:
    for end in ("session", "client"):
        client = _client(paramiko, about)
        sftp = client.open_sftp()
        path = os.path.join(about["directory"], end)
        file = sftp.open(path, "w+")
        file.write("text")
        file.flush()
        (sftp if end == "session" else client).close()
        each(
            see,
            sftp,
            ("listdir", "."),
            ("listdir_attr", "."),
            ("stat", path),
            ("lstat", path),
            ("open", path),
            ("mkdir", "x"),
            ("remove", "x"),
            ("rename", "x", "y"),
            ("chmod", "x", 0),
            ("normalize", "."),
            ("chdir", "/"),
            ("getcwd",),
            ("get", path, path),
            ("put", about["key"], path),
            ("close",),
        )
        each(see, file, ("read",), ("write", "x"), ("flush",), ("seek", 0), ("tell",), ("stat",), ("close",), ("read",))
        client.close()


def cut_off(paramiko: Any, see: See, about: Any) -> None:
    """The server's process is killed under it."""
    client = _client(paramiko, about)
    transport = client.get_transport()
    sftp = client.open_sftp()
    channel = transport.open_session()
    channel.exec_command("cat")
    _, stdout, _ = client.exec_command("read pid rest < /proc/$PPID/stat; echo $pid")
    os.kill(int(stdout.read()), signal.SIGKILL)
    see(channel.recv(1), channel.recv_exit_status(), channel.exit_status_ready(), channel.closed)
    pause = threading.Event()
    for _ in range(1000):
        if not transport.is_active():
            break
        pause.wait(0.01)
    see(transport.is_active(), transport.is_authenticated())
    each(see, channel, ("send", b"x"), ("recv", 1), ("exec_command", "true"))
    each(see, client, ("exec_command", "true"), ("open_sftp",))
    each(see, sftp, ("listdir", "."), ("stat", "."))
    client.close()


def closed_files(paramiko: Any, see: See, about: Any) -> None:
    """One file is closed, its session goes on."""
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    for mode in ("r", "w+", "a"):
        file = sftp.open(f"{about['directory']}/closed", "w")
        file.write("some words")
        file.close()
        file = sftp.open(f"{about['directory']}/closed", mode)
        file.readable() and file.read(3)
        file.writable() and file.write("more")
        file.close()
        calls: tuple[tuple[Any, ...], ...] = (
            *((name,) for name in ("tell", "stat", "flush", "readable", "writable", "seekable", "read", "readline")),
            *((name,) for name in ("readlines", "prefetch", "close", "xreadlines", "gettimeout", "__iter__")),
            ("write", "x"),
            ("writelines", ["x"]),
            ("chmod", 0o600),
            ("chown", 0, 0),
            ("utime", None),
            ("truncate", 1),
            ("seek", 1),
            ("readinto", bytearray(1)),
            ("set_pipelined",),
        )
        each(see, file, *(call for call in calls if file.readable() or not call[0].startswith("read")))
        see(file.closed, raised(lambda: list(file.readv([(0, 1)])))[0])  # noqa: B023
    client.close()


on_openssh: dict[str, Program] = {
    "files that are closed": closed_files,
    "clients that are closed": clients,
    "channels that are closed": channels,
    "transports that are closed": transports,
    "SFTP sessions that are closed": files,
    "connections that are cut off": cut_off,
}
