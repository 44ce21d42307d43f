//! A job as its submitter requests it, and as a node accepts it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allow::{Allowed, refuses};
use crate::order::{Kind, LONGEST_TIME, MOST_HOSTS, Order, OrderTerms, OrderedHost};
use crate::state::{JobId, Limits, Plan, PlannedHost, Zones};

/// A job, without its hosts.
pub type JobOrder = Order<JobTerms>;

/// The settings for all hosts of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTerms {
    /// The limits for all hosts together.
    pub limits: Limits,
    /// The time limit for each host.
    pub limit: Option<Duration>,
    /// The maximum number of retries for a host on which nothing can have run.
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

/// An input that is stored in NATS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedInput {
    /// Its name there.
    pub id: String,
    /// Its length.
    pub bytes: u64,
    /// The number of messages that it consists of.
    pub pieces: u32,
    /// Its SHA-256.
    #[serde(with = "serde_bytes")]
    pub digest: Vec<u8>,
}

impl JobOrder {
    /// Returns the job as a node accepts it, with the refused hosts.
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

/// Makes the plan for a job of another version, which nobody starts. The responsible node reports that for each host.
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
