//! [`Mine`]: a host that this process has an intent for, and how far it is.

use super::super::Time;
use super::super::entry::{Claim, Fate, Returned};

/// A host that this process has an intent for.
#[derive(Debug)]
pub(super) struct Mine {
    pub(super) claim: Claim,
    pub(super) stage: Stage,
    /// Whether the claim was sent: it may be made, or yet be.
    pub(super) is_sent: bool,
    /// Whether the claim is known to have stood there.
    pub(super) is_claimed: bool,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Stage {
    /// The disk is writing.
    Intending,
    /// The claim is to be made.
    Claiming(Flight),
    /// The command runs.
    Executing {
        /// Whether it was told to end.
        cancelled: bool,
    },
    /// The fleet is to know this.
    Settling(Fate, Flight),
}

/// A write that is repeated until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flight {
    /// To be sent.
    Idle,
    /// Sent.
    Sent,
    /// To be sent again, then.
    Until(Time),
}

impl Stage {
    /// The remains of an earlier process: nobody knows how far it was, unless there is a result.
    pub(super) fn of_former(claim: &Claim, returned: Option<Returned>) -> Self {
        let claim = claim.clone();
        let fate = match returned {
            Some(returned) => Fate::Ended { claim, returned },
            None => Fate::Unknown { claim },
        };
        Self::Settling(fate, Flight::Idle)
    }
}

impl Mine {
    pub(super) fn new(claim: Claim, stage: Stage) -> Self {
        Self {
            claim,
            stage,
            is_sent: false,
            is_claimed: false,
        }
    }

    /// Returns whether it is not yet decided that this process executes it.
    pub(super) fn is_beginning(&self) -> bool {
        matches!(self.stage, Stage::Intending | Stage::Claiming(_))
    }

    pub(super) fn is_running(&self) -> bool {
        !matches!(self.stage, Stage::Settling(..))
    }
}

impl Flight {
    pub(super) fn is_over(self, now: Time) -> bool {
        match self {
            Self::Idle => true,
            Self::Sent => false,
            Self::Until(until) => now >= until,
        }
    }
}
