//! [`Host`]: one of an engine's hosts.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use trunkline_proto::ChannelKind;
use trunkline_sftp::bridge::KnownPaths;
use trunkline_sftp::transfer::NameBudget;

use super::{Engine, Inner};
use crate::config::{ForwardAgent, HostConfig, Objection, Request, World};
use crate::connection::Connection;
use crate::connection::agent;
use crate::connection::channel::ChannelStream;
use crate::connection::lease::Lease;
use crate::connection::session::{Command, Output, Session, SessionControl};
use crate::connection::timing::idle::Activity;
use crate::error::Error;
use crate::memory::tuned::Choice;
use crate::memory::{HostId, Lesson};
use crate::permission;
use crate::pool::{Caller, LaneStatus, Pool, Unplaced, Way};
use crate::sftp::{Known, Sftp, WhenOver};

/// A host, reached through shared connections.
#[derive(Clone)]
pub struct Host {
    /// The pool of its own key. Its sessions may use another one: see [`Self::pool`].
    pub(super) own: Arc<Pool>,
    /// The engine with other pools; none if the host shares with nobody.
    pub(super) engine: Weak<Inner>,
    pub(super) caller: Caller,
    /// The best settings for moving data, as measured.
    pub(super) tuned: Option<Arc<Choice>>,
    /// Set if neither the measurements nor the user have chosen or forbidden compression.
    pub(super) undecided: Option<Arc<Undecided>>,
}

/// The means to reach a host again, with compression.
pub(super) struct Undecided {
    pub(super) engine: Weak<Inner>,
    pub(super) request: Request,
}

impl fmt::Debug for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undecided(..)")
    }
}

impl Host {
    /// Returns its configuration.
    pub fn config(&self) -> &Arc<HostConfig> {
        &self.caller.config
    }

    /// Returns the budget for the names that its server lists, shared with the engine's other hosts.
    pub(crate) fn names(&self) -> NameBudget {
        self.own.names().clone()
    }

    /// Returns the path knowledge of its resumable SFTP sessions.
    pub fn known_paths(&self) -> KnownPaths {
        self.own.known_paths().clone()
    }

    /// Returns the pool that serves it now.
    fn pool(&self) -> Arc<Pool> {
        match self.engine.upgrade() {
            Some(engine) => engine.pool_of(&self.own, *self.caller.key, &self.caller.config),
            None => self.own.clone(),
        }
    }

    /// Like [`Self::pool`], but waits for log-ins that may lead to a shareable connection.
    async fn settled_pool(&self) -> Arc<Pool> {
        let others = match self.engine.upgrade() {
            Some(engine) if !self.own.has_connections() => engine.others(*self.caller.key),
            _ => return self.own.clone(),
        };
        let mut made = others.iter().flat_map(|pool| pool.connections());
        if let Some(first) = made.find(|connection| !connection.is_ready()) {
            // Boxed: it is rare, and its room would be part of everything that waits for a session.
            Box::pin(async {
                first.wait_until_settled().await;
                for connection in made {
                    connection.wait_until_settled().await;
                }
            })
            .await;
        }
        self.pool()
    }

    /// Returns why it does not use existing connections to the same account by the same way.
    pub fn objections(&self) -> Vec<Objection> {
        let Some(engine) = self.engine.upgrade() else {
            return Vec::new();
        };
        let terms = self.caller.config.log_in_terms();
        let others = engine.others(*self.caller.key).into_iter();
        let made = others.flat_map(|pool| pool.connections());
        made.filter_map(|connection| terms.objection(&connection.info()?.log_in))
            .collect()
    }

    /// Returns the shortest round-trip time that answers on its connections have shown.
    pub fn round_trip(&self) -> Option<Duration> {
        self.pool().connections().iter().filter_map(Connection::rtt).min()
    }

    /// Like [`Self::round_trip`], but only by answers that take the server no work.
    pub(crate) fn measured_round_trip(&self) -> Option<Duration> {
        let connections = self.pool().connections();
        let measured = connections
            .iter()
            .filter(|connection| connection.metrics().rtt_measurements() > 0);
        measured.filter_map(Connection::rtt).min()
    }

