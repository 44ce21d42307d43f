"""Programs that were written for Paramiko."""

from __future__ import annotations

import gc
import hashlib
import io
import os
import select
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Testbed, run_python, wait_until
from trunkline.compat import paramiko


class Server:
    """A server to connect to, and the credentials."""

    def __init__(self, testbed: Testbed) -> None:
        host: dict[str, Any] = testbed.about["hosts"][0]
        self.address: str = host["address"]
        self.port: int = host["port"]
        self.user: str = host["user"]
        self.key: str = host["key"]
        self.known_hosts: str = host["known_hosts"]
        self.arguments: dict[str, Any] = {
            "hostname": self.address,
            "port": self.port,
            "username": self.user,
            "key_filename": self.key,
            "look_for_keys": False,
        }

    @property
    def name(self) -> str:
        return f"[{self.address}]:{self.port}"


@pytest.fixture(scope="module")
def server(testbed: Testbed) -> Server:
    return Server(testbed)


@pytest.fixture
def client(server: Server) -> Iterator[paramiko.SSHClient]:
    with paramiko.SSHClient() as client:
        client.load_host_keys(server.known_hosts)
        client.connect(**server.arguments)
        yield client


@pytest.fixture
def transport(client: paramiko.SSHClient) -> paramiko.Transport:
    transport = client.get_transport()
    assert transport is not None
    return transport


def test_a_command_has_its_streams_and_its_status(client: paramiko.SSHClient) -> None:
    stdin, stdout, stderr = client.exec_command("cat; echo trouble >&2; exit 3")
    stdin.write("typed\n")
    stdin.write(b"bytes\n")
    stdin.close()
    assert stdout.readline() == "typed\n"
    assert stdout.read() == b"bytes\n"
    assert stderr.readlines() == ["trouble\n"]
    assert stdout.channel.recv_exit_status() == 3
    assert stdout.channel.exit_status_ready()


def test_lines_of_a_binary_file_are_bytes(client: paramiko.SSHClient) -> None:
    channel = client.exec_command("printf 'a\\nb'")[1].channel
    assert list(channel.makefile("rb")) == [b"a\n", b"b"]


def test_a_signal_leaves_no_status(client: paramiko.SSHClient) -> None:
    _, stdout, _ = client.exec_command("kill -9 $$")
    assert stdout.channel.recv_exit_status() == -1


def test_environment_and_terminal_are_asked_for(client: paramiko.SSHClient) -> None:
    _, stdout, _ = client.exec_command("echo $TEST_NAME; tty", environment={"TEST_NAME": "value"}, get_pty=True)
    name, terminal = stdout.read().decode().splitlines()
    assert name == "value"
    assert terminal.startswith("/dev/pts/")


def test_a_reading_that_takes_too_long_is_a_timeout(client: paramiko.SSHClient) -> None:
    # The limit holds for the opening, too, which a busy machine takes longer for.
    _, stdout, _ = client.exec_command("sleep 1000", timeout=60)
    assert stdout.channel.gettimeout() == 60
    stdout.channel.settimeout(0.05)
    with pytest.raises(socket.timeout):
        stdout.read()
    assert not stdout.channel.recv_ready()
    assert not stdout.channel.exit_status_ready()


def test_a_shell_answers_what_is_typed(client: paramiko.SSHClient) -> None:
    shell = client.invoke_shell(width=100)
    shell.resize_pty(132, 50)
    shell.send("stty size; exit\n")
    shown = b""
    while data := shell.recv(1024):
        shown += data
    assert b"50 132" in shown
    assert shell.recv_exit_status() == 0


def test_a_channel_can_be_selected_while_there_is_something_to_read(transport: paramiko.Transport) -> None:
    channel = transport.open_session()
    channel.exec_command("read line; echo got $line; read line; echo $line >&2; read line")
    readable = [channel]
    assert select.select(readable, [], [], 0)[0] == []
    channel.sendall(b"one\n")
    assert select.select(readable, [], [], 30)[0] == readable
    # Something is left: it stays readable.
    assert channel.recv(3) == b"got"
    assert select.select(readable, [], [], 0)[0] == readable
    assert channel.recv(100) == b" one\n"
    assert not channel.recv_ready()
    assert select.select(readable, [], [], 0)[0] == []
    channel.sendall(b"two\n")
    assert select.select(readable, [], [], 30)[0] == readable
    assert channel.recv_stderr_ready()
    assert channel.recv_stderr(100) == b"two\n"
    channel.shutdown_write()
    assert channel.recv(1) == b""
    # At the end it stays readable, too.
    assert select.select(readable, [], [], 0)[0] == readable


