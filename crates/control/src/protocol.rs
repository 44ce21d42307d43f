//! The control protocol between clients and the daemon. docs/PROTOCOL.md describes it for others.
//!
//! A frame is a `uint32` length in network order, then that many bytes of MessagePack: one [`Request`] or one
//! [`Reply`], with field names. File descriptors travel with the first byte of the frame that refers to them.

mod update;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trunkline_local::prompt::Prompt;
pub use trunkline_request::ExitStatus;
pub use trunkline_request::connection::{Closed, ConnectionReport, Handshake};
pub use trunkline_request::copy::{CopyEvent, CopyOptions, Snapshot as CopyProgress};
use trunkline_request::destination::Destination;
pub use trunkline_request::failure::{Failure, WordsOfSsh};
use trunkline_request::hosts::Selection;
use trunkline_request::tuning::{Choice, LocalReport, Report, Step, TuneOptions};
use trunkline_request::{LogLevel, LogLine, Vantage, Waiting, World};

pub use update::{
    Activity, ActivityKind, Asker, FailureReport, Histogram, Pulse, Starts, TransferReport, Update,
};

/// The protocol's version. A daemon only serves clients of its own version; see [`Reply::Welcome`].
pub const VERSION: u32 = 20;

/// The longest frame, without its length. The largest thing in a frame is the caller's environment.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// A client's message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Must be first. Answered by [`Reply::Welcome`]; clients need not wait for it.
    Hello {
        /// [`VERSION`].
        protocol: u32,
        /// The client's program version.
        program: String,
    },
    /// Runs a session; one for each control connection. Brings a file descriptor for each [`Stdio::Passed`], in the
    /// order of input, output and error.
    Session(Box<SessionRequest>),
    /// Input for the session; empty at its end.
    Input(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The terminal's new size: columns, rows, width and height in pixels.
    Resize(u32, u32, u32, u32),
    /// A signal for the session's command, by name without "SIG".
    Signal(String),
    /// Ends the session: its command is sent SIGTERM, and the channel is closed after two seconds. No more questions
    /// are asked, and a pending one gets no answer. Answered by the session's last frame, which says how the command
    /// ended.
    Terminate,
    /// Sends a break of this many milliseconds.
    Break(u32),
    /// Exchanges keys again.
    Rekey,
    /// Changes or lists the session's forwardings. The outcome arrives as [`Reply::Notice`].
    Forward(ForwardRequest),
    /// Lets the session continue without its client (ssh's `~&`): it is sent an end-of-file character, its further
    /// output is discarded, and its local forwardings accept no new connections. Answered by [`Reply::Done`], after
    /// which the client may leave.
    Background,
    /// Notes that the command of [`Reply::LocalCommand`] has ended.
    LocalCommandDone,
    /// Refuses a connection of [`Reply::Incoming`].
    Refuse(u64),
    /// The answer to [`Reply::Ask`]; `None` if there is no one to answer.
    Answer(Option<String>),
    /// Connects, and keeps the connection open if `pin`.
    Warm {
        host: HostRequest,
        /// Keeps the connection until it is closed by a request.
        pin: bool,
    },
    /// Serves stock ssh clients of a host on a socket (OpenSSH's ControlPath), and begins to connect to the host
    /// without asking questions. Answered by [`Reply::Done`] once the socket listens, or by [`Reply::Failed`] if stock
    /// ssh should connect by itself. For a host that may only be reached over shared connections
    /// ([`Request::MustShare`]), stock ssh must not connect by itself: the answer comes when the connection is made,
    /// and the client is asked questions as for [`Request::Warm`].
    /// not to go its own way.
    MuxListen {
        host: HostRequest,
        /// The socket's path: absolute, shorter than 104 bytes, in a directory private to the user. The directory
        /// [`Place::mux`](crate::place::Place::mux) is created if missing. `None` for the host's ControlPath, which
        /// must be in that directory, without a ControlMaster.
        path: Option<PathBuf>,
        /// The process that will connect to the socket, if known. By then the socket may belong to a host with other
        /// settings; that process is not served as one of its clients.
        client: Option<u32>,
    },
    /// Asks whether a host may only be reached over shared connections: answered by [`Reply::MustShare`].
    MustShare(HostRequest),
    /// Copies files: answered by [`Reply::Progress`] and [`Reply::Names`] while it runs, then by [`Reply::Copied`] or
    /// [`Reply::Failed`]. Ends when the client leaves.
    Copy(Box<CopyRequest>),
    /// Lists the connections: answered by [`Reply::Hosts`].
    List,
    /// Reports on the daemon itself: answered by [`Reply::Status`].
    Status,
    /// Asks for the metrics for Prometheus: answered by [`Reply::Metrics`].
    Metrics {
        /// In the OpenMetrics format instead of Prometheus's own.
        open_metrics: bool,
    },
    /// Asks for the daemon's state now and at each interval: answered by [`Reply::Update`] until the client says
    /// anything else or leaves.
    Subscribe {
        /// The interval: from 100 ms to a minute.
        every: Duration,
    },
    /// Checks that a host has a live connection: answered by [`Reply::Checked`] or [`Reply::Failed`].
    Check(HostRequest),
    /// Explains how a destination is resolved: answered by [`Reply::Explained`].
    Explain(HostRequest),
    /// Forgets what was learned about a host: answered by [`Reply::Done`] or [`Reply::Failed`].
    Forget(HostRequest),
    /// Remembers the best settings for moving data to and from a host, or forgets them if `None`. Answered by
    /// [`Reply::Done`].
    Tuned {
        host: HostRequest,
        choice: Option<Choice>,
    },
    /// Measures the path to a host on separate connections: answered by [`Reply::Tuning`] while it runs, then by
    /// [`Reply::Measured`] or [`Reply::Failed`]. Ends with [`Self::Terminate`] or when the client leaves; its files on
    /// the server are removed in either case.
    Tune(Box<TuneRequest>),
    /// Measures the daemon's machine: answered by [`Reply::MachineMeasured`].
    MeasureMachine {
        /// The time for each algorithm at each size.
        each: Duration,
    },
    /// Lists the results of tuning for all hosts: answered by [`Reply::Choices`].
    Choices,
    /// Finds masters of the user's own ssh, and acts on them: answered by [`Reply::Masters`].
    Masters { of: MastersOf, action: MasterAction },
    /// Lists the `Host` aliases of ssh_config that match a pattern: answered by [`Reply::Aliases`].
    Aliases {
        /// As in ssh_config(5), PATTERNS.
        pattern: String,
        world: World,
        /// The file of `-F`.
        #[serde(with = "trunkline_request::os_bytes::option")]
        config_file: Option<OsString>,
    },
    /// Lists the hosts whose names begin with `prefix`, for completion: answered by [`Reply::HostNames`].
    HostNames {
        prefix: String,
        world: World,
        /// The file of `-F`.
        #[serde(with = "trunkline_request::os_bytes::option")]
        config_file: Option<OsString>,
    },
    /// Lists the names in a host's directory that begin with `prefix`, for completion over an existing connection:
    /// answered by [`Reply::RemoteNames`], which is empty without a connection.
    RemoteNames {
        host: HostRequest,
        /// The directory, with a final slash; empty for SFTP's start directory.
        directory: String,
        prefix: String,
    },
    /// Lists the hosts of Ansible inventories: answered by [`Reply::Selection`].
    Inventory(Box<InventoryRequest>),
    /// Asks for the file that the user's ssh reads, by the password database: answered by [`Reply::ConfigFile`].
    ConfigFile,
    /// Closes connections: answered by [`Reply::Closed`].
    Close {
        /// The host; `None` for all.
        host: Option<HostRequest>,
        /// Without waiting for sessions to end.
        at_once: bool,
    },
    /// Closes the connections with a key as in [`HostReport::sharing`], for any destination: answered by
    /// [`Reply::Closed`].
    CloseShared {
        sharing: String,
        /// Without waiting for sessions to end.
        at_once: bool,
    },
    /// Stops the daemon: it accepts no more clients, waits for sessions (unless `at_once`), then exits.
    Stop {
        /// Without waiting for sessions to end.
        at_once: bool,
    },
}

