//! Incomplete values in the bucket of jobs or streams: anybody who may submit can write them, and they are not signed.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The maximum total size, in bytes: all parts of the longest list of hosts, each as long as NATS takes them, and some
/// more.
const MOST: usize = 128 << 20;

/// The overhead of each value, in bytes.
const EACH: usize = 512;

/// The maximum number of remembered requests to end a job or a stream for which it is not known if they are allowed.
pub(crate) const MOST_CANCELS: usize = 64;

/// The values kept for each ID, by age.
#[derive(Debug)]
pub(crate) struct Waiting<I> {
    most: usize,
    next: u64,
    by_age: BTreeMap<u64, I>,
    kept: HashMap<I, (u64, usize)>,
    total: usize,
}

impl<I> Default for Waiting<I> {
    fn default() -> Self {
        Self {
            most: MOST,
            next: 0,
            by_age: BTreeMap::new(),
            kept: HashMap::new(),
            total: 0,
        }
    }
}

impl<I: Clone + Eq + Hash> Waiting<I> {
    /// Adds a value of this many bytes. Returns the IDs whose values must be dropped, the oldest first.
    #[must_use]
    pub(crate) fn add(&mut self, id: &I, bytes: usize) -> Vec<I> {
        let bytes = bytes.saturating_add(EACH);
        let (_, kept) = self.kept.entry(id.clone()).or_insert_with(|| {
            self.next += 1;
            self.by_age.insert(self.next, id.clone());
            (self.next, 0)
        });
        *kept += bytes;
        self.total += bytes;
        let mut gone = Vec::new();
        while self.total > self.most
            && let Some((_, oldest)) = self.by_age.first_key_value()
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
            gone.push(oldest);
        }
        gone
    }

    /// Notes that a value of this many bytes was replaced.
    pub(crate) fn replace(&mut self, id: &I, bytes: usize) {
        if let Some((_, kept)) = self.kept.get_mut(id) {
            let bytes = bytes.saturating_add(EACH).min(*kept);
            *kept -= bytes;
            self.total -= bytes;
        }
    }

    /// Removes the values of an ID, because they are complete or were dropped.
    pub(crate) fn remove(&mut self, id: &I) {
        if let Some((age, kept)) = self.kept.remove(id) {
            self.by_age.remove(&age);
            self.total -= kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_there_is_too_much() {
        let mut waiting = Waiting {
            most: 10 * EACH,
            ..Waiting::default()
        };
        assert!(waiting.add(&"a", EACH).is_empty());
        assert!(waiting.add(&"b", 3 * EACH).is_empty());
        assert!(waiting.add(&"a", EACH).is_empty());
        waiting.replace(&"a", EACH);
        assert!(waiting.add(&"c", 3 * EACH).is_empty());
        assert_eq!(waiting.add(&"c", 0), ["a"]);
        waiting.remove(&"b");
        assert!(waiting.add(&"d", 4 * EACH).is_empty());
        assert_eq!(waiting.add(&"d", 20 * EACH), ["c", "d"]);
        assert_eq!(
            (waiting.total, waiting.by_age.len(), waiting.kept.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn however_small_they_are_there_are_not_too_many() {
        let mut waiting = Waiting::default();
        let gone = (0..MOST / EACH + 100).map(|number| waiting.add(&number, 0).len());
        assert_eq!(gone.sum::<usize>(), 100);
    }
}
