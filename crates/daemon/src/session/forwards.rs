//! The forwardings of a session: those of ssh_config and of ssh's `-L`, `-R` and `-D`, and those that its user adds
//! while it runs (`~C`).

use std::ffi::OsString;
use std::fmt::Write as _;

use tokio::sync::Mutex;
use trunkline::config::{self, Forward, ForwardTarget, HostConfig, Listen, LogLevel};
use trunkline::{Doing, Engine, Error, ForwardEvent, ForwardHandle, Host, Interaction, Invalid};

use crate::protocol::{Failure, ForwardKind, ForwardRequest, HostRequest, WordsOfSsh};
use crate::reports::engine_request;
use trunkline_audit::{Entry, Subject};

/// The forwardings of one session. Dropping this ends them; open connections continue to their own end, for which ssh
/// waits.
pub(crate) struct Forwards<'a> {
    engine: &'a Engine,
    host: &'a Host,
    interaction: &'a Interaction,
    request: HostRequest,
    /// The session's record in the audit trail.
    entry: &'a Entry,
    /// The lock is held while one is opened or ended.
    standing: Mutex<Vec<Forwarding>>,
}

struct Forwarding {
    kind: ForwardKind,
    asked: Forward,
    handle: ForwardHandle,
    /// The forwarding's record in the audit trail, which ends with it.
    _entry: Entry,
}

impl<'a> Forwards<'a> {
    /// Starts the configured forwardings once the host is connected. The user is told of one that fails, and the others
    /// continue; with ExitOnForwardFailure its failure is the session's.
    pub(crate) async fn start(
        engine: &'a Engine,
        host: &'a Host,
        interaction: &'a Interaction,
        request: HostRequest,
        entry: &'a Entry,
    ) -> Result<Result<Self, Failure>, Error> {
        let forwards = Self {
            engine,
            host,
            interaction,
            request,
            entry,
            standing: Mutex::default(),
        };
        let configured = configured_forwards(host.config());
        if !configured.is_empty() {
            host.warm().await?;
        }
        for (kind, asked) in configured {
            let fatal = host.config().exit_on_forward_failure;
            if let Err(error) = forwards.open(kind, asked.clone()).await {
                let complaint = complaint(kind, &asked.listen, &error, fatal);
                if fatal {
                    let mut failure = Failure::from(&error);
                    failure.in_words_of_ssh = Some(vec![WordsOfSsh {
                        level: Some(LogLevel::Fatal),
                        text: complaint,
                    }]);
                    return Ok(Err(failure));
                }
                interaction.warning(&complaint);
            }
        }
        Ok(Ok(forwards))
    }

    /// Serves the user's request, and tells them the outcome.
    pub(crate) async fn handle(&self, request: ForwardRequest) {
        let said = match request {
            ForwardRequest::List => self.list().await,
            ForwardRequest::Open(kind, specification) => match self.add(kind, specification).await {
                Ok(()) => "Forwarding port.".to_owned(),
                Err(error) => format!("Port forwarding failed: {error}"),
            },
            ForwardRequest::Cancel(kind, specification) => match self.cancel(kind, specification).await {
                Ok(true) => "Canceled forwarding.".to_owned(),
                Ok(false) => "Unknown port forwarding.".to_owned(),
                Err(error) => format!("Bad forwarding close specification: {error}"),
            },
        };
        self.interaction.notice(&said);
    }

    /// Accepts no new connections on this side. Open ones continue, and so do remote forwardings (channels.c,
    /// `channel_stop_listening`).
    pub(crate) async fn stop_listening(&self) {
        let mut standing = self.standing.lock().await;
        standing.retain(|forward| forward.kind == ForwardKind::Remote);
    }

    /// Ends all listeners, and waits until their connections have ended, too.
    pub(crate) async fn finish(&self) {
        for ended in self.standing.lock().await.drain(..) {
            let mut events = ended.handle.events();
            ended.handle.close().await;
            while events.next().await.is_some() {}
        }
    }

    /// Ends all listeners. Their connections continue.
    pub(crate) async fn end(&self) {
        for ended in self.standing.lock().await.drain(..) {
            ended.handle.end().await;
        }
    }

    /// Ends all forwardings with their connections.
    pub(crate) async fn abort(&self) {
        for ended in self.standing.lock().await.drain(..) {
            ended.handle.abort().await;
        }
    }

    async fn add(&self, kind: ForwardKind, specification: String) -> Result<(), Error> {
        let asked = self.resolve(kind, specification).await?;
        self.open(kind, asked).await
    }

    async fn cancel(&self, kind: ForwardKind, specification: String) -> Result<bool, Error> {
        // As in ssh: a forwarding is cancelled by an address and a port, the form of a dynamic one.
        let listen = self.resolve(ForwardKind::Dynamic, specification).await?.listen;
        let mut standing = self.standing.lock().await;
        let meant = |forward: &Forwarding| {
            forward.kind == kind
                && (forward.asked.listen == listen || forward.handle.listening().contains(&listen))
        };
        let Some(found) = standing.iter().position(meant) else {
            return Ok(false);
        };
        let ended = standing.swap_remove(found);
        ended.handle.close().await;
        Ok(true)
    }