impl Request {
    /// Returns the environments of callers that wait for the request and can be asked at their terminal meanwhile.
    pub fn worlds_mut(&mut self) -> Vec<&mut World> {
        match self {
            Self::Session(session) => vec![&mut session.host.world],
            Self::Warm { host, .. }
            | Self::MuxListen { host, .. }
            | Self::MustShare(host)
            | Self::Check(host)
            | Self::Explain(host)
            | Self::Forget(host)
            | Self::Tuned { host, .. }
            | Self::Close { host: Some(host), .. } => vec![&mut host.world],
            Self::Tune(tune) => vec![&mut tune.host.world],
            Self::Inventory(inventory) => vec![&mut inventory.world],
            Self::Copy(copy) => {
                let places = copy.sources.iter_mut().chain([&mut copy.target]);
                let worlds = places.filter_map(|place| match place {
                    CopyPlace::Host(host, _) => Some(&mut host.world),
                    CopyPlace::Local(_) | CopyPlace::Passed(_) => None,
                });
                worlds.collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A destination, with everything that affects how it resolves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostRequest {
    /// The destination as typed.
    pub destination: Destination,
    /// ssh's options, as typed.
    #[serde(with = "trunkline_request::os_bytes::list")]
    pub ssh_args: Vec<OsString>,
    /// The caller's environment, directory, umask and namespaces. A request from other namespaces than the daemon's is
    /// refused.
    pub world: World,
    /// True if a program answers questions from stored answers: it may be asked again for further connections while the
    /// request lives. False if a person answers, who is only asked for the first connection.
    pub answers_at_hand: bool,
}

impl HostRequest {
    /// Returns the request of a client that has no answers at hand.
    pub fn new(destination: Destination, ssh_args: Vec<OsString>, world: World) -> Self {
        Self {
            destination,
            ssh_args,
            world,
            answers_at_hand: false,
        }
    }
}

/// A session to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionRequest {
    pub host: HostRequest,
    pub program: Program,
    /// Variables for the session, in addition to those of SendEnv and SetEnv. They have no effect on this side.
    #[serde(with = "trunkline_request::os_bytes::map")]
    pub env: BTreeMap<OsString, OsString>,
    /// `-t` and `-T`.
    pub tty: Tty,
    /// The client's terminal, if its standard input is one.
    pub terminal: Option<TerminalInfo>,
    /// Standard input, output and error.
    pub stdio: [Stdio; 3],
    /// True if the client can be asked questions.
    pub answers: bool,
    /// Set if the client stands for ssh(1).
    pub ssh: Option<SshClient>,
    /// The time limit, including connecting. The daemon enforces it, because it knows how far the command got.
    pub limit: Option<Duration>,
    /// The user for whom the client works, if that is not its own.
    pub on_behalf: Option<OnBehalf>,
    /// True if [`Reply::Exited`] is wanted.
    pub tell_exit: bool,
}

impl SessionRequest {
    /// Returns a request for a session without a terminal and without a limit, of a client that answers no questions.
    pub fn new(host: HostRequest, program: Program, stdio: [Stdio; 3]) -> Self {
        Self {
            host,
            program,
            env: BTreeMap::new(),
            tty: Tty::No,
            terminal: None,
            stdio,
            answers: false,
            ssh: None,
            limit: None,
            on_behalf: None,
            tell_exit: false,
        }
    }
}

/// A user of another machine, as known to the client: for the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnBehalf {
    /// The requester's public nkey.
    pub submitter: String,
    pub job: String,
}

/// A client that stands for ssh(1): it applies the settings of ssh_config that concern ssh itself. It gets
/// [`Reply::LogLevel`], [`Reply::Log`], [`Reply::Banner`], [`Reply::Proxy`] and [`Reply::Warning`] instead of
/// [`Reply::Notice`], and runs LocalCommand ([`Reply::LocalCommand`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshClient {
    /// True if it goes to the background when the session has started (`-f`). If only ssh_config asks for that, the
    /// answer is [`Reply::UseSystemSsh`].
    pub background: bool,
    /// A level that overrides LogLevel (`-v`, `-q`).
    pub log_level: Option<LogLevel>,
}

/// Files to copy. The daemon itself reads and writes local ones.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyRequest {
    pub sources: Vec<CopyPlace>,
    pub target: CopyPlace,
    /// The options, with the caller's umask.
    pub options: CopyOptions,
    /// Report every name, and not only those that fail.
    pub names: bool,
    /// Copies with the same number share the rate limit in the first one's options. The number must be unique.
    pub rate: Option<u64>,
}

