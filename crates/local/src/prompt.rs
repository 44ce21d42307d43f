//! Questions to the user: passphrases, passwords, unknown host keys.
//!
//! A [`Prompter`] answers a [`Prompt`]. [`Never`] is BatchMode, [`Terminal`] reads from a terminal, [`Askpass`] runs a
//! program like OpenSSH's `SSH_ASKPASS`, and [`Standard`] chooses between the last two by ssh's rules (ssh(1),
//! ENVIRONMENT; readpass.c). Embedding programs bring their own.
//!
//! The environment is always an argument: in the daemon it is that of the requesting client.

mod askpass;
mod terminal;
mod turn;

pub use askpass::{Askpass, Require};
pub use terminal::{Terminal, is_in_foreground};
pub use trunkline_request::PromptKind;
pub use turn::{Place, Turn};

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use trunkline_text::Printable;
use zeroize::Zeroizing;

/// The longest answer, in bytes. readpass.c stops at 1023.
pub(crate) const MAX_ANSWER: usize = 4096;

/// One question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// The text to show, including a final blank. A server's text must first be [made safe](Prompt::from_server).
    pub text: String,
    /// True if the answer is echoed.
    pub echo: bool,
    /// The purpose of the answer.
    pub kind: PromptKind,
    /// The subject, as `user@host`; empty if it is not a host.
    pub host: String,
}

impl Prompt {
    /// Returns a question with a text of our own.
    pub fn new(kind: PromptKind, text: impl Into<String>, echo: bool) -> Self {
        Self {
            text: text.into(),
            echo,
            kind,
            host: String::new(),
        }
    }

    /// Returns the text, after the host unless the text names it. Several hosts may ask at the same time, and an answer
    /// must not reach the wrong one.
    pub fn text_with_host(&self) -> Cow<'_, str> {
        // Confirmations concern this side: a key for the agent, an existing connection.
        let concerns_host = !self.host.is_empty() && self.kind != PromptKind::Confirm;
        if !concerns_host || self.text.contains(&self.host) {
            return Cow::Borrowed(&self.text);
        }
        Cow::Owned(format!("({}) {}", self.host, self.text))
    }

    /// Returns a server's question (keyboard-interactive, RFC 4256). Control characters, which could forge another
    /// program's prompt, become `\ooo` as in OpenSSH (`vis(3)` in `mprintf`).
    pub fn from_server(kind: PromptKind, text: &str, echo: bool) -> Self {
        Self::new(kind, Printable::text(text), echo)
    }
}

/// Returns true if an answer to a [`PromptKind::Confirm`] is a yes by ssh's rule (readpass.c, `ask_permission`): an
/// empty answer or "yes", but not a missing answer.
pub fn allows(answer: Option<&str>) -> bool {
    answer.is_some_and(|answer| answer.is_empty() || answer.eq_ignore_ascii_case("yes"))
}

/// The future answer; `None` if there is no one to ask, they gave up, or the answer is not UTF-8 (RFC 4252 section 8
/// requires it for passwords).
pub type Answer<'a> = Pin<Box<dyn Future<Output = Option<Zeroizing<String>>> + Send + 'a>>;

/// Something that can ask the user.
///
/// Dropping the future withdraws the question and restores the terminal.
///
/// ```
/// use trunkline_local::prompt::{Answer, Prompt, PromptKind, Prompter};
///
/// /// Knows one password and nothing else.
/// struct Vault(&'static str);
///
/// impl Prompter for Vault {
///     fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
///         let known = (prompt.kind == PromptKind::Password).then(|| self.0.to_owned().into());
///         Box::pin(std::future::ready(known))
///     }
/// }
/// ```
pub trait Prompter: Send + Sync {
    /// Asks and waits for the answer.
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a>;

    /// Asks all of a server's questions together, for prompters that show one dialog. `None`, the default, means that
    /// the questions are asked one by one through [`Self::ask`].
    fn ask_together<'a>(&'a self, _asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        None
    }

    /// Returns the current answerer.
    fn answerer(&self) -> Answerer {
        Answerer::Person
    }
}

/// The kind of answerer, in the order of the cost of asking again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answerer {
    /// Nobody.
    #[default]
    Nobody,
    /// A program with stored answers, which may be asked any number of times.
    Program,
    /// A person, who must not be asked the same question again without need. The answer may be valid only once.
    Person,
}

