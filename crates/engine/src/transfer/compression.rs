//! Decides whether to compress while a copy runs, by its rate and by samples of its data.
//!
//! A copy starts without compression. Once its rate is known, samples of its data are compressed here. If they shrink enough
//! for the link to carry them sooner, and the compressor keeps up, the sessions move to connections that compress. If that
//! is not faster, they move back for good.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress};
use tokio::time::MissedTickBehavior;

use super::blocking::blocking;
use super::progress::Progress;
use super::sessions::Sessions;

/// The bytes that pass through a copy: counted, and at times kept as a sample.
#[derive(Debug, Default)]
pub(super) struct Flow {
    passed: AtomicU64,
    /// Bytes still missing from a sample.
    wanted: AtomicUsize,
    pieces: Mutex<Vec<Bytes>>,
}

/// Bytes of a sample: several times zlib's window (32 KiB). Compressing them takes a few milliseconds.
const SAMPLE: usize = 256 * 1024;
/// Bytes of one piece: a sample has several, from different places.
const PIECE: usize = 64 * 1024;

impl Flow {
    /// Counts bytes that have arrived at the target.
    pub(super) fn passed(&self, bytes: u64) {
        self.passed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Offers data of the copy for a sample.
    pub(super) fn offer(&self, data: &Bytes) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == 0 || data.is_empty() {
            return;
        }
        let piece = data.slice(..data.len().min(PIECE).min(wanted));
        self.wanted.store(wanted - piece.len(), Ordering::Relaxed);
        self.pieces().push(piece);
    }

    /// Starts a sample of the data that follows.
    fn want(&self) {
        self.pieces().clear();
        self.wanted.store(SAMPLE, Ordering::Relaxed);
    }

    /// Returns the sample once it is complete.
    fn gathered(&self) -> Option<Vec<Bytes>> {
        let mut pieces = self.pieces();
        let complete = self.wanted.load(Ordering::Relaxed) == 0 && !pieces.is_empty();
        complete.then(|| std::mem::take(&mut *pieces))
    }

    /// Locks the pieces, for as long as adding one takes.
    fn pieces(&self) -> std::sync::MutexGuard<'_, Vec<Bytes>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of compressing a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    /// Original size divided by compressed size.
    ratio: f64,
    /// Bytes a second into the compressor.
    rate: f64,
}

impl Sample {
    /// Compresses a sample as connections do, at zlib's level 6.
    fn of(pieces: &[Bytes]) -> Self {
        let mut stream = Compress::new(Compression::new(6), true);
        let mut packed = Vec::with_capacity(2 * SAMPLE);
        let begun = Instant::now();
        for piece in pieces {
            // Neither fails nor runs out of room: no data grows to twice its length.
            let _ = stream.compress_vec(piece, &mut packed, FlushCompress::Partial);
        }
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        Self {
            ratio: bytes as f64 / packed.len().max(1) as f64,
            rate: bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9),
        }
    }

    /// Returns the estimate for sshd's zlib, taken as half as fast as zlib-rs. A low guess avoids moving a copy that would have
    /// to move back.
    fn on_the_server(self) -> Self {
        Self {
            rate: self.rate / 2.0,
            ..self
        }
    }
}

/// The interval between two looks at a copy.
const LOOK: Duration = Duration::from_millis(250);
/// The time over which a rate is measured: TCP's slow start is over in ten round trips.
const MEASURED: Duration = Duration::from_secs(1);
/// The least bytes to measure a rate over: several requests.
const ENOUGH: u64 = 1_000_000;
/// The time in which sessions that compress start, and the old ones finish their requests.
const STARTS: Duration = Duration::from_secs(8);
/// No sample is taken above this rate, in bytes a second: no zlib keeps up. Debian's takes 43 MB/s of text.
const HOPELESS: f64 = 250e6;
/// The least gain that counts: rates vary by less from moment to moment.
const WORTH: f64 = 1.3;
/// The least time that counts as saved: connecting takes less over any distance.
const SAVED: Duration = Duration::from_secs(2);
/// Watches a copy between this machine and a server, and moves it to connections that compress if that pays. Never returns.
/// `upload` says which side compresses.
pub(super) async fn adapt(
    flow: &Flow,
    limit: Option<u64>,
    progress: &Progress,
    sessions: &Sessions,
    upload: bool,
) -> Infallible {
    // A limit on the rate is one on payload: compression gains nothing.
    let (Some(plain), None) = (sessions.host(), limit) else {
        return pending().await;
    };
    let mut trial = Trial::default();
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    flow.want();
    while trial.phase != Phase::Over {
        looks.tick().await;
        let snapshot = progress.snapshot();
        let left = snapshot.total_bytes.saturating_sub(snapshot.bytes);
        match trial.look(Instant::now(), flow.passed.load(Ordering::Relaxed), left) {
            Step::Wait => {}
            Step::Sample(rate) => {
                let Some(pieces) = flow.gathered() else {
                    continue;
                };
                let sample = blocking(move || Sample::of(&pieces)).await;
                let sample = if upload { sample } else { sample.on_the_server() };
                if !pays(rate, left, sample) {
                    // Later data may compress better.
                    flow.want();
                    continue;
                }
                let Some(compressing) = plain.compressing() else {
                    break;
                };
                if let Err(error) = sessions.move_to(&compressing).await {
                    tracing::debug!("the copy continues without compression: {error}");
                    break;
                }
                tracing::debug!("the copy continues with compression: {rate:.0} bytes/s, {sample:?}");
                progress.set_compressed(true);
                trial.compress(Instant::now(), rate);
            }
            Step::Return => match sessions.move_to(&plain).await {
                Ok(()) => progress.set_compressed(false),
                Err(error) => tracing::debug!("the copy continues with compression: {error}"),
            },
        }
    }
    pending().await
}

