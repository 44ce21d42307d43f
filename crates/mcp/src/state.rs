//! The state from the first call to the last.

use std::path::PathBuf;

use tokio::sync::Semaphore;

use crate::ask::Person;
use crate::hosts::Hosts;
use crate::jobs::Jobs;
use crate::record::Trail;

/// Calls under way. Clients have no bound of their own.
pub(crate) const MOST_CALLS: usize = 256;

pub(crate) struct State {
    /// The file that says what may be done: it is read at each call.
    pub(crate) rules: PathBuf,
    pub(crate) hosts: Hosts,
    pub(crate) jobs: Jobs,
    pub(crate) person: Person,
    pub(crate) trail: Trail,
    pub(crate) calls: Semaphore,
}

impl State {
    /// Nothing is begun: that is for the first call.
    pub(crate) fn new(rules: PathBuf) -> Self {
        Self {
            rules,
            hosts: Hosts::new(),
            jobs: Jobs::default(),
            person: Person::new(),
            trail: Trail::default(),
            calls: Semaphore::new(MOST_CALLS),
        }
    }
}