def test_standard_error_can_come_with_standard_output(transport: paramiko.Transport) -> None:
    channel = transport.open_session()
    channel.set_combine_stderr(True)
    channel.exec_command("echo one; echo two >&2; echo three")
    assert sorted(channel.makefile("r").readlines()) == ["one\n", "three\n", "two\n"]


def test_large_output_arrives_whole_while_it_is_watched(transport: paramiko.Transport) -> None:
    channel = transport.open_session()
    channel.exec_command("head -c 3000000 /dev/zero")
    assert channel.fileno() >= 0
    length = 0
    while data := channel.recv(65536):
        length += len(data)
    assert length == 3_000_000


def test_closing_a_channel_ends_the_command_and_wakes_its_reader(transport: paramiko.Transport, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    channel = transport.open_session()
    # sshd sends SIGHUP to who has a terminal.
    channel.get_pty()
    channel.exec_command(f"echo $$ >{pid}.new && mv {pid}.new {pid}; exec sleep 1000")
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(channel.recv(1)))
    reader.start()
    wait_until(pid.exists)
    channel.close()
    reader.join(30)
    assert seen == [b""]
    wait_until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())


def test_what_was_written_arrives_though_the_channel_is_closed(transport: paramiko.Transport) -> None:
    came = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(20):
            with transport.open_channel("direct-tcpip", listener.getsockname(), ("127.0.0.1", 0)) as channel:
                channel.sendall(bytes(1_000_000))
            client, _ = listener.accept()
            with client:
                while data := client.recv(1_000_000):
                    came += data
    assert len(came) == 20_000_000


def test_a_channel_is_used_once(transport: paramiko.Transport) -> None:
    channel = transport.open_session()
    channel.exec_command("true")
    with pytest.raises(paramiko.SSHException):
        channel.exec_command("true")


# Tunnels.


