//! The control protocol: what clients and the daemon say to each other. docs/PROTOCOL.md describes it for others.
//!
//! A frame is a `uint32` length in network order, then that many bytes of MessagePack: one [`Request`] or one
//! [`Reply`], with field names. File descriptors travel with the first byte of the frame that speaks of them.

mod update;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
pub use trunkline_request::connection::{ConnectionReport, Handshake};
pub use trunkline_request::copy::{CopyEvent, CopyOptions, Snapshot as CopyProgress};
use trunkline_request::destination::Destination;
pub use trunkline_request::failure::{Failure, WordsOfSsh};
use trunkline_request::hosts::Selection;
use trunkline_request::tuning::{Choice, LocalReport, Report, Step, TuneOptions};
use trunkline_request::{LogLevel, LogLine, PromptKind, Vantage, Waiting, World};

pub use update::{
    Activity, ActivityKind, Asker, FailureReport, Histogram, Pulse, Starts, TransferReport, Update,
};

/// The protocol's version. A daemon answers clients of its own version only; see [`Reply::Welcome`].
pub const VERSION: u32 = 17;

/// The longest frame, without its length. A caller's environment is the largest thing in one.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// A client's message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Must be first. Answered by [`Reply::Welcome`], for which nobody has to wait.
    Hello {
        /// [`VERSION`].
        protocol: u32,
        /// The client's program version.
        program: String,
    },
    /// Runs a session; one for each control connection. Brings a file descriptor for each [`Stdio::Passed`], in the
    /// order of input, output and error.
    Session(Box<SessionRequest>),
    /// Input for the session, or its end when empty.
    Input(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The terminal's new size: columns, rows, width and height in pixels.
    Resize(u32, u32, u32, u32),
    /// A signal for the session's command, by name without "SIG".
    Signal(String),
    /// Ends the session: its command is sent SIGTERM, and the channel is closed when it does not end within two seconds.
    /// Nothing more is asked, and a question under way has no answer. Answered by the session's last frame, which says what
    /// became of the command.
    Terminate,
    /// A break of so many milliseconds.
    Break(u32),
    /// Exchange keys anew.
    Rekey,
    /// Changes or lists the session's forwardings. What became of it comes as [`Reply::Notice`].
    Forward(ForwardRequest),
    /// The session continues without its client (ssh's `~&`): it is sent an end-of-file character, what it still prints is
    /// thrown away, and its local forwardings take no new connections. Answered by [`Reply::Done`], after which the
    /// client may leave.
    Background,
    /// [`Reply::LocalCommand`] has been run.
    LocalCommandDone,
    /// Refuses a connection of [`Reply::Incoming`].
    Refuse(u64),
    /// The answer to [`Reply::Ask`]; `None` where there is nobody to answer.
    Answer(Option<String>),
    /// Connects, and keeps the connection forever if `pin`.
    Warm {
        /// To what.
        host: HostRequest,
        /// For ever.
        pin: bool,
    },
    /// Serves stock ssh clients of a host on a socket (OpenSSH's ControlPath), and begins to connect to the host, without
    /// asking anybody anything. Answered by [`Reply::Done`] when the socket listens, which it may have done before, or
    /// by [`Reply::Failed`] when stock ssh had better go its own way. For a host that [`Request::MustShare`] is true of,
    /// it is answered when the connection is made, for which the client is asked as for [`Request::Warm`]: stock ssh is
    /// not to go its own way.
    MuxListen {
        host: HostRequest,
        /// The socket's path: absolute, shorter than 104 bytes, in a directory that is the user's alone. The directory
        /// [`Place::mux`](crate::place::Place::mux) is made when it is missing. `None` for the host's ControlPath,
        /// which then has to be in that directory, without a ControlMaster.
        path: Option<PathBuf>,
        /// The process that will come to the socket, by its number, where it is known. It is not served there as a client of
        /// a host with other settings, to which the same socket may belong by the time it comes.
        client: Option<u32>,
    },
    /// Whether a host is to be reached over shared connections or not at all: answered by [`Reply::MustShare`].
    MustShare(HostRequest),
    /// Copies files: answered by [`Reply::Progress`] and [`Reply::Names`] while it runs, then by [`Reply::Copied`] or
    /// [`Reply::Failed`]. The client's leaving ends it.
    Copy(Box<CopyRequest>),
    /// Lists the connections: answered by [`Reply::Hosts`].
    List,
    /// Reports on the daemon itself: answered by [`Reply::Status`].
    Status,
    /// Numbers for Prometheus: answered by [`Reply::Metrics`].
    Metrics {
        /// In the format OpenMetrics, and not in Prometheus' own.
        open_metrics: bool,
    },
    /// To be told what there is and what goes on, now and at each interval: answered by [`Reply::Update`] until the client
    /// says anything else or leaves.
    Subscribe {
        /// The interval: from 100 ms to a minute.
        every: Duration,
    },
    /// Whether a host has a live connection: answered by [`Reply::Checked`] or [`Reply::Failed`].
    Check(HostRequest),
    /// Explains how a destination is resolved: answered by [`Reply::Explained`].
    Explain(HostRequest),
    /// To forget what was learnt of a host: answered by [`Reply::Done`] or [`Reply::Failed`].
    Forget(HostRequest),
    /// Remembers the best settings for moving data to and from a host; `None` to forget them. Answered by
    /// [`Reply::Done`].
    Tuned {
        host: HostRequest,
        /// The best settings.
        choice: Option<Choice>,
    },
    /// Measures the path to a host, on connections that nothing else uses: answered by [`Reply::Tuning`] while it runs,
    /// then by [`Reply::Measured`] or [`Reply::Failed`]. [`Self::Terminate`] and the client's leaving end it; what it has
    /// put on the server is removed in either case.
    Tune(Box<TuneRequest>),
    /// Measures the machine that the daemon runs on, each algorithm at each size for so long: answered by
    /// [`Reply::MachineMeasured`].
    MeasureMachine {
        /// For how long.
        each: Duration,
    },
    /// Lists the results of tuning for all hosts: answered by [`Reply::Choices`].
    Choices,
    /// Looks for masters that the user's own ssh has made, and acts on them: answered by [`Reply::Masters`].
    Masters { of: MastersOf, action: MasterAction },
    /// The `Host` aliases of ssh_config that match a pattern: answered by [`Reply::Aliases`].
    Aliases {
        /// As in ssh_config(5), PATTERNS.
        pattern: String,
        world: World,
        /// The file of `-F`.
        #[serde(with = "trunkline_request::os_bytes::option")]
        config_file: Option<OsString>,
    },
    /// The hosts whose names begin so, for a shell to complete: answered by [`Reply::HostNames`].
    HostNames {
        /// The beginning of their names.
        prefix: String,
        world: World,
        /// The file of `-F`.
        #[serde(with = "trunkline_request::os_bytes::option")]
        config_file: Option<OsString>,
    },
    /// The names in a directory of a host that begin so, for a shell to complete, over a connection that is there already:
    /// answered by [`Reply::RemoteNames`], which has none where there is no connection.
    RemoteNames {
        host: HostRequest,
        /// The directory, with a slash behind it; empty for where SFTP begins.
        directory: String,
        /// The beginning of their names.
        prefix: String,
    },
    /// The hosts of Ansible inventories: answered by [`Reply::Selection`].
    Inventory(Box<InventoryRequest>),
    /// The file that the user's ssh reads, by the password database: answered by [`Reply::ConfigFile`].
    ConfigFile,
    /// Closes connections: answered by [`Reply::Closed`].
    Close {
        /// Of this host; of all when `None`.
        host: Option<HostRequest>,
        /// Without waiting for sessions to end.
        at_once: bool,
    },
    /// Closes the connections that [`HostReport::sharing`] names, of whatever destination: answered by [`Reply::Closed`].
    CloseShared {
        /// The key of the connections.
        sharing: String,
        /// Without waiting for sessions to end.
        at_once: bool,
    },
    /// Ends the daemon: it takes no more clients, lets sessions end (unless `at_once`), then exits.
    Stop {
        /// Without waiting for sessions to end.
        at_once: bool,
    },
}

