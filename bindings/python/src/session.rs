//! [`Session`]: a command that runs on a server, whoever holds the connection: an engine in this process or the daemon.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::Instant;
use trunkline::{
    ChannelCloser, ChannelReader, ChannelStream, ChannelWriter, Execution, ExitStatus, SessionControl,
    SessionEnd, SessionParts, TerminalSize,
};
use trunkline_daemon::client::session;
use trunkline_daemon::protocol::{Exit, Request};

use crate::data::{Data, duration};
use crate::error::Failure;
use crate::operation::Operation;
use crate::process::{OfProcess, Process};

/// How a command ended: its status as a shell would show it, and the signal's name without "SIG".
pub(crate) type Status = (u32, Option<String>);

/// How long a session that is closed because its time is up may take to say how far it came.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The most that one reading takes of what has already come.
const GATHER: usize = 256 * 1024;

/// A session's parts, wherever it runs.
pub(crate) struct Parts {
    pub(crate) stdin: Outgoing,
    pub(crate) stdout: Incoming,
    pub(crate) stderr: Incoming,
    pub(crate) control: Control,
    pub(crate) end: Ending,
}

impl From<SessionParts> for Parts {
    fn from(parts: SessionParts) -> Self {
        let SessionParts {
            stdin,
            stdout,
            stderr,
            control,
            end,
        } = parts;
        Self {
            stdin: Outgoing::Channel(stdin),
            stdout: Incoming::Channel(stdout),
            stderr: Incoming::Channel(stderr),
            control: Control::Engine(control),
            end: Ending::new(Source::Engine(end)),
        }
    }
}

impl From<ChannelStream> for Parts {
    fn from(tunnel: ChannelStream) -> Self {
        let control = Control::Tunnel(tunnel.closer());
        let (reader, writer) = tunnel.into_split();
        Self {
            stdin: Outgoing::Channel(writer),
            stdout: Incoming::Channel(reader),
            stderr: Incoming::Ended,
            control,
            end: Ending::new(Source::Tunnel),
        }
    }
}

impl Parts {
    /// Gives the command `input`, reads all its output and waits for its end: status, output, error output. When `limit`
    /// is over, the command's session is closed, and the failure brings what had come.
    pub(crate) async fn output(
        self,
        input: Bytes,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<(Status, Data, Data), Failure> {
        let Self {
            mut stdin,
            mut stdout,
            mut stderr,
            control,
            mut end,
        } = self;
        let (mut output, mut error_output) = (Data::default(), Data::default());
        let ended = {
            let feed = async {
                // A command that does not read its input is not an error.
                if stdin.send(input).await.is_ok() {
                    let _ = stdin.finish().await;
                }
            };
            let read = async {
                let streams =
                    async { tokio::join!(stdout.collect(&mut output), stderr.collect(&mut error_output)) };
                tokio::join!(streams, end.wait()).1
            };
            let whole = until(read, feed);
            match deadline {
                Some((at, limit)) => tokio::time::timeout_at(at, whole).await.map_err(|_| limit),
                None => Ok(whole.await),
            }
        };
        let failure = match ended {
            Ok(Ok(status)) => return Ok((status, output, error_output)),
            Ok(Err(failure)) => failure,
            Err(limit) => timed_out(&control, &mut end, limit).await,
        };
        Err(failure.with_output(output.into_vec(), error_output.into_vec()))
    }
}

/// Does both, until `work` is done: input is fed to a command for as long as it runs, whether or not it reads it.
async fn until<T>(work: impl Future<Output = T>, feed: impl Future<Output = ()>) -> T {
    let feed = async {
        feed.await;
        std::future::pending().await
    };
    tokio::select! {
        biased;
        done = work => done,
        done = feed => done,
    }
}

/// Closes a session whose time is up, and says how far its command came.
async fn timed_out(control: &Control, end: &mut Ending, limit: Duration) -> Failure {
    let error = trunkline::Error::Timeout {
        doing: "the command".into(),
        after: limit,
    };
    if control.is_waiting() {
        return error.into();
    }
    control.close();
    let execution = match tokio::time::timeout(LAST_WORDS, end.wait()).await {
        Ok(Ok(_)) => Execution::Finished,
        Ok(Err(_)) | Err(_) => Execution::MayHaveStarted,
    };
    error.with_execution(execution).into()
}

/// A stream from the command.
pub(crate) enum Incoming {
    Channel(ChannelReader),
    /// The other end is the daemon's.
    Socket(UnixStream, BytesMut),
    /// There is none.
    Ended,
}

impl Incoming {
    /// The next piece, of at most `limit` bytes; `None` at the end. Cancel-safe.
    async fn chunk(&mut self) -> Option<Bytes> {
        match self {
            Self::Channel(reader) => reader.chunk().await,
            Self::Socket(socket, buffer) => {
                buffer.reserve(GATHER);
                // The daemon's end is gone with the daemon: the session's outcome tells of it.
                let read = socket.read_buf(buffer).await.unwrap_or(0);
                (read > 0).then(|| buffer.split().freeze())
            }
            Self::Ended => None,
        }
    }

