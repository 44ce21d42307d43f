//! The messages about a session in the daemon. Its data goes directly between the daemon and the descriptors of the
//! request.

use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{SetOnce, mpsc, oneshot};
use trunkline::prompt::Prompt;
use trunkline::{ExitStatus, Interaction};
use trunkline_control::client::{Client, ClientError, ReplyReader, RequestWriter};
use trunkline_control::protocol::{Program, Reply, Request, SessionRequest};
use trunkline_request::failure::{ErrorKind, Failure};

/// Sends requests to a session. Dropping the last clone ends the session, since the daemon's client has left.
#[derive(Debug, Clone)]
pub(crate) struct Control(mpsc::UnboundedSender<Option<Request>>);

impl Control {
    /// Sends a request. A session that has ended ignores it.
    pub(crate) fn send(&self, request: Request) {
        let _ = self.0.send(Some(request));
    }

    /// Ends the session, even if there are other clones.
    pub(crate) fn close(&self) {
        let _ = self.0.send(None);
    }
}

/// The progress of a session, for its streams, which do not tell why they end.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Set when the output has ended; true if the server has ended it.
    pub(crate) output: SetOnce<bool>,
    /// Set when the command has ended before the session.
    pub(crate) exit: SetOnce<ExitStatus>,
    /// Set when it continues without this program.
    pub(crate) background: SetOnce<()>,
    /// Set when it has ended.
    pub(crate) end: SetOnce<()>,
}

impl Course {
    pub(crate) fn output_ended(&self, complete: bool) {
        // The first value counts.
        let _ = self.output.set(complete);
    }
}

/// The start and the end of a session.
#[derive(Debug)]
pub(crate) struct End {
    started: oneshot::Receiver<Result<(), Failure>>,
    told: mpsc::UnboundedReceiver<Reply>,
    done: oneshot::Receiver<Result<ExitStatus, Failure>>,
    course: Arc<Course>,
}

impl End {
    /// Waits until the server has confirmed the start. May be called once.
    pub(crate) async fn wait_for_start(&mut self) -> Result<(), Failure> {
        (&mut self.started)
            .await
            .unwrap_or_else(|_| Err(daemon_failure()))
    }

    /// Returns the daemon's next other report about the session ([`Reply::Listening`], [`Reply::Incoming`],
    /// [`Reply::Placement`]); `None` at its end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Reply> {
        self.told.recv().await
    }

    /// Waits for the end, which is after the daemon has written all output. May be called once; cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<ExitStatus, Failure> {
        (&mut self.done).await.unwrap_or_else(|_| Err(daemon_failure()))
    }

    pub(crate) fn course(&self) -> &Arc<Course> {
        &self.course
    }
}

