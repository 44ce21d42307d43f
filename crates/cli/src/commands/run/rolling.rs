//! The progress of a run from host to host: its batches, and the failures that it tolerates.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Options of rolling work.
#[derive(Debug, clap::Args)]
pub(super) struct Rolling {
    /// Run on this many hosts, or this part of them, and begin with the next ones when all of these have finished.
    #[arg(help_heading = "Running", long, value_name = "N|P%")]
    serial: Option<Share>,
    /// Start no more hosts once one has failed; those that are running finish.
    #[arg(help_heading = "Running", long, conflicts_with = "max_fail")]
    fail_fast: bool,
    /// Start no more hosts once more than this many of them, or more than this part, have failed.
    #[arg(help_heading = "Running", long, value_name = "N|P%")]
    max_fail: Option<Share>,
}

impl Rolling {
    /// Returns the number of hosts in a batch of `all`; `None` if there are no batches.
    pub(super) fn batch(&self, all: usize) -> Option<NonZeroUsize> {
        let serial = self.serial.as_ref()?;
        Some(NonZeroUsize::new(serial.hosts_of(all)).unwrap_or(NonZeroUsize::MIN))
    }

    /// Returns the counter of failures for `all` hosts.
    pub(super) fn failures(&self, all: usize) -> Failures {
        let borne = match &self.max_fail {
            _ if self.fail_fast => 0,
            Some(most) => most.hosts_of(all),
            None => usize::MAX,
        };
        Failures {
            borne,
            seen: AtomicUsize::new(0),
        }
    }
}

/// A number of hosts, `3`, or a share, `10%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Hosts(usize),
    Percent(u8),
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a number of hosts such as 5, or a part of them such as 10%");
        Ok(match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse().map_err(|_| wrong())?;
                if percent > 100 {
                    return Err("more than 100% of the hosts".into());
                }
                Self::Percent(percent)
            }
            None => Self::Hosts(text.parse().map_err(|_| wrong())?),
        })
    }
}

impl Share {
    /// Returns the number of hosts, rounded down as in Ansible.
    fn hosts_of(self, all: usize) -> usize {
        match self {
            Self::Hosts(hosts) => hosts,
            Self::Percent(percent) => all.saturating_mul(percent.into()) / 100,
        }
    }
}

/// The failures of a run so far, and the tolerated number.
#[derive(Debug)]
pub(super) struct Failures {
    borne: usize,
    seen: AtomicUsize,
}

impl Failures {
    /// Returns the number that is tolerated, if it is limited.
    pub(super) fn tolerated_count(&self) -> Option<usize> {
        (self.borne != usize::MAX).then_some(self.borne)
    }

    /// Counts a failure.
    pub(super) fn add(&self) {
        self.seen.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of failures if there are too many.
    pub(super) fn too_many(&self) -> Option<usize> {
        let seen = self.seen.load(Ordering::Relaxed);
        (seen > self.borne).then_some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_number_or_a_part_rounded_down() {
        let of = |text: &str, all| text.parse::<Share>().map(|share| share.hosts_of(all));
        assert_eq!(of("3", 10), Ok(3));
        assert_eq!(of("25%", 10), Ok(2));
        assert_eq!(of("100%", 7), Ok(7));
        for wrong in ["", "%", "101%", "-1", "1.5", "a", "300%"] {
            assert!(of(wrong, 10).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_batch_has_at_least_one_host() {
        let rolling = |serial: &str| Rolling {
            serial: Some(serial.parse().unwrap()),
            fail_fast: false,
            max_fail: None,
        };
        assert_eq!(rolling("10%").batch(3).map(NonZeroUsize::get), Some(1));
        assert_eq!(rolling("0").batch(3).map(NonZeroUsize::get), Some(1));
        assert_eq!(rolling("50%").batch(9).map(NonZeroUsize::get), Some(4));
    }

    #[test]
    fn one_failure_more_than_is_borne_is_too_many() {
        let rolling = Rolling {
            serial: None,
            fail_fast: false,
            max_fail: Some(Share::Percent(20)),
        };
        let failures = rolling.failures(10);
        failures.add();
        failures.add();
        assert_eq!(failures.too_many(), None);
        failures.add();
        assert_eq!(failures.too_many(), Some(3));
    }
}
