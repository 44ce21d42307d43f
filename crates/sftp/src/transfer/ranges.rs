//! [`Ranges`]: the bytes of a file that are done, in progress, and still to be given out.

use std::collections::BTreeMap;
use std::ops::Range;

/// Gives out the ranges of one file to one worker or several, and records the ranges that are done. Ranges that workers give back
/// are given out again first.
///
/// A file's end is *expected* (a directory or FSTAT told a size, which may be wrong by now) or *known* (a read reached it). Up to
/// the expected end ranges are given out freely. After it one piece is given out at a time until the end is known, since files
/// grow, and files in /proc claim to be empty. Without an expected end ranges are given out without limit.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// The beginning of the first range that was never given out.
    next: u64,
    expected: Option<u64>,
    end: Option<u64>,
    /// The beginning of the piece that was given out to look for the end.
    probe: Option<u64>,
    returned: Vec<Range<u64>>,
    /// Done ranges, from start to end. No two of them touch.
    done: BTreeMap<u64, u64>,
    start: u64,
}

impl Ranges {
    /// Returns the ranges of a file from `start` on.
    pub fn new(start: u64) -> Self {
        Self {
            next: start,
            expected: None,
            end: None,
            probe: None,
            returned: Vec::new(),
            done: BTreeMap::new(),
            start,
        }
    }

    /// Sets the expected end.
    pub fn expect_end(&mut self, end: u64) {
        self.expected = Some(end);
    }

    /// Sets the known end, unless an earlier one is known. Ranges after it are neither given out nor needed.
    pub fn end_at(&mut self, end: u64) {
        let end = self.end.map_or(end, |known| known.min(end));
        self.end = Some(end);
        self.returned.retain_mut(|range| {
            range.end = range.end.min(end);
            !range.is_empty()
        });
    }

    /// Returns the known end.
    pub fn end(&self) -> Option<u64> {
        self.end
    }

    /// Returns the expected end.
    pub fn expected_end(&self) -> Option<u64> {
        self.expected
    }

    /// Gives out a range of at most `most` bytes, or `piece` bytes if it may be past the end. Returns `None` if everything is
    /// done or given out.
    pub fn take(&mut self, most: u64, piece: u64) -> Option<Range<u64>> {
        if let Some(range) = self.returned.last_mut() {
            let taken = range.start..range.end.min(range.start.saturating_add(most));
            range.start = taken.end;
            if range.is_empty() {
                self.returned.pop();
            }
            return Some(taken);
        }
        if let Some((_, &end)) = self.done.range(..=self.next).next_back() {
            self.next = self.next.max(end);
        }
        let start = self.next;
        let (length, bound) = match (self.end, self.expected) {
            (Some(end), _) => (most, end),
            (None, Some(expected)) if start < expected => (most, expected),
            // A probe before the new expected end does not count.
            (None, Some(expected)) if self.probe.is_some_and(|probe| probe >= expected) => return None,
            (None, Some(_)) => {
                self.probe = Some(start);
                (piece, u64::MAX)
            }
            (None, None) => (most, u64::MAX),
        };
        let done_ahead = self
            .done
            .range(start..)
            .next()
            .map_or(u64::MAX, |(&ahead, _)| ahead);
        let range = start..start.saturating_add(length).min(bound).min(done_ahead);
        if range.is_empty() {
            return None;
        }
        self.next = range.end;
        Some(range)
    }

    /// Takes back a range that was given out and is not done.
    pub fn give_back(&mut self, range: Range<u64>) {
        let range = range.start..range.end.min(self.end.unwrap_or(u64::MAX));
        if !range.is_empty() {
            self.returned.push(range);
        }
    }