def echo_server() -> tuple[socket.socket, int]:
    """A server that answers its only client with what it says."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            while data := client.recv(1024):
                client.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


def test_a_tunnel_carries_both_directions(transport: paramiko.Transport) -> None:
    listener, port = echo_server()
    with listener, transport.open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0)) as channel:
        channel.sendall(b"through")
        assert channel.recv(100) == b"through"
        channel.shutdown_write()
        assert channel.recv(100) == b""


def test_a_tunnel_to_nowhere_is_refused(transport: paramiko.Transport) -> None:
    with pytest.raises(paramiko.ChannelException) as refused:
        transport.open_channel("direct-tcpip", ("127.0.0.1", 1), ("127.0.0.1", 0))
    assert refused.value.code == paramiko.OPEN_FAILED_CONNECT_FAILED


def test_clients_of_the_servers_port_come_to_a_handler(transport: paramiko.Transport) -> None:
    came: list[tuple[paramiko.Channel, tuple[str, int], tuple[str, int]]] = []
    port = transport.request_port_forward("127.0.0.1", 0, lambda *client: came.append(client))
    with socket.create_connection(("127.0.0.1", port)) as outside:
        outside.sendall(b"hello")
        wait_until(lambda: bool(came))
        channel, origin, server = came[0]
        assert channel.recv(100) == b"hello"
        assert origin == outside.getsockname()
        assert server == ("127.0.0.1", port)
        channel.sendall(b"world")
        assert outside.recv(100) == b"world"
    transport.cancel_port_forward("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_clients_of_the_servers_port_can_be_accepted(transport: paramiko.Transport) -> None:
    port = transport.request_port_forward("127.0.0.1", 0)
    assert transport.accept(0) is None
    with socket.create_connection(("127.0.0.1", port)):
        assert transport.accept(30) is not None


@pytest.mark.parametrize("kind", ["channel", "socket", "proxy command"])
def test_a_connection_can_be_made_over_something_else(
    kind: str, server: Server, testbed: Testbed, transport: paramiko.Transport
) -> None:
    sock: Any
    if kind == "channel":
        sock = transport.open_channel("direct-tcpip", (server.address, server.port), ("", 0))
    elif kind == "socket":
        sock = socket.create_connection((server.address, server.port))
    else:
        sock = paramiko.ProxyCommand(f"ssh -F {testbed.config} -W {server.address}:{server.port} {testbed.aliases[1]}")
    with paramiko.SSHClient() as inner:
        inner.load_host_keys(server.known_hosts)
        inner.connect(**server.arguments, sock=sock)
        assert inner.exec_command("echo inside")[1].read() == b"inside\n"


def test_a_proxy_command_that_has_ended_is_told(server: Server) -> None:
    proxy = paramiko.ProxyCommand("false")
    proxy.process.wait()
    with paramiko.SSHClient() as client, pytest.raises(paramiko.ProxyCommandFailure, match=r'ProxyCommand\("false"\)'):
        client.connect(**server.arguments, sock=proxy)


# Host keys.


def test_an_unknown_host_is_refused_unless_the_policy_takes_it(server: Server, tmp_path: Path) -> None:
    with paramiko.SSHClient() as client, pytest.raises(paramiko.SSHException, match="not found in known_hosts"):
        client.connect(**server.arguments)
    remembered = tmp_path / "known_hosts"
    remembered.touch()
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy)
        client.load_host_keys(str(remembered))
        client.connect(**server.arguments)
        transport = client.get_transport()
        assert transport is not None
        key = transport.get_remote_server_key()
        assert client.get_host_keys().check(server.name, key)
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(remembered))
        client.connect(**server.arguments)


def test_a_policy_of_ones_own_is_asked(server: Server) -> None:
    class Policy(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            raise paramiko.SSHException(f"no {hostname}")

    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(Policy())
        with pytest.raises(paramiko.SSHException) as refused:
            client.connect(**server.arguments)
    assert str(refused.value) == f"no {server.name}"


@pytest.mark.parametrize("where", ["file", "memory"])
def test_another_host_key_is_refused_whatever_the_policy(where: str, server: Server, tmp_path: Path) -> None:
    wrong = paramiko.Ed25519Key.generate()
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        if where == "file":
            known_hosts = tmp_path / "known_hosts"
            known_hosts.write_text(f"{server.name} {wrong.get_name()} {wrong.get_base64()}\n")
            client.load_host_keys(str(known_hosts))
        else:
            client.get_host_keys().add(server.name, wrong.get_name(), wrong)
        with pytest.raises(paramiko.BadHostKeyException) as refused:
            client.connect(**server.arguments)
    assert refused.value.key != wrong


def test_known_hosts_are_read_hashed_and_written(tmp_path: Path) -> None:
    key = paramiko.Ed25519Key.generate()
    keys = paramiko.HostKeys()
    keys.add(paramiko.HostKeys.hash_host("db1"), key.get_name(), key)
    keys.add("*.example", key.get_name(), key)
    keys.save(str(tmp_path / "known_hosts"))
    again = paramiko.HostKeys(str(tmp_path / "known_hosts"))
    assert again.check("db1", key)
    assert again.check("web.example", key)
    assert again.lookup("db2") is None
    del again["db1"]
    assert not again.check("db1", key)


# Logging in.


def test_keys_of_every_kind_are_read_with_their_passphrases(tmp_path: Path) -> None:
    for kind, name in ((paramiko.RSAKey, "rsa"), (paramiko.ECDSAKey, "ecdsa"), (paramiko.Ed25519Key, "ed25519")):
        path = tmp_path / name
        subprocess.run(["ssh-keygen", "-q", "-t", name, "-N", "secret", "-f", path], check=True)
        with pytest.raises(paramiko.PasswordRequiredException):
            kind.from_private_key_file(str(path))
        with pytest.raises(paramiko.SSHException):
            kind.from_private_key_file(str(path), "wrong")
        key = kind.from_private_key_file(str(path), "secret")
        assert f"{key.get_name()} {key.get_base64()}" in path.with_suffix(".pub").read_text()
        shown = subprocess.run(["ssh-keygen", "-l", "-f", path], check=True, capture_output=True, text=True).stdout
        assert shown.split()[:2] == [str(key.get_bits()), key.fingerprint]
        assert type(paramiko.PKey.from_path(path, "secret")) is kind
        assert key.sign_ssh_data(b"data")
    with pytest.raises(paramiko.SSHException):
        paramiko.RSAKey.from_private_key_file(str(tmp_path / "ed25519"), "secret")


def test_an_encrypted_key_in_memory_leads_in(server: Server, tmp_path: Path) -> None:
    locked = tmp_path / "key"
    locked.write_bytes(Path(server.key).read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", locked], check=True)
    arguments = {**server.arguments, "key_filename": None}
    with paramiko.SSHClient() as client:
        client.load_host_keys(server.known_hosts)
        with pytest.raises(paramiko.PasswordRequiredException):
            client.connect(**{**arguments, "key_filename": str(locked)})
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(locked.read_text()), "secret")
        client.connect(**arguments, pkey=key)
        assert client.exec_command("echo in")[1].read() == b"in\n"
    with paramiko.SSHClient() as client:
        client.load_host_keys(server.known_hosts)
        client.connect(**{**arguments, "key_filename": str(locked)}, passphrase="secret")


def test_a_transport_logs_in_by_itself(server: Server) -> None:
    with paramiko.Transport((server.address, server.port)) as transport:
        assert not transport.is_active()
        transport.connect(username=server.user, pkey=paramiko.PKey.from_path(server.key))
        assert transport.is_authenticated()
        assert transport.remote_version.startswith("SSH-2.0-OpenSSH")
        sftp = paramiko.SFTPClient.from_transport(transport)
        assert sftp.stat("/").st_mode
    assert not transport.is_active()
    with pytest.raises(paramiko.SSHException):
        transport.open_session()


def test_a_transport_compares_the_host_key_it_was_given(server: Server) -> None:
    with paramiko.Transport(f"{server.address}:{server.port}") as transport, pytest.raises(paramiko.BadHostKeyException):
        transport.connect(
            hostkey=paramiko.Ed25519Key.generate(), username=server.user, pkey=paramiko.PKey.from_path(server.key)
        )


def test_a_password_leads_in() -> None:
    bed = Testbed("--servers", "1", "--password", "swordfish")
    try:
        server = Server(bed)
        arguments = {**server.arguments, "key_filename": None, "allow_agent": False}
        with paramiko.SSHClient() as client:
            client.load_host_keys(server.known_hosts)
            with pytest.raises(paramiko.AuthenticationException):
                client.connect(**arguments, password="wrong")
            client.connect(**arguments, password="swordfish")
            assert client.exec_command("echo in")[1].read() == b"in\n"
    finally:
        bed.close()


def test_nothing_to_log_in_with_is_said(server: Server) -> None:
    with paramiko.SSHClient() as client:
        client.load_host_keys(server.known_hosts)
        with pytest.raises(paramiko.SSHException, match="No authentication methods"):
            client.connect(**{**server.arguments, "key_filename": None})


@pytest.fixture
def agent(server: Server, ssh_agent: Path) -> None:
    """An agent with the user's key."""
    subprocess.run(["ssh-add", "-q", server.key], check=True, capture_output=True)


