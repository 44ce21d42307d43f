"""Hosts by explicit values, for the faces of other libraries: nothing of ssh_config takes part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

#: An opinion on a host key: the host's name in known_hosts, the key's blob, and what the known_hosts files have against it:
#: ``None`` for nothing, or whether it is merely unknown and a text. Called in a thread of the engine's.
Verify: TypeAlias = "Callable[[str, bytes, tuple[bool, str] | None], bool]"


class Explicit(TypedDict):
    """The address to connect to, and the options."""

    host: str
    port: int
    user: str
    #: Seconds for connecting.
    timeout: float | None
    compress: bool
    #: The agent's socket.
    agent: str | None
    #: Whether only the given keys may be used, from the agent too.
    given_keys_only: bool
    #: Whether every session is lent the agent.
    forward_agent: bool
    #: Whether there are answers to questions for a password, and to other questions of the server's.
    answers: bool
    #: Files with certificates of the keys.
    certificates: list[str]
    #: known_hosts files.
    known_hosts: list[str]
    #: Types of the host keys that are known otherwise, to be asked for first.
    known_types: list[str]
    #: Algorithms that are not to be used.
    disabled: list[str]
    #: Those that users' keys are not to sign with.
    disabled_signatures: list[str]
    #: Whether the log-in is made of steps.
    led: bool


class Step(TypedDict):
    """The next attempt of a log-in that a program leads."""

    user: str
    #: "none", "password", "keyboard-interactive" or "publickey".
    method: str
    password: str | None
    #: For "publickey": the public key or certificate, and what signs data with an algorithm; ``None`` for no signature.
    blob: bytes
    sign: Callable[[bytes, str], bytes | None] | None
