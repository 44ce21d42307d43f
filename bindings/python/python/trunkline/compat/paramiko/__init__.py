"""Paramiko's interface, on trunkline's engine.

    import trunkline.compat.paramiko as paramiko

    with paramiko.SSHClient() as client:
        client.load_system_host_keys()
        client.connect("db1.example", username="deploy")
        stdin, stdout, stderr = client.exec_command("uptime")
        print(stdout.read().decode(), stdout.channel.recv_exit_status())

For programs that import ``paramiko`` themselves, Fabric among them, ``install`` puts this in its place. Servers
(``ServerInterface``) are Paramiko's own, if it is installed; GSSAPI, X11 and packets are not there.
"""

from __future__ import annotations

import sys as _sys

from . import (
    _original,
    agent,
    auth_strategy,
    buffered_pipe,
    channel,
    client,
    common,
    config,
    ecdsakey,
    ed25519key,
    file,
    hostkeys,
    message,
    packet,
    pkey,
    proxy,
    rsakey,
    sftp,
    sftp_attr,
    sftp_client,
    sftp_file,
    ssh_exception,
    transport,
    util,
)
from .agent import Agent, AgentKey, AgentRequestHandler
from .auth_strategy import (
    AuthFailure,
    AuthResult,
    AuthSource,
    AuthStrategy,
    InMemoryPrivateKey,
    NoneAuth,
    OnDiskPrivateKey,
    Password,
    PrivateKey,
    SourceResult,
)
from .channel import Channel, ChannelFile, ChannelStderrFile, ChannelStdinFile
from .client import AutoAddPolicy, MissingHostKeyPolicy, RejectPolicy, SSHClient, WarningPolicy
from .common import (
    AUTH_FAILED,
    AUTH_PARTIALLY_SUCCESSFUL,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_FAILED_RESOURCE_SHORTAGE,
    OPEN_FAILED_UNKNOWN_CHANNEL_TYPE,
    OPEN_SUCCEEDED,
    io_sleep,
)
from .config import SSHConfig, SSHConfigDict
from .file import BufferedFile
from .hostkeys import HostKeys
from .message import Message
from .packet import Packetizer
from .pkey import DSSKey, ECDSAKey, Ed25519Key, PKey, PublicBlob, RSAKey, UnknownKeyType
from .proxy import ProxyCommand
from .sftp import (
    SFTP_BAD_MESSAGE,
    SFTP_CONNECTION_LOST,
    SFTP_EOF,
    SFTP_FAILURE,
    SFTP_NO_CONNECTION,
    SFTP_NO_SUCH_FILE,
    SFTP_OK,
    SFTP_OP_UNSUPPORTED,
    SFTP_PERMISSION_DENIED,
    SFTPError,
)
from .sftp_attr import SFTPAttributes
from .sftp_client import SFTP, SFTPClient
from .sftp_file import SFTPFile
from .ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    BadHostKeyException,
    ChannelException,
    ConfigParseError,
    CouldNotCanonicalize,
    IncompatiblePeer,
    MessageOrderError,
    NoValidConnectionsError,
    PasswordRequiredException,
    ProxyCommandFailure,
    SSHException,
)
from .transport import SecurityOptions, ServiceRequestingTransport, Transport

#: The release of Paramiko whose interface this is.
__version__ = "5.1.0"
__version_info__ = (5, 1, 0)

key_classes = [RSAKey, Ed25519Key, ECDSAKey]


#: What is not here is Paramiko's own.
__getattr__, __dir__ = _original.attributes_of(__name__), _original.names_of(__name__)
for _module in (
    agent,
    buffered_pipe,
    channel,
    client,
    common,
    config,
    file,
    hostkeys,
    message,
    packet,
    pkey,
    proxy,
    sftp,
    sftp_client,
    sftp_file,
    transport,
    util,
):
    vars(_module)["__getattr__"] = _original.attributes_of(_module.__name__)
    vars(_module)["__dir__"] = _original.names_of(_module.__name__)


def install() -> None:
    """Makes ``import paramiko`` mean this, in this process and from now on.

    To be called before anything imports Paramiko: ``RuntimeError`` if something has.
    """
    found = _sys.modules.get("paramiko")
    if found is not None and found is not _sys.modules[__name__]:
        raise RuntimeError("paramiko is imported already: call install before whatever uses it is imported")
    for name, module in list(_sys.modules.items()):
        if name == __name__ or name.startswith(f"{__name__}."):
            _sys.modules["paramiko" + name[len(__name__) :]] = module


__all__ = [
    "AUTH_FAILED",
    "AUTH_PARTIALLY_SUCCESSFUL",
    "AUTH_SUCCESSFUL",
    "OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED",
    "OPEN_FAILED_CONNECT_FAILED",
    "OPEN_FAILED_RESOURCE_SHORTAGE",
    "OPEN_FAILED_UNKNOWN_CHANNEL_TYPE",
    "OPEN_SUCCEEDED",
    "SFTP",
    "SFTP_BAD_MESSAGE",
    "SFTP_CONNECTION_LOST",
    "SFTP_EOF",
    "SFTP_FAILURE",
    "SFTP_NO_CONNECTION",
    "SFTP_NO_SUCH_FILE",
    "SFTP_OK",
    "SFTP_OP_UNSUPPORTED",
    "SFTP_PERMISSION_DENIED",
    "Agent",
    "AgentKey",
    "AgentRequestHandler",
    "AuthFailure",
    "AuthResult",
    "AuthSource",
    "AuthStrategy",
    "AuthenticationException",
    "AutoAddPolicy",
    "BadAuthenticationType",
    "BadHostKeyException",
    "BufferedFile",
    "Channel",
    "ChannelException",
    "ChannelFile",
    "ChannelStderrFile",
    "ChannelStdinFile",
    "ConfigParseError",
    "CouldNotCanonicalize",
    "DSSKey",
    "ECDSAKey",
    "Ed25519Key",
    "HostKeys",
    "InMemoryPrivateKey",
    "IncompatiblePeer",
    "Message",
    "MessageOrderError",
    "MissingHostKeyPolicy",
    "NoValidConnectionsError",
    "NoneAuth",
    "OnDiskPrivateKey",
    "PKey",
    "Packetizer",
    "Password",
    "PasswordRequiredException",
    "PrivateKey",
    "ProxyCommand",
    "ProxyCommandFailure",
    "PublicBlob",
    "RSAKey",
    "RejectPolicy",
    "SFTPAttributes",
    "SFTPClient",
    "SFTPError",
    "SFTPFile",
    "SSHClient",
    "SSHConfig",
    "SSHConfigDict",
    "SSHException",
    "SecurityOptions",
    "ServiceRequestingTransport",
    "SourceResult",
    "Transport",
    "UnknownKeyType",
    "WarningPolicy",
    "agent",
    "auth_strategy",
    "buffered_pipe",
    "channel",
    "client",
    "common",
    "config",
    "ecdsakey",
    "ed25519key",
    "file",
    "hostkeys",
    "install",
    "io_sleep",
    "key_classes",
    "message",
    "packet",
    "pkey",
    "proxy",
    "rsakey",
    "sftp",
    "sftp_attr",
    "sftp_client",
    "sftp_file",
    "ssh_exception",
    "transport",
    "util",
]
