//! A job as its submitter asks for it, and as a node takes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allow::{Allowed, refuses};
use crate::order::{Kind, LONGEST_TIME, MOST_HOSTS, Order, OrderTerms, OrderedHost};
use crate::state::{JobId, Limits, Plan, PlannedHost, Zones};

/// A job, without its hosts.
pub type JobOrder = Order<JobTerms>;

/// The terms for all hosts of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTerms {
    /// For all of them together.
    pub limits: Limits,
    /// The time limit for each.
    pub limit: Option<Duration>,
    /// The number of times that a host on which nothing may have run is tried again.
    pub retries: u32,
    /// The input of its command, if there is any.
    pub input: Option<OrderedInput>,
}

impl OrderTerms for JobTerms {
    type Id = JobId;

    const KIND: Kind = Kind::Job;

    fn limit_times(&mut self) {
        self.limit = self.limit.map(|limit| limit.min(LONGEST_TIME));
    }
}

/// An input that NATS has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedInput {
    /// Names it there.
    pub id: String,
    /// Its length.
    pub bytes: u64,
    /// In how many messages it is.
    pub pieces: u32,
    /// Its SHA-256.
    #[serde(with = "serde_bytes")]
    pub digest: Vec<u8>,
}

impl JobOrder {
    /// The job as a node takes it: who may start what.
    pub(crate) fn plan(&self, hosts: &[OrderedHost], zones: &Zones, node: &str, allowed: &Allowed) -> Plan {
        let hosts = hosts.iter().map(|host| PlannedHost {
            unit: zones.unit_of(&host.destination.host),
            refused: refuses(allowed, node, &self.submitter, &host.destination, None),
        });
        Plan {
            hosts: hosts.collect(),
            limits: self.terms.limits,
        }
    }
}

/// A job of another version, which nobody starts: whoever looks after the job says so for each host.
pub(crate) fn plan_of_other_version(job: &JobId, hosts: u32, zones: &Zones, why: &str) -> Option<Plan> {
    let hosts = usize::try_from(hosts).ok().filter(|hosts| *hosts <= MOST_HOSTS)?;
    let host = PlannedHost {
        unit: zones.unit_of_job(&job.0),
        refused: Some(why.to_owned()),
    };
    Some(Plan {
        hosts: vec![host; hosts],
        limits: Limits::default(),
    })
}
