//! The order of measurements, and the time limit of each, decided without I/O.

use std::time::Duration;

use super::choice::WORTH;
use crate::memory::tuned::MOST_STREAMS;
use crate::transfer::NEAR;
use trunkline_request::tuning::Direction;

/// The total time and bytes to spend, over a path with this round trip.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) time: Duration,
    pub(super) bytes: u64,
    pub(super) rtt: Duration,
}

/// The parts of a tuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Link,
    Ciphers,
    Compression,
    Requests,
    Streams,
    Rsync,
}

impl Stage {
    /// Returns the order of stages. On near paths cores are the limit. On far ones the windows of a session are, so
    /// that the number of sessions matters most. Each stage has the part of the budget that may be spent by its end,
    /// including what earlier stages left.
    fn order(rtt: Duration) -> [(Self, f64); 6] {
        if rtt < NEAR {
            [
                (Self::Link, 0.06),
                (Self::Ciphers, 0.24),
                (Self::Compression, 0.44),
                (Self::Requests, 0.54),
                (Self::Streams, 0.64),
                (Self::Rsync, 1.0),
            ]
        } else {
            [
                (Self::Link, 0.06),
                (Self::Streams, 0.46),
                (Self::Ciphers, 0.58),
                (Self::Compression, 0.74),
                (Self::Requests, 0.80),
                (Self::Rsync, 1.0),
            ]
        }
    }

    /// Returns the stages after the link.
    pub(super) fn after_link(rtt: Duration) -> impl Iterator<Item = Self> {
        Self::order(rtt).into_iter().skip(1).map(|(stage, _)| stage)
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Ciphers => "ciphers",
            Self::Compression => "compression",
            Self::Requests => "request sizes",
            Self::Streams => "sessions",
            Self::Rsync => "rsync",
        }
    }
}

/// The limits of one measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slot {
    pub(super) time: Duration,
    pub(super) bytes: u64,
}

/// The shortest measurement: below this, scheduling dominates.
const SHORTEST: Duration = Duration::from_millis(40);
/// The fewest bytes of a measurement: below this, queueing on the way dominates.
const FEWEST: f64 = 128e3;

impl Budget {
    /// Returns the time and bytes left for a stage, after what was spent.
    pub(super) fn remaining(&self, stage: Stage, elapsed: Duration, moved: u64) -> Slot {
        let mut order = Stage::order(self.rtt).into_iter();
        let end = order.find(|(each, _)| *each == stage).map_or(1.0, |(_, end)| end);
        Slot {
            time: self.time.mul_f64(end).saturating_sub(elapsed),
            bytes: ((self.bytes as f64 * end) as u64).saturating_sub(moved),
        }
    }
}

impl Slot {
    /// Divides the rest among measurements over a path with this round trip and rate, if known. Each is long enough to
    /// be meaningful, so that fewer fit into little time; none is longer than `most`.
    pub(super) fn share(self, measurements: usize, rtt: Duration, rate: Option<f64>, most: Duration) -> Self {
        let count = u32::try_from(measurements.max(1)).unwrap_or(u32::MAX);
        let meaning = rate.map_or(0.0, |rate| (FEWEST / rate.max(1.0)).min(2.0));
        let shortest = SHORTEST.max(rtt * 6).max(Duration::from_secs_f64(meaning));
        // Data under way when the time is up takes another round trip.
        let time = (self.time / count).saturating_sub(rtt);
        Self {
            time: time.clamp(shortest, most.max(shortest)),
            bytes: self.bytes / u64::from(count),
        }
    }
}

/// One measurement of a cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) cipher: &'static str,
    pub(super) compression: bool,
    pub(super) compressible: bool,
    pub(super) direction: Direction,
}

