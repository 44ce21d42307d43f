//! What NATS keeps in a bucket in place of a key that was removed: a marker, by which all who watch learn of that. Of streams
//! nothing has an age, so that markers would stay for ever. They are removed themselves once everybody has seen them.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::kv::{self, Operation};

/// How long a marker stays at least: a node that was cut off for less learns of it when it is back.
const SEEN_BY_ALL: Duration = Duration::from_secs(3600);
/// Markers that are removed one after the other.
const AT_ONCE: usize = 256;

/// The markers of a bucket.
#[derive(Debug, Default)]
pub(crate) struct Markers(BTreeMap<String, Marker>);

/// One of them.
#[derive(Debug, Clone, Copy)]
struct Marker {
    revision: u64,
    /// When it was written, by NATS's clock, in seconds since 1970.
    at: u64,
}

impl Markers {
    /// Something stands in the bucket, or no more.
    pub(crate) fn see(&mut self, entry: &kv::Entry) {
        match entry.operation {
            Operation::Put => drop(self.0.remove(&entry.key)),
            Operation::Delete | Operation::Purge => {
                let at = u64::try_from(entry.created.unix_timestamp()).unwrap_or_default();
                let revision = entry.revision;
                self.0.insert(entry.key.clone(), Marker { revision, at });
            }
        }
    }

    /// It is not there any more.
    pub(crate) fn removed(&mut self, key: &str, revision: u64) {
        if self.0.get(key).is_some_and(|marker| marker.revision == revision) {
            self.0.remove(key);
        }
    }

    /// Those that can be removed by now, as keys and revisions, where `mine` says that it is up to this node. `keep`: how long the
    /// fleet keeps what has ended, which markers are not kept beyond.
    pub(crate) fn due(&mut self, time: u64, keep: u64, mine: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
        let age = SEEN_BY_ALL.as_secs().min(keep);
        // Whoever they are up to has had as much time again. What is still there is seen when this node starts anew.
        self.0
            .retain(|key, marker| mine(key) || time < marker.at + 2 * age);
        let due = self.0.iter().filter(|(_, marker)| time >= marker.at + age);
        let due = due.filter(|(key, _)| mine(key));
        due.map(|(key, marker)| (key.clone(), marker.revision))
            .take(AT_ONCE)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(markers: &[(&str, u64, u64)]) -> Markers {
        let markers = markers.iter().map(|(key, revision, at)| {
            let (revision, at) = (*revision, *at);
            ((*key).to_owned(), Marker { revision, at })
        });
        Markers(markers.collect())
    }

    #[test]
    fn a_marker_goes_when_all_have_seen_it_and_by_the_node_that_it_is_up_to() {
        let mut markers = with(&[("a.order", 7, 1000), ("b.order", 8, 1000), ("a.end.0", 9, 2000)]);
        let mine = |key: &str| key.starts_with('a');
        assert!(markers.due(4599, 86_400, mine).is_empty());
        assert_eq!(markers.due(4600, 86_400, mine), [("a.order".to_owned(), 7)]);
        // A fleet that keeps nothing for so long does not keep markers either.
        assert_eq!(markers.due(2000, 10, mine).len(), 1);
        assert_eq!(markers.due(2010, 10, mine).len(), 2);
        assert!(!markers.0.contains_key("b.order"), "it was up to another node");
        markers.removed("a.order", 6);
        assert!(
            markers.0.contains_key("a.order"),
            "another one was written meanwhile"
        );
        markers.removed("a.order", 7);
        assert!(!markers.0.contains_key("a.order"));
    }
}
