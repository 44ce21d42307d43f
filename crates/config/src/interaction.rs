//! The dialogue between a connection that is being made and its user.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use tokio::sync::watch;
pub use trunkline_request::{LogLevel, LogLine, Waiting};
use trunkline_text::Printable;

use crate::prompt::{
    Answer, Answerer, Answers, Never, Prompt, PromptKind, Prompter, ServerQuestions, Standard,
};

/// The answerer of questions and the receiver of messages while a connection is made.
#[derive(Clone)]
pub struct Interaction {
    prompter: Arc<dyn Prompter>,
    tell: Arc<Tell>,
    /// `None` if nobody waits.
    show: Option<Arc<Show>>,
    heard: Arc<Announcements>,
    /// Somebody waits, and the user's programs may ask at their terminal.
    is_somebody: bool,
    client: Client,
    /// The log, if it is kept. The lock guards it for the time of a line.
    record: Option<Arc<Mutex<Vec<LogLine>>>>,
    /// The presence of the client, if it is not certain.
    presence: Option<Arc<Presence>>,
}

/// The messages that were sent.
#[derive(Default)]
struct Announcements {
    /// A server's banner.
    banner: AtomicBool,
    /// The hashes of the warnings. The lock guards them for the time of a look-up.
    warnings: Mutex<HashSet<u64>>,
}

type Tell = dyn Fn(MessageKind, &str) + Send + Sync;
type Show = dyn Fn(Option<&Waiting>) + Send + Sync;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// Messages that ssh logs from `LogLevel INFO` on.
    Notice,
    /// Messages that ssh logs from `LogLevel ERROR` on.
    Warning,
    /// The server's banner, which ssh prints, unless it is quiet, and does not log.
    Banner,
    /// A ProxyCommand's standard error, which is ssh's own.
    Proxy,
    /// Messages that ssh logs from this level on.
    Log(LogLevel),
}

/// The reason, other than the network, why a connection that is being made waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldUp {
    /// The client is being asked something.
    Asked(PromptKind),
    /// It waits for the connection that it goes through.
    Waits(Waiting),
}

/// One client of a program that lends its connections. All work for the same client is one use of them. Clones of an
/// [`Interaction`] stand for the same client.
#[derive(Clone, Default)]
pub struct Client(Arc<()>);

/// A client that may be gone.
#[derive(Debug, Clone)]
pub struct KnownClient(Weak<()>);

impl Client {
    /// Returns a weak reference to the client.
    pub fn downgrade(&self) -> KnownClient {
        KnownClient(Arc::downgrade(&self.0))
    }
}

impl KnownClient {
    /// Returns whether any work for the client goes on.
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns whether this is `client`.
    pub fn is(&self, client: &Client) -> bool {
        // The weak reference keeps the memory from being used for another client.
        self.0.as_ptr() == Arc::as_ptr(&client.0)
    }
}

/// The number of warnings that are remembered. Each host that is not verified causes one.
const MOST_TOLD: usize = 4096;

/// The number of lines that are kept from the making of a connection: a server can add lines by refusing keys.
const MOST_RECORDED: usize = 128;

impl Interaction {
    /// Sends questions to `prompter`, and warnings and the server's banner to `notice`, one text at a time.
    pub fn new(prompter: Arc<dyn Prompter>, notice: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self::telling(prompter, move |told, text| {
            if !matches!(told, MessageKind::Log(_)) {
                notice(text);
            }
        })
    }

    /// Like [`Self::new`], with the kind of each text. Shows nobody what it waits for, see [`Self::showing`].
    pub fn telling(
        prompter: Arc<dyn Prompter>,
        tell: impl Fn(MessageKind, &str) + Send + Sync + 'static,
    ) -> Self {
        Self {
            prompter,
            tell: Arc::new(tell),
            show: Some(Arc::new(|_| {})),
            heard: Arc::default(),
            is_somebody: true,
            client: Client::default(),
            record: None,
            presence: None,
        }
    }

    /// Asks nobody; sends warnings to the log.
    pub fn none() -> Self {
        Self {
            is_somebody: false,
            ..Self::new(Arc::new(Never), |text| tracing::warn!("{text}"))
        }
    }

    /// Asks on the terminal or through SSH_ASKPASS, as ssh would in this process's environment; writes warnings to
    /// standard error.
    pub fn standard() -> Self {
        Self::new(Arc::new(Standard::from_env(std::env::vars_os())), |text| {
            eprintln!("{}", text.trim_end());
        })
    }

    /// Returns the prompter that answers the questions.
    pub fn prompter(&self) -> &dyn Prompter {
        &*self.prompter
    }

    /// Returns the client that the work is for.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Tells the user something. Makes the text [`Printable`], because it may quote a server.
    pub fn notice(&self, text: &str) {
        (self.tell)(MessageKind::Notice, &Printable::text(text));
    }

