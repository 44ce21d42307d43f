//! The output of `trunkline run`: [lines] as they arrive, [collated](collate), [JSON](json) or [files], with a live
//! [progress] line and a final [summary].
//!
//! Everything here turns a [`HostResult`] into text. Nothing opens a connection, and only [`files`] and large
//! [`Output`]s touch the disk.

use std::fmt::{self, Display};
use std::time::{Duration, SystemTime};
use trunkline_request::destination::Destination;
pub(crate) use trunkline_request::failure::Execution;
use trunkline_request::words_of;
use trunkline_text::Printable;

use crate::terminal;
use output::Output;

pub(crate) mod alike;
pub(crate) mod collate;
pub(crate) mod colours;
pub(crate) mod connections;
pub(crate) mod csv;
pub(crate) mod files;
pub(crate) mod fold;
#[cfg(test)]
pub(crate) mod forms;
pub(crate) mod grid;
pub(crate) mod json;
pub(crate) mod lines;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod summary;
pub(crate) mod table;

/// Prints a message about the whole command on standard error. On a terminal, lines break between words.
pub fn tell(text: impl Display) {
    eprintln!("{}", wrap_message(text, terminal::width(std::io::stderr())));
}

/// Returns the output of [`tell`] for a terminal of this width, without a final newline.
fn wrap_message(text: impl Display, width: Option<u16>) -> String {
    let text = Printable::text(words_of(format_args!("trunkline: {text}"))).to_string();
    let lines: Vec<_> = text.lines().map(|line| grid::wrap(line, 2, width)).collect();
    lines.join("\n")
}

/// The result of a command on one host.
#[derive(Debug)]
pub(crate) struct HostResult {
    /// The host as the user named it.
    pub(crate) host: String,
    /// Its number in the list, from 1.
    pub(crate) number: usize,
    pub(crate) address: Destination,
    pub(crate) outcome: Outcome,
    /// The command's standard output; empty if it was passed on as it arrived.
    pub(crate) stdout: Output,
    /// The command's standard error; likewise.
    pub(crate) stderr: Output,
    /// The time at which work on this host began.
    pub(crate) started: SystemTime,
    /// The time from the start to the end, including connecting.
    pub(crate) elapsed: Duration,
    /// True if the connection existed before.
    pub(crate) warm: bool,
    /// The cause of a failure, if it changes the report.
    pub(crate) trouble: Option<Trouble>,
}

/// The cause of a failure that is not the host itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Its name has no address.
    UnknownName,
    /// A problem on this machine: ssh_config, the daemon's settings, memory.
    ThisMachine,
}

impl HostResult {
    /// Returns the host's names in messages.
    fn names(&self) -> [&str; 2] {
        [&self.host, &self.address.host]
    }

    /// Returns the outcome without the host's names, to compare hosts.
    fn alike(&self) -> Outcome {
        match self.outcome.clone() {
            Outcome::Failed {
                kind,
                message,
                execution,
            } => Outcome::Failed {
                kind,
                message: alike::key(&message, &self.names()),
                execution,
            },
            outcome => outcome,
        }
    }
}

/// Combines outcomes that are [alike](HostResult::alike).
fn join(outcomes: &[&Outcome]) -> Option<Outcome> {
    let messages = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Failed { message, .. } => Some(message.as_str()),
        _ => None,
    });
    let mut joined = (*outcomes.first()?).clone();
    if let Outcome::Failed { message, .. } = &mut joined {
        *message = alike::fold(messages);
    }
    Some(joined)
}

/// Returns the error on this machine, if it is the only result of a run.
pub(crate) fn trouble_here(results: &[HostResult]) -> Option<String> {
    let first = results.first()?.alike();
    let is_here =
        |result: &HostResult| result.trouble == Some(Trouble::ThisMachine) && result.alike() == first;
    if !results.iter().all(is_here) {
        return None;
    }
    let outcomes: Vec<&Outcome> = results.iter().map(|result| &result.outcome).collect();
    match join(&outcomes)? {
        Outcome::Failed {
            message,
            execution: Execution::DidNotStart,
            ..
        } => Some(message),
        _ => None,
    }
}