/// The questions of one request of keyboard-interactive authentication (RFC 4256 section 3.2). There may be none, if
/// the server only has a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerQuestions {
    /// The title, which may be empty. Not made safe for a terminal.
    pub name: String,
    /// The server's instructions, which may be empty. Not made safe for a terminal.
    pub instruction: String,
    /// The questions, as the server wrote them.
    pub prompts: Vec<Prompt>,
}

/// The future answers, one for each question; `None` gives up.
pub type Answers<'a> = Pin<Box<dyn Future<Output = Option<Vec<Zeroizing<String>>>> + Send + 'a>>;

/// Asks nobody (BatchMode).
#[derive(Debug, Clone, Copy, Default)]
pub struct Never;

impl Prompter for Never {
    fn ask<'a>(&'a self, _prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(std::future::ready(None))
    }

    fn answerer(&self) -> Answerer {
        Answerer::Nobody
    }
}

/// Asks on the terminal or through an askpass program, as ssh would in the given environment.
pub struct Standard {
    terminal: Terminal,
    askpass: Askpass,
}

impl Standard {
    /// Chooses by `SSH_ASKPASS`, `SSH_ASKPASS_REQUIRE`, `DISPLAY` and `WAYLAND_DISPLAY` in the environment `env`, in
    /// which the askpass program also runs. The terminal is this process's `/dev/tty`.
    pub fn from_env<K, V>(env: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<OsString>,
        V: Into<OsString>,
    {
        let env: Vec<(OsString, OsString)> = env.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        let value = |name: &str| {
            env.iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_os_str())
        };
        let require = Require::parse(value("SSH_ASKPASS_REQUIRE").and_then(OsStr::to_str));
        let program = value("SSH_ASKPASS").map_or_else(default_askpass, PathBuf::from);
        Self {
            terminal: Terminal::default(),
            askpass: Askpass {
                program,
                env,
                require,
            },
        }
    }

    /// Returns true if there is a way to ask.
    pub fn can_ask(&self) -> bool {
        self.askpass.is_allowed() || self.terminal.exists()
    }

    /// Returns true if a question on the terminal was ended by its interrupt or quit key.
    pub fn was_interrupted(&self) -> bool {
        self.terminal.was_interrupted()
    }

    /// Asks on this terminal instead of `/dev/tty`.
    pub fn on_terminal(mut self, terminal: Terminal) -> Self {
        self.terminal = terminal;
        self
    }

    async fn answer(&self, prompt: &Prompt) -> Option<Zeroizing<String>> {
        let askpass = &self.askpass;
        // As in ssh's ask_permission(): not on the terminal, which may be busy with a session.
        if prompt.kind == PromptKind::Confirm {
            return if askpass.is_allowed() {
                askpass.ask(prompt).await
            } else {
                None
            };
        }
        if askpass.is_preferred() || (askpass.is_allowed() && !self.terminal.exists()) {
            askpass.ask(prompt).await
        } else {
            self.terminal.ask(prompt).await
        }
    }
}

impl Prompter for Standard {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(self.answer(prompt))
    }
}

impl fmt::Debug for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standard")
            .field("askpass", &self.askpass)
            .finish_non_exhaustive()
    }
}

/// Returns the first existing path where distributions install the program: Debian's ssh looks in the first place,
/// others in the rest.
fn default_askpass() -> PathBuf {
    let places = [
        "/usr/bin/ssh-askpass",
        "/usr/libexec/openssh/ssh-askpass",
        "/usr/libexec/ssh-askpass",
    ];
    places
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .unwrap_or_else(|| places[0].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn never_answers_nothing() {
        assert!(
            Never
                .ask(&Prompt::new(PromptKind::Password, "? ", false))
                .await
                .is_none()
        );
    }

    #[test]
    fn a_question_names_its_host_once() {
        let mut prompt = Prompt::new(PromptKind::Passphrase, "Enter passphrase for key '/k': ", false);
        assert_eq!(prompt.text_with_host(), "Enter passphrase for key '/k': ");
        prompt.host = "me@box".into();
        assert_eq!(
            prompt.text_with_host(),
            "(me@box) Enter passphrase for key '/k': "
        );
        prompt.text = "me@box's password: ".into();
        assert_eq!(prompt.text_with_host(), "me@box's password: ");
    }

    #[test]
    fn a_servers_text_cannot_steer_the_terminal() {
        let prompt = Prompt::from_server(PromptKind::KeyboardInteractive, "a\x1b[2Jb\r\n\u{9b}c é", true);
        assert_eq!(prompt.text, "a\\033[2Jb\n\\233c é");
    }
}
