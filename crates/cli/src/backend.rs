//! Where a command's work is done: in the daemon, or in a private one that ends with the command.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

use anyhow::Context as _;
use trunkline_control::client::{Call, Client, ClientError, Starter};
use trunkline_control::place::Place;
use trunkline_control::private::Private;
use trunkline_control::protocol::{HostRequest, Reply, Request, SessionRequest};
use trunkline_request::{STRICT, World};

use crate::questions::Questions;
use crate::ssh_args::SshArgs;

/// The daemon, or a private one.
#[derive(Debug)]
pub(crate) struct Backend {
    no_daemon: bool,
    in_background: bool,
    private: OnceLock<Private>,
    /// That the shared daemon is not asked because it stands elsewhere.
    apart: OnceLock<String>,
    questions: Questions,
}

impl Backend {
    pub(crate) fn new(no_daemon: bool) -> Self {
        Self {
            no_daemon,
            in_background: false,
            private: OnceLock::new(),
            apart: OnceLock::new(),
            questions: Questions::default(),
        }
    }

    /// For a command in the background. Whoever reads its standard error waits for its end, and so a daemon of its own must not
    /// hold that.
    pub(crate) fn in_background(no_daemon: bool) -> Self {
        Self {
            in_background: true,
            ..Self::new(no_daemon)
        }
    }

    /// Whether the command has a daemon of its own.
    pub(crate) fn is_private(&self) -> bool {
        self.no_daemon || self.private.get().is_some()
    }

    fn is_apart(&self, error: &ClientError) {
        self.apart.get_or_init(|| error.to_string());
    }

    /// Why the shared daemon, which runs, was not asked: it stands elsewhere in the system.
    pub(crate) fn apart(&self) -> Option<String> {
        self.apart.get().cloned()
    }

    /// Whether the user wants it so (`--no-daemon`).
    pub(crate) fn is_told_to_be_private(&self) -> bool {
        self.no_daemon
    }

    /// A connection for one request. Starts a daemon where one is wanted and none runs.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        if self.no_daemon {
            return self.connect_privately().await;
        }
        match Client::connect(&place()?, Some(&Starter::Installed)).await {
            Err(error @ ClientError::Elsewhere(_)) if !must_share() => {
                self.is_apart(&error);
                self.connect_privately().await
            }
            other => Ok(other?),
        }
    }

    /// Whether what a command line of ssh's asks for is to be done over a shared connection or not at all: because the
    /// environment says so, or config.toml has patterns of such hosts, which the daemon knows of.
    pub(crate) fn must_share(&self, args: &SshArgs) -> anyhow::Result<bool> {
        if must_share() {
            return Ok(true);
        }
        if !has_strict_hosts()? {
            return Ok(false);
        }
        let destination = args.destination.to_string_lossy();
        let host = host_request(&destination, args.config_args.clone())?;
        let reply = runtime()?.block_on(async {
            let mut client = self.connect_to_shared().await?;
            client.send(&Request::MustShare(host)).await?;
            anyhow::Ok(client.next().await?)
        });
        match reply? {
            Reply::MustShare(must) => Ok(must),
            Reply::Failed(failure) => anyhow::bail!(failure.message),
            other => anyhow::bail!("unexpected reply from the daemon: {other:?}"),
        }
    }

    /// A connection to the shared daemon, which is started where none runs: for what nobody else can do.
    pub(crate) async fn connect_to_shared(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&place()?, Some(&Starter::Installed)).await?)
    }

    /// A connection on which a session has been asked for, which brings `fds`. Where there is an error, nothing was begun.
    pub(crate) async fn ask_for(
        &self,
        session: SessionRequest,
        fds: &[BorrowedFd<'_>],
    ) -> anyhow::Result<Client> {
        let here = session.host.world.vantage.clone();
        let request = Request::Session(Box::new(session));
        if !self.no_daemon {
            let starter = Some(&Starter::Installed);
            match Client::connect_with(&place()?, starter, &here, &request, fds).await {
                Err(error @ ClientError::Elsewhere(_)) if !must_share() => self.is_apart(&error),
                other => return Ok(other?),
            }
        }
        let client = self.connect_privately().await?;
        client.send_with(&request, fds).await?;
        Ok(client)
    }

    /// The same without a runtime, of the shared daemon. `None` where that takes more than asking, and nothing was begun.
    pub(crate) fn call(
        &self,
        session: SessionRequest,
        fds: &[BorrowedFd<'_>],
    ) -> anyhow::Result<Option<Call>> {
        if self.is_private() {
            return Ok(None);
        }
        let here = session.host.world.vantage.clone();
        Ok(Call::begin(
            &place()?,
            &here,
            &Request::Session(Box::new(session)),
            fds,
        )?)
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
            Err(ClientError::NotRunning | ClientError::Gone) => Ok(None),
            Err(error @ ClientError::Elsewhere(_)) => {
                self.is_apart(&error);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A connection for what needs no connections to hosts: to the daemon that runs, else to a private one.
    pub(crate) async fn connect_in_passing(&self) -> anyhow::Result<Client> {
        match self.connect_if_running().await? {
            Some(client) if !self.no_daemon => Ok(client),
            _ => self.connect_privately().await,
        }
    }

    /// A connection to a daemon of the command's own.
    pub(crate) async fn connect_privately(&self) -> anyhow::Result<Client> {
        if self.private.get().is_none() {
            let log = match self.in_background {
                true => Stdio::null(),
                false => Stdio::inherit(),
            };
            let private = Private::start(log)?;
            self.private.get_or_init(|| private);
        }
        let private = self
            .private
            .get()
            .context("the private daemon was just started")?;
        Ok(private.connect().await?)
    }

    /// What the command's hosts ask.
    pub(crate) fn questions(&self) -> &Questions {
        &self.questions
    }
}

/// Whether the user wants shared connections or none, for every host.
pub(crate) fn must_share() -> bool {
    std::env::var_os(STRICT).is_some_and(|value| value == "1")
}

/// Whether config.toml may have patterns of hosts of which the user wants that. The daemon reads them; where it cannot be
/// asked, this is what is known.
pub(crate) fn has_strict_hosts() -> anyhow::Result<bool> {
    match std::fs::read_to_string(&place()?.config) {
        Ok(text) => Ok(text
            .lines()
            .any(|line| line.contains("strict_hosts") && !line.trim_start().starts_with('#'))),
        // No file, or no folder for it.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error).context("reading config.toml"),
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
        answers_at_hand: false,
    })
}

/// A runtime for a client: one thread is enough to wait with.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("starting the runtime")
}
