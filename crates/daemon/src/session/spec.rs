//! The meaning of a session's request on its host.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use trunkline::config::{ForwardAgent, HostConfig, RequestTty, SessionType};
use trunkline::{Command, Engine, Error, Host, Invalid, Pty};
use trunkline_audit::Subject;

use super::observers::Observers;
use super::running::carry::{Resumption, Started};
use super::running::terminal_size;
use crate::protocol::{Program, SessionRequest, TerminalInfo, Tty};

/// A session with its request resolved.
pub(crate) struct Spec {
    pub(crate) program: Program,
    /// The command for the server, unless the program is a tunnel or nothing.
    pub(crate) command: Command,
    pub(crate) pty: Option<Pty>,
    /// A terminal was wanted, but the client has none.
    pub(crate) lacks_terminal: bool,
    /// True if a command is left running when the session is closed.
    pub(crate) leaves_running: bool,
}

impl Spec {
    /// Resolves a request with a host's configuration.
    pub(crate) fn from_request(request: &SessionRequest, config: &HostConfig) -> Result<Self, Error> {
        let program = resolve_program(config, &request.program, request.ssh.is_some())?;
        let (pty, lacks_terminal) = terminal(config, request, &program);
        let configured = config.session_env(&request.host.world);
        let configured = configured.map(|(name, value)| (Cow::Borrowed(name), value));
        let own = request.env.iter();
        let own = own.map(|(name, value)| (name.to_string_lossy(), value.as_bytes()));
        let agent = config.forward_agent != ForwardAgent::No;
        let spec = Self::new(program, pty, configured.chain(own), agent);
        Ok(Self {
            lacks_terminal,
            ..spec
        })
    }

    /// Returns a session that uses no configuration.
    pub(crate) fn new(
        program: Program,
        pty: Option<Pty>,
        env: impl Iterator<Item = (impl Into<String>, impl Into<Vec<u8>>)>,
        agent: bool,
    ) -> Self {
        let command = match &program {
            Program::Exec(command) => Command::exec(command.clone()),
            Program::Subsystem(name) => Command::subsystem(name),
            _ => Command::shell(),
        };
        let command = env.fold(command, |command, (name, value)| command.env(name, value));
        let command = pty.iter().cloned().fold(command, Command::pty);
        Self {
            command: command.agent_forwarding(agent),
            program,
            pty,
            lacks_terminal: false,
            leaves_running: false,
        }
    }

    /// Returns the question for hosts on which each use is confirmed (mux.c).
    pub(crate) fn question(&self, host: &str) -> String {
        match &self.program {
            Program::Stdio(target, port) => format!("Allow forward to {target}:{port}? "),
            Program::StdioSocket(path) => format!("Allow forward to {path}? "),
            Program::Listen(..) | Program::ListenSocket(_) => format!("Open remote forward on {host}? "),
            _ => format!("Allow shared connection to {host}? "),
        }
    }

    /// Completes the session's subject for the audit trail.
    pub(crate) fn refine(&self, subject: Subject, config: &HostConfig) -> Subject {
        let subject = subject.with_host(config).running(&self.program);
        match self.program {
            Program::Configured | Program::Exec(_) => subject.on_terminal(self.pty.is_some()),
            _ => subject,
        }
    }

    pub(crate) async fn start(
        &self,
        host: &Host,
        engine: &Engine,
        observers: &Observers<'_>,
    ) -> Result<Started, Error> {
        if let Some(pty) = &self.pty {
            observers.record_terminal(host.config(), pty, &self.program);
        }
        let session = host.start(&self.command).await?;
        observers.audit.count_session(&session.control);
        if self.leaves_running {
            session.control.leave_running();
        }
        let resumption =
            Resumption::for_session(engine, host, &self.program, &self.command, self.leaves_running);
        Ok(Started {
            parts: session.into_parts(),
            resumption: resumption.filter(|_| self.pty.is_none()),
        })
    }
}

/// Returns the program to run: the request's, else the configured one. For ssh, SessionType decides how a command is
/// run.
pub(crate) fn resolve_program(config: &HostConfig, asked: &Program, for_ssh: bool) -> Result<Program, Error> {
    let by_type = match asked {
        Program::Configured => true,
        Program::Exec(_) => for_ssh,
        _ => return Ok(asked.clone()),
    };
    if by_type && config.session_type == SessionType::None {
        return Ok(Program::Nothing);
    }
    let has_command = matches!(asked, Program::Exec(_));
    let command = match (asked, config.remote_command(has_command)?) {
        (Program::Exec(command), _) => Some(command.clone()),
        (_, configured) => configured.map(Into::into),
    };
    if by_type && config.session_type == SessionType::Subsystem {
        let name = command.and_then(|name| String::from_utf8(name).ok());
        return name
            .map(Program::Subsystem)
            .ok_or_else(|| Invalid::NoSubsystem.into());
    }
    Ok(command.map_or(Program::Configured, Program::Exec))
}

/// Returns the choice of `-t` or `-T`, else the configured one.
fn requested_tty(config: &HostConfig, request: &SessionRequest) -> RequestTty {
    match request.tty {
        Tty::No => RequestTty::No,
        Tty::Yes => RequestTty::Yes,
        Tty::Force => RequestTty::Force,
        Tty::Configured => config.request_tty,
    }
}

/// Returns the terminal of a session, by ssh.c's rules. Also returns true if one was wanted but the client has none.
fn terminal(config: &HostConfig, request: &SessionRequest, program: &Program) -> (Option<Pty>, bool) {
    // SetEnv takes precedence over the environment.
    let set = config.set_env.iter().find(|(name, _)| name == "TERM");
    let set = set.map(|(_, term)| term).filter(|term| !term.is_empty());
    match (requested_tty(config, request), &request.terminal) {
        (RequestTty::No, _) => (None, false),
        (RequestTty::Auto, _) if *program != Program::Configured => (None, false),
        (_, Some(TerminalInfo { term, size, modes })) => {
            let pty = Pty {
                term: set.unwrap_or(term).clone(),
                size: terminal_size(*size),
                modes: modes.clone(),
            };
            (Some(pty), false)
        }
        // The size is unknown; the type is the caller's.
        (RequestTty::Force, None) => {
            let term = request.host.world.env.get(OsStr::new("TERM"));
            let term = term.map_or_else(String::new, |term| term.to_string_lossy().into_owned());
            let pty = Pty {
                term: set.cloned().unwrap_or(term),
                ..Pty::default()
            };
            (Some(pty), false)
        }
        (_, None) => (None, true),
    }
}