impl Request {
    /// The worlds of whoever waits for it, and can be asked at their terminal meanwhile.
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

/// A destination, with all that decides what it means.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostRequest {
    /// The destination as typed.
    pub destination: Destination,
    /// ssh's options, as typed.
    #[serde(with = "trunkline_request::os_bytes::list")]
    pub ssh_args: Vec<OsString>,
    /// The caller's environment, directory, umask and namespaces. A request from elsewhere than the daemon is refused.
    pub world: World,
    /// Questions are answered by a program that has its answers at hand: for as long as the request lives it may be asked
    /// again, for further connections. Otherwise a person answers, who is asked for the first one only.
    pub answers_at_hand: bool,
}

/// A session to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionRequest {
    pub host: HostRequest,
    pub program: Program,
    /// Variables for the session, beside those that SendEnv and SetEnv name. Nothing on this side sees them.
    #[serde(with = "trunkline_request::os_bytes::map")]
    pub env: BTreeMap<OsString, OsString>,
    /// `-t` and `-T`.
    pub tty: Tty,
    /// The client's terminal, if its standard input is one.
    pub terminal: Option<TerminalInfo>,
    /// Standard input, output and error.
    pub stdio: [Stdio; 3],
    /// Whether the client can be asked questions.
    pub answers: bool,
    /// The parts in which the client acts as ssh(1), if it stands in for it.
    pub ssh: Option<SshClient>,
    /// The time limit, connecting included. The daemon keeps the time, because it knows how far the command came.
    pub limit: Option<Duration>,
    /// Whom the client works for, where that is not its own user.
    pub on_behalf: Option<OnBehalf>,
    /// Whether [`Reply::Exited`] is wanted.
    pub tell_exit: bool,
}