    /// Marks a range as done. Call this before the first [`Self::take`] for ranges that were done before this transfer.
    pub fn complete(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if self.expected.is_some_and(|expected| range.end > expected) {
            // The file is longer than expected: drop the expected end.
            self.expected = None;
            self.probe = None;
        }
        let Range { mut start, mut end } = range;
        while let Some((&s, &e)) = self.done.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            start = start.min(s);
            end = end.max(e);
            self.done.remove(&s);
        }
        self.done.insert(start, end);
    }

    /// Returns whether the end is known and everything before it is done.
    pub fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.done_to() >= end)
    }

    /// Returns whether the end is known and nothing is left to give out.
    pub fn is_given_out(&self) -> bool {
        let done_at = self
            .done
            .range(..=self.next)
            .next_back()
            .map_or(0, |(_, &end)| end);
        self.returned.is_empty() && self.end.is_some_and(|end| self.next.max(done_at) >= end)
    }

    /// Returns the start of the first gap, where a single-stream resume continues. Everything before it is done.
    pub fn done_to(&self) -> u64 {
        match self.done.range(..=self.start).next_back() {
            Some((_, &end)) => end.max(self.start),
            None => self.start,
        }
    }

    /// Returns the done ranges, in order and without overlap, for a resume.
    pub fn done(&self) -> impl Iterator<Item = Range<u64>> {
        self.done.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the number of bytes done.
    pub fn done_bytes(&self) -> u64 {
        self.done().map(|range| range.end - range.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn behind_the_expected_end_one_piece_is_given_out_at_a_time() {
        let mut ranges = Ranges::new(0);
        ranges.expect_end(10);
        assert_eq!(ranges.take(100, 4), Some(0..10));
        assert_eq!(ranges.take(100, 4), Some(10..14));
        assert_eq!(ranges.take(100, 4), None);
        ranges.complete(10..14);
        assert_eq!(ranges.take(100, 4), Some(14..114));
        ranges.complete(0..10);
        ranges.end_at(14);
        assert!(ranges.is_complete());
    }

    #[test]
    fn the_end_is_looked_for_again_when_it_is_expected_further_on() {
        let mut ranges = Ranges::new(0);
        ranges.expect_end(10);
        assert_eq!(ranges.take(100, 4), Some(0..10));
        assert_eq!(ranges.take(100, 4), Some(10..14));
        ranges.expect_end(20);
        ranges.complete(10..14);
        assert_eq!(ranges.take(100, 4), Some(14..20));
        assert_eq!(ranges.take(100, 4), Some(20..24));
        assert_eq!(ranges.take(100, 4), None);
    }

    #[test]
    fn what_was_done_before_is_not_given_out() {
        let mut ranges = Ranges::new(0);
        ranges.complete(0..5);
        ranges.complete(8..10);
        ranges.end_at(12);
        assert_eq!(ranges.take(100, 1), Some(5..8));
        assert_eq!(ranges.take(100, 1), Some(10..12));
        assert_eq!(ranges.take(100, 1), None);
        assert_eq!(ranges.done_to(), 5);
        assert!(ranges.is_given_out() && !ranges.is_complete());
    }

    proptest! {
        #[test]
        fn every_byte_is_done_once_whatever_comes_back(
            start in 0..50u64,
            length in 0..2000u64,
            steps in prop::collection::vec((1..300u64, 0..3u8, any::<prop::sample::Index>()), 0..200),
        ) {
            let end = start + length;
            let mut ranges = Ranges::new(start);
            ranges.end_at(end);
            let mut out: Vec<Range<u64>> = Vec::new();
            let mut times = vec![0; length as usize];
            let mut finish = |ranges: &mut Ranges, range: Range<u64>| {
                for at in range.clone() {
                    times[(at - start) as usize] += 1;
                }
                ranges.complete(range);
            };
            for (most, what, index) in steps {
                if what == 0 || out.is_empty() {
                    out.extend(ranges.take(most, most));
                    continue;
                }
                let range = out.swap_remove(index.index(out.len()));
                if what == 1 {
                    finish(&mut ranges, range);
                } else {
                    ranges.give_back(range);
                }
            }
            for range in out {
                finish(&mut ranges, range);
            }
            while let Some(range) = ranges.take(70, 70) {
                finish(&mut ranges, range);
            }
            prop_assert!(ranges.is_complete());
            prop_assert_eq!(ranges.done_bytes(), length);
            prop_assert!(times.iter().all(|times| *times == 1));
        }
    }
}
