"""Keys: the user's, and servers'."""

from __future__ import annotations

import base64
import binascii
import copy
import getpass
import hashlib
import importlib
import io
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ... import _native
from .message import Message
from .ssh_exception import PasswordRequiredException, SSHException

if TYPE_CHECKING:
    from typing_extensions import Self

_AGENT_LABEL = "a key of the agent"
_PUBLIC_LABEL = "a public key"
#: How the names of certificates' files end.
_CERTIFICATE = "-cert.pub"


class UnknownKeyType(Exception):
    """A key of a type that is not known."""

    def __init__(self, key_type: str | type | None = None, key_bytes: bytes | None = None) -> None:
        super().__init__(key_type, key_bytes)
        self.key_type = key_type
        self.key_bytes = key_bytes

    def __str__(self) -> str:
        length = 0 if self.key_bytes is None else len(self.key_bytes)
        return f"UnknownKeyType(type={self.key_type!r}, bytes=<{length}>)"


#: The files of a type in Paramiko's errors, where they are not called after it.
_TAGS = {"": "OPENSSH", "ecdsa": "EC", "ed25519": "OPENSSH"}


class PKey:
    """A key: public, or private where it comes from a private key's file.

    The classes of the types only take keys of theirs; ``PKey.from_path`` finds the type out.
    """

    BEGIN_TAG = re.compile(r"^-{5}BEGIN (RSA|EC|OPENSSH) PRIVATE KEY-{5}\s*$")
    END_TAG = re.compile(r"^-{5}END (RSA|EC|OPENSSH) PRIVATE KEY-{5}\s*$")

    #: Types by their names in the protocol; empty for any.
    types: tuple[str, ...] = ()
    #: A key's type, which is its class's if that has one only.
    name: str = ""
    #: As ``ssh-keygen`` calls it.
    _algorithm = ""

    def __init__(
        self,
        msg: Any = None,
        data: bytes | None = None,
        filename: str | os.PathLike[str] | None = None,
        password: str | bytes | None = None,
        key: Any = None,
        file_obj: IO[str] | IO[bytes] | None = None,
    ) -> None:
        #: Empty until it is opened: a traceback may show a key that cannot be.
        self.blob = b""
        if key is not None:
            data, file_obj = _serialized(key)
        if msg is not None:
            data = msg.asbytes()
        #: The socket of the agent that signs with it.
        self.agent_socket: str | None = None
        #: A file with a certificate for it.
        self.certificate: str | None = None
        #: The certificate that was loaded.
        self.public_blob: PublicBlob | None = None
        self.passphrase = password.decode() if isinstance(password, bytes) else password
        self.comment = ""
        self.label = ""
        self._native: _native.Key | None = None
        #: The file of the private half.
        self._content = b""
        if filename is not None:
            self._open(os.fspath(filename), Path(filename).expanduser().read_bytes())
            beside = os.path.expanduser(os.fspath(filename) + _CERTIFICATE)
            self.certificate = beside if os.path.exists(beside) else None
        elif file_obj is not None:
            content = file_obj.read()
            # Its own label tells the engine's questions for passphrases apart.
            self._open(f"key {id(self):x} in memory", content.encode() if isinstance(content, str) else content)
        elif data is not None:
            self.blob = _plain(bytes(data))
            self.name = self._type(self.blob)
            if self.blob != data:
                self.load_certificate(Message(bytes(data)))
        else:
            raise SSHException("Key object may not be empty")
        if self.types and self.name not in self.types:
            begins = self._begins(self._content)
            if begins in (None, "OPENSSH", self._tag()):
                raise SSHException(f"not a valid {self._tag()} private key file: it holds {self.name}")
            raise SSHException(f"encountered {begins} key, expected {self._tag()} key")

    def _type(self, blob: bytes) -> str:
        """The type of a public key, which is one of this class's."""
        if not self.types:
            return _type_of(blob)
        try:
            name = _type_of(blob)
        except UnknownKeyType:
            name = ""
        if name not in self.types:
            # Paramiko's words, which end so.
            raise SSHException(f"Invalid key (class: {type(self).__name__}, data type: {name}")
        return name

    def _open(self, label: str, content: bytes) -> None:
        if not content:
            raise SSHException(f"no lines in {self._tag()} private key file")
        self.label = label
        self._content = content
        try:
            self._native = _native.Key(label, content)
            if not self._native.is_private():
                raise ValueError(f"{label} holds no private key")
            if self._native.is_encrypted() and not self.passphrase:
                raise PasswordRequiredException("Private key file is encrypted")
            self.name, self.blob, self.comment = self._native.unlock(self.passphrase)
        except ValueError as error:
            if not self._open_by_ssh_keygen(label, content):
                told = str(error) if self._begins(content) else f"not a valid {self._tag()} private key file"
                raise SSHException(told) from None

    def _begins(self, content: bytes) -> str | None:
        """Return the word in the line that a private key's file begins with, if there is one."""
        lines = (self.BEGIN_TAG.match(line) for line in content.decode(errors="replace").splitlines())
        return next((line[1] for line in lines if line is not None), None)

    @classmethod
    def _tag(cls) -> str:
        """Return that word for keys of this type, in their old format if they have one."""
        return _TAGS.get(cls._algorithm, cls._algorithm.upper())

    def _open_by_ssh_keygen(self, label: str, content: bytes) -> bool:
        """Opens a key that the engine does not: in an older cipher, or of a size that it does not sign with. Whether it is
        one."""
        try:
            plain = _with_passphrase(content, self.passphrase, None, None, is_to_change=True)
            words = _public_half(plain).split(None, 2)
        except SSHException:
            return False
        self.name, self.blob = words[0], base64.b64decode(words[1])
        self.comment = words[2].strip() if len(words) > 2 else ""
        native = _native.Key(label, plain)
        try:
            native.unlock(None)
        except ValueError:
            # It can be looked at and shown, not signed with.
            self._native = None
        else:
            self._native, self._content, self.passphrase = native, plain, None
        return True

    def text(self) -> str:
        """The private half as a file, without a passphrase."""
        return self._written(None).decode()

    # Where keys come from.

    @classmethod
    def from_private_key_file(cls, filename: str | os.PathLike[str], password: str | bytes | None = None) -> Self:
        """The key in a file, in any of OpenSSH's formats."""
        return cls(filename=filename, password=password)

    @classmethod
    def from_private_key(cls, file_obj: IO[str] | IO[bytes], password: str | bytes | None = None) -> Self:
        """The key that an open file holds."""
        return cls(file_obj=file_obj, password=password)

    def __deepcopy__(self, _memo: object) -> Self:
        # What the engine has of it never changes.
        return copy.copy(self)

    @staticmethod
    def from_path(
        path: str | os.PathLike[str], password: str | bytes | None = None, *, passphrase: str | bytes | None = None
    ) -> PKey:
        """The key in a file, of whichever type, with the certificate beside it; or that of a certificate's file. Paramiko 3
        and 4 call the password ``passphrase``. ``UnknownKeyType`` for a key that only the package cryptography knows, and
        that package's ``ValueError`` for what it cannot read either, if it is installed."""
        password = password or passphrase
        try:
            return open_key(path, password)
        except PasswordRequiredException:
            raise
        except SSHException:
            _refuse_as_cryptography(Path(path).expanduser().read_bytes(), password)
            raise

    @staticmethod
    def from_type_string(key_type: str, key_bytes: bytes, password: str | None = None) -> PKey:
        """A public key. ``UnknownKeyType`` if no class is for its type."""
        for kind in (RSAKey, ECDSAKey, Ed25519Key):
            if key_type in kind.identifiers():
                return kind(data=key_bytes)
        raise UnknownKeyType(key_type, key_bytes)

    @staticmethod
    def from_blob(blob: bytes) -> PKey:
        """A public key, in the class of its type."""
        return _typed(PKey(data=blob))

    @classmethod
    def _generated(cls, bits: int | None) -> Self:
        """A new key, made by ssh-keygen."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "key")
            size = [] if bits is None else ["-b", str(bits)]
            comment = f"{getpass.getuser()}@{os.uname().nodename}"
            done = subprocess.run(
                ["ssh-keygen", "-q", "-t", cls._algorithm, *size, "-N", "", "-C", comment, "-f", path],
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
            if done.returncode:
                raise ValueError(done.stderr.decode(errors="backslashreplace").strip())
            with open(path) as file:
                return cls(file_obj=file)

    @classmethod
    def identifiers(cls) -> list[str]:
        return list(cls.types) or [cls.name]

    # What they are.

    def _of_cryptography(self) -> Any:
        """The key as the package cryptography has it: the private half if it is there."""
        found = vars(self).get("_its_other")
        if found is None:
            if self._content:
                found = _loaded_by_cryptography(self._written(None), None)
            else:
                line = f"{self.name} {base64.b64encode(self.blob).decode()}".encode()
                found = _serialization().load_ssh_public_key(line)
            self._its_other = found
        return found

    @property
    def native(self) -> _native.Key:
        """The key as the engine takes it: what is public only picks a key of the agent's."""
        if self._native is None:
            self._native = _native.Key(self.label or _AGENT_LABEL, f"{self.name} {self.get_base64()}".encode())
        return self._native

    def get_name(self) -> str:
        """Its type."""
        return self.name

    @property
    def algorithm_name(self) -> str:
        """Its type, as people call it."""
        return self.name.removeprefix("ssh-").partition("-")[0].upper()

    def asbytes(self) -> bytes:
        """The public key, as the protocol has it."""
        return self.blob

    @property
    def shown_blob(self) -> bytes:
        """The blob that a server is shown: its certificate, or the public key."""
        return self.public_blob.key_blob if self.public_blob is not None else self.asbytes()

    def __bytes__(self) -> bytes:
        return self.blob

    def get_base64(self) -> str:
        """The public key, as key files have it."""
        return base64.b64encode(self.blob).decode()

    def get_bits(self) -> int:
        """Its size."""
        if self.name == "ssh-rsa":
            return int.from_bytes(_fields(self.blob)[2], "big").bit_length() if self.blob else 0
        return int(self.name.rpartition("nistp")[2]) if "nistp" in self.name else 256 if self.name == "ssh-ed25519" else 0

    def can_sign(self) -> bool:
        """Return whether the private half is there, or the agent has it."""
        return self.agent_socket is not None or bool(self._content)

    def get_fingerprint(self) -> bytes:
        """MD5 of the public key, as old programs show it."""
        return hashlib.md5(self.blob, usedforsecurity=False).digest()

    @property
    def fingerprint(self) -> str:
        """As OpenSSH shows it."""
        digest = hashlib.sha256(self.blob).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

    def load_certificate(self, value: str | Message) -> None:
        """A certificate for it: a file, its content, or a message."""
        if isinstance(value, str) and os.path.isfile(value):
            self.public_blob = self._fitting(PublicBlob.from_file(value))
            self.certificate = value
            return
        found = PublicBlob.from_string(value) if isinstance(value, str) else PublicBlob.from_message(value)
        self.public_blob = self._fitting(found)
        # The engine takes certificates from files.
        self._written_certificate = tempfile.NamedTemporaryFile("w", suffix=_CERTIFICATE)  # noqa: SIM115 (as long as the key)
        self._written_certificate.write(self.public_blob.line())
        self._written_certificate.flush()
        self.certificate = self._written_certificate.name

    def _fitting(self, certificate: PublicBlob) -> PublicBlob:
        """The certificate, if it is of a key of this type."""
        if not certificate.key_type.startswith(self.name):
            raise ValueError(f"PublicBlob type {certificate.key_type} incompatible with key type {self.name}")
        return certificate

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Message:
        """Signs, as the protocol encodes signatures."""
        if self._native is None or not self._native.is_private():
            return self._signed_by_paramiko(data, algorithm)
        chosen = algorithm or ("rsa-sha2-512" if self.name == "ssh-rsa" else self.name)
        return Message(self._native.sign(data, chosen, self.passphrase))

    def _signed_by_paramiko(self, data: bytes, algorithm: str | None) -> Message:
        """Signs with a key that the engine does not sign with, if Paramiko is installed."""
        if not self._content:
            raise SSHException("there is no private half to sign with")
        from . import _original

        try:
            return Message(_original.key(self).sign_ssh_data(data, algorithm).asbytes())
        except ImportError:
            why = f"the engine does not sign with {self.algorithm_name} keys of {self.get_bits()} bits"
            raise SSHException(f"{why}, and the package paramiko, which does, is not installed") from None

    @property
    def signs_in_python(self) -> bool:
        """Whether ``sign_ssh_data`` has to sign: that is a program's own, or the engine does not take a key of this size."""
        sign: Any = self.sign_ssh_data
        if getattr(sign, "__self__", None) is not self or not sign.__module__.startswith(__package__):
            return True
        return bool(self._content) and (self._native is None or not self._native.is_private())

    def verify_ssh_sig(self, data: bytes, msg: Message) -> bool:
        """Return whether it has signed ``data``; ``msg`` is what ``sign_ssh_data`` gives."""
        public = _native.Key(_PUBLIC_LABEL, f"{self.name} {self.get_base64()}".encode())
        return public.has_signed(data, msg.asbytes())

    def write_private_key_file(
        self, filename: str | os.PathLike[str], password: str | None = None, file_format: object = None
    ) -> None:
        """Writes the key for nobody else to read, with ``password`` as its passphrase or without one: an RSA or ECDSA key as
        PEM unless ``file_format`` is Paramiko's ``OPENSSH`` or the passphrase has fewer than five bytes, another in the
        format that it has."""
        descriptor = os.open(filename, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(self._written(password, self._format(file_format)))

    def write_private_key(self, file_obj: IO[str], password: str | None = None, file_format: object = None) -> None:
        """As ``write_private_key_file``, to an open file."""
        file_obj.write(self._written(password, self._format(file_format)).decode())

    def _format(self, file_format: object) -> str | None:
        """Return the name that ssh-keygen has for a format of Paramiko's; ``None`` for any."""
        if self.name == "ssh-ed25519":
            return None
        chosen = getattr(file_format, "format", None)
        return "PEM" if chosen is None or chosen is not _serialization().PrivateFormat.OpenSSH else "RFC4716"

    def _written(self, password: str | None, form: str | None = None) -> bytes:
        if not self._content:
            raise SSHException("there is no private half to write")
        if form == "PEM" and 0 < len((password or "").encode()) < _PEM_PASSPHRASE:
            form = "RFC4716"
        words = b"-----BEGIN OPENSSH " if form == "RFC4716" else f"-----BEGIN {self._tag()} ".encode()
        has_form = form is None or self._content.lstrip().startswith(words)
        return _with_passphrase(self._content, self.passphrase, password, form, is_to_change=not has_form)

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, PKey) else NotImplemented

    @property
    def _fields(self) -> list[object]:
        """The fields that distinguish it from other keys; classes of one's own may have others."""
        return [self.name, self.blob]

    def __hash__(self) -> int:
        return hash(self.blob)

    def __repr__(self) -> str:
        return f"PKey(alg={self.algorithm_name}, bits={self.get_bits()}, fp={self.fingerprint})"


