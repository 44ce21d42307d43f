"""Programs for Paramiko that log in step by step, over an address or a socket of theirs, and that sign by themselves."""

from __future__ import annotations

import io
import socket
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .programs_paramiko import Program, See, raised


def _shown(paramiko: Any, transport: Any, see: See) -> None:
    """The members that a program looks at before it logs in."""
    see(transport.is_active(), transport.is_authenticated(), transport.get_username())
    see(transport.get_remote_server_key().get_name() == transport.host_key_type)
    see(transport.remote_version.startswith("SSH-2.0-"), bool(transport.remote_cipher))


# On OpenSSH.


def of_openssh(paramiko: Any, see: See, about: Any) -> None:
    where = (about["address"], about["port"])
    key = paramiko.PKey.from_path(about["key"])
    for made in (lambda: where, lambda: socket.create_connection(where)):
        transport = paramiko.Transport(made())
        transport.start_client(timeout=20)
        _shown(paramiko, transport, see)
        see(raised(partial(transport.auth_none, about["user"]), "allowed_types")[0])
        see(raised(partial(transport.auth_publickey, about["user"], paramiko.PKey.from_path(about["other_key"]))))
        see(transport.is_active(), transport.is_authenticated())
        see(
            transport.auth_publickey(about["user"], key),
            transport.is_authenticated(),
            transport.get_username() == about["user"],
        )
        channel = transport.open_session()
        channel.exec_command("echo in")
        see(channel.makefile().read())
        transport.close()
        see(transport.is_active(), raised(partial(transport.auth_none, about["user"])))


def own_keys(paramiko: Any, see: See, about: Any) -> None:
    real = paramiko.PKey.from_path(about["key"])
    signed = []

    class Vault(paramiko.Ed25519Key):  # type: ignore[misc]
        """A key that something else signs with."""

        def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Any:
            signed.append(algorithm)
            return real.sign_ssh_data(data, algorithm)

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    key = Vault(data=real.asbytes())
    more = {"username": about["user"], "allow_agent": False, "look_for_keys": False}
    client.connect(about["address"], about["port"], pkey=key, **more)
    see(client.exec_command("echo vault")[1].read(), signed)
    client.close()


def rsa_signatures(paramiko: Any, see: See, about: Any) -> None:
    directory = Path(about["keys"])
    if not (directory / "short").exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "1024", "-N", "", "-f", directory / "short"], check=True)
    short = paramiko.RSAKey.from_private_key_file(str(directory / "short"))
    signature = short.sign_ssh_data(b"data", "rsa-sha2-256")
    see(short.can_sign(), short.get_bits(), short.verify_ssh_sig(b"data", paramiko.Message(signature.asbytes())))
    names = {"pubkeys": ["rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"]}
    transport = paramiko.Transport((about["address"], about["port"]), disabled_algorithms=names)
    transport.start_client(timeout=20)
    see(raised(lambda: transport.auth_publickey(about["user"], short))[1])
    transport.close()
    chosen = paramiko.Transport((about["address"], about["port"]), disabled_algorithms={"pubkeys": ["rsa-sha2-512"]})
    chosen.start_client(timeout=20)
    see(raised(lambda: chosen.auth_publickey(about["user"], short)))
    chosen.close()


def _keys(directory: Path) -> dict[str, Path]:
    """Keys of every type in the formats that Paramiko reads, with and without the passphrase "sesame"."""
    made = {}
    for passphrase in ("", "sesame"):
        for kind, bits, container in (
            ("rsa", "2048", "RFC4716"),
            ("rsa", "2048", "PEM"),
            ("ecdsa", "256", "RFC4716"),
            ("ecdsa", "384", "PEM"),
            ("ecdsa", "521", "RFC4716"),
            ("ed25519", "256", "RFC4716"),
        ):
            name = f"{kind} {bits} {container} {'sealed' if passphrase else 'open'}"
            made[name] = directory / name.replace(" ", "_")
            options = ["-t", kind, "-b", bits, "-m", container, "-N", passphrase, "-f", made[name]]
            subprocess.run(["ssh-keygen", "-q", *options], check=True)
    for name, content in (
        ("empty", b""),
        ("a line", b"\n"),
        ("text", b"not a key\n"),
        ("cut", made["ed25519 256 RFC4716 open"].read_bytes()[:200]),
        ("public", made["ed25519 256 RFC4716 open"].with_name("ed25519_256_RFC4716_open.pub").read_bytes()),
    ):
        made[name] = directory / f"bad_{name.replace(' ', '_')}"
        made[name].write_bytes(content)
    return made


