"""Files on a server, and ports of it."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import io
import os
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trunkline
from conftest import Testbed
from trunkline.compat import paramiko


@pytest.fixture
def sftp(box: trunkline.Connection) -> Iterator[trunkline.SFTP]:
    with box.sftp() as session:
        yield session


def test_a_file_reads_as_it_was_written(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    content = os.urandom(3_000_001)
    path = tmp_path / "ü file"
    sftp.write_bytes(path, content)
    assert path.read_bytes() == content
    assert sftp.read_bytes(str(path)) == content
    sftp.write_text(path, "short ü")
    assert sftp.read_text(path) == "short ü"


def test_open_files_are_files_for_the_standard_library(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    big, packed, table = tmp_path / "big", tmp_path / "packed.gz", tmp_path / "table.csv"
    with sftp.open(big, "wb") as target:
        target.write(content)
    assert big.read_bytes() == content
    with sftp.open(big, "rb") as source, sftp.open(packed, "wb") as target, gzip.open(target, "wb", 1) as packer:
        shutil.copyfileobj(source, packer)
    with sftp.open(packed, "rb") as source, gzip.open(source) as unpacked:
        assert unpacked.read() == content
    with sftp.open(table, "w") as lines:
        csv.writer(lines).writerows([["a", "ü"], ["b", "1"]])
    with sftp.open(table) as lines:
        assert list(csv.reader(lines)) == [["a", "ü"], ["b", "1"]]


def test_a_file_is_read_to_its_end_from_any_place(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    with sftp.open(path, "rb") as file:
        assert file.read() == content
        assert file.read() == b""
        assert file.seek(4_000_000) == 4_000_000
        # Some of it is in the buffer by then.
        assert file.read(3) == content[4_000_000:4_000_003]
        assert file.read() == content[4_000_003:]
        assert file.tell() == len(content)
    # The kernel says 0 bytes of it.
    assert sftp.read_text("/proc/self/limits").startswith("Limit")
    with sftp.open(path, "wb") as file, pytest.raises(io.UnsupportedOperation):
        file.read()


def test_a_place_in_a_file_can_be_sought(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 40)
    with sftp.open(path, "r+b") as file:
        assert (file.seek(256 * 20 + 7), file.read(3)) == (256 * 20 + 7, b"\x07\x08\x09")
        assert (file.seek(-1, os.SEEK_END), file.read(5)) == (256 * 40 - 1, b"\xff")
        file.seek(5)
        file.write(b"here")
        file.seek(3)
        assert file.read(8) == b"\x03\x04here\x09\x0a"
        file.truncate(12)
    assert path.stat().st_size == 12
    with sftp.open(path, "ab") as file:
        file.write(b"end")
    assert path.read_bytes().endswith(b"end")
    with pytest.raises(OSError, match=r"."):
        sftp.open(path, "xb")
    with pytest.raises(ValueError, match="mode"):
        sftp.open(path, "rw")


def test_what_the_server_refuses_is_an_os_error_of_the_kind(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file or directory") as caught:
        sftp.read_bytes(tmp_path / "none")
    assert isinstance(caught.value, trunkline.FileError)
    assert not sftp.exists(tmp_path / "none")
    with pytest.raises(OSError, match="removing the directory failed"):
        sftp.rmdir("/proc")


@pytest.mark.parametrize("mode", ["wb", "r+b", "w"])
def test_a_flush_tells_what_did_not_arrive(sftp: trunkline.SFTP, mode: str) -> None:
    file = sftp.open("/dev/full", mode)
    file.write("content" if mode == "w" else b"content")
    with pytest.raises(trunkline.FileError):
        file.flush()
    with contextlib.suppress(trunkline.FileError):
        file.close()


def test_a_new_name_that_is_there_already_is_file_exists(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "dangling"):
        path = tmp_path / name
        for make in (
            lambda path: sftp.open(path, "x"),
            sftp.mkdir,
            lambda path: sftp.symlink("target", path),
            lambda path: sftp.link(tmp_path / "file", path),
        ):
            with pytest.raises(FileExistsError) as caught:
                make(path)
            assert isinstance(caught.value, trunkline.FileError)
            assert (caught.value.errno, caught.value.filename) == (errno.EEXIST, str(path))
    with sftp.open(tmp_path / "new", "x") as file:
        file.write("x")


def test_directories_are_listed_and_walked(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    top = tmp_path / "top"
    sftp.mkdir(top / "a/b", parents=True)
    sftp.mkdir(top / "a/b", parents=True)
    for name in ("one", "a/two", "a/b/three"):
        sftp.write_text(top / name, name)
    sftp.symlink("a", top / "link")
    assert sftp.listdir(top) == ["a", "link", "one"]
    entry = sftp.scandir(top)[2]
    assert (entry.path, entry.stat.st_size, entry.stat.is_file()) == (str(top / "one"), 3, True)
    expected = [
        (str(top / sub) if sub else str(top), sorted(d), sorted(f))
        for sub, d, f in [("", ["a"], ["link", "one"]), ("a", ["b"], ["two"]), ("a/b", [], ["three"])]
    ]
    assert list(sftp.walk(top)) == expected
    assert sftp.readlink(top / "link") == "a"
    assert sftp.lstat(top / "link").is_symlink()
    assert sftp.realpath(top / "link") == str(top / "a")


def test_attributes_are_set_and_told(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    path = tmp_path / "file"
    sftp.write_bytes(path, b"12345")
    sftp.chmod(path, 0o640)
    sftp.utime(path, (1000, 2000))
    sftp.truncate(path, 3)
    sftp.utime(path, (1000, 2000))
    about = sftp.stat(path)
    assert (stat.S_IMODE(about.st_mode), about.st_mtime, about.st_size) == (0o640, 2000, 3)
    sftp.rename(path, tmp_path / "other")
    sftp.link(tmp_path / "other", path)
    sftp.remove(path)
    assert (tmp_path / "other").exists()


def test_trees_are_copied_both_ways(box: trunkline.Connection, tmp_path: Path) -> None:
    here, there, back = tmp_path / "here", tmp_path / "there", tmp_path / "back"
    (here / "sub").mkdir(parents=True)
    (here / "sub" / "file").write_text("x" * 100_000)
    assert box.put(here, there, recursive=True).bytes == 100_000
    assert box.get(there, back, recursive=True).bytes == 100_000
    assert (back / "sub" / "file").read_text() == "x" * 100_000
    with box.sftp() as sftp:
        assert sftp.get(there / "sub" / "fi*", tmp_path).files == 1
    assert (tmp_path / "file").exists()
    with pytest.raises(trunkline.FileError, match="none"):
        box.get(tmp_path / "none", back)


def test_threads_share_a_session(sftp: trunkline.SFTP, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(number: int) -> bytes:
        path = tmp_path / str(number)
        sftp.write_bytes(path, b"%d" % number)
        return sftp.read_bytes(path)

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(work, range(100))) == [b"%d" % number for number in range(100)]


def test_a_server_without_an_sftp_server_says_how_it_ended() -> None:
    bed = Testbed("--config", "Subsystem sftp /nothing/here")
    try:
        with (
            trunkline.connect(bed.aliases[0], config=bed.config, daemon=False) as box,
            pytest.raises(trunkline.SftpServerError, match="ended before it began, with exit status 127"),
        ):
            box.sftp().listdir("/")
        with paramiko.SSHClient() as client:
            client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
            host = bed.about["hosts"][0]
            client.connect(host["address"], host["port"], host["user"], key_filename=host["key"], allow_agent=False)
            # As the original has it.
            with pytest.raises(paramiko.SSHException, match="EOF during negotiation"):
                client.open_sftp()
    finally:
        bed.close()


def test_a_closed_session_says_so(box: trunkline.Connection) -> None:
    sftp = box.sftp()
    sftp.close()
    with pytest.raises(ValueError, match="closed"):
        sftp.listdir()


class Echo:
    """A server on loopback that sends back what it gets."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            with client:
                client.sendall(client.recv(100))


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.server.close()


