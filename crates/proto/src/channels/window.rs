//! Receive windows (RFC 4254 section 5.2): how far ahead of its reader the server may send.
//!
//! A window that is too small leaves a long path empty; one that is too large makes the server hold the data that the
//! socket does not take. On loopback, a busy machine had stretched the round-trip time to 299 ms, by which windows grew
//! to 15 MiB. sshd then held 25 MB for each stream and spent most of its CPU time on releasing memory, and 20 streams
//! had a fifth of the throughput that they have with 2 MiB.
//!
//! Therefore a window follows the delivery rate times the *shortest* recent round trip ([`RoundTrip`]). It grows beyond
//! its first doubling only if the server was seen to wait for it, and shrinks when it is no longer needed. All windows
//! of a process grow from one [`WindowBudget`].
//!
//! On a busy machine this is not enough: eight downloads that start at once on two cores wait for a CPU before they see
//! an answer, and their servers for credit. All windows grew to 4 MiB and some to 8. Only the kernel's own round trip
//! is not stretched. If it shows a near server, a window grows only if many answers took long, and about equally long.
//! That happens if a relay answers for TCP and the server is far behind it; waits for a CPU vary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Our initial and smallest receive window: that of a session in OpenSSH's client.
pub(crate) const INITIAL_WINDOW: u32 = 2 * 1024 * 1024;
/// The largest window. sshd stops reading from a command when its own buffer towards us holds 16 MiB (CHAN_INPUT_MAX in
/// channels.c), so that more would not be used and a byte less is safe.
pub(crate) const MAX_WINDOW: u32 = 15 * 1024 * 1024;
/// The number of returns of credit, two windows' worth of data, for which a window must be more than twice too large
/// before it shrinks: a mere pause of the reader does not cost a long path its window.
const SHRINK_AFTER: u8 = 8;

/// The bytes by which all windows of a process together may exceed their first size. A server can make this side hold
/// that and 2 MiB for each channel that is not read.
#[derive(Debug)]
pub struct WindowBudget {
    all: u64,
    free: AtomicU64,
}

impl WindowBudget {
    /// Creates a budget of this many bytes for all windows together.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            all: bytes,
            free: AtomicU64::new(bytes),
        }
    }

    /// Returns by how many bytes windows have grown: the most that servers may send beyond all initial windows.
    #[must_use]
    pub fn grown_bytes(&self) -> u64 {
        self.all.saturating_sub(self.free.load(Ordering::Relaxed))
    }

    fn take(&self, bytes: u32) -> bool {
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(bytes.into())
            })
            .is_ok()
    }

    fn give_back(&self, bytes: u32) {
        self.free.fetch_add(bytes.into(), Ordering::Relaxed);
    }
}

impl Default for WindowBudget {
    /// Returns 256 MiB: some 20 streams on paths that need the largest window.
    fn default() -> Self {
        Self::new(256 * 1024 * 1024)
    }
}

/// The round-trip time: the shortest recent one, because load makes measurements longer than the path.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    /// TCP's time to connect, which may have ended at a proxy.
    assumed: Option<Duration>,
    /// The number of measurements.
    measured: u32,
    /// The shortest answer of this interval, and of the one before.
    shortest: [Option<Duration>; 2],
    /// The longest measurement in each of them.
    longest: [Option<Duration>; 2],
    interval: Option<(Instant, u32)>,
}

impl RoundTrip {
    /// The least duration and number of measurements of an interval (BBR's shortest round trip also covers 10 s): by
    /// then a path that has become longer is known, and one slow answer after a long silence changes nothing.
    const INTERVAL: Duration = Duration::from_secs(10);
    const MEASUREMENTS: u32 = 16;
    /// The number of equally long answers that are not a coincidence.
    const ENOUGH: u32 = 4;

    pub(crate) fn assume(&mut self, time: Duration) {
        self.assumed = Some(time);
    }

    pub(crate) fn record(&mut self, time: Duration, now: Instant) {
        let (since, measurements) = self.interval.get_or_insert((now, 0));
        if *measurements >= Self::MEASUREMENTS && now.saturating_duration_since(*since) >= Self::INTERVAL {
            (*since, *measurements) = (now, 0);
            self.shortest = [None, self.shortest[0]];
            self.longest = [None, self.longest[0]];
        }
        *measurements += 1;
        self.measured = self.measured.saturating_add(1);
        self.longest[0] = self.longest[0].max(Some(time));
        self.at_most(time);
    }

