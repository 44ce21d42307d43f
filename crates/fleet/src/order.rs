//! The order of a job or a stream: its submitter signs it with an nkey, and everyone reads it.
//!
//! Its name is derived from the signed text, which includes the submitter's key. So data that is written in its place
//! is recognised, and the name of a job identifies exactly that job.

pub mod job;
pub mod stream;

use std::fmt;
use std::time::Duration;

use nkeys::KeyPair;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trunkline_request::destination::Destination;

use crate::bucket::{Charter, PROTOCOL, decode, encode, random};
use crate::signed::{Purpose, Signed, digest_of};

/// The number of hosts in one value of the bucket: about 100 KB, while NATS accepts 1 MB.
const HOSTS_IN_A_PART: usize = 1000;

/// The most hosts of one job or stream.
pub const MOST_HOSTS: usize = 100_000;

/// The most parts of a list of hosts.
pub(crate) const MOST_PARTS: usize = MOST_HOSTS / HOSTS_IN_A_PART;

/// The longest time in an order: a year.
pub const LONGEST_TIME: Duration = Duration::from_secs(366 * 86_400);

/// The length of a name.
const NAME: usize = 24;

/// The maximum difference between a submitter's clock and the server's, in seconds, so that an old order cannot be
/// replayed.
const CLOCKS_APART: u64 = 600;

/// The kind of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Commands that are executed once.
    Job,
    /// Commands that run until they are cancelled.
    Stream,
}

impl Kind {
    fn order(self) -> Purpose {
        match self {
            Self::Job => Purpose::Job,
            Self::Stream => Purpose::Stream,
        }
    }

    fn end(self) -> Purpose {
        match self {
            Self::Job => Purpose::EndOfJob,
            Self::Stream => Purpose::EndOfStream,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "job",
            Self::Stream => "stream",
        })
    }
}

/// The terms for all hosts of an order.
pub trait OrderTerms: Clone + Serialize + DeserializeOwned {
    /// The order's name.
    type Id: Clone + PartialEq + From<String> + Serialize + DeserializeOwned;

    const KIND: Kind;

    /// Limits times to [`LONGEST_TIME`].
    fn limit_times(&mut self);
}

/// A job or a stream, without its hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "T: OrderTerms")]
pub struct Order<T: OrderTerms> {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// [`Charter::id`], so that it is valid in no other fleet.
    pub fleet: u64,
    /// A random number, so that equal orders have different names.
    pub nonce: u64,
    /// The submitter's public nkey.
    pub submitter: String,
    /// The time in seconds since 1970, by the submitter's clock.
    pub at: u64,
    /// The number of hosts.
    pub hosts: u32,
    /// The digest of all parts of its list of hosts.
    #[serde(with = "serde_bytes")]
    pub digest: Vec<u8>,
    /// The terms for all hosts.
    pub terms: T,
}

/// A host of an order, and its command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedHost {
    /// The name for display.
    pub name: String,
    /// The destination. The node's ssh_config has the rest.
    pub destination: Destination,
    /// The command line.
    #[serde(with = "serde_bytes")]
    pub command: Vec<u8>,
}

/// The part that is the same in every version of an order.
#[derive(Debug, Deserialize)]
struct Header {
    protocol: u32,
    fleet: u64,
    submitter: String,
    hosts: u32,
}

/// The cancellation of a job or a stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "I: Serialize + DeserializeOwned")]
struct Cancellation<I> {
    fleet: u64,
    ends: I,
    by: String,
}

