"""Programs for Paramiko that lose nothing of what has come: what was closed, what took too long."""

from __future__ import annotations

import select
import time
from typing import Any

from .programs_paramiko import Program, See, _client

#: Long enough for what is on its way to arrive, in seconds.
_ARRIVAL = 0.5


def closed_channels(paramiko: Any, see: See, about: Any) -> None:
    """What had come when a channel, or its connection, was closed here."""
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
            see(how, -1 if how == "much" else channel.recv_exit_status())
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
            see(bool(channel.eof_received), channel.closed, stdout.read(), stderr.read(), channel.recv_exit_status())
    client.close()


on_openssh: dict[str, Program] = {
    "channels that are closed": closed_channels,
    "endless output": endless_output,
    "reading that is ended": ended_reading,
}
