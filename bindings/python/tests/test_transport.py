"""Transports step by step, as programs for Paramiko use them; where it says so, beside the real one."""

from __future__ import annotations

import gc
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Testbed, run_python
from trunkline.compat import paramiko

OURS = "import trunkline.compat.paramiko; trunkline.compat.paramiko.install()\n"


@pytest.fixture(scope="module")
def strict() -> Iterator[Testbed]:
    """A server that wants a key and then a password."""
    bed = Testbed("--password", "right", "--config", "AuthenticationMethods publickey,password")
    yield bed
    bed.close()


def about(bed: Testbed) -> dict[str, Any]:
    host: dict[str, Any] = bed.about["hosts"][0]
    return host


def test_a_host_key_can_be_looked_at_before_the_log_in(testbed: Testbed) -> None:
    host = about(testbed)
    transport = paramiko.Transport((host["address"], host["port"]))
    with pytest.raises(paramiko.SSHException, match="No existing session"):
        transport.get_remote_server_key()
    transport.start_client(timeout=60)
    key = transport.get_remote_server_key()
    assert (
        f"{key.get_name()} {key.get_base64()}" in [line.rsplit(" ", 1)[0] for line in host["host_keys"]] + host["host_keys"]
    )
    assert (transport.is_active(), transport.is_authenticated()) == (True, False)
    assert transport.auth_publickey(host["user"], paramiko.PKey.from_path(host["key"])) == []
    assert transport.is_authenticated()
    assert transport.getpeername() == (host["address"], host["port"])
    transport.close()
    assert not transport.is_active()


PROGRAM = """
import sys, paramiko
host, port, user, key, other = sys.argv[1:]
def transport():
    made = paramiko.Transport((host, int(port)))
    made.start_client()
    return made
def show(*values):
    print(*values, flush=True)
def tell(error):
    show(type(error).__name__, sorted(getattr(error, "allowed_types", [])))
t = transport()
try:
    t.auth_none(user)
except paramiko.SSHException as error:
    tell(error)
try:
    t.auth_password(user, "right")
except paramiko.SSHException as error:
    tell(error)
t.close()
t = transport()
show(t.auth_publickey(user, paramiko.Ed25519Key.from_private_key_file(key)), t.is_authenticated())
show(t.auth_password(user, "right"), t.is_authenticated())
channel = t.open_session()
channel.exec_command("echo let in")
show(channel.recv(100), channel.recv_exit_status())
t.close()
t = transport()
try:
    t.auth_publickey(user, paramiko.Ed25519Key.from_private_key_file(other))
except paramiko.SSHException as error:
    show(type(error).__name__)
t.close()
"""


def test_steps_of_a_log_in_are_as_with_paramiko(strict: Testbed, tmp_path: Path) -> None:
    host = about(strict)
    paramiko.Ed25519Key.generate().write_private_key_file(tmp_path / "other")
    arguments = host["address"], str(host["port"]), host["user"], host["key"], str(tmp_path / "other")
    theirs = run_python(PROGRAM, *arguments)
    ours = run_python(OURS + PROGRAM, *arguments)
    assert theirs.returncode == 0, theirs.stderr
    assert ours.stdout == theirs.stdout, ours.stderr


class Sleeper:
    """A stream that wakes nobody when it ends."""

    def __init__(self) -> None:
        self._limit: float | None = None
        self._never = threading.Event()
        self.reads = threading.Event()
        self.has_ended = False

    def settimeout(self, limit: float | None) -> None:
        self._limit = limit

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, size: int) -> bytes:
        if self.has_ended:
            return b""
        self.reads.set()
        self._never.wait(self._limit)
        raise socket.timeout("timed out")

    def close(self) -> None:
        self.has_ended = True


def test_a_stream_that_wakes_nobody_when_it_ends_is_noticed() -> None:
    stream = Sleeper()
    transport = paramiko.Transport(stream)
    transport.banner_timeout = 600
    over = threading.Event()
    transport.start_client(over)
    assert stream.reads.wait(60)
    stream.has_ended = True
    assert over.wait(60)
    assert isinstance(transport.get_exception(), paramiko.SSHException)
    transport.close()


def test_a_session_is_open_before_its_command_is_chosen() -> None:
    class Open(paramiko.ServerInterface):  # type: ignore[misc]
        def check_auth_password(self, username: str, password: str) -> int:
            return int(paramiko.AUTH_SUCCESSFUL)

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return int(paramiko.OPEN_SUCCEEDED)

        def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
            return True

    here, there = socket.socketpair()
    server, client = paramiko.Transport(there), paramiko.Transport(here)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(threading.Event(), Open())
    client.connect(username="me", password="sesame")
    for leave in (True, False):
        channel = client.open_session(timeout=60)
        opened: Any = server.accept(60)
        assert opened is not None
        if leave:
            channel.close()
            assert opened.recv(1) == b""
            opened.close()
            continue
        channel.exec_command("anything")
        opened.sendall(b"output")
        opened.send_exit_status(5)
        opened.close()
        assert channel.recv(100) == b"output"
        assert channel.recv_exit_status() == 5
    client.close()
    server.close()


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        port = silent.getsockname()[1]
        with pytest.raises(paramiko.SSHException, match="Error reading SSH protocol banner"):
            client.connect("127.0.0.1", port, "me", password="x", banner_timeout=0.2, look_for_keys=False, allow_agent=False)


