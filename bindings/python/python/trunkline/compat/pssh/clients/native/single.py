"""One host."""

from __future__ import annotations

import logging

from ..._jobs import Pool
from ...constants import DEFAULT_RETRIES, RETRY_DELAY
from ..base.single import BaseSSHClient

logger = logging.getLogger("pssh.clients.native.single")


class SSHClient(BaseSSHClient):
    """A connection to one host, which is made at once. See ``ParallelSSHClient`` for the arguments."""

    def __init__(
        self,
        host: str,
        user: str | None = None,
        password: str | None = None,
        port: int | None = None,
        pkey: str | bytes | None = None,
        alias: str | None = None,
        num_retries: int = DEFAULT_RETRIES,
        retry_delay: float = RETRY_DELAY,
        allow_agent: bool = True,
        timeout: float | None = None,
        forward_ssh_agent: bool = False,
        proxy_host: str | None = None,
        proxy_port: int | None = None,
        proxy_pkey: str | bytes | None = None,
        proxy_user: str | None = None,
        proxy_password: str | None = None,
        _auth_thread_pool: bool = True,
        keepalive_seconds: float = 60,
        identity_auth: bool = True,
        ipv6_only: bool = False,
        compress: bool = False,
        keyboard_interactive: bool = False,
        _pool: Pool | None = None,
    ) -> None:
        super().__init__(
            host,
            user=user,
            password=password,
            port=port,
            pkey=pkey,
            alias=alias,
            num_retries=num_retries,
            retry_delay=retry_delay,
            allow_agent=allow_agent,
            timeout=timeout,
            proxy_host=proxy_host,
            proxy_port=proxy_port,
            identity_auth=identity_auth,
            ipv6_only=ipv6_only,
            compress=compress,
            keyboard_interactive=keyboard_interactive,
            _proxy_user=proxy_user,
            _proxy_password=proxy_password,
            _proxy_pkey=proxy_pkey,
            _forward_ssh_agent=forward_ssh_agent,
            _keepalive_seconds=keepalive_seconds,
            _pool=_pool,
        )