/// One end of a copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum CopyPlace {
    /// An absolute path on this machine.
    Local(#[serde(with = "trunkline_request::os_bytes")] PathBuf),
    /// A path on a host.
    Host(Box<HostRequest>, #[serde(with = "serde_bytes")] Vec<u8>),
    /// An open descriptor of the client's, with this path for display. Descriptors come with the request, in the order
    /// of the sources and the target. Three at most.
    Passed(#[serde(with = "trunkline_request::os_bytes")] PathBuf),
}

/// A request to measure a path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TuneRequest {
    pub host: HostRequest,
    pub options: TuneOptions,
}

/// Ansible inventories, and a selection of their hosts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InventoryRequest {
    /// Files, directories and scripts.
    #[serde(with = "trunkline_request::os_bytes::list")]
    pub sources: Vec<OsString>,
    /// Ansible's host pattern.
    pub pattern: String,
    /// A second pattern, which narrows the first.
    pub limit: Option<String>,
    /// The caller's environment, in which scripts run.
    pub world: World,
}

/// Masters of the user's own ssh.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum MastersOf {
    Host(Box<HostRequest>),
    /// Every master that a ControlPath of ssh_config can mean.
    All {
        world: Box<World>,
        /// The file of `-F`.
        #[serde(with = "trunkline_request::os_bytes::option")]
        config_file: Option<OsString>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterAction {
    /// Only finds them.
    Look,
    /// Ends live masters, those with sessions only if `at_once`.
    Close {
        /// Includes masters with sessions.
        at_once: bool,
    },
    /// Removes the sockets of dead masters.
    RemoveStale,
}

/// A master of the user's own ssh, and the effect of the action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MasterFound {
    /// The report for `ls`, with the state before the action.
    pub report: HostReport,
    /// True if it was ended, or its socket removed.
    pub acted: bool,
}

