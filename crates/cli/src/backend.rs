//! The daemon of a command: the shared one, or a private one that ends with the command.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

use anyhow::Context as _;
use trunkline_control::client::{Call, Client, ClientError, Starter};
use trunkline_control::lent::Lending;
use trunkline_control::place::{Place, PlaceError};
use trunkline_control::private::Private;
use trunkline_control::protocol::{HostRequest, Reply, Request, SessionRequest};
use trunkline_request::destination::Destination;
use trunkline_request::own::OwnError;
use trunkline_request::{STRICT, World};

use crate::hints::Refused;
use crate::questions::Questions;
use crate::ssh_args::SshArgs;

/// The shared daemon, or a private one.
#[derive(Debug)]
pub struct Backend {
    no_daemon: bool,
    in_background: bool,
    private: OnceLock<Private>,
    /// The reason why the shared daemon is not used: it runs in another namespace.
    apart: OnceLock<String>,
    questions: Questions,
}

/// The daemon that a command connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Daemon {
    /// The shared one, which is started if needed. A private one if the user wants that (`--no-daemon`) or the shared
    /// one runs in another namespace.
    Usual,
    /// The shared one, which is started if needed: for work that no other can do.
    Shared,
    /// The shared one if it runs, else a private one: for work that needs no connections to hosts.
    InPassing,
    /// A private one.
    Own,
}

/// A running shared daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Running {
    /// One that serves this process.
    Here,
    /// One that may run in another namespace, to ask for its state.
    Anywhere,
    /// One of any version, to stop it.
    OfAnyVersion,
}

/// Starts a shared daemon if none runs.
const STARTED: Option<&Starter> = Some(&Starter::Installed);

impl Backend {
    /// Makes a backend. With `no_daemon`, the user wants a private daemon.
    pub fn new(no_daemon: bool) -> Self {
        Self {
            no_daemon,
            in_background: false,
            private: OnceLock::new(),
            apart: OnceLock::new(),
            questions: Questions::default(),
        }
    }

    /// Makes a backend for a command in the background. A private daemon must not hold its standard error, whose reader
    /// waits for the end.
    pub(crate) fn in_background(no_daemon: bool) -> Self {
        Self {
            in_background: true,
            ..Self::new(no_daemon)
        }
    }

    /// Returns true if the command has a private daemon.
    pub(crate) fn is_private(&self) -> bool {
        self.no_daemon || self.private.get().is_some()
    }

    fn note_apart(&self, error: &ClientError) {
        self.apart.get_or_init(|| error.to_string());
    }

    /// Returns the reason why the running shared daemon was not used: it is in another namespace.
    pub(crate) fn reason_not_asked(&self) -> Option<String> {
        self.apart.get().cloned()
    }

    /// Returns true if the user asked for a private daemon (`--no-daemon`).
    pub(crate) fn is_told_to_be_private(&self) -> bool {
        self.no_daemon
    }

    /// Returns a connection for one request.
    pub(crate) async fn connect(&self, to: Daemon) -> anyhow::Result<Client> {
        let shared = match to {
            Daemon::Shared => return Ok(self.at_terminal(Client::connect(&place()?, STARTED).await?)),
            Daemon::Usual if !self.no_daemon => {
                self.unless_apart(Client::connect(&place()?, STARTED).await)?
            }
            Daemon::InPassing if !self.no_daemon => self.find(Running::Here).await?,
            Daemon::Usual | Daemon::InPassing | Daemon::Own => None,
        };
        match shared {
            Some(client) => Ok(self.at_terminal(client)),
            None => self.connect_to_own().await,
        }
    }

    /// Returns a connection to the shared daemon, if it runs.
    pub(crate) async fn find(&self, which: Running) -> anyhow::Result<Option<Client>> {
        let place = place()?;
        let found = match which {
            Running::Here => Client::connect(&place, None).await,
            Running::Anywhere => Client::connect_anywhere(&place).await,
            Running::OfAnyVersion => Client::connect_to_stop(&place).await,
        };
        match found {
            Err(ClientError::NotRunning | ClientError::Gone) => Ok(None),
            Err(error @ ClientError::Elsewhere(_)) => {
                self.note_apart(&error);
                Ok(None)
            }
            found => Ok(Some(found?)),
        }
    }