class PublicBlob:
    """A certificate: its type, its content, and what is said about it."""

    def __init__(self, type_: str, blob: bytes, comment: str | None = None) -> None:
        self.key_type = type_
        self.key_blob = blob
        self.comment = comment

    @classmethod
    def from_file(cls, filename: str) -> Self:
        """The certificate in a file."""
        with open(filename) as file:
            return cls.from_string(file.read())

    @classmethod
    def from_string(cls, string: str) -> Self:
        """The certificate of a line."""
        words = string.split(None, 2)
        if len(words) < 2:
            raise ValueError(f"Not enough fields for public blob: {words}")
        blob = base64.b64decode(words[1])
        inside = Message(blob).get_text()
        if inside != words[0]:
            raise ValueError(f"Invalid PublicBlob contents.  Key type[{words[0]}] doesn't match blob type[{inside}]")
        return cls(words[0], blob, words[2].strip() if len(words) > 2 else None)

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """The certificate of a message."""
        return cls(message.get_text(), message.asbytes())

    def line(self) -> str:
        """The line that it is in a file."""
        return f"{self.key_type} {base64.b64encode(self.key_blob).decode()} {self.comment or ''}\n"

    def __str__(self) -> str:
        told = f"{self.key_type} public key/certificate"
        return f"{told}- {self.comment}" if self.comment else told

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicBlob) and self.key_blob == other.key_blob

    def __hash__(self) -> int:
        return hash(self.key_blob)


