"""The agent: its keys, and lending it to sessions."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from .pkey import PKey
from .ssh_exception import SSHException

if TYPE_CHECKING:
    from .channel import Channel

# PROTOCOL.agent (draft-ietf-sshm-ssh-agent), section 6.1.
_REQUEST_IDENTITIES = b"\0\0\0\1\x0b"
_IDENTITIES_ANSWER = 12
#: The largest answer that OpenSSH's client takes (AGENT_MAX_LEN).
_LONGEST = 256 * 1024


class AgentKey(PKey):
    """A key of the agent's, with which it signs when a connection is made."""

    def __init__(self, agent: Agent, blob: bytes, comment: str = "") -> None:
        super().__init__(data=blob)
        self.agent = agent.path
        self.comment = comment


class Agent:
    """The agent that SSH_AUTH_SOCK names; without one it has no keys."""

    def __init__(self) -> None:
        self.path = os.environ.get("SSH_AUTH_SOCK")
        self._keys = tuple(AgentKey(self, blob, comment) for blob, comment in self._identities())

    def get_keys(self) -> tuple[AgentKey, ...]:
        """Its keys."""
        return self._keys

    def close(self) -> None:
        """Nothing: it was asked once."""

    def _identities(self) -> list[tuple[bytes, str]]:
        if not self.path:
            return []
        try:
            with socket.socket(socket.AF_UNIX) as asked, asked.makefile("rb") as answer:
                asked.connect(self.path)
                asked.sendall(_REQUEST_IDENTITIES)
                length, kind = struct.unpack(">IB", answer.read(5))
                if kind != _IDENTITIES_ANSWER or length > _LONGEST:
                    raise SSHException("could not get keys from ssh-agent")
                rest = answer.read(length - 1)
        except FileNotFoundError:
            return []
        except (OSError, struct.error) as error:
            raise SSHException(f"could not ask ssh-agent: {error}") from error
        strings = _strings(rest[4:])
        return [(blob, comment.decode("utf-8", "replace")) for blob, comment in zip(strings[::2], strings[1::2])]


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