/// A request about a session's forwardings, from ssh's escape sequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForwardRequest {
    /// Opens one, given as for ssh's `-L`, `-R` or `-D`.
    Open(ForwardKind, String),
    /// Ends one, by its address: `[address:]port`. Its connections continue.
    Cancel(ForwardKind, String),
    List,
}

/// The direction of a forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForwardKind {
    /// From here to one place (`-L`).
    Local,
    /// From the server (`-R`).
    Remote,
    /// From here to the targets of a SOCKS client (`-D`).
    Dynamic,
}

impl ForwardKind {
    /// Returns ssh's option for it.
    pub fn option(self) -> &'static str {
        match self {
            Self::Local => "-L",
            Self::Remote => "-R",
            Self::Dynamic => "-D",
        }
    }
}

/// The program of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// The configured program (RemoteCommand, SessionType), else the login shell.
    Configured,
    /// A command line.
    Exec(#[serde(with = "serde_bytes")] Vec<u8>),
    Subsystem(String),
    /// No program: only forwardings (`-N`).
    Nothing,
    /// A connection to this host and port, on standard input and output (`-W`).
    Stdio(String, u16),
    /// A connection to this Unix socket of the server, on standard input and output.
    StdioSocket(String),
    /// No program: the server listens on this address and port (0 to let it choose) while the session lasts, which is
    /// until the end of its input. An address of `None` is the server's loopback. See [`Reply::Listening`].
    Listen(Option<String>, u16),
    /// The same on a Unix socket of the server.
    ListenSocket(String),
    /// The connection with this number from [`Reply::Incoming`], on standard input and output, which are passed.
    Incoming(u64),
}

/// The choice of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tty {
    /// As configured.
    Configured,
    /// No (`-T`).
    No,
    /// Yes (`-t`).
    Yes,
    /// Yes, even if input is not a terminal (`-tt`).
    Force,
}