    async fn collect(&mut self, all: &mut Data) {
        while let Some(chunk) = self.chunk().await {
            all.push(chunk);
        }
    }

    /// What has come, of at least one byte, with what is there already; empty at the end.
    async fn gather(&mut self) -> Data {
        let mut all = Data::default();
        let mut next = self.chunk().await;
        while let Some(chunk) = next {
            all.push(chunk);
            if all.len() >= GATHER {
                break;
            }
            next = self.chunk().now_or_never().flatten();
        }
        all
    }

    /// Whether the end was the server's word. The daemon's streams do not tell.
    fn is_complete(&self) -> bool {
        match self {
            Self::Channel(reader) => reader.is_complete(),
            Self::Socket(..) => false,
            Self::Ended => true,
        }
    }
}

/// What has come on one of two streams, and on which (1 or 2); empty at the end of both. Cancel-safe.
async fn either(one: &mut Incoming, two: &mut Incoming) -> (u8, Data) {
    let (stream, data) = tokio::select! {
        data = one.gather() => (1, data),
        data = two.gather() => (2, data),
    };
    match (stream, data.len()) {
        (1, 0) => (2, two.gather().await),
        (_, 0) => (1, one.gather().await),
        _ => (stream, data),
    }
}

/// A stream to the command.
pub(crate) enum Outgoing {
    Channel(ChannelWriter),
    Socket(UnixStream),
    /// It was ended.
    Ended,
}

impl Outgoing {
    async fn send(&mut self, data: Bytes) -> std::io::Result<()> {
        match self {
            Self::Channel(writer) => writer.send(data).await,
            Self::Socket(socket) => socket.write_all(&data).await,
            Self::Ended if data.is_empty() => Ok(()),
            Self::Ended => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Waits until nothing that was sent can be lost by closing.
    async fn drained(&self) -> std::io::Result<()> {
        match self {
            Self::Channel(writer) => writer.drained().await,
            Self::Socket(_) | Self::Ended => Ok(()),
        }
    }

    async fn finish(&mut self) -> std::io::Result<()> {
        match self {
            Self::Channel(writer) => {
                writer.finish();
                Ok(())
            }
            Self::Socket(socket) => socket.shutdown().await,
            Self::Ended => Ok(()),
        }
    }
}

/// What can be done to a session while it runs.
pub(crate) enum Control {
    Engine(SessionControl),
    /// A tunnel can only be closed.
    Tunnel(ChannelCloser),
    /// Of the daemon; dropped when the session is closed. Guarded while it is looked at.
    Daemon(StdMutex<Option<session::Control>>),
}

impl Control {
    fn request(&self, request: Request) {
        let Self::Daemon(control) = self else { return };
        if let Some(control) = &*control.lock().unwrap_or_else(PoisonError::into_inner) {
            control.send(request);
        }
    }

    fn signal(&self, name: &str) {
        match self {
            Self::Engine(control) => control.signal(name),
            Self::Tunnel(_) => {}
            Self::Daemon(_) => self.request(Request::Signal(name.into())),
        }
    }

    fn resize(&self, size: TerminalSize) {
        match self {
            Self::Engine(control) => control.resize(size),
            Self::Tunnel(_) => {}
            Self::Daemon(_) => {
                self.request(Request::Resize(size.columns, size.rows, size.width, size.height));
            }
        }
    }

    fn close(&self) {
        match self {
            Self::Engine(control) => control.close(),
            Self::Tunnel(closer) => closer.close(),
            Self::Daemon(control) => {
                control.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        }
    }

    /// Whether nothing of the session was sent to the server. Of the daemon's, the daemon knows.
    fn is_waiting(&self) -> bool {
        match self {
            Self::Engine(control) => control.is_waiting(),
            Self::Tunnel(_) | Self::Daemon(_) => false,
        }
    }
}

/// A session's start and end, which can be asked for any number of times.
pub(crate) struct Ending {
    source: Source,
    started: Option<Result<(), Failure>>,
    outcome: Option<Result<Status, Failure>>,
}

/// Who tells of start and end.
pub(crate) enum Source {
    Engine(SessionEnd),
    Daemon(session::End),
    /// A tunnel has begun when it is there, and has no status.
    Tunnel,
}

impl Ending {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            started: None,
            outcome: None,
        }
    }

    /// Waits until the server has confirmed the start.
    pub(crate) async fn started(&mut self) -> Result<(), Failure> {
        if self.started.is_none() {
            self.started = Some(match &mut self.source {
                Source::Engine(end) => end.started().await.map_err(Failure::from),
                Source::Daemon(end) => end.started().await.map_err(Failure::from),
                Source::Tunnel => Ok(()),
            });
        }
        self.started.clone().unwrap_or(Ok(()))
    }

    /// Waits for the end. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<Status, Failure> {
        if let Some(outcome) = &self.outcome {
            return outcome.clone();
        }
        let outcome = match &mut self.source {
            Source::Engine(end) => end
                .wait()
                .await
                .map(|status| told(&status))
                .map_err(Failure::from),
            Source::Daemon(end) => end.wait().await.map(told_by_daemon).map_err(Failure::from),
            Source::Tunnel => Err(Failure::closed("tunnel").after_start()),
        };
        self.outcome.insert(outcome).clone()
    }
}

fn told_by_daemon(exit: Exit) -> Status {
    told(&match exit {
        Exit::Status(status) => ExitStatus::Exited(status),
        Exit::Signal(signal, core_dumped) => ExitStatus::Signaled { signal, core_dumped },
        Exit::Unknown => ExitStatus::Unknown,
    })
}

fn told(status: &ExitStatus) -> Status {
    let signal = match status {
        ExitStatus::Signaled { signal, .. } => Some(signal.clone()),
        ExitStatus::Exited(_) | ExitStatus::Unknown => None,
    };
    (status.code(), signal)
}

/// A session, with streams that threads and tasks may use at the same time.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Session {
    inner: OfProcess<(Arc<Process>, Arc<Shared>)>,
}

