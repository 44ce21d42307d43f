//! Questions to the user, one at a time, and the conversations with the daemon in which they arise.
//!
//! Several hosts of one command may ask at once. Every question names its host, the next one waits for its answer, and
//! the command's output waits meanwhile. Programs that run at the same time take turns on the terminal
//! ([`trunkline_local::prompt::Terminal`]).

use std::borrow::BorrowMut;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tokio::time::Instant;
use trunkline_control::client::{Client, ClientError};
use trunkline_control::protocol::{CopyProgress, Reply, Request};
use trunkline_local::prompt::{Prompt, PromptKind, Prompter as _, Standard, Terminal};
use trunkline_request::Waiting;
use trunkline_text::Printable;
use zeroize::Zeroizing;

use crate::report::fold::fold;
use crate::terminal::interrupts::Upcoming;
use crate::terminal::raw::RawMode;
use crate::terminal::{can_be_drawn_on, live};

/// The time that the next host's question waits until a password that was just typed is accepted.
const VERDICT_LIMIT: Duration = Duration::from_secs(10);

/// The time that a question waits for those of earlier hosts in the list while none is asked. A host that cannot be
/// reached must not hold up the others.
const ORDER_LIMIT: Duration = Duration::from_secs(5);

/// The questions of one command.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Locked while a question is on the screen.
    turn: Mutex<Turn>,
    /// The order of the log-ins' questions.
    order: Order,
}

/// Asks about a command's hosts in the order of its list.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The hosts, by index, that may still ask something. The lock is held only for a look.
    undecided: std::sync::Mutex<BTreeSet<usize>>,
    decided: Notify,
}

impl Order {
    /// Notes that this host may have a question, until the guard is dropped.
    pub(crate) fn enter(&self, place: usize) -> Undecided<'_> {
        self.lock_undecided().insert(place);
        Undecided { order: self, place }
    }

    /// Waits until no earlier host in the list can have a question.
    async fn wait(&self, place: usize, turn: &Mutex<Turn>) {
        loop {
            let decided = self.decided.notified();
            // Time that the user takes to answer does not count.
            let (asked, interrupted) = {
                let turn = turn.lock().await;
                (turn.asked, turn.interrupted)
            };
            let first = self.lock_undecided().first().copied();
            if interrupted || first.is_none_or(|first| first >= place) {
                return;
            }
            let waited = tokio::time::timeout(ORDER_LIMIT, decided).await.is_err();
            if waited && turn.try_lock().is_ok_and(|turn| turn.asked == asked) {
                // Late hosts are not waited for again.
                self.lock_undecided().retain(|late| *late >= place);
            }
        }
    }

    fn lock_undecided(&self) -> std::sync::MutexGuard<'_, BTreeSet<usize>> {
        self.undecided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A host that may have a question.
#[derive(Debug)]
pub(crate) struct Undecided<'a> {
    order: &'a Order,
    place: usize,
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        if self.order.lock_undecided().remove(&self.place) {
            self.order.decided.notify_waiters();
        }
    }
}

/// The state of the questions.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The bar to hide during a question.
    bar: Option<ProgressBar>,
    /// The command's hosts: the names that the user gave, and those in questions.
    hosts: Vec<(String, String)>,
    sharing: Sharing,
    /// The user has interrupted a question and thereby the command: nothing else is asked.
    interrupted: bool,
    /// The line on the screen about a wait.
    waiting: Option<WaitingLine>,
    /// The number of questions so far.
    asked: u64,
}

/// The password that several hosts may have in common.
#[derive(Debug, Default)]
enum Sharing {
    /// There is none yet, or the last one was wrong.
    #[default]
    Unknown,
    /// One host has not accepted it yet. The time is the limit for waiting.
    Tried(Password, watch::Receiver<Option<bool>>, Instant),
    /// The user wants to use it for the other hosts.
    Agreed(Password),
    /// The user does not want to share it.
    Declined,
}

#[derive(Debug, Clone)]
struct Password {
    /// `user@host`
    of: String,
    secret: Zeroizing<String>,
}

struct QuestionOutcome {
    answer: Option<Zeroizing<String>>,
    /// Reports whether the host accepted the password.
    verdict: Option<watch::Sender<Option<bool>>>,
}