def test_the_agents_keys_lead_in_and_are_lent_only_to_who_asks(agent: None, server: Server) -> None:
    (key,) = paramiko.Agent().get_keys()
    assert key == paramiko.PKey.from_path(server.key)
    arguments = {**server.arguments, "key_filename": None}
    with paramiko.SSHClient() as client:
        client.load_host_keys(server.known_hosts)
        client.connect(**arguments)
        transport = client.get_transport()
        assert transport is not None
        channel = transport.open_session()
        paramiko.AgentRequestHandler(channel)
        channel.exec_command("ssh-add -L")
        assert key.get_base64() in channel.makefile().read().decode()
        assert client.exec_command("echo -n $SSH_AUTH_SOCK")[1].read() == b""
    with paramiko.Transport((server.address, server.port)) as alone:
        alone.auth_publickey(server.user, key)
        assert alone.is_active()


def test_failures_to_connect_are_those_of_paramiko(server: Server) -> None:
    with paramiko.SSHClient() as client:
        with pytest.raises(paramiko.NoValidConnectionsError) as nobody:
            client.connect("127.0.0.1", 1, username="x")
        assert list(nobody.value.errors) == [("127.0.0.1", 1)]
        with pytest.raises(socket.gaierror):
            client.connect("no-such-host.invalid", username="x")
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(socket.timeout):
            client.connect("127.0.0.1", silent.getsockname()[1], username="x", timeout=0.1)


# SFTP.