/// Somebody on another machine, as the client knows it: for the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnBehalf {
    /// The requester: a public nkey.
    pub submitter: String,
    /// The job.
    pub job: String,
}

/// A client that stands for ssh(1): it does what ssh_config says of ssh itself, and not of a session. It is told with
/// [`Reply::LogLevel`], [`Reply::Log`], [`Reply::Banner`], [`Reply::Proxy`] and [`Reply::Warning`] what others hear as
/// [`Reply::Notice`], and runs LocalCommand ([`Reply::LocalCommand`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshClient {
    /// It goes to the background when the session has begun (`-f`). Where only ssh_config asks for that, the answer is
    /// [`Reply::UseSystemSsh`].
    pub background: bool,
    /// A level that overrides LogLevel (`-v`, `-q`).
    pub log_level: Option<LogLevel>,
}

/// Files to copy. The daemon reads and writes local ones itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyRequest {
    /// From where.
    pub sources: Vec<CopyPlace>,
    pub target: CopyPlace,
    /// The options, with the caller's umask.
    pub options: CopyOptions,
    /// Tell of every name, and not only of those that fail.
    pub names: bool,
    /// Copies with the same number share the rate that the first one's options have. Any number that nobody else has.
    pub rate: Option<u64>,
}

/// One end of a copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum CopyPlace {
    /// An absolute path on this machine.
    Local(#[serde(with = "trunkline_request::os_bytes")] PathBuf),
    /// A path on a host.
    Host(Box<HostRequest>, #[serde(with = "serde_bytes")] Vec<u8>),
    /// An open descriptor of the client's, called by this path: it comes with the request, in the order of the sources
    /// and the target. Three at most.
    Passed(#[serde(with = "trunkline_request::os_bytes")] PathBuf),
}

/// A path to measure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TuneRequest {
    /// To where.
    pub host: HostRequest,
    pub options: TuneOptions,
}

/// Ansible inventories, and which of their hosts are meant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InventoryRequest {
    /// Files, directories and scripts.
    #[serde(with = "trunkline_request::os_bytes::list")]
    pub sources: Vec<OsString>,
    /// Ansible's host pattern.
    pub pattern: String,
    /// A second one, which narrows the first.
    pub limit: Option<String>,
    /// The caller, whose programs are run.
    pub world: World,
}

