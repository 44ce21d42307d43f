//! Hints: what a user can do about a failure, by its cause and in the words of the program's own options.

use std::fmt::{self, Display};

use trunkline_request::failure::{Cause, Failure, Invalid};

/// The daemon's answer that something failed.
#[derive(Debug)]
pub struct Refused(pub Failure);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&append(&self.0, &self.0))
    }
}

impl std::error::Error for Refused {}

/// Returns the text about a failure with its hint, if there is one.
pub(crate) fn append(text: impl Display, failure: &Failure) -> String {
    match hint(&failure.cause) {
        Some(hint) => format!("{text}; {hint}"),
        None => text.to_string(),
    }
}

fn hint(cause: &Cause) -> Option<&'static str> {
    let Cause::Invalid(invalid) = cause else {
        return None;
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
        Invalid::NotUtf8(_) => Some("choose another"),
        Invalid::LongSocket { .. } => Some("set TRUNKLINE_DIR to a shorter path"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use trunkline_request::failure::ErrorKind;

    use super::*;

    #[test]
    fn a_cause_that_can_be_helped_has_its_hint_behind_the_message() {
        let mut failure = Failure::new(ErrorKind::Configuration, Invalid::NoHost.to_string());
        assert_eq!(append(&failure, &failure), "no host is named");
        failure.cause = Cause::Invalid(Invalid::NoHost);
        assert_eq!(
            append(&failure, &failure),
            "no host is named; use cp(1) for local copies"
        );
    }
}
