//! The configuration of a destination, exactly as the user's own `ssh` reads it.
//!
//! `ssh -G` is the source of truth: `Host`, `Match`, `Include`, `Match exec` and every default come from it.
//! [`Resolver`] runs it and caches the answer. [`HostConfig`] types the answer and expands what `ssh -G` leaves
//! unexpanded. [`HostConfig::needs_system_ssh`] names the directives that the engine cannot honour, so that none is
//! ever silently ignored.
//!
//! ```no_run
//! use std::sync::Arc;
//! use trunkline_config::ssh_config::{Request, Resolver, World};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let resolver = Resolver::new();
//! let request = Request::new("db1".parse()?, Arc::new(World::current()?));
//! let host = resolver.resolve(&request).await?;
//! println!("{}@{}:{}", host.user, host.hostname, host.port);
//! # Ok(())
//! # }
//! ```

mod account;
mod algorithms;
mod command_world;
mod directives;
mod dump;
pub(crate) mod files;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod log_in;
mod readers;
mod resolver;
mod sharing;
mod support;
mod tokens;
mod values;

pub use algorithms::Algorithms;
pub use command_world::CommandWorld;
pub use directives::{DIRECTIVES, HostConfig, Role, Row};
pub use dump::{Departure, Directive};
pub use files::control_paths;
pub use log_in::{HostKeyCheck, KeyUsed, LogIn, LogInTerms, Method, Objection};
pub use readers::{IdentityFile, LocalCommand, Proxy};
pub use resolver::{RESOLVING, Request, Resolver, complaint, ssh_program};
pub use sharing::SharingKey;
pub use support::Reason;
pub use trunkline_request::{Difference, Limits, Vantage, World};
pub use values::{
    AddKeysToAgent, AddressFamily, ControlMaster, ControlPersist, FingerprintHash, Forward, ForwardAgent,
    ForwardTarget, IpQos, Listen, LogLevel, NameList, PermitRemoteOpen, PubkeyAuthentication, RekeyLimit,
    RequestTty, SessionType, StrictHostKeyChecking, UpdateHostKeys, WeakCryptoWarning, retain_names,
};

use std::path::PathBuf;
use std::time::Duration;

/// Returns the ssh_config of this process's user. As in ssh, the password database decides where it is, not `HOME`.
///
/// # Errors
/// [`ConfigError::NoAccount`].
pub fn user_config_file() -> Result<PathBuf, ConfigError> {
    Ok(account::Account::current()?.home.join(".ssh/config"))
}

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}

/// Returns bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The reason why a destination could not be resolved. `Clone`, because one failure may answer several waiting callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no `ssh` on the caller's `PATH`.
    #[error("no ssh program in {0:?}; install the OpenSSH client or set TRUNKLINE_SSH to its path")]
    NoProgram(String),
    /// The program could not be started.
    #[error("cannot run {program}: {reason}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The operating system's reason.
        reason: String,
    },
    /// `ssh -G` refused: a bad option in a file (named with its line) or among the arguments. Contains ssh's lines.
    #[error("ssh refuses the configuration: {}", .0.replace('\n', "; "))]
    Refused(String),
    /// An option, or a variable that takes part, contains a control character. `ssh -G` prints values unchanged, one
    /// line for each directive, so that text after a line feed would be read as another directive.
    #[error("{0} contains a control character, which no value of ssh_config can hold")]
    ControlCharacter(String),
    /// ssh's options contain a word that ssh would take for the host, or one that would take the host for its value.
    #[error(
        "{0:?} is not a list of ssh's options: a word in it would be another host, or an option lacks its value"
    )]
    NotOptions(String),
    /// `ssh -G` did not finish, most likely because of a `Match exec`.
    #[error("ssh -G did not finish within {0:?}; look for a Match exec that hangs or waits for input")]
    TimedOut(Duration),
    /// A `Match exec` wants to ask on the terminal, which the caller does not lend.
    #[error("a Match exec of ssh_config asks on the terminal")]
    Asks,
    /// `ssh -G` printed something that is not a configuration.
    #[error("{program} -G did not print a configuration ({reason}); is it OpenSSH?")]
    NotAConfiguration {
        /// The program.
        program: PathBuf,
        /// The missing part.
        reason: &'static str,
    },
    /// A token or environment variable at which ssh would fail, too.
    #[error("cannot expand {directive} {value:?}: {reason}")]
    Expansion {
        /// The directive.
        directive: &'static str,
        /// Its value as `ssh -G` prints it.
        value: String,
        /// The problem.
        reason: String,
    },
    /// A host that a program described cannot be used.
    #[error("the host {0}")]
    Explicit(&'static str),
    /// The local user is not in the password database.
    #[error("user id {0} has no entry in the password database, which ssh needs to find the home directory")]
    NoAccount(u32),
    /// The password database could not be read.
    #[error("cannot look up user id {uid} in the password database: {reason}")]
    AccountUnread {
        /// The local user.
        uid: u32,
        /// The operating system's reason.
        reason: String,
    },
    /// The chain of jump hosts is too long.
    #[error("more than {0} jump hosts, each behind the next: does ProxyJump form a loop?")]
    TooManyJumps(usize),
    /// A command was given although the configuration has one.
    #[error("Cannot execute command-line and remote command; use -o RemoteCommand=none")]
    TwoCommands,
    /// A jump host that cannot be parsed.
    #[error("ProxyJump: {0}")]
    Jump(#[from] crate::destination::DestinationError),
}