/// Masters of the user's own ssh.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum MastersOf {
    Host(Box<HostRequest>),
    /// All that a ControlPath of ssh_config can mean.
    All {
        world: Box<World>,
        /// The file of `-F`.
        #[serde(with = "trunkline_request::os_bytes::option")]
        config_file: Option<OsString>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterAction {
    /// Only look at them.
    Look,
    /// Those that live are ended: those with sessions only if `at_once`.
    Close {
        /// With their sessions.
        at_once: bool,
    },
    /// The sockets of those that are dead are removed.
    RemoveStale,
}

/// A master of the user's own ssh, and whether something was done to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MasterFound {
    /// As `ls` shows it; its state is the one before.
    pub report: HostReport,
    /// Whether it was ended, or its socket removed.
    pub acted: bool,
}

/// A request of ssh's escape sequences about a session's forwardings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForwardRequest {
    /// Open one, given as to ssh's `-L`, `-R` or `-D`.
    Open(ForwardKind, String),
    /// End one, by where it listens: `[address:]port`. What it carries continues.
    Cancel(ForwardKind, String),
    List,
}

/// In which direction a forwarding goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForwardKind {
    /// From here, to one place (`-L`).
    Local,
    /// From the server (`-R`).
    Remote,
    /// From here, to wherever a SOCKS client asks (`-D`).
    Dynamic,
}

impl ForwardKind {
    /// ssh's option for it.
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
    /// The program of the configuration (RemoteCommand, SessionType), else the login shell.
    Configured,
    /// A command line.
    Exec(#[serde(with = "serde_bytes")] Vec<u8>),
    Subsystem(String),
    /// Nothing: only forwardings (`-N`).
    Nothing,
    /// A connection to this host and port, on standard input and output (`-W`).
    Stdio(String, u16),
    /// A connection to this Unix socket of the server, likewise.
    StdioSocket(String),
    /// Nothing: the server listens on this address and port (0 to let it choose) for as long as the session lasts, which
    /// is until the end of its input. An address of `None` is the server's loopback. See [`Reply::Listening`].
    Listen(Option<String>, u16),
    /// The same on a Unix socket of the server.
    ListenSocket(String),
    /// The connection of this number of [`Reply::Incoming`], on standard input and output, which are passed.
    Incoming(u64),
}

/// Whether a terminal is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tty {
    /// As the configuration says.
    Configured,
    /// No (`-T`).
    No,
    /// Yes (`-t`).
    Yes,
    /// Even when input is not a terminal (`-tt`).
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
    /// It travels in frames: a terminal, which is the client's own business.
    Framed,
    /// Nothing: end of file, or thrown away.
    Null,
}