#[derive(Debug, PartialEq)]
enum Step {
    Wait,
    /// Take a sample, which tells whether compression [pays] at this rate.
    Sample(f64),
    /// Stop compressing.
    Return,
}

/// The decisions, without any I/O.
#[derive(Debug, Default)]
struct Trial {
    phase: Phase,
    /// Arrived bytes at moments of the last [`MEASURED`].
    marks: VecDeque<(Instant, u64)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Phase {
    #[default]
    Plain,
    /// Compressing since `since`; the rate was `before`.
    Compressing {
        since: Instant,
        before: f64,
    },
    Over,
}

impl Trial {
    /// Decides the next step, given the bytes that have arrived and those that are left.
    fn look(&mut self, now: Instant, passed: u64, left: u64) -> Step {
        let rate = self.rate(now, passed);
        match (self.phase, rate) {
            (Phase::Plain, Some(rate)) if rate < HOPELESS && left as f64 / rate > SAVED.as_secs_f64() => {
                Step::Sample(rate)
            }
            (Phase::Compressing { before, .. }, Some(rate)) if rate > before => {
                self.phase = Phase::Over;
                Step::Wait
            }
            (Phase::Compressing { since, before }, _) if now.duration_since(since) > trial(before) => {
                self.phase = Phase::Over;
                Step::Return
            }
            _ => Step::Wait,
        }
    }

    /// Notes that the sessions have moved, and drops older measurements.
    fn compress(&mut self, now: Instant, before: f64) {
        self.marks.clear();
        self.phase = Phase::Compressing { since: now, before };
    }

