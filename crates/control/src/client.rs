//! The client's end of the control socket. The first client starts the daemon.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use serde::Serialize;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use trunkline_local::lent::{self, Lending};
use trunkline_request::failure::{ErrorKind, Failure};
use trunkline_request::{Difference, Vantage};

use crate::place::{Place, PlaceError};
use crate::program::{self, ProgramError};
use crate::protocol::{Reply, Request, VERSION};
use crate::socket::{
    FrameError, FrameReader, FrameWriter, at_the_end, encode, receive, send_blocking, split, split_after,
    take_frame,
};

/// The reason why the daemon could not be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no directory for it.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// No program to start was found.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// It does not run, and was not to be started.
    #[error("the daemon is not running")]
    NotRunning,
    /// It was started and did not come up.
    #[error("the daemon did not start: {why}; its log is {log}")]
    Start {
        /// The cause, if known.
        why: String,
        log: PathBuf,
    },
    /// A private one did not come up.
    #[error("{} did not start: {why}", program.display())]
    Private {
        program: PathBuf,
        /// The cause, if known.
        why: String,
    },
    /// The program that was started as the daemon has another version.
    #[error(
        "{} speaks protocol {protocol}, this program {VERSION}: install both from the same release",
        program.display()
    )]
    OtherVersion {
        program: PathBuf,
        /// The protocol it speaks.
        protocol: u32,
    },
    /// The socket failed or sent invalid data.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Another user listens on the socket.
    #[error("{socket} belongs to uid {uid}, not to you: set TRUNKLINE_DIR to a directory of your own")]
    Stranger {
        /// The owner.
        uid: u32,
        socket: PathBuf,
    },
    /// It accepts connections but does not answer.
    #[error(
        "the daemon on {socket} does not answer; kill its process, and the next command starts a new one"
    )]
    Silent { socket: PathBuf },
    /// It speaks another protocol than this program.
    #[error(
        "the daemon speaks protocol {protocol}, this program {VERSION}: use the trunkline that started it, or `trunkline stop`"
    )]
    Version {
        /// The daemon's protocol.
        protocol: u32,
    },
    /// It runs in namespaces where other hosts are reached or other files are meant.
    #[error("the daemon runs in a different {0} from this program")]
    Elsewhere(Difference),
    /// It ended during the request.
    #[error("the daemon ended during the request")]
    Gone,
}

/// If the daemon cannot be reached, nothing was started.
impl From<&ClientError> for Failure {
    fn from(error: &ClientError) -> Self {
        Self::new(ErrorKind::Local, error.to_string())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::from(&error)
    }
}

/// The way to start a daemon.
#[derive(Debug, Clone)]
pub enum Starter {
    /// The program [`trunklined`](crate::program), wherever it is installed.
    Installed,
    /// A program with the arguments that make it the daemon.
    Command(Vec<OsString>),
}

impl Starter {
    fn command(&self) -> Result<Vec<OsString>, ProgramError> {
        Ok(match self {
            Self::Installed => vec![program::find()?.into(), "--detach".into()],
            Self::Command(command) => command.clone(),
        })
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    replies: ReplyReader,
    requests: RequestWriter,
}

/// The first messages of a client, which may be sent to several daemons.
struct Opening<'a> {
    bytes: Vec<u8>,
    fds: &'a [BorrowedFd<'a>],
}

impl<'a> Opening<'a> {
    /// Encodes the hello alone.
    fn hello() -> Result<Self, ClientError> {
        let hello = Request::Hello {
            protocol: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(Self {
            bytes: encode(&hello)?,
            fds: &[],
        })
    }

    /// Encodes the hello and a request with descriptors.
    fn with_request(request: &Request, fds: &'a [BorrowedFd<'a>]) -> Result<Self, ClientError> {
        let mut opening = Self::hello()?;
        opening.bytes.extend(encode(request)?);
        opening.fds = fds;
        Ok(opening)
    }
}

