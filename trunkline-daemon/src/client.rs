//! The client's end of the control socket, and how a daemon is started by the first who needs it.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use trunkline::Engine;

use crate::place::{Place, PlaceError};
use crate::protocol::{Reply, Request, VERSION};
use crate::socket::{FrameError, FrameReader, FrameWriter, split};

/// Why the daemon could not be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No folder for it.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// None runs, and none was to be started.
    #[error("no daemon is running")]
    NotRunning,
    /// One was started and did not come up.
    #[error("the daemon did not start: {why}; its log is {log}")]
    Start {
        /// What is known.
        why: String,
        /// Its log.
        log: PathBuf,
    },
    /// The socket failed or spoke nonsense.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It went away in the middle.
    #[error("the daemon ended in the middle of the request")]
    Gone,
}

/// How to start a daemon.
#[derive(Debug, Clone)]
pub struct Starter {
    /// The program, with the arguments that make it the daemon.
    pub command: Vec<OsString>,
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    reader: FrameReader,
    writer: FrameWriter,
}

/// How long a daemon may take to come up.
const START_LIMIT: Duration = Duration::from_secs(10);

impl Client {
    /// Connects to the daemon; starts one where there is none, or where the one there is older, given a `starter`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(place: &Place, starter: Option<&Starter>) -> Result<Self, ClientError> {
        for _ in 0..3 {
            match UnixStream::connect(place.socket()).await {
                Ok(stream) => {
                    let client = Self::hello(stream).await?;
                    return Ok(client);
                }
                Err(_) if starter.is_none() => return Err(ClientError::NotRunning),
                Err(_) => start(place, starter).await?,
            }
        }
        Err(ClientError::Start {
            why: "it took the lock but not the socket".into(),
            log: place.log(),
        })
    }

    /// A connection to an engine in this process, which is served as the daemon would.
    ///
    /// # Errors
    /// [`ClientError::Frame`] where the system gives no socket.
    pub async fn to_engine(engine: Engine) -> Result<Self, ClientError> {
        let (ours, theirs) = UnixStream::pair().map_err(FrameError::from)?;
        crate::server::serve_in_process(theirs, engine);
        Self::hello(ours).await
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`ClientError::Frame`].
    pub async fn send(&self, request: &Request) -> Result<(), ClientError> {
        Ok(self.writer.send(request).await?)
    }

    /// Introduces this client. The answer is read with the first reply.
    async fn hello(stream: UnixStream) -> Result<Self, ClientError> {
        let (reader, writer) = split(stream);
        let client = Self { reader, writer };
        let program = env!("CARGO_PKG_VERSION").to_owned();
        client
            .send(&Request::Hello {
                protocol: VERSION,
                program,
            })
            .await?;
        Ok(client)
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
        Ok(self.writer.send_with(request, fds).await?)
    }

    /// The next reply. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Gone`] when the daemon has closed the socket.
    pub async fn next(&mut self) -> Result<Reply, ClientError> {
        match self.reader.next::<Reply>().await {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(ClientError::Gone),
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(ClientError::Gone)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Both directions apart.
    pub fn into_split(self) -> (ReplyReader, RequestWriter) {
        (ReplyReader(self.reader), RequestWriter(self.writer))
    }
}

/// The replies of a [`Client`].
#[derive(Debug)]
pub struct ReplyReader(FrameReader);

impl ReplyReader {
    /// As [`Client::next`].
    ///
    /// # Errors
    /// As [`Client::next`].
    pub async fn next(&mut self) -> Result<Reply, ClientError> {
        match self.0.next::<Reply>().await {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(ClientError::Gone),
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(ClientError::Gone)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The requests of a [`Client`].
#[derive(Debug)]
pub struct RequestWriter(FrameWriter);

impl RequestWriter {
    /// As [`Client::send`].
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn send(&self, request: &Request) -> Result<(), ClientError> {
        Ok(self.0.send(request).await?)
    }
}

/// Starts a daemon and waits until it listens, or until another that was started meanwhile does.
async fn start(place: &Place, starter: Option<&Starter>) -> Result<(), ClientError> {
    place.make()?;
    let failed = |why: String| ClientError::Start {
        why,
        log: place.log(),
    };
    let Some((program, arguments)) = starter.and_then(|starter| starter.command.split_first()) else {
        return Err(ClientError::NotRunning);
    };
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(place.log())
        .map_err(|error| failed(format!("{}: {error}", place.log().display())))?;
    // Nothing of the first caller's environment is to decide anything for those who come later; what the daemon needs
    // itself is where its folders are.
    let kept = [
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
    if line.trim() == "ready" || line.trim() == "running" {
        return Ok(());
    }
    Err(failed(if line.is_empty() {
        "it ended at once".into()
    } else {
        line.trim().to_owned()
    }))
}