impl Questions {
    /// Hides this bar during questions.
    pub(crate) async fn hide_while_asking(&self, bar: &ProgressBar) {
        self.turn.lock().await.bar = Some(bar.clone());
    }

    /// Sets the command's hosts: the name that the user gave each, and the host's own. Only these can share a password.
    pub(crate) async fn name_hosts(&self, hosts: Vec<(String, String)>) {
        self.turn.lock().await.hosts = hosts;
    }

    /// Waits until no question is on the screen, and prevents questions until the guard is dropped.
    pub(crate) async fn quiet(&self) -> MutexGuard<'_, Turn> {
        let mut turn = self.turn.lock().await;
        turn.waiting = None;
        turn
    }

    /// Asks a question of the command's own.
    pub(crate) async fn ask(&self, prompt: &Prompt) -> Option<Zeroizing<String>> {
        self.turn.lock().await.ask(prompt).await
    }

    /// Returns true if the user has interrupted a question and thereby the command.
    pub(crate) async fn were_interrupted(&self) -> bool {
        self.turn.lock().await.interrupted
    }

    /// Allows questions again after an interrupt, for the next command.
    pub(crate) async fn begin_anew(&self) {
        self.turn.lock().await.interrupted = false;
    }

    /// Returns true if there is a user to ask.
    pub(crate) fn can_ask() -> bool {
        standard().can_ask()
    }

    /// Asks a question of the command's own about a host, once no earlier host in the list can have one.
    pub(crate) async fn ask_in_order(
        &self,
        order: &Order,
        place: usize,
        prompt: &Prompt,
    ) -> Option<Zeroizing<String>> {
        order.wait(place, &self.turn).await;
        let answer = self.ask(prompt).await;
        // The user may have interrupted it.
        order.decided.notify_waiters();
        answer
    }

    /// Waits until no earlier host in the list can have a question.
    pub(crate) async fn wait_in_order(&self, order: &Order, place: usize) {
        order.wait(place, &self.turn).await;
    }

    /// Shows the reason for a wait on standard error, if that is a terminal and nothing else is shown.
    fn show_waiting(&self, waiting: &Waiting) -> bool {
        let Ok(mut turn) = self.turn.try_lock() else {
            return false;
        };
        if turn.waiting.is_some() || !can_be_drawn_on(&std::io::stderr()) || Terminal::default().is_asking() {
            return false;
        }
        let hidden = turn.bar.as_ref().map(Hidden::new);
        eprint!("\r\x1b[K{}", live::fit(&Printable::line(waiting.to_string())));
        turn.waiting = Some(WaitingLine { _hidden: hidden });
        true
    }

    fn hide_waiting(&self) {
        // The current question has erased it.
        if let Ok(mut turn) = self.turn.try_lock() {
            turn.waiting = None;
        }
    }

    /// Asks a question. `again`: its host has refused a password before.
    async fn put(&self, prompt: Prompt, again: bool, place: Option<usize>) -> QuestionOutcome {
        if let Some(place) = place {
            self.order.wait(place, &self.turn).await;
        }
        let given = self.put_next(prompt, again).await;
        // The user may have interrupted it.
        self.order.decided.notify_waiters();
        given
    }

    async fn put_next(&self, mut prompt: Prompt, again: bool) -> QuestionOutcome {
        loop {
            let mut turn = self.turn.lock().await;
            if turn.hosts.len() < 2 && matches!(prompt.kind, PromptKind::Passphrase | PromptKind::HostKey) {
                // As in ssh, the text names the key or the host.
                prompt.host.clear();
            }
            if turn.hosts.len() < 2 || !asks_for_password(&prompt) {
                let answer = turn.ask(&prompt).await;
                return QuestionOutcome {
                    answer,
                    verdict: None,
                };
            }
            if let Sharing::Tried(_, verdict, patience) = &turn.sharing {
                let (mut verdict, patience) = (verdict.clone(), *patience);
                // A host that left without a verdict has not accepted it.
                let open = verdict.has_changed().is_ok();
                let known = *verdict.borrow();
                match known {
                    None if open && Instant::now() < patience => {
                        drop(turn);
                        let known = tokio::time::timeout_at(patience, verdict.wait_for(Option::is_some));
                        drop(known.await);
                        continue;
                    }
                    Some(true) => turn.offer(&prompt).await,
                    _ => turn.sharing = Sharing::Unknown,
                }
            }
            if let Sharing::Agreed(password) = &turn.sharing
                && !again
                && turn.may_share(password, &prompt)
            {
                let answer = Some(password.secret.clone());
                return QuestionOutcome {
                    answer,
                    verdict: None,
                };
            }
            let answer = turn.ask(&prompt).await;
            let mut verdict = None;
            if let (Sharing::Unknown, Some(secret)) = (&turn.sharing, &answer) {
                let (tell, told) = watch::channel(None);
                let of = prompt.host.clone();
                let secret = secret.clone();
                let patience = Instant::now() + VERDICT_LIMIT;
                turn.sharing = Sharing::Tried(Password { of, secret }, told, patience);
                verdict = Some(tell);
            }
            return QuestionOutcome { answer, verdict };
        }
    }
}