/// The reason why an order is not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// It cannot be read.
    #[error("the {0} cannot be read: it was written by another version of trunkline, or damaged")]
    Malformed(Kind),
    /// It has another version.
    #[error(
        "the {kind} speaks protocol {theirs} and this fleet {PROTOCOL}; use the same version of trunkline on all machines"
    )]
    Protocol {
        kind: Kind,
        /// The order's.
        theirs: u32,
        /// The number of its hosts.
        hosts: u32,
    },
    /// It does not match its name.
    #[error("what stands in the place of the {0} is another one: somebody has replaced it")]
    Replaced(Kind),
    /// It is not signed by its submitter.
    #[error("the {kind} is not signed by {submitter}, whose name it has")]
    Signature {
        kind: Kind,
        /// The submitter that it names.
        submitter: String,
    },
    /// It was submitted to another fleet.
    #[error("the {0} was submitted to another fleet, or to the one that was here before; submit it anew")]
    Fleet(Kind),
    /// Its time differs from the server's.
    #[error(
        "the {kind}'s time is {apart} s from that of NATS: set the submitter's clock; a {kind} that is sent a second time is not \
         taken"
    )]
    Time {
        kind: Kind,
        /// The difference in seconds.
        apart: u64,
    },
    /// By this machine's clock it is older or newer than the time for which the fleet keeps jobs.
    #[error(
        "the {kind} was signed {days} days from now by this machine's clock, and the fleet does not keep it as long: set the clock, \
         or somebody has sent again what was kept elsewhere"
    )]
    Old {
        kind: Kind,
        /// The difference in days, rounded down.
        days: u64,
    },
    /// It cannot be signed.
    #[error("the nkey cannot sign: {0}")]
    Key(String),
    /// It has no hosts, or too many.
    #[error("a {kind} has 1 to {MOST_HOSTS} hosts, not {hosts}")]
    Hosts {
        kind: Kind,
        /// The number of hosts.
        hosts: usize,
    },
}

/// A signed order, and the parts of its list of hosts.
#[derive(Debug)]
pub struct Written<I> {
    /// Its name.
    pub id: I,
    /// An encoded [`Signed`].
    pub order: Vec<u8>,
    /// Parts of at most `HOSTS_IN_A_PART` hosts.
    pub parts: Vec<Vec<u8>>,
}

/// Signs an order at this time (seconds since 1970).
///
/// # Errors
/// There are no hosts or too many, or the key has no private half.
pub fn sign<T: OrderTerms>(
    key: &KeyPair,
    charter: &Charter,
    at: u64,
    hosts: &[OrderedHost],
    terms: T,
) -> Result<Written<T::Id>, OrderError> {
    check_count(T::KIND, hosts.len())?;
    let malformed = |_| OrderError::Malformed(T::KIND);
    let parts: Result<Vec<_>, _> = hosts.chunks(HOSTS_IN_A_PART).map(|part| encode(&part)).collect();
    let parts = parts.map_err(malformed)?;
    let order = Order {
        protocol: PROTOCOL,
        fleet: charter.id,
        nonce: random(),
        submitter: key.public_key(),
        at,
        hosts: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
        digest: digest_of(&parts),
        terms,
    };
    let text = encode(&order).map_err(malformed)?;
    let id = name_of(T::KIND, &text).into();
    let signed = seal(key, T::KIND.order(), text)?;
    let order = encode(&signed).map_err(malformed)?;
    Ok(Written { id, order, parts })
}

/// Decodes an order that NATS received at this time (seconds since 1970, by its clock), and checks its signature.
pub(crate) fn read<T: OrderTerms>(
    charter: &Charter,
    id: &T::Id,
    bytes: &[u8],
    got: u64,
) -> Result<Order<T>, OrderError> {
    let kind = T::KIND;
    let malformed = |_| OrderError::Malformed(kind);
    let signed: Signed = decode(bytes).map_err(malformed)?;
    // Checked first: nothing in an unsigned or replaced order can be trusted, not even its version.
    if T::Id::from(name_of(kind, &signed.text)) != *id {
        return Err(OrderError::Replaced(kind));
    }
    let header: Header = decode(&signed.text).map_err(malformed)?;
    if !signed.is_by(&header.submitter, kind.order()) {
        let submitter = header.submitter;
        return Err(OrderError::Signature { kind, submitter });
    }
    if header.fleet != charter.id {
        return Err(OrderError::Fleet(kind));
    }
    if header.protocol != PROTOCOL {
        return Err(OrderError::Protocol {
            kind,
            theirs: header.protocol,
            hosts: header.hosts,
        });
    }
    let mut order: Order<T> = decode(&signed.text).map_err(malformed)?;
    order.terms.limit_times();
    let apart = order.at.abs_diff(got);
    if apart > CLOCKS_APART {
        return Err(OrderError::Time { kind, apart });
    }
    check_count(kind, order.count())?;
    Ok(order)
}