def key_formats(paramiko: Any, see: See, about: Any) -> None:
    classes = {"rsa": paramiko.RSAKey, "ecdsa": paramiko.ECDSAKey, "ed25519": paramiko.Ed25519Key}
    for name, path in _keys(Path(about["directory"])).items():
        of_type = [classes[name.split()[0]]] if name.split()[0] in classes else list(classes.values())
        for each in of_type:
            for password in (None, "sesame", "wrong"):
                loads: list[Callable[[], Any]] = [
                    lambda: each.from_private_key_file(str(path), password),  # noqa: B023
                    lambda: each.from_private_key(io.StringIO(path.read_text()), password),  # noqa: B023
                ]
                for load in loads:
                    failed = raised(load)
                    see(name, each.__name__, password, failed[:1] if failed != ["nothing"] else load().can_sign())
        if name == "empty":
            see([raised(lambda: each.from_private_key_file(str(path))) for each in of_type])  # noqa: B023


def agents_certificates(paramiko: Any, see: See, about: Any) -> None:
    blob = paramiko.pkey.PublicBlob.from_file(about["certificate"]).key_blob
    key = paramiko.AgentKey(None, blob, "mine")
    plain = paramiko.PKey.from_path(about["key"])
    see(key.get_name(), key.blob == blob, key.comment, key.public_blob)
    bare = paramiko.AgentKey(None, plain.asbytes())
    see(
        bare.inner_key == plain,
        bare.asbytes() == plain.asbytes(),
        bare == plain,
        bare.get_bits(),
        bare.fingerprint == plain.fingerprint,
    )
    strange = paramiko.Message()
    strange.add_string("ssh-strange")
    strange.add_string("x")
    other = paramiko.AgentKey(None, strange.asbytes())
    see(other.inner_key, other.get_name(), other.asbytes() == strange.asbytes())


on_openssh: dict[str, Program] = {
    "a log-in step by step": of_openssh,
    "keys that a program signs with": own_keys,
    "signatures of RSA keys": rsa_signatures,
    "keys in every format": key_formats,
    "certificates of an agent": agents_certificates,
}


# On a server of Paramiko's.


def in_two_steps(paramiko: Any, see: See, about: Any) -> None:
    key = paramiko.PKey.from_path(about["key"])
    for made in (
        lambda: ("127.0.0.1", about["paramiko"]),
        lambda: socket.create_connection(("127.0.0.1", about["paramiko"])),
    ):
        transport = paramiko.Transport(made())
        transport.start_client(timeout=20)
        _shown(paramiko, transport, see)
        see(raised(partial(transport.auth_password, "two", "wrong")))
        see(sorted(transport.auth_publickey("two", key)), transport.is_authenticated())
        see(transport.auth_password("two", "sesame"), transport.is_authenticated())
        transport.close()


def before_the_log_in(paramiko: Any, see: See, about: Any) -> None:
    transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
    transport.start_client(timeout=20)
    see(raised(transport.open_session, "code"), transport.is_active())
    transport.close()


def refused_steps(paramiko: Any, see: See, about: Any) -> None:
    transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
    transport.start_client(timeout=20)
    see(raised(lambda: transport.auth_password("keyonly", "wrong"), "allowed_types"))
    see(raised(lambda: transport.auth_interactive("asked", lambda *asked: ["shut"])))
    see(raised(lambda: transport.auth_interactive("asked", lambda *asked: 1 / 0))[0])
    see(transport.is_active())
    # The password is the answer to the only question.
    see(raised(lambda: transport.auth_password("asked", "shut"), "allowed_types"))
    see(transport.auth_password("asked", "open"), transport.is_authenticated())
    transport.close()


def hung_up_on(paramiko: Any, see: See, about: Any) -> None:
    for user in ("gone", "enough"):
        transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
        transport.start_client(timeout=20)
        see(raised(partial(transport.auth_password, user, "sesame"))[0], transport.is_authenticated())
        transport.close()


def from_text(paramiko: Any, see: See, about: Any) -> None:
    """A key that nobody wrote to a file."""
    with open(about["key"]) as file:
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(file.read()))
    transport = paramiko.Transport(("127.0.0.1", about["paramiko"]))
    transport.start_client(timeout=20)
    see(raised(lambda: transport.auth_publickey("keyonly", key)), transport.is_active())
    transport.close()


on_paramiko: dict[str, Program] = {
    "two steps on one connection": in_two_steps,
    "a session before the log-in": before_the_log_in,
    "steps that are refused": refused_steps,
    "steps that are hung up on": hung_up_on,
    "a key of text that is refused": from_text,
}
