//! What a submitter asks a fleet for, signed with its nkey, and what a node allows.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};
use trunkline_request::destination::Destination;
use trunkline_request::hosts::matches;

use crate::bucket::{PROTOCOL, decode, encode};
use crate::state::{Cancel, JobId, Limits, Plan, PlannedHost, Zones};

/// How many hosts are in one value of the bucket: some 100 KB, where NATS takes 1 MB.
pub const HOSTS_IN_A_PART: usize = 1000;

/// The most hosts of one job.
pub const MOST_HOSTS: usize = 100_000;

/// How far a submitter's clock may be from the server's, in seconds: an order that somebody kept is not taken again later.
const CLOCKS_APART: u64 = 600;

/// A job, without its hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The job.
    pub job: JobId,
    /// The submitter's public nkey.
    pub submitter: String,
    /// Seconds since 1970, by the submitter's clock.
    pub at: u64,
    /// How many hosts there are.
    pub hosts: u32,
    /// SHA-256 over all parts of its list of hosts.
    #[serde(with = "serde_bytes")]
    pub digest: Vec<u8>,
    /// What holds for all hosts together.
    pub limits: Limits,
    /// How long each host may take.
    pub limit: Option<Duration>,
}

/// A host of a job, and what is run on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedHost {
    /// What people call it.
    pub name: String,
    /// Where it is. The node's ssh_config says the rest.
    pub destination: Destination,
    /// The command line.
    #[serde(with = "serde_bytes")]
    pub command: Vec<u8>,
}

/// What every version of an order has.
#[derive(Debug, Deserialize)]
struct Header {
    protocol: u32,
    job: JobId,
    submitter: String,
    hosts: u32,
}

/// That a job is to end.
#[derive(Debug, Serialize, Deserialize)]
struct Cancellation {
    cancels: JobId,
    by: String,
}

/// An order as it stands in the bucket: exactly the bytes that were signed.
#[derive(Debug, Serialize, Deserialize)]
struct Signed {
    #[serde(with = "serde_bytes")]
    order: Vec<u8>,
    #[serde(with = "serde_bytes")]
    signature: Vec<u8>,
}

/// Why an order is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// It cannot be read.
    #[error("the job cannot be read: it was written by another version of trunkline, or damaged")]
    Malformed,
    /// Of another version.
    #[error(
        "the job speaks protocol {theirs} and this fleet {PROTOCOL}; use the same version of trunkline on all machines"
    )]
    Protocol {
        /// The job's.
        theirs: u32,
        /// How many hosts it has.
        hosts: u32,
    },
    /// Not by the one whose name it has.
    #[error("the job is not signed by {0}, whose name it has")]
    Signature(String),
    /// Its time is not the server's.
    #[error(
        "the job's time is {0} s from that of NATS: set the submitter's clock; a job that is sent a second time is not taken"
    )]
    Time(u64),
    /// It cannot be signed.
    #[error("the nkey cannot sign: {0}")]
    Key(String),
    /// No hosts, or too many.
    #[error("a job has 1 to {MOST_HOSTS} hosts, not {0}")]
    Hosts(usize),
}

/// What is written for a job: its order, and the parts of its list of hosts.
pub(crate) struct Written {
    pub(crate) order: Vec<u8>,
    pub(crate) parts: Vec<Vec<u8>>,
}

/// Writes a job down, signed.
pub(crate) fn sign(
    key: &KeyPair,
    job: &JobId,
    at: u64,
    hosts: &[OrderedHost],
    limits: Limits,
    limit: Option<Duration>,
) -> Result<Written, OrderError> {
    if hosts.is_empty() || hosts.len() > MOST_HOSTS {
        return Err(OrderError::Hosts(hosts.len()));
    }
    let parts: Result<Vec<_>, _> = hosts.chunks(HOSTS_IN_A_PART).map(|part| encode(&part)).collect();
    let parts = parts.map_err(|_| OrderError::Malformed)?;
    let order = Order {
        protocol: PROTOCOL,
        job: job.clone(),
        submitter: key.public_key(),
        at,
        hosts: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
        digest: digest_of(&parts),
        limits,
        limit,
    };
    let order = encode(&order).map_err(|_| OrderError::Malformed)?;
    let signature = key
        .sign(&order)
        .map_err(|error| OrderError::Key(error.to_string()))?;
    let order = encode(&Signed { order, signature }).map_err(|_| OrderError::Malformed)?;
    Ok(Written { order, parts })
}

