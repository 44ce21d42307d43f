"""Keys that are in no file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import _native

if TYPE_CHECKING:
    from ._options import StrPath


def add_to_agent(
    private_key: str | bytes,
    *,
    passphrase: str | None = None,
    agent: StrPath | None = None,
    lifetime: float | None = None,
) -> str:
    """Gives a private key to the SSH agent of SSH_AUTH_SOCK, or to the one that listens on ``agent``, so that connections
    can log in with a key that is in no file.

    ``private_key`` is what a key's file would hold, ``passphrase`` opens it, ``lifetime`` is how many seconds the agent is
    to keep it. An agent that has the key keeps it as it is. Returns the public half, as a line: in a file that ``identity``
    names, it chooses this key among the agent's.

    Raises ``ValueError`` for what is not a private key or has another passphrase, ``LocalError`` when the agent does not
    take it or there is none.
    """
    socket = os.environ.get("SSH_AUTH_SOCK", "") if agent is None else os.fspath(agent)
    content = private_key.encode() if isinstance(private_key, str) else bytes(private_key)
    return _native.Key("the private key", content).add_to_agent(socket, passphrase, lifetime).wait()
