"""Programs for Paramiko that lose nothing of what has come: what was closed, what took too long."""

from __future__ import annotations

import io
import select
import time
from collections.abc import Callable
from typing import Any

from .programs_paramiko import Program, See, _client, kind

#: Long enough for what is on its way to arrive, in seconds.
_ARRIVAL = 0.5


def closed_channels(paramiko: Any, see: See, about: Any) -> None:
    """The data that had come when a channel, or its connection, was closed here."""
    for end in ("channel", "transport", "client"):
        client = _client(paramiko, about)
        channels = []
        for how in ("plain", "watched", "combined", "begun", "much"):
            channel = client.get_transport().open_session()
            channel.set_combine_stderr(how == "combined")
            if how == "watched":
                select.select([channel], [], [], 0)
            channel.exec_command("seq 300000" if how == "much" else "seq 3; echo err >&2; exit 3")
            if how == "begun":
                see(how, channel.recv(2))
            channels.append(channel)
            see(how, channel.recv_exit_status())
        time.sleep(_ARRIVAL)
        for closed in {"channel": channels, "transport": [client.get_transport()], "client": [client]}[end]:
            closed.close()
        for channel in channels:
            out, err = channel.makefile("rb").read(), channel.makefile_stderr("rb").read()
            see(end, len(out), sorted(out[:20]), err, channel.recv(1), channel.recv_ready())
        client.close()


def endless_output(paramiko: Any, see: See, about: Any) -> None:
    """A channel is closed while output comes: not more is kept than a window holds."""
    client = _client(paramiko, about)
    _, stdout, _ = client.exec_command("yes")
    time.sleep(_ARRIVAL)
    stdout.channel.close()
    kept = stdout.read()
    see(0 < len(kept) < 4 * 1024 * 1024, kept[:4])
    client.close()


def ended_reading(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    for how in (0, 2, None):
        for command in ("seq 3; echo err >&2", f"sleep {_ARRIVAL}; seq 3; echo err >&2"):
            _, stdout, stderr = client.exec_command(command)
            channel = stdout.channel
            (channel.shutdown_read if how is None else lambda: channel.shutdown(how))()  # noqa: B023
            see(bool(channel.eof_received), stdout.read(), stderr.read(), channel.recv_exit_status())
    client.close()


def late_output(paramiko: Any, see: See, about: Any) -> None:
    """The next read gets the data of one that took too long."""
    client = _client(paramiko, about)

    def begin(command: str) -> Any:
        return client.exec_command(command, timeout=_ARRIVAL)[1]

    late = f"printf abcdef; sleep {3 * _ARRIVAL}; echo ghi"
    stdout = begin(late)
    see(kind(lambda: stdout.read(10)))
    time.sleep(3 * _ARRIVAL)
    see(stdout.read(10), stdout.tell())
    stdout, buffer = begin(late), bytearray(10)
    see(kind(lambda: stdout.readinto(buffer)), bytes(buffer))
    time.sleep(3 * _ARRIVAL)
    see(stdout.readinto(buffer), bytes(buffer))
    stdout = begin(f"printf 'one\\ntwo'; sleep {3 * _ARRIVAL}; echo; echo three")
    see(stdout.readline(), kind(lambda: stdout.read(4)))
    time.sleep(3 * _ARRIVAL)
    see(list(stdout))
    client.close()


def places(paramiko: Any, see: See, about: Any) -> None:
    """The places of files, in all modes."""
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    path = f"{about['directory']}/places"
    for mode in ("r", "r+", "w", "w+", "a", "a+", "rU", "rw", "wx"):
        # With a buffer, Paramiko writes behind what it has read ahead.
        for bufsize in (-1, 0) if mode == "r+" else (-1, 0, 1, 64):
            sftp.putfo(io.BytesIO(b"abcdef\r\nghi\rjkl\nmno"), path)
            if mode == "wx":
                sftp.remove(path)
            seen: list[Any] = []
            with sftp.open(path, mode, bufsize) as file:
                seen += [file.tell(), outcome(lambda: file.read(2)), file.tell()]
                file.seek(3)
                seen += [file.tell(), outcome(lambda: file.write("XY")), outcome(file.flush), file.tell()]
                seen += [
                    outcome(lambda: file.read(2)),
                    file.tell(),
                    outcome(lambda: file.write("Z")),
                    outcome(file.flush),
                ]
                file.seek(0)
                seen += [file.tell(), outcome(file.readline), outcome(lambda: file.readline(2))]
                if mode != "rU":
                    file.seek(2, file.SEEK_CUR)
                seen += [outcome(lambda: file.read(3)), outcome(lambda: file.write("+")), outcome(file.flush)]
                # Paramiko counts a line's end as one, whatever it was.
                seen.append(None if mode == "rU" else file.tell())
                file.seek(-3, file.SEEK_END)
                seen += [file.tell(), outcome(file.readlines), outcome(file.read), file.tell(), file.newlines]
            see(mode, bufsize, *seen, file.tell())
            with sftp.open(path) as file:
                see(file.read())
    file = client.get_transport().open_session()
    stdin, stdout, _ = client.exec_command("cat")
    see(stdin.tell(), stdin.write("hello"), stdin.tell(), stdin.write(b"\n"), stdin.tell())
    see(stdout.readline(), stdout.tell())
    for text in ("a\\r\\nb\\n", "a\\rb\\r\\nc\\r\\r\\nd"):
        for size in (None, 0, 1, 2, 3):
            channel = client.get_transport().open_session()
            channel.exec_command(f"printf '{text}'")
            time.sleep(_ARRIVAL / 10)
            file = channel.makefile("rU")
            see(file.readline(size), file.tell(), file.newlines, file.readline(), file.newlines, file.read(), file.newlines)
    client.close()


def outcome(call: Callable[[], object]) -> object:
    """Return the value or the exception of a call."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


on_openssh: dict[str, Program] = {
    "output of closed channels": closed_channels,
    "endless output": endless_output,
    "reading that is ended": ended_reading,
    "late output": late_output,
    "places in files": places,
}