    /// Returns the connection to the shared daemon; `None` if that is in another namespace and the command may use a
    /// private one.
    fn unless_apart(&self, connected: Result<Client, ClientError>) -> Result<Option<Client>, ClientError> {
        match connected {
            Err(error)
                if !must_share() && (matches!(error, ClientError::Elsewhere(_)) || has_no_place(&error)) =>
            {
                self.note_apart(&error);
                Ok(None)
            }
            connected => connected.map(Some),
        }
    }

    /// Returns true if an ssh command line may only use shared connections: by the environment, or by patterns in
    /// config.toml, which the daemon checks.
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
            let mut client = self.connect(Daemon::Shared).await?;
            client.send(&Request::MustShare(host)).await?;
            anyhow::Ok(client.next().await?)
        });
        match reply? {
            Reply::MustShare(must) => Ok(must),
            Reply::Failed(failure) => Err(Refused(failure).into()),
            other => anyhow::bail!("unexpected reply from the daemon: {other:?}"),
        }
    }

    /// Asks for a session with the descriptors `fds`, and returns its connection. After an error, nothing was started.
    pub(crate) async fn ask_for(
        &self,
        session: SessionRequest,
        fds: &[BorrowedFd<'_>],
    ) -> anyhow::Result<Client> {
        let here = session.host.world.vantage.clone();
        let request = Request::Session(Box::new(session));
        if !self.no_daemon {
            let asked = Client::connect_with(&place()?, STARTED, &here, &request, fds).await;
            if let Some(client) = self.unless_apart(asked)? {
                return Ok(self.at_terminal(client));
            }
        }
        let client = self.connect_to_own().await?;
        client.send_with(&request, fds).await?;
        Ok(client)
    }

    /// Asks the shared daemon for a session, without a runtime. Returns `None` if more than one request is needed; then
    /// nothing was started.
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

    /// Returns a connection to the private daemon.
    async fn connect_to_own(&self) -> anyhow::Result<Client> {
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
        Ok(self.at_terminal(private.connect().await?))
    }

    /// Lets commands from the user's configuration ask on this command's terminal, as with ssh.
    fn at_terminal(&self, client: Client) -> Client {
        match self.in_background {
            true => client,
            false => client.lending(Lending::Lent),
        }
    }

    /// Returns the questions of the command's hosts.
    pub(crate) fn questions(&self) -> &Questions {
        &self.questions
    }
}

/// Returns true if the usual directory cannot be made, as in a container with a read-only home, or has too long a name.
fn has_no_place(error: &ClientError) -> bool {
    let is_usual = std::env::var_os("TRUNKLINE_DIR").is_none_or(|dir| dir.is_empty());
    let cannot = matches!(
        error,
        ClientError::Place(PlaceError::TooLong(_) | PlaceError::NotOwn(OwnError::Io(..)))
    );
    is_usual && cannot
}

/// Returns true if the user only allows shared connections, for every host.
pub(crate) fn must_share() -> bool {
    std::env::var_os(STRICT).is_some_and(|value| value == "1")
}

/// Returns true if config.toml may name hosts for which only shared connections are allowed. Used if the daemon, which
/// reads the patterns, cannot be asked.
pub(crate) fn has_strict_hosts() -> anyhow::Result<bool> {
    match std::fs::read_to_string(&place()?.config) {
        Ok(text) => Ok(text
            .lines()
            .any(|line| line.contains("strict_hosts") && !line.trim_start().starts_with('#'))),
        // There is no file, or no directory for it.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error).context("reading config.toml"),
    }
}

/// Returns the place of this user's daemon.
pub(crate) fn place() -> anyhow::Result<Place> {
    Ok(Place::find(|name| std::env::var_os(name).map(PathBuf::from))?)
}

/// Returns the request for a destination that somebody typed.
pub(crate) fn host_request(destination: &str, ssh_args: Vec<OsString>) -> anyhow::Result<HostRequest> {
    let destination = destination
        .parse()
        .with_context(|| format!("{destination:?} is not a valid destination"))?;
    request_for(destination, ssh_args)
}

/// Returns a destination with this process's environment.
pub(crate) fn request_for(destination: Destination, ssh_args: Vec<OsString>) -> anyhow::Result<HostRequest> {
    let world = World::current().context("reading the environment")?;
    Ok(HostRequest::new(destination, ssh_args, world))
}

/// Returns a runtime for a client. One thread is enough to wait with.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("starting the runtime")
}
