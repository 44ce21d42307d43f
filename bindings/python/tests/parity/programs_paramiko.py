"""Programs for Paramiko, each run on it and on trunkline against the same servers. A program says what it saw with `see`."""

from __future__ import annotations

import functools
import io
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

See = Callable[..., None]
Program = Callable[[Any, See, Any], None]


def raised(call: Callable[[], object], *fields: str) -> list[Any]:
    """Return the exception of a call: class, text and attributes; or that it raised nothing."""
    try:
        call()
    except BaseException as error:
        return [type(error).__name__, str(error), *(getattr(error, field, "missing") for field in fields)]
    return ["nothing"]


def kind(call: Callable[[], object]) -> str:
    """The class of what a call raises, where the text is each one's own."""
    return str(raised(call)[0])


# On OpenSSH.


def _client(paramiko: Any, about: Any, **more: Any) -> Any:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect(
        about["address"],
        **{
            "port": about["port"],
            "username": about["user"],
            "key_filename": about["key"],
            "allow_agent": False,
            "look_for_keys": False,
            **more,
        },
    )
    return client


def commands(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    stdin, stdout, stderr = client.exec_command("cat; echo err >&2; exit 7")
    stdin.write("one\n")
    stdin.write(b"two\n")
    stdin.flush()
    stdin.channel.shutdown_write()
    see(stdout.read(), stderr.read(), stdout.channel.recv_exit_status(), stdout.channel.exit_status_ready())
    see(stdout.channel.eof_received, stdout.readline(), stderr.readlines())
    _, stdout, _ = client.exec_command("printf 'a\\nb\\r\\nc'")
    see(stdout.readline(), stdout.readline(), stdout.readline(), stdout.readline())
    _, stdout, _ = client.exec_command("printf 'a\\nb\\n\\303\\244'")
    see(list(stdout))
    _, stdout, _ = client.exec_command("seq 5", bufsize=1)
    see([line.strip() for line in stdout.readlines(4)], stdout.closed, stdout.tell())
    stdout.close()
    see(stdout.closed, raised(stdout.read))
    _, stdout, _ = client.exec_command("echo $TEST_WORD", environment={"TEST_WORD": "there"})
    see(stdout.read())
    _, stdout, stderr = client.exec_command("test -t 1 && stty size; echo err >&2", get_pty=True)
    see(stdout.read(), stderr.read())
    _, stdout, _ = client.exec_command("kill -9 $$")
    see(stdout.channel.recv_exit_status())
    _, stdout, _ = client.exec_command("sleep 100", timeout=1)
    see(kind(stdout.read))
    client.close()
    see(client.get_transport())


def channels(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    transport = client.get_transport()
    channel = transport.open_session()
    see(channel.get_id(), channel.get_name(), channel.active, channel.closed, channel.gettimeout(), channel.recv_ready())
    channel.set_name("mine")
    see(channel.get_name(), channel.getpeername() == transport.getpeername(), channel.get_transport() is transport)
    channel.exec_command("cat; echo err >&2")
    see(channel.send_ready(), channel.send(b"hello "), channel.sendall("there\n"), channel.send(b""))
    see(channel.recv(3))
    channel.shutdown(1)
    rest = b""
    while piece := channel.recv(100):
        rest += piece
    see(rest, channel.recv_stderr(100), channel.recv_exit_status(), channel.recv(1), channel.recv_stderr_ready())
    channel.close()
    channel.close()
    see(channel.closed, raised(lambda: channel.send(b"x")), raised(lambda: channel.exec_command("true")))
    see(raised(lambda: channel.get_pty()), raised(lambda: channel.resize_pty()), raised(lambda: channel.invoke_shell()))

    channel = transport.open_session()
    channel.settimeout(0.05)
    channel.exec_command("sleep 100")
    see(channel.gettimeout(), kind(lambda: channel.recv(1)), kind(lambda: channel.recv_stderr(1)))
    channel.setblocking(0)
    see(channel.gettimeout(), kind(lambda: channel.recv(1)))
    channel.setblocking(1)
    see(channel.gettimeout(), channel.exit_status_ready(), channel.fileno() >= 0)
    see(select.select([channel], [], [], 0.01)[0])
    channel.close()

    channel = transport.open_session()
    channel.set_combine_stderr(True)
    channel.exec_command("echo out; echo err >&2")
    see(sorted(channel.makefile().read().split()), channel.makefile_stderr().read())
    with transport.open_session() as channel:
        channel.get_pty("vt100", 100, 40)
        channel.invoke_shell()
        channel.resize_pty(90, 30)
        channel.sendall("stty size; echo $TERM; exit 3\n")
        said = channel.makefile("rb").read()
        see(b"30 90" in said or b"40 100" in said, b"vt100" in said, channel.recv_exit_status())
    see(channel.closed)
    see(raised(lambda: transport.open_session().invoke_subsystem("no-such-subsystem")))
    client.close()


def files_of_channels(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    channel.exec_command("cat")
    stdin, stdout = channel.makefile_stdin("wb"), channel.makefile("rb")
    see(stdin.writable(), stdin.readable(), stdin.seekable(), stdout.readable(), stdout.writable(), stdin.closed)
    stdin.writelines(["a\n", "b\n", "c"])
    stdin.close()
    see(stdin.closed, raised(lambda: stdin.write("x")), stdout.readline(), stdout.readline(1), stdout.read(1), next(stdout))
    see(raised(lambda: next(stdout)), raised(lambda: stdout.write("x")), raised(lambda: stdout.seek(0)), stdout.newlines)
    buffer = bytearray(4)
    _, stdout, _ = client.exec_command("printf abcdef")
    see(stdout.readinto(buffer), bytes(buffer), stdout.readinto(buffer), bytes(buffer), stdout.xreadlines() is stdout)
    client.close()


def transports(paramiko: Any, see: See, about: Any) -> None:
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    transport = paramiko.Transport((about["address"], about["port"]))
    see(transport.is_active(), transport.is_authenticated(), transport.get_username(), transport.server_mode)
    transport.start_client(timeout=10)
    see(transport.is_active(), transport.is_authenticated(), transport.get_remote_server_key().get_name())
    see(transport.getpeername()[1] == about["port"])
    see(
        transport.auth_publickey(about["user"], key), transport.is_authenticated(), transport.get_username() == about["user"]
    )
    see(transport.remote_version.startswith("SSH-2.0-OpenSSH"), transport.local_version[:8], transport.initial_kex_done)
    see(transport.host_key_type, transport.remote_cipher != "", transport.local_compression, transport.get_banner())
    see(kind(lambda: transport.open_channel("no-such-kind")))
    see(
        raised(
            lambda: transport.open_channel("direct-tcpip", ("127.0.0.1", about["unused"]), ("127.0.0.1", 0)), "code", "text"
        )
    )
    see(raised(lambda: transport.global_request("no-such-request@example.com", wait=True))[0])
    transport.set_keepalive(30)
    transport.send_ignore()
    see(transport.renegotiate_keys())
    sftp = transport.open_sftp_client()
    see(type(sftp).__name__, sftp.get_channel().closed)
    transport.close()
    see(transport.is_active(), transport.is_authenticated(), raised(lambda: transport.open_session()))
    # They connect at once.
    see(raised(lambda: paramiko.Transport((about["address"], about["unused"]))))
    see(raised(lambda: paramiko.Transport(f"{about['address']}:{about['unused']}")))
    see(kind(lambda: paramiko.Transport(("no-such-host.invalid", 22))))
    dialled = paramiko.Transport((about["address"], about["port"]))
    dialled.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    see(dialled.sock.getpeername(), dialled.getpeername(), dialled.is_active())
    dialled.close()
    options = paramiko.Transport((about["address"], about["port"])).get_security_options()
    see(
        type(options.ciphers).__name__,
        "aes128-ctr" in options.ciphers,
        raised(lambda: setattr(options, "ciphers", ["none"])),
    )


def log_ins(paramiko: Any, see: See, about: Any) -> None:
    wrong = paramiko.Ed25519Key.from_private_key_file(about["other_key"])
    see(raised(lambda: _client(paramiko, about, key_filename=None, pkey=wrong)))
    see(raised(lambda: _client(paramiko, about, key_filename=about["other_key"])))
    see(raised(lambda: _client(paramiko, about, key_filename=None)))
    see(raised(lambda: _client(paramiko, about, key_filename=None, password="x"), "allowed_types", "explanation"))
    see(kind(lambda: _client(paramiko, about, key_filename="/no/such/key")))
    see(kind(lambda: _client(paramiko, about, port=about["unused"])))
    see(kind(lambda: paramiko.SSHClient().connect("no-such-host.invalid", username="x")))
    see(kind(lambda: _client(paramiko, about, key_filename=about["encrypted"])))
    see(kind(lambda: _client(paramiko, about, key_filename=about["encrypted"], passphrase="wrong")))
    see(raised(lambda: _client(paramiko, about, key_filename=about["encrypted"], passphrase="secret")))
    see(raised(lambda: _client(paramiko, about, key_filename=[about["other_key"], about["key"]])))

    def strict() -> None:
        client = paramiko.SSHClient()
        client.connect(about["address"], port=about["port"], username=about["user"], key_filename=about["key"])

    see(raised(strict)[0], "not found in known_hosts" in raised(strict)[1])

    def change() -> None:
        client = paramiko.SSHClient()
        name = f"[{about['address']}]:{about['port']}"
        client.get_host_keys().add(name, "ssh-ed25519", wrong)
        client.connect(about["address"], port=about["port"], username=about["user"], key_filename=about["key"])

    try:
        change()
    except paramiko.BadHostKeyException as error:
        see(error.hostname, error.expected_key == wrong, error.key.get_name(), "does not match" in str(error))


def unreachable(paramiko: Any, see: See, about: Any) -> None:
    try:
        _client(paramiko, about, port=about["unused"])
    except paramiko.ssh_exception.NoValidConnectionsError as error:
        see(error.errno, str(error), list(error.errors), [type(each).__name__ for each in error.errors.values()])
        see([each.errno for each in error.errors.values()], isinstance(error, OSError))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        see(raised(lambda: _client(paramiko, about, port=port, banner_timeout=0.2))[0])
        transport = paramiko.Transport(("127.0.0.1", port))
        transport.banner_timeout = 0.2
        see(raised(lambda: transport.start_client(timeout=5))[0])
        transport.close()


def host_keys(paramiko: Any, see: See, about: Any) -> None:
    path = os.path.join(about["directory"], "known_hosts")
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    keys = paramiko.HostKeys()
    keys.add("db1", "ssh-ed25519", key)
    keys.add("[db2]:2222", key.get_name(), key)
    keys.add(paramiko.HostKeys.hash_host("hidden", "|1|" + "A" * 27 + "=|"), key.get_name(), key)
    see(sorted(name for name in keys if not name.startswith("|")), len(keys), "db1" in keys, "hidden" in keys, "no" in keys)
    see(keys.check("db1", key), keys.check("hidden", key), keys.check("no", key), keys.lookup("no"))
    see(dict(keys.lookup("db1")).keys() == {"ssh-ed25519"}, keys["db1"]["ssh-ed25519"] == key, raised(lambda: keys["no"]))
    keys.save(path)
    again = paramiko.HostKeys(path)
    see(len(again), again.check("db1", key), again.check("hidden", key))
    del keys["db1"]
    see("db1" in keys, raised(lambda: keys.__delitem__("db1")))
    keys["new"] = {"ssh-ed25519": key}
    see("new" in keys, sorted(keys.keys())[-1], len(keys.values()), len(keys.items()))
    entry = paramiko.hostkeys.HostKeyEntry.from_line(f"db3,db4 {key.get_name()} {key.get_base64()} comment")
    see(entry.hostnames, entry.key == key, entry.to_line() == f"db3,db4 {key.get_name()} {key.get_base64()}\n")
    see(paramiko.hostkeys.HostKeyEntry.from_line("nonsense"))
    see(kind(lambda: paramiko.hostkeys.HostKeyEntry.from_line("a ssh-ed25519 AAA")))
    see(paramiko.HostKeys.hash_host("db1", "|1|" + "A" * 27 + "=|"))
    keys.clear()
    see(len(keys), raised(lambda: paramiko.HostKeys("/no/such/file"), "errno", "filename"))


def keys(paramiko: Any, see: See, about: Any) -> None:
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    see(key.get_name(), key.get_bits(), key.can_sign(), key.get_fingerprint().hex(), key.fingerprint, key.get_base64())
    see(
        key.asbytes() == bytes(key),
        key.algorithm_name,
        repr(key),
        key == paramiko.PKey.from_path(about["key"]),
        key.public_blob,
    )
    see(hash(key) == hash(paramiko.Ed25519Key(filename=about["key"])), key != object(), key == "x")
    signature = key.sign_ssh_data(b"words")
    public = paramiko.PKey.from_type_string(key.get_name(), key.asbytes())
    see(type(signature).__name__, public.verify_ssh_sig(b"words", paramiko.Message(signature.asbytes())))
    see(public.verify_ssh_sig(b"others", paramiko.Message(signature.asbytes())), signature.asbytes()[:15])
    see(type(public).__name__, public == key, public.can_sign(), paramiko.Ed25519Key(data=key.asbytes()) == key)
    see(paramiko.Ed25519Key(msg=paramiko.Message(key.asbytes())) == key, paramiko.Ed25519Key.identifiers())
    see(raised(lambda: paramiko.RSAKey.from_private_key_file(about["key"]))[0], paramiko.ECDSAKey.identifiers())
    see(raised(lambda: paramiko.Ed25519Key.from_private_key_file(about["encrypted"])))
    see(raised(lambda: paramiko.Ed25519Key.from_private_key_file(about["encrypted"], "wrong"))[0])
    see(paramiko.Ed25519Key.from_private_key_file(about["encrypted"], "secret").can_sign())
    see(kind(lambda: paramiko.Ed25519Key.from_private_key(io.StringIO("nonsense"))))
    see(raised(lambda: paramiko.Ed25519Key(filename="/no/such/key"), "errno", "filename"))
    see(raised(lambda: paramiko.PKey.from_type_string("no-such-type", b"\0\0\0\1x"), "key_type", "key_bytes"))
    see(raised(lambda: paramiko.RSAKey())[0], raised(lambda: paramiko.RSAKey(data=key.asbytes()))[0])
    generated = (paramiko.RSAKey.generate(2048), paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate(bits=384))
    for made in generated:
        see(
            made.get_name(),
            made.get_bits(),
            made.can_sign(),
            made.verify_ssh_sig(b"x", paramiko.Message(made.sign_ssh_data(b"x").asbytes())),
        )
        text = io.StringIO()
        made.write_private_key(text, password="pass")
        text.seek(0)
        see(raised(functools.partial(type(made).from_private_key, text)))
        text.seek(0)
        see(type(made).from_private_key(text, password="pass") == made)
        path = os.path.join(about["directory"], made.get_name())
        made.write_private_key_file(path)
        see(oct(os.stat(path).st_mode), type(made).from_private_key_file(path) == made)
    see([each.__name__ for each in paramiko.key_classes])
    key.load_certificate(about["certificate"])
    see(key.public_blob.key_type, key.public_blob.comment, type(key.public_blob).__name__)
    blob = paramiko.pkey.PublicBlob.from_file(about["certificate"])
    see(blob == key.public_blob, blob != key.public_blob, str(blob))
    see(raised(lambda: key.load_certificate("/no/such/certificate"))[0])
    see(raised(lambda: paramiko.pkey.PublicBlob.from_string("nonsense")))


def messages(paramiko: Any, see: See, about: Any) -> None:
    message = paramiko.Message()
    message.add_byte(b"x").add_boolean(True).add_int(7).add_int64(8).add_mpint(-5).add_mpint(2**70).add_string("s")
    message.add_string(b"b").add_list(["a", "b"]).add_bytes(b"raw").add_adaptive_int(2**40).add(1, True, "x", ["y"])
    see(message.asbytes(), bytes(message), repr(message))
    message.rewind()
    see(
        message.get_byte(),
        message.get_boolean(),
        message.get_int(),
        message.get_int64(),
        message.get_mpint(),
        message.get_mpint(),
    )
    see(message.get_string(), message.get_text(), message.get_list(), message.get_bytes(3), message.get_adaptive_int())
    see(message.get_so_far() == message.asbytes()[: len(message.get_so_far())], len(message.get_remainder()))
    see(paramiko.Message(b"\0\0\0\2ab").get_binary(), paramiko.Message().get_int(), paramiko.Message(b"a").get_bytes(3))


def sftp(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    directory = os.path.join(about["directory"], "sftp")
    sftp.mkdir(directory, 0o700)
    sftp.chdir(directory)
    see(sftp.getcwd() == directory)
    with sftp.open("file", "w") as file:
        see(file.write("one\ntwo\n"), file.tell(), file.writable(), file.readable(), file.seekable(), file.stat().st_size)
        file.writelines(["three\n", "four"])
        file.flush()
    see(sftp.stat("file").st_size, stat.filemode(sftp.lstat("file").st_mode), sftp.listdir())
    with sftp.open("file") as file:
        see(file.readline(), file.tell(), file.read(3), file.readlines(), file.read(), file.seek(-4, 2), file.read())
        see(file.seek(0), next(file), list(file), file.closed)
        file.seek(2)
        file.prefetch()
        see(file.readv([(0, 3), (4, 3)]) and [bytes(piece) for piece in file.readv([(0, 3), (4, 3)])])
        see(file.gettimeout(), file.settimeout(3), file.setblocking(True), file.set_pipelined(False))
    see(file.closed, raised(file.read), raised(lambda: file.write("x")))
    with sftp.open("file", "r+") as file:
        file.seek(4)
        file.write("TWO")
        file.truncate(7)
        file.chmod(0o640)
        file.utime((100, 200))
    about_file = sftp.stat("file")
    see(
        about_file.st_size,
        oct(about_file.st_mode),
        about_file.st_atime,
        about_file.st_mtime,
        about_file.st_uid == os.getuid(),
    )
    with sftp.open("file", "a") as file:
        see(file.tell(), file.write(" more"), file.tell())
    with sftp.open("file", "rb", 4) as file:
        see(file.read(2), file.readline(), list(file))
    see(raised(lambda: sftp.open("file", "x"), "errno"), raised(lambda: sftp.open("none"), "errno", "filename", "strerror"))
    see(
        raised(lambda: sftp.stat("none"), "errno"),
        raised(lambda: sftp.remove("none"), "errno"),
        raised(lambda: sftp.rmdir("none"), "errno"),
    )
    see(
        raised(lambda: sftp.mkdir(directory), "errno")[0],
        raised(lambda: sftp.listdir("none"), "errno"),
        raised(lambda: sftp.readlink("none"), "errno"),
    )
    see(
        raised(lambda: sftp.chdir("none"), "errno"),
        raised(lambda: sftp.chdir("file"), "errno"),
        raised(lambda: sftp.rename("none", "x"), "errno"),
    )
    see(
        raised(lambda: sftp.rmdir("."), "errno")[0],
        raised(lambda: sftp.remove("."), "errno")[0],
        raised(lambda: sftp.chmod("none", 0), "errno"),
    )
    sftp.symlink("file", "link")
    see(sftp.readlink("link"), stat.S_ISLNK(sftp.lstat("link").st_mode), sftp.stat("link").st_size)
    sftp.rename("link", "renamed")
    sftp.posix_rename("renamed", "link")
    sftp.chmod("file", 0o600)
    sftp.utime("file", (1, 2))
    sftp.utime("file", None)
    sftp.truncate("file", 3)
    sftp.chown("file", os.getuid(), os.getgid())
    see(
        sorted(sftp.listdir(".")),
        sorted(entry.filename for entry in sftp.listdir_attr()),
        sorted(each.filename for each in sftp.listdir_iter()),
    )
    entry = min(sftp.listdir_attr(), key=lambda each: each.filename)
    see(
        entry.filename,
        entry.st_size,
        str(entry)[:10],
        entry.longname[:10],
        entry.attr,
        type(entry).__name__,
        str(entry)[-4:],
    )
    here, back = os.path.join(about["directory"], "here"), os.path.join(about["directory"], "back")
    with open(here, "wb") as local:
        local.write(b"x" * 100_000)
    steps: list[tuple[int, int]] = []
    see(sftp.put(here, "put", callback=lambda done, size: steps.append((done, size))).st_size, steps[-1])
    steps.clear()
    see(sftp.get("put", back, callback=lambda done, size: steps.append((done, size))), steps[-1], os.path.getsize(back))
    see(sftp.putfo(io.BytesIO(b"abc"), "fo").st_size, sftp.getfo("fo", target := io.BytesIO()), target.getvalue())
    see(sftp.put(here, "unconfirmed", confirm=False).st_size)
    see(raised(lambda: sftp.put("/no/such/file", "x"), "errno", "filename"), raised(lambda: sftp.get("none", back), "errno"))
    see(
        raised(lambda: sftp.get("put", "/no/such/directory/x"), "errno", "filename"),
        raised(lambda: sftp.put(here, "none/x"), "errno"),
    )
    sftp.close()
    see(raised(lambda: sftp.listdir("."))[0])
    client.close()
    see(sftp.sock is sftp.get_channel())


def attributes(paramiko: Any, see: See, about: Any) -> None:
    empty = paramiko.SFTPAttributes()
    see(empty.st_size, empty.st_mode, empty.attr, repr(empty), str(empty), empty.asbytes())
    of_file = paramiko.SFTPAttributes.from_stat(os.stat(about["key"]), "name")
    see(of_file.filename, of_file.st_size == os.path.getsize(about["key"]), oct(of_file.st_mode), str(of_file)[:10])
    see(
        [
            getattr(paramiko.SFTPAttributes, f"FLAG_{each}")
            for each in ("SIZE", "UIDGID", "PERMISSIONS", "AMTIME", "EXTENDED")
        ]
    )


def policies(paramiko: Any, see: See, about: Any) -> None:
    asked = []

    class Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            asked.append([hostname == f"[{about['address']}]:{about['port']}", key.get_name()])

    def connect(policy: Any, **more: Any) -> Any:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(policy)
        client.connect(
            about["address"],
            port=about["port"],
            username=about["user"],
            key_filename=about["key"],
            look_for_keys=False,
            allow_agent=False,
            **more,
        )
        return client

    client = connect(Policy)
    see(asked, len(client.get_host_keys()))
    client.close()
    client = connect(paramiko.AutoAddPolicy())
    path = os.path.join(about["directory"], "saved")
    client.save_host_keys(path)
    see(len(client.get_host_keys()), len(Path(path).read_text().split()))
    client.close()
    client = paramiko.SSHClient()
    client.load_host_keys(path)
    see(len(client.get_host_keys()), raised(lambda: client.load_host_keys("/no/such/file"), "errno"))
    see(raised(lambda: client.load_system_host_keys("/no/such/file"), "errno"))

    class Refusing(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            raise ValueError("not that one")

    see(raised(lambda: connect(Refusing())))


def forward(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    transport = client.get_transport()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        channel = transport.open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 1234))
        near, _ = listening.accept()
        channel.sendall(b"out")
        near.sendall(b"in")
        see(near.recv(3), channel.recv(2), channel.get_name() != "")
        near.close()
        see(channel.recv(1))
        channel.close()
    port = transport.request_port_forward("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as far:
        channel = transport.accept(10)
        far.sendall(b"hello")
        see(channel.recv(5), channel.origin_addr[0])
        channel.sendall(b"back")
        see(far.recv(4))
        channel.close()
    transport.cancel_port_forward("127.0.0.1", port)
    see(kind(lambda: socket.create_connection(("127.0.0.1", port))), transport.accept(0.01))
    seen, there = [], threading.Event()

    def handler(channel: Any, origin: Any, server: Any) -> None:
        seen.append([origin[0], server[0], server[1] != 0])
        channel.close()
        there.set()

    port = transport.request_port_forward("127.0.0.1", 0, handler)
    with socket.create_connection(("127.0.0.1", port)):
        there.wait(10)
    see(seen)
    client.close()


def over_sockets(paramiko: Any, see: See, about: Any) -> None:
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    with socket.create_connection((about["address"], about["port"])) as given:
        transport = paramiko.Transport(given)
        transport.connect(username=about["user"], pkey=key)
        see(transport.is_authenticated(), transport.sock is given, transport.getpeername() == given.getpeername())
        channel = transport.open_session()
        channel.exec_command("echo there")
        see(channel.recv(10))
        transport.close()
    outer = _client(paramiko, about)
    tunnel = outer.get_transport().open_channel("direct-tcpip", (about["address"], about["port"]), ("127.0.0.1", 0))
    inner = _client(paramiko, about, sock=tunnel)
    see(inner.exec_command("echo inner")[1].read())
    inner.close()
    outer.close()
    proxied = _client(paramiko, about, sock=paramiko.ProxyCommand(f"nc {about['address']} {about['port']}"))
    see(proxied.exec_command("echo proxied")[1].read())
    proxied.close()


def configuration(paramiko: Any, see: See, about: Any) -> None:
    text = "Host db*\n  User deploy\n  Port 2222\n  IdentityFile ~/.ssh/one\n  ProxyCommand nc %h %p\n"
    text += "Host other\n  HostName 10.0.0.1\n"
    config = paramiko.SSHConfig.from_text(text)
    found = config.lookup("db1")
    see(
        found["hostname"],
        found["user"],
        found["port"],
        found.as_int("port"),
        found["proxycommand"],
        found["identityfile"][0][-5:],
    )
    see(
        sorted(config.get_hostnames()),
        config.lookup("other")["hostname"],
        raised(lambda: found["nothing"]),
        type(found).__name__,
    )
    see(paramiko.SSHConfig.from_file(io.StringIO(text)).lookup("db1")["user"])
    see(kind(lambda: paramiko.SSHConfig.from_text("Host\n  NoSuch\n").lookup("x")))
    see(paramiko.SSHConfigDict({"a": "yes", "n": "3"}).as_bool("a"))


def strategies(paramiko: Any, see: See, about: Any) -> None:
    from_disk = paramiko.auth_strategy

    class Strategy(from_disk.AuthStrategy):  # type: ignore[misc,name-defined]
        def __init__(self, *sources: Any) -> None:
            super().__init__(ssh_config=None)
            self._sources = sources

        def get_sources(self) -> Any:
            yield from self._sources

    good = paramiko.Ed25519Key.from_private_key_file(about["key"])
    wrong = paramiko.Ed25519Key.from_private_key_file(about["other_key"])
    sources = [from_disk.InMemoryPrivateKey(about["user"], each) for each in (wrong, good)]

    def connect(*sources: Any) -> Any:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        return client.connect(about["address"], port=about["port"], auth_strategy=Strategy(*sources))

    result = connect(*sources)
    see(type(result).__name__, len(result), [type(each.result).__name__ for each in result], result[1].result)
    see(raised(lambda: connect(sources[0]))[0])
    see(repr(from_disk.NoneAuth("me")), repr(from_disk.Password("me", lambda: "x")))


def words(paramiko: Any, see: See, about: Any) -> None:
    util, common = paramiko.util, paramiko.common
    see(
        util.b("ä"),
        util.u(b"\xc3\xa4"),
        util.asbytes("a"),
        util.inflate_long(b"\x01\x00"),
        util.deflate_long(256),
        util.deflate_long(-1),
    )
    see(
        util.format_binary(b"abc"), util.safe_string(b"a\x00"), util.bit_length(255), util.constant_time_bytes_eq(b"a", b"a")
    )
    see(util.clamp_value(1, 5, 3), util.mod_inverse(3, 7), raised(lambda: util.b(3)), raised(lambda: util.u(3)))
    see(
        common.DEFAULT_WINDOW_SIZE,
        common.DEFAULT_MAX_PACKET_SIZE,
        common.MSG_CHANNEL_OPEN,
        common.MSG_NAMES[90],
        common.DEBUG,
    )
    see(common.linefeed_byte, common.cr_byte, common.zero_byte, common.one_byte, common.byte_chr(3), common.byte_ord(b"a"))
    see(
        common.AUTH_FAILED,
        common.CONNECTION_FAILED_CODE,
        paramiko.common.OPEN_SUCCEEDED,
        paramiko.sftp.SFTP_DESC[2],
        paramiko.sftp.CMD_NAMES[1],
    )
    errors = paramiko.ssh_exception
    see(
        str(errors.BadAuthenticationType("x", ["a"])),
        str(errors.PartialAuthentication(["a"])),
        str(errors.ChannelException(1, "t")),
    )
    see(
        str(errors.ProxyCommandFailure("cmd", "why")),
        str(errors.CouldNotCanonicalize("x")),
        str(errors.NoValidConnectionsError({("h", 1): OSError()})),
    )
    see(
        [each.__name__ for each in errors.BadAuthenticationType.__mro__],
        [each.__name__ for each in errors.PasswordRequiredException.__mro__],
    )
    see(
        [each.__name__ for each in errors.BadHostKeyException.__mro__],
        [each.__name__ for each in errors.IncompatiblePeer.__mro__],
    )
    see(
        [each.__name__ for each in errors.NoValidConnectionsError.__mro__][:3],
        issubclass(paramiko.SFTPError, Exception),
        paramiko.SFTP is paramiko.SFTPClient,
    )


on_openssh: dict[str, Program] = {
    "commands": commands,
    "channels": channels,
    "files of channels": files_of_channels,
    "transports": transports,
    "log-ins": log_ins,
    "hosts that cannot be reached": unreachable,
    "host keys": host_keys,
    "keys": keys,
    "messages": messages,
    "SFTP": sftp,
    "attributes": attributes,
    "policies": policies,
    "forwarded ports": forward,
    "over given sockets": over_sockets,
    "configuration": configuration,
    "strategies": strategies,
    "words and numbers": words,
}


# On Paramiko's own server.


def _transport(paramiko: Any, about: Any) -> Any:
    transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
    transport.start_client(timeout=10)
    return transport


def passwords(paramiko: Any, see: See, about: Any) -> None:
    transport = _transport(paramiko, about)
    see(raised(lambda: transport.auth_none("me"), "allowed_types", "explanation"))
    see(raised(lambda: transport.auth_password("me", "wrong")))
    see(transport.is_authenticated())
    see(transport.auth_password("me", "sesame"), transport.is_authenticated(), transport.get_banner().strip())
    transport.close()
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    where = {"port": about["paramiko"], "username": "me", "allow_agent": False, "look_for_keys": False}
    see(raised(lambda: client.connect("127.0.0.1", password="wrong", **where)))
    see(raised(lambda: client.connect("127.0.0.1", password="sesame", **where)))
    # Whatever the server names: "keyonly" is let in by a password, which it does not name.
    for user, password in (("keyonly", "sesame"), ("keyonly", "wrong"), ("asked", "open"), ("asked", "wrong")):
        given = {**where, "username": user, "password": password}
        see(user, password, raised(functools.partial(client.connect, "127.0.0.1", **given), "allowed_types"))
    client.close()


def questions(paramiko: Any, see: See, about: Any) -> None:
    asked: list[Any] = []

    def handler(title: str, instructions: str, prompts: Any) -> list[str]:
        asked.append([[prompt, echo] for prompt, echo in prompts])
        return ["open" for _ in prompts]

    transport = _transport(paramiko, about)
    see(transport.auth_interactive("asked", handler), asked, transport.is_authenticated())
    transport.close()
    transport = _transport(paramiko, about)
    see(raised(lambda: transport.auth_interactive("asked", lambda *_: ["wrong"])))
    transport.close()
    transport = _transport(paramiko, about)
    see(raised(lambda: transport.auth_interactive("me", handler), "allowed_types"))
    transport.close()
    transport = _transport(paramiko, about)

    def raising(*_: Any) -> list[str]:
        raise ValueError("no idea")

    see(raised(lambda: transport.auth_interactive("asked", raising)))
    transport.close()


def steps(paramiko: Any, see: See, about: Any) -> None:
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    transport = _transport(paramiko, about)
    see(transport.auth_publickey("two", key), transport.is_authenticated())
    see(transport.auth_password("two", "sesame"), transport.is_authenticated())
    transport.close()
    transport = _transport(paramiko, about)
    see(raised(lambda: transport.auth_password("keyonly", "x"), "allowed_types"))
    transport.close()


def what_a_server_says(paramiko: Any, see: See, about: Any) -> None:
    transport = _transport(paramiko, about)
    transport.auth_password("me", "sesame")
    see(transport.remote_version[:16])
    channel = transport.open_session()
    see(raised(lambda: channel.exec_command("refuse")))
    channel = transport.open_session()
    channel.exec_command("speak")
    channel.shutdown_write()
    see(channel.makefile("rb").read(), channel.makefile_stderr("rb").read(), channel.recv_exit_status())
    see(raised(lambda: transport.open_channel("direct-tcpip", ("far", 1), ("127.0.0.1", 2)), "code", "text"))
    see(raised(lambda: transport.request_port_forward("127.0.0.1", 0)))
    see(raised(lambda: transport.open_session().invoke_subsystem("nothing")))
    see(raised(lambda: transport.open_session().invoke_shell()))
    see(raised(transport.open_sftp_client))
    transport.close()
    transport = _transport(paramiko, about)
    transport.auth_password("none", "sesame")
    see(raised(transport.open_session, "code", "text"), transport.is_active())
    transport.close()


def hung_up(paramiko: Any, see: See, about: Any) -> None:
    """A server that ends the connection during authentication."""
    where = {"port": about["paramiko"], "allow_agent": False, "look_for_keys": False}
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    for user in ("gone", "enough"):
        for login in ({"password": "x"}, {"pkey": key}):
            client = paramiko.SSHClient()
            client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
            see(user, list(login), raised(lambda: client.connect("127.0.0.1", username=user, **where, **login)))  # noqa: B023
        transport = _transport(paramiko, about)
        see(raised(lambda: transport.auth_password(user, "x")))  # noqa: B023
        transport = _transport(paramiko, about)
        see(raised(lambda: transport.auth_publickey(user, key)))  # noqa: B023


def slow_log_ins(paramiko: Any, see: See, about: Any) -> None:
    transport = _transport(paramiko, about)
    transport.auth_timeout = 0.3
    see(raised(lambda: transport.auth_password("slow", "x")))
    transport.close()


def events(paramiko: Any, see: See, about: Any) -> None:
    transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
    started, done = threading.Event(), threading.Event()
    see(transport.start_client(started), started.wait(10), transport.is_active())
    transport.auth_password("me", "sesame", done)
    see(done.wait(10), transport.is_authenticated())
    transport.close()
    time.sleep(0)


def combine_outputs(paramiko: Any, see: See, about: Any) -> None:
    """Both outputs as one, in the server's order: what came before is in two parts, standard output first."""
    transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
    transport.start_client(timeout=10)
    transport.auth_password("me", "sesame")
    channel = transport.open_session()
    see(channel.set_combine_stderr(False))
    channel.exec_command("alternate")
    channel.shutdown_write()
    channel.recv_exit_status()
    while not channel.closed:
        time.sleep(0.01)
    see(channel.set_combine_stderr(True), channel.makefile("rb").read(), channel.recv_stderr(10))
    see(channel.set_combine_stderr(False), channel.recv_stderr(10))
    for watched in (False, True):
        channel = transport.open_session()
        channel.set_combine_stderr(True)
        if watched:
            select.select([channel], [], [], 0)
        channel.exec_command("alternate")
        channel.shutdown_write()
        see(watched, channel.makefile("rb").read(), channel.recv_exit_status())
    transport.close()


on_paramiko: dict[str, Program] = {
    "combined outputs": combine_outputs,
    "passwords": passwords,
    "questions": questions,
    "log-ins in steps": steps,
    "what a server says": what_a_server_says,
    "servers that hang up": hung_up,
    "slow log-ins": slow_log_ins,
    "events": events,
}