/// The client's terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalInfo {
    /// TERM.
    pub term: String,
    /// Columns, rows, width and height in pixels.
    pub size: (u32, u32, u32, u32),
    /// Modes, encoded as in RFC 4254 section 8.
    #[serde(with = "serde_bytes")]
    pub modes: Vec<u8>,
}

/// One of a session's standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdio {
    /// The daemon reads or writes a file descriptor that came with the request.
    Passed,
    /// It travels in frames: the client handles its terminal itself.
    Framed,
    /// Nothing: end of file, or discarded.
    Null,
}

/// The daemon's message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// The answer to [`Request::Hello`]. If `protocol` is not the client's, the daemon only serves [`Request::Stop`],
    /// with which a newer client makes room for its own daemon.
    Welcome {
        /// The daemon's protocol version.
        protocol: u32,
        /// Its program version.
        program: String,
        pid: u32,
        /// The daemon's namespaces. For a client in other namespaces it would reach other hosts and read other files.
        vantage: Option<Vantage>,
    },
    /// A message for the user: a warning, the server's banner.
    Notice(String),
    /// A warning, to an [`SshClient`].
    Warning(String),
    /// The server's banner, to an [`SshClient`], even if the connection existed before.
    Banner(String),
    /// A line of a ProxyCommand's standard error, to an [`SshClient`].
    Proxy(String),
    /// The configured LogLevel, if it is not INFO, to an [`SshClient`] that does not override it.
    LogLevel(LogLevel),
    /// A log line of the client's log level, to an [`SshClient`]. Includes the earlier log of a shared connection.
    Log(LogLine),
    /// LocalCommand for the caller's shell, to an [`SshClient`], before the session begins. Answered by
    /// [`Request::LocalCommandDone`].
    LocalCommand(String),
    /// The event that the request waits for, which may be shown until the next reply. `None` when the wait is over.
    Waiting(Option<Waiting>),
    /// A question for the user.
    Ask(Prompt),
    /// Asks to start a program of the user's, which may ask questions, at the client's terminal: a ProxyCommand or a
    /// `Match exec`. Brings a line, a socket with the details ([`trunkline_local::lent`]). A client without a terminal
    /// closes it.
    Lend {
        /// The line, on the daemon's side.
        #[serde(skip)]
        line: Option<Arc<OwnedFd>>,
    },
    /// The session has started.
    Begun {
        /// True if it has a terminal: the client's goes into raw mode.
        tty: bool,
        /// The escape sequences that are available to the user.
        escapes: Escapes,
        /// True if the connection existed before.
        warm: bool,
        /// The name connected to (HostName).
        hostname: String,
        /// The settings for showing typed keys before their echo. `None`: never.
        predict: Option<Predict>,
    },
    /// The session is listening, after [`Reply::Begun`].
    Listening {
        /// The TCP port.
        port: Option<u16>,
    },
    /// A connection to the session's listener. It waits for a session that carries it ([`Program::Incoming`]) or for
    /// [`Request::Refuse`]. 128 may wait.
    Incoming {
        /// Its unique number.
        number: u64,
        /// The origin as `address:port`, as the server gives it; empty for a Unix socket.
        originator: String,
    },
    /// To a session of [`Program::Nothing`]: the connections on which new sessions of its host are placed have changed.
    Placement {
        /// True if traffic keeps new sessions away from one of the connections.
        apart: bool,
        connections: Vec<ConnectionReport>,
    },
    /// The session's output. Empty when the server has ended a tunnel's output, which is complete then, or when a
    /// session's listener has ended.
    Output(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The session's error output.
    ErrorOutput(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The session's command has ended with this status, but the session has not: another process has the command's
    /// output. Only sent if requested ([`SessionRequest::tell_exit`]).
    Exited(ExitStatus),
    /// The session has ended: last frame.
    Exit(ExitStatus),
    /// The request has failed: last frame.
    Failed(Failure),
    /// The host needs the system's ssh: last frame; nothing was started.
    UseSystemSsh {
        reasons: Vec<String>,
        /// Options for ssh, before all others, with which it uses the connection that is kept warm, or becomes it.
        #[serde(with = "trunkline_request::os_bytes::list")]
        options: Vec<OsString>,
    },
    /// The progress of a copy; at most ten a second.
    Progress(CopyProgress),
    Names(Vec<CopyEvent>),
    /// A copy has ended: its last frame.
    Copied(CopyEnd),
    /// The answer to [`Request::List`].
    Hosts(Vec<HostReport>),
    /// The answer to [`Request::Status`].
    Status(Box<DaemonStatus>),
    /// Changes, in answer to [`Request::Subscribe`].
    Update(Box<Update>),
    /// The answer to [`Request::Metrics`], as text.
    Metrics(String),
    /// The answer to [`Request::Check`].
    Checked {
        /// The measured round trip; `None` for a master of the system's ssh, which answers by itself.
        rtt: Option<Duration>,
    },
    /// The answer to [`Request::Explain`].
    Explained(Box<Explanation>),
    /// The progress of a [`Request::Tune`]: the current measurement.
    Tuning(Step),
    /// The answer to [`Request::Tune`].
    Measured(Box<Report>),
    /// The answer to [`Request::MeasureMachine`].
    MachineMeasured(Box<LocalReport>),
    /// The answer to [`Request::Choices`]: hosts, as `user@hostname:port`, with their choices.
    Choices(Vec<(String, Choice)>),
    /// The answer to [`Request::Masters`].
    Masters(Vec<MasterFound>),
    /// The answer to [`Request::Aliases`].
    Aliases(Vec<String>),
    /// The answer to [`Request::HostNames`], sorted.
    HostNames(Vec<HostName>),
    /// The answer to [`Request::RemoteNames`], sorted.
    RemoteNames(Vec<RemoteName>),
    /// The answer to [`Request::Inventory`].
    Selection(Selection),
    /// The answer to [`Request::ConfigFile`].
    ConfigFile(#[serde(with = "trunkline_request::os_bytes")] PathBuf),
    /// The answer to [`Request::MustShare`].
    MustShare(bool),
    /// The answer to [`Request::Close`]: the number of connections.
    Closed(Closed),
    /// The answer to [`Request::Warm`], [`Request::MuxListen`], [`Request::Tuned`], [`Request::Forget`] and
    /// [`Request::Stop`].
    Done,
}

/// The settings for showing keys before the server echoes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Predict {
    /// Predict even if the host is near.
    pub always: bool,
    /// The connection's round-trip time, if known.
    pub round_trip: Option<Duration>,
}

/// The configuration of a session's escape sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Escapes {
    /// The escape character; `None` for none.
    pub character: Option<u8>,
    /// True if `~C` opens a command line (`EnableEscapeCommandline`).
    pub command_line: bool,
    /// True if that command line runs local commands (`PermitLocalCommand`).
    pub local_commands: bool,
}

