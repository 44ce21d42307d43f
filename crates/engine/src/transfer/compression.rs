//! Whether to compress: found out while a copy runs, from its rate and from samples of what it moves.
//!
//! A copy begins without. Once its rate is known, pieces of its data are compressed here. If they become so much smaller
//! that the link would carry them sooner, and the compressor keeps up with that, its sessions move to connections that
//! compress. When that does not turn out to be faster, they move back, for good.

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
    /// Bytes that are still wanted for a sample.
    wanted: AtomicUsize,
    pieces: Mutex<Vec<Bytes>>,
}

/// Bytes of a sample: several times what zlib looks back over (32 KiB). It is compressed in a few milliseconds.
const SAMPLE: usize = 256 * 1024;
/// Bytes of one piece, so that a sample is of several places.
const PIECE: usize = 64 * 1024;

impl Flow {
    /// So many bytes have arrived where they are to be.
    pub(super) fn passed(&self, bytes: u64) {
        self.passed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Offers data that is on its way, or has come.
    pub(super) fn offer(&self, data: &Bytes) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == 0 || data.is_empty() {
            return;
        }
        let piece = data.slice(..data.len().min(PIECE).min(wanted));
        self.wanted.store(wanted - piece.len(), Ordering::Relaxed);
        self.pieces().push(piece);
    }

    /// Has a sample gathered from what comes next.
    fn want(&self) {
        self.pieces().clear();
        self.wanted.store(SAMPLE, Ordering::Relaxed);
    }

    /// The sample, when all of it has come.
    fn gathered(&self) -> Option<Vec<Bytes>> {
        let mut pieces = self.pieces();
        let complete = self.wanted.load(Ordering::Relaxed) == 0 && !pieces.is_empty();
        complete.then(|| std::mem::take(&mut *pieces))
    }

    /// Guards the pieces, for as long as it takes to add one.
    fn pieces(&self) -> std::sync::MutexGuard<'_, Vec<Bytes>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of compressing a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    /// How many times smaller it became.
    ratio: f64,
    /// Bytes a second that went into the compressor.
    rate: f64,
}

impl Sample {
    /// Compresses as connections do, at zlib's level 6.
    fn of(pieces: &[Bytes]) -> Self {
        let mut stream = Compress::new(Compression::new(6), true);
        let mut packed = Vec::with_capacity(2 * SAMPLE);
        let begun = Instant::now();
        for piece in pieces {
            // Never fails, nor runs out of room: no data grows to twice its length.
            let _ = stream.compress_vec(piece, &mut packed, FlushCompress::Partial);
        }
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        Self {
            ratio: bytes as f64 / packed.len().max(1) as f64,
            rate: bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9),
        }
    }

    /// The same by sshd's zlib, which is reckoned half as fast as zlib-rs: too slow rather than too fast a guess, since a copy
    /// that is moved without gain moves back.
    fn on_the_server(self) -> Self {
        Self {
            rate: self.rate / 2.0,
            ..self
        }
    }
}

/// How often a copy is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// The time over which a rate is measured: TCP's slow start is over in ten round trips.
const MEASURED: Duration = Duration::from_secs(1);
/// Bytes over which it is, so that several requests are among them.
const ENOUGH: u64 = 1_000_000;
/// How long compressing has to show that it is faster: new sessions begin, and old ones end what they have under way.
const TRIAL: Duration = Duration::from_secs(8);
/// Above this rate, in bytes a second, no zlib is expected to keep up: nothing is sampled. Debian's takes 43 MB/s of text.
const HOPELESS: f64 = 250e6;
/// The least gain that counts: rates vary by less from moment to moment.
const WORTH: f64 = 1.3;
/// The time that has to be gained: new connections are made in less, over any distance.
const SAVED: Duration = Duration::from_secs(2);
/// Goes with a copy between this machine and a server, and moves it to connections that compress where that pays; has no
/// end. `upload`: which side compresses.
pub(super) async fn adapt(
    flow: &Flow,
    limit: Option<u64>,
    progress: &Progress,
    sessions: &Sessions,
    upload: bool,
) -> Infallible {
    // A limit on the rate is one on payload: there is nothing to gain.
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
                    // Other data may come.
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
                progress.compressed(true);
                trial.compress(Instant::now(), rate);
            }
            Step::Return => match sessions.move_to(&plain).await {
                Ok(()) => progress.compressed(false),
                Err(error) => tracing::debug!("the copy continues with compression: {error}"),
            },
        }
    }
    pending().await
}

#[derive(Debug, PartialEq)]
enum Step {
    Wait,
    /// At this rate a sample tells whether compression [pays].
    Sample(f64),
    /// Compress no longer.
    Return,
}

/// The decisions, without any I/O.
#[derive(Debug, Default)]
struct Trial {
    phase: Phase,
    /// When so many bytes had arrived, over [`MEASURED`].
    marks: VecDeque<(Instant, u64)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Phase {
    #[default]
    Plain,
    /// Compressing since then; the rate before.
    Compressing {
        since: Instant,
        before: f64,
    },
    Over,
}

impl Trial {
    /// Looks at a copy of which so many bytes have arrived and so many are left.
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
            (Phase::Compressing { since, .. }, _) if now.duration_since(since) > TRIAL => {
                self.phase = Phase::Over;
                Step::Return
            }
            _ => Step::Wait,
        }
    }

    /// The sessions have moved: what was measured before says nothing of what comes.
    fn compress(&mut self, now: Instant, before: f64) {
        self.marks.clear();
        self.phase = Phase::Compressing { since: now, before };
    }

    /// Bytes a second of late; `None` until it is known, or while it still grows as it does in TCP's slow start.
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

/// Whether compressing pays for a copy that moves so many bytes a second and has so many left.
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