/// Each lock is held while its stream is used: readers of one stream come one after the other.
struct Shared {
    stdin: Mutex<Outgoing>,
    stdout: Mutex<Incoming>,
    stderr: Mutex<Incoming>,
    control: Control,
    end: Mutex<Ending>,
}

impl Session {
    pub(crate) fn new(process: Arc<Process>, parts: Parts) -> Self {
        let Parts {
            stdin,
            stdout,
            stderr,
            control,
            end,
        } = parts;
        let shared = Shared {
            stdin: Mutex::new(stdin),
            stdout: Mutex::new(stdout),
            stderr: Mutex::new(stderr),
            control,
            end: Mutex::new(end),
        };
        Self {
            inner: OfProcess::new((process, Arc::new(shared))),
        }
    }

    /// Its input and output as one stream, for a connection to be made over it. It is of no other use afterwards.
    ///
    /// # Errors
    /// It is being used, was used up, or is the daemon's.
    pub(crate) fn take_stream(&self) -> PyResult<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
        let (_, shared) = self.inner.get()?;
        let unusable = || PyValueError::new_err("a channel to connect over must be open, and used by nobody");
        let mut stdin = shared.stdin.try_lock().map_err(|_| unusable())?;
        let mut stdout = shared.stdout.try_lock().map_err(|_| unusable())?;
        let taken = (
            std::mem::replace(&mut *stdin, Outgoing::Ended),
            std::mem::replace(&mut *stdout, Incoming::Ended),
        );
        match taken {
            (Outgoing::Channel(writer), Incoming::Channel(reader)) => Ok(tokio::io::join(reader, writer)),
            _ => Err(unusable()),
        }
    }
}

