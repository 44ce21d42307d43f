"""A strict type checker's view of programs, and objects that survive a pickle."""

from __future__ import annotations

import errno
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trunkline
from conftest import Testbed

#: Compiles under ``mypy --strict``, and shows the types that it has found.
PROGRAM = """
import trunkline
from trunkline import aio

box = trunkline.connect("box1")
for result in trunkline.Group("web[1-3]").run("uptime"):
    if result.error:
        print(result.error.kind, result.host)
    else:
        print(result.result.stdout.upper())
for other in trunkline.Group("web[1-3]").run("uptime", encoding=None).wait():
    if other.error is None:
        other.result.stdout.hex()
    else:
        other.error.may_have_run
for moved in trunkline.Group("web[1-3]").copy("file"):
    if moved.error is not None:
        raise moved.error
    print(moved.result.files)

def one(result: "trunkline.HostResult[trunkline.CompletedProcess[str]]") -> str:
    return str(result.error) if result.error else result.result.stdout

async def main() -> None:
    async for each in aio.Group("web[1-3]").run("uptime"):
        print(each.result.stdout if each.error is None else each.error.execution)
    async with aio.connect("box1") as there:
        reveal_type((await there.run("x")).stdout)
        reveal_type(await there.start("x", encoding=None))

with box.sftp() as sftp:
    reveal_type(sftp.open("x"))
    reveal_type(sftp.open("x", "rb"))
    reveal_type(sftp.open("x", "w"))
    reveal_type(sftp.open("x", "ab+"))
reveal_type(box.run("x"))
reveal_type(box.run("x", encoding=None))
reveal_type(box.start("x"))
reveal_type(box.start("x", encoding=None))
"""

REVEALED = [
    "str",
    "trunkline.aio._process.Process[bytes]",
    "IO[str]",
    "IO[bytes]",
    "IO[str]",
    "IO[bytes]",
    "trunkline._result.CompletedProcess[str]",
    "trunkline._result.CompletedProcess[bytes]",
    "trunkline._process.Process[str]",
    "trunkline._process.Process[bytes]",
]


def test_results_narrow_and_files_are_of_their_mode(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    sources = Path(trunkline.__file__).parent.parent
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(sources) if sources.name != "site-packages" else "", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    revealed = [line.split('"')[1] for line in checked.stdout.splitlines() if "Revealed" in line]
    assert [each.replace("typing.", "").replace("builtins.", "") for each in revealed] == REVEALED


def test_errors_survive_a_pickle(testbed: Testbed, tmp_path: Path) -> None:
    with trunkline.connect("box1", config=testbed.config, daemon=False) as box, box.sftp() as sftp:
        with pytest.raises(FileNotFoundError) as missing:
            sftp.stat("/no/such/file")
        with pytest.raises(trunkline.CommandError) as status:
            box.run("echo out; exit 3", check=True)
        with pytest.raises(FileNotFoundError) as uncopied:
            box.get("/no/such/file", tmp_path)
    limit = trunkline.LimitError("no")
    limit.reason = 2
    errors = (missing.value, status.value, uncopied.value, limit, trunkline.HostKeyError("x", execution="did not start"))
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), repr(copy), copy.args) == (str(error), repr(error), error.args)
        assert vars(copy) == vars(error)
        for name in ("errno", "filename", "reason", "execution"):
            assert getattr(copy, name, None) == getattr(error, name, None)


def test_copies_fail_as_files_do(testbed: Testbed, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    (there / "directory").mkdir()
    (there / "file").write_text("content")
    with trunkline.connect("box1", config=testbed.config, daemon=False) as box, box.sftp() as sftp:
        table: list[tuple[Callable[[], object], type[OSError], int]] = [
            (lambda: box.get(there / "none", here), FileNotFoundError, errno.ENOENT),
            (lambda: box.put(here / "none", there), FileNotFoundError, errno.ENOENT),
            (lambda: sftp.get(there / "none", here), FileNotFoundError, errno.ENOENT),
            (lambda: sftp.put(here / "none", there), FileNotFoundError, errno.ENOENT),
            (lambda: box.get(there / "file", here / "no" / "such" / "directory"), FileNotFoundError, errno.ENOENT),
            (lambda: box.put(there / "file", there / "no" / "such" / "directory"), FileNotFoundError, errno.ENOENT),
        ]
        for number, (copy, kind, code) in enumerate(table):
            with pytest.raises(kind) as failure:
                copy()
            assert isinstance(failure.value, (trunkline.FileError, trunkline.LocalFileError))
            assert failure.value.errno == code, number
            assert "No such file or directory" in str(failure.value)
        with pytest.raises(IsADirectoryError):
            box.get(there / "directory", here)
        with pytest.raises(IsADirectoryError):
            box.put(there / "directory", here)


def test_any_key_may_be_believed_where_a_test_asks_for_it(testbed: Testbed, tmp_path: Path) -> None:
    config = tmp_path / "config"
    lines = Path(testbed.config).read_text().splitlines()
    config.write_text("\n".join(line for line in lines if "KnownHosts" not in line))
    with trunkline.connect("box1", config=config, daemon=False, known_hosts=False, share=False) as box:
        assert box.run("echo let in").stdout == "let in\n"
