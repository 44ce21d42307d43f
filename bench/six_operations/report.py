"""Charts, as SVG files and in one HTML page that needs nothing else: ``report.py results.json``."""

from __future__ import annotations

import html
import io
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from clients import AUTHENTICATION, CHANNEL_OPEN, CHANNEL_READ, CLOSE, EXECUTE, SFTP_READ, TOTAL
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

OPEN_AND_EXECUTE = "channel open and execute"
WITHOUT_SFTP = "without SFTP"

#: In the page's order. What a library cannot tell apart is compared together.
SHOWN = (TOTAL, WITHOUT_SFTP, AUTHENTICATION, OPEN_AND_EXECUTE, CHANNEL_OPEN, EXECUTE, CHANNEL_READ, CLOSE, SFTP_READ)
COMPARED = tuple(name for name in SHOWN if name not in (CHANNEL_OPEN, EXECUTE))

WARM = "trunkline, warm"

#: Told apart by people who see colours differently, on white and on black (after Okabe and Ito).
COLOURS = {
    "trunkline": "#d55e00",
    "trunkline, curve25519": "#ff9d6e",
    WARM: "#e6b800",
    "Paramiko": "#3b8fd4",
    "ssh2-python": "#009e73",
    "ssh-python": "#b07aa1",
    "asyncssh": "#7f8c3a",
}
#: Stands for the colour of the page's text, which is not known here.
INK = "#010203"

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "six operations",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#8888884d",
    "savefig.transparent": True,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Six operations of an SSH client</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem;
  color: light-dark(#1c1e21, #e4e6ea); background: light-dark(#fff, #15171a); }}
figure {{ margin: 0; }}
svg {{ width: 100%; height: auto; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem; }}
.bars {{ grid-template-columns: repeat(auto-fill, minmax(32rem, 1fr)); }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
th, td {{ padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }}
td {{ white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid var(--line); }}
dt {{ float: left; clear: left; width: 6rem; font-weight: 600; }}
.legend span {{ margin-right: 1.2rem; white-space: nowrap; }}
.legend i {{ display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin-right: .35rem; }}
</style>
<h1>Six operations of an SSH client</h1>
<p>What Python's SSH libraries take to log in, open a channel, run <code>cat</code> on 26 KB, read it, close the channel with
its exit status, and read 11 MB over SFTP, with so many sessions at once in one process. Every session logs in anew, but for
“trunkline, warm”, whose sessions use the connections that are there. Lines are medians of all sessions, shades reach up to
the 99th percentile. “Total” is a session from its start until it is disconnected. asyncssh opens a channel and executes in
one call, and trunkline in one flight: they are compared by the sum. trunkline and asyncssh check the server's host key, the
others do not. trunkline does the post-quantum key exchange that OpenSSH does (sntrup761), “trunkline, curve25519” the one
that the other libraries do.</p>
<dl>{facts}</dl>
<p class="legend">{legend}</p>
{failures}{series}
</html>
"""


def write(results: dict[str, Any], directory: Path) -> None:
    """Writes the page, and its charts as files beside it."""
    page = ""
    for series in dict.fromkeys(record["series"] for record in results["records"]):
        records = [record for record in results["records"] if record["series"] == series]
        charts = {name: lines(records, name) for name in SHOWN}
        charts["CPU time of the client"] = figures(records, "cpu", 1000, "ms for a session")
        charts["memory of the client"] = figures(records, "memory", 1e-6, "MB, at most")
        charts["all sessions together"] = figures(records, "wall", 1, "s")
        counts = sorted({record["sessions"] for record in records})
        bars = {f"{count} at once": ratios(records, count) for count in compare_counts(counts)}
        for name, chart in {**charts, **bars}.items():
            (directory / f"{slug(series)}-{slug(name)}.svg").write_text(chart.replace(INK, "#555"))
        page += f"<h2>Logging in with the {html.escape(series)}</h2>"
        page += f"<h3>Times as fast as Paramiko</h3><div class='charts bars'>{''.join(map(inline, bars.values()))}</div>"
        page += f"<h3>By the number of sessions</h3><div class=charts>{''.join(map(inline, charts.values()))}</div>"
        page += "".join(table(records, count) for count in compare_counts(counts))
    facts = "".join(f"<dt>{html.escape(name)}<dd>{html.escape(fact)}" for name, fact in results["facts"].items())
    legend = "".join(
        f"<span><i style='background:{colour}'></i>{html.escape(name)}</span>" for name, colour in COLOURS.items()
    )
    failures = "".join(
        f"<p><b>{html.escape(who)}</b> failed: {html.escape(why)}" for who, why in results["failures"].items()
    )
    (directory / "report.html").write_text(PAGE.format(facts=facts, legend=legend, failures=failures, series=page))


def compare_counts(counts: list[int]) -> list[int]:
    """The numbers of sessions at which libraries are compared."""
    return [count for count in (1, 10, 20, 50) if count in counts] or counts[-1:]


def lines(records: list[dict[str, Any]], operation: str) -> str:
    """Milliseconds of an operation by the number of sessions."""
    figure, axes = chart(operation, "ms")
    for library, colour in COLOURS.items():
        found = [record for record in records if record["library"] == library and operation in record["operations"]]
        counts = [record["sessions"] for record in found]
        medians, p99 = ([record["operations"][operation][kind] * 1000 for record in found] for kind in ("median", "p99"))
        plot(axes, library, counts, medians, colour)
        axes.fill_between(counts, medians, p99, color=colour, alpha=0.12, linewidth=0)
    return svg(figure, axes)


def figures(records: list[dict[str, Any]], figure_: str, factor: float, unit: str) -> str:
    """Another figure by the number of sessions."""
    titles = {"cpu": "CPU time of the client", "memory": "memory of the client", "wall": "all sessions together"}
    figure, axes = chart(titles[figure_], unit)
    for library, colour in COLOURS.items():
        found = [record for record in records if record["library"] == library]
        values = [record[figure_] * factor for record in found]
        plot(axes, library, [record["sessions"] for record in found], values, colour)
    return svg(figure, axes)


def plot(axes: Axes, library: str, counts: list[int], values: list[float], colour: str) -> None:
    axes.plot(counts, values, label=library, color=colour, linewidth=1.8, marker="o", markersize=2.5)


def ratios(records: list[dict[str, Any]], count: int) -> str:
    """How often each library does an operation while Paramiko does it once."""
    by_library = {record["library"]: record["operations"] for record in records if record["sessions"] == count}
    base = by_library.get("Paramiko", {})
    libraries = [library for library in COLOURS if library in by_library and library != "Paramiko"]
    names = [name for name in COMPARED if name in base]
    figure, axes = chart(f"{count} at once", height=7)
    height = 0.84 / max(1, len(libraries))
    for number, library in enumerate(libraries):
        # What is warm does not log in.
        here = [(place, name) for place, name in enumerate(names) if (library, name) != (WARM, AUTHENTICATION)]
        values = [base[name]["median"] / by_library[library][name]["median"] for _, name in here]
        places = [place + number * height for place, _ in here]
        # From Paramiko's 1: to the right who is faster, to the left who is slower.
        axes.barh(places, [value - 1 for value in values], height, left=1, label=library, color=COLOURS[library])
        for place, value in zip(places, values):
            side = "left" if value >= 1 else "right"
            axes.text(value, place, f" {value:.2g} " if value < 10 else f" {value:.0f} ", fontsize=8, ha=side, va="center")
    middle = height * (len(libraries) - 1) / 2
    axes.set_yticks([place + middle for place in range(len(names))], names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.axvline(1, color=COLOURS["Paramiko"], linewidth=1.5)
    axes.set_xlabel("Paramiko / …, by the medians")
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    return svg(figure, None)


def chart(title: str, unit: str = "", height: float = 3.0) -> tuple[Figure, Axes]:
    matplotlib.rcParams.update(STYLE)
    figure, axes = plt.subplots(figsize=(5.6, height), layout="constrained")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_ylabel(unit)
    return figure, axes


def svg(figure: Figure, by_sessions: Axes | None) -> str:
    if by_sessions:
        by_sessions.set_xlabel("sessions at once")
        by_sessions.set_ylim(bottom=0)
        by_sessions.xaxis.set_major_locator(MaxNLocator(integer=True))
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
    return file.getvalue()


def inline(chart: str) -> str:
    """A chart within a page, whose text has the colour of the page's."""
    drawing = chart[chart.index("<svg") :].replace(INK, "currentColor")
    # Names within a drawing are the page's: those of another drawing would be found instead.
    mark = f"c{zlib.crc32(drawing.encode()):x}"
    drawing = re.sub(r'id="([^"]+)"', rf'id="{mark}\1"', drawing)
    drawing = re.sub(r'(href="|url\()#', rf"\1#{mark}", drawing)
    return f"<figure>{drawing}</figure>"


def table(records: list[dict[str, Any]], count: int) -> str:
    """Medians and 99th percentiles, in numbers."""
    chosen = [record for record in records if record["sessions"] == count]
    head = "".join(f"<th>{html.escape(name)}" for name in (*COMPARED, "CPU", "memory"))
    rows = ""
    for record in chosen:
        cells = ""
        for name in COMPARED:
            found = record["operations"].get(name)
            cells += f"<td>{ms(found['median'])} <small>({ms(found['p99'])})</small>" if found else "<td>"
        cells += f"<td>{ms(record['cpu'])}<td>{record['memory'] / 1e6:.0f} MB"
        rows += f"<tr><td>{html.escape(record['library'])}{cells}"
    return f"<h3>{count} at once: ms, median (and 99th percentile) of a session</h3><table><tr><th>{head}{rows}</table>"


def ms(seconds: float) -> str:
    """Milliseconds, to a tenth, or to a hundredth where that is not much."""
    return f"{seconds * 1000:.{1 if seconds >= 0.001 else 2}f}"


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    write(json.loads(path.read_text()), path.parent)
