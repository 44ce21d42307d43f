//! The vocabulary of requests, shared by all other crates: the destination ([`destination`], [`hosts`]), the caller's
//! environment ([`World`], [`Vantage`]), ssh's options ([`ssh_options`]), the verbosity ([`LogLevel`]), copies
//! ([`copy`]), measurements of a path ([`tuning`]), connections ([`connection`]), waiting ([`Waiting`]) and failures
//! ([`failure`]). These types travel over the control socket, so that a program needs no engine to use them.

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
pub use world::{LIMITED, Limits, World, current_umask};

/// Set in the environment of every `ssh -G`. A `trunkline up` that is run by a `Match exec` must then succeed at once
/// without doing anything: otherwise the engine would ask itself forever. It succeeds so that the result is the
/// configuration with a mux socket, including the ControlPath that ssh would use.
pub const RESOLVING: &str = "TRUNKLINE_RESOLVING";

/// Set to 1 by users who want a command to fail rather than use a connection that is not shared.
pub const STRICT: &str = "TRUNKLINE_STRICT";

/// Returns the error for a command that may only use shared connections, with the reason `why` there is none.
#[must_use]
pub fn not_shared(why: impl std::fmt::Display) -> String {
    format!("{why}, and only shared connections may be used (TRUNKLINE_STRICT=1 or strict_hosts)")
}
