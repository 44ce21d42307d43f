//! The prediction of typed keys, before the server answers: the screen is always *truth plus overlay*.
//!
//! The truth is what the server's bytes make of a terminal; the overlay is what the keys in flight are expected to change
//! in the line that is typed in. A [`Predictor`] stands between a session and the user's terminal and does no I/O: bytes
//! and the time go in, and what is to be written to the terminal comes out. Where nothing is predicted, that is what the server
//! sent, byte for byte.
//!
//! Before the server's bytes are passed on, the overlay is taken back; after them, what is left of it is drawn again.
//! So no byte of the server's ever meets another screen than it would without prediction.
//!
//! The rules of when to guess are mosh's ("Mosh: An Interactive Remote Shell for Mobile Clients", 2012, §3.2), applied to
//! a server that does not say which keys it has seen: see `docs/adr/0025-predictive-echo.md`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

mod keys;
mod line;
mod overlay;
mod scan;
mod size;
mod truth;

use keys::{Key, Keyboard};
use line::TypedLine;
use overlay::{Overlay, redraw};
pub use size::Size;
use truth::{Effects, Truth};

/// The silence after which the effect of output is judged: programs answer a key in up to four writes, and the slowest
/// of twenty recorded programs took up to 50 ms for them.
const PAUSE: Duration = Duration::from_millis(50);

/// A program that never pauses is judged all the same.
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// From this round-trip time on keys are shown before their echo, and below [`NEAR`] no longer, where the mode is adaptive.
/// mosh's 20 and 10 ms are about half of it, since it compares them with half of what it measures.
const FAR: Duration = Duration::from_millis(40);
const NEAR: Duration = Duration::from_millis(30);

/// The minimum time that a guess stays without an answer, and that keys in flight are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Keys in flight that are kept. A stalled connection is not typed into for long.
const MOST_KEYS: usize = 256;

/// Assumed until a key's echo has been measured.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(250);

/// The policy for showing keys before their echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// While the round-trip time is 40 ms or more.
    #[default]
    Adaptive,
    /// However near the host is.
    Always,
}

/// A key that was sent and whose echo has not come.
#[derive(Debug)]
struct Sent {
    at: Instant,
    key: Key,
    /// Its echo would show that the program echoes keys.
    proves: bool,
}

/// Stands between a session's output, what is typed, and the user's terminal.
///
/// - Input: [`output`](Self::output), [`handle_input`](Self::handle_input), [`handle_resize`](Self::handle_resize), [`timed_out`](Self::timed_out).
///   Each returns what is to be written to the terminal, in this order.
/// - Before somebody else writes to the terminal: [`set_aside`](Self::set_aside).
/// - [`deadline`](Self::deadline): when to call `timed_out`, unless something else comes first. `None` while nothing is
///   predicted, which is nearly always.
#[derive(Debug)]
pub struct Predictor {
    truth: Option<Truth>,
    size: Size,
    keyboard: Keyboard,
    /// Keys in flight, in their order. Those before the first [`Key::Other`] go into `line`.
    sent: VecDeque<Sent>,
    line: Option<TypedLine>,
    /// A key since the last [`Key::Other`] was echoed: the rest may be shown.
    is_confirmed: bool,
    drawn: Option<Overlay>,
    round_trip: RoundTrip,
    /// The time at which output that agrees with no guess is judged, and the time since when it disagrees.
    judged_at: Option<Instant>,
    disagrees_since: Option<Instant>,
    /// The time at which the line of the keys in flight is searched for.
    found_at: Option<Instant>,
}

impl Predictor {
    /// One for a session that begins. `round_trip` is what is known of the connection's.
    #[must_use]
    pub fn new(mode: Mode, size: Size, round_trip: Option<Duration>) -> Self {
        let mut predictor = Self {
            truth: None,
            size,
            keyboard: Keyboard::default(),
            sent: VecDeque::new(),
            line: None,
            is_confirmed: false,
            drawn: None,
            round_trip: RoundTrip::new(mode, round_trip),
            judged_at: None,
            disagrees_since: None,
            found_at: None,
        };
        predictor.follow();
        predictor
    }

