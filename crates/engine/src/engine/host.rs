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

/// A host, reached through connections that are shared with everything that may share them.
#[derive(Clone)]
pub struct Host {
    /// The pool of its own key. Its sessions may go to another one: see [`Self::pool`].
    pub(super) own: Arc<Pool>,
    /// The engine, which knows of others; nothing if the host shares with nobody.
    pub(super) engine: Weak<Inner>,
    pub(super) caller: Caller,
    /// The best settings for moving data, by measurement.
    pub(super) tuned: Option<Arc<Choice>>,
    /// Set if neither that nor the user compresses copies or forbids it.
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

    /// Returns the budget for the names that its server lists, which its engine's other hosts share.
    pub(crate) fn names(&self) -> NameBudget {
        self.own.names().clone()
    }

    /// Returns what its SFTP sessions that are carried over learn about paths.
    pub fn known_paths(&self) -> KnownPaths {
        self.own.known_paths().clone()
    }

    /// The connections that serve it now.
    fn pool(&self) -> Arc<Pool> {
        match self.engine.upgrade() {
            Some(engine) => engine.pool_of(&self.own, *self.caller.key, &self.caller.config),
            None => self.own.clone(),
        }
    }

    /// The same, once the log-ins have settled that would have to be waited for anyway, and may serve it, too.
    async fn settled_pool(&self) -> Arc<Pool> {
        let others = match self.engine.upgrade() {
            Some(engine) if !self.own.has_connections() => engine.others(*self.caller.key),
            _ => return self.own.clone(),
        };
        let mut made = others.iter().flat_map(|pool| pool.connections());
        if let Some(first) = made.find(|connection| !connection.is_ready()) {
            // Boxed: it is rare, and whatever waits for a session would hold room for it.
            Box::pin(async {
                first.settled().await;
                for connection in made {
                    connection.settled().await;
                }
            })
            .await;
        }
        self.pool()
    }

    /// Returns the reasons why it does not use existing connections to the same account, over the same way.
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

    /// The shortest round-trip time that the server's answers on its connections have shown.
    pub fn round_trip(&self) -> Option<Duration> {
        self.pool().connections().iter().filter_map(Connection::rtt).min()
    }

    /// The same, where the server had nothing to do for the answer.
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

    /// Returns the best settings for moving data, by measurement, if this host is [for that](Engine::host_for_copies).
    pub fn tuned(&self) -> Option<&Choice> {
        self.tuned.as_deref()
    }

