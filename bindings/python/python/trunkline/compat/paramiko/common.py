"""Constants of the protocol, by Paramiko's names."""

from __future__ import annotations

import logging
from typing import cast

# RFC 4250, section 4.1.2, and those of the key exchange methods that share their numbers.
MSG_DISCONNECT, MSG_IGNORE, MSG_UNIMPLEMENTED, MSG_DEBUG, MSG_SERVICE_REQUEST, MSG_SERVICE_ACCEPT, MSG_EXT_INFO = range(1, 8)
MSG_KEXINIT, MSG_NEWKEYS = range(20, 22)
MSG_USERAUTH_REQUEST, MSG_USERAUTH_FAILURE, MSG_USERAUTH_SUCCESS, MSG_USERAUTH_BANNER = range(50, 54)
MSG_USERAUTH_PK_OK = 60
MSG_USERAUTH_INFO_REQUEST, MSG_USERAUTH_INFO_RESPONSE = range(60, 62)
MSG_USERAUTH_GSSAPI_RESPONSE, MSG_USERAUTH_GSSAPI_TOKEN = range(60, 62)
MSG_USERAUTH_GSSAPI_EXCHANGE_COMPLETE, MSG_USERAUTH_GSSAPI_ERROR = range(63, 65)
MSG_USERAUTH_GSSAPI_ERRTOK, MSG_USERAUTH_GSSAPI_MIC = range(65, 67)
HIGHEST_USERAUTH_MESSAGE_ID = 79
MSG_GLOBAL_REQUEST, MSG_REQUEST_SUCCESS, MSG_REQUEST_FAILURE = range(80, 83)
(
    MSG_CHANNEL_OPEN,
    MSG_CHANNEL_OPEN_SUCCESS,
    MSG_CHANNEL_OPEN_FAILURE,
    MSG_CHANNEL_WINDOW_ADJUST,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_SUCCESS,
    MSG_CHANNEL_FAILURE,
) = range(90, 101)

AUTH_SUCCESSFUL, AUTH_PARTIALLY_SUCCESSFUL, AUTH_FAILED = range(3)

(
    OPEN_SUCCEEDED,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_FAILED_UNKNOWN_CHANNEL_TYPE,
    OPEN_FAILED_RESOURCE_SHORTAGE,
) = range(5)

CONNECTION_FAILED_CODE = {
    1: "Administratively prohibited",
    2: "Connect failed",
    3: "Unknown channel type",
    4: "Resource shortage",
}

# RFC 4253, section 11.1.
(
    DISCONNECT_SERVICE_NOT_AVAILABLE,
    DISCONNECT_AUTH_CANCELLED_BY_USER,
    DISCONNECT_NO_MORE_AUTH_METHODS_AVAILABLE,
) = (7, 13, 14)

DEBUG, INFO, WARNING, ERROR, CRITICAL = (
    logging.DEBUG,
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.CRITICAL,
)

io_sleep = 0.01

DEFAULT_WINDOW_SIZE = 64 * 2**15
DEFAULT_MAX_PACKET_SIZE = 2**15
MIN_WINDOW_SIZE = 2**15
MIN_PACKET_SIZE = 2**12
MAX_WINDOW_SIZE = 2**32 - 1

four_byte, zero_byte, one_byte, max_byte = b"\4", b"\0", b"\1", b"\xff"
cr_byte, linefeed_byte, crlf = b"\r", b"\n", b"\r\n"
cr_byte_value, linefeed_byte_value = 13, 10
xffffffff, x80000000 = 2**32 - 1, 2**31
o666, o660, o644, o600, o777, o700, o70 = 0o666, 0o660, 0o644, 0o600, 0o777, 0o700, 0o70


def asbytes(s: object) -> bytes:
    """Text as UTF-8, keys and other things as their ``asbytes``."""
    if isinstance(s, str):
        return s.encode()
    made = getattr(s, "asbytes", None)
    return bytes(cast("bytes", made() if made is not None else s))


def byte_ord(c: int | bytes) -> int:
    """A byte's number."""
    return c if isinstance(c, int) else ord(c)


def byte_chr(c: int) -> bytes:
    """A number's byte."""
    return bytes([c])


def byte_mask(c: int, mask: int) -> bytes:
    """A number's byte, of which a mask lets through."""
    return bytes([c & mask])


#: The messages' names, by their numbers, and each number as the byte that it is on the wire.
MSG_NAMES: dict[int, str] = {}
for _name, _number in list(globals().items()):
    if _name.startswith("MSG_") and isinstance(_number, int):
        MSG_NAMES.setdefault(_number, _name[4:].lower().replace("_", "-"))
        globals()[f"c{_name}"] = byte_chr(_number)