    /// Begins to follow the output, where that is worth it.
    fn follow(&mut self) {
        if self.truth.is_none() && !self.round_trip.is_near() && self.size.is_usable() {
            self.truth = Some(Truth::new(self.size));
        }
    }

    /// Stops following it, where that is not.
    fn leave(&mut self) {
        if self.round_trip.is_near() && self.drawn.is_none() {
            self.truth = None;
            self.line = None;
            self.sent.clear();
            (self.judged_at, self.disagrees_since, self.found_at) = (None, None, None);
        }
    }

    /// The server's bytes. What is returned goes to the terminal, in front of `bytes` and behind them.
    #[must_use]
    pub fn output(&mut self, bytes: &[u8], now: Instant) -> (Vec<u8>, Vec<u8>) {
        let Some(truth) = &mut self.truth else {
            self.round_trip.handle_output(now);
            self.follow();
            // Where in its row the cursor is now is not known.
            if let Some(truth) = &mut self.truth {
                truth.forget();
            }
            return (Vec::new(), Vec::new());
        };
        if self.sent.is_empty() && self.drawn.is_none() {
            truth.feed_later(bytes);
            return (Vec::new(), Vec::new());
        }
        let before = redraw(truth, self.drawn.take().as_ref(), None);
        let effects = truth.feed(bytes);
        self.compare(effects, now);
        let after = self.draw(now);
        self.leave();
        (before, after)
    }

    /// Takes the user's input, as it was sent.
    #[must_use]
    pub fn handle_input(&mut self, bytes: &[u8], now: Instant) -> Vec<u8> {
        let keys = self.keyboard.keys(bytes);
        let Some(truth) = &mut self.truth else {
            self.round_trip.handle_key(now);
            return Vec::new();
        };
        if self.drawn.is_none() {
            truth.feed(&[]);
        }
        for key in keys {
            self.press(key, now);
        }
        self.draw(now)
    }

    /// The terminal has another size.
    #[must_use]
    pub fn handle_resize(&mut self, size: Size, now: Instant) -> Vec<u8> {
        let bytes = self.take_back();
        self.size = size;
        self.give_up(now);
        self.line = None;
        match &mut self.truth {
            Some(truth) if size.is_usable() => truth.resize(size),
            truth => *truth = None,
        }
        self.follow();
        bytes
    }

    /// Somebody else is about to write to the terminal. The bytes take back what is shown.
    #[must_use]
    pub fn set_aside(&mut self, now: Instant) -> Vec<u8> {
        let bytes = self.take_back();
        self.give_up(now);
        self.line = None;
        if let Some(truth) = &mut self.truth {
            truth.feed(&[]);
            truth.forget();
        }
        bytes
    }