    /// Tells the user that something is wrong.
    pub fn warning(&self, text: &str) {
        (self.tell)(MessageKind::Warning, &Printable::text(text));
    }

    /// Logs a step for somebody who looks for faults; the text never holds a secret.
    pub fn log(&self, level: LogLevel, text: &str) {
        let text = Printable::line(text);
        (self.tell)(MessageKind::Log(level), &text);
        let Some(record) = &self.record else { return };
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.len() < MOST_RECORDED {
            record.push(LogLine {
                at: SystemTime::now(),
                level,
                text: text.into_string(),
            });
        }
    }

    /// Has `show` told what the work waits for, until the next call; `None` says that the wait is over.
    #[must_use]
    pub fn showing(mut self, show: impl Fn(Option<&Waiting>) + Send + Sync + 'static) -> Self {
        self.show = Some(Arc::new(show));
        self
    }

    /// Sets the client's presence. The client may leave before the user of an agent has to be asked for a signature.
    #[must_use]
    pub fn while_present(mut self, presence: Arc<Presence>) -> Self {
        self.presence = Some(presence);
        self
    }

    /// Returns the presence of the client, if it is not certain.
    pub fn presence(&self) -> Option<&Arc<Presence>> {
        self.presence.as_ref()
    }

    /// Waits until it is certain whether the client stays. Without [`Self::while_present`] it does. An agent that may
    /// ask its user signs only after that, because the client's own ssh would ask the same user.
    pub async fn stays(&self) -> bool {
        match &self.presence {
            Some(presence) => presence.stays().await,
            None => true,
        }
    }

    /// Shows what the work waits for; `None` ends the display.
    pub fn waiting(&self, waiting: Option<&Waiting>) {
        if let Some(show) = &self.show {
            show(waiting);
        }
    }

    /// Shows in `held_up` what the client is being asked or waits for.
    #[must_use]
    pub fn watch_with(mut self, held_up: watch::Sender<Option<HeldUp>>) -> Self {
        let (show, waits) = (self.show, held_up.clone());
        self.show = Some(Arc::new(move |waiting| {
            waits.send_replace(waiting.cloned().map(HeldUp::Waits));
            if let Some(show) = &show {
                show(waiting);
            }
        }));
        self.prompter = Arc::new(Watched {
            held_up,
            prompter: self.prompter,
        });
        self
    }

