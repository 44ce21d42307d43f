//! [`Pace`]: how much to have in flight.

use std::time::{Duration, Instant};

/// Decides how much to have in flight: twice the highest recent delivery rate times the lowest round-trip time, the rule of BBR
/// (draft-ietf-ccwg-bbr). While more in flight brings a higher rate, the amount doubles each round trip. When it brings only
/// longer queues, the product stays.
///
/// The lowest round-trip time is kept for the transfer's life. BBR drains its queue before it measures the time again. A
/// measurement without draining would mistake the queue for distance and grow without end. The factor of two serves a path that
/// becomes longer during the transfer.
///
/// The unit is bytes for files, where a small file counts as its [`weight`], and directories for a walk.
#[derive(Debug)]
pub(super) struct Pace {
    /// The amount in flight until a rate is known.
    first: u64,
    least: u64,
    most: u64,
    in_flight: u64,
    delivered: u64,
    shortest: Option<Duration>,
    /// The highest rates, in units a second, of this and the last generation of [`GENERATION`] rounds.
    rates: [f64; 2],
    rounds: u32,
    /// The delivered amount when the current round began.
    round: u64,
}

/// The state of the pace when a request was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendMark {
    amount: u64,
    at: Instant,
    delivered: u64,
}

/// The least weight of a small file: its requests are work, however little they carry.
const FILE: u64 = 4096;
/// The amount of small files in flight on a session at the start, if handles and memory allow: 2 MiB, as much as sshd takes before
/// it has to answer. With more, files would only queue, on a connection that a copy may want to leave. 2,000 files of 4 KiB come in
/// 8 round trips with this value, in 10 with half of it and in 13 with an eighth; they are written and renamed in 11, 14 and 19.
/// 512 OPENs are one channel packet.
pub(super) const FIRST_SMALL: u64 = 512 * FILE;

/// Returns the weight of a small file of this length.
pub(super) fn weight(length: u64) -> u64 {
    length.max(FILE)
}

/// The number of round trips after which a rate that was not reached again begins to be forgotten.
const GENERATION: u32 = 8;

impl Pace {
    /// Keeps at least `least` in flight, and at most `most`.
    pub(super) fn new(least: u64, most: u64) -> Self {
        Self {
            first: least.min(most),
            least: least.min(most),
            most,
            in_flight: 0,
            delivered: 0,
            shortest: None,
            rates: [0.0; 2],
            rounds: 0,
            round: 0,
        }
    }

    /// Sets the amount in flight at the start.
    pub(super) fn beginning_with(self, first: u64) -> Self {
        let first = first.min(self.most);
        Self { first, ..self }
    }

    /// Returns the amount that should be in flight.
    pub(super) fn target(&self) -> u64 {
        let rate = self.rates[0].max(self.rates[1]);
        if rate == 0.0 {
            return self.first;
        }
        let product = rate * self.shortest.unwrap_or_default().as_secs_f64();
        // A float beyond u64 becomes u64::MAX, and is bounded then.
        ((2.0 * product) as u64).clamp(self.least, self.most)
    }

    /// Returns whether more should be sent, in addition to the `prepared` amount.
    pub(super) fn has_room(&self, prepared: u64) -> bool {
        self.in_flight + prepared < self.target()
    }

    pub(super) fn note_sent(&mut self, amount: u64, now: Instant) -> SendMark {
        self.in_flight += amount;
        SendMark {
            amount,
            at: now,
            delivered: self.delivered,
        }
    }

    /// Notes that a request was answered.
    pub(super) fn note_done(&mut self, sent: SendMark, now: Instant) {
        self.in_flight -= sent.amount;
        self.delivered += sent.amount;
        let elapsed = now.saturating_duration_since(sent.at);
        if elapsed.is_zero() {
            return;
        }
        self.shortest = Some(self.shortest.map_or(elapsed, |shortest| shortest.min(elapsed)));
        let rate = (self.delivered - sent.delivered) as f64 / elapsed.as_secs_f64();
        self.rates[0] = self.rates[0].max(rate);
        if sent.delivered >= self.round {
            self.round = self.delivered;
            self.rounds += 1;
            if self.rounds.is_multiple_of(GENERATION) {
                self.rates = [rate, self.rates[0]];
            }
        }
    }

    /// Notes that a request will not be answered.
    pub(super) fn note_lost(&mut self, sent: SendMark) {
        self.in_flight -= sent.amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Simulates a path with this rate, in units a second, and this round-trip time. Returns the target at the end.
    fn settle(rate: u64, rtt: Duration, pace: &mut Pace) -> u64 {
        let start = Instant::now();
        let unit = 1000;
        let service = Duration::from_secs_f64(unit as f64 / rate as f64);
        let mut now = start;
        let mut free = start;
        let mut queue = VecDeque::new();
        while now < start + rtt * 60 {
            while pace.has_room(0) {
                free = free.max(now) + service;
                queue.push_back((free + rtt, pace.note_sent(unit, now)));
            }
            let (at, sent) = queue
                .pop_front()
                .expect("something is in flight, since the least is not zero");
            now = at;
            pace.note_done(sent, now);
        }
        pace.target()
    }

    #[test]
    fn the_flight_settles_at_twice_the_product_of_rate_and_distance() {
        let product = 1_000_000; // 10 MB/s at 100 ms
        let flight = settle(
            10_000_000,
            Duration::from_millis(100),
            &mut Pace::new(64_000, u64::MAX),
        );
        assert!((product..=3 * product).contains(&flight), "{flight}");
    }

    #[test]
    fn the_flight_never_leaves_its_bounds() {
        assert_eq!(
            settle(
                1_000_000_000,
                Duration::from_millis(100),
                &mut Pace::new(64_000, 500_000)
            ),
            500_000
        );
        assert_eq!(
            settle(10_000, Duration::from_millis(10), &mut Pace::new(64_000, 500_000)),
            64_000
        );
    }
}
