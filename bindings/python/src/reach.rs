//! [`Host`]: a destination, and the way to it: an engine of this process, or the daemon.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use trunkline::config::{ForwardAgent, Request, World};
use trunkline::transfer::Location;
use trunkline::{Command, Interaction, LaneStatus, Pty, TerminalSize};
use trunkline_daemon::client::Starter;
use trunkline_daemon::place::Place;
use trunkline_daemon::protocol::{self, Reply};

use crate::data::duration;
use crate::error::Failure;
use crate::forward::{Address, Forward};
use crate::operation::Operation;
use crate::process::{Engine, OfProcess, Process};
use crate::session::{Parts, Session};
use crate::sftp::{Copying, Sftp};

/// The surroundings in which destinations are understood: environment, working folder, umask. Many hosts share one.
#[pyclass(frozen, name = "World", module = "trunkline._native")]
pub(crate) struct Surroundings(Arc<World>);

#[pymethods]
impl Surroundings {
    /// This process's, read with the GIL held, under which Python changes its environment.
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Arc::new(World::current()?)))
    }
}

/// A destination.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Host {
    inner: OfProcess<(Arc<Process>, Arc<Reach>)>,
}

/// What Python says of a session to start: the command line, the shell (`None`), or the subsystem if the flag is set;
/// environment variables; TERM, columns and rows of a terminal.
#[derive(FromPyObject)]
pub(crate) struct Wanted {
    #[pyo3(item)]
    pub(crate) program: Option<Vec<u8>>,
    #[pyo3(item)]
    pub(crate) subsystem: bool,
    #[pyo3(item)]
    pub(crate) env: Vec<(String, Vec<u8>)>,
    #[pyo3(item)]
    pub(crate) terminal: Option<(String, u32, u32)>,
}

impl Wanted {
    /// The engine's form of it.
    pub(crate) fn command(&self) -> Command {
        let mut command = match (&self.program, self.subsystem) {
            (Some(name), true) => Command::subsystem(String::from_utf8_lossy(name)),
            (Some(line), false) => Command::exec(line.clone()),
            (None, _) => Command::shell(),
        };
        for (name, value) in &self.env {
            command = command.env(name, value.clone());
        }
        if let Some((term, columns, rows)) = &self.terminal {
            command = command.pty(Pty {
                term: term.clone(),
                size: terminal_size(*columns, *rows),
                modes: Vec::new(),
            });
        }
        command
    }
}

