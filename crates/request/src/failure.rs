//! What can go wrong, sorted by who is to blame, and what it means for the command that was asked for.

/// What a failure means for a command: may it have run?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Execution {
    /// It did not start. Trying again is safe.
    DidNotStart,
    /// It was handed to the server and may have started; how it ended is not known.
    MayHaveStarted,
    /// It ran to its end.
    Finished,
}

impl Execution {
    /// The words that messages and JSON use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DidNotStart => "did not start",
            Self::MayHaveStarted => "may have started",
            Self::Finished => "finished",
        }
    }
}

/// Who is to blame. The names are stable: exit codes, exceptions and JSON derive from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server broke the protocol, or shares no algorithm with us.
    Peer,
    /// The network: unreachable, refused, reset, ended.
    Network,
    /// Something took longer than it may.
    Timeout,
    /// The host key is unknown, changed or revoked.
    HostKey,
    /// The server accepted none of our authentication methods.
    Authentication,
    /// The configuration, or what was asked for.
    Configuration,
    /// The server refused: a session, a forwarding, a command.
    Limit,
    /// The server could not do something to a file: it is not there, it may not be touched, the disk is full.
    File,
    /// This machine: a file, a socket, memory.
    Local,
}

impl ErrorKind {
    /// Every one of them.
    const ALL: [Self; 9] = [
        Self::Peer,
        Self::Network,
        Self::Timeout,
        Self::HostKey,
        Self::Authentication,
        Self::Configuration,
        Self::Limit,
        Self::File,
        Self::Local,
    ];

    /// The kind with a name that [`Self::as_str`] gave.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether such a failure may pass by itself, so that it is worth trying again later: whatever keeps something going
    /// (a stream, a remote forwarding) asks this and nothing else. It says nothing of the command: see
    /// `Error::execution`.
    ///
    /// A host key, a log-in and a configuration stay wrong until somebody mends them; meanwhile each attempt is held
    /// against this side (PerSourcePenalties, locked accounts). What the server said of a file is its answer. This machine
    /// may run out of descriptors or memory for a while.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Peer | Self::Network | Self::Timeout | Self::Limit | Self::Local => true,
            Self::HostKey | Self::Authentication | Self::Configuration | Self::File => false,
        }
    }

    /// The name in JSON and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::HostKey => "host_key",
            Self::Authentication => "authentication",
            Self::Configuration => "configuration",
            Self::Limit => "limit",
            Self::File => "file",
            Self::Local => "local",
        }
    }
}