/// The end of a copy. Some names may have failed: its progress counts them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopyEnd {
    pub progress: CopyProgress,
    /// The duration, including connecting.
    pub elapsed: Duration,
    /// The ciphers of the connections that it may have used.
    pub ciphers: Vec<CopyCipher>,
}

/// The encryption of a copy's connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CopyCipher {
    /// The name in SSH.
    pub name: String,
    /// True if they compress.
    pub compressed: bool,
}

impl std::fmt::Display for CopyCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, compressed } = self;
        write!(f, "{name}{}", if *compressed { " with zlib" } else { "" })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostName {
    /// The name as typed.
    pub name: String,
    /// The source of the name.
    pub source: HostSource,
}

/// The source of a host's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostSource {
    /// It has a connection.
    Connected,
    /// It is an alias of ssh_config.
    Config,
    /// Its key is in known_hosts.
    KnownHosts,
}

impl HostSource {
    /// Returns the word for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Config => "ssh_config",
            Self::KnownHosts => "known_hosts",
        }
    }
}

/// A name in a host's directory. Names that cannot be typed and displayed are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteName {
    pub name: String,
    /// True if it is a directory, or a link to one.
    pub is_directory: bool,
}

/// The daemon itself, as `trunkline status` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// [`VERSION`].
    pub protocol: u32,
    /// The start, in seconds since 1970.
    pub since: u64,
    /// Memory in use, in bytes; `None` if unknown.
    pub memory: Option<u64>,
    /// Open descriptors.
    pub descriptors: usize,
    /// The maximum number of descriptors; `None` if unlimited.
    pub descriptor_limit: Option<u64>,
    pub socket: PathBuf,
    /// The sockets for stock ssh clients.
    pub mux_sockets: Vec<PathBuf>,
    pub log: PathBuf,
    /// The file of settings, which may not exist.
    pub config: PathBuf,
    pub load: DaemonLoad,
    /// Every setting that is in force.
    pub settings: Vec<SettingReport>,
}

