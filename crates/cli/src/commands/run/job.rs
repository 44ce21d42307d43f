//! One host's part of a run: its session, input, questions and output.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use trunkline_control::client::Client;
use trunkline_control::protocol::{
    ExitStatus, Failure, HostRequest, Program, Reply, Request, SessionRequest, Stdio,
};
use trunkline_request::failure::{Cause, ErrorKind};
use trunkline_request::hosts::Target;
use trunkline_request::{Backoff, World};
use trunkline_text::Printable;
use zeroize::Zeroizing;

use super::rolling::Failures;
use super::sudo::{Asker, SharedPassword, Sign, Tokens, Watch};
use crate::backend::Backend;
use crate::hints;
use crate::questions::{Conversation, Undecided};
use crate::report::colours::Colours;
use crate::report::lines::{LinePrefixer, Names, Stream};
use crate::report::output::{Output, Store};
use crate::report::progress::Progress;
use crate::report::{Execution, HostResult, INTERRUPTED, Outcome, SKIPPED, Trouble};
use crate::spool::{Feed, HostInput, NotWhole};

/// The display of a run.
#[derive(Debug)]
pub struct View {
    pub(super) progress: Progress,
    /// Lines are printed as they arrive.
    pub(super) live: bool,
    /// The store for output that is shown later.
    pub(super) keep: Option<Arc<Store>>,
    pub(super) names: Names,
    pub(super) colours: Colours,
    pub(super) error_colours: Colours,
    /// Set when standard output is closed.
    pub(super) is_unread: AtomicBool,
}

/// One host's output, shown and kept.
#[derive(Debug)]
pub(super) struct Collected<'a> {
    view: &'a View,
    stdout: Output,
    stderr: Output,
    out: LinePrefixer,
    err: LinePrefixer,
}

impl<'a> Collected<'a> {
    /// Returns an empty output for the host of this name and number.
    pub(super) fn new(view: &'a View, name: &str, number: usize) -> Self {
        let output = || view.keep.as_ref().map(Output::new).unwrap_or_default();
        let prefixer = |stream, colours| LinePrefixer::new(&view.names, name, number, stream, colours);
        Self {
            view,
            stdout: output(),
            stderr: output(),
            out: prefixer(Stream::Stdout, view.colours),
            err: prefixer(Stream::Stderr, view.error_colours),
        }
    }

    /// Shows an incomplete last line, and returns the kept output.
    pub(super) fn end(self) -> (Output, Output) {
        if self.view.live {
            for (prefixer, stream) in [(self.out, Stream::Stdout), (self.err, Stream::Stderr)] {
                let mut lines = Vec::new();
                prefixer.finish(&mut lines);
                let _ = show(self.view, stream, &lines);
            }
        }
        (self.stdout, self.stderr)
    }

    pub(super) fn add(&mut self, stream: Stream, data: &[u8]) -> std::io::Result<()> {
        let (kept, prefixer) = match stream {
            Stream::Stdout => (&mut self.stdout, &mut self.out),
            Stream::Stderr => (&mut self.stderr, &mut self.err),
        };
        if self.view.keep.is_some() {
            kept.add(data)?;
        }
        if !self.view.live {
            return Ok(());
        }
        let mut lines = Vec::new();
        prefixer.feed(data, &mut lines);
        show(self.view, stream, &lines)
    }
}

fn show(view: &View, stream: Stream, lines: &[u8]) -> std::io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let written = match stream {
        Stream::Stdout => view.progress.write(&mut std::io::stdout(), lines),
        Stream::Stderr => view.progress.write(&mut std::io::stderr(), lines),
    };
    if let Err(error) = &written
        && error.kind() == std::io::ErrorKind::BrokenPipe
    {
        view.is_unread.store(true, Ordering::Relaxed);
    }
    written
}

/// The state that all hosts of a run share.
pub(super) struct Common<'a> {
    pub(super) backend: &'a Backend,
    pub(super) world: World,
    pub(super) limit: Option<Duration>,
    /// The maximum number of retries for a host on which nothing can have run.
    pub(super) retries: u32,
    pub(super) failures: Failures,
    pub(super) password: SharedPassword,
    pub(super) interrupted: watch::Receiver<bool>,
    pub(super) view: View,
}