def test_an_sftp_session_keeps_its_connection_and_a_transport_its_own(testbed: Testbed) -> None:
    host = about(testbed)

    def connect() -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        client.load_host_keys(host["known_hosts"])
        arguments: dict[str, Any] = {"key_filename": host["key"], "look_for_keys": False, "allow_agent": False}
        client.connect(host["address"], host["port"], host["user"], **arguments)
        return client

    sftp, transport = connect().open_sftp(), connect().get_transport()
    gc.collect()
    assert transport is not None
    assert sftp.listdir("/")
    assert transport.open_session() is not None
    assert transport.is_active()
    channel = transport.open_session()
    channel.exec_command("printf output; cat")
    channel.settimeout(30)
    assert channel.recv(3) == b"out"
    assert (len(channel.in_buffer), channel.in_buffer.read_ready()) == (3, True)
    transport.close()


def test_keys_are_written_with_passphrases_and_certificates_name_their_keys(testbed: Testbed, tmp_path: Path) -> None:
    key = paramiko.Ed25519Key.generate()
    key.write_private_key_file(tmp_path / "locked", password="a new one")
    with pytest.raises(paramiko.PasswordRequiredException):
        paramiko.Ed25519Key.from_private_key_file(tmp_path / "locked")
    with pytest.raises(paramiko.SSHException):
        paramiko.Ed25519Key.from_private_key_file(tmp_path / "locked", password="another")
    opened = paramiko.Ed25519Key.from_private_key_file(tmp_path / "locked", password="a new one")
    assert opened == key
    opened.write_private_key_file(tmp_path / "open")
    assert paramiko.Ed25519Key.from_private_key_file(tmp_path / "open") == key
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o600
    # A certificate's path stands for the key beside it.
    host = about(testbed)
    for end in ("", ".pub"):
        Path(f"{tmp_path}/user{end}").write_bytes(Path(host["key"] + end).read_bytes())
    for words in (["-t", "ed25519", "-N", "", "-f", "ca"], ["-s", "ca", "-I", "id", "-n", host["user"], "user.pub"]):
        subprocess.run(["ssh-keygen", "-q", *words], cwd=tmp_path, check=True)
    with paramiko.SSHClient() as client:
        client.load_host_keys(host["known_hosts"])
        arguments: dict[str, Any] = {"look_for_keys": False, "allow_agent": False}
        certificate = f"{tmp_path}/user-cert.pub"
        client.connect(host["address"], host["port"], host["user"], key_filename=certificate, **arguments)


def test_names_that_programs_import_are_there(testbed: Testbed) -> None:
    from trunkline.compat.paramiko.common import MSG_CHANNEL_OPEN, MSG_NEWKEYS, MSG_USERAUTH_BANNER, MSG_USERAUTH_SUCCESS
    from trunkline.compat.paramiko.util import b, u

    assert (MSG_NEWKEYS, MSG_USERAUTH_SUCCESS, MSG_USERAUTH_BANNER, MSG_CHANNEL_OPEN) == (21, 52, 53, 90)
    assert (b("x"), u(b"x")) == (b"x", "x")
    assert (paramiko.SFTPFile.SEEK_SET, paramiko.SFTPFile.SEEK_CUR, paramiko.SFTPFile.SEEK_END) == (0, 1, 2)
    host = about(testbed)
    with paramiko.Transport((host["address"], host["port"])) as transport:
        options = transport.get_security_options()
        options.ciphers = ("aes256-ctr",)
        assert options.ciphers == ("aes256-ctr",)
        with pytest.raises(ValueError, match="unknown cipher"):
            options.ciphers = ("none",)


def test_what_earlier_versions_of_paramiko_have_is_there(testbed: Testbed) -> None:
    # Programs look at it after a good log-in: it is in Paramiko 3 and 4.
    host = about(testbed)
    transport = paramiko.Transport((host["address"], host["port"]))
    transport.start_client(timeout=60)
    transport.auth_publickey(host["user"], paramiko.PKey.from_path(host["key"]))
    assert (transport.gss_kex_used, transport.use_gss_kex, transport.kexgss_ctxt) == (False, False, None)
    transport.set_gss_host("host", True, False)
    assert (transport.gss_host, transport.gss_deleg_creds) == ("host", True)
    with pytest.raises(paramiko.SSHException, match="GSSAPI is not available"):
        transport.auth_gssapi_keyex("me")
    with pytest.raises(paramiko.SSHException, match="GSSAPI is not available"):
        transport.auth_gssapi_with_mic("me", "host", True)
    transport.close()


def test_many_that_think_about_how_to_log_in_keep_nobody_from_it(testbed: Testbed) -> None:
    # More than handshakes to one server may be under way at once.
    host = about(testbed)
    waiting = [paramiko.Transport((host["address"], host["port"])) for _ in range(9)]
    for each in waiting:
        each.start_client(timeout=60)
    assert waiting[-1].auth_publickey(host["user"], paramiko.PKey.from_path(host["key"])) == []
    for each in waiting:
        each.close()
