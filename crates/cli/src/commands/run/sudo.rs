//! `--become`: the command runs as another user through sudo, which may ask for a password.
//!
//! sudo writes its question to standard error and reads the answer from standard input (`-S`) byte by byte, so the rest
//! of the input is the command's. The question is a random text, and so is the mark that is printed when the command
//! begins. Until then only an answer is written: a host whose sudo does not ask is sent no password.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use trunkline_local::prompt::{Prompt, PromptKind};
use trunkline_request::shell::quote;
use zeroize::Zeroizing;

use crate::questions::{Order, Questions, Undecided};

/// Returns the command for a sudo that does not ask: it fails if it would need a password.
pub(super) fn without_password(user: &str, command: &[u8]) -> Vec<u8> {
    [
        b"exec sudo -H -n -u ",
        &*quote(user.as_bytes()),
        b" -- sh -c ",
        &quote(command),
    ]
    .concat()
}

/// The tokens that mark sudo's question and the command's beginning on one host.
#[derive(Debug)]
pub(super) struct Tokens {
    question: String,
    beginning: String,
    user: String,
}

impl Tokens {
    pub(super) fn new(user: &str) -> Self {
        let random = || format!("{:032x}", rand::random::<u128>());
        Self {
            question: format!("[sudo {}]", random()),
            beginning: format!("[begun {}]", random()),
            user: user.to_owned(),
        }
    }

    /// Returns the command for sudo. `sh` runs it, whatever the user's shell is.
    pub(super) fn wrap(&self, command: &[u8]) -> Vec<u8> {
        let inner = [
            b"printf %s ",
            &*quote(self.beginning.as_bytes()),
            b" >&2; ",
            command,
        ]
        .concat();
        [
            b"exec sudo -H -S -p ",
            &*quote(self.question.as_bytes()),
            b" -u ",
            &quote(self.user.as_bytes()),
            b" -- sh -c ",
            &quote(&inner),
        ]
        .concat()
    }
}

/// A token in a command's standard error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// sudo asks for a password.
    Question,
    /// The command has started.
    Beginning,
}

/// Searches standard error for the tokens until the command has started.
#[derive(Debug)]
pub(super) struct Watch {
    tokens: Arc<Tokens>,
    /// Bytes that may be the beginning of a token.
    held: Vec<u8>,
}

impl Watch {
    pub(super) fn new(tokens: Arc<Tokens>) -> Self {
        Self {
            tokens,
            held: Vec::new(),
        }
    }

    /// Takes output and appends the visible part to `shown`. If a token follows, returns it and the output after it.
    pub(super) fn take(&mut self, data: &[u8], shown: &mut Vec<u8>) -> Option<(Sign, Vec<u8>)> {
        self.held.extend_from_slice(data);
        let tokens = [
            (self.tokens.question.as_bytes(), Sign::Question),
            (self.tokens.beginning.as_bytes(), Sign::Beginning),
        ];
        let found = tokens.into_iter().filter_map(|(token, sign)| {
            let at = self
                .held
                .windows(token.len())
                .position(|window| window == token)?;
            Some((at, token.len(), sign))
        });
        if let Some((at, length, sign)) = found.min_by_key(|(at, ..)| *at) {
            let after = self.held.split_off(at + length);
            self.held.truncate(at);
            shown.append(&mut self.held);
            return Some((sign, after));
        }
        // A token may be incomplete at the end.
        let tokens = [self.tokens.question.as_bytes(), self.tokens.beginning.as_bytes()];
        let longest = tokens.map(<[u8]>::len).into_iter().max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest - 1);
        let begins = |at: &usize| tokens.iter().any(|token| token.starts_with(&self.held[*at..]));
        let cut = (from..self.held.len()).find(begins).unwrap_or(self.held.len());
        shown.extend(self.held.drain(..cut));
        None
    }

    /// Returns the bytes that were held back until the end.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// A password that at least one host has accepted.
type Accepted = Option<Zeroizing<String>>;

/// The password that hosts share. The user is asked for it once.
#[derive(Debug, Default)]
pub(super) struct SharedPassword {
    /// Locked while a new password is tried on one host, so that no other gets one that may be wrong.
    accepted: Arc<Mutex<Accepted>>,
    /// True once there is one.
    known: watch::Sender<bool>,
    order: Order,
}

impl SharedPassword {
    /// Notes that this host may ask, until the guard is dropped.
    pub(super) fn enter(&self, place: usize) -> Undecided<'_> {
        self.order.enter(place)
    }
}

/// One host's use of the shared password.
#[derive(Debug, Default)]
pub(super) struct Asker {
    tried: Option<(Zeroizing<String>, OwnedMutexGuard<Accepted>)>,
    refused: bool,
}

impl Asker {
    /// Returns the answer to sudo's question: a password that another host has accepted, else the user's answer. `None`
    /// if there is none.
    pub(super) async fn answer(
        &mut self,
        (host, place): (&str, usize),
        shared: &SharedPassword,
        questions: &Questions,
    ) -> Option<Zeroizing<String>> {
        // A second question means that the first answer was wrong.
        let mut guard = match self.tried.take() {
            Some((_, guard)) => Some(guard),
            None => {
                // Hosts ask in the order of the list until a password is known, which is then tried at once.
                let mut known = shared.known.subscribe();
                tokio::select! {
                    () = questions.wait_in_order(&shared.order, place) => {}
                    _ = known.wait_for(|known| *known) => {}
                }
                Some(shared.accepted.clone().lock_owned().await)
            }
        };
        let known = guard.as_ref().and_then(|guard| (**guard).clone());
        if let Some(known) = known {
            drop(guard.take());
            if !self.refused {
                self.refused = true;
                return Some(known);
            }
            // This host has a password of its own.
        }
        let again = if self.refused { "wrong password; " } else { "" };
        self.refused = true;
        let text = format!("({host}) {again}password for sudo: ");
        let prompt = Prompt::new(PromptKind::Password, text, false);
        let answer = questions.ask_in_order(&shared.order, place, &prompt).await?;
        if let Some(guard) = guard {
            self.tried = Some((answer.clone(), guard));
        }
        Some(answer)
    }

    /// Notes that sudo has accepted the password, or needed none.
    pub(super) fn note_begun(&mut self, shared: &SharedPassword) {
        if let Some((password, mut guard)) = self.tried.take() {
            *guard = Some(password);
            shared.known.send_replace(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_wherever_they_are_cut() {
        let tokens = Arc::new(Tokens::new("root"));
        let text = format!(
            "lecture[su\n{}sorry\n{}{}mine",
            tokens.question, tokens.question, tokens.beginning
        );
        for size in 1..text.len() {
            let mut watch = Watch::new(tokens.clone());
            let (mut shown, mut signs) = (Vec::new(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                let mut data = piece.to_vec();
                while let Some((sign, after)) = watch.take(&data, &mut shown) {
                    signs.push(sign);
                    data = after;
                }
            }
            shown.extend(watch.rest());
            assert_eq!(signs, [Sign::Question, Sign::Question, Sign::Beginning], "{size}");
            assert_eq!(
                String::from_utf8(shown).unwrap(),
                "lecture[su\nsorry\nmine",
                "{size}"
            );
        }
    }

    #[test]
    fn no_two_runs_have_the_same_tokens() {
        let (one, other) = (Tokens::new("root"), Tokens::new("root"));
        assert_ne!(one.question, other.question);
        assert_ne!(one.question, one.beginning);
    }
}