#[pymethods]
impl Session {
    /// Waits until the server has confirmed the start.
    fn started(&self) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let shared = shared.clone();
        Ok(Operation::new(process, async move {
            shared.end.lock().await.started().await
        }))
    }

    /// What has come on standard output (1) or standard error (2); empty at the end, which fails where the connection was
    /// lost. `None` when `limit` seconds are over before. Abandoning it loses nothing that has not been read.
    #[pyo3(signature = (stream, limit=None))]
    fn read(&self, stream: u8, limit: Option<f64>) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let (shared, limit) = (shared.clone(), duration(limit)?);
        Ok(Operation::new(process, async move {
            let read = async {
                let mut reader = match stream {
                    2 => shared.stderr.lock().await,
                    _ => shared.stdout.lock().await,
                };
                let data = reader.gather().await;
                let complete = reader.is_complete();
                drop(reader);
                if data.len() == 0 && !complete {
                    shared.end.lock().await.wait().await?;
                }
                Ok(data)
            };
            match limit {
                Some(limit) => tokio::time::timeout(limit, read).await.ok().transpose(),
                None => read.await.map(Some),
            }
        }))
    }

    /// What has come on either of them, and on which; empty at the end of both. Otherwise as [`Self::read`].
    #[pyo3(signature = (limit=None))]
    fn read_either(&self, limit: Option<f64>) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let (shared, limit) = (shared.clone(), duration(limit)?);
        Ok(Operation::new(process, async move {
            let read = async {
                let (mut stdout, mut stderr) = tokio::join!(shared.stdout.lock(), shared.stderr.lock());
                let (stream, data) = either(&mut stdout, &mut stderr).await;
                let complete = stdout.is_complete();
                drop((stdout, stderr));
                if data.len() == 0 && !complete {
                    shared.end.lock().await.wait().await?;
                }
                Ok((stream, data))
            };
            match limit {
                Some(limit) => tokio::time::timeout(limit, read).await.ok().transpose(),
                None => read.await.map(Some),
            }
        }))
    }

    /// Hands `data` to standard input, as soon as there is room. `through`: returns once all of it is on its way to the
    /// server, where closing the session does not lose it.
    #[pyo3(signature = (data, through=false))]
    fn write(&self, data: Vec<u8>, through: bool) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let shared = shared.clone();
        Ok(Operation::new(process, async move {
            let mut stdin = shared.stdin.lock().await;
            let mut sent = stdin.send(data.into()).await;
            if sent.is_ok() && through {
                sent = stdin.drained().await;
            }
            sent.map_err(|_| Failure::closed("command's standard input"))
        }))
    }

    /// Ends standard input behind what was written.
    fn finish(&self) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let shared = shared.clone();
        Ok(Operation::new(process, async move {
            // One that is closed already needs no end.
            let _ = shared.stdin.lock().await.finish().await;
            Ok(())
        }))
    }

    /// Waits for the end: status and signal. `None` when `limit` seconds are over before.
    #[pyo3(signature = (limit=None))]
    fn wait(&self, limit: Option<f64>) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let shared = shared.clone();
        let limit = duration(limit)?;
        Ok(Operation::new(process, async move {
            let wait = async { shared.end.lock().await.wait().await };
            match limit {
                Some(limit) => tokio::time::timeout(limit, wait).await.ok().transpose(),
                None => wait.await.map(Some),
            }
        }))
    }

    /// Gives it `input` and the end of it, reads all its output and waits for its end: status and signal, output, error
    /// output. When `limit` seconds are over before, there is no status, and the output is what had come.
    #[pyo3(signature = (input, limit=None))]
    fn communicate(&self, input: Option<Vec<u8>>, limit: Option<f64>) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let (shared, limit) = (shared.clone(), duration(limit)?);
        Ok(Operation::new(process, async move {
            let (mut output, mut error_output) = (Data::default(), Data::default());
            let ended = {
                let feed = async {
                    let mut stdin = shared.stdin.lock().await;
                    // A command that does not read its input is not an error.
                    if stdin.send(input.unwrap_or_default().into()).await.is_ok() {
                        let _ = stdin.finish().await;
                    }
                };
                let read = async {
                    let (mut stdout, mut stderr) = tokio::join!(shared.stdout.lock(), shared.stderr.lock());
                    tokio::join!(stdout.collect(&mut output), stderr.collect(&mut error_output));
                    shared.end.lock().await.wait().await
                };
                let whole = until(read, feed);
                match limit {
                    Some(limit) => tokio::time::timeout(limit, whole).await.ok(),
                    None => Some(whole.await),
                }
            };
            Ok((ended.transpose()?, output, error_output))
        }))
    }

    /// Sends a signal, by name without "SIG".
    fn signal(&self, name: &str) -> PyResult<()> {
        self.inner.get()?.1.control.signal(name);
        Ok(())
    }

    /// Tells of the terminal's new size.
    fn resize(&self, columns: u32, rows: u32) -> PyResult<()> {
        self.inner.get()?.1.control.resize(TerminalSize {
            columns,
            rows,
            width: 0,
            height: 0,
        });
        Ok(())
    }

    /// Closes the session now.
    fn close(&self) {
        if let Some((_, shared)) = self.inner.here() {
            shared.control.close();
        }
    }
}
