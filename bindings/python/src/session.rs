//! [`Session`]: a command that runs on a server, or a tunnel through it, whoever holds the connection.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use trunkline::{ExitStatus, TerminalSize};
use trunkline_embed::{Control, End, Input, Output, Reader, Tunnel, Writer};

use crate::data::{Data, duration};
use crate::error::Failure;
use crate::operation::{Operation, turn};
use crate::process::{OfProcess, Process};

/// The end of a command: its status as a shell would show it, and the signal's name without "SIG".
pub(crate) type Status = (u32, Option<String>);

/// As Python is told of it.
pub(crate) fn status_for_python(status: &ExitStatus) -> Status {
    let signal = match status {
        ExitStatus::Signaled { signal, .. } => Some(signal.clone()),
        ExitStatus::Exited(_) | ExitStatus::Unknown => None,
    };
    (status.code(), signal)
}

/// Returns the received data, of at least one byte; empty at the end.
async fn gather(stream: &mut Stream) -> Data {
    if stream.kept.is_empty() {
        stream.reader.chunks(&mut stream.kept).await;
    }
    std::mem::take(&mut stream.kept).into()
}

/// Returns the received data of one of two streams, and which one (1 or 2); empty at the end of both. Cancel-safe.
async fn either(one: &mut Stream, two: &mut Stream) -> (u8, Data) {
    let (stream, data) = tokio::select! {
        data = gather(one) => (1, data),
        data = gather(two) => (2, data),
    };
    match (stream, data.len()) {
        (1, 0) => (2, gather(two).await),
        (_, 0) => (1, gather(one).await),
        _ => (stream, data),
    }
}

/// Waits for the end: status and signal.
async fn wait_for_end(end: &Mutex<End>) -> Result<Status, Failure> {
    Ok(status_for_python(&end.lock().await.wait().await?))
}

/// The size of one write if it has a time limit.
const PIECE: usize = 256 * 1024;

/// Returns the result of `work` within `limit`.
async fn limit_time<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, work).await.ok(),
        None => Some(work.await),
    }
}

/// Writes what the server's window has room for, and waits until it has room; `None` where it has none within `limit`.
async fn write_some(
    turn: impl Future<Output = OwnedMutexGuard<Writer>>,
    data: Vec<u8>,
    limit: Option<Duration>,
) -> io::Result<Option<usize>> {
    let Some(mut stdin) = limit_time(limit, turn).await else {
        return Ok(None);
    };
    // What the window has now is known whatever the limit is.
    let mut room = stdin.window(false).await?;
    if room == 0 {
        match limit_time(limit, stdin.window(true)).await {
            Some(found) => room = found?,
            None => return Ok(None),
        }
    }
    let most = limit.map_or(usize::MAX, |_| PIECE);
    let piece = Bytes::from(data);
    let piece = piece.slice(..piece.len().min(room).min(most));
    let len = piece.len();
    stdin.send(piece).await?;
    // One that ends meanwhile has had its chance to read.
    let _ = limit_time(limit, stdin.wait_until_sent()).await;
    Ok(Some(len))
}

/// A session, with streams that threads and tasks may use at the same time.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Session {
    inner: OfProcess<(Arc<Process>, Arc<Shared>)>,
}

/// Each lock is held while its stream is used: readers of one stream come one after the other.
struct Shared {
    stdin: Arc<Mutex<Writer>>,
    stdout: Arc<Mutex<Stream>>,
    stderr: Arc<Mutex<Stream>>,
    control: Control,
    end: Mutex<End>,
    /// Writes the input that [`Session::communicate`] was given, once it was; who waits for the outputs may give up meanwhile.
    feed: std::sync::Mutex<Option<JoinSet<()>>>,
}

/// One of the outputs.
struct Stream {
    reader: Reader,
    /// The data that [`Session::communicate`] has read, to be read first.
    kept: Vec<Bytes>,
}

impl From<Reader> for Stream {
    fn from(reader: Reader) -> Self {
        let kept = Vec::new();
        Self { reader, kept }
    }
}

impl Stream {
    /// Keeps all that comes, up to the end.
    async fn gather_all(&mut self) {
        while self.reader.chunks(&mut self.kept).await > 0 {}
    }
}

impl Session {
    /// A session whose streams are all the program's.
    pub(crate) fn new(process: Arc<Process>, session: trunkline_embed::Session) -> Self {
        let trunkline_embed::Session {
            stdin,
            stdout,
            stderr,
            control,
            end,
        } = session;
        let stdin = match stdin {
            Input::Program(writer) => writer,
            Input::Routed(_) => Writer::at_end(),
        };
        let reader = |output| match output {
            Output::Program(reader) => reader,
            Output::Routed(_) => Reader::at_end(),
        };
        Self::from_parts(process, stdin, [reader(stdout), reader(stderr)], control, end)
    }