    /// Returns the time at which to call [`timed_out`](Self::timed_out).
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.sent.front().map(|first| self.over_at(first));
        let late = self
            .sent
            .front()
            .filter(|_| self.drawn.as_ref().is_some_and(|drawn| !drawn.is_late))
            .map(|first| first.at + self.late());
        [self.judged_at, self.found_at, waits, late]
            .into_iter()
            .flatten()
            .min()
    }

    /// The [`deadline`](Self::deadline) has passed.
    #[must_use]
    pub fn timed_out(&mut self, now: Instant) -> Vec<u8> {
        let has_passed = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if has_passed(self.judged_at) {
            self.give_up(now);
            self.found_at = Some(now);
        }
        // Not every control key is answered, nor every key that nobody guessed at.
        while self.sent.front().is_some_and(|first| self.over_at(first) <= now) {
            self.sent.pop_front();
            self.line = None;
            self.is_confirmed = false;
            (self.judged_at, self.disagrees_since) = (None, None);
            self.found_at = Some(now);
        }
        if has_passed(self.found_at) {
            self.find_line(now);
        }
        self.draw(now)
    }

    /// Returns the time at which waiting for a key ends.
    fn over_at(&self, first: &Sent) -> Instant {
        first.at
            + match (first.key, &self.line) {
                (Key::Other, _) | (_, None) => self.round_trip.limit(),
                (_, Some(_)) => self.patience(),
            }
    }

    fn take_back(&mut self) -> Vec<u8> {
        match (&self.truth, self.drawn.take()) {
            (Some(truth), Some(drawn)) => redraw(truth, Some(&drawn), None),
            _ => Vec::new(),
        }
    }

    /// Four round trips: in the third the keys are underlined.
    fn patience(&self) -> Duration {
        (4 * self.round_trip.expectation()).max(PATIENCE)
    }

    fn late(&self) -> Duration {
        2 * self.round_trip.expectation()
    }

    fn press(&mut self, key: Key, now: Instant) {
        let Some(truth) = &self.truth else { return };
        if key == Key::Report {
            return;
        }
        if self.sent.len() >= MOST_KEYS {
            self.sent.clear();
            self.line = None;
            self.is_confirmed = false;
        }
        if self.sent.is_empty() && key != Key::Other {
            let stands = self
                .line
                .as_ref()
                .is_some_and(|line| line.shows(&line.confirmed, truth));
            if !stands {
                self.is_confirmed = false;
                self.line = truth.can_draw().then(|| TypedLine::at_cursor(truth));
            }
        }
        let is_next = !self.sent.iter().any(|sent| sent.key == Key::Other);
        let line = self.line.as_mut().filter(|_| is_next);
        let sent = expect_key(line, key, truth, now);
        self.sent.push_back(sent);
    }

    /// Output has come: what does it say about the guesses?
    fn compare(&mut self, effects: Effects, now: Instant) {
        let Some(truth) = &self.truth else { return };
        let end = self.sent.iter().position(|sent| sent.key == Key::Other);
        let Some(line) = &mut self.line else {
            if end == Some(0) && self.has_had_time(0, now) {
                self.sent.pop_front();
            }
            self.found_at = Some(now + PAUSE);
            return;
        };
        let keys = end.unwrap_or(self.sent.len());
        let in_flight = self.sent.iter().take(keys).map(|sent| sent.key);
        let has_moved = effects.scrolled && (end.is_some() || !line.is_there(in_flight, truth));
        if effects.cleared || has_moved {
            self.pass(end, now);
            return;
        }
        // The state that the screen shows: the last one of which the keys have had time to be answered, else the first.
        let mut typed = line.confirmed.clone();
        let mut found = line.shows(&typed, truth).then(|| (0, typed.clone()));
        let soonest = self.round_trip.soonest();
        for (at, sent) in self.sent.iter().take(keys).enumerate() {
            typed.apply(sent.key);
            let is_plausible = now.saturating_duration_since(sent.at) >= soonest;
            if (found.is_none() || is_plausible) && line.shows(&typed, truth) {
                found = Some((at + 1, typed.clone()));
            }
        }
        if let Some((count, typed)) = found {
            line.confirm(typed, count == keys, truth);
            (self.judged_at, self.disagrees_since) = (None, None);
            // What was taken away again may have been anything, such as a secret's star.
            let since = self
                .sent
                .iter()
                .take(count)
                .rposition(|sent| sent.key == Key::Backspace);
            for (at, sent) in self.sent.drain(..count).enumerate() {
                let taken = now.saturating_duration_since(sent.at);
                self.is_confirmed |= sent.proves && taken >= soonest && since < Some(at);
                self.round_trip.record(taken);
            }
        } else if end.is_some_and(|end| self.has_had_time(end, now)) {
            self.pass(end, now);
        } else {
            let since = *self.disagrees_since.get_or_insert(now);
            self.judged_at = Some((now + PAUSE).min(since + LONGEST_PAUSE));
        }
    }

    fn has_had_time(&self, index: usize, now: Instant) -> bool {
        let sent = self.sent.get(index);
        sent.is_some_and(|sent| now.saturating_duration_since(sent.at) >= self.round_trip.soonest())
    }

    /// The line is over: by the control key at `end`, or by itself.
    fn pass(&mut self, end: Option<usize>, now: Instant) {
        if let Some(end) = end {
            self.sent.drain(..=end);
        }
        self.give_up(now);
    }

    /// Takes all guesses back. Keys that have had time are answered; the others wait for their line.
    fn give_up(&mut self, now: Instant) {
        self.is_confirmed = false;
        self.line = None;
        (self.judged_at, self.disagrees_since) = (None, None);
        self.forget_answered(now);
        self.found_at = (!self.sent.is_empty()).then_some(now + PAUSE);
    }

    fn forget_answered(&mut self, now: Instant) {
        let trip = self.round_trip.expectation();
        while self
            .sent
            .front()
            .is_some_and(|first| first.key != Key::Other && now.saturating_duration_since(first.at) >= trip)
        {
            self.sent.pop_front();
        }
    }

    /// Output is silent: keys in flight will show from the cursor on.
    fn find_line(&mut self, now: Instant) {
        self.found_at = None;
        self.forget_answered(now);
        let Some(truth) = &self.truth else { return };
        let is_ready = truth.can_draw() && self.sent.front().is_some_and(|first| first.key != Key::Other);
        if self.line.is_some() || !is_ready {
            return;
        }
        let mut line = TypedLine::at_cursor(truth);
        for sent in &mut self.sent {
            if sent.key == Key::Other {
                break;
            }
            *sent = expect_key(Some(&mut line), sent.key, truth, sent.at);
        }
        self.line = Some(line);
    }

    /// Brings the overlay to what is expected now.
    fn draw(&mut self, now: Instant) -> Vec<u8> {
        let wanted = self.overlay(now);
        let Some(truth) = &self.truth else {
            return Vec::new();
        };
        if wanted == self.drawn {
            return Vec::new();
        }
        let bytes = redraw(truth, self.drawn.as_ref(), wanted.as_ref());
        self.drawn = wanted;
        bytes
    }

    fn overlay(&self, now: Instant) -> Option<Overlay> {
        let truth = self.truth.as_ref()?;
        let line = self.line.as_ref()?;
        let (row, column) = truth.cursor();
        let first = self.sent.front().filter(|first| first.key != Key::Other)?;
        if !self.is_confirmed || !self.round_trip.is_far || row != line.row || !truth.can_draw() {
            return None;
        }
        let is_late = now.saturating_duration_since(first.at) >= self.late();
        let mut cells: Vec<(usize, char, truth::Style)> = Vec::new();
        for (column, character, known) in line.differences(truth) {
            // A row that the program is drawing anew.
            if !truth.can_restore(row, column) {
                return None;
            }
            // As what is left of it: programs colour a word, and each in its own way.
            let left = cells
                .last()
                .filter(|left| left.0 + 1 == column)
                .map(|left| left.2);
            let mut style = match (known, left) {
                (Some(style), _) | (None, Some(style)) => style,
                _ if character == ' ' => truth.pen(),
                _ if column > line.start => truth.style(row, column - 1),
                _ => truth.pen(),
            };
            if is_late && known.is_none() {
                style.flags.insert(LATE);
            }
            cells.push((column, character, style));
        }
        let cursor = line.start + line.expected.cursor;
        (!cells.is_empty() || cursor != column).then_some(Overlay {
            cells,
            cursor,
            is_late,
        })
    }
}

