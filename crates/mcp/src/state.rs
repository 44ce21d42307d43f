//! The state of the server.

use std::path::PathBuf;

use tokio::sync::Semaphore;

use crate::ask::Person;
use crate::hosts::Hosts;
use crate::jobs::Jobs;
use crate::record::Trail;

/// The most concurrent calls, since clients have no limit of their own.
pub(crate) const MOST_CALLS: usize = 256;

pub(crate) struct State {
    /// The file of rules, which is read at each call.
    pub(crate) rules: PathBuf,
    pub(crate) hosts: Hosts,
    pub(crate) jobs: Jobs,
    pub(crate) person: Person,
    pub(crate) trail: Trail,
    pub(crate) calls: Semaphore,
}

impl State {
    /// Returns the initial state. The first call starts everything.
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