class RSAKey(PKey):
    """An RSA key."""

    types = ("ssh-rsa",)
    name = "ssh-rsa"
    _algorithm = "rsa"

    @property
    def key(self) -> Any:
        """The key as the package cryptography has it."""
        return self._of_cryptography()

    @property
    def private_key(self) -> Any:
        """The same, if the private half is there."""
        return self.key if self._content else None

    @property
    def public_numbers(self) -> Any:
        return (self.key.public_key() if self._content else self.key).public_numbers()

    @property
    def size(self) -> int:
        return self.get_bits()

    def __str__(self) -> str:
        return self.asbytes().decode(errors="ignore")

    @classmethod
    def generate(cls, bits: int, progress_func: object = None) -> Self:
        """A new key, made by ssh-keygen."""
        if bits < 1024:
            raise ValueError("key_size must be at least 1024-bits.")
        return cls._generated(bits)

    @classmethod
    def identifiers(cls) -> list[str]:
        """Its types, and the names of its signatures."""
        names = ("rsa-sha2-256", "rsa-sha2-512", "ssh-rsa")
        return [each for name in names for each in (name, f"{name}-cert-v01@openssh.com")]


class ECDSAKey(PKey):
    """A key on one of NIST's curves."""

    types = ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
    _algorithm = "ecdsa"

    def __init__(
        self,
        msg: Any = None,
        data: bytes | None = None,
        filename: str | os.PathLike[str] | None = None,
        password: str | bytes | None = None,
        vals: tuple[Any, Any] | None = None,
        file_obj: IO[str] | IO[bytes] | None = None,
        validate_point: bool = True,
    ) -> None:
        key = None if vals is None else vals[0] if vals[0] is not None else vals[1]
        super().__init__(msg, data, filename, password, key, file_obj)

    @property
    def signing_key(self) -> Any:
        """The private half as the package cryptography has it, if it is there."""
        return self._of_cryptography() if self._content else None

    private_key = signing_key

    @property
    def verifying_key(self) -> Any:
        """The public half as the package cryptography has it."""
        key = self._of_cryptography()
        return key.public_key() if self._content else key

    @classmethod
    def generate(cls, curve: Any = None, progress_func: object = None, bits: int | None = None) -> Self:
        """A new key, made by ssh-keygen; ``curve`` is one of the package cryptography's."""
        if bits not in (None, 256, 384, 521):
            raise ValueError(f"Unsupported key length: {bits}")
        return cls._generated(bits if bits is not None else getattr(curve, "key_size", 256))

    @classmethod
    def supported_key_format_identifiers(cls) -> list[str]:
        return list(cls.types)