def test_files_are_read_written_and_described(client: paramiko.SSHClient, tmp_path: Path) -> None:
    with client.open_sftp() as sftp:
        sftp.chdir(str(tmp_path))
        assert sftp.getcwd() == str(tmp_path)
        with sftp.open("notes", "w") as file:
            file.write("one\n")
            file.write(b"two\n")
        assert (tmp_path / "notes").read_text() == "one\ntwo\n"
        with sftp.open("notes") as file:
            assert file.readline() == "one\n"
            assert file.tell() == 4
            file.seek(0)
            assert file.read() == b"one\ntwo\n"
            assert list(file.readv([(4, 3), (0, 3)])) == [b"two", b"one"]
            assert file.stat().st_size == 8
        with sftp.file("notes", "a") as file:
            file.write("three\n")
        with sftp.open("notes", "r+") as file:
            file.write("ONE")
        assert (tmp_path / "notes").read_text() == "ONE\ntwo\nthree\n"
        with pytest.raises(OSError, match="Failure"):
            sftp.open("notes", "x")
        with pytest.raises(FileNotFoundError):
            sftp.stat("none")
        assert sftp.listdir() == ["notes"]
        (about,) = sftp.listdir_attr()
        assert about.filename == "notes"
        assert about.st_size == 14
        assert str(about).startswith("-rw")


def test_names_and_attributes_are_changed(client: paramiko.SSHClient, tmp_path: Path) -> None:
    with client.open_sftp() as sftp:
        sftp.chdir(str(tmp_path))
        sftp.mkdir("directory", 0o700)
        (tmp_path / "one").write_text("1")
        (tmp_path / "two").write_text("2")
        with pytest.raises(OSError, match="Failure"):
            sftp.rename("one", "two")
        sftp.posix_rename("one", "two")
        sftp.rename("two", "directory/three")
        sftp.symlink("directory/three", "link")
        assert sftp.readlink("link") == "directory/three"
        assert stat.S_ISLNK(sftp.lstat("link").st_mode or 0)
        assert sftp.normalize("link") == str(tmp_path / "directory/three")
        sftp.chmod("link", 0o640)
        sftp.chown("link", os.getuid(), os.getgid())
        sftp.utime("link", (1, 2))
        sftp.truncate("link", 0)
        about = (tmp_path / "directory/three").stat()
        assert (stat.S_IMODE(about.st_mode), about.st_mtime, about.st_size) == (0o640, about.st_mtime, 0)
        sftp.remove("link")
        sftp.unlink("directory/three")
        sftp.rmdir("directory")
        assert sftp.listdir() == []
        (tmp_path / "file").touch()
        with pytest.raises(paramiko.SFTPError):
            sftp.chdir("file")


