"""The names that are missing on purpose, and why: the guide's table says the same. Names are patterns, as `fnmatch` has
them."""

from __future__ import annotations

SERVER = "a server's side"
ENGINE = "the protocol is the engine's"
KEYS = "keys are the engine's"
AGENT = "the agent is the engine's"
FILES = "SFTP sessions and files are made by their clients"
CONFIG = "ssh_config has its own rules"
WORKINGS = "inner workings"

DIFFERENCES: dict[str, dict[str, str]] = {
    "paramiko": {
        "*Transport.get_server_key": SERVER,
        "*Transport.open_forward_agent_channel": SERVER,
        "*Transport.open_forwarded_tcpip_channel": SERVER,
        "*Transport.open_x11_channel": SERVER,
        "*Channel.send_exit_status": SERVER,
        "*Channel.send_stderr": SERVER,
        "*Channel.sendall_stderr": SERVER,
        "*Channel.request_x11": ENGINE,
        "*Channel.__init__(chanid)": ENGINE,
        "*.Transport.run": ENGINE,
        "*.ServiceRequestingTransport.run": ENGINE,
        "*.ServiceRequestingTransport.ensure_session": ENGINE,
        "*.ServiceRequestingTransport.get_auth_handler": ENGINE,
        "*Packetizer.*": ENGINE,
        **{
            f"*Transport.{name}": ENGINE
            for name in (
                "H",
                "K",
                "agreed_on_strict_kex",
                "auth_handler",
                "channel_events",
                "channels_seen",
                "clear_to_send",
                "clear_to_send_lock",
                "completion_event",
                "global_response",
                "in_kex",
                "kex_engine",
                "local_kex_init",
                "lock",
                "remote_kex_init",
                "server_extensions",
                "session_id",
                "sys",
            )
        },
        **{
            f"*Transport.{name}": SERVER
            for name in ("server_accept_cv", "server_accepts", "server_key_dict", "server_object", "subsystem_table")
        },
        **{
            f"*Channel.{name}": ENGINE
            for name in (
                "event",
                "event_ready",
                "in_max_packet_size",
                "in_window_size",
                "in_window_sofar",
                "in_window_threshold",
                "lock",
                "out_buffer_cv",
                "out_max_packet_size",
                "out_window_size",
                "remote_chanid",
            )
        },
        "*Message.packet": WORKINGS,
        "*Key.verifying_key": KEYS,
        "*Key.ecdsa_curve": KEYS,
        "*RSAKey.HASHES": KEYS,
        "*Key.write_private_key*(file_format)": KEYS,
        "*AgentKey.log": AGENT,
        "paramiko.agent.*": AGENT,
        "*SFTP.__init__(sock)": FILES,
        "*SFTPClient.__init__(sock)": FILES,
        "*SFTPFile.__init__(*)": FILES,
        "*SFTPFile.check": FILES,
        "*SFTPFile.handle": FILES,
        "*SFTPClient.request_number": FILES,
        "*.SFTP.request_number": FILES,
        "*SSHConfig.SETTINGS_REGEX": CONFIG,
        "*SSHConfig.TOKENS_BY_CONFIG_KEY": CONFIG,
    },
    "pssh": {
        "pssh.NullHandler": WORKINGS,
        "pssh.getLogger": WORKINGS,
        "pssh.*.logger": WORKINGS,
        "pssh.*.Hub": WORKINGS,
        "pssh.*.sock": ENGINE,
        "pssh.*.session": ENGINE,
        "pssh.*.PollMixIn": ENGINE,
        "pssh.*.KeepAlive": ENGINE,
        "pssh.*.THREAD_POOL": ENGINE,
        "pssh.clients.base.parallel.BaseParallelSSHClient.run_command": WORKINGS,
    },
}