class Ed25519Key(PKey):
    """An Ed25519 key."""

    types = ("ssh-ed25519",)
    name = "ssh-ed25519"
    _algorithm = "ed25519"

    def can_verify(self) -> bool:
        """Return whether it is a public key alone, as Paramiko has it; ``verify_ssh_sig`` works with each."""
        return not self._content

    @classmethod
    def generate(cls) -> Self:
        """A new key, made by ssh-keygen."""
        return cls._generated(None)


class DSSKey(PKey):
    """A DSA key. Neither the engine nor OpenSSH since 10.0 has them: making one is an ``SSHException``."""

    types = ("ssh-dss",)
    _algorithm = "dsa"

    @classmethod
    def generate(cls, bits: int = 1024, progress_func: object = None) -> Self:
        raise SSHException("there are no DSA keys any more")


def _serialization() -> Any:
    """The package cryptography's part that reads and writes keys."""
    return importlib.import_module("cryptography.hazmat.primitives.serialization")


def _loaded_by_cryptography(content: bytes, password: str | bytes | None) -> Any:
    """A private key's file as the package cryptography has it; raises that package's errors."""
    serialization, secret = _serialization(), password.encode() if isinstance(password, str) else password
    try:
        return serialization.load_ssh_private_key(content, secret)
    except ValueError:
        return serialization.load_pem_private_key(content, secret)


