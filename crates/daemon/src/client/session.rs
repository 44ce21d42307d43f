//! A session in the daemon, for a program that brings its own streams: it hears of the start and the end, and can say
//! things meanwhile. Its data goes between the daemon and the descriptors that came with the request.

use std::os::fd::BorrowedFd;

use tokio::sync::{mpsc, oneshot};
use trunkline::prompt::{Prompt, PromptKind};
use trunkline::{ErrorKind, Execution, Interaction};

use super::{Client, ClientError, ReplyReader, RequestWriter};
use crate::protocol::{Exit, Failure, Reply, Request, SessionRequest};

/// The [`Failure::kind`] of a session that was closed on this side.
pub const CLOSED: &str = "closed";

/// What can be said to a session. It ends with its last clone: the daemon's client has left.
#[derive(Debug, Clone)]
pub struct Control(mpsc::UnboundedSender<Request>);

impl Control {
    /// Says something; a session that is over does not hear it.
    pub fn send(&self, request: Request) {
        let _ = self.0.send(request);
    }
}

/// The start and the end of a session.
#[derive(Debug)]
pub struct End {
    started: Option<oneshot::Receiver<Result<(), Failure>>>,
    told: mpsc::UnboundedReceiver<Reply>,
    done: oneshot::Receiver<Result<Exit, Failure>>,
}

impl End {
    /// Waits until the server has confirmed the start.
    ///
    /// # Errors
    /// Why there is no session.
    pub async fn started(&mut self) -> Result<(), Failure> {
        let Some(started) = &mut self.started else {
            return Ok(());
        };
        let outcome = started.await.unwrap_or_else(|_| Err(gone()));
        self.started = None;
        outcome
    }

    /// What else the daemon tells of the session ([`Reply::Listening`], [`Reply::Incoming`], [`Reply::Placement`]); `None`
    /// at its end. Cancel-safe.
    pub async fn next(&mut self) -> Option<Reply> {
        self.told.recv().await
    }

    /// Waits for the end of a tunnel's output, and tells whether that was the server's word.
    pub async fn is_complete(&mut self) -> bool {
        while let Some(reply) = self.next().await {
            if matches!(reply, Reply::Output(rest) if rest.is_empty()) {
                return true;
            }
        }
        false
    }

    /// Waits for the end, which comes when the daemon has written all output.
    ///
    /// # Errors
    /// What ended it.
    pub async fn wait(&mut self) -> Result<Exit, Failure> {
        (&mut self.done).await.unwrap_or_else(|_| Err(gone()))
    }
}