    /// Notes an answer within `time` that may include the server's work. It only bounds the round trip from above: it
    /// does not show whether answers take equally long, and ends no interval.
    pub(crate) fn at_most(&mut self, time: Duration) {
        let shortest = self.shortest[0].map_or(time, |shortest| shortest.min(time));
        self.shortest[0] = Some(shortest);
    }

    /// Returns the shortest answer.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.shortest.into_iter().flatten().min()
    }

    /// Returns the number of measured answers that took the server no work.
    pub(crate) fn measurements(&self) -> u32 {
        self.measured
    }

    /// Returns whether the measurements differ so little that they show the path.
    fn is_steady(&self) -> bool {
        let longest = self.longest.into_iter().flatten().max();
        let close = |(shortest, longest): (Duration, Duration)| longest * 2 <= shortest * 3;
        self.measured >= Self::ENOUGH && self.shortest().zip(longest).is_some_and(close)
    }

    /// Returns the shortest answer or, before the first, the assumed time.
    pub(crate) fn get(&self) -> Option<Duration> {
        self.shortest().or(self.assumed)
    }

    /// Returns at most TCP's time, which includes no wait for a CPU.
    fn of_the_path(&self) -> Option<Duration> {
        self.assumed.min(self.get())
    }
}

/// The data that the server may still send on a channel, and the rule for granting more.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    /// The bytes that the server may still send.
    credit: u32,
    /// The window's current full size.
    size: u32,
    /// Bytes that the application has read and not yet returned to the server.
    consumed: u32,
    /// The time of the last return of credit, from which the reader's rate follows.
    since: Option<Instant>,
    /// The return of credit whose effect is awaited.
    echo: Option<Echo>,
    /// The server has waited for credit since the window grew.
    starved: bool,
    /// Consecutive returns of credit that found the window too large.
    too_large: u8,
    budget: Arc<WindowBudget>,
}

/// Returned credit. The server cannot send more than `remaining` bytes before it receives it. If it has stopped there,
/// the time until the next byte is a round trip without queueing on the channel.
#[derive(Debug)]
struct Echo {
    sent: Instant,
    remaining: u32,
    /// The arrival of the last of `remaining`.
    last: Option<Arrival>,
}

/// The fraction of the time since credit was returned that a silence must last to mean that the server waits for
/// credit. A stream that is read packet by packet has a silence after each, and 48 packets remain of a window when a
/// quarter of it is returned. With a window that is an eighth too small, the server waits this long.
const SILENCE: u32 = 8;

/// A moment of input: when it is handled, and how often everything had been read before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) now: Instant,
    pub(crate) drained: u64,
}

impl ReceiveWindow {
    pub(crate) fn new(budget: Arc<WindowBudget>) -> Self {
        Self {
            credit: INITIAL_WINDOW,
            size: INITIAL_WINDOW,
            consumed: 0,
            since: None,
            echo: None,
            starved: false,
            too_large: 0,
            budget,
        }
    }

    /// Counts `len` received bytes; returns `None` if the server was not allowed to send them. The inner value is a
    /// round-trip time that they show.
    pub(crate) fn receive(&mut self, len: u32, arrival: Option<Arrival>) -> Option<Option<Duration>> {
        self.credit = self.credit.checked_sub(len)?;
        Some(arrival.and_then(|arrival| self.hear_echo(len, arrival)))
    }

    fn hear_echo(&mut self, len: u32, arrival: Arrival) -> Option<Duration> {
        let echo = self.echo.as_mut()?;
        if len <= echo.remaining {
            echo.remaining -= len;
            if echo.remaining == 0 {
                echo.last = Some(arrival);
            }
            return None;
        }
        let echo = self.echo.take()?;
        let trip = arrival.now.saturating_duration_since(echo.sent);
        // Without a silence at the end of its credit, the server had credit all the time.
        let waited = echo.last.is_some_and(|last| {
            let silence = arrival.now.saturating_duration_since(last.now);
            last.drained < arrival.drained && silence * SILENCE >= trip
        });
        self.starved |= waited;
        waited.then_some(trip)
    }

    /// Returns credit for data that nothing reads.
    pub(crate) fn return_unread(&mut self, len: u32) {
        self.credit += len;
        self.echo = None;
    }

