//! Questions to the user: passphrases, passwords, unknown host keys.
//!
//! A [`Prompter`] answers a [`Prompt`]. [`Never`] is BatchMode, [`Terminal`] reads from a terminal, [`Askpass`]
//! runs a program as OpenSSH runs `SSH_ASKPASS`, and [`Standard`] chooses between the last two by ssh's
//! rules (ssh(1), ENVIRONMENT; readpass.c). Embedding programs bring their own.
//!
//! The environment is always an argument: in the daemon it is that of the client that asked for the work.

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
use trunkline_text::Printable;
use zeroize::Zeroizing;

/// The longest answer, in bytes. readpass.c stops at 1023.
pub(crate) const MAX_ANSWER: usize = 4096;

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text to show, including a blank at its end. Text that came from a server is to be [made
    /// safe](Prompt::from_server) first.
    pub text: String,
    /// Whether the answer may be seen while it is typed.
    pub echo: bool,
    /// The purpose of the answer.
    pub kind: PromptKind,
    /// Whom the answer is for, as `user@host`; empty where it concerns no host.
    pub host: String,
}

impl Prompt {
    /// A question with a text of our own.
    pub fn new(kind: PromptKind, text: impl Into<String>, echo: bool) -> Self {
        Self {
            text: text.into(),
            echo,
            kind,
            host: String::new(),
        }
    }

    /// The text with the host in front, unless it names the host itself. Several hosts may ask at the same time, and an
    /// answer must not be meant for another one.
    pub fn text_with_host(&self) -> Cow<'_, str> {
        // What is confirmed is about this side: a key for the agent, a connection that is there.
        let concerns_host = !self.host.is_empty() && self.kind != PromptKind::Confirm;
        if !concerns_host || self.text.contains(&self.host) {
            return Cow::Borrowed(&self.text);
        }
        Cow::Owned(format!("({}) {}", self.host, self.text))
    }

    /// A question whose text a server wrote (keyboard-interactive, RFC 4256): control characters, with which it
    /// could forge a prompt of another program, become `\ooo` as in OpenSSH (`vis(3)` in `mprintf`).
    pub fn from_server(kind: PromptKind, text: &str, echo: bool) -> Self {
        Self::new(kind, Printable::text(text), echo)
    }
}

/// Returns whether an answer to a [`PromptKind::Confirm`] allows what was asked for, by ssh's rule (readpass.c,
/// `ask_permission`): an empty one and "yes" do. Without an answer nothing is allowed.
pub fn allows(answer: Option<&str>) -> bool {
    answer.is_some_and(|answer| answer.is_empty() || answer.eq_ignore_ascii_case("yes"))
}

/// The answer to a question, in time; `None` if there is none: nobody to ask, or they gave up, or typed what is no
/// UTF-8 (RFC 4252 section 8 has passwords in nothing else).
pub type Answer<'a> = Pin<Box<dyn Future<Output = Option<Zeroizing<String>>> + Send + 'a>>;

/// Something that can ask the user.
///
/// Dropping the future before it is done takes the question back: a terminal is left as it was.
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

    /// Asks what a server asks together, for those that show it in one dialog. With `None`, which is what happens if this
    /// is not implemented, the questions come one by one through [`Self::ask`].
    fn ask_together<'a>(&'a self, _asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        None
    }

    /// Returns the answerer for the present state of things.
    fn answerer(&self) -> Answerer {
        Answerer::Person
    }
}

/// The answerer of questions, in the order of the cost of asking it again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answerer {
    /// Nobody, or nobody any more.
    #[default]
    Nobody,
    /// A program that has its answers at hand, and gives them as often as it is asked.
    Program,
    /// A person, who is not to be asked the same again without need, and whose answer may be good for once.
    Person,
}

/// The questions of one request of keyboard-interactive authentication (RFC 4256 section 3.2). There may be none: the
/// server only has something to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerQuestions {
    /// The title; may be empty. Not made safe for a terminal.
    pub name: String,
    /// The server's instructions for them; may be empty. Not made safe for a terminal.
    pub instruction: String,
    /// The questions, in the server's words.
    pub prompts: Vec<Prompt>,
}

/// As many answers as there were questions, in time; `None` gives up.
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
    /// Chooses by `SSH_ASKPASS`, `SSH_ASKPASS_REQUIRE`, `DISPLAY` and `WAYLAND_DISPLAY` of the environment `env`,
    /// which the askpass program also runs in. The terminal is this process's `/dev/tty`.
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

    /// Returns whether there is anybody to ask.
    pub fn can_ask(&self) -> bool {
        self.askpass.is_allowed() || self.terminal.exists()
    }

    /// Returns whether a question on the terminal was ended by its interrupt or quit key.
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
        // ssh's ask_permission(): a program or nobody, for the terminal may be busy with a session.
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

/// The paths where distributions put the program: Debian's build of ssh looks in the first place, the others in the
/// rest.
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