impl Turn {
    async fn ask(&mut self, prompt: &Prompt) -> Option<Zeroizing<String>> {
        if self.interrupted {
            return None;
        }
        self.waiting = None;
        self.asked += 1;
        let _hidden = self.bar.as_ref().map(Hidden::new);
        // The daemon has already examined this process, which is still the same.
        if !prompt.echo {
            let _ = trunkline_control::memory::keep_private();
        }
        let (standard, signal) = (standard(), Upcoming::new());
        let answer = standard.ask(prompt).await;
        self.interrupted = standard.was_interrupted();
        if self.interrupted {
            // Errors that follow from the missing answer must not look like failures.
            signal.take().await;
        }
        answer
    }

    /// Returns true if the password may be given to the asking host: same user, and one of the command's hosts.
    fn may_share(&self, password: &Password, prompt: &Prompt) -> bool {
        let (Some((user, _)), Some((asked, host))) =
            (password.of.rsplit_once('@'), prompt.host.rsplit_once('@'))
        else {
            return false;
        };
        user == asked && self.hosts.iter().any(|(_, known)| known == host)
    }

    /// Asks whether to use the accepted password for the other hosts, too.
    async fn offer(&mut self, prompt: &Prompt) {
        let Sharing::Tried(password, ..) = &self.sharing else {
            return;
        };
        if !self.may_share(password, prompt) {
            return;
        }
        let password = password.clone();
        let (user, first) = password.of.rsplit_once('@').unwrap_or_default();
        let others = self.hosts.iter().filter(|(_, host)| host != first);
        let others = fold(others.map(|(name, _)| name.as_str()));
        let text = format!(
            "Use the password of {} for the other hosts that ask {user} for one ({others})? (yes/no) ",
            password.of
        );
        let question = Prompt::new(PromptKind::KeyboardInteractive, text, true);
        let answer = self.ask(&question).await.unwrap_or_default();
        let agreed = ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
        self.sharing = if agreed {
            Sharing::Agreed(password)
        } else {
            Sharing::Declined
        };
    }
}

/// Returns true if a question is for the user's password on its host, and not for a new or one-time password.
fn asks_for_password(prompt: &Prompt) -> bool {
    let text = prompt.text.to_ascii_lowercase();
    match prompt.kind {
        _ if prompt.host.is_empty() || prompt.echo => false,
        PromptKind::Password => {
            text.ends_with(&format!("{}'s password: ", prompt.host.to_ascii_lowercase()))
                && !text.contains("new password")
        }
        // PAM's question (pam_unix).
        PromptKind::KeyboardInteractive => text
            .rsplit(')')
            .next()
            .is_some_and(|text| text.trim() == "password:"),
        _ => false,
    }
}

fn standard() -> Standard {
    let guarded = Terminal::default().guarded_by(|terminal| Box::new(RawMode::guard(terminal)));
    Standard::from_env(std::env::vars_os()).on_terminal(guarded)
}

/// Hides a bar until dropped.
#[derive(Debug)]
struct Hidden(ProgressBar);