/// The outcome of a command on one host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// It ran to its end with this status (RFC 4254 section 6.10).
    Exited(u32),
    Signaled {
        /// The signal without "SIG", such as `TERM`.
        name: String,
        /// The signal left a core file.
        core: bool,
    },
    /// It was not started, or its end is not known.
    Failed {
        /// The kind of error, a stable word such as `network`.
        kind: String,
        /// One sentence for display.
        message: String,
        /// Says if the command ran.
        execution: Execution,
    },
}

/// The kind of failure of a host that the user's interruption kept from finishing, or from starting.
pub(crate) const INTERRUPTED: &str = "interrupted";
/// The kind of failure of a host that was not started because others had failed.
pub(crate) const SKIPPED: &str = "skipped";

impl Outcome {
    /// Returns true if the command ran and returned 0.
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Self::Exited(0))
    }

    /// Returns true if the command was never started, because of an interrupt or too many failures.
    pub(crate) fn is_left_out(&self) -> bool {
        matches!(self, Self::Failed { kind, execution: Execution::DidNotStart, .. } if kind == INTERRUPTED || kind == SKIPPED)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exit status {status}"),
            Self::Signaled { name, core: false } => write!(f, "killed by SIG{}", printable(name)),
            Self::Signaled { name, core: true } => {
                write!(f, "killed by SIG{} (core dumped)", printable(name))
            }
            Self::Failed { kind, .. } => f.write_str(kind),
        }
    }
}

/// Returns text that may come from a server as one printable line.
fn printable(text: &str) -> String {
    let line: Vec<_> = text.lines().collect();
    Printable::line(line.join(" ")).into_string()
}

/// Formats a time: tenths of a second below a minute, then whole units.
fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    match whole {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_breaks_between_words_on_a_terminal_only() {
        let text = "no space left in web1:/data for big.iso\n  ^ there";
        assert_eq!(wrap_message(text, None), format!("trunkline: {text}"));
        assert_eq!(
            wrap_message(text, Some(30)),
            "trunkline: no space left in\n  web1:/data for big.iso\n  ^ there"
        );
    }

    /// Returns a host that printed `stdout` and ended with `outcome`, after 1.5 s.
    pub(super) fn result(host: &str, outcome: Outcome, stdout: &str) -> HostResult {
        HostResult {
            host: host.to_owned(),
            number: 1,
            address: host.parse().unwrap_or_else(|_| "other".parse().expect("a host")),
            outcome,
            stdout: stdout.as_bytes().into(),
            stderr: Output::default(),
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250),
            elapsed: Duration::from_millis(1500),
            warm: true,
            trouble: None,
        }
    }

    pub(super) fn failure(kind: &str, message: &str, execution: Execution) -> Outcome {
        Outcome::Failed {
            kind: kind.to_owned(),
            message: message.to_owned(),
            execution,
        }
    }

    #[test]
    fn outcomes_read_as_sentences_and_never_carry_control_characters() {
        assert_eq!(Outcome::Exited(3).to_string(), "exit status 3");
        let signaled = |core| Outcome::Signaled {
            name: "SEGV\x1b[2J".to_owned(),
            core,
        };
        assert_eq!(signaled(false).to_string(), "killed by SIGSEGV\\033[2J");
        assert_eq!(
            signaled(true).to_string(),
            "killed by SIGSEGV\\033[2J (core dumped)"
        );
    }

    #[test]
    fn times_are_in_the_unit_that_fits() {
        let times = [0.04, 59.9, 61.0, 3725.0].map(|s| seconds(Duration::from_secs_f64(s)));
        assert_eq!(times, ["0.0 s", "59.9 s", "1 min 01 s", "1 h 02 min"]);
    }
}