/// Returns cells for every cipher without compression: incompressible data, both ways.
pub(super) fn cipher_cells(ciphers: &[&'static str]) -> Vec<Cell> {
    cells(ciphers, &[(false, false)])
}

/// Returns cells for every cipher with compression, both kinds of data, both ways; then for compressible data without
/// compression. They are in the order of `ciphers`; the first one matters most.
pub(super) fn compression_cells(ciphers: &[&'static str], server_compresses: bool) -> Vec<Cell> {
    if server_compresses {
        cells(ciphers, &[(true, true), (true, false), (false, true)])
    } else {
        cells(ciphers, &[(false, true)])
    }
}

/// Returns cells for each of `kinds`: with compression, and with compressible data.
fn cells(ciphers: &[&'static str], kinds: &[(bool, bool)]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &cipher in ciphers {
        for &(compression, compressible) in kinds {
            cells.extend(Direction::BOTH.map(|direction| Cell {
                cipher,
                compression,
                compressible,
                direction,
            }));
        }
    }
    cells
}

/// Requests under way: their size and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) size: u32,
    pub(super) depth: usize,
}

/// The most bytes under way in one session: its window, which grows to 15 MiB towards us and is 2 MiB towards sshd.
pub(super) const MOST_UNDER_WAY: f64 = 16e6;

impl Shape {
    /// Returns the shape that fills a path of this rate and round trip twice, in requests of at most `largest` bytes.
    /// It is not larger, because a measurement's end waits for what is under way.
    pub(super) fn filling(rate: f64, rtt: Duration, largest: u32) -> Self {
        /// The time that sshd and this side may take to respond, on any path.
        const TURN: f64 = 0.004;
        Self::holding(rate * (2.0 * rtt.as_secs_f64() + TURN), largest)
    }

    /// Returns the shape with this many bytes under way, in requests of at most `largest` bytes.
    pub(super) fn holding(bytes: f64, largest: u32) -> Self {
        let wanted = bytes.clamp(16e3, MOST_UNDER_WAY);
        // At least four, so that one may be late.
        let size = ((wanted / 4.0) as u32).clamp(4096.min(largest), largest);
        let size = if size < largest { size / 4096 * 4096 } else { size }.max(1);
        Self {
            size,
            depth: ((wanted / f64::from(size)) as usize).clamp(4, 256),
        }
    }
}

/// Returns the sizes and depths to try, the most decisive first. None exceeds [`MOST_UNDER_WAY`].
pub(super) fn shapes(largest: u32, usual: usize, full: bool) -> Vec<Shape> {
    let sizes: &[u32] = if full {
        &[8, 64, 512, 2048, 4096, 8192, 16384, 32768, 65536, 131_072]
    } else {
        &[8, 512, 4096, 32768, 65536, 131_072]
    };
    let depths: &[usize] = if full { &[64, 1, 16, 4, 256] } else { &[64, 1, 16] };
    let mut sizes: Vec<u32> = sizes.iter().copied().filter(|size| *size < largest).collect();
    sizes.push(largest);
    sizes.reverse();
    let mut shapes = Vec::new();
    for depth in std::iter::once(usual).chain(depths.iter().copied()) {
        for &size in &sizes {
            let shape = Shape { size, depth };
            let fits = f64::from(size) * depth as f64 <= MOST_UNDER_WAY * 1.1;
            if fits && !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
    }
    shapes
}

/// Returns the number of sessions to measure next in one direction, after those in `tried` with their rates; `None` if
/// no other number can be best. `usual`, the number that copies use untuned, comes first, because every choice is
/// compared with it. Then come fewer as long as they move as much, then more as long as they move more.
pub(super) fn next_streams(usual: usize, full: bool, tried: &[(usize, f64)]) -> Option<usize> {
    let rate = |streams: usize| tried.iter().find(|row| row.0 == streams).map(|row| row.1);
    let Some(usual_rate) = rate(usual) else {
        return Some(usual);
    };
    if full {
        return [1, 2, 3, 4, 6, 8, 12, MOST_STREAMS]
            .into_iter()
            .find(|streams| rate(*streams).is_none());
    }
    let mut streams = usual;
    while streams > 1 {
        streams /= 2;
        match rate(streams) {
            None => return Some(streams),
            Some(rate) if rate * WORTH < usual_rate => break,
            Some(_) => {}
        }
    }
    let (mut streams, mut bar) = (usual, usual_rate);
    while streams < MOST_STREAMS {
        streams = (streams * 2).min(MOST_STREAMS);
        match rate(streams) {
            None => return Some(streams),
            Some(rate) if rate < bar * WORTH => break,
            Some(rate) => bar = rate,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_a_stage_leaves_goes_to_the_next() {
        let budget = Budget {
            time: 100 * MS,
            bytes: 1000,
            rtt: Duration::ZERO,
        };
        let left = budget.remaining(Stage::Ciphers, 2 * MS, 10);
        assert_eq!((left.time, left.bytes), (22 * MS, 230));
        assert_eq!(budget.remaining(Stage::Link, 50 * MS, 999).time, Duration::ZERO);
        assert_eq!(budget.remaining(Stage::Link, 50 * MS, 999).bytes, 0);
    }

    #[test]
    fn far_away_the_number_of_sessions_comes_first() {
        assert_eq!(Stage::after_link(Duration::ZERO).next(), Some(Stage::Ciphers));
        assert_eq!(Stage::after_link(30 * MS).next(), Some(Stage::Streams));
        for rtt in [Duration::ZERO, 30 * MS] {
            assert!(Stage::order(rtt).is_sorted_by(|(_, one), (_, other)| one < other));
        }
    }

    #[test]
    fn numbers_of_sessions_are_tried_from_the_usual_one_for_as_long_as_they_promise_something() {
        let tried = |usual, rate: fn(usize) -> f64| {
            let mut tried: Vec<(usize, f64)> = Vec::new();
            while let Some(next) = next_streams(usual, false, &tried) {
                tried.push((next, rate(next)));
            }
            tried.into_iter().map(|(streams, _)| streams).collect::<Vec<_>>()
        };
        // Each session's window is the limit.
        assert_eq!(tried(16, |streams| streams as f64), [16, 8]);
        assert_eq!(tried(4, |streams| streams as f64), [4, 2, 8, 16]);
        // The link or the core is the limit.
        assert_eq!(tried(4, |_| 1.0), [4, 2, 1, 8]);
        assert_eq!(tried(1, |_| 1.0), [1, 2]);
        assert_eq!(tried(5, |streams| streams.min(3) as f64), [5, 2, 10]);
        // With --full, all numbers.
        let most = [(5, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)];
        assert_eq!(next_streams(5, true, &most), Some(4));
        assert_eq!(next_streams(5, true, &[]), Some(5));
    }

    #[test]
    fn a_measurement_is_never_too_short_to_mean_something() {
        let left = Slot {
            time: 1000 * MS,
            bytes: 1000,
        };
        assert_eq!(left.share(10, Duration::ZERO, None, 1000 * MS).time, 100 * MS);
        assert_eq!(left.share(10, Duration::ZERO, None, 50 * MS).time, 50 * MS);
        assert_eq!(left.share(1000, Duration::ZERO, None, 1000 * MS).time, SHORTEST);
        assert_eq!(left.share(1000, 100 * MS, None, 50 * MS).time, 600 * MS);
        assert_eq!(left.share(10, Duration::ZERO, None, 50 * MS).bytes, 100);
        assert_eq!(left.share(1000, MS, Some(1.28e6), 50 * MS).time, 100 * MS);
    }

    #[test]
    fn every_combination_is_measured_once() {
        let ciphers = ["a", "b"];
        let mut cells = cipher_cells(&ciphers);
        cells.extend(compression_cells(&ciphers, true));
        assert_eq!(cells.len(), 2 * 2 * 2 * 2);
        let distinct: std::collections::HashSet<_> = cells.iter().collect();
        assert_eq!(distinct.len(), cells.len());
        assert!(
            compression_cells(&ciphers, false)
                .iter()
                .all(|cell| !cell.compression)
        );
    }

    #[test]
    fn a_path_is_filled_and_no_more() {
        // 1 MB/s over 20 ms: little, in small requests.
        let slow = Shape::filling(1e6, 20 * MS, 261_120);
        assert!(slow.size as usize * slow.depth <= 64 * 1024, "{slow:?}");
        // 1 GB/s on a near path.
        let near = Shape::filling(1e9, MS / 10, 261_120);
        assert_eq!(near.size, 261_120);
        assert!((4..=64).contains(&near.depth), "{near:?}");
        // 100 MB/s over 100 ms: all that a window holds.
        let far = Shape::filling(1e8, 100 * MS, 261_120);
        assert!(far.size as usize * far.depth > 15_000_000, "{far:?}");
        assert!(Shape::filling(1e3, MS, 100).size == 100);
    }

    #[test]
    fn shapes_stay_within_what_may_be_under_way() {
        for full in [false, true] {
            let shapes = shapes(261_120, 7, full);
            assert!(
                shapes
                    .iter()
                    .all(|shape| shape.size as usize * shape.depth <= 18_000_000)
            );
            assert_eq!(
                shapes[0],
                Shape {
                    size: 261_120,
                    depth: 7
                }
            );
            assert!(shapes.iter().any(|shape| shape.size == 8));
        }
        assert!(
            super::shapes(32768, 8, true)
                .iter()
                .all(|shape| shape.size <= 32768)
        );
    }
}