/// A setting of config.toml, with values as in that file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingReport {
    pub key: String,
    pub value: String,
    pub default: String,
    pub meaning: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DaemonLoad {
    /// Hosts with connections.
    pub hosts: usize,
    pub connections: usize,
    /// Running sessions.
    pub sessions: u32,
    pub tunnels: u32,
}

/// A host with connections, as `trunkline ls` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// The name under which the user first typed it.
    pub name: String,
    /// `user@hostname:port`.
    pub address: String,
    /// The transport of its connections.
    pub transport: Transport,
    /// True if it is kept connected.
    pub pinned: bool,
    /// The key that decides which requests may share its connections.
    pub sharing: String,
    /// The settings, with this report's values, in which it differs from other reports of the same account.
    pub differs: Vec<(String, String)>,
    /// The sockets through which stock ssh can use the connections.
    pub mux_sockets: Vec<PathBuf>,
    pub connections: Vec<ConnectionReport>,
    /// The master that is the connection, if the transport is the system's ssh.
    pub master: Option<MasterReport>,
    /// The number of times that running sessions were resumed on a new connection.
    pub resumed: u32,
}

impl HostReport {
    /// Returns a report without connections.
    pub fn new(name: impl Into<String>, address: impl Into<String>, transport: Transport) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
            transport,
            pinned: false,
            sharing: String::new(),
            differs: Vec::new(),
            mux_sockets: Vec::new(),
            connections: Vec::new(),
            master: None,
            resumed: 0,
        }
    }
}

/// The transport of a host's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// The engine.
    Native,
    /// The system's ssh.
    OpenSsh,
}

impl Transport {
    /// Returns the name for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::OpenSsh => "openssh",
        }
    }
}

/// The state of a master of the system's ssh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MasterState {
    /// It answers.
    Alive,
    /// It is dead, but its socket exists.
    Stale,
    /// It does not answer.
    Silent,
    /// There is no socket.
    Missing,
}

impl MasterState {
    /// Returns the name for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Stale => "stale",
            Self::Silent => "silent",
            Self::Missing => "missing",
        }
    }
}

/// A master of the system's ssh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterReport {
    pub socket: PathBuf,
    pub state: MasterState,
    pub pid: Option<u32>,
    /// The time at which it began to listen, in seconds since 1970.
    pub since: Option<u64>,
    /// The server's address and port.
    pub peer: Option<String>,
    /// The sessions and forwardings of its clients.
    pub sessions: Option<usize>,
}

/// The resolution of a destination, as `trunkline explain` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// `user@hostname:port`.
    pub address: String,
    /// The transport of its connections.
    pub transport: Transport,
    /// The reasons why it is not native.
    pub reasons: Vec<String>,
    /// The settings that differ from ssh's defaults.
    pub departures: Vec<Departure>,
    /// True if the host's first connection is kept open.
    pub pinned: bool,
    /// The settings that other requests must have in common to share its connections: names and values.
    pub sharing: Vec<(String, String)>,
    /// The requirements for the log-in and the host key check that a connection must have met: names and values.
    pub log_in: Vec<(String, String)>,
    /// The key of both.
    pub sharing_key: String,
    /// The facts in host memory: names and values.
    pub memory: Vec<(String, String)>,
    /// Its connections, if there are any.
    pub connections: Vec<ConnectionReport>,
    /// The master of the system's ssh that carries its connections, if any.
    pub master: Option<MasterReport>,
}

/// A directive of ssh_config whose value differs from ssh's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// The directive, in lower case.
    pub keyword: String,
    /// Its values: several for directives that may be repeated.
    pub values: Vec<String>,
    /// Its default; empty for none.
    pub usual: Vec<String>,
}
