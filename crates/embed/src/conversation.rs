//! A session in the daemon, whose data goes between the daemon and the descriptors that came with the request: what is said
//! about it meanwhile.

use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{SetOnce, mpsc, oneshot};
use trunkline::prompt::{Prompt, PromptKind};
use trunkline::{ExitStatus, Interaction};
use trunkline_control::client::{Client, ClientError, ReplyReader, RequestWriter};
use trunkline_control::protocol::{Program, Reply, Request, SessionRequest};
use trunkline_request::failure::{ErrorKind, Failure};

/// Sends requests to a session. It ends with its last clone: the daemon's client has left.
#[derive(Debug, Clone)]
pub(crate) struct Control(mpsc::UnboundedSender<Option<Request>>);

impl Control {
    /// Says something; a session that is over does not hear it.
    pub(crate) fn send(&self, request: Request) {
        let _ = self.0.send(Some(request));
    }

    /// Ends the session, whoever else has a clone of this.
    pub(crate) fn close(&self) {
        let _ = self.0.send(None);
    }
}

/// The progress of a session, for its streams, which do not say themselves why they end.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Its output has ended; whether by the server's word.
    pub(crate) output: SetOnce<bool>,
    /// Its command has ended so, and it has not.
    pub(crate) exit: SetOnce<ExitStatus>,
    /// It goes on without this program.
    pub(crate) background: SetOnce<()>,
    /// It is over.
    pub(crate) end: SetOnce<()>,
}

impl Course {
    pub(crate) fn output_ended(&self, complete: bool) {
        // The first word on it holds.
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
    /// Waits until the server has confirmed the start. To be asked once.
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

    /// Waits for the end, which comes when the daemon has written all output. To be asked once; cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<ExitStatus, Failure> {
        (&mut self.done).await.unwrap_or_else(|_| Err(daemon_failure()))
    }

    pub(crate) fn course(&self) -> &Arc<Course> {
        &self.course
    }
}

/// Starts a session with a client that has made no request yet. `fds` are those that the request's streams want. Questions
/// go to `interaction`.
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
    // One that cannot be handed over has not begun.
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
        // Whoever does not wait for the end need not hear of it.
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

/// The daemon's answer to a request without a session; questions go to `interaction`.
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
            Reply::Ask {
                text,
                echo,
                kind,
                host,
            } => {
                let answer = put(interaction, text, echo, kind, host).await;
                client.send(&Request::Answer(answer)).await?;
            }
            Reply::Failed(failure) => return Err(failure),
            reply => return Ok(reply),
        }
    }
}

/// The daemon is gone in the middle.
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
        // A tunnel's server has said so before.
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
                    // The daemon sees that its client has left, and closes the channel.
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
                Reply::Ask {
                    text,
                    echo,
                    kind,
                    host,
                } => {
                    let interaction = self.interaction.clone();
                    let mut asked = pin!(put(&interaction, text, echo, kind, host));
                    // Whoever is asked may never answer: a session that is given up meanwhile is not to wait for it.
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
                    // Whoever does not wait for such news need not hear them.
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

/// Puts a question of the daemon's to whoever answers.
async fn put(
    interaction: &Interaction,
    text: String,
    echo: bool,
    kind: PromptKind,
    host: String,
) -> Option<String> {
    let mut prompt = Prompt::new(kind, text, echo);
    prompt.host = host;
    let answer = interaction.prompter().ask(&prompt).await;
    answer.map(|answer| answer.to_string())
}