    /// Returns the last activity of its channels.
    pub(crate) fn activity(&self) -> &Activity {
        &self.caller.activity
    }

    /// Returns the best settings for moving data, as measured, if this host is [for that](Engine::host_for_copies).
    pub fn tuned_choice(&self) -> Option<&Choice> {
        self.tuned.as_deref()
    }

    /// Returns the same host over connections that compress, made without prompts. For a copy that finds compression
    /// faster. Returns `None` if the host compresses already, the user forbids it, or the server does not support it.
    pub(crate) fn compressing(&self) -> Option<Self> {
        let undecided = self.undecided.as_ref()?;
        let takes_it = |connection: &Connection| connection.info().is_some_and(|info| info.server_compresses);
        if self.is_attended() || !self.pool().connections().iter().any(takes_it) {
            return None;
        }
        let engine = Engine {
            inner: undecided.engine.upgrade()?,
        };
        let config = Arc::new(HostConfig {
            compression: true,
            ..(*self.caller.config).clone()
        });
        let interaction = self.caller.interaction.clone().without_user();
        let mut host = engine.host_with(config, &undecided.request, &interaction).ok()?;
        host.tuned.clone_from(&self.tuned);
        Some(host)
    }

    /// Asks the user to confirm the use of other clients' connections, if each use has to be confirmed. `question` is
    /// put once per [`Interaction`](crate::Interaction), through the SSH_ASKPASS of the client that made them
    /// ([`Settings::confirm_askpass`](crate::Settings) may name another).
    ///
    /// # Errors
    /// The user refused, or there is nothing to ask through. Nothing was started.
    pub async fn confirm_use(&self, question: &str) -> Result<(), Error> {
        let client = self.caller.interaction.client();
        if self.pool().admit(client, self.world()) {
            return Ok(());
        }
        self.ask_permission(question).await?;
        self.pool().allow(client);
        Ok(())
    }

    /// Asks the user to confirm one use, if each has to be confirmed, whichever client made the connections.
    ///
    /// # Errors
    /// As [`Self::confirm_use`].
    pub async fn confirm_each_use(&self, question: &str) -> Result<(), Error> {
        if !self.pool().confirms() {
            return Ok(());
        }
        self.ask_permission(question).await
    }

    /// Returns whether clients that have not made the connections must have each use confirmed.
    pub fn confirms_use(&self) -> bool {
        self.pool().confirms()
    }

    async fn ask_permission(&self, question: &str) -> Result<(), Error> {
        // A program that brings its own log-in shares its connections with nobody.
        let Some(asker) = self.world() else { return Ok(()) };
        let owner = self.pool().owner().unwrap_or_else(|| asker.clone());
        let pool = self.pool();
        let program = pool.confirm_askpass();
        permission::ask(&self.caller.config.original_host, &owner, program, question).await
    }

    fn world(&self) -> Option<&Arc<World>> {
        self.caller.way.world()
    }

    /// Returns whether there is an open connection.
    pub fn is_warm(&self) -> bool {
        self.pool().connections().iter().any(Connection::is_ready)
    }

    /// Starts a command, a shell or a subsystem.
    ///
    /// # Errors
    /// The server refused it on every connection. The session reports failures of a connection that is still being
    /// made.
    pub async fn start(&self, command: &Command) -> Result<Session, Error> {
        if command.forwards_agent() && self.caller.config.forward_agent == ForwardAgent::No {
            return Err(Error::agent_not_forwarded(&self.caller.config));
        }
        // sshd gives every session on a connection the agent that the first one brought. Therefore, on a host with
        // agent forwarding, every session requests it.
        let forward = self.caller.config.forward_agent != ForwardAgent::No && self.has_agent().await;
        let all_or_nothing = self.caller.config.exit_on_forward_failure;
        let command = if forward != command.forwards_agent() || all_or_nothing {
            &command
                .clone()
                .agent_forwarding(forward)
                .verified_only(all_or_nothing)
        } else {
            command
        };
        self.session(command).await
    }

    async fn session(&self, command: &Command) -> Result<Session, Error> {
        loop {
            let pool = self.settled_pool().await;
            // Boxed, as below: its room would be part of everything that starts a session, deep in a copy.
            if let Some(placed) = Unplaced::here(Box::pin(pool.session(command, &self.caller)).await) {
                return placed;
            }
        }
    }