const LATE: alacritty_terminal::term::cell::Flags = alacritty_terminal::term::cell::Flags::UNDERLINE;

/// A key that goes into `line`, or [`Key::Other`] where it cannot be guessed what it does; without a line that is seen later.
fn expect_key(line: Option<&mut TypedLine>, key: Key, truth: &Truth, at: Instant) -> Sent {
    let proves = match line {
        None => Some(false),
        Some(_) if key == Key::Other => Some(false),
        Some(line) => line.expect(key, truth),
    };
    Sent {
        at,
        key: if proves.is_some() { key } else { Key::Other },
        proves: proves.unwrap_or(false),
    }
}

/// The time that an echo takes.
#[derive(Debug)]
struct RoundTrip {
    mode: Mode,
    smoothed: Option<Duration>,
    /// That is of echoes, and not of TCP, whose peer may be a proxy.
    is_measured: bool,
    /// The mean deviation of measurements from it (RFC 6298).
    varies_by: Duration,
    /// About the shortest: one that a busy machine has made long is corrected by the next echo.
    shortest: Duration,
    is_far: bool,
    /// Of a near host: when a key was sent that output has not followed.
    asked: Option<Instant>,
    /// The number of consecutive echoes that took as long as a far host's, or did not.
    far_in_a_row: u32,
    near_in_a_row: u32,
}