#[pymethods]
impl Host {
    /// `daemon`: `None` for an engine of this process; else the daemon, which is started with these arguments where none
    /// runs (never, when there are no arguments).
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
        let way = match daemon {
            None => Way::Engine {
                engine: engine.engine()?.clone(),
                host: OnceCell::new(),
            },
            Some(command) => Way::Daemon {
                place: Place::find(|name| std::env::var_os(name).map(PathBuf::from))
                    .map_err(|error| PyValueError::new_err(error.to_string()))?,
                starter: (!command.is_empty()).then_some(Starter::Command(command)),
                process: process.clone(),
            },
        };
        let reach = Reach {
            way,
            request,
            answers: ask.is_some(),
            interaction: crate::prompt::interaction(ask.map(|ask| ask.clone_ref(py)), None),
        };
        Ok(Self {
            inner: OfProcess::new((process.clone(), Arc::new(reach))),
        })
    }

    /// Connects, if nothing is connected yet.
    #[pyo3(signature = (limit=None))]
    fn connect(&self, limit: Option<f64>) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let (reach, limit) = (reach.clone(), duration(limit)?);
        Ok(Operation::new(process, async move {
            let Some(limit) = limit else {
                return reach.connect().await;
            };
            let timed_out = |_| {
                Err(Failure::from(trunkline::Error::Timeout {
                    doing: format!("connecting to {}", reach.request.destination.host),
                    after: limit,
                }))
            };
            tokio::time::timeout(limit, reach.connect())
                .await
                .unwrap_or_else(timed_out)
        }))
    }

    /// Runs a session to its end: status, signal, output, error output.
    #[pyo3(signature = (wanted, input, limit=None))]
    fn run(&self, wanted: Wanted, input: Option<Vec<u8>>, limit: Option<f64>) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let (reach, limit) = (reach.clone(), duration(limit)?);
        Ok(Operation::new(process, async move {
            let deadline = limit.map(|limit| (Instant::now() + limit, limit));
            let timed_out = |limit| {
                Failure::from(trunkline::Error::Timeout {
                    doing: "the command".into(),
                    after: limit,
                })
            };
            let with_input = input.is_some();
            let parts = match deadline {
                Some((at, limit)) => {
                    tokio::time::timeout_at(at, reach.start(&wanted, with_input, Some(limit)))
                        .await
                        .map_err(|_| timed_out(limit))?
                }
                None => reach.start(&wanted, with_input, None).await,
            }?;
            // The daemon keeps the time itself, because it knows how far the command came.
            let deadline = deadline.filter(|_| matches!(reach.way, Way::Engine { .. }));
            let input = input.map(Bytes::from).unwrap_or_default();
            let (status, stdout, stderr) = parts.output(input, deadline).await?;
            Ok((status.0, status.1, stdout, stderr))
        }))
    }

    /// Starts a session.
    fn start(&self, wanted: Wanted) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let (reach, process_of_session) = (reach.clone(), process.clone());
        Ok(Operation::new(process, async move {
            let parts = reach.start(&wanted, true, None).await?;
            Ok(Session::new(process_of_session, parts))
        }))
    }

    /// Opens an SFTP session.
    fn sftp(&self) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let (reach, process_of_session) = (reach.clone(), process.clone());
        Ok(Operation::new(process, async move {
            Ok(Sftp::new(process_of_session, reach.sftp().await?))
        }))
    }

    /// Copies to or from the host, over as many sessions as are worth having; see [`crate::sftp::copied`].
    fn copy(
        &self,
        sources: Vec<Vec<u8>>,
        target: Vec<u8>,
        upload: bool,
        options: Copying,
    ) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let reach = reach.clone();
        Ok(Operation::new(process, async move {
            match &reach.way {
                Way::Engine { engine, host } => {
                    let host = reach.host(engine, host).await?;
                    let there = |path: Vec<u8>| Location::Host(host.clone(), path.into());
                    crate::sftp::copied(sources, target, upload, options, there).await
                }
                Way::Daemon { .. } => {
                    let sftp = reach.sftp().await?;
                    let there = |path: Vec<u8>| Location::Session(sftp.clone(), path.into());
                    crate::sftp::copied(sources, target, upload, options, there).await
                }
            }
        }))
    }

    /// Starts a forwarding. The daemon's last as long as its client; they are made by an engine of this process.
    #[pyo3(signature = (remote, listen, target=None))]
    fn forward(&self, remote: bool, listen: Address, target: Option<Address>) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let (reach, process_of_forward) = (reach.clone(), process.clone());
        let (own, unresolved) = (process.engine().clone(), OnceCell::new());
        Ok(Operation::new(process, async move {
            let host = match &reach.way {
                Way::Engine { engine, host } => reach.host(engine, host).await?,
                Way::Daemon { .. } => reach.host(&own, &unresolved).await?,
            };
            let handle = crate::forward::start(host, remote, listen, target).await?;
            Ok(Forward::new(process_of_forward, handle))
        }))
    }

    /// User, host name and port, as ssh_config resolves them.
    fn resolve(&self) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let (reach, engine) = (reach.clone(), process.engine().clone());
        Ok(Operation::new(process, async move {
            let config = engine.resolve(&reach.request).await?;
            Ok((config.user.clone(), config.hostname.clone(), config.port))
        }))
    }

    /// Closes the connections to its account once what runs on them has ended, and tells how many they are. What is
    /// started from now on connects anew.
    fn disconnect(&self) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let reach = reach.clone();
        Ok(Operation::new(process, async move { reach.disconnect().await }))
    }

    /// Its connections, as names and values of each.
    fn lanes(&self) -> PyResult<Operation> {
        let (process, reach) = self.inner.get()?;
        let reach = reach.clone();
        Ok(Operation::new(process, async move { reach.lanes().await }))
    }
}

/// A destination and the way to it.
pub(crate) struct Reach {
    pub(crate) way: Way,
    pub(crate) request: Request,
    pub(crate) interaction: Interaction,
    /// Whether there is somebody to ask.
    pub(crate) answers: bool,
}

pub(crate) enum Way {
    Engine {
        engine: trunkline::Engine,
        /// Resolved when it is first needed.
        host: OnceCell<trunkline::Host>,
    },
    Daemon {
        place: Place,
        starter: Option<Starter>,
        /// Whose engine does it where the daemon stands elsewhere in the system.
        process: Arc<Process>,
    },
}

