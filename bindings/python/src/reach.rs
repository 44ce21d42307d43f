//! [`Host`]: a destination, and the way to it: an engine of this process, or the daemon.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::sync::OnceCell;
use trunkline::config::{Request, World};
use trunkline::transfer::Location;
use trunkline::{Pty, TerminalSize};
use trunkline_embed::{
    ConnectionReport, Destination, Handshake, Preference, Program, ProgramEngine, Route, SessionOptions,
    Starter, Way,
};

use crate::data::{Data, duration};
use crate::error::Failure;
use crate::forward::{Address, Forward};
use crate::operation::Operation;
use crate::process::{Engine, OfProcess, Process};
use crate::session::{Session, status_for_python};
use crate::sftp::{Copying, Sftp};

/// The surroundings in which destinations are understood: environment, working directory, umask. Many hosts share one.
#[pyclass(frozen, name = "World", module = "trunkline._native")]
pub(crate) struct Surroundings(Arc<World>);

#[pymethods]
impl Surroundings {
    /// This process's, read with the GIL held, under which Python changes its environment.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let process = Process::current(py)?;
        Ok(Self(process.worlds.share(World::current()?)))
    }
}

/// A destination.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Host {
    inner: OfProcess<(Arc<Process>, Arc<Reach>)>,
}

/// Python's description of a session to start: the command line, the shell (`None`), or the subsystem if the flag is
/// set; environment variables; TERM, columns, rows, width and height of a terminal.
#[derive(FromPyObject)]
pub(crate) struct SessionSpec {
    #[pyo3(item)]
    pub(crate) program: Option<Vec<u8>>,
    #[pyo3(item)]
    pub(crate) subsystem: bool,
    #[pyo3(item)]
    pub(crate) env: Vec<(String, Vec<u8>)>,
    #[pyo3(item)]
    pub(crate) terminal: Option<(String, u32, u32, u32, u32)>,
}

impl From<SessionSpec> for SessionOptions {
    fn from(wanted: SessionSpec) -> Self {
        let program = match (wanted.program, wanted.subsystem) {
            (Some(name), true) => Program::Subsystem(String::from_utf8_lossy(&name).into_owned()),
            (Some(line), false) => Program::Exec(line),
            (None, _) => Program::Shell,
        };
        let pty = wanted.terminal.map(|(term, columns, rows, width, height)| Pty {
            term,
            size: TerminalSize {
                columns,
                rows,
                width,
                height,
            },
            modes: Vec::new(),
        });
        Self {
            env: wanted.env,
            pty,
            ..Self::new(program)
        }
    }
}

