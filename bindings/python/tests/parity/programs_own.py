"""Programs for Paramiko that bring something of their own: a server, a stream to talk over, a kind of file, a key of an
agent, a configuration."""

from __future__ import annotations

import functools
import io
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from .programs_paramiko import Program, See, kind


class Carried:
    """A socket's methods over a real one, without its descriptor."""

    #: Paramiko's proof of life.
    _closed = False

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner

    def send(self, data: bytes) -> int:
        # No more than a little at once, as a stream may.
        return self._inner.send(bytes(data)[:1000])

    def recv(self, size: int) -> bytes:
        return self._inner.recv(size)

    def settimeout(self, timeout: float | None) -> None:
        self._inner.settimeout(timeout)

    def close(self) -> None:
        self._inner.close()


class Turned(socket.socket):
    """A socket whose bytes are others on the wire, as those of TLS are."""

    def send(self, data: Any, flags: int = 0) -> int:
        return super().send(bytes(each ^ 255 for each in bytes(data)), flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        return bytes(each ^ 255 for each in super().recv(size, flags))


def _server(paramiko: Any, login: Any, stream: Any, host_key: Any, see: See) -> Any:
    """Serves on one end of a stream."""

    class Judge(paramiko.ServerInterface):  # type: ignore[misc]
        def get_allowed_auths(self, username: str) -> str:
            return "publickey,password"

        def check_auth_password(self, username: str, password: str) -> int:
            return int(paramiko.AUTH_SUCCESSFUL if password == "sesame" else paramiko.AUTH_FAILED)

        def check_auth_publickey(self, username: str, key: Any) -> int:
            return int(paramiko.AUTH_SUCCESSFUL if key == login and key in [login] else paramiko.AUTH_FAILED)

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return int(paramiko.OPEN_SUCCEEDED)

        def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
            def answer() -> None:
                channel.recv(1)
                channel.sendall(b"ran " + command)
                channel.sendall_stderr(b"trouble")
                channel.send_exit_status(7)
                channel.close()

            threading.Thread(target=answer, daemon=True).start()
            return True

    transport = paramiko.Transport(stream)
    transport.add_server_key(host_key)
    transport.start_server(threading.Event(), Judge())
    return transport


def _talk(paramiko: Any, see: See, near: Any, far: Any, **how: Any) -> None:
    """Runs a command over one end of a stream on a server at the other."""
    host_key = paramiko.ECDSAKey.generate()
    served = _server(paramiko, how.get("pkey"), far, host_key, see)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy)
    client.connect("there", username="me", sock=near, look_for_keys=False, allow_agent=False, **how)
    see(client.get_transport().get_remote_server_key() == host_key, served.is_active(), served.get_username())
    stdin, stdout, stderr = client.exec_command("this")
    stdin.write("x")
    see(stdout.read(), stderr.read(), stdout.channel.recv_exit_status())
    see(isinstance(served, paramiko.Transport), served.is_authenticated())
    client.close()
    served.close()


def servers(paramiko: Any, see: See, about: Any) -> None:
    near, far = socket.socketpair()
    _talk(paramiko, see, near, far, password="sesame")
    near, far = socket.socketpair()
    _talk(paramiko, see, near, far, pkey=paramiko.Ed25519Key.from_private_key_file(about["key"]))
    see(kind(lambda: paramiko.server.ServerInterface), issubclass(paramiko.SFTPServer, paramiko.SubsystemHandler))


def streams(paramiko: Any, see: See, about: Any) -> None:
    near, far = socket.socketpair()
    _talk(paramiko, see, Carried(near), Carried(far), password="sesame")
    near, far = socket.socketpair()
    turned = [Turned(fileno=each.detach()) for each in (near, far)]
    _talk(paramiko, see, *turned, password="sesame")
    transport = paramiko.Transport(Carried(socket.create_connection((about["address"], about["port"]))))
    see(transport.getpeername())
    transport.start_client(timeout=20)
    see(transport.is_active(), transport.is_authenticated())
    transport.auth_publickey(about["user"], paramiko.PKey.from_path(about["key"]))
    channel = transport.open_session()
    channel.exec_command("head -c 300000 /dev/zero")
    see(len(channel.makefile().read()), transport.is_authenticated())
    transport.close()


def served_files(paramiko: Any, see: See, about: Any) -> None:
    """Attributes that a server of one's own tells."""
    attributes = paramiko.SFTPAttributes.from_stat(os.stat(about["key"]), "name")
    message = paramiko.Message()
    attributes._pack(message)
    message.rewind()
    again = paramiko.SFTPAttributes._from_msg(message, "name", "long name")
    see(
        again.st_size == attributes.st_size,
        again.st_mode == attributes.st_mode,
        again.filename,
        again.longname,
        again._flags == attributes._flags,
    )


def own_files(paramiko: Any, see: See, about: Any) -> None:
    """A class of one's own below ``BufferedFile``, in its modes."""

    class Memory(paramiko.BufferedFile):  # type: ignore[misc]
        def __init__(self, mode: str, bufsize: int = -1) -> None:
            super().__init__()
            self._set_mode(mode, bufsize)
            self.content, self.asked = io.BytesIO(), 0

        def _read(self, size: int) -> bytes:
            self.content.seek(self.asked)
            data = self.content.read(min(size, 5))
            self.asked += len(data)
            return data

        def _write(self, data: bytes) -> int:
            self.content.seek(0, io.SEEK_END)
            return self.content.write(data)

    file = Memory("r+U")
    file.write(b"one\r\ntwo\nthree\rfour")
    see([file.readline() for _ in range(5)], sorted(file.newlines))
    by_lines = Memory("r+", 1)
    by_lines.write("whole\npart")
    see(by_lines.readline(), by_lines.readline())
    by_lines.write(" and rest\n")
    see(by_lines.readline())
    buffered = Memory("r+b", 512)
    buffered.write(bytearray(b"some"))
    buffered.write(memoryview(b" more"))
    see(buffered.read(1))
    buffered.flush()
    see(buffered.read(4), buffered.read(), buffered.readline())
    see(kind(lambda: Memory("r").write("x")), kind(lambda: Memory("w").read(1)), kind(lambda: buffered.write(5)))


