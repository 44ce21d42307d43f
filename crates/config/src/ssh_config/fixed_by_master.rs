//! What those who share a master of the system's ssh cannot have otherwise than it has it.

/// What ssh's master applies to every session and forwarding over it, as it was started with: the mux protocol (OpenSSH's
/// PROTOCOL.mux) has no word for these, so that those of the ssh that asks do not count.
pub(super) const FIXED_BY_MASTER: [&str; 22] = [
    // Whether windows are trusted (mux.c, `mux_session_confirm`).
    "forwardx11trusted",
    "forwardx11timeout",
    "xauthlocation",
    // Who may connect to forwarded ports and sockets, and to where (mux.c, `mux_master_process_open_fwd`; ssh.c,
    // `ssh_init_forwarding`).
    "gatewayports",
    "streamlocalbindmask",
    "streamlocalbindunlink",
    "permitremoteopen",
    // Whether the rhythm of typing is hidden (clientloop.c), and what is closed when nothing flows (channels.c).
    "obscurekeystroketiming",
    "channeltimeout",
    // Opened with the connection.
    "tunnel",
    "tunneldevice",
    // How it was reached and logged in to.
    "proxyusefdpass",
    "enablesshkeysign",
    "hostbasedacceptedalgorithms",
    "hostbasedkeytypes",
    "gssapiclientidentity",
    "gssapidelegatecredentials",
    "gssapikeyexchange",
    "gssapikexalgorithms",
    "gssapirenewalforcesrekey",
    "gssapiserveridentity",
    "gssapitrustdns",
];