impl Hidden {
    fn new(bar: &ProgressBar) -> Self {
        let shown = !bar.is_hidden();
        bar.set_draw_target(ProgressDrawTarget::hidden());
        if shown {
            // Erases the line that the bar leaves (ECMA-48, EL).
            eprint!("\r\x1b[K");
            return Self(bar.clone());
        }
        Self(ProgressBar::hidden())
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.set_draw_target(live::target());
    }
}

/// A line on the screen about a wait. Dropping it erases it.
#[derive(Debug)]
struct WaitingLine {
    _hidden: Option<Hidden>,
}

impl Drop for WaitingLine {
    fn drop(&mut self) {
        // A question that another program shows there stays.
        if !Terminal::default().is_asking() {
            eprint!("\r\x1b[K");
        }
    }
}

type Asking<'q> = Pin<Box<dyn Future<Output = QuestionOutcome> + Send + 'q>>;

/// A conversation with the daemon about one host, in which its questions are answered.
pub(crate) struct Conversation<'q, C = Client> {
    client: C,
    /// A reply that the client has received already.
    received: Option<Result<Reply, ClientError>>,
    questions: &'q Questions,
    asking: Option<Asking<'q>>,
    verdict: Option<watch::Sender<Option<bool>>>,
    /// A password was asked for before.
    again: bool,
    /// A question had no answer because there was no one to ask.
    unanswered: bool,
    /// The line about its wait is on the screen.
    waiting: bool,
    /// Its waits are not shown.
    silent: bool,
    /// The host's index in the command's list, while it may have a question.
    place: Option<usize>,
    undecided: Option<Undecided<'q>>,
}

impl<'q, C: BorrowMut<Client>> Conversation<'q, C> {
    /// Sets the host's index in the command's list.
    pub(crate) fn with_place(mut self, place: usize) -> Self {
        self.place = Some(place);
        self.undecided = Some(self.questions.order.enter(place));
        self
    }

    pub(crate) fn new(client: C, questions: &'q Questions) -> Self {
        Self {
            client,
            received: None,
            questions,
            asking: None,
            verdict: None,
            again: false,
            unanswered: false,
            waiting: false,
            silent: false,
            place: None,
            undecided: None,
        }
    }

    /// Returns a conversation whose client has already received a reply.
    pub(crate) fn resume(received: Result<Reply, ClientError>, client: C, questions: &'q Questions) -> Self {
        Self {
            received: Some(received),
            ..Self::new(client, questions)
        }
    }

    /// Sets `silent`: the user wants to see only output and questions.
    pub(crate) fn silent(mut self, silent: bool) -> Self {
        self.silent = silent;
        self
    }

    pub(crate) async fn send(&self, request: &Request) -> Result<(), ClientError> {
        self.client.borrow().send(request).await
    }

