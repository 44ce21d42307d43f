"""Many hosts, with a certificate."""

from __future__ import annotations

from collections.abc import Iterable

from ...config import HostConfig
from ...constants import DEFAULT_RETRIES, RETRY_DELAY
from ..base.parallel import BaseParallelSSHClient
from ..common import key_path
from .single import SSHClient


class ParallelSSHClient(BaseParallelSSHClient):
    """As ``pssh.clients.ParallelSSHClient``; ``cert_file`` is a file with a certificate of ``pkey``'s."""

    def __init__(
        self,
        hosts: Iterable[str],
        user: str | None = None,
        password: str | None = None,
        port: int | None = 22,
        pkey: str | bytes | None = None,
        cert_file: str | bytes | None = None,
        num_retries: int = DEFAULT_RETRIES,
        timeout: float | None = None,
        pool_size: int = 100,
        allow_agent: bool = True,
        host_config: list[HostConfig] | None = None,
        retry_delay: float = RETRY_DELAY,
        forward_ssh_agent: bool = False,
        gssapi_auth: bool = False,
        gssapi_server_identity: str | None = None,
        gssapi_client_identity: str | None = None,
        gssapi_delegate_credentials: bool = False,
        identity_auth: bool = True,
        ipv6_only: bool = False,
        compress: bool = False,
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
            cert_file=key_path(cert_file),
            gssapi_auth=gssapi_auth,
            gssapi_server_identity=gssapi_server_identity,
            gssapi_client_identity=gssapi_client_identity,
            gssapi_delegate_credentials=gssapi_delegate_credentials,
            forward_ssh_agent=forward_ssh_agent,
            compress=compress,
        )

    def _client(self, host: str, config: HostConfig) -> SSHClient:
        return SSHClient(
            host,
            **self._of_host(config),
            cert_file=config.cert_file or self.cert_file,
            gssapi_auth=self.gssapi_auth,
            gssapi_server_identity=self.gssapi_server_identity,
            gssapi_client_identity=self.gssapi_client_identity,
            gssapi_delegate_credentials=self.gssapi_delegate_credentials,
        )
