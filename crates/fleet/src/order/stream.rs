//! A stream as its submitter requests it, and as a node accepts it.

use serde::{Deserialize, Serialize};

use crate::allow::{self, Allowed};
use crate::order::{Kind, LONGEST_TIME, Order, OrderTerms, OrderedHost};
use crate::state::{PlannedHost, Resuming, StreamId, StreamPlan, Zones};

/// A stream, without its hosts.
pub type StreamOrder = Order<StreamTerms>;

/// The settings for all hosts of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTerms {
    /// The conditions for starting commands again.
    pub resuming: Resuming,
    /// The JetStream subject that output is written to, instead of being sent to a follower. `{host}` in it is the
    /// host's name.
    pub subject: Option<String>,
}

impl OrderTerms for StreamTerms {
    type Id = StreamId;

    const KIND: Kind = Kind::Stream;

    fn limit_times(&mut self) {
        let Resuming { first, longest, .. } = &mut self.resuming;
        *first = (*first).min(LONGEST_TIME);
        *longest = (*longest).min(LONGEST_TIME);
    }
}

impl StreamOrder {
    /// Returns the JetStream subject for the output of a host, if one was given.
    pub(crate) fn subject_of(&self, host: &OrderedHost) -> Option<String> {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let token: String = host.name.chars().map(plain).collect();
        Some(self.terms.subject.as_ref()?.replace("{host}", &token))
    }

    /// Returns the reason why a node does not run a host, if there is one.
    pub(crate) fn reason_to_refuse(
        &self,
        allowed: &Allowed,
        node: &str,
        prefix: &str,
        host: &OrderedHost,
    ) -> Option<String> {
        let subject = self.subject_of(host);
        let subject = subject.as_deref();
        let wrong = subject.and_then(|subject| wrong_subject(subject, prefix));
        wrong.or_else(|| allow::refuses(allowed, node, &self.submitter, &host.destination, subject))
    }

    /// Returns the stream as a node accepts it, with the refused hosts.
    pub(crate) fn plan(
        &self,
        hosts: &[OrderedHost],
        zones: &Zones,
        refused: impl Fn(&OrderedHost) -> Option<String>,
    ) -> StreamPlan {
        let hosts = hosts.iter().map(|host| PlannedHost {
            unit: zones.unit_of(&host.destination.host),
            refused: refused(host),
        });
        StreamPlan {
            hosts: hosts.collect(),
            resuming: self.terms.resuming,
        }
    }
}

/// Returns the reason why nothing is written to a subject, if there is one. NATS's own subjects and those of the fleet
/// would be written with the node's rights.
pub fn wrong_subject(subject: &str, prefix: &str) -> Option<String> {
    let mut tokens = subject.split('.');
    let is_plain = |token: &str| {
        !token.is_empty()
            && token
                .chars()
                .all(|c| c.is_ascii_graphic() && c != '*' && c != '>')
    };
    let first = tokens.clone().next().unwrap_or_default();
    let is_reserved = first.starts_with('$') || first.starts_with('_') || first == prefix;
    (is_reserved || subject.len() > 255 || !tokens.all(is_plain)).then(|| {
        format!(
            "{subject:?} cannot be written to: a subject is words with dots between them, and does not begin with $, _ or {prefix}"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nkeys::KeyPair;

    use super::*;
    use crate::allow::{AllowList, Rule};
    use crate::order::tests::{charter, host, stream_terms};
    use crate::order::{read, sign};

    #[test]
    fn a_stream_writes_to_the_subjects_that_a_rule_names() {
        let (key, charter) = (KeyPair::new_user(), charter());
        let order = |subject| {
            let terms = stream_terms(subject);
            let written = sign(&key, &charter, 1000, &[host("a.eu")], terms).unwrap();
            read::<StreamTerms>(&charter, &written.id, &written.order, 1000).unwrap()
        };
        let rule = |subjects: &[&str]| Rule {
            submitters: vec![key.public_key()],
            hosts: vec!["*.eu".into()],
            users: Vec::new(),
            ports: Vec::new(),
            subjects: subjects.iter().map(|subject| (*subject).to_owned()).collect(),
        };
        let refused = |subjects: &[&str], subject| {
            let list = AllowList {
                allow: vec![rule(subjects)],
                cancel: Vec::new(),
            };
            order(subject).reason_to_refuse(&Ok(Arc::new(list)), "n", "trunkline", &host("a.eu"))
        };
        assert_eq!(refused(&["logs.*"], None), None);
        assert_eq!(refused(&["logs.*"], Some("logs.{host}")), None);
        let other = refused(&["logs.*"], Some("metrics")).unwrap();
        assert!(other.contains("subject metrics"), "{other}");
        // Not even a rule for all subjects gives the submitter these.
        for own in [
            "$JS.API.x",
            "_INBOX.x",
            "trunkline.output.x",
            "logs.*",
            "logs..x",
            "",
        ] {
            let why = refused(&["*"], Some(own)).unwrap();
            assert!(why.contains("cannot be written to"), "{own}: {why}");
        }
        let subject = order(Some("logs.{host}")).subject_of(&host("a.eu"));
        assert_eq!(subject.unwrap(), "logs.a_eu");
    }
}
