"""Many hosts."""

from __future__ import annotations

from collections.abc import Iterable

from ...config import HostConfig
from ...constants import DEFAULT_RETRIES, RETRY_DELAY
from ..base.parallel import BaseParallelSSHClient
from ..common import key_or_path
from .single import SSHClient


class ParallelSSHClient(BaseParallelSSHClient):
    """Hosts to run commands on, ``pool_size`` at a time, all from one thread.

    - ``user``, ``password``, ``port``, ``pkey`` (a path, or a key as ``bytes``): how to log in; with ``pkey`` the
      password is the key's passphrase;
    - ``allow_agent``, ``identity_auth``: whether the agent's keys and those in ``~/.ssh`` may be used, without ``pkey``;
    - ``num_retries``, ``retry_delay``: attempts to connect, and the seconds between them;
    - ``timeout``: seconds for each step of each host;
    - ``host_config``: a ``HostConfig`` for each host;
    - ``proxy_host`` and what begins with ``proxy_``: a host that the others are reached through;
    - ``keepalive_seconds``: how often a connection is looked after.

    ssh_config takes no part. Connections stay until ``disconnect``, or until the client is gone.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        user: str | None = None,
        password: str | None = None,
        port: int | None = 22,
        pkey: str | bytes | None = None,
        num_retries: int = DEFAULT_RETRIES,
        timeout: float | None = None,
        pool_size: int = 100,
        allow_agent: bool = True,
        host_config: list[HostConfig] | None = None,
        retry_delay: float = RETRY_DELAY,
        proxy_host: str | None = None,
        proxy_port: int | None = None,
        proxy_user: str | None = None,
        proxy_password: str | None = None,
        proxy_pkey: str | bytes | None = None,
        forward_ssh_agent: bool = False,
        keepalive_seconds: float = 60,
        identity_auth: bool = True,
        ipv6_only: bool = False,
        compress: bool = False,
        keyboard_interactive: bool = False,
    ) -> None:
        super().__init__(
            hosts,
            user=user,
            password=password,
            port=port,
            pkey=pkey,
            allow_agent=allow_agent,
            num_retries=num_retries,
            timeout=timeout,
            pool_size=pool_size,
            host_config=host_config,
            retry_delay=retry_delay,
            identity_auth=identity_auth,
            ipv6_only=ipv6_only,
            proxy_host=proxy_host,
            proxy_port=proxy_port,
            proxy_user=proxy_user,
            proxy_password=proxy_password,
            proxy_pkey=key_or_path(proxy_pkey),
            forward_ssh_agent=forward_ssh_agent,
            keepalive_seconds=keepalive_seconds,
            compress=compress,
            keyboard_interactive=keyboard_interactive,
        )

    def _client(self, host: str, config: HostConfig) -> SSHClient:
        return SSHClient(
            host,
            **self._of_host(config),
            forward_ssh_agent=config.forward_ssh_agent or self.forward_ssh_agent,
            proxy_host=config.proxy_host or self.proxy_host,
            proxy_port=config.proxy_port or self.proxy_port,
            proxy_user=config.proxy_user or self.proxy_user,
            proxy_password=config.proxy_password or self.proxy_password,
            proxy_pkey=config.proxy_pkey or self.proxy_pkey,
            keepalive_seconds=self.keepalive_seconds if config.keepalive_seconds is None else config.keepalive_seconds,
            keyboard_interactive=config.keyboard_interactive or self.keyboard_interactive,
        )
