"""The part of ``paramiko.util`` that programs use."""

from __future__ import annotations

import hmac
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import _log
from ..._face import Closing
from .common import DEBUG, asbytes, byte_chr, byte_ord, max_byte, xffffffff, zero_byte

if TYPE_CHECKING:
    from typing import IO

    from .config import SSHConfig
    from .hostkeys import HostKeys

__all__ = [
    "DEBUG",
    "ClosingContextManager",
    "asbytes",
    "b",
    "bit_length",
    "byte_chr",
    "byte_ord",
    "clamp_value",
    "constant_time_bytes_eq",
    "deflate_long",
    "format_binary",
    "format_binary_line",
    "generate_key_bytes",
    "get_logger",
    "get_thread_id",
    "inflate_long",
    "load_host_keys",
    "log_to_file",
    "lookup_ssh_host_config",
    "max_byte",
    "mod_inverse",
    "parse_ssh_config",
    "safe_string",
    "tb_strings",
    "u",
    "xffffffff",
    "zero_byte",
]


def get_logger(name: str) -> logging.Logger:
    """A logger."""
    return logging.getLogger(name)


def log_to_file(filename: str, level: int = logging.DEBUG) -> None:
    """Writes what is logged to a file, what the engine says, too."""
    handler = logging.FileHandler(filename)
    handler.setFormatter(logging.Formatter("%(levelname)-.3s [%(asctime)s] %(name)s: %(message)s"))
    logging.getLogger("paramiko").setLevel(level)
    for name in ("paramiko", "trunkline"):
        logging.getLogger(name).addHandler(handler)
    _log.enable_logging(level)


def b(s: str | bytes, encoding: str = "utf8") -> bytes:
    """Text as bytes."""
    if not isinstance(s, (str, bytes)):
        raise TypeError(f"Expected unicode or bytes, got {type(s)}")
    return s.encode(encoding) if isinstance(s, str) else s


def u(s: str | bytes, encoding: str = "utf8") -> str:
    """Bytes as text."""
    if not isinstance(s, (str, bytes)):
        raise TypeError(f"Expected unicode or bytes, got {type(s)}")
    return s if isinstance(s, str) else s.decode(encoding)


def inflate_long(s: bytes, always_positive: bool = False) -> int:
    """An mpint's number (RFC 4251, section 5)."""
    return int.from_bytes(s, "big", signed=not always_positive)


def deflate_long(n: int, add_sign_padding: bool = True) -> bytes:
    """A number as an mpint; without padding a positive one may begin with a set bit."""
    length = (n if n >= 0 else ~n).bit_length() // 8 + 1
    found = n.to_bytes(length, "big", signed=True)
    return found if add_sign_padding or len(found) == 1 else found.lstrip(b"\0" if n > 0 else b"\xff") or found[-1:]


def bit_length(n: int) -> int:
    """Return how many bits a number takes."""
    return n.bit_length()


def clamp_value(minimum: int, val: int, maximum: int) -> int:
    """The number, or the bound that it is beyond."""
    return max(minimum, min(val, maximum))


def mod_inverse(x: int, m: int) -> int:
    """The number that times ``x`` is 1, modulo ``m``."""
    return pow(x, -1, m)


def constant_time_bytes_eq(a: bytes, b: bytes) -> bool:
    """Return whether they are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(a, b)


def generate_key_bytes(hash_alg: Callable[[], Any], salt: bytes, key: str | bytes, nbytes: int) -> bytes:
    """A key of a passphrase, as PEM's encryption has it (EVP_BytesToKey)."""
    made, digest = b"", b""
    while len(made) < nbytes:
        hashed = hash_alg()
        hashed.update(digest + b(key) + salt[:8])
        digest = hashed.digest()
        made += digest
    return made[:nbytes]


def format_binary(data: str | bytes, prefix: str = "") -> list[str]:
    """Lines of sixteen bytes, in hexadecimal and as text."""
    return [f"{prefix}{format_binary_line(asbytes(data)[i : i + 16])}" for i in range(0, len(data), 16)]


def format_binary_line(data: bytes) -> str:
    """One such line."""
    shown = "".join(chr(each) if 31 < each < 127 else "." for each in data)
    return f"{data.hex(' ').upper():<50} {shown}"


def safe_string(s: bytes) -> bytes:
    """Bytes of which those that are not printable text are shown as ``%`` and two digits."""
    return b"".join(bytes([each]) if 32 <= each <= 127 else b"%%%02X" % each for each in s)


def tb_strings() -> list[str]:
    """The traceback of the exception that is being handled, by lines."""
    return "".join(traceback.format_exception(*sys.exc_info())).split("\n")


def get_thread_id() -> int:
    """A small number for the thread."""
    return threading.get_native_id()


def load_host_keys(filename: str) -> HostKeys:
    """Return the content of a known_hosts file."""
    from .hostkeys import HostKeys

    return HostKeys(filename)


def parse_ssh_config(file_obj: IO[str]) -> SSHConfig:
    """Return the content of a file of ssh_config."""
    from .config import SSHConfig

    config = SSHConfig()
    config.parse(file_obj)
    return config


def lookup_ssh_host_config(hostname: str, config: SSHConfig) -> Any:
    """Return the configuration of a host."""
    return config.lookup(hostname)


class ClosingContextManager(Closing):
    """Is closed where a ``with`` block ends."""
