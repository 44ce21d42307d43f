"""Programs for Paramiko that hold its documentation to its word: limits of time, events, and what errors say of others."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from .programs_paramiko import Program, See, _client, kind, raised


def classes(call: Callable[[], object]) -> list[str]:
    """The classes of the exceptions that a traceback shows of a call."""
    try:
        call()
    except Exception as error:
        shown: list[str] = []
        each: BaseException | None = error
        while each is not None:
            shown.append(type(each).__name__)
            each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        return shown
    return []


def causes(paramiko: Any, see: See, about: Any) -> None:
    wrong = paramiko.Ed25519Key.from_private_key_file(about["other_key"])
    see(classes(lambda: _client(paramiko, about, key_filename=None, pkey=wrong)))
    see(classes(lambda: _client(paramiko, about, key_filename=about["other_key"])))
    see(classes(lambda: _client(paramiko, about, key_filename=None)))
    see(classes(lambda: _client(paramiko, about, key_filename=None, password="x")))
    see(classes(lambda: _client(paramiko, about, key_filename="/no/such/key")))
    see(classes(lambda: _client(paramiko, about, key_filename=about["encrypted"])))
    see(classes(lambda: _client(paramiko, about, key_filename=about["encrypted"], passphrase="wrong")))
    see(classes(lambda: _client(paramiko, about, port=about["unused"])))
    see(classes(lambda: paramiko.SSHClient().connect("no-such-host.invalid", username="x")))
    see(classes(lambda: paramiko.SSHClient().connect(about["address"], port=about["port"], username="x", password="y")))
    see(classes(lambda: paramiko.Ed25519Key.from_private_key_file(about["encrypted"], "wrong")))
    client = _client(paramiko, about)
    transport, sftp = client.get_transport(), client.open_sftp()
    for name, *arguments in (
        ("stat", "/none"),
        ("open", "/none"),
        ("listdir", "/none"),
        ("chdir", "/none"),
        ("mkdir", "/"),
        ("rename", "/none", "/other"),
        ("get", "/none", os.path.join(about["directory"], "none")),
    ):
        see(name, classes(lambda: getattr(sftp, name)(*arguments)))  # noqa: B023
    see(classes(lambda: transport.open_channel("direct-tcpip", ("127.0.0.1", about["unused"]), ("127.0.0.1", 0))))
    see(classes(lambda: transport.open_session().invoke_subsystem("none")))
    client.close()
    see(classes(transport.open_session), classes(lambda: sftp.listdir(".")))


def writing(paramiko: Any, see: See, about: Any) -> None:
    """To a command that does not read, and one that does."""
    client = _client(paramiko, about)
    transport = client.get_transport()
    channel = transport.open_session()
    see(channel.send_ready())
    channel.exec_command("sleep 100")
    see(channel.send_ready(), channel.send(b""))
    channel.settimeout(0.3)

    def flood() -> None:
        # More than any window.
        for _ in range(64):
            channel.sendall(b"x" * 1_000_000)

    see(kind(flood), channel.send_ready(), kind(lambda: channel.sendall(b"y")), kind(lambda: channel.send(b"y")))
    channel.settimeout(0.0)
    see(kind(lambda: channel.send(b"y")))
    channel.close()
    channel = transport.open_session()
    channel.exec_command("wc -c")
    channel.settimeout(10)
    channel.sendall(b"x" * 3_000_000)
    channel.sendall("ää")
    channel.shutdown_write()
    see(channel.makefile("rb").read())
    stdin, _, _ = client.exec_command("sleep 100", timeout=0.3)
    see(kind(lambda: stdin.write(b"x" * 8_000_000)))
    client.close()


def full_windows(paramiko: Any, see: See, about: Any) -> None:
    """A command that reads only after a while: what may be sent without waiting, and when."""
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    go, end = (os.path.join(about["directory"], name) for name in ("go", "end"))
    channel.exec_command(f"until [ -e {go} ]; do sleep 0.05; done; wc -c; until [ -e {end} ]; do sleep 0.05; done")
    pause, silent, sent = threading.Event(), 0, 0
    # The server opens its window once more for what it has handed on.
    while silent < 10:
        if channel.send_ready():
            sent += channel.send(b"x" * 100_000)
            silent = 0
        else:
            pause.wait(0.05)
            silent += 1
    see(2_000_000 < sent < 8_000_000, channel.send_ready())
    for seconds in (0.0, 0.2):
        channel.settimeout(seconds)
        see(kind(lambda: channel.send(b"y")))
    with open(go, "w"):
        pass
    channel.settimeout(30)
    sent += channel.send(b"x" * 10)
    see(channel.send_ready())
    channel.shutdown_write()
    see(channel.send_ready(), channel.send(b"y"))
    with open(end, "w"):
        pass
    see(int(channel.makefile("rb").read()) == sent)
    see(channel.recv_exit_status())
    channel.close()
    see(kind(lambda: channel.send(b"y")), channel.send_ready())
    client.close()


def before_the_start(paramiko: Any, see: See, about: Any) -> None:
    """Operations on a session whose command comes later."""
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    channel.settimeout(0.05)
    see(kind(lambda: channel.recv(1)), kind(lambda: channel.recv_stderr(1)), channel.recv_ready(), channel.closed)
    channel.settimeout(None)
    came: list[bytes] = []
    readers = [
        threading.Thread(target=lambda: came.append(channel.recv(10))),
        threading.Thread(target=lambda: came.append(b"%d" % channel.recv_exit_status())),
    ]
    for reader in readers:
        reader.start()
    channel.exec_command("echo late; exit 4")
    for reader in readers:
        reader.join()
    see(sorted(came))
    channel = client.get_transport().open_session()
    reader = threading.Thread(target=lambda: came.append(channel.recv(10)))
    reader.start()
    client.close()
    reader.join()
    see(came[-1])


def let_go(paramiko: Any, see: See, about: Any) -> None:
    """Objects that end with their last owner."""
    client = _client(paramiko, about)
    see(client.exec_command("cat; echo end")[1].read())
    stdin, stdout, _ = client.exec_command("cat; echo end", bufsize=100)
    stdin.write("last")
    del stdin
    see(stdout.read(), stdout.channel.eof_sent)
    channel = client.get_transport().open_session()
    channel.exec_command("cat")
    for word in ("one", "two"):
        channel.makefile("w").write(word)
    see(bool(channel.eof_sent), channel.shutdown_write(), channel.makefile().read())
    client.close()

    def commands() -> Any:
        return _client(paramiko, about).exec_command("cat; sleep 0.1; echo there")

    see(commands()[1].read())
    see(_client(paramiko, about).open_sftp().listdir(about["directory"]))
    with open(os.path.join(about["directory"], "words"), "w") as words:
        words.write("some")
    see(_client(paramiko, about).open_sftp().open(words.name).read())


def count(paramiko: Any, see: See, about: Any) -> None:
    """The number of bytes sent: bytes, or characters of text."""
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    channel.exec_command("cat")
    for text in ("äöü", "", "a€b", "😀😀", "äöü".encode(), b""):
        see(channel.send(text))
    channel.sendall("ä€😀")
    channel.shutdown_write()
    see(channel.makefile("rb").read().decode())
    client.close()


def sizes(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    channel.get_pty("xterm", 90, 30, 800, 600)
    look = "print(struct.unpack('4H', fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))), flush=True)"
    channel.exec_command(f'python3 -c "import fcntl, struct, termios\n{look}\ninput()\n{look}"')
    output = channel.makefile("rb")
    see(output.readline())
    channel.resize_pty(91, 31, 801, 601)
    channel.sendall("\n")
    # Behind the echo.
    see(output.read().split(b"\r\n")[-2:], channel.recv_exit_status())
    # Before there is a command.
    channel = client.get_transport().open_session()
    channel.get_pty("xterm", 90, 30)
    see(channel.resize_pty(91, 31), channel.exec_command("stty size"), channel.makefile("rb").read())
    channel = client.get_transport().open_session()
    see(channel.resize_pty(91, 31), channel.get_pty("xterm", 90, 30), channel.exec_command("stty size"))
    see(channel.makefile("rb").read())
    channel = client.get_transport().open_session()
    see(channel.resize_pty(91, 31), channel.exec_command("test -t 0 || echo none"), channel.makefile("rb").read())
    client.close()


def slow_answers(paramiko: Any, see: See, about: Any) -> None:
    """Limits for what the server is to do, set in all the ways that there are."""
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    fifo = os.path.join(about["directory"], "fifo")
    os.mkfifo(fifo)
    see(sftp.get_channel().gettimeout())
    sftp.get_channel().settimeout(0.3)
    # Nobody writes: the server waits.
    see(classes(lambda: sftp.open(fifo))[0])
    client.close()
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    file = sftp.open(os.path.join(about["directory"], "file"), "w+")
    file.settimeout(20)
    see(file.gettimeout(), sftp.get_channel().gettimeout())
    file.setblocking(False)
    see(file.gettimeout())
    file.setblocking(True)
    see(file.gettimeout(), file.write("x"), file.close())
    client.close()


def deaf_server(paramiko: Any, see: See, about: Any) -> None:
    """A server that no longer answers."""
    client = _client(paramiko, about)
    _, stdout, _ = client.exec_command("read pid rest < /proc/$PPID/stat; echo $pid")
    server = int(stdout.read())
    os.kill(server, signal.SIGSTOP)
    try:
        transport = client.get_transport()
        see(raised(lambda: client.exec_command("true", timeout=0.3)))
        see(raised(lambda: transport.open_session(timeout=0.3).exec_command("true")))
        transport.channel_timeout = 0.3
        see(raised(lambda: client.invoke_shell()), raised(client.open_sftp))
        see(raised(lambda: transport.open_channel("direct-tcpip", ("127.0.0.1", about["unused"]), ("127.0.0.1", 0))))
    finally:
        os.kill(server, signal.SIGKILL)
    client.close()


on_openssh: dict[str, Program] = {
    "what errors say of others": causes,
    "writing to commands": writing,
    "full windows": full_windows,
    "sessions before their start": before_the_start,
    "what is let go": let_go,
    "what is counted": count,
    "sizes of terminals": sizes,
    "slow answers": slow_answers,
    "a deaf server": deaf_server,
}


def events(paramiko: Any, see: See, about: Any) -> None:
    address = ("127.0.0.1", about["paramiko"])

    def begin() -> Any:
        transport, done = paramiko.Transport(address), threading.Event()
        see(transport.start_client(done), done.wait(10), transport.is_active(), transport.get_exception())
        return transport

    transport, done = begin(), threading.Event()
    see(transport.auth_password("me", "wrong", done), done.wait(10), transport.is_authenticated())
    done.clear()
    see(transport.auth_password("me", "sesame", done), done.wait(10), transport.is_authenticated())
    transport.close()
    transport, done = begin(), threading.Event()
    # The server takes its time.
    see(transport.auth_password("slow", "x", done), done.is_set(), transport.is_authenticated())
    transport.close()
    transport, done = begin(), threading.Event()
    key = paramiko.Ed25519Key.from_private_key_file(about["other_key"])
    see(transport.auth_publickey("keyonly", key, done), done.wait(10), transport.is_authenticated())
    transport.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport, done = paramiko.Transport(server.getsockname()), threading.Event()
        see(transport.start_client(done))
        connection, _ = server.accept()
        server.close()
        connection.close()
        see(done.wait(10), transport.is_active(), type(transport.get_exception()).__name__)
        transport.close()


def files(paramiko: Any, see: See, about: Any) -> None:
    """On a server without any of OpenSSH's extensions, which renames as POSIX does for one user only."""
    for user in ("me", "posix"):
        transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
        transport.connect(username=user, password="sesame")
        sftp = transport.open_sftp_client()
        directory = os.path.join(about["directory"], user)
        sftp.mkdir(directory)
        sftp.chdir(directory)
        for name in ("one", "two", "three"):
            with sftp.open(name, "w") as file:
                file.write(name * 10_000)
        see(raised(lambda: sftp.rename("one", "two"), "errno"))  # noqa: B023
        see(raised(lambda: sftp.posix_rename("one", "two"), "errno"))  # noqa: B023
        see(raised(lambda: sftp.posix_rename("one", "new"), "errno"))  # noqa: B023
        see(raised(lambda: sftp.posix_rename("none", "new"), "errno"))  # noqa: B023
        see(raised(lambda: sftp.rename("three", "four"), "errno"))  # noqa: B023
        see(raised(lambda: sftp.rename("none", "five"), "errno"))  # noqa: B023
        sftp.symlink("two", "link")
        see(sftp.readlink("link"), sorted((each.filename, each.st_size) for each in sftp.listdir_attr()))
        with sftp.open("two", "r+") as file:
            file.seek(3)
            file.write("x")
            see(file.stat().st_size, file.tell())
        with sftp.open("two", "a") as file:
            file.write("end")
        with sftp.open("two") as file:
            see(file.read(8), list(file.readv([(0, 4), (29_990, 20)])), file.readline()[-5:])
        sftp.truncate("two", 5)
        sftp.chmod("two", 0o600)
        see(sftp.stat("two").st_size, oct(sftp.stat("two").st_mode or 0), raised(lambda: sftp.mkdir("two"), "errno"))  # noqa: B023
        see(raised(lambda: sftp.open("two", "x"), "errno"), raised(lambda: sftp.open("none"), "errno"))  # noqa: B023
        sftp.remove("two")
        see(raised(lambda: sftp.stat("two"), "errno"), raised(lambda: sftp.rmdir("none"), "errno"))  # noqa: B023
        transport.close()


on_paramiko: dict[str, Program] = {"events of log-ins": events, "files without extensions": files}
