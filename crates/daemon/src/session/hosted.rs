//! A session on one of the engine's connections, from its request to its end.

use std::os::fd::OwnedFd;

use tokio::sync::mpsc;
use trunkline::config::{Listen, LocalCommand, LogLevel};
use trunkline::{ChannelStream, Error, Execution, Host, PredictMode};

use super::asked::{Asked, Departure};
use super::events::OverControlSocket;
use super::forwards::Forwards;
use super::running::Running;
use super::spec::Spec;
use super::streams::{Streams, tunnel};
use crate::protocol::{Escapes, Predict, Program, Reply, Request};

/// A session on a known host.
pub(crate) struct Hosted<'a> {
    pub(crate) asked: &'a Asked<'a>,
    pub(crate) host: Host,
    /// The host was connected before.
    pub(crate) warm: bool,
}

impl Hosted<'_> {
    /// Runs the session to its end, and returns the last frame.
    ///
    /// # Errors
    /// The session is not allowed, recorded or started, or it fails.
    pub(crate) async fn run(
        &self,
        fds: Vec<OwnedFd>,
        mut inputs: mpsc::Receiver<Request>,
    ) -> Result<Reply, Error> {
        let Self { asked, host, .. } = self;
        let config = host.config();
        let mut streams = Streams::new(asked.request.stdio, fds)?;
        if let Some(log) = asked.observers.log {
            log.host(host, asked.interaction);
            if config.stdin_null {
                streams.close_stdin();
            }
        }
        let spec = Spec::from_request(asked.request, config)?;
        let question = spec.question(&config.original_host);
        asked.may_end(Box::pin(host.confirm_use(&question))).await?;
        let recorded = asked
            .observers
            .audit
            .begin(|subject| spec.refine(subject, config));
        asked.may_end(Box::pin(recorded)).await?;
        match &spec.program {
            Program::Stdio(..) | Program::StdioSocket(_) => {
                let local_command = self.run_local_command(&mut inputs);
                asked.may_end(Box::pin(local_command)).await?;
                let stream = asked.may_end(Box::pin(connect(host, &spec.program))).await?;
                Ok(carry(asked, stream, self.warm, streams, inputs).await)
            }
            Program::Listen(host, port) => {
                let (host, port) = (host.clone(), *port);
                self.listen(&Listen::Tcp { host, port }, inputs).await
            }
            Program::ListenSocket(path) => self.listen(&Listen::Socket(path.into()), inputs).await,
            _ => Box::pin(self.run_beside_forwards(&spec, streams, inputs)).await,
        }
    }

    async fn listen(&self, listen: &Listen, inputs: mpsc::Receiver<Request>) -> Result<Reply, Error> {
        let Self { asked, host, .. } = self;
        asked.may_end(Box::pin(host.warm())).await?;
        asked.waiting.listen(host, listen, asked.replies, inputs).await
    }

    /// Runs the session beside its forwardings. If the session fails, forwarded connections end. If it ends normally,
    /// they continue: a private daemon, which ends with its client, waits for them, as ssh does.
    async fn run_beside_forwards(
        &self,
        spec: &Spec,
        streams: Streams,
        mut inputs: mpsc::Receiver<Request>,
    ) -> Result<Reply, Error> {
        let asked = self.asked;
        let forwards = Forwards::start(
            asked.engine,
            &self.host,
            asked.interaction,
            asked.request.host.clone(),
            asked.observers.audit,
        );
        let forwards = match asked.may_end(Box::pin(forwards)).await? {
            Ok(forwards) => forwards,
            Err(failure) => return Ok(Reply::Failed(failure)),
        };
        let ended = async {
            let local_command = self.run_local_command(&mut inputs);
            asked.may_end(Box::pin(local_command)).await?;
            match spec.program {
                Program::Nothing => self.hold(&forwards, inputs).await,
                _ => self.run_command(spec, &forwards, streams, inputs).await,
            }
        };
        let ended = Box::pin(ended).await;
        if ended.is_err() {
            forwards.abort().await;
        } else if asked.is_private() {
            let finished = Box::pin(forwards.finish());
            asked.terminated.run_until_cancelled(finished).await;
        } else {
            // Before the client hears of the end, since its next command may ask for the same addresses.
            forwards.end().await;
        }
        ended
    }

    /// Keeps the connection for the forwardings alone (`-N`).
    async fn hold(&self, forwards: &Forwards<'_>, inputs: mpsc::Receiver<Request>) -> Result<Reply, Error> {
        let Self { asked, host, warm } = self;
        asked.may_end(Box::pin(host.warm())).await?;
        if asked.is_for_ssh() {
            self.show_banner();
        }
        asked
            .observers
            .say(LogLevel::Debug1, "Entering interactive session.");
        let events = OverControlSocket::plain(asked.replies, *warm);
        self.running(&events, forwards).hold(inputs).await
    }

    /// Runs a command, a shell or a subsystem.
    async fn run_command(
        &self,
        spec: &Spec,
        forwards: &Forwards<'_>,
        streams: Streams,
        inputs: mpsc::Receiver<Request>,
    ) -> Result<Reply, Error> {
        let Self { asked, host, .. } = self;
        if spec.lacks_terminal && asked.is_for_ssh() {
            let lack = "Pseudo-terminal will not be allocated because stdin is not a terminal.";
            asked.interaction.notice(lack);
        }
        let starting = spec.start(host, asked.engine, asked.observers);
        let started = asked.may_end(Box::pin(starting)).await;
        let started = started.map_err(|error| match spec.command.may_have_left() {
            true => error.with_execution(Execution::MayHaveStarted),
            false => error,
        })?;
        let events = OverControlSocket {
            replies: asked.replies,
            begun: self.beginning(spec),
            predicts_on: Some(host),
            tell_exit: asked.request.tell_exit,
        };
        let running = self.running(&events, forwards);
        // As in ssh, once the user is authenticated.
        let showing = async {
            // Does not reconnect for these alone: the session's own connection may have failed by now.
            if let Some(log) = asked.observers.log
                && host.logged_in().await
            {
                self.show_banner();
                log.program(&spec.program, host.config(), &asked.request.host.world);
            }
            Ok(())
        };
        // A command may end before its connection is reported.
        let run = Box::pin(running.run(started, streams, inputs));
        let ((), ended) = tokio::try_join!(biased; showing, run)?;
        let said = format!("Exit status {}", ended.code());
        asked.observers.say(LogLevel::Debug1, said);
        Ok(Reply::Exit(ended))
    }

    fn running<'a>(
        &'a self,
        events: &'a OverControlSocket<'a>,
        forwards: &'a Forwards<'a>,
    ) -> Running<'a, OverControlSocket<'a>> {
        Running {
            deadline: self.asked.deadline,
            detached: Some(&self.asked.detached),
            forwards: Some(forwards),
            needs_terminal: self.asked.is_for_ssh(),
            ..Running::new(&self.host, events, self.asked.observers)
        }
    }

    /// Returns the message that a command has started.
    fn beginning(&self, spec: &Spec) -> Reply {
        let config = self.host.config();
        let tty = spec.pty.is_some();
        let mode = self.asked.engine.predicts(config);
        Reply::Begun {
            tty,
            escapes: Escapes {
                character: config.escape_char.filter(|_| tty),
                command_line: config.enable_escape_commandline,
                local_commands: config.permit_local_command,
            },
            warm: self.warm,
            hostname: config.hostname.clone(),
            // The round-trip time is filled in later.
            predict: (tty && mode != PredictMode::Never).then_some(Predict {
                always: mode == PredictMode::Always,
                round_trip: None,
            }),
        }
    }

    /// Makes the client run LocalCommand, if configured, once the host is connected, and waits for its end.
    async fn run_local_command(&self, inputs: &mut mpsc::Receiver<Request>) -> Result<(), Error> {
        let Self { asked, host, .. } = self;
        let command = host.config().local_command.as_ref();
        let Some(LocalCommand(command)) = command.filter(|_| asked.is_for_ssh()) else {
            return Ok(());
        };
        host.warm().await?;
        let _ = asked.replies.send(Reply::LocalCommand(command.clone())).await;
        loop {
            match inputs.recv().await {
                Some(Request::LocalCommandDone) => return Ok(()),
                // Nothing has started that other requests could be about.
                None => return Err(Departure::Gone.error(&host.config().original_host)),
                Some(_) => {}
            }
        }
    }

    /// Shows the banner of the host's connection to a user who was not shown it while the connection was made.
    fn show_banner(&self) {
        let interaction = self.asked.interaction;
        if !self.host.config().tells() || interaction.has_shown_banner() {
            return;
        }
        let info = self.host.lanes().into_iter().find_map(|lane| lane.info);
        if let Some(info) = info.filter(|info| !info.banner.is_empty()) {
            interaction.banner(&info.banner);
        }
    }
}

/// Carries a connection from the server.
pub(crate) async fn carry_incoming(
    asked: &Asked<'_>,
    number: u64,
    fds: Vec<OwnedFd>,
    inputs: mpsc::Receiver<Request>,
) -> Result<Reply, Error> {
    asked.observers.audit.begin(|subject| subject).await?;
    let streams = Streams::new(asked.request.stdio, fds)?;
    let connection = asked.waiting.take(asked.name(), number)?;
    Ok(carry(asked, connection.accept(), true, streams, inputs).await)
}

async fn carry(
    asked: &Asked<'_>,
    stream: ChannelStream,
    warm: bool,
    streams: Streams,
    inputs: mpsc::Receiver<Request>,
) -> Reply {
    let events = OverControlSocket::plain(asked.replies, warm);
    tunnel(streams, stream, inputs, &events, asked.observers.audit).await
}

/// Connects to a tunnel's target.
async fn connect(host: &Host, program: &Program) -> Result<ChannelStream, Error> {
    match program {
        Program::Stdio(target, port) => host.direct_tcpip(target, *port, ("127.0.0.1", 0)).await,
        Program::StdioSocket(path) => host.direct_streamlocal(path).await,
        _ => Err(Error::Bug("a session is not a tunnel")),
    }
}
