//! The place of a session: one of the engine's connections, or the system's ssh.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::mpsc;
use trunkline::config::{self, HostConfig, LogLevel, Reason, World};
use trunkline::{Error, Host};

use super::asked::Asked;
use crate::protocol::{Program, Reply, Request, SshClient};
use crate::reports::engine_request;
use trunkline_audit::Subject;

pub(crate) enum Place {
    Engine(Host),
    SystemSsh(SystemSsh),
}

/// A host that needs the system's ssh.
pub(crate) struct SystemSsh {
    config: Arc<HostConfig>,
    reasons: Vec<Reason>,
    /// The options with which ssh uses the host's master.
    options: Vec<OsString>,
    /// True if the master is running.
    warm: bool,
}

impl Place {
    /// Finds the place of a session.
    ///
    /// # Errors
    /// The host cannot be resolved, or may only be reached over shared connections and has none.
    pub(crate) async fn find(asked: &Asked<'_>) -> Result<Self, Error> {
        let (engine, request) = (asked.engine, asked.request);
        let mut meant = engine_request(&request.host);
        meant.runs_local_command = asked.is_for_ssh();
        if let Some(level) = request.ssh.and_then(|ssh| ssh.log_level) {
            asked.observers.log_from(level, &meant);
        }
        let host = match moves_data(&request.program) {
            true => {
                let finding = engine.host_for_copies(&meant, asked.interaction);
                asked.may_end(Box::pin(finding)).await
            }
            false => {
                let finding = engine.host_for(&meant, asked.interaction);
                asked.may_end(Box::pin(finding)).await
            }
        };
        if let Some(SshClient { log_level: None, .. }) = request.ssh {
            begin_log(asked, &meant, &host).await;
        }
        match host.and_then(|host| refuse_to_fork(host, request.ssh)) {
            Ok(host) => Ok(Self::Engine(host)),
            Err(Error::NeedsSystemSsh { reasons, .. }) => {
                let config = engine.resolve(&meant).await?;
                let ssh = SystemSsh::find(asked, config, reasons, &meant.world).await?;
                Ok(Self::SystemSsh(ssh))
            }
            Err(error) => Err(error),
        }
    }
}

impl SystemSsh {
    /// Finds the options with which ssh uses the host's master, and whether the master is running. If only shared
    /// connections are allowed, ssh gets no other way to connect than to become the master.
    async fn find(
        asked: &Asked<'_>,
        config: Arc<HostConfig>,
        reasons: Vec<Reason>,
        world: &Arc<World>,
    ) -> Result<Self, Error> {
        let strict = asked.engine.must_share(&config, world);
        let not_shared = |why| Err(Error::not_shared(&config.original_host, why));
        let (mut options, mut warm) = (Vec::new(), false);
        if let Some(masters) = asked.masters.filter(|_| !runs_alone(&reasons)) {
            options = masters.options(&config, world)?;
            warm = masters.is_warm(&config, world).await;
            if strict && options.is_empty() {
                return not_shared("its ControlPath is one of your own");
            }
            if strict && warm {
                options.extend(["-o".into(), NO_OTHER_WAY.into()]);
            }
        } else if strict {
            return not_shared("it takes the system's ssh, with a connection of its own");
        }
        Ok(Self {
            config,
            reasons,
            options,
            warm,
        })
    }

    /// Runs the session in the system's ssh: the client's own, or one started here for a client that cannot.
    ///
    /// # Errors
    /// The session cannot be recorded, ssh cannot be run, or time is up.
    pub(crate) async fn run(
        self,
        asked: &Asked<'_>,
        fds: Vec<OwnedFd>,
        inputs: mpsc::Receiver<Request>,
    ) -> Result<Reply, Error> {
        let (request, options) = (asked.request, self.options);
        let program = &request.program;
        let refine = |subject: Subject| subject.with_host(&self.config).running(program).through_ssh();
        asked.observers.audit.begin(refine).await?;
        if !request.answers {
            return crate::openssh::session(options, self.warm, request, fds, asked.replies, inputs).await;
        }
        let reasons: Vec<_> = self.reasons.iter().map(ToString::to_string).collect();
        for reason in &reasons {
            let left = format!("Left to the system's ssh: {reason}");
            asked.observers.say(LogLevel::Debug1, left);
        }
        Ok(Reply::UseSystemSsh { reasons, options })
    }
}

/// Returns true if ssh cannot do this over a master's connection.
fn runs_alone(reasons: &[Reason]) -> bool {
    reasons
        .iter()
        .any(|reason| RUNS_ALONE.contains(&reason.directive.as_str()))
}

/// The ProxyCommand of an ssh that must use a master: if the master does not take the session, ssh fails with this
/// message.
const NO_OTHER_WAY: &str = "ProxyCommand=echo 'trunkline: the shared connection did not take this session, and only shared \
     connections may be used (TRUNKLINE_STRICT=1 or strict_hosts)' >&2";

/// Starts the log at the configured level, and tells the client if that is not the default.
async fn begin_log(asked: &Asked<'_>, meant: &config::Request, host: &Result<Host, Error>) {
    let level = match host {
        Ok(host) => host.config().log_level,
        Err(_) => {
            let config = asked.engine.resolve(meant).await;
            config.map_or(LogLevel::Info, |config| config.log_level)
        }
    };
    if level != LogLevel::Info {
        let _ = asked.replies.send(Reply::LogLevel(level)).await;
    }
    asked.observers.log_from(level, meant);
}

const FORKS: &str = "forkafterauthentication";

/// Settings for which ssh uses no master. A persistent one would keep a background command from running (ssh.c,
/// `need_controlpersist_detach`). A tunnel belongs to the ssh that made the connection; others cannot have one.
const RUNS_ALONE: [&str; 2] = [FORKS, "tunnel"];

/// Fails if ssh_config makes ssh fork but the client, which stands for ssh, can no longer do so.
fn refuse_to_fork(host: Host, ssh: Option<SshClient>) -> Result<Host, Error> {
    let forks = host.config().fork_after_authentication;
    if !forks || ssh.is_none_or(|ssh| ssh.background) {
        return Ok(host);
    }
    Err(Error::NeedsSystemSsh {
        host: host.config().original_host.clone(),
        reasons: vec![Reason {
            directive: FORKS.into(),
            value: "yes".into(),
            why: "trunkline ssh goes to the background where its own options say so (-f)".into(),
        }],
    })
}

/// Returns true for a session of rsync, scp or sftp, which is worth a tuned connection.
fn moves_data(program: &Program) -> bool {
    match program {
        Program::Exec(command) => {
            let starts = |words: &str| command.starts_with(words.as_bytes());
            starts("rsync --server") || starts("scp -")
        }
        Program::Subsystem(name) => name == "sftp",
        _ => false,
    }
}