    /// Keeps the log lines from now on for [`Self::take_recorded`].
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.record = Some(Arc::default());
        self
    }

    /// Takes the log lines that were kept.
    pub fn take_recorded(&self) -> Vec<LogLine> {
        let record = self.record.as_ref();
        record.map_or_else(Vec::new, |record| {
            std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Shows the server's banner.
    pub fn banner(&self, text: &str) {
        self.heard.banner.store(true, Ordering::Relaxed);
        (self.tell)(MessageKind::Banner, &Printable::text(text));
    }

    /// Shows a line of a ProxyCommand's standard error.
    pub fn proxy(&self, line: &Printable) {
        (self.tell)(MessageKind::Proxy, line);
    }

    /// Returns whether a banner was shown.
    pub fn has_shown_banner(&self) -> bool {
        self.heard.banner.load(Ordering::Relaxed)
    }

    /// Names `user@host` in each question that names no host.
    #[must_use]
    pub fn about(mut self, user: &str, host: &str) -> Self {
        self.prompter = Arc::new(About {
            host: format!("{user}@{host}"),
            prompter: self.prompter,
        });
        self
    }

    /// Warns the user, and keeps [`Self::warn_once`] from repeating the text to others.
    pub fn warn(&self, text: &str) {
        self.is_news(text);
        self.warning(text);
    }

    /// Warns the user unless they have seen the text.
    pub fn warn_once(&self, text: &str) {
        if self.is_news(text) {
            self.warning(text);
        }
    }

    fn is_news(&self, text: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let mut told = self.heard.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_TOLD {
            told.clear();
        }
        told.insert(hasher.finish())
    }

    /// Asks nobody anything (BatchMode).
    #[must_use]
    pub fn without_questions(mut self) -> Self {
        self.prompter = Arc::new(Never);
        self
    }

    /// Asks no person anything; still asks a program that has its answers at hand. This is for background work.
    #[must_use]
    pub fn without_user(mut self) -> Self {
        self.show = None;
        self.is_somebody = false;
        if self.prompter.answerer() == Answerer::Person {
            self.without_questions()
        } else {
            self
        }
    }

    /// Returns whether the user's programs may ask at the terminal of the person who waits, even if trunkline itself
    /// asks nothing (BatchMode).
    pub fn lends_terminal(&self) -> bool {
        self.is_somebody
    }

    /// Returns whether nobody waits for the work, as in [`Self::without_user`].
    pub fn is_unattended(&self) -> bool {
        self.show.is_none()
    }

    /// Adds a record of what becomes of the questions.
    #[must_use]
    pub fn note_questions(mut self) -> (Self, Arc<Asking>) {
        let asking = Arc::<Asking>::default();
        self.prompter = Arc::new(Noted {
            asking: asking.clone(),
            prompter: self.prompter,
        });
        (self, asking)
    }
}

/// The presence of a client who may leave while a connection is made for them.
#[derive(Debug, Default)]
pub struct Presence {
    decided: watch::Sender<Option<bool>>,
    wanted: watch::Sender<bool>,
}

impl Presence {
    /// Says that the client stays or has left. Only the first call counts.
    pub fn decide(&self, stays: bool) {
        self.decided.send_if_modified(|decided| {
            let is_first = decided.is_none();
            decided.get_or_insert(stays);
            is_first
        });
    }

    /// Returns whether the client has left.
    pub fn has_left(&self) -> bool {
        *self.decided.borrow() == Some(false)
    }

    /// Waits until somebody waits for the decision.
    pub async fn wait_until_wanted(&self) {
        // The wait does not end while `self` is borrowed.
        let _ = self.wanted.subscribe().wait_for(|wanted| *wanted).await;
    }

    async fn stays(&self) -> bool {
        self.wanted.send_replace(true);
        let mut decided = self.decided.subscribe();
        match decided.wait_for(Option::is_some).await {
            Ok(decided) => *decided == Some(true),
            Err(_) => false,
        }
    }
}

/// The outcome of the questions of a log-in.
#[derive(Debug, Default)]
pub struct Asking {
    answered: AtomicBool,
    unanswered: AtomicBool,
    left: AtomicBool,
}

impl Asking {
    /// Returns whether the log-in failed because the client with the answers left before the server got one.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) && !self.answered.load(Ordering::Relaxed)
    }

    /// Returns whether any question was answered, rightly or wrongly.
    pub fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns whether questions were asked and none was answered.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) && !self.answered.load(Ordering::Relaxed)
    }

    fn note(&self, answered: bool, prompter: &dyn Prompter) {
        if answered {
            self.answered.store(true, Ordering::Relaxed);
            return;
        }
        self.unanswered.store(true, Ordering::Relaxed);
        if prompter.answerer() == Answerer::Nobody {
            self.left.store(true, Ordering::Relaxed);
        }
    }
}

/// A prompter that records the outcome of its questions.
struct Noted {
    asking: Arc<Asking>,
    prompter: Arc<dyn Prompter>,
}

impl Prompter for Noted {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(async move {
            let answer = self.prompter.ask(prompt).await;
            self.asking.note(answer.is_some(), &*self.prompter);
            answer
        })
    }

    fn ask_together<'a>(&'a self, asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        let answers = self.prompter.ask_together(asked)?;
        Some(Box::pin(async move {
            let answers = answers.await;
            self.asking.note(answers.is_some(), &*self.prompter);
            answers
        }))
    }

    fn answerer(&self) -> Answerer {
        self.prompter.answerer()
    }
}

/// A prompter that names a host in its questions.
struct About {
    host: String,
    prompter: Arc<dyn Prompter>,
}

impl Prompter for About {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        if !prompt.host.is_empty() {
            return self.prompter.ask(prompt);
        }
        let mut prompt = prompt.clone();
        prompt.host.clone_from(&self.host);
        Box::pin(async move { self.prompter.ask(&prompt).await })
    }

    fn ask_together<'a>(&'a self, asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        self.prompter.ask_together(asked)
    }

    fn answerer(&self) -> Answerer {
        self.prompter.answerer()
    }
}

/// A prompter that shows what it asks.
struct Watched {
    held_up: watch::Sender<Option<HeldUp>>,
    prompter: Arc<dyn Prompter>,
}

impl Watched {
    fn begin(&self, kind: PromptKind) -> OpenQuestion<'_> {
        self.held_up.send_replace(Some(HeldUp::Asked(kind)));
        OpenQuestion(&self.held_up)
    }
}

/// A question that is shown as open until this is dropped.
struct OpenQuestion<'a>(&'a watch::Sender<Option<HeldUp>>);

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

impl Prompter for Watched {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(async move {
            let _asked = self.begin(prompt.kind);
            self.prompter.ask(prompt).await
        })
    }

    fn ask_together<'a>(&'a self, asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        let answers = self.prompter.ask_together(asked)?;
        Some(Box::pin(async move {
            let _asked = self.begin(PromptKind::KeyboardInteractive);
            answers.await
        }))
    }

    fn answerer(&self) -> Answerer {
        self.prompter.answerer()
    }
}

impl fmt::Debug for Interaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interaction(..)")
    }
}