def test_files_are_copied_and_their_progress_told(client: paramiko.SSHClient, tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    (tmp_path / "source").write_bytes(content)
    told: list[tuple[int, int]] = []
    with client.open_sftp() as sftp:
        there = str(tmp_path / "there")
        assert sftp.put(tmp_path / "source", there, callback=lambda *now: told.append(now)).st_size == len(content)
        assert told[-1] == (len(content), len(content))
        sftp.get(there, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content
        into = io.BytesIO()
        assert sftp.getfo(there, into) == len(content)
        assert into.getvalue() == content
        sftp.putfo(io.BytesIO(b"small"), there)
        assert Path(there).read_bytes() == b"small"


# Configuration.


def test_ssh_config_says_what_paramiko_makes_of_it(tmp_path: Path) -> None:
    included = tmp_path / "included"
    included.write_text("Host web*\n  Port 2222\n")
    config = paramiko.SSHConfig.from_text(
        f"Include {included}\n"
        "Host web1 web2\n  HostName 192.0.2.1\n  User deploy\n  IdentityFile ~/.ssh/%r_key\n  ForwardAgent yes\n"
        "  NoSuchDirective here\n"
        "Match host 192.0.2.1\n  ProxyCommand nc --to %h %p as %r\n"
    )
    found = config.lookup("web1")
    assert found["hostname"] == "192.0.2.1"
    assert found["user"] == "deploy"
    assert found.as_int("port") == 2222
    assert found.as_bool("forwardagent")
    assert found["identityfile"] == [os.path.expanduser("~/.ssh/deploy_key")]
    assert found["proxycommand"] == "nc --to 192.0.2.1 2222 as deploy"
    assert dict(config.lookup("other")) == {"hostname": "other"}
    assert config.get_hostnames() == {"*", "web*", "web1", "web2"}
    # What was parsed first counts.
    config.parse(io.StringIO("Host *\n  User nobody\n"))
    assert config.lookup("web1")["user"] == "deploy"
    assert config.lookup("other")["user"] == "nobody"
    with pytest.raises(paramiko.ConfigParseError):
        paramiko.SSHConfig.from_text("Port\n").lookup("web1")


def test_it_is_installed_in_paramikos_place() -> None:
    program = (
        "import trunkline.compat.paramiko as ours; ours.install()\n"
        "import paramiko, paramiko.client\nfrom paramiko.ssh_exception import SSHException\n"
        "assert paramiko is ours and paramiko.client.SSHClient is ours.SSHClient and SSHException is ours.SSHException\n"
        "ours.install(); print('both')"
    )
    done = run_python(program)
    assert (done.stdout, done.stderr) == ("both\n", "")
    late = run_python(
        "import sys, types; sys.modules['paramiko'] = types.ModuleType('paramiko')\n"
        "import trunkline.compat.paramiko as ours; ours.install()"
    )
    assert "RuntimeError" in late.stderr


def test_clients_that_are_forgotten_leave_nothing(server: Server) -> None:
    def forget() -> None:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(**server.arguments)
        assert select.select([client.exec_command("yes")[1].channel], [], [], 30)[0]
        client.open_sftp().open("/etc/hostname")

    forget()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        forget()
    gc.collect()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_keepalive_finds_a_server_that_is_gone(server: Server) -> None:
    class Relay(threading.Thread):
        """Carries a connection until it is to stall."""

        def __init__(self, listener: socket.socket) -> None:
            super().__init__(daemon=True)
            self.listener = listener
            self.stalled = threading.Event()

        def run(self) -> None:
            client, _ = self.listener.accept()
            there = socket.create_connection((server.address, server.port))
            ends = {client: there, there: client}
            with client, there:
                while not self.stalled.is_set():
                    for end in select.select(list(ends), [], [], 0.05)[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        ends[end].sendall(data)
                # As if its network were gone: it is not closed either.
                self.stalled.clear()
                self.stalled.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(listener)
        relay.start()
        with paramiko.Transport(("127.0.0.1", listener.getsockname()[1])) as transport:
            transport.connect(username=server.user, pkey=paramiko.PKey.from_path(server.key))
            transport.set_keepalive(0.1)
            transport.open_sftp_client().stat("/")
            assert transport.is_active()
            relay.stalled.set()
            wait_until(lambda: not transport.is_active())
            relay.stalled.set()


def test_questions_of_the_server_are_answered_by_the_handler() -> None:
    bed = Testbed("--servers", "1", "--password", "swordfish", "--config", "PasswordAuthentication no")
    asked: list[tuple[str, bool]] = []

    def handler(title: str, instructions: str, questions: Sequence[tuple[str, bool]]) -> list[str]:
        asked.extend(questions)
        return ["swordfish"]

    try:
        server = Server(bed)
        with paramiko.Transport((server.address, server.port)) as transport:
            with pytest.raises(paramiko.AuthenticationException):
                transport.auth_interactive(server.user, lambda *_: ["wrong"])
            # Another attempt is another connection.
            assert transport.auth_interactive(server.user, handler) == []
            assert transport.get_username() == server.user
        assert [echo for _, echo in asked] == [False]
    finally:
        bed.close()


def test_text_is_sent_by_characters_when_the_window_is_full(transport: paramiko.Transport) -> None:
    channel = transport.open_session()
    channel.exec_command("sleep 0.3; cat | md5sum")
    text = rest = "a" + 1_500_000 * "€"
    while rest:
        rest = rest[channel.send(rest) :]
    channel.shutdown_write()
    assert channel.makefile("rb").read()[:32].decode() == hashlib.md5(text.encode()).hexdigest()


@pytest.mark.parametrize("read", ["read", "readline", "readlines"])
def test_what_came_before_a_timeout_is_kept(client: paramiko.SSHClient, read: str) -> None:
    # Paramiko loses what these have read.
    stdin, stdout, _ = client.exec_command("printf 'one\\ntwo'; read line; echo three", timeout=60)
    if read == "readline":
        assert stdout.readline() == "one\n"
    stdout.channel.settimeout(0.3)
    with pytest.raises(socket.timeout):
        getattr(stdout, read)()
    stdin.write("\n")
    stdout.channel.settimeout(60)
    whole = {"read": b"one\ntwothree\n", "readline": "twothree\n", "readlines": ["one\n", "twothree\n"]}
    assert getattr(stdout, read)() == whole[read]
