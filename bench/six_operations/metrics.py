"""Figures for Grafana, as they come: lines of Graphite's plaintext protocol, or of InfluxDB's line protocol."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Protocol


class Sink(Protocol):
    def write(self, series: str, library: str, count: int, figures: dict[str, float]) -> None: ...


def word(name: str) -> str:
    """A name without what either protocol gives a meaning."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


class Graphite:
    """``six_operations.SERIES.LIBRARY.FIGURE VALUE TIME``, to a server. The number of sessions is a figure too, so that it
    can be drawn beside the others."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)))

    def write(self, series: str, library: str, count: int, figures: dict[str, float]) -> None:
        path, now = f"six_operations.{word(series)}.{word(library)}", int(time.time())
        named = {"sessions": float(count), **figures}
        self._socket.sendall("".join(f"{path}.{word(name)} {value} {now}\n" for name, value in named.items()).encode())


class Influx:
    """``six_operations,series=…,library=…,sessions=… figure=value,… nanoseconds``, to a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def write(self, series: str, library: str, count: int, figures: dict[str, float]) -> None:
        tags = f"series={word(series)},library={word(library)},sessions={count}"
        fields = ",".join(f"{word(name)}={value}" for name, value in figures.items())
        self._file.write(f"six_operations,{tags} {fields} {time.time_ns()}\n")
        self._file.flush()