/// Starts a session with a client that has made no request yet. `fds` are those that the request's streams want. Questions
/// go to `interaction`. Must be called inside a tokio runtime.
///
/// # Errors
/// The daemon is gone, and nothing has begun.
pub async fn start(
    client: Client,
    request: SessionRequest,
    fds: &[BorrowedFd<'_>],
    interaction: &Interaction,
) -> Result<(Control, End), Failure> {
    client
        .send_with(&Request::Session(Box::new(request)), fds)
        .await
        .map_err(|error| failure(&error, Execution::DidNotStart))?;
    let (replies, requests) = client.into_split();
    let (control, said) = mpsc::unbounded_channel();
    let (started, when_started) = oneshot::channel();
    let (done, when_done) = oneshot::channel();
    let (tell, told) = mpsc::unbounded_channel();
    let attended = Attended {
        replies,
        requests,
        started: Some(started),
        tell,
        interaction: interaction.clone(),
    };
    tokio::spawn(async move {
        // Whoever does not wait for the end need not hear of it.
        let _ = done.send(attended.attend(said).await);
    });
    let end = End {
        started: Some(when_started),
        told,
        done: when_done,
    };
    Ok((Control(control), end))
}

/// The daemon's answer to a request without a session; questions go to `interaction`.
///
/// # Errors
/// The daemon's, or that it is gone.
pub async fn ask(
    client: &mut Client,
    request: &Request,
    interaction: &Interaction,
) -> Result<Reply, Failure> {
    let gone = |error| failure(&error, Execution::DidNotStart);
    client.send(request).await.map_err(gone)?;
    loop {
        match client.next().await.map_err(gone)? {
            Reply::Welcome { .. } => {}
            Reply::Notice(text) => interaction.notice(&text),
            Reply::Ask {
                text,
                echo,
                kind,
                host,
            } => {
                let answer = put(interaction, text, echo, &kind, host).await;
                client.send(&Request::Answer(answer)).await.map_err(gone)?;
            }
            Reply::Failed(failure) => return Err(failure),
            reply => return Ok(reply),
        }
    }
}

/// What a client that cannot reach the daemon has to say, and whether its command may have run.
pub fn failure(error: &ClientError, execution: Execution) -> Failure {
    Failure {
        kind: ErrorKind::Local.as_str().into(),
        message: error.to_string(),
        execution: execution.as_str().into(),
    }
}

fn gone() -> Failure {
    failure(&ClientError::Gone, Execution::MayHaveStarted)
}

struct Attended {
    replies: ReplyReader,
    requests: RequestWriter,
    started: Option<oneshot::Sender<Result<(), Failure>>>,
    tell: mpsc::UnboundedSender<Reply>,
    interaction: Interaction,
}

impl Attended {
    async fn attend(mut self, said: mpsc::UnboundedReceiver<Request>) -> Result<Exit, Failure> {
        let outcome = self
            .converse(said)
            .await
            .unwrap_or_else(|error| Err(failure(&error, Execution::MayHaveStarted)));
        self.tell_start(outcome.as_ref().map(drop).map_err(Clone::clone));
        outcome
    }

    async fn converse(
        &mut self,
        mut said: mpsc::UnboundedReceiver<Request>,
    ) -> Result<Result<Exit, Failure>, ClientError> {
        loop {
            let reply = tokio::select! {
                request = said.recv() => match request {
                    Some(request) => {
                        self.requests.send(&request).await?;
                        continue;
                    }
                    // Closed: the daemon sees that its client has left, and closes the channel.
                    None => return Ok(Err(closed())),
                },
                reply = self.replies.next() => reply?,
            };
            match reply {
                Reply::Exit(exit) => return Ok(Ok(exit)),
                Reply::Failed(failure) => return Ok(Err(failure)),
                Reply::UseSystemSsh { reasons, .. } => return Ok(Err(needs_system_ssh(&reasons))),
                Reply::Notice(text) => self.interaction.notice(&text),
                Reply::Begun { .. } => self.tell_start(Ok(())),
                Reply::Ask {
                    text,
                    echo,
                    kind,
                    host,
                } => {
                    let answer = put(&self.interaction, text, echo, &kind, host).await;
                    self.requests.send(&Request::Answer(answer)).await?;
                }
                // Whoever does not wait for such news need not hear them.
                reply => drop(self.tell.send(reply)),
            }
        }
    }

    fn tell_start(&mut self, outcome: Result<(), Failure>) {
        if let Some(started) = self.started.take() {
            let _ = started.send(outcome);
        }
    }
}

fn closed() -> Failure {
    Failure {
        kind: CLOSED.into(),
        message: "the session is closed".into(),
        execution: Execution::MayHaveStarted.as_str().into(),
    }
}

fn needs_system_ssh(reasons: &[String]) -> Failure {
    Failure {
        kind: ErrorKind::Configuration.as_str().into(),
        message: format!("this host needs the system's ssh: {}", reasons.join("; ")),
        execution: Execution::DidNotStart.as_str().into(),
    }
}

/// Puts a question of the daemon's to whoever answers.
async fn put(
    interaction: &Interaction,
    text: String,
    echo: bool,
    kind: &str,
    host: String,
) -> Option<String> {
    let kind = match kind {
        "passphrase" => PromptKind::Passphrase,
        "password" => PromptKind::Password,
        "host key" => PromptKind::HostKey,
        "keyboard-interactive" => PromptKind::KeyboardInteractive,
        _ => PromptKind::Confirm,
    };
    let mut prompt = Prompt::new(kind, text, echo);
    prompt.host = host;
    let answer = interaction.prompter().ask(&prompt).await;
    answer.map(|answer| answer.to_string())
}
