//! Where a command's work is done: in the daemon, or by an engine in this process.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use trunkline::config::World;
use trunkline::{Engine, MemoryPlace};
use trunkline_daemon::client::{self, Client, ClientError, Starter};
use trunkline_daemon::place::Place;
use trunkline_daemon::protocol::{HostRequest, Request, SessionRequest};

use crate::questions::Questions;
use crate::settings;

/// How long an engine in this process may take to end what it has under way.
const SETTLE: Duration = Duration::from_secs(2);

/// The daemon, or an engine of our own.
#[derive(Debug)]
pub(crate) struct Backend {
    no_daemon: bool,
    engine: OnceLock<Engine>,
    questions: Questions,
}

impl Backend {
    pub(crate) fn new(no_daemon: bool) -> Self {
        Self {
            no_daemon,
            engine: OnceLock::new(),
            questions: Questions::default(),
        }
    }

    /// The same, without the daemon.
    pub(crate) fn in_process(self) -> Self {
        Self {
            no_daemon: true,
            ..self
        }
    }

    /// Whether the engine is in this process.
    pub(crate) fn is_in_process(&self) -> bool {
        self.no_daemon || self.engine.get().is_some()
    }

    /// A connection for one request. Starts a daemon where one is wanted and none runs.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let place = place()?;
        if self.no_daemon {
            return Ok(client::to_engine(self.engine(&place)?.clone()).await?);
        }
        let starter = starter()?;
        client::connect_from_here(&place, Some(&starter), async || Ok(self.engine(&place)?.clone())).await
    }

    /// A connection on which a session has been asked for, which brings `fds`. Where there is an error, nothing was begun.
    pub(crate) async fn ask_for(
        &self,
        session: SessionRequest,
        fds: &[BorrowedFd<'_>],
    ) -> anyhow::Result<Client> {
        let place = place()?;
        let here = session.host.world.vantage.clone();
        let request = Request::Session(Box::new(session));
        if self.no_daemon {
            let client = client::to_engine(self.engine(&place)?.clone()).await?;
            client.send_with(&request, fds).await?;
            return Ok(client);
        }
        let starter = starter()?;
        let engine = async || Ok(self.engine(&place)?.clone());
        client::connect_from_here_with(&place, Some(&starter), &here, &request, fds, engine).await
    }

    /// A connection to a daemon that runs, of whatever version, to end it; `None` where there is none.
    pub(crate) async fn connect_to_stop(&self) -> anyhow::Result<Option<Client>> {
        match Client::connect_to_stop(&place()?).await {
            Ok(client) => Ok(Some(client)),
            Err(ClientError::NotRunning) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A connection to a daemon that runs, wherever it stands, to ask what it has; `None` where there is none.
    pub(crate) async fn connect_to_look(&self) -> anyhow::Result<Option<Client>> {
        match Client::connect_anywhere(&place()?).await {
            Ok(client) => Ok(Some(client)),
            Err(ClientError::NotRunning | ClientError::Gone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A connection to a daemon that runs; `None` where there is none that serves this process.
    pub(crate) async fn connect_if_running(&self) -> anyhow::Result<Option<Client>> {
        match Client::connect(&place()?, None).await {
            Ok(client) => Ok(Some(client)),
            Err(ClientError::NotRunning | ClientError::Gone | ClientError::Elsewhere(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What the command's hosts ask.
    pub(crate) fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Lets an engine in this process tell its servers that their sessions have ended.
    pub(crate) async fn settle(&self) {
        if let Some(engine) = self.engine.get() {
            engine.shut_down(SETTLE).await;
        }
    }

    /// The engine of this process.
    pub(crate) fn own_engine(&self) -> anyhow::Result<&Engine> {
        self.engine(&place()?)
    }

    fn engine(&self, place: &Place) -> anyhow::Result<&Engine> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = Engine::new(settings::load(&place.config)?, memory_place(place));
        Ok(self.engine.get_or_init(|| engine))
    }
}

/// This program as the daemon.
fn starter() -> anyhow::Result<Starter> {
    let program = std::env::current_exe().context("finding this program's path")?;
    Ok(Starter {
        command: vec![program.into(), "daemon".into(), "--detach".into()],
    })
}

/// Where host memory goes. It is a cache: without a place for it, only speed is lost.
pub(crate) fn memory_place(place: &Place) -> MemoryPlace {
    match place.make_state() {
        Ok(()) => MemoryPlace::Folder(place.state.clone()),
        Err(error) => {
            tracing::warn!("host memory is not kept: {error}");
            MemoryPlace::Process
        }
    }
}

/// Where this user's daemon is.
pub(crate) fn place() -> anyhow::Result<Place> {
    Ok(Place::find(|name| std::env::var_os(name).map(PathBuf::from))?)
}

/// A destination with this process's world.
pub(crate) fn host_request(destination: &str, ssh_args: Vec<OsString>) -> anyhow::Result<HostRequest> {
    let destination = destination
        .parse()
        .with_context(|| format!("{destination:?} is not a valid destination"))?;
    let world = World::current().context("reading the environment")?;
    Ok(HostRequest {
        destination,
        ssh_args,
        world,
    })
}

/// A runtime for a client: one thread is enough to wait with; an engine in the process gets more.
pub(crate) fn runtime(backend: &Backend) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = if backend.no_daemon {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.enable_all().build().context("starting the runtime")
}
