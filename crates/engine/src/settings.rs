//! What the user can set about the engine itself, apart from ssh_config.

use std::time::Duration;

/// The engine's settings. The defaults suit a person's machine and a control node with hundreds of hosts alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How long a connection without sessions is kept, where ControlPersist says nothing.
    pub idle_timeout: Duration,
    /// The most connections (lanes) to one host.
    pub max_lanes: usize,
    /// Sessions that a connection is expected to carry until the server has shown another limit: sshd's default
    /// MaxSessions.
    pub sessions_per_lane: u32,
    /// The most sessions opened ahead on one connection. 0 for none.
    pub spare_sessions: u32,
    /// A connection that carries more than this, in bits a second, gets no new sessions: they go to a quiet one.
    pub busy_above: u64,
    /// A busy connection counts as quiet again below this, in bits a second.
    pub busy_below: u64,
    /// Handshakes at once to one server: sshd's MaxStartups begins to drop at ten unauthenticated connections.
    pub handshakes_per_server: usize,
    /// Handshakes at once in all. Each costs this side about a millisecond of CPU, and the servers much more.
    pub handshakes: usize,
    /// Whether what needs no answer may leave without waiting for one, to servers that are OpenSSH.
    pub early_flights: bool,
    /// Whether up to 64 KiB of a command's input may leave right behind the command, to servers that are OpenSSH. RFC 4254
    /// has a client wait for the window that sshd is about to open.
    pub early_stdin: bool,
    /// A connection that has been silent for so long is asked for a sign of life, off everybody's way.
    pub probe_after: Duration,
    /// A connection that does not answer within this time is given up.
    pub probe_limit: Duration,
    /// Hosts that are left to the system's ssh although the engine could do them: patterns as in ssh_config(5), for names
    /// as typed.
    pub openssh_hosts: Vec<String>,
    /// Hosts for which each use of a connection that is there already is confirmed through SSH_ASKPASS, as with
    /// `ControlMaster ask`: patterns as in ssh_config(5), for names as typed.
    pub confirm_hosts: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(600),
            max_lanes: 16,
            sessions_per_lane: 10,
            spare_sessions: 4,
            busy_above: 1_250_000,
            busy_below: 750_000,
            handshakes_per_server: 8,
            handshakes: 64,
            early_flights: true,
            early_stdin: true,
            probe_after: Duration::from_secs(60),
            probe_limit: Duration::from_secs(10),
            openssh_hosts: Vec::new(),
            confirm_hosts: Vec::new(),
        }
    }
}