    /// Notes that the application has read `n` bytes. Returns what to add to the server's credit, if it is time to do
    /// so: never more than the server has used, whatever `n` is, except for the window's growth.
    pub(crate) fn consume(&mut self, n: u32, now: Instant, trip: &RoundTrip) -> Option<u32> {
        self.consumed = self.consumed.saturating_add(n).min(self.size - self.credit);
        if self.consumed < self.size / 4 {
            return None;
        }
        let mut add = self.consumed;
        let elapsed = self.since.map(|since| now.saturating_duration_since(since));
        let wanted = |rtt: Option<Duration>| Some(wanted_window(self.consumed, elapsed?, rtt?));
        let on_the_path = wanted(trip.of_the_path());
        match wanted(trip.get()) {
            Some(wanted) if wanted > self.size && self.may_grow(on_the_path, trip) => add += self.grow(),
            Some(wanted) if wanted < self.size / 2 => add -= self.shrink(),
            _ => self.too_large = 0,
        }
        self.since = Some(now);
        self.consumed = 0;
        if add == 0 {
            return None;
        }
        if self.echo.is_none() {
            self.echo = Some(Echo {
                sent: now,
                remaining: self.credit,
                last: None,
            });
        }
        self.credit += add;
        Some(add)
    }

    /// Returns whether the window may grow. `on_the_path` is the window that TCP's round trip requires, if known.
    fn may_grow(&self, on_the_path: Option<u32>, trip: &RoundTrip) -> bool {
        match on_the_path {
            Some(wanted) if wanted <= self.size => self.starved && trip.is_steady(),
            _ => self.starved || self.size == INITIAL_WINDOW,
        }
    }

    /// Doubles the window, if allowed. Returns by how much it has grown.
    fn grow(&mut self) -> u32 {
        self.too_large = 0;
        let by = self.size.min(MAX_WINDOW - self.size);
        if !self.budget.take(by) {
            return 0;
        }
        self.size += by;
        self.starved = false;
        by
    }

    /// Keeps back consumed credit, if the window was too large for long enough.
    fn shrink(&mut self) -> u32 {
        if self.too_large < SHRINK_AFTER {
            self.too_large += 1;
            return 0;
        }
        let by = self.consumed.min(self.size - INITIAL_WINDOW);
        self.size -= by;
        self.budget.give_back(by);
        by
    }
}

impl Drop for ReceiveWindow {
    fn drop(&mut self) {
        self.budget.give_back(self.size - INITIAL_WINDOW);
    }
}

