"""The settings of one host."""

from __future__ import annotations

from .exceptions import InvalidAPIUseError

_NUMBER = (int, float)
_TEXT = (str, bytes)

#: What is checked of each, and how it is called where it is wrong.
_CHECKED: dict[str, tuple[tuple[type, ...], str]] = {
    "user": ((str,), "Username %s is not a string"),
    "port": ((int,), "Port %s is not an integer"),
    "password": ((str,), "Password %s is not a string"),
    "alias": ((str,), "Alias %s is not a string"),
    "private_key": (_TEXT, "Private key %s is not a string or bytes"),
    "allow_agent": ((bool,), "Allow agent %s is not a boolean"),
    "num_retries": ((int,), "Num retries %s is not an integer"),
    "timeout": (_NUMBER, "Timeout %s is not an integer"),
    "retry_delay": (_NUMBER, "Retry delay %s is not a number"),
    "identity_auth": ((bool,), "Identity auth %s is not a boolean"),
    "proxy_host": ((str,), "Proxy host %s is not a string"),
    "proxy_port": ((int,), "Proxy port %s is not an integer"),
    "proxy_user": ((str,), "Proxy user %s is not a string"),
    "proxy_password": ((str,), "Proxy password %s is not a string"),
    "proxy_pkey": (_TEXT, "Proxy pkey %s is not a string or bytes"),
    "keepalive_seconds": ((int,), "Keepalive seconds %s is not an integer"),
    "ipv6_only": ((bool,), "IPv6 only %s is not a boolean value"),
    "cert_file": (_TEXT, "Cert file %s is not a string or bytes"),
    "forward_ssh_agent": ((bool,), "Forward SSH agent %s is not a bool"),
    "gssapi_auth": ((bool,), "GSSAPI auth %s is not a bool"),
    "gssapi_server_identity": ((str,), "GSSAPI server identity %s is not a string"),
    "gssapi_client_identity": ((str,), "GSSAPI client identity %s is not a string"),
    "gssapi_delegate_credentials": ((bool,), "GSSAPI delegate credentials %s is not a bool"),
    "compress": ((bool,), "Compress %s is not a bool"),
    "keyboard_interactive": ((bool,), "keyboard_interactive %s is not a bool"),
}


class HostConfig:
    """Settings of one host: what is ``None`` is as for the client. See ``ParallelSSHClient`` for each."""

    def __init__(
        self,
        user: str | None = None,
        port: int | None = None,
        password: str | None = None,
        private_key: str | bytes | None = None,
        allow_agent: bool | None = None,
        alias: str | None = None,
        num_retries: int | None = None,
        retry_delay: float | None = None,
        timeout: float | None = None,
        identity_auth: bool | None = None,
        proxy_host: str | None = None,
        proxy_port: int | None = None,
        proxy_user: str | None = None,
        proxy_password: str | None = None,
        proxy_pkey: str | bytes | None = None,
        keepalive_seconds: int | None = None,
        ipv6_only: bool | None = None,
        cert_file: str | bytes | None = None,
        auth_thread_pool: bool = True,
        gssapi_auth: bool = False,
        gssapi_server_identity: str | None = None,
        gssapi_client_identity: str | None = None,
        gssapi_delegate_credentials: bool = False,
        forward_ssh_agent: bool = False,
        compress: bool = False,
        keyboard_interactive: bool = False,
    ) -> None:
        self.user = user
        self.port = port
        self.password = password
        self.private_key = private_key
        self.allow_agent = allow_agent
        self.alias = alias
        self.num_retries = num_retries
        self.retry_delay = retry_delay
        self.timeout = timeout
        self.identity_auth = identity_auth
        self.proxy_host = proxy_host
        self.proxy_port = proxy_port
        self.proxy_user = proxy_user
        self.proxy_password = proxy_password
        self.proxy_pkey = proxy_pkey
        self.keepalive_seconds = keepalive_seconds
        self.ipv6_only = ipv6_only
        self.cert_file = cert_file
        self.auth_thread_pool = auth_thread_pool
        self.gssapi_auth = gssapi_auth
        self.gssapi_server_identity = gssapi_server_identity
        self.gssapi_client_identity = gssapi_client_identity
        self.gssapi_delegate_credentials = gssapi_delegate_credentials
        self.forward_ssh_agent = forward_ssh_agent
        self.compress = compress
        self.keyboard_interactive = keyboard_interactive
        if keyboard_interactive and not password:
            raise InvalidAPIUseError("Keyboard interactive authentication is enabled but no password is provided")
        for name, (types, text) in _CHECKED.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, types):
                raise ValueError(text % (value,))