/// Returns the time by this machine's clock, which may be set wrong.
pub(crate) fn seconds_since_1970() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Returns the maximum difference between an order's time and this machine's clock, in seconds; `None` if the fleet
/// keeps jobs forever. A day is always allowed for a wrong clock: NATS's clock is more exact, but only as trustworthy
/// as its operator.
pub(crate) fn longest_apart(keep: Duration) -> Option<u64> {
    const A_DAY: Duration = Duration::from_secs(86_400);
    (!keep.is_zero()).then(|| keep.max(A_DAY).as_secs().saturating_add(CLOCKS_APART))
}

impl<T: OrderTerms> Order<T> {
    /// Checks the order's time by this machine's own clock (seconds since 1970).
    pub(crate) fn check_time(&self, keep: Duration, now: u64) -> Result<(), OrderError> {
        let apart = self.at.abs_diff(now);
        match longest_apart(keep) {
            Some(longest) if apart > longest => Err(OrderError::Old {
                kind: T::KIND,
                days: apart / 86_400,
            }),
            _ => Ok(()),
        }
    }

    fn count(&self) -> usize {
        usize::try_from(self.hosts).unwrap_or(usize::MAX)
    }

    /// Returns the number of parts of its list of hosts.
    pub(crate) fn parts(&self) -> usize {
        self.count().div_ceil(HOSTS_IN_A_PART)
    }

    /// Decodes the hosts from all parts.
    pub(crate) fn read_hosts(&self, parts: &[Vec<u8>]) -> Result<Vec<OrderedHost>, OrderError> {
        if digest_of(parts) != self.digest {
            return Err(OrderError::Signature {
                kind: T::KIND,
                submitter: self.submitter.clone(),
            });
        }
        let mut hosts = Vec::new();
        for part in parts {
            let part: Vec<OrderedHost> = decode(part).map_err(|_| OrderError::Malformed(T::KIND))?;
            hosts.extend(part);
        }
        match hosts.len() == self.count() {
            true => Ok(hosts),
            false => Err(OrderError::Malformed(T::KIND)),
        }
    }
}

/// Signs the cancellation of a job or a stream.
pub(crate) fn sign_cancel<T: OrderTerms>(
    key: &KeyPair,
    charter: &Charter,
    id: &T::Id,
) -> Result<Signed, OrderError> {
    let cancellation = Cancellation {
        fleet: charter.id,
        ends: id.clone(),
        by: key.public_key(),
    };
    let text = encode(&cancellation).map_err(|_| OrderError::Malformed(T::KIND))?;
    seal(key, T::KIND.end(), text)
}

/// Returns true if `cancel` is a cancellation of this job or stream, signed by the key `who`.
pub(crate) fn is_cancel<T: OrderTerms>(charter: &Charter, id: &T::Id, who: &str, cancel: &Signed) -> bool {
    let said = decode::<Cancellation<T::Id>>(&cancel.text);
    said.is_ok_and(|said| said.fleet == charter.id && said.ends == *id && said.by == who)
        && cancel.is_by(who, T::KIND.end())
}

/// Returns the name of a signed text: 120 bits of its SHA-256 in base32 (RFC 4648 section 6), in lower case.
pub fn name_of(kind: Kind, text: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = kind.order().digest(text);
    let bits = |number: usize| {
        let two = [0, 1].map(|next| digest.get(number * 5 / 8 + next).copied().unwrap_or_default());
        usize::from(u16::from_be_bytes(two) >> (11 - number * 5 % 8) & 31)
    };
    (0..NAME)
        .map(|number| char::from(LETTERS[bits(number)]))
        .collect()
}

