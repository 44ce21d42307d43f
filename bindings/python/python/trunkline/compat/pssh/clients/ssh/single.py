"""One host, with a certificate."""

from __future__ import annotations

import logging

from ..._jobs import Pool
from ...constants import DEFAULT_RETRIES, RETRY_DELAY
from ..base.single import BaseSSHClient

logger = logging.getLogger("pssh.clients.ssh.single")


class SSHClient(BaseSSHClient):
    """A connection to one host, which is made at once. See ``ParallelSSHClient`` for the arguments.

    ``cert_file`` is a file with a certificate of ``pkey``'s. GSSAPI is not available: as where it fails with parallel-ssh,
    the other ways to log in are tried.
    """

    def __init__(
        self,
        host: str,
        user: str | None = None,
        password: str | None = None,
        port: int | None = None,
        pkey: str | bytes | None = None,
        alias: str | None = None,
        cert_file: str | bytes | None = None,
        num_retries: int = DEFAULT_RETRIES,
        retry_delay: float = RETRY_DELAY,
        allow_agent: bool = True,
        timeout: float | None = None,
        identity_auth: bool = True,
        gssapi_auth: bool = False,
        gssapi_server_identity: str | None = None,
        gssapi_client_identity: str | None = None,
        gssapi_delegate_credentials: bool = False,
        ipv6_only: bool = False,
        compress: bool = False,
        _auth_thread_pool: bool = True,
        _pool: Pool | None = None,
    ) -> None:
        self.cert_file = cert_file
        self.gssapi_auth = gssapi_auth
        self.gssapi_server_identity = gssapi_server_identity
        self.gssapi_client_identity = gssapi_client_identity
        self.gssapi_delegate_credentials = gssapi_delegate_credentials
        if gssapi_auth or gssapi_server_identity or gssapi_client_identity:
            logger.error("%s: GSSAPI authentication is not available", host)
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
            identity_auth=identity_auth,
            ipv6_only=ipv6_only,
            compress=compress,
            _cert_file=cert_file,
            _pool=_pool,
        )
