//! The words of a request, which every other crate says the same things with: where to ([`destination`], [`hosts`]), from which
//! surroundings ([`World`], [`Vantage`]), with which of ssh's options ([`ssh_options`]), how much to tell
//! ([`LogLevel`]), how to copy ([`copy`]), what was measured for a path ([`tuning`]), what connections there are
//! ([`connection`]), what is waited for ([`Waiting`]), and what a failure means ([`failure`]). They travel over the control socket, so that a program needs no engine to say them.

#![warn(missing_docs)]

mod backoff;
pub mod connection;
pub mod copy;
pub mod destination;
mod exit;
pub mod failure;
pub mod hosts;
mod log_level;
pub mod mode;
pub mod os_bytes;
pub mod own;
mod prompt;
pub mod shell;
pub mod ssh_options;
pub mod tuning;
mod waiting;
mod world;

pub use backoff::Backoff;
pub use exit::ExitStatus;
pub use failure::words_of;
pub use log_level::{LogLevel, LogLine};
pub use prompt::PromptKind;
pub use waiting::Waiting;
pub use world::terminal::{CallersTerminal, Lend, Line};
pub use world::vantage::{Difference, Vantage};
pub use world::{Limits, World, current_umask};

/// Set in the environment of every `ssh -G`. `trunkline up` run by a `Match exec` must succeed at once, and do nothing
/// else, where it sees this variable: the engine would otherwise ask itself forever. It succeeds so that the answer is
/// the configuration as it is when a mux socket is there, with the ControlPath that ssh would then use.
pub const RESOLVING: &str = "TRUNKLINE_RESOLVING";

/// Set to 1 by who would rather have a command fail than have it make a connection that is not shared.
pub const STRICT: &str = "TRUNKLINE_STRICT";

/// Returns the message for a case that allows only shared connections, and `why` there is none.
#[must_use]
pub fn not_shared(why: impl std::fmt::Display) -> String {
    format!("{why}, and only shared connections may be used (TRUNKLINE_STRICT=1 or strict_hosts)")
}
