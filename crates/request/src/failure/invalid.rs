//! Requests that are malformed or impossible: values for programs, of which only `Display` is English.

use serde::{Deserialize, Serialize};

use crate::world::vantage::Difference;

/// A malformed or impossible request. Nothing was started. A program adds what to request instead, with its own
/// options.
/// of its own options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum Invalid {
    /// The request comes from other namespaces than the engine's.
    #[error(
        "{host}: the request comes from another {difference}, where this may mean another host or other files"
    )]
    Elsewhere { host: String, difference: Difference },
    /// A destination, a host list or an inventory that cannot be read.
    #[error("{0}")]
    Hosts(String),
    /// known_hosts cannot be read.
    #[error("{0}")]
    KnownHosts(String),
    /// A name that must be UTF-8: "the path x".
    #[error("{0} is not valid UTF-8")]
    NotUtf8(String),
    /// A path that must be absolute.
    #[error("{0} is not absolute")]
    NotAbsolute(String),
    /// A port out of range.
    #[error("{0} is not a port number")]
    Port(u32),
    /// A file that was closed.
    #[error("{0} was closed before")]
    Closed(String),
    /// A connection's stream can be used only once.
    #[error("the stream that was given for the connection is used up")]
    StreamUsedUp,
    /// A SOCKS client's request.
    #[error("the SOCKS client cannot be served: {0}")]
    Socks(String),
    /// A forwarding, as it was typed.
    #[error("{0} is not a valid forwarding")]
    Forwarding(String),
    /// A forwarding of stock ssh's; in ssh's words.
    #[error("Invalid forwarding request")]
    ForwardingRequest,
    /// SessionType asks for a subsystem without a name; in ssh's words.
    #[error("You must specify a subsystem to invoke.")]
    NoSubsystem,
    /// The number of descriptors does not match the request.
    #[error("the request came without its descriptors")]
    NoDescriptors,
    /// A file that should have been passed as a descriptor.
    #[error("{0} arrived without its descriptor")]
    NoDescriptor(String),
    /// The system's ssh cannot connect to a path.
    #[error("the system's ssh, which this host needs, cannot connect to {0}: its -W accepts only host:port")]
    SocketBySystemSsh(String),
    /// The system's ssh cannot pass on the server's forwarded connections.
    #[error("connections from the server are not passed on by the system's ssh, which this host needs")]
    ListenBySystemSsh,
    /// A command that is too long for one request to the server.
    #[error("{host}: the command has {length} bytes, and this server takes at most {limit}")]
    LongCommand {
        host: String,
        length: usize,
        /// The maximum.
        limit: usize,
    },
    /// A session asks for the agent, but the host's configuration does not forward it.
    #[error("{0}: the agent is not forwarded to it")]
    AgentNotForwarded(String),
    /// Both ends of a copy are on this machine.
    #[error("no host is named")]
    NoHost,
    /// A pattern of names.
    #[error("the pattern {pattern} is not valid: {why}")]
    Pattern { pattern: String, why: String },
    /// A name that leads out of the source.
    #[error("{0} leads out of the source")]
    OutOfSource(String),
    /// A directory would be copied into itself.
    #[error("{source_path} cannot be copied into itself, {target}")]
    IntoItself {
        source_path: String,
        /// The target inside it.
        target: String,
    },
    /// The target must be a directory.
    #[error("{path}{}", match .is_missing {
        true => ": No such file or directory",
        false => " is not a directory",
    })]
    NotADirectory {
        path: String,
        /// True if nothing exists there.
        is_missing: bool,
    },
    /// The target cannot be a file.
    #[error("{0} is not a valid file name")]
    FileName(String),
    /// Only root can give files to others.
    #[error("only root can keep owners and groups, and the user {} is another one", place_of(.0.as_deref()))]
    Owners(Option<String>),
    /// A server on which a file cannot have two names, which backups need.
    #[error("{0} cannot give a file a second name, which backups are made with")]
    Backups(String),
    /// A server without hard links.
    #[error("{0} cannot make hard links")]
    HardLinks(String),
    /// SFTP does not tell which names are one file.
    #[error(
        "hard links can only be kept on the way from this machine to a server: SFTP does not tell which names are one file"
    )]
    HardLinksOfServer,
    /// More names than all copies together can remember.
    #[error("there are more names than all copies together may keep (names_memory)")]
    TooManyNames,
    /// The server cannot hash its files. The copy is complete.
    #[error(
        "{0} does not hash files: it runs no commands, or has no sha256 program. The copy was not verified"
    )]
    NotVerified(String),
    /// A directory of the daemon's cannot be used.
    #[error("{0}")]
    Directory(String),
    /// Stock ssh can only be served by a daemon.
    #[error("stock ssh is served by the daemon only")]
    NoDaemon,
    /// A mux socket's path is too long for some systems.
    #[error(
        "the mux socket's path {path} has {length} bytes, and {longest} is the longest that every system accepts"
    )]
    LongSocket {
        path: String,
        length: usize,
        /// The maximum.
        longest: usize,
    },
    /// A mux socket's directory is writable by others.
    #[error(
        "{0} belongs to somebody else or is open to others: a mux socket's directory must be yours, with mode 0700"
    )]
    OpenDirectory(String),
    /// Stock ssh might reach another host by itself.
    #[error("the client might not reach the same host by itself")]
    AnotherHost,
    /// Stock ssh asks for X11.
    #[error("trunkline does not forward X11")]
    X11,
    /// Stock ssh asks for its agent or not, and the connection does the opposite.
    #[error("this connection {}", match .forwarded {
        true => "forwards the agent, which was not asked for",
        false => "does not forward the agent",
    })]
    Agent {
        /// True if the connection forwards it.
        forwarded: bool,
    },
    /// Proxy mode cannot ask for the agent.
    #[error("this connection forwards the agent, which proxy mode does not")]
    AgentOfProxy,
}

fn place_of(host: Option<&str>) -> String {
    host.map_or_else(|| "here".to_owned(), |host| format!("at {host}"))
}