/// One host's part of a run.
pub(super) struct Job<'a> {
    pub(super) common: &'a Common<'a>,
    /// Its number in the list, from 1.
    pub(super) number: usize,
    pub(super) target: Target,
    pub(super) ssh_args: Vec<OsString>,
    pub(super) command: Vec<u8>,
    /// Recognises sudo's question, if sudo runs the command.
    pub(super) sudo: Option<Arc<Tokens>>,
    pub(super) input: HostInput,
}

impl Job<'_> {
    pub(super) async fn run(self) -> HostResult {
        let (started, begun) = (SystemTime::now(), Instant::now());
        let mut progressed = Progressed::default();
        let view = &self.common.view;
        let name = &self.target.name;
        let mut collected = Collected::new(view, name, self.number);
        let outcome = match self.not_to_start() {
            Some(outcome) => outcome,
            None => {
                view.progress.start(name);
                self.tries(&mut collected, &mut progressed).await
            }
        };
        let (stdout, stderr) = {
            let questions = self.common.backend.questions();
            let _quiet = if view.live {
                Some(questions.quiet().await)
            } else {
                None
            };
            collected.end()
        };
        if !outcome.is_success() {
            self.common.failures.add();
        }
        HostResult {
            host: self.target.name,
            number: self.number,
            address: self.target.destination,
            outcome,
            stdout,
            stderr,
            started,
            elapsed: begun.elapsed(),
            warm: progressed.warm,
            trouble: progressed.trouble,
        }
    }

    /// Returns the outcome of a host that must not start any more.
    fn not_to_start(&self) -> Option<Outcome> {
        let (kind, message) = match self.common.failures.too_many() {
            _ if *self.common.interrupted.borrow() => (INTERRUPTED, RUN_INTERRUPTED),
            Some(_) => (SKIPPED, "too many other hosts had failed"),
            None => return None,
        };
        Some(Outcome::Failed {
            kind: kind.into(),
            message: message.into(),
            execution: Execution::DidNotStart,
        })
    }

    /// Runs the command, and retries as configured while nothing can have run and the failure may be temporary.
    async fn tries(&self, collected: &mut Collected<'_>, progressed: &mut Progressed) -> Outcome {
        let mut failures = 0;
        loop {
            *progressed = Progressed::default();
            let outcome = self.attempts(collected, progressed).await;
            let outcome = outcome.unwrap_or_else(|error| {
                progressed.trouble = Some(Trouble::ThisMachine);
                Outcome::Failed {
                    kind: "local".into(),
                    message: format!("{error:#}"),
                    execution: progressed.execution(),
                }
            });
            let Outcome::Failed {
                message,
                execution: Execution::DidNotStart,
                ..
            } = &outcome
            else {
                return outcome;
            };
            if !progressed.may_pass || failures == self.common.retries || self.not_to_start().is_some() {
                return outcome;
            }
            failures += 1;
            let pause = RETRY.pause_after(failures);
            let text = format!(
                "{message}; trying again in {} s ({failures} of {})",
                pause.as_secs(),
                self.common.retries
            );
            let _ = self.notice(&text);
            let mut interrupted = self.common.interrupted.clone();
            if tokio::time::timeout(pause, interrupted.wait_for(|now| *now))
                .await
                .is_ok()
            {
                return outcome;
            }
        }
    }

    fn notice(&self, text: &str) -> std::io::Result<()> {
        let line = format!(
            "trunkline: {}: {}\n",
            self.target.name,
            Printable::line(text.trim_end())
        );
        show(&self.common.view, Stream::Stderr, line.as_bytes())
    }

    /// Runs the command at most once.
    async fn attempts(
        &self,
        collected: &mut Collected<'_>,
        progressed: &mut Progressed,
    ) -> anyhow::Result<Outcome> {
        match self.attempt(true, collected, progressed).await? {
            Attempt::Over(outcome) => return Ok(outcome),
            Attempt::NeedsSystemSsh(_) => {}
        }
        // Nothing has started. If no one can be asked, the daemon runs the system's ssh itself.
        Ok(match self.attempt(false, collected, progressed).await? {
            Attempt::Over(outcome) => outcome,
            Attempt::NeedsSystemSsh(reasons) => Outcome::Failed {
                kind: "configuration".into(),
                message: format!("needs the system's ssh: {}", reasons.join("; ")),
                execution: Execution::DidNotStart,
            },
        })
    }

    async fn attempt(
        &self,
        answers: bool,
        collected: &mut Collected<'_>,
        progressed: &mut Progressed,
    ) -> anyhow::Result<Attempt> {
        let work = self.converse(answers, collected, progressed);
        let Some(limit) = self.common.limit else {
            return work.await;
        };
        // The daemon keeps the time limit; this covers a daemon that does not answer.
        let Ok(attempt) = tokio::time::timeout(limit + GRACE, work).await else {
            let seconds = limit.as_secs_f64();
            return Ok(Attempt::Over(Outcome::Failed {
                kind: "timeout".into(),
                message: format!("timed out after {seconds} s"),
                execution: progressed.execution(),
            }));
        };
        attempt
    }

    fn request(&self, answers: bool, stdin: Stdio) -> SessionRequest {
        let host = HostRequest::new(
            self.target.destination.clone(),
            self.ssh_args.clone(),
            self.common.world.clone(),
        );
        let program = Program::Exec(self.command.clone());
        SessionRequest {
            answers,
            limit: self.common.limit,
            ..SessionRequest::new(host, program, [stdin, Stdio::Framed, Stdio::Framed])
        }
    }

    /// Opens the session and begins its input. Returns the part of the input that still has to be fed.
    async fn open(&self, answers: bool) -> anyhow::Result<(Client, Option<Feed>)> {
        let backend = self.common.backend;
        let begun = self.input.begin(self.sudo.is_some());
        Ok(match begun.context("passing on the input")? {
            Some((fd, feed)) => {
                let request = self.request(answers, Stdio::Passed);
                (backend.ask_for(request, &[fd.as_fd()]).await?, feed)
            }
            None => {
                let request = self.request(answers, Stdio::Null);
                (backend.ask_for(request, &[]).await?, None)
            }
        })
    }

    /// Returns why sudo gets no password.
    async fn explain_unanswered(&self) -> Stopping {
        let Common {
            interrupted, backend, ..
        } = self.common;
        let is_over = *interrupted.borrow() || backend.questions().were_interrupted().await;
        let (kind, why) = match is_over {
            true => (INTERRUPTED, RUN_INTERRUPTED),
            false => (SUDO, "sudo asks for a password, and nobody gave one"),
        };
        Stopping::new(kind, why.to_owned(), None)
    }

    async fn converse(
        &self,
        answers: bool,
        collected: &mut Collected<'_>,
        progressed: &mut Progressed,
    ) -> anyhow::Result<Attempt> {
        let backend = self.common.backend;
        let (client, feed) = self.open(answers).await?;
        // A request that the daemon received only in part has no effect.
        progressed.asked = true;
        let mut talk = Conversation::new(client, backend.questions()).with_place(self.number);
        let password = &self.common.password;
        let mut input = Feeding::new(feed, self.sudo.as_ref(), (password, self.number));
        let mut interrupted = self.common.interrupted.clone();
        let mut stopping: Option<Stopping> = None;
        loop {
            let deadline = stopping.as_ref().map(|stopping| stopping.deadline);
            let reply = tokio::select! {
                biased;
                Ok(_) = interrupted.wait_for(|now| *now), if stopping.is_none() => {
                    talk.withdraw();
                    talk.send(&Request::Terminate).await?;
                    let message = "SIGTERM was sent".to_owned();
                    stopping = Some(Stopping::new(INTERRUPTED, message, None));
                    continue;
                }
                reply = talk.next() => reply?,
                fed = input.wait_for_feed() => {
                    if let Err((message, pipe)) = fed {
                        talk.send(&Request::Terminate).await?;
                        stopping = Some(Stopping::new("local", message, Some(pipe)));
                    }
                    continue;
                }
                () = sleep_until(deadline) => {
                    let Some(stopping) = stopping else { continue };
                    let execution = match input.given_up {
                        true => Execution::DidNotStart,
                        false => Execution::MayHaveStarted,
                    };
                    return Ok(Attempt::Over(stopping.outcome(execution)));
                }
            };
            if let Reply::ErrorOutput(data) = &reply
                && let Some(asked) = input.watch(data, password)
            {
                // sudo's message after we ended it says nothing about the host.
                if !asked.shown.is_empty() && stopping.is_none() {
                    let _quiet = talk.quiet().await?;
                    collected.add(Stream::Stderr, &asked.shown)?;
                }
                if asked.question {
                    let host = (self.target.name.as_str(), self.number);
                    let answering = input.answer(host, password, backend.questions());
                    let answered = tokio::select! {
                        answered = answering => answered,
                        _ = interrupted.wait_for(|now| *now) => false,
                    };
                    if !answered {
                        input.give_up();
                        talk.send(&Request::Terminate).await?;
                        stopping = Some(self.explain_unanswered().await);
                    }
                }
                continue;
            }
            if !matches!(reply, Reply::Begun { .. }) {
                let _quiet = talk.quiet().await?;
                match &reply {
                    Reply::Output(data) => collected.add(Stream::Stdout, data)?,
                    Reply::ErrorOutput(data) => collected.add(Stream::Stderr, data)?,
                    Reply::Notice(text) => self.notice(text)?,
                    Reply::Exit(_) if stopping.is_none() => {
                        collected.add(Stream::Stderr, &input.rest())?;
                    }
                    _ => {}
                }
            }
            let over = match reply {
                Reply::Begun { warm, .. } => {
                    progressed.warm = warm;
                    continue;
                }
                Reply::Exit(exit) if input.is_before_beginning() => match stopping {
                    Some(stopping) => stopping.outcome(Execution::DidNotStart),
                    None => Outcome::Failed {
                        kind: SUDO.into(),
                        message: format!("sudo did not run the command ({})", outcome_of(exit)),
                        execution: Execution::DidNotStart,
                    },
                },
                Reply::Exit(exit) => outcome_of(exit),
                // The session was closed while sudo waited for an answer.
                Reply::Failed(failure) => match stopping {
                    Some(stopping) if input.given_up => stopping.outcome(Execution::DidNotStart),
                    stopping => {
                        progressed.may_pass = failure.kind.may_pass();
                        progressed.trouble = trouble(&failure);
                        let advice = talk.is_unanswered().then_some(self.target.name.as_str());
                        failed_outcome(&failure, advice, stopping)
                    }
                },
                Reply::UseSystemSsh { reasons, .. } => return Ok(Attempt::NeedsSystemSsh(reasons)),
                _ => continue,
            };
            return Ok(Attempt::Over(over));
        }
    }
}