/// Returns the window that `consumed` bytes in `elapsed` require: twice the rate times the round trip, since credit is
/// returned late and in quarters. Data faster than 1 GB/s came from a buffer: no core decrypts that much, and its rate
/// is not the path's.
fn wanted_window(consumed: u32, elapsed: Duration, rtt: Duration) -> u32 {
    let consumed = u128::from(consumed);
    let nanoseconds = elapsed.as_nanos().max(consumed);
    let bytes = consumed * rtt.as_nanos() * 2 / nanoseconds.max(1);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1024 * 1024;

    fn window() -> ReceiveWindow {
        ReceiveWindow::new(Arc::new(WindowBudget::default()))
    }

    /// A server, a path and a reader on simulated time, in steps of a packet.
    struct Path {
        window: ReceiveWindow,
        trip: RoundTrip,
        now: Instant,
        /// Packets per second that the path and the reader let through.
        rate: u32,
        /// The delay in one direction.
        delay: Duration,
        /// The extra time that a loaded machine takes to notice an answer.
        lateness: Duration,
        /// Credit on its way to the server.
        adjusts: Vec<(Instant, u32)>,
        server_credit: u32,
        /// Packets on their way to us.
        packets: std::collections::VecDeque<Instant>,
        drained: u64,
    }

    const PACKET: u32 = 32 * 1024;

    impl Path {
        fn new(rtt: Duration, mebibytes_a_second: u32) -> Self {
            Self {
                window: window(),
                trip: RoundTrip::default(),
                now: Instant::now(),
                rate: mebibytes_a_second * MIB / PACKET,
                delay: rtt / 2,
                lateness: Duration::ZERO,
                adjusts: Vec::new(),
                server_credit: INITIAL_WINDOW,
                packets: std::collections::VecDeque::new(),
                drained: 0,
            }
        }

        /// Streams without throttling for `time`; returns the number of packets that came.
        fn stream(&mut self, time: Duration) -> u32 {
            let end = self.now + time;
            let step = Duration::from_secs(1) / self.rate;
            let mut came = 0;
            while self.now < end {
                self.now += step;
                let now = self.now;
                self.adjusts.retain(|(at, add)| {
                    let here = *at <= now;
                    if here {
                        self.server_credit += add;
                    }
                    !here
                });
                if self.server_credit >= PACKET {
                    self.server_credit -= PACKET;
                    self.packets.push_back(now + self.delay);
                }
                if self.packets.front().is_none_or(|at| *at > now) {
                    self.drained += 1;
                    continue;
                }
                self.packets.pop_front();
                came += 1;
                let arrival = Arrival {
                    now: now + self.lateness,
                    drained: self.drained,
                };
                if let Some(trip) = self.window.receive(PACKET, Some(arrival)).unwrap() {
                    self.trip.record(trip, now);
                }
                if let Some(add) = self.window.consume(PACKET, now, &self.trip) {
                    self.adjusts.push((now + self.delay, add));
                }
            }
            came
        }
    }

    #[test]
    fn a_window_is_returned_in_quarters() {
        let mut window = window();
        let now = Instant::now();
        window.receive(INITIAL_WINDOW / 4, None).unwrap();
        let trip = RoundTrip::default();
        assert_eq!(window.consume(INITIAL_WINDOW / 4 - 1, now, &trip), None);
        assert_eq!(window.consume(1, now, &trip), Some(INITIAL_WINDOW / 4));
    }

    #[test]
    fn what_was_not_received_cannot_be_returned() {
        let mut window = window();
        window.receive(INITIAL_WINDOW / 2, None).unwrap();
        let (now, trip) = (Instant::now(), RoundTrip::default());
        assert_eq!(window.consume(u32::MAX, now, &trip), Some(INITIAL_WINDOW / 2));
        assert_eq!(window.consume(u32::MAX, now, &trip), None);
        assert_eq!(window.credit, INITIAL_WINDOW);
    }

    #[test]
    fn more_than_the_window_is_not_taken() {
        let mut window = window();
        assert!(window.receive(INITIAL_WINDOW, None).is_some());
        assert!(window.receive(1, None).is_none());
    }

    #[test]
    fn a_long_path_is_filled_and_its_round_trip_found_while_it_streams() {
        let rtt = Duration::from_millis(100);
        let mut path = Path::new(rtt, 100);
        path.trip.record(rtt, path.now);
        path.stream(Duration::from_secs(2));
        assert!(path.window.size >= 10 * MIB, "{}", path.window.size);
        let came = path.stream(Duration::from_secs(2)) * (PACKET / 1024);
        assert!(came >= 190 * 1024, "{came} KiB came in two seconds");
    }

    #[test]
    fn a_round_trip_that_load_has_stretched_is_corrected_and_the_window_stays_small() {
        let mut path = Path::new(Duration::from_micros(200), 200);
        // As measured once on loopback, when 20 connections were made at once.
        path.trip.record(Duration::from_millis(299), path.now);
        path.lateness = Duration::from_millis(3);
        path.stream(Duration::from_secs(5));
        assert!(path.window.size <= 2 * INITIAL_WINDOW, "{}", path.window.size);
    }

    #[test]
    fn a_near_server_that_waits_for_credit_on_a_busy_machine_gets_no_larger_window() {
        let mut path = Path::new(Duration::from_millis(60), 200);
        path.trip.assume(Duration::from_micros(30));
        path.trip.record(Duration::from_millis(60), path.now);
        let mut trips = 0;
        for waits in [60, 25, 90, 40, 70, 30].into_iter().cycle().take(60) {
            path.delay = Duration::from_millis(waits) / 2;
            path.stream(Duration::from_millis(100));
            trips += u32::from(path.window.starved);
            assert_eq!(path.window.size, INITIAL_WINDOW);
        }
        assert_eq!(trips, 60, "the server always waited for credit");
    }

    #[test]
    fn what_stood_in_a_buffer_tells_no_rate() {
        let trip = Duration::from_micros(200);
        assert!(wanted_window(INITIAL_WINDOW / 4, Duration::from_micros(20), trip) < INITIAL_WINDOW);
        let trip = Duration::from_millis(100);
        assert!(wanted_window(INITIAL_WINDOW / 4, Duration::from_micros(20), trip) > MAX_WINDOW);
    }

    #[test]
    fn a_far_server_behind_a_relay_next_door_gets_its_window_a_little_later() {
        let rtt = Duration::from_millis(100);
        let came = [Duration::from_micros(30), rtt].map(|of_tcp| {
            let mut path = Path::new(rtt, 200);
            path.trip.assume(of_tcp);
            path.trip.record(rtt, path.now);
            let came = path.stream(Duration::from_secs(2));
            assert_eq!(path.window.size, MAX_WINDOW);
            came
        });
        let later = Duration::from_secs(1) * (came[1] - came[0]) / Path::new(rtt, 200).rate;
        assert!(later <= 3 * rtt, "{later:?}");
    }

    #[test]
    fn a_stream_that_is_read_packet_by_packet_does_not_look_like_a_server_that_waits() {
        let mut path = Path::new(Duration::from_micros(200), 200);
        let gap = Duration::from_secs(1) / path.rate;
        for _ in 0..30 * path.rate {
            path.now += gap;
            path.drained += 1;
            let arrival = Arrival {
                now: path.now,
                drained: path.drained,
            };
            let trip = path.window.receive(PACKET, Some(arrival)).unwrap();
            assert_eq!(trip, None, "the server never stopped");
            path.window.consume(PACKET, path.now, &path.trip);
        }
        assert_eq!(path.window.size, INITIAL_WINDOW);
    }

    #[test]
    fn a_window_that_is_not_needed_any_more_shrinks_to_its_first_size() {
        let rtt = Duration::from_millis(100);
        let mut path = Path::new(rtt, 200);
        path.trip.record(rtt, path.now);
        path.stream(Duration::from_secs(2));
        assert_eq!(path.window.size, MAX_WINDOW);
        let (budget, free) = (Arc::clone(&path.window.budget), WindowBudget::default().free);
        let grown = u64::from(MAX_WINDOW - INITIAL_WINDOW);
        assert_eq!(budget.free.load(Ordering::Relaxed), free.into_inner() - grown);
        path.rate = 5 * MIB / PACKET;
        path.stream(Duration::from_secs(60));
        assert_eq!(path.window.size, INITIAL_WINDOW);
        // Never more than was promised, and all of it: no credit is lost on the way.
        let promised = path.server_credit
            + path.adjusts.iter().map(|(_, add)| add).sum::<u32>()
            + path.packets.len() as u32 * PACKET;
        assert_eq!(promised, path.window.credit);
        let whole = WindowBudget::default().free.into_inner();
        assert_eq!(budget.free.load(Ordering::Relaxed), whole);
    }

    #[test]
    fn windows_grow_from_one_budget_and_give_it_back_when_they_end() {
        let budget = Arc::new(WindowBudget::new(3 * u64::from(INITIAL_WINDOW)));
        let rtt = Duration::from_millis(100);
        let mut paths: Vec<_> = (0..4)
            .map(|_| {
                let mut path = Path::new(rtt, 200);
                path.trip.record(rtt, path.now);
                path.window = ReceiveWindow::new(Arc::clone(&budget));
                path
            })
            .collect();
        for path in &mut paths {
            path.stream(Duration::from_secs(1));
        }
        let grown: u32 = paths.iter().map(|path| path.window.size - INITIAL_WINDOW).sum();
        assert_eq!(grown, 3 * INITIAL_WINDOW);
        drop(paths);
        assert_eq!(budget.free.load(Ordering::Relaxed), 3 * u64::from(INITIAL_WINDOW));
    }

    #[test]
    fn the_round_trip_follows_a_path_that_has_changed_and_forgets_no_short_one_for_a_slow_answer() {
        let (short, long) = (Duration::from_millis(10), Duration::from_millis(80));
        let mut trip = RoundTrip::default();
        trip.assume(long);
        assert_eq!(trip.get(), Some(long));
        let begin = Instant::now();
        trip.record(short, begin);
        let later = begin + Duration::from_secs(3600);
        trip.record(long, later);
        assert_eq!(trip.get(), Some(short));
        for n in 0..40 {
            trip.record(long, later + n * Duration::from_secs(1));
        }
        assert_eq!(trip.get(), Some(long));
        trip.record(short, later + Duration::from_secs(41));
        assert_eq!(trip.get(), Some(short));
    }

    #[test]
    fn an_answer_that_the_server_worked_for_bounds_the_round_trip_and_makes_it_neither_longer_nor_unsteady() {
        let (path, worked) = (Duration::from_millis(100), Duration::from_millis(900));
        let mut trip = RoundTrip::default();
        trip.assume(Duration::from_micros(30));
        trip.at_most(worked);
        assert_eq!(trip.shortest(), Some(worked), "nothing better is known yet");
        trip.at_most(path);
        trip.at_most(worked);
        assert_eq!(trip.shortest(), Some(path));
        assert_eq!(trip.measurements(), 0);
        let begin = Instant::now();
        for _ in 0..RoundTrip::ENOUGH {
            trip.record(path, begin);
        }
        assert!(trip.is_steady());
        // However many there are: the path was measured as shorter.
        for _ in 0..10 * RoundTrip::MEASUREMENTS {
            trip.at_most(worked);
        }
        trip.record(path, begin + Duration::from_secs(3600));
        assert_eq!(trip.shortest(), Some(path));
    }
}