def say(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"hello")
        return client.recv(100)


def test_ports_are_forwarded_both_ways(box: trunkline.Connection, echo: Echo) -> None:
    with box.forward_local(0, ("127.0.0.1", echo.port)) as local:
        assert say(local.port) == b"hello"
        assert local.counters.accepted == 1
        port = local.port
    with pytest.raises(ConnectionRefusedError):
        say(port)
    # Of both families' loopback addresses, a port that is free on one may be another server's on the other.
    with box.forward_remote(("127.0.0.1", 0), ("127.0.0.1", echo.port)) as remote:
        assert say(remote.port) == b"hello"


def test_unix_sockets_and_socks_are_forwarded(box: trunkline.Connection, echo: Echo, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with box.forward_local(path, ("127.0.0.1", echo.port)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
    with box.forward_socks() as socks, socket.create_connection(("127.0.0.1", socks.port)) as client:
        # RFC 1928: no authentication; CONNECT to an IPv4 address.
        client.sendall(b"\x05\x01\x00")
        assert client.recv(2) == b"\x05\x00"
        client.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + echo.port.to_bytes(2, "big"))
        assert client.recv(10)[:2] == b"\x05\x00"
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"


def test_what_is_no_port_is_refused(box: trunkline.Connection) -> None:
    for port in (-1, 65536, True):
        with pytest.raises(ValueError, match="not a port number"):
            box.forward_local(port, 1)