/// The daemon's message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// The answer to [`Request::Hello`]. When `protocol` is not the client's, nothing else will be answered but
    /// [`Request::Stop`], by which a newer client makes room for a daemon of its own.
    Welcome {
        /// The daemon's protocol version.
        protocol: u32,
        /// Its program version.
        program: String,
        pid: u32,
        /// The daemon's view of the system. A client that stands elsewhere would have it reach other hosts and read
        /// other files.
        vantage: Option<Vantage>,
    },
    /// Something for the user's eyes: a warning, the server's banner.
    Notice(String),
    /// To an [`SshClient`]: something is wrong.
    Warning(String),
    /// To an [`SshClient`]: the server's banner, also where the connection was there before.
    Banner(String),
    /// To an [`SshClient`]: a line of a ProxyCommand's standard error.
    Proxy(String),
    /// To an [`SshClient`] that does not overrule it: what LogLevel says, where that is not INFO.
    LogLevel(LogLevel),
    /// To an [`SshClient`]: what is being done, as far as its log level lets it through; and what was done while a
    /// connection was made that it shares.
    Log(LogLine),
    /// To an [`SshClient`], before the session begins: LocalCommand, for the caller's shell. Answered by
    /// [`Request::LocalCommandDone`].
    LocalCommand(String),
    /// The event that is waited for before anything happens: to be shown, if at all, until the next reply. `None`: that
    /// is over.
    Waiting(Option<Waiting>),
    /// A question for the user.
    Ask {
        /// The text to show.
        text: String,
        /// Whether the answer may be seen.
        echo: bool,
        /// The purpose of the answer.
        kind: PromptKind,
        /// Whom it is about, as `user@host`: a client that asks about several hosts shows it. Empty for none.
        host: String,
    },
    /// A program of the user's is to be started at the client's terminal, where it may ask: a ProxyCommand, a `Match exec`.
    /// Brings a line, a socket on which that is said ([`trunkline_local::lent`]). A client without a terminal closes it.
    Lend {
        /// The line, on the daemon's side.
        #[serde(skip)]
        line: Option<Arc<OwnedFd>>,
    },
    /// The session has begun.
    Begun {
        /// On a terminal: the client's goes into raw mode.
        tty: bool,
        /// The escape sequences that the user can type.
        escapes: Escapes,
        /// Whether the connection was there before.
        warm: bool,
        /// The name connected to (HostName).
        hostname: String,
        /// On a terminal: how typed keys may be shown before their echo. `None`: not at all.
        predict: Option<Predict>,
    },
    /// The session is listening, after [`Reply::Begun`].
    Listening {
        /// The TCP port.
        port: Option<u16>,
    },
    /// Somebody has connected to what the session listens on, and waits for a session that carries it
    /// ([`Program::Incoming`]) or for [`Request::Refuse`]. 128 may wait.
    Incoming {
        /// Its number, which no other connection has.
        number: u64,
        /// The origin, as `address:port` in the server's words; empty for a Unix socket.
        originator: String,
    },
    /// To a session of [`Program::Nothing`]: new sessions of its host go elsewhere than before.
    Placement {
        /// Whether traffic keeps them away from one of the connections.
        apart: bool,
        connections: Vec<ConnectionReport>,
    },
    /// The session's output. Empty: a tunnel's output has ended by the server's word, and has not been cut off; or what a
    /// session listened on has ended.
    Output(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The session's error output.
    ErrorOutput(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The session's command has ended so, and its session has not: another process has the command's output. Told to
    /// who wanted that ([`SessionRequest::tell_exit`]).
    Exited(Exit),
    /// The session has ended: last frame.
    Exit(Exit),
    /// It did not work: last frame.
    Failed(Failure),
    /// The host needs the system's ssh: last frame, and nothing was begun.
    UseSystemSsh {
        reasons: Vec<String>,
        /// Options for ssh, before all others, by which it uses the connection that is kept warm, or becomes it.
        #[serde(with = "trunkline_request::os_bytes::list")]
        options: Vec<OsString>,
    },
    /// The progress of a copy; at most ten a second.
    Progress(CopyProgress),
    Names(Vec<CopyEvent>),
    /// A copy is over: last frame about it.
    Copied(CopyEnd),
    /// The answer to [`Request::List`].
    Hosts(Vec<HostReport>),
    /// The answer to [`Request::Status`].
    Status(Box<DaemonStatus>),
    /// The changes: the answers to [`Request::Subscribe`].
    Update(Box<Update>),
    /// The answer to [`Request::Metrics`], as text.
    Metrics(String),
    /// The answer to [`Request::Check`].
    Checked {
        /// The round trip just measured; `None` where a master of the system's ssh has answered for itself.
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
    /// The answer to [`Request::Choices`]: each with its host, as `user@hostname:port`.
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
    /// The answer to [`Request::Close`]: how many connections.
    Closed(usize),
    /// The answer to [`Request::Warm`], [`Request::MuxListen`], [`Request::Tuned`], [`Request::Forget`] and
    /// [`Request::Stop`].
    Done,
}

/// The policy for showing keys before the server echoes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Predict {
    /// However near the host is, and not only where it is far.
    pub always: bool,
    /// The connection's round-trip time, as far as it is known.
    pub round_trip: Option<Duration>,
}

/// The configuration of a session's escape sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Escapes {
    /// The escape character; `None` for none.
    pub character: Option<u8>,
    /// Whether `~C` opens a command line (`EnableEscapeCommandline`).
    pub command_line: bool,
    /// Whether that runs commands here (`PermitLocalCommand`).
    pub local_commands: bool,
}

/// The end of a copy. Names may have failed nevertheless: its progress counts them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopyEnd {
    pub progress: CopyProgress,
    /// The duration, connecting included.
    pub elapsed: Duration,
    /// The ciphers of the connections that it may have gone over.
    pub ciphers: Vec<CopyCipher>,
}