/// The number of times that a daemon may end, or be replaced, while a client connects.
const ATTEMPTS: usize = 5;

/// The time limit for a daemon's welcome. It is the first thing a daemon does, so a slower one is stopped or stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The time limit for a daemon to come up, or for a stopping one to release its place.
const START_LIMIT: Duration = Duration::from_secs(10);

impl Client {
    /// Connects to the daemon. With a `starter`, starts one if none runs, and replaces one with an older protocol,
    /// which accepts no more clients and waits for its sessions.
    ///
    /// Waits for the daemon's welcome, which costs one wake-up of each side. Only the welcome shows that the daemon is
    /// in this process's namespaces ([`ClientError::Elsewhere`]) and is not ending. In the latter case nothing was
    /// started, and a new daemon is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(place: &Place, starter: Option<&Starter>) -> Result<Self, ClientError> {
        let here = Vantage::current();
        Self::open(place, starter, &here, &Opening::hello()?).await
    }

    /// Connects with a request of a process in the namespaces `here`, sent together with the hello, so that the daemon
    /// starts on it while its welcome is on the way. After an error, nothing was started: a daemon in other namespaces
    /// refuses the request, one of another protocol does not read it, and none starts on it before its welcome has
    /// left.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect_with(
        place: &Place,
        starter: Option<&Starter>,
        here: &Vantage,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Self, ClientError> {
        Self::open(place, starter, here, &Opening::with_request(request, fds)?).await
    }

    async fn open(
        place: &Place,
        starter: Option<&Starter>,
        here: &Vantage,
        opening: &Opening<'_>,
    ) -> Result<Self, ClientError> {
        let mut started = None;
        for _ in 0..ATTEMPTS {
            match Self::connect_and_greet(place, opening).await {
                Ok((client, VERSION, there)) => {
                    return match there.and_then(|there| there.difference(here)) {
                        Some(what) => Err(ClientError::Elsewhere(what)),
                        None => Ok(client),
                    };
                }
                // A daemon that was just started is not replaced by another of the same kind.
                Ok((_, protocol, _)) if started.is_some() => {
                    let program = started.unwrap_or_default();
                    return Err(ClientError::OtherVersion { program, protocol });
                }
                Ok((_, protocol, _)) if protocol < VERSION && starter.is_some() => {
                    tracing::info!("replacing a daemon of an older version");
                    if let Ok(mut old) = Self::connect_to_stop(place).await {
                        old.send(&Request::Stop { at_once: false }).await?;
                        while old.next().await.is_ok() {}
                    }
                }
                Ok((_, protocol, _)) => return Err(ClientError::Version { protocol }),
                Err(ClientError::Gone) => {}
                Err(ClientError::NotRunning) => {
                    started = start(place, starter).await?;
                    if started.is_none() && !wait_for_holder(place).await {
                        break;
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            wait_until_free(place).await?;
        }
        Err(ClientError::Start {
            why: unreachable_holder(place),
            log: place.log(),
        })
    }

    /// Connects to the running daemon, in whatever namespaces, to ask for its state or to close connections. It refuses
    /// requests about hosts from other namespaces.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect_anywhere(place: &Place) -> Result<Self, ClientError> {
        match Self::connect_and_greet(place, &Opening::hello()?).await? {
            (client, VERSION, _) => Ok(client),
            (_, protocol, _) => Err(ClientError::Version { protocol }),
        }
    }

    /// Connects to the running daemon, whatever its version, to send [`Request::Stop`] only.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`], or another reason.
    pub async fn connect_to_stop(place: &Place) -> Result<Self, ClientError> {
        match Self::connect_and_greet(place, &Opening::hello()?).await {
            Ok((client, ..)) => Ok(client),
            Err(ClientError::Gone) => Err(ClientError::NotRunning),
            Err(error) => Err(error),
        }
    }

    /// Returns a client of the private daemon at the other end of `stream`.
    pub(crate) async fn of_private(stream: UnixStream, program: &Path) -> Result<Self, ClientError> {
        let mut client = Self::new(stream);
        client.requests.open(&Opening::hello()?).await?;
        match client.next().await? {
            Reply::Welcome {
                protocol: VERSION, ..
            } => Ok(client),
            Reply::Welcome { protocol, .. } => Err(ClientError::OtherVersion {
                program: program.into(),
                protocol,
            }),
            _ => Err(FrameError::Malformed("no welcome".into()).into()),
        }
    }

    /// Returns a client of an engine in this process, at the other end of `stream`, which needs no welcome.
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub async fn from_stream(stream: UnixStream) -> Result<Self, ClientError> {
        let client = Self::new(stream);
        client.requests.open(&Opening::hello()?).await?;
        Ok(client)
    }

    fn new(stream: UnixStream) -> Self {
        let (reader, writer) = split(stream);
        Self {
            replies: ReplyReader::new(reader),
            requests: RequestWriter(writer),
        }
    }

    /// Sets whether programs from the user's configuration may use this process's terminal.
    #[must_use]
    pub fn lending(mut self, lending: Lending) -> Self {
        self.replies.lending = Some(lending);
        self
    }

    /// Connects to the running daemon. Also returns its protocol version and its namespaces.
    async fn connect_and_greet(
        place: &Place,
        opening: &Opening<'_>,
    ) -> Result<(Self, u32, Option<Vantage>), ClientError> {
        let Ok(stream) = UnixStream::connect(place.socket()).await else {
            return Err(ClientError::NotRunning);
        };
        check_peer(&stream, place)?;
        let mut client = Self::new(stream);
        client.requests.open(opening).await?;
        match tokio::time::timeout(ANSWER_LIMIT, client.next()).await {
            Ok(Ok(Reply::Welcome {
                protocol, vantage, ..
            })) => Ok((client, protocol, vantage)),
            Ok(Ok(_)) => Err(FrameError::Malformed("no welcome".into()).into()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ClientError::Silent {
                socket: place.socket(),
            }),
        }
    }

    /// Sends a request. A daemon that no longer reads is not an error: its remaining replies may give the reason, and
    /// end with [`ClientError::Gone`].
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub async fn send(&self, request: &Request) -> Result<(), ClientError> {
        self.requests.send(request).await
    }

    /// Sends a request with file descriptors.
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub async fn send_with(
        &self,
        request: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        self.requests.0.send_with(request, fds).await.map_err(gone_error)
    }

    /// Returns the next reply. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Gone`] when the daemon has closed the socket.
    pub async fn next(&mut self) -> Result<Reply, ClientError> {
        self.replies.next().await
    }

    /// Splits both directions.
    pub fn into_split(self) -> (ReplyReader, RequestWriter) {
        (self.replies, self.requests)
    }
}

/// A connection with a request to the daemon, for a process that only waits for its replies: it blocks, and needs no
/// runtime.
///
/// A runtime's descriptors and its calls beside each read are a third of a warm command's cost to its process.
#[derive(Debug)]
pub struct Call {
    stream: std::os::unix::net::UnixStream,
    /// Received bytes of an incomplete reply.
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Call {
    /// Sends a request to a running daemon, as [`Client::connect_with`] does. Returns `None` if that is not enough:
    /// none runs, or it is ending, of another version, or in other namespaces. Then, and after an error, nothing was
    /// started.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn begin(
        place: &Place,
        here: &Vantage,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<Self>, ClientError> {
        let Ok(stream) = std::os::unix::net::UnixStream::connect(place.socket()) else {
            return Ok(None);
        };
        check_peer(&stream, place)?;
        let opening = Opening::with_request(request, fds)?;
        let mut call = Self {
            stream,
            buffer: Vec::new(),
            fds: Vec::new(),
        };
        if send_blocking(&call.stream, &opening.bytes, opening.fds).is_err() {
            return Ok(None);
        }
        if !call.is_answered_within(ANSWER_LIMIT)? {
            let socket = place.socket();
            return Err(ClientError::Silent { socket });
        }
        match call.wait() {
            Ok(Reply::Welcome {
                protocol, vantage, ..
            }) => {
                let elsewhere = vantage.and_then(|there| there.difference(here)).is_some();
                Ok((protocol == VERSION && !elsewhere).then_some(call))
            }
            Ok(_) => Err(FrameError::Malformed("no welcome".into()).into()),
            Err(ClientError::Gone) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_answered_within(&self, limit: Duration) -> Result<bool, ClientError> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other);
        let limit = limit.map_err(FrameError::from)?;
        let mut awaited = [PollFd::new(&self.stream, PollFlags::IN)];
        let ready = retry_on_intr(|| rustix::event::poll(&mut awaited, Some(&limit)));
        Ok(ready.map_err(|error| FrameError::Io(error.into()))? > 0)
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// [`ClientError::Gone`] when the daemon has closed the socket.
    pub fn wait(&mut self) -> Result<Reply, ClientError> {
        loop {
            match take_frame(&mut self.buffer)? {
                // This process only waits, so its terminal can be lent.
                Some(Reply::Lend { .. }) => lend(std::mem::take(&mut self.fds), Some(Lending::Lent)),
                Some(reply) => return Ok(reply),
                None => {}
            }
            match receive(&self.stream, &mut self.buffer, &mut self.fds) {
                Ok(0) => return at_the_end(&self.buffer)?.ok_or(ClientError::Gone),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(gone_error(error.into())),
            }
        }
    }

    /// Registers the connection with the calling runtime.
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub fn into_client(self) -> Result<Client, ClientError> {
        self.stream.set_nonblocking(true).map_err(FrameError::from)?;
        let stream = UnixStream::from_std(self.stream).map_err(FrameError::from)?;
        let (reader, writer) = split_after(stream, self.buffer, self.fds);
        Ok(Client {
            replies: ReplyReader::new(reader),
            requests: RequestWriter(writer),
        }
        .lending(Lending::Lent))
    }
}

/// Checks the owner of the daemon's socket, which gets our streams and our environment.
fn check_peer(stream: &impl AsFd, place: &Place) -> Result<(), ClientError> {
    let peer = nix::sys::socket::getsockopt(stream, PeerCredentials);
    let peer = peer.map_err(|error| FrameError::Io(error.into()))?;
    if peer.uid() == rustix::process::getuid().as_raw() {
        return Ok(());
    }
    Err(ClientError::Stranger {
        uid: peer.uid(),
        socket: place.socket(),
    })
}

/// The replies of a [`Client`].
#[derive(Debug)]
pub struct ReplyReader {
    frames: FrameReader,
    /// The handling of programs that ask on the terminal; `None`: the daemon starts them, without a terminal.
    lending: Option<Lending>,
}

impl ReplyReader {
    fn new(frames: FrameReader) -> Self {
        Self {
            frames,
            lending: None,
        }
    }

    /// As [`Client::next`].
    ///
    /// # Errors
    /// As [`Client::next`].
    pub async fn next(&mut self) -> Result<Reply, ClientError> {
        loop {
            match self.frames.next::<Reply>().await {
                Ok(Some(Reply::Lend { .. })) => lend(self.frames.take_fds(), self.lending),
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => return Err(ClientError::Gone),
                Err(error) => return Err(gone_error(error)),
            }
        }
    }
}

/// Serves the line that came with [`Reply::Lend`], or closes it.
fn lend(lines: Vec<OwnedFd>, lending: Option<Lending>) {
    let Some(lending) = lending else { return };
    for line in lines {
        lent::serve(line, lending);
    }
}

/// The requests of a [`Client`].
#[derive(Debug)]
pub struct RequestWriter(FrameWriter);

impl RequestWriter {
    async fn open(&self, opening: &Opening<'_>) -> Result<(), ClientError> {
        self.0
            .write(&opening.bytes, opening.fds)
            .await
            .map_err(gone_error)
    }

    /// As [`Client::send`].
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn send(&self, request: &Request) -> Result<(), ClientError> {
        match self.0.send(request).await.map_err(gone_error) {
            Err(ClientError::Gone) => Ok(()),
            sent => sent,
        }
    }
}

/// Converts an error at the daemon's end, which reading and writing report differently.
fn gone_error(error: FrameError) -> ClientError {
    match &error {
        FrameError::Io(io)
            if matches!(
                io.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ) =>
        {
            ClientError::Gone
        }
        _ => error.into(),
    }
}

/// Waits until a daemon that accepts no more clients has released its lock, which it does before its sessions end.
async fn wait_until_free(place: &Place) -> Result<(), ClientError> {
    let started = Instant::now();
    while started.elapsed() < START_LIMIT {
        // If the file is missing or unreadable, starting a daemon gives the error.
        let Ok(lock) = std::fs::File::open(place.lock()) else {
            return Ok(());
        };
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(ClientError::Gone)
}

/// Waits until the holder of the daemon's lock listens or releases the lock: one that starts takes the lock before the
/// socket, and one that was killed may lose the socket before the lock. Returns false if it does neither.
async fn wait_for_holder(place: &Place) -> bool {
    let listens = async {
        while UnixStream::connect(place.socket()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = listens => true,
        free = wait_until_free(place) => free.is_ok(),
    }
}

/// Describes a daemon that has the lock but does not listen.
fn unreachable_holder(place: &Place) -> String {
    let socket = place.socket();
    let holder = std::fs::read_to_string(place.lock()).unwrap_or_default();
    match holder.trim().parse::<u32>() {
        Ok(pid) => format!(
            "process {pid} is the daemon, and does not listen on {}; `kill {pid}` ends it",
            socket.display()
        ),
        Err(_) => "it took the lock but not the socket".into(),
    }
}

/// Starts a daemon and waits until it listens, or until another one that was started meanwhile does. Returns the
/// program, or `None` if it was another.
async fn start(place: &Place, starter: Option<&Starter>) -> Result<Option<PathBuf>, ClientError> {
    let command = starter.ok_or(ClientError::NotRunning)?.command()?;
    place.make()?;
    let failed = |why: String| ClientError::Start {
        why,
        log: place.log(),
    };
    let Some((program, arguments)) = command.split_first() else {
        return Err(ClientError::NotRunning);
    };
    // A daemon without a log is better than none.
    let open = |path: &Path| {
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
    };
    let log = place
        .make_state()
        .map_err(io::Error::other)
        .and_then(|()| open(&place.log()))
        .or_else(|_| open(Path::new("/dev/null")))
        .map_err(|error| failed(error.to_string()))?;
    // The first caller's environment must not affect later callers. The daemon itself needs only its directories.
    let kept = [
        program::VARIABLE,
        "TRUNKLINE_DIR",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "HOME",
        "PATH",
    ];
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(
            kept.iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .envs(std::env::vars_os().filter(|(name, _)| name.as_bytes() == b"TRUNKLINE_LOG"))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    // It writes a line when it listens, and closes its standard output either way.
    let mut line = String::new();
    if let Some(stdout) = &mut child.stdout {
        let read = tokio::time::timeout(START_LIMIT, stdout.read_to_string(&mut line)).await;
        read.map_err(|_| failed("it took too long".into()))?
            .map_err(|error| failed(error.to_string()))?;
    }
    match line.trim() {
        "ready" => return Ok(Some(program.into())),
        "running" => return Ok(None),
        _ => {}
    }
    Err(failed(if line.is_empty() {
        "it ended at once".into()
    } else {
        line.trim().to_owned()
    }))
}