/// The session's input. If sudo runs the command, it is held back until sudo has started it.
struct Feeding<'p> {
    running: Option<Running>,
    waiting: Option<Feed>,
    watch: Option<Watch>,
    asker: Asker,
    /// Set while sudo may ask for a password.
    undecided: Option<Undecided<'p>>,
    /// sudo gets no answer to its question, so the command does not start.
    given_up: bool,
}

type Running = Pin<Box<dyn Future<Output = Result<(), NotWhole>>>>;

/// The part of standard error that belongs to sudo.
struct Watched {
    shown: Vec<u8>,
    question: bool,
}

impl<'p> Feeding<'p> {
    fn new(
        feed: Option<Feed>,
        sudo: Option<&Arc<Tokens>>,
        (password, place): (&'p SharedPassword, usize),
    ) -> Self {
        let mut feeding = Self {
            running: None,
            waiting: feed,
            watch: sudo.cloned().map(Watch::new),
            asker: Asker::default(),
            undecided: sudo.map(|_| password.enter(place)),
            given_up: false,
        };
        if feeding.watch.is_none() {
            feeding.begin();
        }
        feeding
    }

    fn begin(&mut self) {
        if let Some(feed) = self.waiting.take() {
            self.running = Some(Box::pin(feed.run()));
        }
    }

    /// Waits until the input is fed; forever if none is.
    async fn wait_for_feed(&mut self) -> Result<(), NotWhole> {
        let Some(running) = &mut self.running else {
            return std::future::pending().await;
        };
        let fed = running.await;
        self.running = None;
        fed
    }

    /// Takes sudo's part of standard error; `None` once the command has started.
    fn watch(&mut self, data: &[u8], password: &SharedPassword) -> Option<Watched> {
        let watch = self.watch.as_mut()?;
        let mut watched = Watched {
            shown: Vec::new(),
            question: false,
        };
        match watch.take(data, &mut watched.shown) {
            // sudo prints nothing after its question until it is answered.
            Some((Sign::Question, _)) => watched.question = true,
            Some((Sign::Beginning, after)) => {
                watched.shown.extend(after);
                self.watch = None;
                self.asker.note_begun(password);
                self.undecided = None;
                self.begin();
            }
            None => {}
        }
        Some(watched)
    }

    /// Answers sudo's question. Returns false if there was no answer.
    async fn answer(
        &mut self,
        host: (&str, usize),
        password: &SharedPassword,
        questions: &crate::questions::Questions,
    ) -> bool {
        let Some(answer) = self.asker.answer(host, password, questions).await else {
            return false;
        };
        let line = Zeroizing::new(format!("{}\n", *answer));
        if let Some(feed) = &mut self.waiting {
            // A session that takes no more reports that itself.
            let _ = feed.answer(line.as_bytes()).await;
        }
        true
    }

    /// Closes sudo's input instead of answering, which ends a sudo that ignores signals.
    fn give_up(&mut self) {
        self.waiting = None;
        self.undecided = None;
        self.given_up = true;
    }

    /// Returns true if sudo has not run the command yet.
    fn is_before_beginning(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns the part of standard error that was held back until the end.
    fn rest(&mut self) -> Vec<u8> {
        self.watch.as_mut().map(Watch::rest).unwrap_or_default()
    }
}

enum Attempt {
    Over(Outcome),
    NeedsSystemSsh(Vec<String>),
}

/// A session that was told to end.
pub(super) struct Stopping {
    kind: String,
    message: String,
    /// The time by which it has to answer.
    deadline: tokio::time::Instant,
    /// Kept open, so that incomplete input does not look complete.
    _pipe: Option<pipe::Sender>,
}

impl Stopping {
    pub(super) fn new(kind: &str, message: String, pipe: Option<pipe::Sender>) -> Self {
        Self {
            kind: kind.into(),
            message,
            deadline: tokio::time::Instant::now() + GRACE,
            _pipe: pipe,
        }
    }

    /// Returns the host's outcome, given how far its command got.
    fn outcome(self, execution: Execution) -> Outcome {
        let Self { kind, message, .. } = self;
        let (message, execution) = match execution {
            // Without its password, sudo starts nothing.
            _ if kind == SUDO => (message, Execution::DidNotStart),
            Execution::MayHaveStarted => (
                format!("{message}, and the command may still be running"),
                execution,
            ),
            Execution::DidNotStart if kind == INTERRUPTED => (RUN_INTERRUPTED.into(), execution),
            _ => (message, execution),
        };
        Outcome::Failed {
            kind,
            message,
            execution,
        }
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The failure kind of a host on which sudo did not run the command.
const SUDO: &str = "sudo";
/// The message for a host on which nothing was started.
const RUN_INTERRUPTED: &str = "the run was interrupted";

pub(super) fn outcome_of(exit: ExitStatus) -> Outcome {
    match exit {
        ExitStatus::Exited(status) => Outcome::Exited(status),
        ExitStatus::Signaled {
            signal: name,
            core_dumped: core,
        } => Outcome::Signaled { name, core },
        ExitStatus::Unknown => Outcome::Failed {
            kind: "peer".into(),
            message: "the server did not report how the command ended".into(),
            execution: Execution::MayHaveStarted,
        },
    }
}

/// Returns the outcome for a failure. `unanswered`: the host asked, but no one could answer.
pub(super) fn failed_outcome(
    failure: &Failure,
    unanswered: Option<&str>,
    stopping: Option<Stopping>,
) -> Outcome {
    let execution = failure.execution;
    if let Some(stopping) = stopping {
        return stopping.outcome(execution);
    }
    let mut message = hints::append(&failure.message, failure);
    if let Some(name) = unanswered {
        message = format!("{message}; run `trunkline warm {name}` in a terminal to answer its questions");
    }
    Outcome::Failed {
        kind: failure.kind.as_str().to_owned(),
        message,
        execution,
    }
}

/// Returns the cause of a failure, unless it is the host itself.
pub(crate) fn trouble(failure: &Failure) -> Option<Trouble> {
    match failure.kind {
        _ if failure.cause == Cause::Lookup => Some(Trouble::UnknownName),
        ErrorKind::Configuration | ErrorKind::Local if failure.execution == Execution::DidNotStart => {
            Some(Trouble::ThisMachine)
        }
        _ => None,
    }
}

/// The time limit for a host's answer after its own time limit or termination. The daemon gives commands four seconds.
const GRACE: Duration = Duration::from_secs(6);

/// The pauses of `--retry`.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// A host's progress, needed if its time is up.
#[derive(Default)]
struct Progressed {
    /// The daemon has the request. It may send the command along with the login, so that only the daemon knows whether
    /// it has started.
    asked: bool,
    warm: bool,
    /// The failure may be temporary.
    may_pass: bool,
    trouble: Option<Trouble>,
}

impl Progressed {
    fn execution(&self) -> Execution {
        if self.asked {
            Execution::MayHaveStarted
        } else {
            Execution::DidNotStart
        }
    }
}
