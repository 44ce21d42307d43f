"""The agent: its keys, and lending it to sessions."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from .message import Message
from .pkey import PKey, UnknownKeyType
from .ssh_exception import SSHException

if TYPE_CHECKING:
    from .channel import Channel

# draft-ietf-sshm-ssh-agent, sections 6.1 and 6.2.
cSSH2_AGENTC_REQUEST_IDENTITIES = b"\x0b"
SSH2_AGENT_IDENTITIES_ANSWER = 12
cSSH2_AGENTC_SIGN_REQUEST = b"\x0d"
SSH2_AGENT_SIGN_RESPONSE = 14
SSH_AGENT_RSA_SHA2_256 = 2
SSH_AGENT_RSA_SHA2_512 = 4
ALGORITHM_FLAG_MAP = {"rsa-sha2-256": SSH_AGENT_RSA_SHA2_256, "rsa-sha2-512": SSH_AGENT_RSA_SHA2_512}
#: The largest answer that OpenSSH's client takes (AGENT_MAX_LEN).
_LONGEST = 256 * 1024


class AgentKey(PKey):
    """A key of the agent's, with which it signs when a connection is made, or when it is asked to."""

    def __init__(self, agent: Any, blob: bytes, comment: str = "") -> None:
        #: The key itself, if it is of a type that is known.
        self.inner_key: PKey | None = None
        with contextlib.suppress(UnknownKeyType, SSHException):
            key = PKey.from_blob(blob)
            self.inner_key = key if type(key) is not PKey else None
        self.certificate = self.public_blob = self._native = self.passphrase = None
        self.label, self._content = "", b""
        self.blob, self.name = blob, Message(blob).get_text() if len(blob) > 4 else ""
        self.agent = agent
        socket_of_agent = getattr(agent, "path", None)
        self.agent_socket = socket_of_agent if isinstance(socket_of_agent, str) else None
        self.comment = comment

    def asbytes(self) -> bytes:
        """The public key: of a certificate, its key's."""
        return self.inner_key.asbytes() if self.inner_key is not None else self.blob

    @property
    def shown_blob(self) -> bytes:
        return self.blob

    def get_bits(self) -> int:
        return self.inner_key.get_bits() if self.inner_key is not None else 0

    @property
    def _fields(self) -> list[object]:
        return [self.name, self.blob] if self.inner_key is None else self.inner_key._fields

    def __repr__(self) -> str:
        comment = f", comment={self.comment!r}" if self.comment else ""
        return f"{super().__repr__()[:-1]}{comment})"

    @property
    def signs_in_python(self) -> bool:
        # The engine asks an agent that it can reach.
        return self.agent_socket is None or super().signs_in_python

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:  # type: ignore[override] # as Paramiko's
        """Has the agent sign: the signature, as the protocol encodes it."""
        request = Message()
        request.add_byte(cSSH2_AGENTC_SIGN_REQUEST)
        request.add_string(self.asbytes())
        request.add_string(data)
        request.add_int(ALGORITHM_FLAG_MAP.get((algorithm or "").replace("-cert-v01@openssh.com", ""), 0))
        kind, answer = self.agent._send_message(request)
        if kind != SSH2_AGENT_SIGN_RESPONSE:
            raise SSHException("key cannot be used for signing")
        signature: bytes = answer.get_string()
        return signature


class Agent:
    """The agent that SSH_AUTH_SOCK names; without one it has no keys."""

    def __init__(self) -> None:
        self.path = os.environ.get("SSH_AUTH_SOCK")
        self._keys = tuple(AgentKey(self, blob, comment) for blob, comment in self._identities())

    def get_keys(self) -> tuple[AgentKey, ...]:
        """Its keys."""
        return self._keys

    def close(self) -> None:
        """Nothing: each question is asked on a connection of its own."""

    def _identities(self) -> list[tuple[bytes, str]]:
        if not self.path:
            return []
        try:
            kind, answer = self._send_message(Message(bytes([cSSH2_AGENTC_REQUEST_IDENTITIES[0]])))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SSHException(f"could not ask ssh-agent: {error}") from error
        if kind != SSH2_AGENT_IDENTITIES_ANSWER:
            raise SSHException("could not get keys from ssh-agent")
        strings = _strings(answer.get_remainder()[4:])
        return [(blob, comment.decode("utf-8", "replace")) for blob, comment in zip(strings[::2], strings[1::2])]

    def _send_message(self, message: Message) -> tuple[int, Message]:
        """Asks the agent: its answer's number, and what follows."""
        if not self.path:
            raise SSHException("there is no ssh-agent")
        request = message.asbytes()
        with socket.socket(socket.AF_UNIX) as asked, asked.makefile("rb") as answer:
            asked.connect(self.path)
            asked.sendall(struct.pack(">I", len(request)) + request)
            head = answer.read(5)
            length, kind = struct.unpack(">IB", head) if len(head) == 5 else (0, 0)
            rest = answer.read(length - 1) if 0 < length <= _LONGEST else b""
        if length == 0 or len(rest) != length - 1:
            raise SSHException("ssh-agent gave no proper answer")
        return kind, Message(rest)


class AgentRequestHandler:
    """Lends the agent to the command that a session runs next."""

    def __init__(self, chanClient: Channel) -> None:
        chanClient.request_forward_agent()

    def close(self) -> None:
        """Nothing: what was lent ends with the session."""


def _strings(data: bytes) -> list[bytes]:
    found = []
    while len(data) >= 4:
        end = 4 + int.from_bytes(data[:4], "big")
        found.append(data[4:end])
        data = data[end:]
    return found