    /// Returns the recent rate in bytes a second; `None` until it is known, or while it grows as in TCP's slow start.
    fn rate(&mut self, now: Instant, passed: u64) -> Option<f64> {
        if passed == 0 {
            return None;
        }
        self.marks.push_back((now, passed));
        let suffices =
            |&(at, then): &(Instant, u64)| now.duration_since(at) >= MEASURED && passed - then >= ENOUGH;
        while self.marks.get(1).is_some_and(suffices) {
            self.marks.pop_front();
        }
        let &(from, first) = self.marks.front().filter(|mark| suffices(mark))?;
        let &(middle, half) = self.marks.get(self.marks.len() / 2)?;
        let rate = |bytes: u64, time: Duration| bytes as f64 / time.as_secs_f64().max(1e-3);
        let (before, after) = (
            rate(half - first, middle - from),
            rate(passed - half, now - middle),
        );
        (after < before * 2.0).then(|| rate(passed - first, now - from))
    }
}

/// Returns the time compression gets to prove faster than `before`, in bytes a second: at that rate, enough to measure passes
/// in it.
fn trial(before: f64) -> Duration {
    STARTS + Duration::from_secs_f64(ENOUGH as f64 / before)
}

/// Returns whether compressing pays at this rate in bytes a second, with `left` bytes to go.
fn pays(rate: f64, left: u64, sample: Sample) -> bool {
    let compressed = (rate * sample.ratio).min(sample.rate);
    let saved = left as f64 / rate - left as f64 / compressed;
    compressed > rate * WORTH && saved > SAVED.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Sample = Sample {
        ratio: 5.0,
        rate: 80e6,
    };
    const RANDOM: Sample = Sample {
        ratio: 0.999,
        rate: 30e6,
    };
    const GB: u64 = 1_000_000_000;

    #[test]
    fn it_pays_where_the_link_is_slow_the_data_shrinks_and_enough_is_left() {
        for (rate, left, sample, expected) in [
            (2e6, GB, TEXT, true),
            (2e6, GB, RANDOM, false),
            // A fifth less is not a gain that could be seen.
            (
                2e6,
                GB,
                Sample {
                    ratio: 1.25,
                    rate: 80e6,
                },
                false,
            ),
            // The compressor would be what bounds it.
            (70e6, 100 * GB, TEXT, false),
            (50e6, 100 * GB, TEXT, true),
            (2e6, 4_000_000, TEXT, false),
            (2e6, 6_000_000, TEXT, true),
            (
                2e6,
                GB,
                Sample {
                    ratio: 1000.0,
                    rate: 1e6,
                },
                false,
            ),
        ] {
            assert_eq!(pays(rate, left, sample), expected, "{rate} {left} {sample:?}");
        }
    }

    /// A copy on simulated time.
    struct Copy {
        trial: Trial,
        now: Instant,
        passed: u64,
    }

    impl Copy {
        fn begun() -> Self {
            Self {
                trial: Trial::default(),
                now: Instant::now(),
                passed: 0,
            }
        }

        /// Moves so many bytes a second for some seconds, a gigabyte being left; what was wanted, other than to wait.
        fn runs(&mut self, rate: f64, seconds: f64) -> Vec<Step> {
            let looks = (seconds / LOOK.as_secs_f64()) as usize;
            let steps = (0..looks).map(|_| {
                self.now += LOOK;
                self.passed += (rate * LOOK.as_secs_f64()) as u64;
                self.trial.look(self.now, self.passed, GB)
            });
            steps.filter(|step| *step != Step::Wait).collect()
        }

        fn compress(&mut self) {
            self.trial.compress(self.now, 2e6);
        }
    }

    #[test]
    fn the_rate_of_a_slow_link_is_seen_within_two_seconds_and_a_fast_one_is_left_alone() {
        assert_eq!(Copy::begun().runs(2e6, 2.0).first(), Some(&Step::Sample(2e6)));
        assert_eq!(Copy::begun().runs(1e9, 10.0), []);
        // A megabyte has to have passed.
        assert_eq!(Copy::begun().runs(1e5, 9.0), []);
        assert_eq!(Copy::begun().runs(1e5, 12.0).first(), Some(&Step::Sample(1e5)));
    }

    #[test]
    fn compression_that_is_faster_stays() {
        let mut copy = Copy::begun();
        copy.runs(2e6, 3.0);
        copy.compress();
        // Old sessions end what they have under way, and new ones begin.
        assert_eq!(copy.runs(1e6, 3.0), []);
        assert_eq!(copy.runs(8e6, 3.0), []);
        // Whatever becomes of the link later.
        assert_eq!(copy.runs(1e6, 20.0), []);
    }

    #[test]
    fn compression_that_is_not_faster_goes_and_does_not_come_back() {
        let mut copy = Copy::begun();
        copy.compress();
        assert_eq!(copy.runs(1.5e6, 20.0), [Step::Return]);
        assert_eq!(copy.runs(2e6, 20.0), []);
        let mut stuck = Copy::begun();
        stuck.compress();
        assert_eq!(stuck.runs(0.0, 20.0), [Step::Return]);
    }

    #[test]
    fn over_a_link_where_enough_to_measure_takes_longer_compression_gets_longer() {
        let before = ENOUGH as f64 / 20.0;
        for (rate, end) in [(before * 1.5, vec![]), (before * 0.9, vec![Step::Return])] {
            let mut copy = Copy::begun();
            copy.trial.compress(copy.now, before);
            // The sessions start.
            assert_eq!(copy.runs(before / 10.0, 5.0), []);
            assert_eq!(copy.runs(rate, 60.0), end);
        }
    }

    #[test]
    fn a_rate_that_still_grows_is_waited_for() {
        let mut copy = Copy::begun();
        for rate in [1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 128e6] {
            assert_eq!(copy.runs(rate, 0.25), [], "{rate}");
        }
        assert_eq!(copy.runs(128e6, 2.0).last(), Some(&Step::Sample(128e6)));
    }

    #[test]
    fn a_sample_is_of_several_places_and_tells_text_from_what_does_not_shrink() {
        let flow = Flow::default();
        let samples = crate::tune::Samples::new();
        for (data, shrinks) in [(&samples.text, true), (&samples.random, false)] {
            flow.offer(data);
            assert_eq!(flow.gathered(), None, "nothing is kept unasked");
            flow.want();
            while flow.wanted.load(Ordering::Relaxed) > 0 {
                assert_eq!(flow.gathered(), None);
                flow.offer(data);
            }
            let pieces = flow.gathered().unwrap();
            assert_eq!(pieces.len(), SAMPLE / PIECE);
            assert_eq!(Sample::of(&pieces).ratio > 2.0, shrinks);
        }
    }
}