/// Reads an order that NATS got at this time (seconds since 1970, by its clock), and checks who says so.
pub(crate) fn read(job: &JobId, bytes: &[u8], got: u64) -> Result<Order, OrderError> {
    let signed: Signed = decode(bytes).map_err(|_| OrderError::Malformed)?;
    let header: Header = decode(&signed.order).map_err(|_| OrderError::Malformed)?;
    if header.job != *job || !is_signed(&header.submitter, &signed.order, &signed.signature) {
        return Err(OrderError::Signature(header.submitter));
    }
    if header.protocol != PROTOCOL {
        return Err(OrderError::Protocol {
            theirs: header.protocol,
            hosts: header.hosts,
        });
    }
    let order: Order = decode(&signed.order).map_err(|_| OrderError::Malformed)?;
    let apart = order.at.abs_diff(got);
    if apart > CLOCKS_APART {
        return Err(OrderError::Time(apart));
    }
    Ok(order)
}

/// Says that a job is to end.
pub(crate) fn sign_cancel(key: &KeyPair, job: &JobId) -> Result<Cancel, OrderError> {
    let cancellation = Cancellation {
        cancels: job.clone(),
        by: key.public_key(),
    };
    let text = encode(&cancellation).map_err(|_| OrderError::Malformed)?;
    let signature = key
        .sign(&text)
        .map_err(|error| OrderError::Key(error.to_string()))?;
    Ok(Cancel { text, signature })
}

/// Whether it is the one with this key who says that a job is to end.
pub(crate) fn is_cancel(job: &JobId, who: &str, cancel: &Cancel) -> bool {
    let said = decode::<Cancellation>(&cancel.text);
    let is_said = said.is_ok_and(|said| said.cancels == *job && said.by == who);
    is_said && is_signed(who, &cancel.text, &cancel.signature)
}

fn is_signed(who: &str, text: &[u8], signature: &[u8]) -> bool {
    let key = KeyPair::from_public_key(who);
    key.and_then(|key| key.verify(text, signature)).is_ok()
}

/// The hosts of an order, once all parts are there.
pub(crate) fn hosts(order: &Order, parts: &[Vec<u8>]) -> Result<Vec<OrderedHost>, OrderError> {
    if digest_of(parts) != order.digest {
        return Err(OrderError::Signature(order.submitter.clone()));
    }
    let mut hosts = Vec::new();
    for part in parts {
        let part: Vec<OrderedHost> = decode(part).map_err(|_| OrderError::Malformed)?;
        hosts.extend(part);
    }
    if usize::try_from(order.hosts).ok() != Some(hosts.len()) || hosts.len() > MOST_HOSTS {
        return Err(OrderError::Malformed);
    }
    Ok(hosts)
}

impl Order {
    /// In how many parts its list of hosts is.
    pub(crate) fn parts(&self) -> usize {
        usize::try_from(self.hosts)
            .unwrap_or(usize::MAX)
            .div_ceil(HOSTS_IN_A_PART)
    }
}

fn digest_of(parts: &[Vec<u8>]) -> Vec<u8> {
    digest(&SHA256, &parts.concat()).as_ref().to_vec()
}

/// What a node runs, and for whom. Nothing, where there is no rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    /// The rules; one that fits is enough.
    #[serde(default)]
    pub allow: Vec<Rule>,
    /// Public nkeys of those who may cancel what others have submitted.
    #[serde(default)]
    pub cancel: Vec<String>,
}

/// Where a node's allow list is.
pub trait AllowSource: Debug + Send + Sync + 'static {
    /// The list as it is at this moment.
    ///
    /// # Errors
    /// Why it cannot be read, as a sentence: nothing is allowed then.
    fn current(&self) -> Result<Arc<AllowList>, String>;
}

/// One that never changes.
impl AllowSource for AllowList {
    fn current(&self) -> Result<Arc<AllowList>, String> {
        Ok(Arc::new(self.clone()))
    }
}

/// A list as it was read, or why there is none.
pub(crate) type Allowed = Result<Arc<AllowList>, String>;

/// Why a host is not allowed, where that is so.
pub(crate) fn refuses(
    allowed: &Allowed,
    node: &str,
    submitter: &str,
    destination: &Destination,
) -> Option<String> {
    match allowed {
        Ok(list) => list.refuses(node, submitter, destination),
        Err(why) => Some(format!(
            "node {node} allows nothing, because its allow list cannot be read: {why}"
        )),
    }
}

/// Who may run something, as whom, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Public nkeys (`U…`).
    pub submitters: Vec<String>,
    /// Patterns of host names.
    pub hosts: Vec<String>,
    /// Patterns of users that a job may name. Where none is given, a job cannot name any: ssh_config says who logs in.
    #[serde(default)]
    pub users: Vec<String>,
}