    /// Returns the next reply that is not a question. A question is withdrawn when the daemon goes away. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Reply, ClientError> {
        loop {
            let reply = match self.received.take() {
                Some(reply) => reply,
                None => tokio::select! {
                    biased;
                    given = wait_for_answer(&mut self.asking) => {
                        self.give(given).await?;
                        continue;
                    }
                    reply = self.client.borrow_mut().next() => reply,
                },
            };
            // A copy reports progress all the time. While its question is on the screen, nobody sees that, and a caller
            // that waited for the answer before showing progress would not notice that the daemon is gone.
            if let Ok(Reply::Progress(progress)) = &reply
                && (self.asking.is_some() || self.waiting && !has_begun(progress))
            {
                continue;
            }
            if std::mem::take(&mut self.waiting) {
                self.questions.hide_waiting();
            }
            match reply {
                Ok(Reply::Waiting(waiting)) => {
                    // Its own question would come after another host's, at an unknown time.
                    self.undecided = None;
                    self.waiting =
                        !self.silent && waiting.is_some_and(|waiting| self.questions.show_waiting(&waiting));
                }
                Ok(Reply::Ask(prompt)) => {
                    self.judge(false);
                    let again = self.again;
                    self.again |= asks_for_password(&prompt);
                    let (questions, place) = (self.questions, self.place);
                    self.asking = Some(Box::pin(async move { questions.put(prompt, again, place).await }));
                }
                Ok(reply) => {
                    match &reply {
                        Reply::Notice(_) | Reply::Welcome { .. } => {}
                        Reply::Progress(progress) if !has_begun(progress) => {}
                        Reply::Failed(_) | Reply::UseSystemSsh { .. } => {
                            // The answer is no longer needed.
                            self.withdraw();
                            self.judge(false);
                            self.undecided = None;
                        }
                        _ => {
                            self.judge(true);
                            self.undecided = None;
                        }
                    }
                    return Ok(reply);
                }
                Err(error) => {
                    self.withdraw();
                    return Err(error);
                }
            }
        }
    }

    /// Waits until no question is on the screen, and prevents questions until the guard is dropped. Answers this
    /// conversation's own question meanwhile, since nobody else would.
    ///
    /// # Errors
    /// The answer could not be sent.
    pub(crate) async fn quiet(&mut self) -> Result<MutexGuard<'q, Turn>, ClientError> {
        let questions = self.questions;
        loop {
            tokio::select! {
                biased;
                given = wait_for_answer(&mut self.asking) => self.give(given).await?,
                turn = questions.quiet() => return Ok(turn),
            }
        }
    }

    /// Sends the answer to a question.
    async fn give(&mut self, given: QuestionOutcome) -> Result<(), ClientError> {
        self.asking = None;
        self.verdict = given.verdict;
        self.unanswered |= given.answer.is_none() && !Questions::can_ask();
        let answer = given.answer.map(|answer| answer.as_str().to_owned());
        self.send(&Request::Answer(answer)).await
    }

    /// Withdraws a question.
    pub(crate) fn withdraw(&mut self) {
        self.asking = None;
    }

    /// Returns true if a question had no answer because there was no one to ask.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// Reports whether the password was accepted.
    fn judge(&mut self, accepted: bool) {
        if let Some(verdict) = self.verdict.take() {
            verdict.send_replace(Some(accepted));
        }
    }
}

/// Returns true if a copy has done anything at its host, for which it must be logged in.
fn has_begun(progress: &CopyProgress) -> bool {
    progress.bytes
        + progress.files
        + progress.adjusted
        + progress.skipped
        + progress.failed
        + progress.deleted
        > 0
}

async fn wait_for_answer(asking: &mut Option<Asking<'_>>) -> QuestionOutcome {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_typed_and_not_shown_stays_in_this_process() {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        let questions = Questions::default();
        let question = prompt(PromptKind::Password, "me@box's password: ", "me@box");
        // The question is never answered; asking is enough.
        let asking = questions.ask(&question);
        let _ = tokio::time::timeout(std::time::Duration::ZERO, asking).await;
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }

    fn prompt(kind: PromptKind, text: &str, host: &str) -> Prompt {
        let mut prompt = Prompt::new(kind, text, false);
        prompt.host = host.into();
        prompt
    }

    #[test]
    fn only_questions_for_the_users_password_are_taken_for_it() {
        let password = |text: &str| asks_for_password(&prompt(PromptKind::Password, text, "me@box"));
        assert!(password("me@box's password: "));
        assert!(password(
            "Permission denied, please try again.\nme@box's password: "
        ));
        assert!(!password("Enter me@box's new password: "));
        assert!(!password("Retype me@box's new password: "));
        assert!(!password("me@other's password: "));
        let interactive =
            |text: &str| asks_for_password(&prompt(PromptKind::KeyboardInteractive, text, "me@box"));
        assert!(interactive("(me@box) Password: "));
        assert!(!interactive("(me@box) Verification code: "));
        assert!(!interactive("(me@box) New password: "));
        assert!(!asks_for_password(&prompt(
            PromptKind::Passphrase,
            "Password: ",
            "me@box"
        )));
    }

    #[test]
    fn a_password_is_shared_with_hosts_that_the_user_was_told_of_only() {
        let turn = Turn {
            hosts: vec![("one".into(), "10.0.0.1".into()), ("two".into(), "two".into())],
            ..Turn::default()
        };
        let password = Password {
            of: "me@two".into(),
            secret: Zeroizing::new("x".into()),
        };
        let shares = |host: &str| turn.may_share(&password, &prompt(PromptKind::Password, "", host));
        assert!(shares("me@10.0.0.1") && shares("me@two"));
        // A jump host, and another account.
        assert!(!shares("me@bastion") && !shares("root@two") && !shares("one"));
    }
}