/// So many echoes tell a near host from a far one.
const TELLING: u32 = 8;

impl RoundTrip {
    fn new(mode: Mode, known: Option<Duration>) -> Self {
        let mut new = Self {
            mode,
            smoothed: known,
            is_measured: false,
            varies_by: known.unwrap_or_default() / 4,
            shortest: known.unwrap_or_default(),
            is_far: false,
            asked: None,
            far_in_a_row: 0,
            near_in_a_row: 0,
        };
        new.decide();
        new
    }

    fn decide(&mut self) {
        self.is_far = match (self.mode, self.smoothed) {
            (Mode::Always, _) => true,
            (Mode::Adaptive, Some(smoothed)) => smoothed >= if self.is_far { NEAR } else { FAR },
            (Mode::Adaptive, None) => false,
        };
    }

    fn record(&mut self, taken: Duration) {
        match self.smoothed.filter(|_| self.is_measured) {
            None => (self.smoothed, self.varies_by) = (Some(taken), taken / 2),
            Some(smoothed) => {
                self.varies_by = (3 * self.varies_by + smoothed.abs_diff(taken)) / 4;
                self.smoothed = Some((7 * smoothed + taken) / 8);
            }
        }
        // A path that becomes longer is followed slowly.
        self.shortest = ((7 * self.shortest + self.expectation().max(self.shortest)) / 8).min(taken);
        self.is_measured = true;
        self.near_in_a_row = if taken >= FAR { 0 } else { self.near_in_a_row + 1 };
        self.decide();
    }

    /// Returns whether the output of a host need not be followed: echoes have shown that it is near.
    fn is_near(&self) -> bool {
        !self.is_far && self.near_in_a_row >= TELLING
    }

    fn expectation(&self) -> Duration {
        match self.smoothed {
            Some(smoothed) if self.is_measured => smoothed,
            // Of a proxy it says too little.
            known => known.unwrap_or_default().max(UNKNOWN_ROUND_TRIP),
        }
    }

    /// No echo comes sooner.
    fn soonest(&self) -> Duration {
        match self.is_measured {
            true => self.shortest * 3 / 4,
            // To a proxy it is shorter.
            false => self.shortest / 2,
        }
    }

    /// Returns the age at which a key without an answer counts as unanswered.
    fn limit(&self) -> Duration {
        self.expectation() + (4 * self.varies_by).max(PAUSE)
    }

    /// A key was sent to a near host.
    fn handle_key(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Output came from a near host. Whether it answers the key is not looked at: so often in a row it is slow only where the
    /// host has become far.
    fn handle_output(&mut self, now: Instant) {
        let Some(asked) = self.asked.take() else { return };
        let taken = now.saturating_duration_since(asked);
        self.far_in_a_row = if taken >= FAR { self.far_in_a_row + 1 } else { 0 };
        if self.far_in_a_row >= TELLING {
            (self.smoothed, self.varies_by) = (Some(taken), taken / 2);
            (self.far_in_a_row, self.near_in_a_row) = (0, 0);
            self.decide();
        }
    }
}

#[cfg(test)]
mod tests;