/// The protection of a copy's data by its connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CopyCipher {
    /// By SSH's name.
    pub name: String,
    /// Whether they compress.
    pub compressed: bool,
}

impl std::fmt::Display for CopyCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, compressed } = self;
        write!(f, "{name}{}", if *compressed { " with zlib" } else { "" })
    }
}

/// The end of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Status(u32),
    /// By a signal, named without "SIG"; whether there is a core.
    Signal(String, bool),
    /// Without a word.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostName {
    /// As it would be typed.
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
    /// The words that people see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Config => "ssh_config",
            Self::KnownHosts => "known_hosts",
        }
    }
}

/// A name in a directory of a host. What could not be typed and looked at is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteName {
    pub name: String,
    /// Whether it is a directory, or leads to one.
    pub is_directory: bool,
}

/// The daemon itself, as `trunkline status` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    pub pid: u32,
    /// Its program's version.
    pub version: String,
    /// [`VERSION`].
    pub protocol: u32,
    /// Seconds since 1970 when it was started.
    pub since: u64,
    /// Bytes of memory that it has in use; `None` where the system does not tell.
    pub memory: Option<u64>,
    /// Descriptors that it has open.
    pub descriptors: usize,
    /// The maximum number of descriptors; `None` for any number.
    pub descriptor_limit: Option<u64>,
    /// Its control socket.
    pub socket: PathBuf,
    /// The sockets for stock ssh clients.
    pub mux_sockets: Vec<PathBuf>,
    pub log: PathBuf,
    /// Its settings' file, which need not exist.
    pub config: PathBuf,
    /// Hosts with connections, connections, and the sessions and tunnels on them.
    pub load: DaemonLoad,
    /// Every setting, as it is in force.
    pub settings: Vec<SettingReport>,
}

/// A setting of config.toml. Values are written as in that file.
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
    /// Sessions that run.
    pub sessions: u32,
    pub tunnels: u32,
}

/// A host with connections, as `trunkline ls` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// As the user typed it first.
    pub name: String,
    /// `user@hostname:port`.
    pub address: String,
    /// The transport of its connections.
    pub transport: Transport,
    /// Whether it is kept forever.
    pub pinned: bool,
    /// The key that decides who may share its connections.
    pub sharing: String,
    /// If another report is of the same account: the settings in which they differ, with the values of this one.
    pub differs: Vec<(String, String)>,
    /// The sockets through which stock ssh clients can use them.
    pub mux_sockets: Vec<PathBuf>,
    pub connections: Vec<ConnectionReport>,
    /// The system's ssh that is the connection, where that is the transport.
    pub master: Option<MasterReport>,
    /// The times that running sessions were carried over to a new connection.
    pub resumed: u32,
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
    /// The name that people see.
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
    /// It is dead, and its socket is there.
    Stale,
    /// It does not answer.
    Silent,
    /// There is no socket.
    Missing,
}

impl MasterState {
    /// The name that people see.
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
    /// Its control socket.
    pub socket: PathBuf,
    /// Whether it lives.
    pub state: MasterState,
    pub pid: Option<u32>,
    /// Seconds since 1970 when it began to listen.
    pub since: Option<u64>,
    /// Address and port of the server.
    pub peer: Option<String>,
    /// Sessions and forwardings of its clients.
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
    /// Whether the host's first connection is kept forever.
    pub pinned: bool,
    /// The settings that a request must have in common with this one to share its connections: names and values.
    pub sharing: Vec<(String, String)>,
    /// The requirements for the log-in and the check of the host key, which a connection must have met: names and
    /// values.
    pub log_in: Vec<(String, String)>,
    /// The short form of both.
    pub sharing_key: String,
    /// The facts in host memory: names and values.
    pub memory: Vec<(String, String)>,
    /// Its connections, if there are any.
    pub connections: Vec<ConnectionReport>,
    /// The master of the system's ssh that carries its connections, if there is one.
    pub master: Option<MasterReport>,
}

/// A directive of ssh_config that is set otherwise than ssh has it on its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// The directive, in small letters.
    pub keyword: String,
    /// Its value: one, or several for directives that may be given several times.
    pub values: Vec<String>,
    /// Its usual value; empty for none.
    pub usual: Vec<String>,
}