#[pymethods]
impl Host {
    /// `daemon`: `None` for an engine of this process; else the daemon, which is started with these arguments where none
    /// runs. Without arguments, the daemon where one runs, and the engine elsewhere.
    #[new]
    #[pyo3(signature = (engine, world, destination, ssh_args, ask=None, daemon=None))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        world: &Surroundings,
        destination: &str,
        ssh_args: Vec<OsString>,
        ask: Option<Py<PyAny>>,
        daemon: Option<Vec<OsString>>,
    ) -> PyResult<Self> {
        let process = engine.process()?;
        let destination = destination.parse().map_err(|error| {
            PyValueError::new_err(format!("{destination:?} is not a valid destination: {error}"))
        })?;
        let mut request = Request::new(destination, world.0.clone());
        request.ssh_args = ssh_args;
        let preference = match daemon {
            None => Preference::Engine,
            Some(command) if command.is_empty() => Preference::RunningDaemon,
            Some(command) => Preference::Daemon(Starter::Command(command)),
        };
        let reach = Reach {
            process: process.clone(),
            engine: engine.apart_from_process()?,
            destination: Destination {
                request,
                preference,
                answers: ask.is_some(),
                on_behalf: None,
                interaction: crate::prompt::interaction(ask.map(|ask| ask.clone_ref(py)), None),
            },
            way: OnceCell::new(),
        };
        Ok(Self {
            inner: OfProcess::new((process.clone(), Arc::new(reach))),
        })
    }

    /// Connects, if nothing is connected yet.
    #[pyo3(signature = (limit=None))]
    fn connect(&self, limit: Option<f64>) -> PyResult<Operation> {
        let limit = duration(limit)?;
        self.inner.operation(|_, reach| async move {
            let Some(limit) = limit else {
                return Ok(reach.way().await?.connect().await?);
            };
            let timed_out = |_| {
                Err(Failure::from(trunkline::Error::Timeout {
                    doing: format!("connecting to {}", reach.destination.request.destination.host).into(),
                    after: limit,
                }))
            };
            let connect = async { Ok(reach.way().await?.connect().await?) };
            tokio::time::timeout(limit, connect)
                .await
                .unwrap_or_else(timed_out)
        })
    }

    /// Runs a session to its end: status, signal, output, error output.
    #[pyo3(signature = (wanted, input, limit=None))]
    fn run(&self, wanted: SessionSpec, input: Option<Vec<u8>>, limit: Option<f64>) -> PyResult<Operation> {
        let limit = duration(limit)?;
        let (options, input) = (SessionOptions::from(wanted), input.map(Into::into));
        self.inner.operation(|_, reach| async move {
            let ran = reach.way().await?.run(&options, input, limit).await;
            let (stdout, stderr) = (Data::from(ran.stdout), Data::from(ran.stderr));
            match ran.outcome {
                Ok(status) => {
                    let (code, signal) = status_for_python(&status);
                    Ok((code, signal, stdout, stderr))
                }
                Err(failure) => Err(Failure::from(failure).with_output(stdout.into_vec(), stderr.into_vec())),
            }
        })
    }

    /// Starts a session.
    fn start(&self, wanted: SessionSpec) -> PyResult<Operation> {
        self.inner.operation(|process, reach| async move {
            let session = reach.way().await?.session(&wanted.into(), ALL_OF_PYTHON).await?;
            Ok(Session::new(process, session))
        })
    }

    /// Opens an SFTP session.
    fn sftp(&self) -> PyResult<Operation> {
        self.inner.operation(|process, reach| async move {
            Ok(Sftp::new(process, reach.way().await?.sftp().await?))
        })
    }

    /// Copies to or from the host, over as many sessions as are worth having; see [`crate::sftp::copied`].
    fn copy(
        &self,
        sources: Vec<Vec<u8>>,
        target: Vec<u8>,
        upload: bool,
        options: Copying,
    ) -> PyResult<Operation> {
        self.inner.operation(|_, reach| async move {
            let way = reach.way().await?;
            if let Some(host) = way.host() {
                let there = |path: Vec<u8>| Location::Host(host.clone(), path.into());
                return crate::sftp::copy_files(sources, target, upload, options, there, Some(way)).await;
            }
            let sftp = way.sftp().await?;
            let there = |path: Vec<u8>| Location::Session(sftp.clone(), path.into());
            crate::sftp::copy_files(sources, target, upload, options, there, None).await
        })
    }

    /// Starts a forwarding. The daemon's last as long as its client; they are made by an engine of this process.
    #[pyo3(signature = (remote, listen, target=None))]
    fn forward(&self, remote: bool, listen: Address, target: Option<Address>) -> PyResult<Operation> {
        self.inner.operation(|process, reach| async move {
            let unshared;
            let shared = reach.way().await?;
            let way = match shared.host() {
                Some(_) => shared,
                None => {
                    unshared = Way::through_engine(&reach.destination, reach.engine().await?).await?;
                    &unshared
                }
            };
            let forwarding = crate::forward::start(way, remote, listen, target).await?;
            Ok(Forward::new(process, forwarding))
        })
    }

    /// User, host name and port, as ssh_config resolves them.
    fn resolve(&self) -> PyResult<Operation> {
        self.inner.operation(|_, reach| async move {
            let config = reach.engine().await?.resolve(&reach.destination.request).await?;
            Ok((config.user.clone(), config.hostname.clone(), config.port))
        })
    }

    /// Closes the connections to its account once what runs on them has ended, and tells how many they are. What is
    /// started from now on connects anew.
    fn disconnect(&self) -> PyResult<Operation> {
        self.inner
            .operation(|_, reach| async move { Ok(reach.way().await?.disconnect().await?) })
    }

    /// Its connections, as names and values of each.
    fn lanes(&self) -> PyResult<Operation> {
        self.inner.operation(|_, reach| async move {
            let connections = reach.way().await?.connections().await?;
            Ok(connections.into_iter().map(lane).collect::<Vec<_>>())
        })
    }
}

/// No stream passes Python by.
pub(crate) const ALL_OF_PYTHON: [Route; 3] = [Route::Pipe, Route::Pipe, Route::Pipe];

/// A destination and the way to it.
struct Reach {
    process: Arc<Process>,
    /// `None`: the process's own.
    engine: Option<ProgramEngine>,
    destination: Destination,
    /// Found when it is first needed.
    way: OnceCell<Way>,
}

impl Reach {
    async fn way(&self) -> Result<&Way, Failure> {
        let find = || Way::find(&self.destination, async || self.engine().await);
        Ok(self.way.get_or_try_init(find).await?)
    }

    /// The engine, which is made when it is first needed.
    async fn engine(&self) -> Result<ProgramEngine, trunkline_embed::Failure> {
        if let Some(engine) = &self.engine {
            return Ok(engine.clone());
        }
        if let Some(engine) = self.process.made_engine() {
            return Ok(engine.clone());
        }
        // Python is waited for where that holds up no connection.
        let process = self.process.clone();
        let engine = move || Python::attach(|_| process.engine().cloned());
        tokio::task::spawn_blocking(engine).await.unwrap_or_else(|_| {
            let kind = trunkline_embed::ErrorKind::Local;
            Err(trunkline_embed::Failure::new(kind, "the interpreter is ending"))
        })
    }
}

/// A connection as Python sees it: server, algorithms, round-trip time in seconds, sessions, tunnels, spares, busy,
/// silent, bytes sent and received.
type Lane = (String, String, Option<f64>, u32, u32, usize, bool, bool, u64, u64);

fn lane(connection: ConnectionReport) -> Lane {
    let agreed = |Handshake {
                      server,
                      kex,
                      host_key,
                      cipher,
                      ..
                  }| (server, format!("{kex} {host_key} {cipher}"));
    let (server, algorithms) = connection.handshake.map(agreed).unwrap_or_default();
    (
        server,
        algorithms,
        connection.rtt.map(|rtt| rtt.as_secs_f64()),
        connection.sessions,
        connection.tunnels,
        connection.spares,
        connection.busy,
        connection.silent,
        connection.sent,
        connection.received,
    )
}