    /// Returns whether there is an agent to forward. A program with its own agent knows that, and may count how often
    /// it is asked.
    async fn has_agent(&self) -> bool {
        match self.caller.way {
            Way::Resolved(_) => agent::is_there(&self.caller.config).await,
            Way::Given(_) => true,
        }
    }

    /// Opens a session without a program, for a caller that sends the requests:
    /// [`SessionControl::request`](crate::SessionControl::request). Takes a spare session if there is one.
    ///
    /// # Errors
    /// The server refused it, or the connection was lost. Also fails on a host with agent forwarding, because the
    /// server would lend such sessions the agent unasked.
    pub async fn open_session(&self) -> Result<Session, Error> {
        if self.caller.config.forward_agent != ForwardAgent::No {
            return Err(Error::configuration(
                &self.caller.config,
                "its connections forward the agent, and this was not asked for",
            ));
        }
        let mut session = self.session(&Command::later()).await?;
        session.wait_for_start().await?;
        Ok(session)
    }

    /// Starts a command in a session of this host's in which nothing runs yet.
    ///
    /// # Errors
    /// It asks for the agent, which [its host](Self::open_session) does not forward. The server's refusal comes from the
    /// session.
    pub fn start_in(&self, mut session: Session, command: &Command) -> Result<Session, Error> {
        if command.forwards_agent() {
            return Err(Error::agent_not_forwarded(&self.caller.config));
        }
        session.begin(command, self.caller.terms(&ChannelKind::Session));
        Ok(session)
    }

    /// Runs a command without input to its end and returns its output.
    ///
    /// # Errors
    /// As [`Session::wait`]. A status other than 0 is not an error.
    pub async fn run(&self, command: &Command) -> Result<Output, Error> {
        self.start(command).await?.output(None).await
    }