/// Starts a session with a client that has made no request yet. `fds` are the descriptors of the request's streams.
/// Questions go to `interaction`.
pub(crate) async fn start(
    client: Client,
    request: SessionRequest,
    fds: &[BorrowedFd<'_>],
    interaction: &Interaction,
) -> Result<(Control, End), Failure> {
    let is_tunnel = matches!(
        request.program,
        Program::Stdio(..) | Program::StdioSocket(_) | Program::Incoming(_)
    );
    // A request that cannot be sent has not started anything.
    client
        .send_with(&Request::Session(Box::new(request)), fds)
        .await?;
    let (replies, requests) = client.into_split();
    let (control, said) = mpsc::unbounded_channel();
    let (started, when_started) = oneshot::channel();
    let (done, when_done) = oneshot::channel();
    let (tell, told) = mpsc::unbounded_channel();
    let course = Arc::new(Course::default());
    let attended = Attended {
        replies,
        requests,
        is_tunnel,
        started: Some(started),
        tell,
        course: course.clone(),
        interaction: interaction.clone(),
    };
    tokio::spawn(async move {
        // The end may not be waited for.
        let _ = done.send(attended.attend(said).await);
    });
    let end = End {
        started: when_started,
        told,
        done: when_done,
        course,
    };
    Ok((Control(control), end))
}

/// Sends a request that needs no session, and returns the daemon's answer. Questions go to `interaction`.
pub(crate) async fn ask(
    client: &mut Client,
    request: &Request,
    interaction: &Interaction,
) -> Result<Reply, Failure> {
    client.send(request).await?;
    loop {
        match client.next().await? {
            Reply::Welcome { .. } => {}
            Reply::Waiting(waiting) => interaction.waiting(waiting.as_ref()),
            Reply::Notice(text) => interaction.notice(&text),
            Reply::Ask(prompt) => {
                let answer = put(interaction, &prompt).await;
                client.send(&Request::Answer(answer)).await?;
            }
            Reply::Failed(failure) => return Err(failure),
            reply => return Ok(reply),
        }
    }
}

/// Returns the failure for a daemon that ended during a session.
fn daemon_failure() -> Failure {
    Failure::from(ClientError::Gone).after_start()
}

struct Attended {
    replies: ReplyReader,
    requests: RequestWriter,
    is_tunnel: bool,
    started: Option<oneshot::Sender<Result<(), Failure>>>,
    tell: mpsc::UnboundedSender<Reply>,
    course: Arc<Course>,
    interaction: Interaction,
}

impl Attended {
    async fn attend(mut self, said: mpsc::UnboundedReceiver<Option<Request>>) -> Result<ExitStatus, Failure> {
        let outcome = self
            .converse(said)
            .await
            .unwrap_or_else(|error| Err(Failure::from(error).after_start()));
        self.tell_start(outcome.as_ref().map(drop).map_err(Clone::clone));
        // A tunnel's server has reported it before.
        self.course.output_ended(outcome.is_ok() && !self.is_tunnel);
        let _ = self.course.end.set(());
        outcome
    }

    async fn converse(
        &mut self,
        mut said: mpsc::UnboundedReceiver<Option<Request>>,
    ) -> Result<Result<ExitStatus, Failure>, ClientError> {
        loop {
            let reply = tokio::select! {
                request = said.recv() => match request.flatten() {
                    Some(request) => {
                        self.requests.send(&request).await?;
                        continue;
                    }
                    // The daemon notices that its client has left, and closes the channel.
                    None => return Ok(Err(Failure::closed_locally("session").after_start())),
                },
                reply = self.replies.next() => reply?,
            };
            match reply {
                Reply::Exit(exit) => return Ok(Ok(exit)),
                Reply::Exited(exit) => drop(self.course.exit.set(exit)),
                Reply::Failed(failure) => return Ok(Err(failure)),
                Reply::UseSystemSsh { reasons, .. } => {
                    let message = format!("this host needs the system's ssh: {}", reasons.join("; "));
                    return Ok(Err(Failure::new(ErrorKind::Configuration, message)));
                }
                Reply::Notice(text) => self.interaction.notice(&text),
                Reply::Waiting(waiting) => self.interaction.waiting(waiting.as_ref()),
                Reply::Begun { .. } => self.tell_start(Ok(())),
                Reply::Done => drop(self.course.background.set(())),
                Reply::Ask(prompt) => {
                    let mut asked = pin!(put(&self.interaction, &prompt));
                    // The user may never answer: a session that is closed meanwhile must not wait for that.
                    let answer = loop {
                        tokio::select! {
                            answer = &mut asked => break answer,
                            request = said.recv() => match request.flatten() {
                                Some(request) => self.requests.send(&request).await?,
                                None => return Ok(Err(Failure::closed_locally("session").after_start())),
                            },
                        }
                    };
                    self.requests.send(&Request::Answer(answer)).await?;
                }
                reply => {
                    if self.is_tunnel && matches!(&reply, Reply::Output(rest) if rest.is_empty()) {
                        self.course.output_ended(true);
                    }
                    // The reports may not be waited for.
                    let _ = self.tell.send(reply);
                }
            }
        }
    }

    fn tell_start(&mut self, outcome: Result<(), Failure>) {
        if let Some(started) = self.started.take() {
            let _ = started.send(outcome);
        }
    }
}

/// Passes a question from the daemon to the answering side.
async fn put(interaction: &Interaction, prompt: &Prompt) -> Option<String> {
    let answer = interaction.prompter().ask(prompt).await;
    answer.map(|answer| answer.to_string())
}