impl AllowList {
    /// Why a host is not allowed, where that is so.
    pub fn refuses(&self, node: &str, submitter: &str, destination: &Destination) -> Option<String> {
        let of_submitter = |rule: &&Rule| rule.submitters.iter().any(|known| known == submitter);
        let rules: Vec<&Rule> = self.allow.iter().filter(of_submitter).collect();
        if rules.is_empty() {
            return Some(format!(
                "node {node} takes no jobs of {submitter}: its allow list does not name that submitter"
            ));
        }
        let fits = |patterns: &[String], name: &str| {
            let name = name.as_bytes();
            patterns.iter().any(|pattern| matches(name, pattern.as_bytes()))
        };
        let host = destination.host.to_ascii_lowercase();
        let rules = rules.into_iter().filter(|rule| fits(&rule.hosts, &host));
        let rules: Vec<&Rule> = rules.collect();
        if rules.is_empty() {
            return Some(format!(
                "the allow list of node {node} does not let {submitter} reach {host}"
            ));
        }
        let user = destination.user.as_deref();
        let allowed = user.is_none_or(|user| rules.iter().any(|rule| fits(&rule.users, user)));
        (!allowed).then(|| {
            format!(
                "the allow list of node {node} does not let {submitter} be {} on {host}",
                user.unwrap_or_default()
            )
        })
    }
}

/// A job as a node takes it: who may start what.
pub(crate) fn plan(
    order: &Order,
    hosts: &[OrderedHost],
    zones: &Zones,
    node: &str,
    allowed: &Allowed,
) -> Plan {
    let hosts = hosts.iter().map(|host| PlannedHost {
        unit: zones.unit_of(&host.destination.host),
        refused: refuses(allowed, node, &order.submitter, &host.destination),
    });
    Plan {
        hosts: hosts.collect(),
        limits: order.limits,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> OrderedHost {
        OrderedHost {
            name: name.into(),
            destination: Destination::parse_hop(name).unwrap(),
            command: b"true".to_vec(),
        }
    }

    #[test]
    fn an_order_is_taken_from_its_signer_and_in_its_time() {
        let key = KeyPair::new_user();
        let job = JobId("j".into());
        let written = sign(&key, &job, 1000, &[host("a")], Limits::default(), None).unwrap();
        let order = read(&job, &written.order, 1100).unwrap();
        assert_eq!(hosts(&order, &written.parts).unwrap(), [host("a")]);

        let other_list = vec![encode(&[host("b")].as_slice()).unwrap()];
        assert!(hosts(&order, &other_list).is_err());
        assert!(matches!(
            read(&job, &written.order, 5000),
            Err(OrderError::Time(4000))
        ));
        let other_job = JobId("k".into());
        assert!(matches!(
            read(&other_job, &written.order, 1000),
            Err(OrderError::Signature(_))
        ));
        let mut signed: Signed = decode(&written.order).unwrap();
        signed.signature[3] ^= 1;
        let forged = encode(&signed).unwrap();
        assert!(matches!(read(&job, &forged, 1000), Err(OrderError::Signature(_))));
        assert!(matches!(read(&job, b"x", 1000), Err(OrderError::Malformed)));
    }

    #[test]
    fn who_cancels_says_which_job_and_signs_it() {
        let (key, other) = (KeyPair::new_user(), KeyPair::new_user());
        let job = JobId("j".into());
        let cancel = sign_cancel(&key, &job).unwrap();
        assert!(is_cancel(&job, &key.public_key(), &cancel));
        assert!(!is_cancel(&JobId("k".into()), &key.public_key(), &cancel));
        assert!(!is_cancel(&job, &other.public_key(), &cancel));
        let of_other = sign_cancel(&other, &job).unwrap();
        let forged = Cancel {
            text: cancel.text.clone(),
            ..of_other
        };
        assert!(!is_cancel(&job, &key.public_key(), &forged));
        // An order of the same one is signed, too, and cancels nothing.
        let written = sign(&key, &job, 1000, &[host("a")], Limits::default(), None).unwrap();
        let signed: Signed = decode(&written.order).unwrap();
        let order = Cancel {
            text: signed.order,
            signature: signed.signature,
        };
        assert!(!is_cancel(&job, &key.public_key(), &order));
    }

    #[test]
    fn only_what_a_rule_allows_is_allowed() {
        let list = AllowList {
            allow: vec![Rule {
                submitters: vec!["UA".into()],
                hosts: vec!["*.eu".into()],
                users: vec!["deploy".into()],
            }],
            cancel: Vec::new(),
        };
        let refuses = |submitter: &str, host: &str| {
            let destination = Destination::parse_hop(host).unwrap();
            list.refuses("n", submitter, &destination)
        };
        assert_eq!(refuses("UA", "web1.eu"), None);
        assert_eq!(refuses("UA", "deploy@web1.EU"), None);
        assert!(refuses("UA", "root@web1.eu").unwrap().contains("be root"));
        assert!(refuses("UA", "web1.us").unwrap().contains("reach web1.us"));
        assert!(refuses("UB", "web1.eu").unwrap().contains("takes no jobs of UB"));
        let nothing = AllowList::default();
        assert!(
            nothing
                .refuses("n", "UA", &Destination::parse_hop("a").unwrap())
                .is_some()
        );
    }
}
