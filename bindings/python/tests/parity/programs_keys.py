"""Programs for Paramiko that write keys, ask them for the package cryptography's, and open what is not a key."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa

from .programs_paramiko import Program, See, kind, raised

#: The classes whose keys were kept in files of their own before OpenSSH's format was made.
_CLASSES = ("RSAKey", "ECDSAKey")


def _generated(about: Any, name: str) -> Path:
    """A key of a class, the same for both libraries, in OpenSSH's format."""
    file = Path(about["keys"], f"generated-{name}")
    if not file.exists():
        algorithm = ["-t", "rsa", "-b", "2048"] if name == "RSAKey" else ["-t", "ecdsa", "-b", "256"]
        subprocess.run(["ssh-keygen", "-q", *algorithm, "-N", "", "-C", "me", "-f", file], check=True)
    return file


def formats(paramiko: Any, see: See, about: Any) -> None:
    """A key is written as PEM, unless OpenSSH's format is asked for."""
    forms = (paramiko.pkey.PEM, paramiko.pkey.OPENSSH)
    for name in _CLASSES:
        key = getattr(paramiko, name).from_private_key_file(str(_generated(about, name)))
        for options in ({}, {"password": "secret"}, *({"file_format": form} for form in forms)):
            written = io.StringIO()
            key.write_private_key(written, **options)
            lines = written.getvalue().splitlines()
            see(name, lines[0], lines[-1], written.getvalue() if not options else "")
            again = getattr(paramiko, name).from_private_key(io.StringIO(written.getvalue()), options.get("password"))
            see(again == key)
            file = os.path.join(about["directory"], name)
            again.write_private_key_file(file, **options)
            see(Path(file).read_text().splitlines()[0], os.stat(file).st_mode & 0o777)


def as_the_package_has_them(paramiko: Any, see: See, about: Any) -> None:
    keys = {name: getattr(paramiko, name).from_private_key_file(str(_generated(about, name))) for name in _CLASSES}
    key, public = keys["RSAKey"], paramiko.RSAKey(data=keys["RSAKey"].asbytes())
    see(paramiko.RSAKey.name, paramiko.Ed25519Key.name, key.size, str(key) == key.asbytes().decode(errors="ignore"))
    see(key.key.key_size, key.private_key is key.key, public.private_key, isinstance(public.key, rsa.RSAPublicKey))
    see(key.public_numbers == public.public_numbers, key.public_numbers.e, key.public_numbers.n.bit_length())
    for each in (key.key, public.key):
        made = paramiko.RSAKey(key=each)
        see(made == key, made.can_sign(), made.get_bits())
    key, public = keys["ECDSAKey"], paramiko.ECDSAKey(data=keys["ECDSAKey"].asbytes())
    see(key.signing_key.curve.name, key.private_key.key_size, public.signing_key, public.private_key)
    see(key.verifying_key.public_numbers() == public.verifying_key.public_numbers())
    made = paramiko.ECDSAKey(vals=(key.signing_key, key.verifying_key))
    see(made == key, made.can_sign(), made.get_bits())
    own = ec.generate_private_key(ec.SECP256R1())
    see(paramiko.ECDSAKey(vals=(own, own.public_key())).get_name())
    see(paramiko.Ed25519Key.from_private_key_file(about["key"]).can_verify())


def not_keys(paramiko: Any, see: See, about: Any) -> None:
    text = Path(about["directory"], "text")
    text.write_text("one\ntwo\n")
    for name in (*_CLASSES, "Ed25519Key"):
        see(name, raised(lambda: getattr(paramiko, name).from_private_key_file(str(text))))  # noqa: B023
    see(kind(lambda: paramiko.PKey.from_path(text)))
    try:
        paramiko.Ed25519Key.from_private_key_file(str(text))
    except paramiko.SSHException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_name != "__init__":
            frame = frame.tb_next
        # As tools do that show a traceback's variables.
        see(frame is not None and kind(lambda: repr(frame.tb_frame.f_locals["self"])))
    pem = Path(about["directory"], "pem")
    pem.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    see(raised(lambda: paramiko.RSAKey.from_private_key_file(str(pem))), paramiko.PKey.from_path(pem).get_name())
    unknown = Path(about["directory"], "unknown")
    unknown.write_bytes(
        ed448.Ed448PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    see(raised(lambda: paramiko.PKey.from_path(unknown)))
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    options = {"port": about["port"], "username": about["user"], "allow_agent": False, "look_for_keys": False}
    see(raised(lambda: client.connect(about["address"], key_filename=str(text), **options)))
    see(kind(lambda: client.connect(about["address"], key_filename=str(unknown), **options)))

    class Own(paramiko.PKey):  # type: ignore[misc]
        name = "own"

    see(Own.identifiers())


on_openssh: dict[str, Program] = {
    "formats of keys": formats,
    "keys as the package cryptography has them": as_the_package_has_them,
    "files that are not keys": not_keys,
}
