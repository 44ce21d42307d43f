//! Hints: what a user can do about a failure, with the program's own options.

use std::fmt::{self, Display};

use trunkline_request::copy::Obstacle;
use trunkline_request::failure::{Absence, Cause, Failure, Invalid};

/// The daemon's reply that a request failed.
#[derive(Debug)]
pub struct Refused(pub Failure);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&append(&self.0, &self.0))
    }
}

impl std::error::Error for Refused {}

/// Returns the text about a failure with its hint, if any.
pub(crate) fn append(text: impl Display, failure: &Failure) -> String {
    match hint(&failure.cause) {
        Some(hint) => format!("{text}; {hint}"),
        None => text.to_string(),
    }
}

/// Returns what a user can do about a failure of this cause.
pub(crate) fn hint(cause: &Cause) -> Option<&'static str> {
    const ON_INPUT: &str = "a shell reads a longer one from its input (ssh HOST sh < FILE)";
    let invalid = match cause {
        Cause::Invalid(invalid) => invalid,
        Cause::NotConnected(Absence::Unmade) => return Some("run `trunkline warm` to make one"),
        Cause::NotConnected(Absence::Dead) => return Some("run `trunkline warm` to start another"),
        Cause::OtherSettings => return Some("`trunkline explain` shows both"),
        Cause::Unattended => return Some("`trunkline ssh` lets ssh ask"),
        Cause::LongText => return Some(ON_INPUT),
        _ => return None,
    };
    match invalid {
        Invalid::Elsewhere { .. } => Some("--no-daemon connects from there"),
        Invalid::NoHost => Some("use cp(1) for local copies"),
        Invalid::OutOfSource(_) => Some("list paths below the source"),
        Invalid::NotADirectory { is_missing: true, .. } => Some("--mkdir creates it"),
        Invalid::Owners(_) => Some("log in as root, or copy without --numeric-ids"),
        Invalid::Backups(_) => Some("copy without --backup"),
        Invalid::HardLinks(_) | Invalid::HardLinksOfServer => Some("copy without --hard-links"),
        Invalid::TooManyNames => Some("copy the directories one by one, or raise names_memory"),
        Invalid::LongCommand { .. } => Some(ON_INPUT),
        Invalid::AgentNotForwarded(_) => Some("set ForwardAgent or use -A"),
        Invalid::NotUtf8(_) => Some("choose another"),
        Invalid::LongSocket { .. } => Some("set TRUNKLINE_DIR to a shorter path"),
        _ => None,
    }
}

/// Returns the message about a file that was not copied, with what would copy it.
pub(crate) fn of_file(message: &str, obstacle: Option<Obstacle>) -> String {
    let hint = match obstacle {
        None => return message.to_owned(),
        Some(Obstacle::NoDirectory) => "--mkdir creates its directory",
        Some(Obstacle::Directory) => "-r copies it",
        Some(Obstacle::Owner) => "--no-owner copies it without",
    };
    format!("{message}; {hint}")
}

#[cfg(test)]
mod tests {
    use trunkline_request::failure::ErrorKind;

    use super::*;

    #[test]
    fn a_cause_that_can_be_helped_has_its_hint_behind_the_message() {
        let mut failure = Failure::new(ErrorKind::Configuration, "it failed");
        for (cause, told) in [
            (Cause::Other, "it failed"),
            (Cause::NotConnected(Absence::Silent), "it failed"),
            (
                Cause::NotConnected(Absence::Unmade),
                "it failed; run `trunkline warm` to make one",
            ),
            (
                Cause::Invalid(Invalid::NoHost),
                "it failed; use cp(1) for local copies",
            ),
            (
                Cause::LongText,
                "it failed; a shell reads a longer one from its input (ssh HOST sh < FILE)",
            ),
        ] {
            failure.cause = cause;
            assert_eq!(append(&failure, &failure), told);
        }
    }

    #[test]
    fn a_file_that_other_options_would_copy_has_its_hint_behind_the_message() {
        assert_eq!(of_file("it failed", None), "it failed");
        assert_eq!(
            of_file("it failed", Some(Obstacle::NoDirectory)),
            "it failed; --mkdir creates its directory"
        );
    }
}
