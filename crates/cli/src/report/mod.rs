//! What `trunkline run` prints about many hosts: [lines] as they arrive, or [collated](collate), or
//! [JSON](json), or [files]; a live [progress] line, and a [summary] at the end.
//!
//! Everything here turns a [`HostResult`] into text. Nothing opens a connection, and only [`files`] and what
//! an [`Output`] has too much of touch the disk.

use std::fmt;
use std::time::{Duration, SystemTime};
use trunkline_text::Printable;

use output::Output;

pub(crate) mod collate;
pub(crate) mod colours;
pub(crate) mod connections;
pub(crate) mod files;
pub(crate) mod fold;
pub(crate) mod json;
pub(crate) mod lines;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod summary;

/// What became of a command on one host.
#[derive(Debug)]
pub(crate) struct HostResult {
    /// The host as the user named it.
    pub(crate) host: String,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// All the command wrote to standard output; empty where it was passed on as it arrived.
    pub(crate) stdout: Output,
    /// All the command wrote to standard error; likewise.
    pub(crate) stderr: Output,
    /// When work on this host began.
    pub(crate) started: SystemTime,
    /// From then to the end, connecting included.
    pub(crate) elapsed: Duration,
    /// The connection was there already.
    pub(crate) warm: bool,
}

/// How a command on one host ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// It ran to its end and returned this status (RFC 4254 section 6.10).
    Exited(u32),
    /// A signal ended it.
    Signaled {
        /// The signal without "SIG", such as `TERM`.
        name: String,
        /// It left a core file.
        core: bool,
    },
    /// It was not started, or its end is not known.
    Failed {
        /// The kind of error, a stable word such as `network`.
        kind: String,
        /// One sentence for people.
        message: String,
        /// Whether the command ran.
        execution: Execution,
    },
}

/// What is known, after a failure, about whether the command ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Execution {
    /// It is certain that it did not: running it again is safe.
    DidNotStart,
    /// It may have, wholly or in part.
    MayHaveStarted,
    /// It ran to its end, but its result was lost.
    Finished,
}

impl Outcome {
    /// The command ran and returned 0.
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Self::Exited(0))
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

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DidNotStart => "did not start",
            Self::MayHaveStarted => "may have started",
            Self::Finished => "finished",
        })
    }
}

/// Words that may come from a server, in one line: where they have several, a space stands between them.
fn printable(text: &str) -> String {
    let line: Vec<_> = text.lines().collect();
    Printable::line(line.join(" ")).into_string()
}

/// A time as people compare them: tenths of a second below a minute, then whole units.
fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    match whole {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

/// `1 host`, `2 hosts`.
fn hosts(count: usize) -> String {
    format!("{count} {}", if count == 1 { "host" } else { "hosts" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that printed `stdout` and ended with `outcome`, after 1.5 s.
    pub(super) fn result(host: &str, outcome: Outcome, stdout: &str) -> HostResult {
        HostResult {
            host: host.to_owned(),
            outcome,
            stdout: stdout.as_bytes().into(),
            stderr: Output::default(),
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250),
            elapsed: Duration::from_millis(1500),
            warm: true,
        }
    }

    pub(super) fn failed(kind: &str, message: &str, execution: Execution) -> Outcome {
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
        let words = [
            Execution::DidNotStart,
            Execution::MayHaveStarted,
            Execution::Finished,
        ]
        .map(|e| e.to_string());
        assert_eq!(words, ["did not start", "may have started", "finished"]);
    }

    #[test]
    fn times_are_in_the_unit_that_fits() {
        let times = [0.04, 59.9, 61.0, 3725.0].map(|s| seconds(Duration::from_secs_f64(s)));
        assert_eq!(times, ["0.0 s", "59.9 s", "1 min 01 s", "1 h 02 min"]);
    }
}