    /// A tunnel, which has no standard error.
    pub(crate) fn tunnel(process: Arc<Process>, tunnel: Tunnel) -> Self {
        let Tunnel {
            reader,
            writer,
            control,
            end,
        } = tunnel;
        Self::from_parts(process, writer, [reader, Reader::at_end()], control, end)
    }

    fn from_parts(
        process: Arc<Process>,
        stdin: Writer,
        outputs: [Reader; 2],
        control: Control,
        end: End,
    ) -> Self {
        let [stdout, stderr] = outputs;
        let shared = Shared {
            stdin: Arc::new(Mutex::new(stdin)),
            stdout: Arc::new(Mutex::new(stdout.into())),
            stderr: Arc::new(Mutex::new(stderr.into())),
            control,
            end: Mutex::new(end),
            feed: std::sync::Mutex::default(),
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
        let writer = std::mem::replace(&mut *stdin, Writer::at_end());
        let reader = std::mem::replace(&mut stdout.reader, Reader::at_end());
        trunkline_embed::join(reader, writer).ok_or_else(unusable)
    }
}

#[pymethods]
impl Session {
    /// Waits until the server has confirmed the start.
    fn started(&self) -> PyResult<Operation> {
        self.inner
            .operation(|_, shared| async move { Ok(shared.end.lock().await.wait_for_start().await?) })
    }

    /// Returns the received data of standard output (1) or standard error (2); empty at the end, which fails if the
    /// connection was lost. `None` when `limit` seconds are over before. Abandoning it loses nothing that has not been
    /// read.
    #[pyo3(signature = (stream, limit=None))]
    fn read(&self, stream: u8, limit: Option<f64>) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let (shared, limit) = (shared.clone(), duration(limit)?);
        let turn = turn(if stream == 2 {
            &shared.stderr
        } else {
            &shared.stdout
        });
        Ok(Operation::new(process, async move {
            let read = async {
                let mut reader = turn.await;
                let data = gather(&mut reader).await;
                if data.len() == 0 && !reader.reader.is_complete().await {
                    drop(reader);
                    wait_for_end(&shared.end).await?;
                }
                Ok(data)
            };
            match limit {
                Some(limit) => tokio::time::timeout(limit, read).await.ok().transpose(),
                None => read.await.map(Some),
            }
        }))
    }

    /// Returns the received data of either of them, and which one; empty at the end of both. Otherwise as
    /// [`Self::read`].
    #[pyo3(signature = (limit=None))]
    fn read_either(&self, limit: Option<f64>) -> PyResult<Operation> {
        let limit = duration(limit)?;
        self.inner.operation(|_, shared| async move {
            let read = async {
                let (mut stdout, mut stderr) = tokio::join!(shared.stdout.lock(), shared.stderr.lock());
                let (stream, data) = either(&mut stdout, &mut stderr).await;
                if data.len() == 0 && !stdout.reader.is_complete().await {
                    drop((stdout, stderr));
                    wait_for_end(&shared.end).await?;
                }
                Ok((stream, data))
            };
            match limit {
                Some(limit) => tokio::time::timeout(limit, read).await.ok().transpose(),
                None => read.await.map(Some),
            }
        })
    }

