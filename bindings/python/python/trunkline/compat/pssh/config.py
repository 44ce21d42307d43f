"""What one host has of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .exceptions import InvalidAPIUseError

_TYPES: dict[str, type | tuple[type, ...]] = {
    "user": str,
    "port": int,
    "password": str,
    "private_key": (str, bytes),
    "allow_agent": bool,
    "alias": str,
    "num_retries": int,
    "retry_delay": (int, float),
    "timeout": (int, float),
    "identity_auth": bool,
    "proxy_host": str,
    "proxy_port": int,
    "proxy_user": str,
    "proxy_password": str,
    "proxy_pkey": (str, bytes),
    "keepalive_seconds": int,
    "ipv6_only": bool,
    "compress": bool,
    "keyboard_interactive": bool,
}


@dataclass
class HostConfig:
    """Settings of one host: what is ``None`` is as for the client. See ``ParallelSSHClient`` for each."""

    user: str | None = None
    port: int | None = None
    password: str | None = None
    private_key: str | bytes | None = None
    allow_agent: bool | None = None
    alias: str | None = None
    num_retries: int | None = None
    retry_delay: float | None = None
    timeout: float | None = None
    identity_auth: bool | None = None
    proxy_host: str | None = None
    proxy_port: int | None = None
    proxy_user: str | None = None
    proxy_password: str | None = None
    proxy_pkey: str | bytes | None = None
    keepalive_seconds: int | None = None
    ipv6_only: bool | None = None
    forward_ssh_agent: bool = False
    compress: bool | None = None
    keyboard_interactive: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value, wanted = getattr(self, field.name), _TYPES.get(field.name)
            if value is not None and wanted is not None and not isinstance(value, wanted):
                raise ValueError(f"{field.name} cannot be {value!r}")
        if self.keyboard_interactive and not self.password:
            raise InvalidAPIUseError("keyboard_interactive needs a password")