def _serialized(key: Any) -> tuple[bytes | None, IO[bytes] | None]:
    """A key of the package cryptography's: a public key's blob, or a private key as a file."""
    serialization = _serialization()
    if hasattr(key, "private_bytes"):
        form, encoding = serialization.PrivateFormat.OpenSSH, serialization.Encoding.PEM
        return None, io.BytesIO(key.private_bytes(encoding, form, serialization.NoEncryption()))
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return base64.b64decode(line.split()[1]), None


def _refuse_as_cryptography(content: bytes, password: str | bytes | None) -> None:
    """Raises, of a file that does not hold one of the known keys, what Paramiko raises."""
    try:
        loaded = _loaded_by_cryptography(content, password)
    except ImportError:
        return
    kinds = (("rsa", "RSAPrivateKey"), ("ec", "EllipticCurvePrivateKey"), ("ed25519", "Ed25519PrivateKey"))
    modules = [importlib.import_module(f"cryptography.hazmat.primitives.asymmetric.{module}") for module, _ in kinds]
    if not isinstance(loaded, tuple(getattr(module, name) for module, (_, name) in zip(modules, kinds))):
        raise UnknownKeyType(type(loaded), content)


#: The bytes that OpenSSH wants of a PEM file's passphrase; with a shorter one, a key is written in OpenSSH's own form.
_PEM_PASSPHRASE = 5

