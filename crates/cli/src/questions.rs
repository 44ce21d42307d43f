//! Questions to the user, one at a time, and the talk with the daemon that they come up in.
//!
//! Whatever connects may ask: several hosts of one command at once. Every question names its host, the next one waits
//! until it is answered, and what a command prints waits meanwhile. Programs that run at the same time take turns on their
//! terminal by themselves ([`trunkline_local::prompt::Terminal`]).

use std::borrow::BorrowMut;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::Instant;
use trunkline_control::client::{Client, ClientError};
use trunkline_control::protocol::{Reply, Request};
use trunkline_local::prompt::{Prompt, PromptKind, Prompter as _, Standard, Terminal};
use zeroize::Zeroizing;

use crate::report::fold::fold;
use crate::terminal::raw::RawMode;

/// How long a password that was just typed is waited for to be accepted, before the next host's question is put.
const VERDICT_LIMIT: Duration = Duration::from_secs(10);

/// The questions of one command.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Held by whoever has a question on the screen.
    turn: Mutex<Turn>,
}

/// What belongs to whoever asks.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Is hidden during a question.
    bar: Option<ProgressBar>,
    /// The command's hosts: the names that the user gave, and those that questions have.
    hosts: Vec<(String, String)>,
    sharing: Sharing,
    /// The user has interrupted a question, and with it the command: nothing else is asked.
    interrupted: bool,
}

/// What is known of a password that several hosts may have in common.
#[derive(Debug, Default)]
enum Sharing {
    /// None was given yet, or the last one was wrong.
    #[default]
    Unknown,
    /// One was given for a host, which has not accepted it yet; how long that is waited for.
    Tried(Password, watch::Receiver<Option<bool>>, Instant),
    /// The user wants it to be used for the other hosts.
    Agreed(Password),
    /// The user does not.
    Declined,
}

#[derive(Debug, Clone)]
struct Password {
    /// `user@host`
    of: String,
    secret: Zeroizing<String>,
}

/// What became of a question.
struct Given {
    answer: Option<Zeroizing<String>>,
    /// To be told whether the host accepted the password.
    verdict: Option<watch::Sender<Option<bool>>>,
}

impl Questions {
    /// Takes this bar off the screen while something is asked.
    pub(crate) async fn hide_while_asking(&self, bar: &ProgressBar) {
        self.turn.lock().await.bar = Some(bar.clone());
    }

    /// Says which hosts the command is for: the name that the user gave each of them, and the host's own. Only they can
    /// have a password in common.
    pub(crate) async fn name_hosts(&self, hosts: Vec<(String, String)>) {
        self.turn.lock().await.hosts = hosts;
    }

    /// Waits until no question is on the screen, and keeps it so.
    pub(crate) async fn quiet(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().await
    }

    /// Puts a question of the command's own.
    pub(crate) async fn ask(&self, prompt: &Prompt) -> Option<Zeroizing<String>> {
        self.turn.lock().await.ask(prompt).await
    }

    /// Whether there is anybody to ask.
    pub(crate) fn can_ask() -> bool {
        standard().can_ask()
    }

