"""Programs for Paramiko that use what its documentation has beside clients and channels: members of transports that are set,
pipes, exceptions, keys, known_hosts as a mapping, its utilities."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

from .programs_paramiko import Program, See, _client, kind, raised


def members(paramiko: Any, see: See, about: Any) -> None:
    """The members that programs set or look at, and ways to wait."""
    client = _client(paramiko, about)
    transport = client.get_transport()
    transport.packetizer.REKEY_BYTES = pow(2, 40)
    transport.packetizer.REKEY_PACKETS = pow(2, 40)
    transport.default_window_size = transport.window_size = 2147483647
    transport.default_max_packet_size = pow(2, 20)
    see(
        transport.packetizer.REKEY_BYTES,
        paramiko.packet.Packetizer.REKEY_BYTES,
        isinstance(transport.packetizer, paramiko.Packetizer),
    )
    see(transport.hostname, transport.log_name, transport.saved_exception, transport.disabled_algorithms)
    see(transport.host_key == transport.get_remote_server_key(), transport.server_mode, transport.clear_to_send_timeout)
    channel = transport.open_session()
    see(
        channel.timeout,
        channel.combine_stderr,
        channel.ultra_debug,
        channel.logger.name,
        channel.status_event.is_set(),
        channel.status_event.isSet(),
    )
    channel.settimeout(20)
    channel.set_combine_stderr(True)
    see(channel.timeout, channel.combine_stderr)
    channel.exec_command("echo out; echo err >&2; read line; exit 3")
    see(channel.status_event.wait(0.1), channel.status_event.is_set())
    channel.sendall("\n")
    see(
        channel.status_event.wait(20),
        channel.status_event.is_set(),
        channel.exit_status,
        sorted(channel.makefile().read().split()),
    )
    sftp = client.open_sftp()
    see(sftp.ultra_debug, sftp.logger.name)
    with sftp.open(os.path.join(about["directory"], "x"), "w") as file:
        see(file.pipelined, file.set_pipelined(True), file.pipelined)
    other = paramiko.Transport((about["address"], about["port"]))
    see(other.host_key, other.hostname, other.saved_exception, other.is_active())
    other.close()
    client.close()


def pipes(paramiko: Any, see: See, about: Any) -> None:
    pipe, event = paramiko.buffered_pipe.BufferedPipe(), threading.Event()
    see(len(pipe), pipe.read_ready(), kind(lambda: pipe.read(1, 0.0)), kind(lambda: pipe.read(1, 0.05)))
    see(issubclass(paramiko.buffered_pipe.PipeTimeout, OSError))
    pipe.set_event(event)
    see(event.is_set())
    pipe.feed("text")
    pipe.feed(b"bytes")
    see(event.is_set(), len(pipe), pipe.read_ready(), pipe.read(3), pipe.read(100), event.is_set())
    pipe.feed(b"more")
    see(pipe.empty(), len(pipe), event.is_set(), pipe.empty())
    feeder = threading.Timer(0.05, pipe.feed, (b"late",))
    feeder.start()
    see(pipe.read(2), pipe.read(2, 0.0))
    pipe.feed(b"last")
    pipe.close()
    see(pipe.read(10), pipe.read(10), pipe.read(10, 0.0), event.is_set())


def exceptions(paramiko: Any, see: See, about: Any) -> None:
    from_key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    other = paramiko.Ed25519Key.from_private_key_file(about["other_key"])
    made = [
        paramiko.SSHException("some words", 3),
        paramiko.AuthenticationException("no"),
        paramiko.PasswordRequiredException("no"),
        paramiko.BadAuthenticationType("no", ["publickey", "password"]),
        paramiko.ssh_exception.PartialAuthentication(["password"]),
        paramiko.ssh_exception.UnableToAuthenticate("no"),
        paramiko.ChannelException(4, "short of something"),
        paramiko.BadHostKeyException("host", from_key, other),
        paramiko.IncompatiblePeer("no"),
        paramiko.ssh_exception.MessageOrderError("no"),
        paramiko.ProxyCommandFailure("run this", 5),
        paramiko.ssh_exception.CouldNotCanonicalize("no"),
        paramiko.ssh_exception.ConfigParseError("no"),
        paramiko.ssh_exception.NoValidConnectionsError({("127.0.0.1", 22): OSError(111, "Connection refused")}),
        paramiko.ssh_exception.NoValidConnectionsError({("127.0.0.1", 22): OSError(1, "x"), ("::1", 22): OSError(2, "y")}),
        paramiko.SFTPError(3, "permission"),
        paramiko.UnknownKeyType("ssh-x", b"abc"),
        paramiko.ssh_exception.HostKeysError("no") if hasattr(paramiko.ssh_exception, "HostKeysError") else None,
    ]
    for error in made:
        if error is None:
            continue
        public = {
            name: value
            for name, value in vars(error).items()
            if not name.startswith("_") and isinstance(value, (str, int, list))
        }
        see(type(error).__name__, str(error), repr(error), [repr(each) for each in error.args], public)
        see([each.__name__ for each in type(error).__mro__])
    for error in made[:6]:
        back = pickle.loads(pickle.dumps(error))
        see(type(back).__name__, str(back))


def public_keys(paramiko: Any, see: See, about: Any) -> None:
    path = about["key"]
    key = paramiko.PKey.from_path(path)
    see(
        type(key).__name__,
        key.get_name(),
        key.get_bits(),
        key.can_sign(),
        key.algorithm_name,
        key.get_fingerprint() != b"",
        str(key) != "",
    )
    see(key.fingerprint == paramiko.PKey.from_type_string(key.get_name(), key.asbytes()).fingerprint)
    public = paramiko.PKey.from_type_string(key.get_name(), key.asbytes())
    see(public == key, hash(public) == hash(key), public.can_sign(), public.get_base64() == key.get_base64())
    see(raised(lambda: paramiko.PKey.from_type_string("ssh-none", b"abc")))
    see(raised(lambda: paramiko.PKey.from_path("/no/such/key"), "errno"))
    # What is said of a key of another type differs.
    see(kind(lambda: paramiko.RSAKey.from_private_key_file(path)))
    see(kind(lambda: paramiko.ECDSAKey.from_private_key_file(path)))
    see(raised(lambda: paramiko.RSAKey(data=key.asbytes())), raised(lambda: paramiko.Ed25519Key(data=b"")))
    message = key.sign_ssh_data(b"data")
    signed = message if isinstance(message, paramiko.Message) else paramiko.Message(message)
    signed.rewind()
    see(public.verify_ssh_sig(b"data", signed))
    signed.rewind()
    see(public.verify_ssh_sig(b"other", signed))
    for name, made in (("rsa", paramiko.RSAKey.generate(2048)), ("ecdsa", paramiko.ECDSAKey.generate(bits=384))):
        file = os.path.join(about["directory"], name)
        made.write_private_key_file(file)
        made.write_private_key_file(f"{file}.locked", password="secret")
        see(name, made.get_bits(), made.get_name(), os.stat(file).st_mode & 0o777)
        see(type(made).from_private_key_file(f"{file}.locked", "secret") == made)
        see(raised(lambda: type(made).from_private_key_file(f"{file}.locked")))  # noqa: B023
        see(kind(lambda: type(made).from_private_key_file(f"{file}.locked", "wrong")))  # noqa: B023
        see(made == type(made).from_private_key_file(file), made != key, made.identifiers())
    see(paramiko.ECDSAKey.supported_key_format_identifiers(), paramiko.Ed25519Key.identifiers())
    blob = paramiko.pkey.PublicBlob.from_file(about["certificate"])
    see(
        blob.key_type,
        blob.comment is not None,
        blob == paramiko.pkey.PublicBlob.from_string(Path(about["certificate"]).read_text()),
    )
    see(raised(lambda: paramiko.pkey.PublicBlob.from_string("one")))


def known_hosts(paramiko: Any, see: See, about: Any) -> None:
    directory = about["directory"]
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    other = paramiko.Ed25519Key.from_private_key_file(about["other_key"])
    hosts = paramiko.HostKeys()
    hosts.add("plain", "ssh-ed25519", key)
    hosts.add("[port]:2222", "ssh-ed25519", other)
    hosts["mapped"] = {"ssh-ed25519": key}
    hashed = paramiko.HostKeys.hash_host("secret")
    see(hashed.startswith("|1|"), paramiko.HostKeys.hash_host("secret", hashed) == hashed)
    hosts.add(hashed, "ssh-ed25519", other)
    see(len(hosts), sorted(name for name in hosts if not name.startswith("|")), "plain" in hosts, "none" in hosts)
    see(
        hosts.lookup("secret")["ssh-ed25519"] == other,
        hosts.lookup("none"),
        hosts.check("plain", key),
        hosts.check("plain", other),
    )
    see(hosts.check("secret", other), hosts.check("none", key), hosts["plain"].keys(), kind(lambda: hosts["none"]))
    see([len(each) for each in hosts.values()], dict(hosts["mapped"]) == {"ssh-ed25519": key})
    hosts.add("plain", "ssh-ed25519", other)
    see(hosts.check("plain", other), len(hosts))
    file = os.path.join(directory, "known")
    hosts.save(file)
    with open(file) as saved:
        lines = [line.split() for line in saved]
    see([(line[0].split("|")[0], line[1]) for line in lines])
    with open(file, "a") as saved:
        saved.write(
            "# a comment\n\nbroken line\nname ssh-none AAAA\ntwo,three ssh-ed25519 " + key.get_base64() + " comment\n"
        )
    read = paramiko.HostKeys(file)
    see(len(read), read.check("two", key), read.check("three", key), read.lookup("secret") is not None)
    del read["plain"]
    see("plain" in read, kind(lambda: read.__delitem__("plain")))
    read.clear()
    see(len(read), raised(lambda: paramiko.HostKeys(os.path.join(directory, "none")), "errno"))
    entry = paramiko.hostkeys.HostKeyEntry.from_line("a,b ssh-ed25519 " + key.get_base64())
    see(entry.hostnames, entry.key == key, entry.valid, entry.to_line(), repr(entry).startswith("<HostKeyEntry"))
    see(paramiko.hostkeys.HostKeyEntry.from_line("a b"), paramiko.hostkeys.HostKeyEntry.from_line("a ssh-none AAAA"))
    hosts["mapped"]["ssh-rsa"] = paramiko.RSAKey.generate(2048)
    see(hosts["mapped"].keys(), len(hosts["mapped"]), kind(lambda: hosts["mapped"]["ssh-none"]))
    found = hosts["mapped"]
    del found["ssh-rsa"]
    see(
        found.keys(),
        hosts["mapped"].keys(),
        paramiko.hostkeys.HostKeyEntry().to_line(),
        paramiko.hostkeys.HostKeyEntry().valid,
    )
    client = paramiko.SSHClient()
    see(raised(lambda: client.load_host_keys(os.path.join(directory, "none")), "errno"))
    client.load_host_keys(file)
    client.get_host_keys().add("more", "ssh-ed25519", key)
    client.save_host_keys(file)
    see("more" in paramiko.HostKeys(file))


def list_names(paramiko: Any, see: See, about: Any) -> None:
    """The names that ``dir`` lists, which shells complete."""
    see(sorted({"Agent", "AuthHandler", "Channel", "ServerInterface", "Transport", "util"} - set(dir(paramiko))))
    see(sorted({"Transport", "SSHException", "MSG_KEXINIT"} - set(dir(paramiko.transport))))
    see([name for name in dir(paramiko) if not name.startswith("_") and not hasattr(paramiko, name)])


def utilities(paramiko: Any, see: See, about: Any) -> None:
    util = paramiko.util
    numbers = (0, 1, 127, 128, 255, 256, -1, -128, -129, -32768, 2**64, -(2**70))
    see([util.deflate_long(each) for each in numbers], [util.deflate_long(each, False) for each in numbers if each >= 0])
    see(
        [util.inflate_long(util.deflate_long(each)) for each in numbers],
        util.inflate_long(b"\xff", True),
        util.inflate_long(b""),
    )
    see(util.format_binary(b"ab\x00" * 9), util.format_binary_line(b"ab\x00"), util.safe_string(b"a\x01\xffz"))
    see(
        util.b("ä"),
        util.u(b"\xc3\xa4"),
        kind(lambda: util.b(1)),
        kind(lambda: util.u(1)),
        util.asbytes("a"),
        util.asbytes(b"a"),
    )
    see(
        util.bit_length(255),
        util.clamp_value(1, 5, 3),
        util.constant_time_bytes_eq(b"a", b"a"),
        util.constant_time_bytes_eq(b"a", b"b"),
    )
    see(util.get_logger("paramiko.x").name, util.get_thread_id() == util.get_thread_id())
    file = os.path.join(about["directory"], "log")
    util.log_to_file(file)
    see(os.path.exists(file))
    with open(os.path.join(about["directory"], "config"), "w") as config:
        config.write("Host one\n  User me\n  Port 23\n")
    with open(config.name) as config:
        parsed = util.parse_ssh_config(config)
    see(util.lookup_ssh_host_config("one", parsed)["user"], util.lookup_ssh_host_config("one", parsed).as_int("port"))
    see(paramiko.common.byte_chr(65), paramiko.common.byte_ord(b"A"), paramiko.common.byte_mask(511, 255))
    see(paramiko.common.MSG_NAMES[80], paramiko.common.DEBUG, paramiko.common.max_byte, paramiko.common.DEFAULT_WINDOW_SIZE)
    see(paramiko.io_sleep, len(paramiko.key_classes))


on_openssh: dict[str, Program] = {
    "names of modules": list_names,
    "members that are set": members,
    "buffered pipes": pipes,
    "exceptions by themselves": exceptions,
    "public keys": public_keys,
    "known hosts as a mapping": known_hosts,
    "utilities": utilities,
}