#: Answers ssh-keygen's questions; nobody else sees the environment of one's programs.
_ASKPASS = """#!/bin/sh
case $1 in *[Oo]ld*) printf '%s\\n' "$TRUNKLINE_OLD" ;; *) printf '%s\\n' "$TRUNKLINE_NEW" ;; esac
"""


def _public_half(content: bytes) -> str:
    """The public half of a private key's file without a passphrase, as a line."""
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        done = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", key], stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:
            raise SSHException(f"ssh-keygen: {done.stderr.decode(errors='backslashreplace').strip()}")
        return done.stdout.decode(errors="backslashreplace")


def _with_passphrase(content: bytes, old: str | None, new: str | None, form: str | None, is_to_change: bool) -> bytes:
    """A private key's file with another passphrase, in the form that ssh-keygen has a name for, or its own; as it is if that
    passphrase is the same and it is not to change."""
    if (old or "") == (new or "") and not is_to_change:
        return content
    with tempfile.TemporaryDirectory() as directory:
        key, askpass = Path(directory, "key"), Path(directory, "askpass")
        for path, written, mode in ((key, content, 0o600), (askpass, _ASKPASS.encode(), 0o700)):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(written)
        answers = {"TRUNKLINE_OLD": old or "", "TRUNKLINE_NEW": new or ""}
        asking = {"SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
        done = subprocess.run(
            ["ssh-keygen", "-p", *(["-m", form] if form is not None else []), "-f", key],
            env={**os.environ, **answers, **asking},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
        )
        if done.returncode:
            raise SSHException(f"ssh-keygen: {done.stderr.decode(errors='backslashreplace').strip()}")
        return key.read_bytes()


def open_key(path: str | os.PathLike[str], password: str | bytes | None) -> PKey:
    """The key in a file, in the class of its type, with the certificate beside it; or that of a certificate's file."""
    plain = os.path.expanduser(os.fspath(path))
    certificate = plain if plain.endswith(_CERTIFICATE) else plain + _CERTIFICATE
    key = _typed(PKey(filename=plain.removesuffix(_CERTIFICATE), password=password))
    if os.path.exists(certificate):
        key.load_certificate(certificate)
    return key


def _typed(key: PKey) -> PKey:
    """The same key in the class of its type."""
    for kind in (RSAKey, ECDSAKey, Ed25519Key):
        if key.name in kind.types:
            key.__class__ = kind
            return key
    return key


def _type_of(blob: bytes) -> str:
    try:
        return _fields(blob)[0].decode("ascii")
    except (IndexError, UnicodeDecodeError) as error:
        raise UnknownKeyType(key_bytes=blob) from error


#: How many fields the public keys have that certificates are made of.
_FIELDS_OF_KEYS = {"ssh-rsa": 2, "ssh-ed25519": 1, **dict.fromkeys(ECDSAKey.types, 2)}


def _plain(blob: bytes) -> bytes:
    """The public key in a certificate (OpenSSH's PROTOCOL.certkeys), behind its type and a nonce; any other key as it is."""
    message = Message(blob)
    name, is_certificate, _ = message.get_binary().decode("ascii", "replace").partition("-cert-v01@openssh.com")
    if not is_certificate or name not in _FIELDS_OF_KEYS:
        return blob
    message.get_binary()
    plain = Message()
    plain.add_string(name)
    for _ in range(_FIELDS_OF_KEYS[name]):
        plain.add_string(message.get_binary())
    return plain.asbytes()


def _fields(blob: bytes) -> list[bytes]:
    """The strings of a public key (RFC 4253, section 6.6)."""
    fields = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            raise UnknownKeyType(key_bytes=blob)
        fields.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return fields


def decoded(text: str) -> PKey:
    """A public key of a line of a file. ``SSHException`` if it is none."""
    try:
        return PKey.from_blob(binascii.a2b_base64(text))
    except (binascii.Error, UnknownKeyType) as error:
        raise SSHException(f"no public key: {text!r}") from error