    /// Opens an SFTP session. Its first request directly follows that for the subsystem, so that a connected host
    /// answers the first operation within a round trip.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn sftp(&self) -> Result<Sftp, Error> {
        self.sftp_with(Vec::new()).await
    }

    /// Like [`Self::sftp`], and requests environment variables for the server, as [`Command::env`] does.
    ///
    /// # Errors
    /// As [`Self::sftp`].
    pub async fn sftp_with(&self, env: Vec<(String, Vec<u8>)>) -> Result<Sftp, Error> {
        self.sftp_witnessed(env, |_| None).await
    }

    /// Like [`Self::sftp_with`], and passes the control of the channel to `opened`, whose result is called at its end.
    ///
    /// # Errors
    /// As [`Self::sftp`].
    pub async fn sftp_witnessed(
        &self,
        env: Vec<(String, Vec<u8>)>,
        opened: impl FnOnce(&SessionControl) -> Option<WhenOver>,
    ) -> Result<Sftp, Error> {
        let config = self.sftp_config();
        let command = Command::subsystem("sftp");
        let command = env
            .into_iter()
            .fold(command, |command, (name, value)| command.env(name, value));
        let parts = self.start(&command).await?.into_parts();
        let over = opened(&parts.control);
        Ok(Sftp::with_witness(
            parts,
            over,
            &self.caller.config.original_host,
            &config,
            self.known_of_sftp(),
        ))
    }

    /// Opens an SFTP session on an empty connection, as long as the host may have another.
    pub(crate) async fn sftp_apart(&self) -> Result<Sftp, Error> {
        let config = self.sftp_config();
        let command = Command::subsystem("sftp");
        let session = loop {
            let pool = self.settled_pool().await;
            if let Some(placed) = Unplaced::here(Box::pin(pool.session_apart(&command, &self.caller)).await) {
                break placed?;
            }
        };
        let name = &self.caller.config.original_host;
        Ok(Sftp::from_session(session, name, &config, self.known_of_sftp()))
    }

    /// Returns the same host for background work: its waits are not shown.
    pub(crate) fn in_background(&self) -> Self {
        let mut host = self.clone();
        host.caller.interaction = host.caller.interaction.showing(|_| {});
        host
    }

    /// Returns how many sessions a copy may have if no connection is added for it, or `None` if more may be added.
    pub(crate) fn most_sessions(&self) -> Option<usize> {
        self.pool().most_together(self.caller.answerer())
    }

    /// Returns the time for which a copy that has lost its connections tries to reach the host again.
    pub(crate) fn copy_resume_for(&self) -> Duration {
        self.pool().copy_resume_for()
    }

    /// Returns whether another connection would prompt somebody.
    pub(crate) fn is_attended(&self) -> bool {
        self.pool().is_attended(self.caller.answerer())
    }

    fn sftp_config(&self) -> trunkline_sftp::Config {
        let lessons = self.pool().learner().facts().lessons;
        let max_handles = match lessons.has(Lesson::SharedHandles) {
            true => Some(1),
            false => lessons.number(Lesson::MaxOpenFiles),
        };
        trunkline_sftp::Config {
            early_requests: self.pool().is_sshd(),
            early_limits: self.pool().is_sshd() && lessons.has(Lesson::SftpServer),
            largest_request: self.tuned_choice().and_then(|choice| choice.request_size),
            max_handles: max_handles.map(|most| most as usize),
        }
    }

    /// Returns what host memory knows about the server's SFTP, and where to put new facts.
    fn known_of_sftp(&self) -> Known {
        let lessons = self.pool().learner().facts().lessons;
        let order = [
            (Lesson::SymlinkLinkFirst, true),
            (Lesson::SymlinkTargetFirst, false),
        ];
        let order = order.into_iter().find(|(lesson, _)| lessons.has(*lesson));
        Known {
            symlink_link_first: Arc::new(OnceCell::new_with(order.map(|(_, first)| first))),
            shares_handles: Arc::default(),
            learner: Some(self.pool().learner().clone()),
            silence: Some(self.pool().sftp_silence()),
            names: self.pool().names().clone(),
            leaving: self.pool().leaving().clone(),
        }
    }

    /// Opens a TCP connection from the server to `host`:`port`.
    ///
    /// # Errors
    /// The server refused it, or the connection was lost.
    pub async fn direct_tcpip(
        &self,
        host: &str,
        port: u16,
        originator: (&str, u16),
    ) -> Result<ChannelStream, Error> {
        self.tunnel(ChannelKind::DirectTcpip {
            host: host.to_owned(),
            port,
            originator: (originator.0.to_owned(), originator.1),
        })
        .await
    }

    /// Remembers how many bytes a new tunnel takes in a round trip.
    pub(crate) fn learn_of_tunnel(&self, window: usize) {
        let pool = self.pool();
        let learner = pool.learner();
        let known = learner.facts().lessons.number(Lesson::TunnelWindow);
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        if known != Some(window) {
            learner.learn(Lesson::TunnelWindow, window);
        }
    }

    /// Returns how many bytes the jump host before this one takes in a round trip for each connection, if known.
    pub(crate) fn window_in_front(&self) -> Option<u32> {
        let jump = self.config().jump.as_ref()?;
        let facts = self.pool().learner().facts_of(&HostId::from_config(jump));
        facts.lessons.number(Lesson::TunnelWindow)
    }

    /// Opens a connection to a Unix socket on the server.
    ///
    /// # Errors
    /// As [`Self::direct_tcpip`].
    pub async fn direct_streamlocal(&self, path: &str) -> Result<ChannelStream, Error> {
        self.tunnel(ChannelKind::DirectStreamlocal {
            path: path.to_owned(),
        })
        .await
    }

    async fn tunnel(&self, kind: ChannelKind) -> Result<ChannelStream, Error> {
        loop {
            let pool = self.settled_pool().await;
            if let Some(placed) = Unplaced::here(Box::pin(pool.tunnel(kind.clone(), &self.caller)).await) {
                return placed;
            }
        }
    }

    /// Returns the first result of a pool that serves this host.
    fn find_in_pools<T>(&self, find: impl Fn(&Arc<Pool>) -> Option<T>) -> T {
        loop {
            if let Some(found) = find(&self.pool()) {
                return found;
            }
        }
    }

    /// Returns the host's first connection. The lease keeps it from being closed as idle.
    pub(crate) fn hold_connection(&self) -> (Connection, Lease) {
        self.find_in_pools(|pool| pool.hold_control(&self.caller))
    }

    /// Returns the host's first connection, made if there is none. The result keeps it from being closed as idle, and
    /// counts as a session when the host is asked to close [when its sessions have ended](crate::Engine::close).
    ///
    /// Starts connecting at once; [`Connection::ready`] waits for it.
    pub fn hold(&self) -> HeldConnection {
        let (connection, lease) = self.find_in_pools(|pool| pool.hold(&self.caller));
        HeldConnection {
            connection,
            _lease: lease,
        }
    }

    /// Ends the host's connections at once and for good: waiting and later sessions and tunnels fail with
    /// [`Error::Closed`]. Only for [private hosts](Engine::private_host); others share their connections, see
    /// [`Engine::close`].
    pub fn end(&self) {
        self.pool().end();
    }

    /// Returns the host's connections, made or being made. None is made for this.
    pub fn connections(&self) -> Vec<Connection> {
        self.pool().connections()
    }

    /// Returns the host's first connection, made if there is none.
    pub fn connection(&self) -> Connection {
        self.find_in_pools(|pool| pool.control(&self.caller))
    }

    /// Waits for a connection on behalf of this host's client.
    ///
    /// # Errors
    /// As [`Connection::ready`].
    pub(crate) async fn wait_until_made(&self, connection: &Connection) -> Result<(), Error> {
        connection
            .wait_for(&self.caller.interaction, connection.ready())
            .await?
    }

    /// Returns the host's first connection, once it is made.
    ///
    /// # Errors
    /// As [`Connection::ready`].
    pub async fn connect(&self) -> Result<Connection, Error> {
        loop {
            self.settled_pool().await;
            let connection = self.connection();
            match self.wait_until_made(&connection).await {
                Err(error) if connection.is_left_to(&self.caller.interaction, &error) => {}
                Err(error) => return Err(error),
                Ok(()) if self.pool().is_there(&connection).await? => return Ok(connection),
                Ok(()) => {}
            }
        }
    }

    /// Connects now, and waits until that is done.
    ///
    /// # Errors
    /// The connection could not be made; or, with ExitOnForwardFailure, the server is not verified.
    pub async fn warm(&self) -> Result<(), Error> {
        let connection = self.connect().await?;
        if self.caller.config.exit_on_forward_failure {
            connection.check_verified("Forwarding")?;
        }
        Ok(())
    }

    /// Waits for the log-in of a connection that is being made. Returns `false` if there is none or it fails.
    pub async fn logged_in(&self) -> bool {
        let connections = self.pool().connections();
        if connections.iter().any(Connection::is_ready) {
            return true;
        }
        match connections.first() {
            Some(connection) => connection.ready().await.is_ok(),
            None => false,
        }
    }

    /// Returns warnings to show before anything is done with the host: that a connection's server is not verified.
    pub fn warnings(&self) -> Vec<String> {
        let connections = self.pool().connections();
        let unverified = connections.iter().filter_map(Connection::info);
        unverified
            .flat_map(|info| info.warnings.iter().cloned())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Fails if a connection's server is not verified, so that `what` is not allowed.
    pub(crate) fn check_verified(&self, what: &'static str) -> Result<(), Error> {
        let connections = self.pool().connections();
        connections
            .iter()
            .try_for_each(|connection| connection.check_verified(what))
    }

    /// Sets whether the first connection is kept forever.
    pub fn pin(&self, pinned: bool) {
        self.pool().pin(pinned);
    }

    /// Returns a receiver, updated once a second, of whether a connection is too busy for new sessions: that starts
    /// above [`Settings::busy_above`](crate::Settings::busy_above) and ends below
    /// [`Settings::busy_below`](crate::Settings::busy_below).
    pub fn watch_busy(&self) -> watch::Receiver<bool> {
        self.pool().watch_busy()
    }

    /// Returns the host's connections.
    pub fn lanes(&self) -> Vec<LaneStatus> {
        self.pool().status()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("config", &self.caller.config)
            .finish_non_exhaustive()
    }
}

/// A connection that is not closed as idle while this exists.
#[derive(Debug)]
pub struct HeldConnection {
    connection: Connection,
    _lease: Lease,
}

impl std::ops::Deref for HeldConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}
