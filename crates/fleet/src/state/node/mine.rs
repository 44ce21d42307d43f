//! [`Mine`]: a host that this process has an intent for, and its progress.

use super::super::Time;
use super::super::entry::{Claim, Fate, Returned};

/// A host that this process has an intent for.
#[derive(Debug)]
pub(super) struct Mine {
    pub(super) claim: Claim,
    pub(super) stage: Stage,
    /// True if the claim was sent. It may have been made, or may still be.
    pub(super) is_sent: bool,
    /// True if the claim is known to have been in the bucket.
    pub(super) is_claimed: bool,
}

/// The progress of a host.
#[derive(Debug)]
pub(super) enum Stage {
    /// The intent is being written to disk.
    Intending,
    /// The claim has to be made.
    Claiming(Flight),
    /// The command runs.
    Executing {
        /// True if it was told to end.
        cancelled: bool,
    },
    /// The fleet has to be told this fate.
    Settling(Fate, Flight),
}

/// A write that is repeated until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flight {
    /// Has to be sent.
    Idle,
    Sent,
    /// Has to be sent again at this time.
    Until(Time),
}

impl Stage {
    /// Makes the stage of an intent from an earlier process: nobody knows how far it got, unless there is a result.
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

    /// Returns true if it is not yet decided that this process executes it.
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