    /// Puts a question. `again`: its host has refused a password before.
    async fn put(&self, prompt: Prompt, again: bool) -> Given {
        loop {
            let mut turn = self.turn.lock().await;
            if turn.hosts.len() < 2 || !asks_for_password(&prompt) {
                let answer = turn.ask(&prompt).await;
                return Given {
                    answer,
                    verdict: None,
                };
            }
            if let Sharing::Tried(_, verdict, patience) = &turn.sharing {
                let (mut verdict, patience) = (verdict.clone(), *patience);
                // A host that went away without a word has not accepted it.
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
                return Given {
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
            return Given { answer, verdict };
        }
    }
}

impl Turn {
    async fn ask(&mut self, prompt: &Prompt) -> Option<Zeroizing<String>> {
        if self.interrupted {
            return None;
        }
        let _hidden = self.bar.as_ref().map(Hidden::new);
        let standard = standard();
        let answer = standard.ask(prompt).await;
        self.interrupted = standard.was_interrupted();
        answer
    }

    /// Whether the password may be given to the host that asks: it is among those that the user was told of.
    fn may_share(&self, password: &Password, prompt: &Prompt) -> bool {
        let (Some((user, _)), Some((asked, host))) =
            (password.of.rsplit_once('@'), prompt.host.rsplit_once('@'))
        else {
            return false;
        };
        user == asked && self.hosts.iter().any(|(_, known)| known == host)
    }

    /// Asks whether the password that was accepted is to be used for the other hosts, too.
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

/// Whether a question is for the user's password on its host, and not for a new one, or for one that is used once.
fn asks_for_password(prompt: &Prompt) -> bool {
    let text = prompt.text.to_ascii_lowercase();
    match prompt.kind {
        _ if prompt.host.is_empty() || prompt.echo => false,
        PromptKind::Password => {
            text.ends_with(&format!("{}'s password: ", prompt.host.to_ascii_lowercase()))
                && !text.contains("new password")
        }
        // What PAM asks (pam_unix).
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

/// A bar that is off the screen until this is dropped.
struct Hidden(ProgressBar);

impl Hidden {
    fn new(bar: &ProgressBar) -> Self {
        let shown = !bar.is_hidden();
        bar.set_draw_target(ProgressDrawTarget::hidden());
        if shown {
            // The line that it leaves: back to its start, and erased (ECMA-48, EL).
            eprint!("\r\x1b[K");
            return Self(bar.clone());
        }
        Self(ProgressBar::hidden())
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.set_draw_target(ProgressDrawTarget::stderr());
    }
}

type Asking<'q> = Pin<Box<dyn Future<Output = Given> + Send + 'q>>;

/// A talk with the daemon about one host, in which its questions are answered.
pub(crate) struct Conversation<'q, C = Client> {
    client: C,
    /// What the client has received already.
    received: Option<Result<Reply, ClientError>>,
    questions: &'q Questions,
    asking: Option<Asking<'q>>,
    verdict: Option<watch::Sender<Option<bool>>>,
    /// A password was asked for before.
    again: bool,
    /// A question had no answer, because there was nobody to ask.
    unanswered: bool,
}

impl<'q, C: BorrowMut<Client>> Conversation<'q, C> {
    pub(crate) fn new(client: C, questions: &'q Questions) -> Self {
        Self {
            client,
            received: None,
            questions,
            asking: None,
            verdict: None,
            again: false,
            unanswered: false,
        }
    }

    /// The same, where the client has received a reply that is yet to be seen to.
    pub(crate) fn after(received: Result<Reply, ClientError>, client: C, questions: &'q Questions) -> Self {
        Self {
            received: Some(received),
            ..Self::new(client, questions)
        }
    }

    /// Sends a request.
    pub(crate) async fn send(&self, request: &Request) -> Result<(), ClientError> {
        self.client.borrow().send(request).await
    }

    /// The next reply that is not a question. A question is taken back when the daemon goes away. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Reply, ClientError> {
        loop {
            let reply = match self.received.take() {
                Some(reply) => reply,
                None => tokio::select! {
                    biased;
                    given = answered(&mut self.asking) => {
                        self.give(given).await?;
                        continue;
                    }
                    reply = self.client.borrow_mut().next() => reply,
                },
            };
            match reply {
                Ok(Reply::Ask {
                    text,
                    echo,
                    kind,
                    host,
                }) => {
                    let mut prompt = Prompt::new(kind, text, echo);
                    prompt.host = host;
                    self.judge(false);
                    let again = self.again;
                    self.again |= asks_for_password(&prompt);
                    let questions = self.questions;
                    self.asking = Some(Box::pin(async move { questions.put(prompt, again).await }));
                }
                Ok(reply) => {
                    match &reply {
                        Reply::Notice(_) | Reply::Welcome { .. } => {}
                        Reply::Failed(_) | Reply::UseSystemSsh { .. } => {
                            // Nobody waits for the answer any more.
                            self.withdraw();
                            self.judge(false);
                        }
                        _ => self.judge(true),
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

    /// Waits until no question is on the screen, and keeps it so. One of this talk's own is put meanwhile: nobody else
    /// would take it on.
    ///
    /// # Errors
    /// Its answer could not be sent.
    pub(crate) async fn quiet(&mut self) -> Result<MutexGuard<'q, Turn>, ClientError> {
        let questions = self.questions;
        loop {
            tokio::select! {
                biased;
                given = answered(&mut self.asking) => self.give(given).await?,
                turn = questions.quiet() => return Ok(turn),
            }
        }
    }

    /// Sends what became of the question.
    async fn give(&mut self, given: Given) -> Result<(), ClientError> {
        self.asking = None;
        self.verdict = given.verdict;
        self.unanswered |= given.answer.is_none() && !Questions::can_ask();
        let answer = given.answer.map(|answer| answer.as_str().to_owned());
        self.send(&Request::Answer(answer)).await
    }

    /// Takes a question back.
    pub(crate) fn withdraw(&mut self) {
        self.asking = None;
    }

    /// Whether a question had no answer because there was nobody to ask.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// Tells those who wait for it whether the password was accepted.
    fn judge(&mut self, accepted: bool) {
        if let Some(verdict) = self.verdict.take() {
            verdict.send_replace(Some(accepted));
        }
    }
}

async fn answered(asking: &mut Option<Asking<'_>>) -> Given {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(kind: PromptKind, text: &str, host: &str) -> Prompt {
        let mut prompt = Prompt::new(kind, text, false);
        prompt.host = host.into();
        prompt
    }

    #[test]
    fn only_questions_for_the_users_password_are_taken_for_it() {
        let password = |text: &str| asks_for_password(&asked(PromptKind::Password, text, "me@box"));
        assert!(password("me@box's password: "));
        assert!(password(
            "Permission denied, please try again.\nme@box's password: "
        ));
        assert!(!password("Enter me@box's new password: "));
        assert!(!password("Retype me@box's new password: "));
        assert!(!password("me@other's password: "));
        let interactive =
            |text: &str| asks_for_password(&asked(PromptKind::KeyboardInteractive, text, "me@box"));
        assert!(interactive("(me@box) Password: "));
        assert!(!interactive("(me@box) Verification code: "));
        assert!(!interactive("(me@box) New password: "));
        assert!(!asks_for_password(&asked(
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
        let shares = |host: &str| turn.may_share(&password, &asked(PromptKind::Password, "", host));
        assert!(shares("me@10.0.0.1") && shares("me@two"));
        // A jump host, and another account.
        assert!(!shares("me@bastion") && !shares("root@two") && !shares("one"));
    }
}
