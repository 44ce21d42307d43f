//! The streams whose orders were removed. NATS keeps a marker in an order's place, by which all who watch learn of that. Of streams
//! nothing has an age, so that markers would stay for ever: all that stands about a stream is removed once everybody has seen its
//! marker.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::kv::Operation;

use crate::state::StreamId;

/// The minimum life of a marker: a node that was cut off for less learns of it when it is back.
const SEEN_BY_ALL: Duration = Duration::from_secs(3600);
/// Streams that are removed one after the other.
const AT_ONCE: usize = 256;

/// The streams whose orders were removed, and when by NATS's clock, in seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Markers(BTreeMap<StreamId, u64>);

impl Markers {
    /// An order stands in the bucket, or no more.
    pub(crate) fn see(&mut self, stream: &StreamId, operation: Operation, at: u64) {
        match operation {
            Operation::Put => self.0.remove(stream),
            Operation::Delete | Operation::Purge => self.0.insert(stream.clone(), at),
        };
    }

    /// Nothing of it is there any more.
    pub(crate) fn forget(&mut self, stream: &StreamId) {
        self.0.remove(stream);
    }

    /// The streams that can be removed by now, where `mine` says that it is up to this node. `keep`: how long the fleet keeps what
    /// has ended, which markers are not kept beyond.
    pub(crate) fn due(&mut self, time: u64, keep: u64, mine: impl Fn(&StreamId) -> bool) -> Vec<StreamId> {
        let seen_by_all = SEEN_BY_ALL.as_secs();
        let age = seen_by_all.min(keep);
        // Whoever they are up to has time enough, also where that changes or nobody has the shard for a while. What is still there
        // then is seen when this node starts anew.
        self.0
            .retain(|stream, at| mine(stream) || time < *at + age + seen_by_all);
        let due = self.0.iter().filter(|(_, at)| time >= **at + age);
        let due = due.map(|(stream, _)| stream).filter(|stream| mine(stream));
        due.take(AT_ONCE).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> StreamId {
        StreamId(name.to_owned())
    }

    #[test]
    fn a_stream_goes_when_all_have_seen_its_marker_and_by_the_node_that_it_is_up_to() {
        let mut markers = Markers::default();
        for (name, at) in [("a", 1000), ("b", 1000), ("a2", 2000)] {
            markers.see(&id(name), Operation::Purge, at);
        }
        let mine = |stream: &StreamId| stream.0.starts_with('a');
        assert!(markers.due(4599, 86_400, mine).is_empty());
        assert_eq!(markers.due(4600, 86_400, mine), [id("a")]);
        // A fleet that keeps nothing for so long does not keep markers either.
        assert_eq!(markers.due(2000, 10, mine).len(), 1);
        assert_eq!(markers.due(2010, 10, mine).len(), 2);
        // It was up to another node, which may have gone with the shard before it removed it.
        assert_eq!(markers.due(4609, 10, |_| true), [id("a"), id("a2"), id("b")]);
        assert_eq!(markers.due(4610, 10, mine), [id("a"), id("a2")]);
        assert_eq!(markers.due(4610, 10, |_| true), [id("a"), id("a2")]);
        markers.forget(&id("a"));
        markers.see(&id("a2"), Operation::Put, 4700);
        assert!(markers.due(9999, 10, |_| true).is_empty());
    }
}