    /// Hands `data` to standard input, as soon as there is room. `through`: returns once all of it is on its way to the
    /// server, where closing the session does not lose it, and fails if the command had ended before. One that ends
    /// meanwhile has had its chance to read.
    #[pyo3(signature = (data, through=false))]
    fn write(&self, data: Vec<u8>, through: bool) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let turn = turn(&shared.stdin);
        Ok(Operation::new(process, async move {
            let mut stdin = turn.await;
            let mut sent = Ok(());
            if through {
                sent = stdin.wait_until_sent().await;
            }
            if sent.is_ok() {
                sent = stdin.send(data.into()).await;
            }
            if through && sent.is_ok() {
                let _ = stdin.wait_until_sent().await;
            }
            sent.map_err(|_| Failure::closed_locally("command's standard input"))
        }))
    }

    /// Hands over as much of `data` as the server takes, once it takes some, and returns how much when that is on its way.
    /// `None` when `limit` seconds are over before; then nothing was handed over.
    #[pyo3(signature = (data, limit=None))]
    fn write_some(&self, data: Vec<u8>, limit: Option<f64>) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let (turn, limit) = (turn(&shared.stdin), duration(limit)?);
        Ok(Operation::new(process, async move {
            let written = write_some(turn, data, limit).await;
            written.map_err(|_| Failure::closed_locally("command's standard input"))
        }))
    }

    /// Returns the number of bytes that [`Self::write_some`] would take at once; 0 while somebody else writes.
    fn window(&self) -> PyResult<Operation> {
        self.inner.operation(|_, shared| async move {
            let window = match shared.stdin.try_lock() {
                Ok(stdin) => stdin.window(false).await,
                Err(_) => Ok(0),
            };
            window.map_err(|_| Failure::closed_locally("command's standard input"))
        })
    }

    /// Ends standard input behind what was written.
    fn finish(&self) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let turn = turn(&shared.stdin);
        Ok(Operation::new(process, async move {
            turn.await.finish().await;
            Ok(())
        }))
    }

    /// Waits for the end: status and signal. `None` when `limit` seconds are over before.
    #[pyo3(signature = (limit=None))]
    fn wait(&self, limit: Option<f64>) -> PyResult<Operation> {
        let limit = duration(limit)?;
        self.inner.operation(|_, shared| async move {
            let wait = wait_for_end(&shared.end);
            match limit {
                Some(limit) => tokio::time::timeout(limit, wait).await.ok().transpose(),
                None => wait.await.map(Some),
            }
        })
    }

    /// Waits until it is known how the command ended, which may be before the session's end: its exit status, or -1 if it
    /// has none. `None` when `limit` seconds are over before.
    #[pyo3(signature = (limit=None))]
    fn exited(&self, limit: Option<f64>) -> PyResult<Operation> {
        let limit = duration(limit)?;
        self.inner.operation(|_, shared| async move {
            let exited = async {
                let status = shared.end.lock().await.wait_for_exit().await?;
                Ok::<_, Failure>(match status {
                    ExitStatus::Exited(code) => i64::from(code),
                    ExitStatus::Signaled { .. } | ExitStatus::Unknown => -1,
                })
            };
            match limit {
                Some(limit) => tokio::time::timeout(limit, exited).await.ok().transpose(),
                None => exited.await.map(Some),
            }
        })
    }

    /// Gives it `input` and the end of it, gathers all its output, to be read afterwards, and waits for its end: status and
    /// signal. `None` when `limit` seconds are over before; it can be called again then, and after it was abandoned, without
    /// input: what is left of the input is still written.
    #[pyo3(signature = (input, limit=None))]
    fn communicate(&self, input: Option<Vec<u8>>, limit: Option<f64>) -> PyResult<Operation> {
        let (process, shared) = self.inner.get()?;
        let (shared, limit) = (shared.clone(), duration(limit)?);
        let mut feed = shared.feed.lock().unwrap_or_else(PoisonError::into_inner);
        if feed.is_none() {
            let (turn, input) = (turn(&shared.stdin), input.unwrap_or_default());
            let write = async move {
                let mut stdin = turn.await;
                // A command that does not read its input is not an error, and has it for as long as it runs.
                if stdin.send(input.into()).await.is_ok() {
                    stdin.finish().await;
                }
            };
            feed.insert(JoinSet::new())
                .spawn_on(write, process.runtime.handle());
        } else if input.is_some_and(|input| !input.is_empty()) {
            return Err(PyValueError::new_err(
                "input was given, or ended, by an earlier call of communicate",
            ));
        }
        drop(feed);
        Ok(Operation::new(process, async move {
            let whole = async {
                let (mut stdout, mut stderr) = tokio::join!(shared.stdout.lock(), shared.stderr.lock());
                tokio::join!(stdout.gather_all(), stderr.gather_all());
                drop((stdout, stderr));
                wait_for_end(&shared.end).await
            };
            limit_time(limit, whole).await.transpose()
        }))
    }

    /// Sends a signal, by name without "SIG".
    fn signal(&self, name: &str) -> PyResult<()> {
        self.inner.get()?.1.control.signal(name);
        Ok(())
    }

    /// Tells of the terminal's new size.
    fn resize(&self, columns: u32, rows: u32, width: u32, height: u32) -> PyResult<()> {
        self.inner.get()?.1.control.resize(TerminalSize {
            columns,
            rows,
            width,
            height,
        });
        Ok(())
    }

    /// Makes standard error a part of standard output, or not, from what comes next on. Not over the daemon.
    fn merge_stderr(&self, merge: bool) -> PyResult<()> {
        self.inner.get()?.1.control.merge_stderr(merge);
        Ok(())
    }

    /// Returns whether the server has ended what it sends, all of which need not have been read.
    fn has_heard_end(&self) -> bool {
        self.inner
            .here()
            .is_some_and(|(_, shared)| shared.control.has_heard_end())
    }

    /// Closes the session now.
    fn close(&self) {
        if let Some((_, shared)) = self.inner.here() {
            shared.control.close();
        }
    }
}