    /// Returns the forwarding that was typed after `-L`, `-R` or `-D`, as the user's own ssh would read it.
    async fn resolve(&self, kind: ForwardKind, specification: String) -> Result<Forward, Error> {
        let mut request = engine_request(&self.request);
        request.ssh_args = ["-F", "none", kind.option()].map(OsString::from).into();
        request.ssh_args.push(specification.clone().into());
        let config = self.engine.resolve(&request).await?;
        let understood = configured_forwards(&config).into_iter().next();
        understood.map_or_else(
            || Err(Invalid::Forwarding(specification.clone()).into()),
            |(_, forward)| Ok(forward),
        )
    }

    async fn open(&self, kind: ForwardKind, asked: Forward) -> Result<(), Error> {
        let mut standing = self.standing.lock().await;
        let subject = Subject::forwarding(self.host.config(), kind, &asked);
        let entry = self.entry.another(subject);
        let handle = trunkline_audit::open(self.host, kind, &asked, &entry).await?;
        if kind == ForwardKind::Remote && matches!(asked.listen, Listen::Tcp { port: 0, .. }) {
            let port = handle.port().unwrap_or_default();
            // ssh's words, which scripts look for.
            let target = match &asked.target {
                ForwardTarget::Socks => "socks:0".to_owned(),
                target => target.to_string(),
            };
            let said = format!("Allocated port {port} for remote forward to {target}");
            self.interaction.notice(&said);
        }
        for error in handle.failures() {
            self.interaction.notice(&error.to_string());
        }
        watch(&handle, self.interaction);
        standing.push(Forwarding {
            kind,
            asked,
            handle,
            _entry: entry,
        });
        Ok(())
    }

    async fn list(&self) -> String {
        let standing = self.standing.lock().await;
        list(
            standing
                .iter()
                .map(|forward| (forward.kind, &forward.asked, &forward.handle)),
        )
    }
}

/// Returns ssh's message about a forwarding that failed. Scripts match it (channels.c,
/// `channel_setup_fwd_listener_tcpip`; ssh.c, `ssh_init_forwarding` and `ssh_confirm_remote_forward`). `fatal`: with
/// ExitOnForwardFailure.
fn complaint(kind: ForwardKind, listen: &Listen, error: &Error, fatal: bool) -> String {
    let refused = matches!(error.root(), Error::Refused { .. });
    // The name to listen on could not be looked up.
    let has_no_address = matches!(
        error.root(),
        Error::Local {
            doing: Doing::LookUpListener(_),
            ..
        }
    );
    match (kind, listen) {
        (ForwardKind::Remote, listen) if refused => {
            let weight = if fatal { "Error" } else { "Warning" };
            let place = match listen {
                Listen::Tcp { port, .. } => format!("port {port}"),
                Listen::Socket(path) => format!("path {}", path.display()),
            };
            format!("{weight}: remote port forwarding failed for listen {place}")
        }
        (ForwardKind::Remote, _) => format!("Warning: {error}"),
        (_, Listen::Tcp { port, .. }) if !has_no_address => format!(
            "{error}\nchannel_setup_fwd_listener_tcpip: cannot listen to port: {port}\nCould not request local forwarding."
        ),
        _ => format!("{error}\nCould not request local forwarding."),
    }
}

/// Lists forwardings for display, one a line: the text of `~#`, under ssh's heading.
pub(crate) fn list<'a>(
    forwards: impl ExactSizeIterator<Item = (ForwardKind, &'a Forward, &'a ForwardHandle)>,
) -> String {
    let mut list = "The following connections are open:".to_owned();
    if forwards.len() == 0 {
        list += "\n  none is forwarded";
    }
    for (kind, asked, handle) in forwards {
        let counters = handle.counters();
        // Writing to a String cannot fail.
        let _ = write!(
            list,
            "\n  {} {} to {}: {} open now, {} so far",
            kind.option(),
            handle.listening().first().unwrap_or(&asked.listen),
            asked.target,
            counters.open,
            counters.accepted,
        );
    }
    list
}

/// Returns every forwarding of a configuration.
fn configured_forwards(config: &HostConfig) -> Vec<(ForwardKind, Forward)> {
    let HostConfig {
        local_forwards,
        dynamic_forwards,
        remote_forwards,
        ..
    } = config;
    let socks = |listen: &Listen| config::Forward {
        listen: listen.clone(),
        target: ForwardTarget::Socks,
    };
    let local = local_forwards.iter().cloned().map(|f| (ForwardKind::Local, f));
    let dynamic = dynamic_forwards.iter().map(|l| (ForwardKind::Dynamic, socks(l)));
    let remote = remote_forwards.iter().cloned().map(|f| (ForwardKind::Remote, f));
    local.chain(dynamic).chain(remote).collect()
}

/// Tells the user of a forwarding's events while the session lasts.
fn watch(handle: &ForwardHandle, interaction: &Interaction) {
    let mut events = handle.events();
    let interaction = interaction.clone();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                ForwardEvent::Refused { error, .. } => interaction.notice(&error.to_string()),
                ForwardEvent::Lost { error } => {
                    interaction.notice(&format!("a remote forwarding was lost: {error}"));
                }
                ForwardEvent::Established => interaction.notice("the remote forwarding is active again"),
                ForwardEvent::Failed { error } => {
                    interaction.notice(&format!("a remote forwarding has ended: {error}"));
                }
                _ => {}
            }
        }
    });
}
