//! The streams with removed orders. NATS keeps a marker in place of an order, which tells all watchers that it was
//! removed. Entries of streams do not expire, so markers would stay for ever. Therefore everything about a stream is
//! removed once everybody has seen its marker.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::kv::Operation;

use crate::state::StreamId;

/// The minimum life of a marker: a node that was cut off for less time sees it when it is back.
const SEEN_BY_ALL: Duration = Duration::from_secs(3600);
/// The maximum number of streams that are removed in a row.
const AT_ONCE: usize = 256;

/// The streams with removed orders, and the times of removal by NATS's clock, in seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Markers(BTreeMap<StreamId, u64>);

impl Markers {
    /// Notes that an order is in the bucket, or no longer is.
    pub(crate) fn see(&mut self, stream: &StreamId, operation: Operation, at: u64) {
        match operation {
            Operation::Put => self.0.remove(stream),
            Operation::Delete | Operation::Purge => self.0.insert(stream.clone(), at),
        };
    }

    /// Notes that nothing about it is left.
    pub(crate) fn forget(&mut self, stream: &StreamId) {
        self.0.remove(stream);
    }

    /// Returns the streams that can be removed by now. `mine` returns true for those that this node has to remove.
    /// `keep` is the time for which the fleet keeps ended streams; markers are not kept longer than that.
    pub(crate) fn due(&mut self, time: u64, keep: u64, mine: impl Fn(&StreamId) -> bool) -> Vec<StreamId> {
        let seen_by_all = SEEN_BY_ALL.as_secs();
        let age = seen_by_all.min(keep);
        // The responsible node has enough time, even if the responsibility changes, or nobody has the shard for a
        // while. Any marker that is still there afterwards is seen when this node starts again.
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
        // A fleet with a shorter time for ended streams does not keep markers longer either.
        assert_eq!(markers.due(2000, 10, mine).len(), 1);
        assert_eq!(markers.due(2010, 10, mine).len(), 2);
        // Another node was responsible. It may have lost the shard before it removed the marker.
        assert_eq!(markers.due(4609, 10, |_| true), [id("a"), id("a2"), id("b")]);
        assert_eq!(markers.due(4610, 10, mine), [id("a"), id("a2")]);
        assert_eq!(markers.due(4610, 10, |_| true), [id("a"), id("a2")]);
        markers.forget(&id("a"));
        markers.see(&id("a2"), Operation::Put, 4700);
        assert!(markers.due(9999, 10, |_| true).is_empty());
    }
}