/// A connection as Python sees it: server, algorithms, round-trip time in seconds, sessions, tunnels, spares, busy, bytes
/// sent and received.
type Lane = (String, String, Option<f64>, u32, u32, usize, bool, u64, u64);

impl Reach {
    async fn host<'a>(
        &self,
        engine: &trunkline::Engine,
        host: &'a OnceCell<trunkline::Host>,
    ) -> Result<&'a trunkline::Host, Failure> {
        host.get_or_try_init(|| async { Ok(engine.host_for(&self.request, &self.interaction).await?) })
            .await
    }

    async fn connect(&self) -> Result<(), Failure> {
        let Way::Engine { engine, host } = &self.way else {
            let warm = protocol::Request::Warm {
                host: self.host_request(),
                pin: false,
            };
            return self.answer(&warm).await.map(drop);
        };
        let host = self.host(engine, host).await?;
        Ok(host.warm().await?)
    }

    /// Starts a session. `with_input`: else its standard input is empty. `limit` is for the daemon.
    async fn start(
        &self,
        wanted: &Wanted,
        with_input: bool,
        limit: Option<Duration>,
    ) -> Result<Parts, Failure> {
        let Way::Engine { engine, host } = &self.way else {
            return self.start_in_daemon(wanted, with_input, limit).await;
        };
        let host = self.host(engine, host).await?;
        let config = host.config();
        let mut command = wanted.command();
        for (name, value) in config.session_env(&self.request.world) {
            command = command.env(name, value);
        }
        command = command.agent_forwarding(config.forward_agent != ForwardAgent::No);
        Ok(Parts::from(host.start(&command).await?.into_parts()))
    }

    async fn sftp(&self) -> Result<trunkline::sftp::Sftp, Failure> {
        if let Way::Engine { engine, host } = &self.way {
            return Ok(self.host(engine, host).await?.sftp().await?);
        }
        let wanted = Wanted {
            program: Some(b"sftp".to_vec()),
            subsystem: true,
            env: Vec::new(),
            terminal: None,
        };
        let parts = self.start_in_daemon(&wanted, true, None).await?;
        crate::daemon::sftp_over(parts, &self.request.destination.host).await
    }

    async fn disconnect(&self) -> Result<usize, Failure> {
        if let Way::Engine { engine, host } = &self.way {
            let config = self.host(engine, host).await?.config();
            return Ok(engine.close(false, |other| config.is_same_account(other)));
        }
        let request = protocol::Request::Close {
            host: Some(self.host_request()),
            at_once: false,
        };
        match self.answer(&request).await? {
            Reply::Closed(closed) => Ok(closed),
            _ => Err(Failure::local("the daemon answered something else")),
        }
    }

    async fn lanes(&self) -> Result<Vec<Lane>, Failure> {
        if let Way::Engine { engine, host } = &self.way {
            return Ok(self.host(engine, host).await?.lanes().iter().map(lane).collect());
        }
        let request = protocol::Request::Explain(self.host_request());
        let Reply::Explained(explanation) = self.answer(&request).await? else {
            return Err(Failure::local("the daemon answered something else"));
        };
        Ok(explanation
            .connections
            .into_iter()
            .map(|report| {
                let rtt = report.rtt.map(|rtt| rtt.as_secs_f64());
                (
                    report.server,
                    report.algorithms,
                    rtt,
                    report.sessions,
                    report.tunnels,
                    report.spares,
                    report.busy,
                    report.sent,
                    report.received,
                )
            })
            .collect())
    }
}

fn lane(status: &LaneStatus) -> Lane {
    let (server, algorithms) = status.info.as_ref().map_or_else(Default::default, |info| {
        let algorithms = format!("{} {} {}", info.kex.name(), info.host_key_algorithm, info.cipher);
        (info.server.clone(), algorithms)
    });
    (
        server,
        algorithms,
        status.rtt.map(|rtt| rtt.as_secs_f64()),
        status.sessions,
        status.tunnels,
        status.spares,
        status.busy,
        status.bytes.0,
        status.bytes.1,
    )
}

fn terminal_size(columns: u32, rows: u32) -> TerminalSize {
    TerminalSize {
        columns,
        rows,
        width: 0,
        height: 0,
    }
}