def exact_reading(paramiko: Any, see: See, about: Any) -> None:
    """The rest after so many bytes were read of a channel's file."""
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy)
    login = {name: about[name] for name in ("port", "key")}
    client.connect(about["address"], login["port"], about["user"], key_filename=login["key"], allow_agent=False)
    _, stdout, _ = client.exec_command("printf abcdefgh")
    see(stdout.read(3), stdout.channel.recv(100), stdout.read())
    client.close()


def configuration(paramiko: Any, see: See, about: Any) -> None:
    text = """
User nobody
Port 22
Host web* "two words" !web9
    HostName %h.example
    IdentityFile ~/.ssh/%r
    LocalForward 80 a:80
    NoSuchDirective "quoted words"
    ProxyCommand none
Match host web1.example user nobody
    User other
    IdentityFile second
Match originalhost web2 exec "test %h = web2.example"
    Compression yes
Host *
    ProxyCommand nc %h %p %n %%
    IdentityFile second
    LocalForward 81 b:81
Match final
    ConnectTimeout = 5
"""
    config = paramiko.SSHConfig.from_text(text)
    for name in ("web1", "web2", "web9", "two words", "else"):
        found = config.lookup(name)
        see(name, sorted((key, value) for key, value in found.items()))
    for broken in ("Port\n", "Match all final\n", "Match host\n", "Match nothing\n", 'Host "open\n', "Match user a all\n"):
        see(broken, kind(functools.partial(paramiko.SSHConfig.from_text, broken)))
    canonical = "CanonicalizeHostname yes\nCanonicalDomains invalid\nCanonicalizeFallbackLocal no\n"
    see(kind(lambda: paramiko.SSHConfig.from_text(canonical).lookup("one")), paramiko.SSHConfig().lookup("one"))


def keys_of_an_agent(paramiko: Any, see: See, about: Any) -> None:
    directory = Path(about["directory"])
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", directory / "s"], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    # It listens once it has said where.
    agent.stdout.readline()
    os.environ["SSH_AUTH_SOCK"] = str(directory / "s")
    try:
        subprocess.run(["ssh-add", "-q", about["key"]], check=True, capture_output=True)
        found = paramiko.Agent()
        (key,) = found.get_keys()
        signature = key.sign_ssh_data(b"data")
        public = paramiko.Ed25519Key(data=paramiko.PKey.from_path(about["key"]).asbytes())
        see(type(signature).__name__, public.verify_ssh_sig(b"data", paramiko.Message(signature)), key == public)
        see(key.inner_key == public, key.get_bits() == public.get_bits(), key.agent is found, key.comment != "")
        found.close()
    finally:
        del os.environ["SSH_AUTH_SOCK"]
        agent.terminate()
        agent.wait()
    named = paramiko.AgentKey(None, paramiko.Message().add_string("rsa").add_string("x").asbytes(), "mine")
    see(named.algorithm_name, named.fingerprint, named.comment, named.get_bits())

    class Own(paramiko.PKey):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self._own = name

        @property
        def _fields(self) -> list[str]:
            return [self._own]

    see(Own("a") == Own("a"), Own("a") == Own("b"), Own("a") == named)
    strange = paramiko.AgentKey(None, paramiko.Message().add_string("new-type").asbytes())
    see(strange.inner_key, strange.name, strange.comment, strange.public_blob)
    see(repr(strange), strange.get_bits())


def old_keys(paramiko: Any, see: See, about: Any) -> None:
    """Keys of a size, in a cipher or by a name that the engine does not use."""
    directory = Path(about["directory"])
    generated: list[str | Path] = ["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-b"]
    subprocess.run([*generated, "1024", "-N", "", "-f", directory / "small"], check=True)
    small = paramiko.RSAKey.from_private_key_file(str(directory / "small"))
    see(small.get_bits(), small.get_name(), small == paramiko.RSAKey(data=small.asbytes()))
    small.write_private_key_file(str(directory / "again"))
    see(paramiko.RSAKey.from_private_key_file(str(directory / "again")) == small)
    subprocess.run([*generated, "2048", "-N", "", "-f", directory / "plain"], check=True)
    locked: list[str | Path] = [
        "openssl",
        "rsa",
        "-in",
        directory / "plain",
        "-des3",
        "-traditional",
        "-passout",
        "pass:secret",
    ]
    subprocess.run([*locked, "-out", directory / "locked"], check=True, capture_output=True)
    key = paramiko.RSAKey.from_private_key_file(str(directory / "locked"), "secret")
    see(key == paramiko.RSAKey.from_private_key_file(str(directory / "plain")), key.can_sign())
    see(key.verify_ssh_sig(b"data", paramiko.Message(key.sign_ssh_data(b"data", "rsa-sha2-256").asbytes())))
    see(kind(lambda: paramiko.RSAKey.from_private_key_file(str(directory / "locked"), "wrong")))
    see(paramiko.PKey.from_type_string("rsa-sha2-512", key.asbytes()) == key)


on_openssh: dict[str, Program] = {
    "servers of one's own": servers,
    "streams of one's own": streams,
    "attributes in messages": served_files,
    "files of one's own": own_files,
    "reading exactly": exact_reading,
    "configuration by rules": configuration,
    "keys of an agent": keys_of_an_agent,
    "old keys": old_keys,
}