    /// The same host over connections that compress, for a copy that finds on its way that they are faster; nobody is asked
    /// anything for them. `None` where it compresses already, the user has forbidden it, or the server takes none.
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
        let interaction = self.caller.interaction.clone().unattended();
        let mut host = engine.host_with(config, &undecided.request, &interaction).ok()?;
        host.tuned.clone_from(&self.tuned);
        Some(host)
    }

    /// Has the user confirm the use of connections that others have made, where each use is to be confirmed. `question` is
    /// put through the SSH_ASKPASS of whoever made them ([`Settings::confirm_askpass`](crate::Settings) may name another), once
    /// for each [`Interaction`](crate::Interaction).
    ///
    /// # Errors
    /// It is not allowed, or there is nothing to ask through. Nothing has begun.
    pub async fn confirm_use(&self, question: &str) -> Result<(), Error> {
        let client = self.caller.interaction.client();
        if self.pool().is_allowed(client, self.world()) {
            return Ok(());
        }
        self.ask_permission(question).await?;
        self.pool().allow(client);
        Ok(())
    }

    /// Has the user confirm one use, where each is to be confirmed, whoever has made the connections.
    ///
    /// # Errors
    /// As [`Self::confirm_use`].
    pub async fn confirm_each_use(&self, question: &str) -> Result<(), Error> {
        if !self.pool().confirms() {
            return Ok(());
        }
        self.ask_permission(question).await
    }

    /// Returns whether each use of the connections is to be confirmed by whoever has not made them.
    pub fn confirms_use(&self) -> bool {
        self.pool().confirms()
    }

    async fn ask_permission(&self, question: &str) -> Result<(), Error> {
        // Nobody else has the connections of a program that brings its own way.
        let Some(asker) = self.world() else { return Ok(()) };
        let owner = self.pool().owner().unwrap_or_else(|| asker.clone());
        let pool = self.pool();
        let program = pool.confirm_askpass();
        permission::ask(&self.caller.config.original_host, &owner, program, question).await
    }

    fn world(&self) -> Option<&Arc<World>> {
        self.caller.way.world()
    }

    /// Returns whether a connection is there already.
    pub fn is_warm(&self) -> bool {
        self.pool().connections().iter().any(Connection::is_ready)
    }

    /// Starts a command, a shell or a subsystem.
    ///
    /// # Errors
    /// A refusal by the server that no other connection lifts. Failures of a connection that is being made come from
    /// the session.
    pub async fn start(&self, command: &Command) -> Result<Session, Error> {
        if command.forwards_agent() && self.caller.config.forward_agent == ForwardAgent::No {
            return Err(Error::agent_not_forwarded(&self.caller.config));
        }
        // sshd gives every session of a connection the agent that the first one brought: on a host that gets the agent,
        // every session asks for it, so that what one sees is what it asked for.
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
            // Boxed, as below: whoever starts something deep in a copy would hold room for all of it.
            if let Some(placed) = Unplaced::here(Box::pin(pool.session(command, &self.caller)).await) {
                return placed;
            }
        }
    }

    /// Returns whether there is an agent to forward. A program that brings its own knows, and may count how often it is
    /// asked.
    async fn has_agent(&self) -> bool {
        match self.caller.way {
            Way::Resolved(_) => agent::is_there(&self.caller.config).await,
            Way::Given(_) => true,
        }
    }

    /// Opens a session in which nothing runs yet, for a caller that speaks of it request by request:
    /// [`SessionControl::request`](crate::SessionControl::request). Where a spare session is there, at once.
    ///
    /// # Errors
    /// The server's refusal; the loss of the connection. A host that forwards the agent has no such sessions: the server
    /// would lend it to them unasked.
    pub async fn open_session(&self) -> Result<Session, Error> {
        if self.caller.config.forward_agent != ForwardAgent::No {
            return Err(Error::configuration(
                &self.caller.config,
                "its connections forward the agent, and this was not asked for",
            ));
        }
        let mut session = self.session(&Command::later()).await?;
        session.started().await?;
        Ok(session)
    }

    /// Runs a command without input to its end and returns its output.
    ///
    /// # Errors
    /// As [`Session::wait`]. A status other than 0 is not an error.
    pub async fn run(&self, command: &Command) -> Result<Output, Error> {
        self.start(command).await?.output(None).await
    }

    /// Opens an SFTP session. Its first request leaves right behind that for the subsystem, so that a warm host answers
    /// the first operation within a round trip.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn sftp(&self) -> Result<Sftp, Error> {
        self.sftp_with(Vec::new()).await
    }

    /// The same, whose server asks for these variables of its environment, as [`Command::env`] does.
    ///
    /// # Errors
    /// As [`Self::sftp`].
    pub async fn sftp_with(&self, env: Vec<(String, Vec<u8>)>) -> Result<Sftp, Error> {
        self.sftp_witnessed(env, |_| None).await
    }

    /// The same, with somebody who is given what tells of the session's channel, and is told of its end.
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
        Ok(Sftp::witnessed(
            parts,
            over,
            &self.caller.config.original_host,
            &config,
            self.known_of_sftp(),
        ))
    }

    /// Opens an SFTP session on a connection with nothing else on it, as long as the host may have one more.
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
        Ok(Sftp::on(session, name, &config, self.known_of_sftp()))
    }

    /// The same, for work beside other work: nobody is shown what it waits for.
    pub(crate) fn in_background(&self) -> Self {
        let mut host = self.clone();
        host.caller.interaction = host.caller.interaction.showing(|_| {});
        host
    }

    /// The sessions that a copy may have, where no connection is made for it; `None` where there may be more of those.
    pub(crate) fn most_sessions(&self) -> Option<usize> {
        self.pool().most_together(self.caller.answerer())
    }

    /// The time for which a copy that has lost its connections tries to reach the host again.
    pub(crate) fn copy_resume_for(&self) -> Duration {
        self.pool().copy_resume_for()
    }

    /// Returns whether another connection would ask somebody something.
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
            largest_request: self.tuned().and_then(|choice| choice.request_size),
            max_handles: max_handles.map(|most| most as usize),
        }
    }

    /// Returns the facts of host memory about the server's SFTP, and the place for new ones.
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
    /// The server's refusal; the loss of the connection.
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

    /// Returns the number of bytes that the jump host in front of this one takes in a round trip for each connection,
    /// if that is known.
    pub(crate) fn window_in_front(&self) -> Option<u32> {
        let jump = self.config().jump.as_ref()?;
        let facts = self.pool().learner().facts_of(&HostId::of(jump));
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

    /// Returns the first result of a pool that is for it.
    fn found<T>(&self, find: impl Fn(&Arc<Pool>) -> Option<T>) -> T {
        loop {
            if let Some(found) = find(&self.pool()) {
                return found;
            }
        }
    }

    /// The host's first connection, kept from being closed as idle while the lease is there.
    pub(crate) fn hold_connection(&self) -> (Connection, Lease) {
        self.found(|pool| pool.hold_control(&self.caller))
    }

    /// The host's first connection, made if there is none, kept from being closed as idle while the result is there. Where it
    /// is asked to close [when its sessions have ended](crate::Engine::close), this counts as one.
    ///
    /// Begins to connect at once; [`Connection::ready`] waits for it.
    pub fn hold(&self) -> HeldConnection {
        let (connection, lease) = self.found(|pool| pool.hold(&self.caller));
        HeldConnection {
            connection,
            _lease: lease,
        }
    }

    /// Ends the host's connections at once and for good: sessions and tunnels that are asked for later, or wait for a place,
    /// fail with [`Error::Closed`]. For [private hosts](Engine::private_host); others share their connections, see
    /// [`Engine::close`].
    pub fn end(&self) {
        self.pool().end();
    }

    /// The host's first connection, made if there is none.
    pub fn connection(&self) -> Connection {
        self.found(|pool| pool.control(&self.caller))
    }

    /// Waits for a connection that this host's client wants.
    ///
    /// # Errors
    /// As [`Connection::ready`].
    pub(crate) async fn made(&self, connection: &Connection) -> Result<(), Error> {
        connection
            .awaited(&self.caller.interaction, connection.ready())
            .await?
    }

    /// The host's first connection, once it is made.
    ///
    /// # Errors
    /// As [`Connection::ready`].
    pub async fn connect(&self) -> Result<Connection, Error> {
        loop {
            self.settled_pool().await;
            let connection = self.connection();
            match self.made(&connection).await {
                Err(error) if connection.is_left_to(&self.caller.interaction, &error) => {}
                Err(error) => return Err(error),
                Ok(()) if self.pool().is_there(&connection).await? => return Ok(connection),
                Ok(()) => {}
            }
        }
    }

    /// Connects now, and waits until it is done.
    ///
    /// # Errors
    /// Why it could not be done; with ExitOnForwardFailure, that the server was not verified.
    pub async fn warm(&self) -> Result<(), Error> {
        let connection = self.connect().await?;
        if self.caller.config.exit_on_forward_failure {
            connection.check_verified("Forwarding")?;
        }
        Ok(())
    }

    /// Waits for the log-in of a connection that is being made; `false` where none is there or it fails. Makes none itself.
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

    /// Returns warnings for its user before anything is done with it: that a server of its connections was not
    /// verified.
    pub fn warnings(&self) -> Vec<String> {
        let connections = self.pool().connections();
        let unverified = connections.iter().filter_map(Connection::info);
        unverified
            .flat_map(|info| info.warnings.iter().cloned())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// # Errors
    /// A server of its connections was not verified, so that `what` may not be done.
    pub(crate) fn check_verified(&self, what: &'static str) -> Result<(), Error> {
        let connections = self.pool().connections();
        connections
            .iter()
            .try_for_each(|connection| connection.check_verified(what))
    }

    /// Keeps the first connection for ever, or no longer.
    pub fn pin(&self, pinned: bool) {
        self.pool().pin(pinned);
    }

    /// Whether traffic keeps new sessions away from one of the connections, so that they go to another: above
    /// [`Settings::busy_above`](crate::Settings::busy_above) it does, below [`Settings::busy_below`](crate::Settings::busy_below) no longer. Looked at once a second.
    pub fn apart(&self) -> watch::Receiver<bool> {
        self.pool().apart()
    }

    /// The host's connections.
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

/// A connection that is not closed as idle while this is there.
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