/// Returns true if it can be the name of a job or a stream.
pub fn is_name(text: &str) -> bool {
    text.len() == NAME && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
}

fn seal(key: &KeyPair, purpose: Purpose, text: Vec<u8>) -> Result<Signed, OrderError> {
    Signed::new(key, purpose, text).map_err(|error| OrderError::Key(error.to_string()))
}

fn check_count(kind: Kind, hosts: usize) -> Result<(), OrderError> {
    match (1..=MOST_HOSTS).contains(&hosts) {
        true => Ok(()),
        false => Err(OrderError::Hosts { kind, hosts }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::order::job::JobTerms;
    use crate::order::stream::StreamTerms;
    use crate::state::{JobId, Restart, Resuming, StreamId, Zones};

    pub(crate) fn host(name: &str) -> OrderedHost {
        OrderedHost {
            name: name.into(),
            destination: Destination::parse_hop(name).unwrap(),
            command: b"true".to_vec(),
        }
    }

    pub(crate) fn charter() -> Charter {
        Charter::new(Zones::default(), Duration::ZERO)
    }

    pub(crate) fn stream_terms(subject: Option<&str>) -> StreamTerms {
        StreamTerms {
            resuming: Resuming {
                restart: Restart::Lost,
                first: Duration::from_secs(1),
                longest: Duration::from_secs(60),
            },
            subject: subject.map(str::to_owned),
        }
    }

    fn an_order_is_taken_from_its_signer_in_its_time_and_its_fleet<T: OrderTerms>(terms: &T) {
        let (key, charter) = (KeyPair::new_user(), charter());
        let sign = |hosts: &[OrderedHost]| sign(&key, &charter, 1000, hosts, terms.clone());
        let written = sign(&[host("a")]).unwrap();
        let id = &written.id;
        let read = |id: &T::Id, bytes: &[u8], got| read::<T>(&charter, id, bytes, got);
        let order = read(id, &written.order, 1100).unwrap();
        assert_eq!(order.read_hosts(&written.parts).unwrap(), [host("a")]);
        let other_list = vec![encode(&[host("b")].as_slice()).unwrap()];
        assert!(matches!(
            order.read_hosts(&other_list),
            Err(OrderError::Signature { .. })
        ));

        // By this machine's own clock: as long as the fleet keeps it, but at least a day.
        let week = Duration::from_secs(7 * 86_400);
        for (keep, now, is_taken) in [
            (week, 1000 + 7 * 86_400, true),
            (week, 1000 + 8 * 86_400, false),
            (Duration::from_secs(60), 1000 + 86_400, true),
            (Duration::from_secs(60), 1000 + 2 * 86_400, false),
            (Duration::ZERO, 1000 + 1000 * 86_400, true),
        ] {
            assert_eq!(order.check_time(keep, now).is_ok(), is_taken, "{keep:?} {now}");
        }

        let late = read(id, &written.order, 5000);
        assert!(matches!(late, Err(OrderError::Time { apart: 4000, .. })));
        let of_other_name = read(&sign(&[host("a")]).unwrap().id, &written.order, 1000);
        assert!(matches!(of_other_name, Err(OrderError::Replaced(_))));
        let by_another =
            super::sign(&KeyPair::new_user(), &charter, 1000, &[host("a")], terms.clone()).unwrap();
        let by_another = read(id, &by_another.order, 1000);
        assert!(matches!(by_another, Err(OrderError::Replaced(_))));
        let elsewhere = super::read::<T>(&self::charter(), id, &written.order, 1000);
        assert!(matches!(elsewhere, Err(OrderError::Fleet(_))));
        let mut forged: Signed = decode(&written.order).unwrap();
        forged.signature[3] ^= 1;
        let forged = read(id, &encode(&forged).unwrap(), 1000);
        assert!(matches!(forged, Err(OrderError::Signature { .. })));
        assert!(matches!(read(id, b"x", 1000), Err(OrderError::Malformed(_))));
        assert!(matches!(sign(&[]), Err(OrderError::Hosts { hosts: 0, .. })));
    }

    #[test]
    fn an_order_of_either_kind_is_taken_from_its_signer_in_its_time_and_its_fleet() {
        an_order_is_taken_from_its_signer_in_its_time_and_its_fleet(&JobTerms::default());
        an_order_is_taken_from_its_signer_in_its_time_and_its_fleet(&stream_terms(None));
    }

    /// Signs an order as a submitter could with its own program.
    fn signed_order<T: OrderTerms>(
        change: impl FnOnce(&mut Order<T>),
        charter: &Charter,
        key: &KeyPair,
        terms: T,
    ) -> (T::Id, Vec<u8>) {
        let written = sign(key, charter, 1000, &[host("a")], terms).unwrap();
        let mut order = read::<T>(charter, &written.id, &written.order, 1000).unwrap();
        change(&mut order);
        let text = encode(&order).unwrap();
        let id = name_of(T::KIND, &text).into();
        (id, encode(&seal(key, T::KIND.order(), text).unwrap()).unwrap())
    }

    fn no_more_hosts_are_read_than_an_order_can_have<T: OrderTerms>(terms: T) {
        let (key, charter) = (KeyPair::new_user(), charter());
        for hosts in [0, 100_001, u32::MAX] {
            let (id, bytes) = signed_order(|order| order.hosts = hosts, &charter, &key, terms.clone());
            let read = read::<T>(&charter, &id, &bytes, 1000).map(|order| order.hosts);
            assert!(matches!(read, Err(OrderError::Hosts { .. })), "{hosts}: {read:?}");
        }
        // More hosts in its list than it says.
        let list = vec![encode(&[host("a"), host("b")].as_slice()).unwrap()];
        let digest = digest_of(&list);
        let (id, bytes) = signed_order(|order| order.digest = digest, &charter, &key, terms);
        let order = read::<T>(&charter, &id, &bytes, 1000).unwrap();
        assert!(matches!(order.read_hosts(&list), Err(OrderError::Malformed(_))));
    }

    #[test]
    fn no_more_hosts_are_read_than_a_job_or_a_stream_can_have() {
        no_more_hosts_are_read_than_an_order_can_have(JobTerms::default());
        no_more_hosts_are_read_than_an_order_can_have(stream_terms(None));
    }

    #[test]
    fn no_time_is_longer_than_a_year() {
        let (key, charter) = (KeyPair::new_user(), charter());
        let mut terms = stream_terms(None);
        (terms.resuming.first, terms.resuming.longest) = (Duration::from_secs(5), Duration::MAX);
        let written = sign(&key, &charter, 1000, &[host("a")], terms).unwrap();
        let order = read::<StreamTerms>(&charter, &written.id, &written.order, 1000).unwrap();
        let resuming = order.terms.resuming;
        assert_eq!(
            (resuming.first, resuming.longest),
            (Duration::from_secs(5), LONGEST_TIME)
        );
        let terms = JobTerms {
            limit: Some(Duration::MAX),
            ..JobTerms::default()
        };
        let written = sign(&key, &charter, 1000, &[host("a")], terms).unwrap();
        let order = read::<JobTerms>(&charter, &written.id, &written.order, 1000).unwrap();
        assert_eq!(order.terms.limit, Some(LONGEST_TIME));
    }

    #[test]
    fn a_name_is_short_and_is_made_of_all_bits() {
        let names: Vec<String> = (0..200_u8).map(|text| name_of(Kind::Job, &[text])).collect();
        assert!(names.iter().all(|name| is_name(name)));
        for place in 0..NAME {
            let seen: std::collections::BTreeSet<_> =
                names.iter().map(|name| name.as_bytes()[place]).collect();
            assert!(seen.len() > 20, "{place}: {seen:?}");
        }
        for other in [
            "",
            "*",
            "a b",
            "3bab295123b9",
            "abcdefghijklmnopqrstuvw1",
            "ABCDEFGHIJKLMNOPQRSTUVWX",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn a_version_is_believed_only_where_it_is_signed() {
        let (key, charter) = (KeyPair::new_user(), charter());
        let later = |order: &mut Order<JobTerms>| order.protocol = PROTOCOL + 1;
        let (job, bytes) = signed_order(later, &charter, &key, JobTerms::default());
        let error = read::<JobTerms>(&charter, &job, &bytes, 1000).unwrap_err();
        assert!(matches!(error, OrderError::Protocol { hosts: 1, .. }), "{error}");
        let mut forged: Signed = decode(&bytes).unwrap();
        forged.signature[3] ^= 1;
        let error = read::<JobTerms>(&charter, &job, &encode(&forged).unwrap(), 1000).unwrap_err();
        assert!(matches!(error, OrderError::Signature { .. }), "{error}");
    }

    #[test]
    fn a_job_is_no_stream_and_a_stream_no_job() {
        let (key, charter) = (KeyPair::new_user(), charter());
        let of_job = sign(&key, &charter, 1000, &[host("a")], JobTerms::default()).unwrap();
        let of_stream = sign(&key, &charter, 1000, &[host("a")], stream_terms(None)).unwrap();
        let as_stream = |id| read::<StreamTerms>(&charter, &StreamId(id), &of_job.order, 1000);
        let as_job = |id| read::<JobTerms>(&charter, &JobId(id), &of_stream.order, 1000);
        assert!(matches!(
            as_stream(of_job.id.0.clone()),
            Err(OrderError::Replaced(_))
        ));
        assert!(matches!(
            as_job(of_stream.id.0.clone()),
            Err(OrderError::Replaced(_))
        ));
        // Nor if its name is made like that of the other kind.
        let text = decode::<Signed>(&of_job.order).unwrap().text;
        let as_named = as_stream(name_of(Kind::Stream, &text));
        assert!(matches!(as_named, Err(OrderError::Signature { .. })));
    }

    #[test]
    fn who_cancels_says_what_and_where_and_signs_it() {
        let (key, other, charter) = (KeyPair::new_user(), KeyPair::new_user(), charter());
        let (job, stream) = (JobId("x".into()), StreamId("x".into()));
        let me = key.public_key();
        let cancel = sign_cancel::<JobTerms>(&key, &charter, &job).unwrap();
        let ends = |who: &str, cancel: &Signed| is_cancel::<JobTerms>(&charter, &job, who, cancel);
        assert!(ends(&me, &cancel));
        assert!(!ends(&other.public_key(), &cancel));
        assert!(!is_cancel::<JobTerms>(&charter, &JobId("y".into()), &me, &cancel));
        assert!(!is_cancel::<JobTerms>(&self::charter(), &job, &me, &cancel));
        let forged = Signed {
            text: cancel.text.clone(),
            ..sign_cancel::<JobTerms>(&other, &charter, &job).unwrap()
        };
        assert!(!ends(&me, &forged));
        // An order signed by the same key cancels nothing.
        let written = sign(&key, &charter, 1000, &[host("a")], JobTerms::default()).unwrap();
        assert!(!ends(&me, &decode(&written.order).unwrap()));
        // A job and a stream of the same name are different.
        let of_stream = sign_cancel::<StreamTerms>(&key, &charter, &stream).unwrap();
        assert!(is_cancel::<StreamTerms>(&charter, &stream, &me, &of_stream));
        assert!(!is_cancel::<StreamTerms>(&charter, &stream, &me, &cancel));
        assert!(!ends(&me, &of_stream));
    }
}
