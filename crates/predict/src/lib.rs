//! Predicts the echo of typed keys before the server answers. The screen is always *truth plus overlay*.
//!
//! The truth is the terminal as the server's bytes leave it; the overlay holds the changes that the keys in flight
//! should make to the typed line. A [`Predictor`] stands between a session and the user's terminal and does no I/O: it
//! takes bytes and the time, and returns the bytes for the terminal. Without a prediction, these are the server's, byte
//! for byte.
//!
//! The predictor takes the overlay back before it passes on the server's bytes, and draws the rest of it again after
//! them. So every byte of the server meets the same screen as without prediction.
//!
//! The rules for guessing are mosh's ("Mosh: An Interactive Remote Shell for Mobile Clients", 2012, §3.2), applied to a
//! server that does not say which keys it has seen: see `docs/adr/0025-predictive-echo.md`.

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

/// The time after which a program that never pauses is judged.
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// The round-trip time from which the adaptive mode shows keys before their echo; it stops below [`NEAR`]. mosh's 20
/// and 10 ms are about half, because it compares them with half of its measurement.
const FAR: Duration = Duration::from_millis(40);
const NEAR: Duration = Duration::from_millis(30);

/// The minimum time that an unanswered guess stays, and that the predictor waits for keys in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most keys in flight that are kept. Nobody types into a stalled connection for long.
const MOST_KEYS: usize = 256;

/// The round-trip time that is assumed until an echo has been measured.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(250);

/// The policy for showing keys before their echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Keys are shown while the round-trip time is 40 ms or more.
    #[default]
    Adaptive,
    /// Keys are always shown.
    Always,
}

/// A key that was sent, without an echo so far.
#[derive(Debug)]
struct Sent {
    at: Instant,
    key: Key,
    /// Its echo would show that the program echoes keys.
    proves: bool,
}

/// Stands between a session's output, the typed keys and the user's terminal.
///
/// - Input: [`output`](Self::output), [`handle_input`](Self::handle_input), [`handle_resize`](Self::handle_resize),
///   [`timed_out`](Self::timed_out). Each returns the bytes to write to the terminal, in this order.
/// - Before another program writes to the terminal: [`set_aside`](Self::set_aside).
/// - [`deadline`](Self::deadline): the time to call `timed_out`, unless another call comes first; nearly always `None`,
///   because nothing is predicted.
#[derive(Debug)]
pub struct Predictor {
    truth: Option<Truth>,
    size: Size,
    keyboard: Keyboard,
    /// The keys in flight, in order. Those before the first [`Key::Other`] go into `line`.
    sent: VecDeque<Sent>,
    line: Option<TypedLine>,
    /// A key since the last [`Key::Other`] was echoed, so the rest may be shown.
    is_confirmed: bool,
    drawn: Option<Overlay>,
    round_trip: RoundTrip,
    /// The time at which output that agrees with no guess is judged, and the time since when it disagrees.
    judged_at: Option<Instant>,
    disagrees_since: Option<Instant>,
    /// The time at which the predictor searches for the line of the keys in flight.
    found_at: Option<Instant>,
}

impl Predictor {
    /// Makes a predictor for a new session. `round_trip` is the connection's, if it is known.
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

    /// Begins to follow the output, if that is useful.
    fn follow(&mut self) {
        if self.truth.is_none() && !self.round_trip.is_near() && self.size.is_usable() {
            self.truth = Some(Truth::new(self.size));
        }
    }

    /// Stops following the output, if that is useless.
    fn leave(&mut self) {
        if self.round_trip.is_near() && self.drawn.is_none() {
            self.truth = None;
            self.line = None;
            self.sent.clear();
            (self.judged_at, self.disagrees_since, self.found_at) = (None, None, None);
        }
    }

    /// Takes the server's bytes. Returns the bytes for the terminal before `bytes` and after them.
    #[must_use]
    pub fn output(&mut self, bytes: &[u8], now: Instant) -> (Vec<u8>, Vec<u8>) {
        let Some(truth) = &mut self.truth else {
            self.round_trip.handle_output(now);
            self.follow();
            // The cursor's column is unknown now.
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

    /// Takes the user's input as it was sent.
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

    /// Handles a new size of the terminal.
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

    /// Takes the overlay back, because another program is about to write to the terminal.
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

    /// Returns the time to call [`timed_out`](Self::timed_out).
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

    /// Handles the passing of the [`deadline`](Self::deadline).
    #[must_use]
    pub fn timed_out(&mut self, now: Instant) -> Vec<u8> {
        let has_passed = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if has_passed(self.judged_at) {
            self.give_up(now);
            self.found_at = Some(now);
        }
        // Some control keys and some unguessed keys have no answer.
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

    /// Returns the time at which the wait for a key ends.
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

    /// Returns four round trips. The keys are underlined from the third on.
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

    /// Compares new output with the guesses.
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
        // The screen shows the last state whose keys could have been answered by now, else the first.
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
            // A deleted character may have been another one, such as a star for a secret.
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

    /// Ends the line, after the control key at `end` or without one.
    fn pass(&mut self, end: Option<usize>, now: Instant) {
        if let Some(end) = end {
            self.sent.drain(..=end);
        }
        self.give_up(now);
    }

    /// Takes all guesses back. Keys in flight for long enough count as answered; the others wait for their line.
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

    /// Handles silence of the output: the keys in flight will show from the cursor on.
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

    /// Updates the overlay to the expected state.
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
            // The program is redrawing this row.
            if !truth.can_restore(row, column) {
                return None;
            }
            // The character takes the style of its left neighbour, because programs colour words in their own ways.
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

/// Adds a key to `line`. Makes it [`Key::Other`] if its effect cannot be guessed; without a line that is decided later.
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
    /// `smoothed` comes from echoes, not from TCP, whose peer may be a proxy.
    is_measured: bool,
    /// The mean deviation of the measurements from `smoothed` (RFC 6298).
    varies_by: Duration,
    /// About the shortest time. The next echo corrects it after a busy machine has raised it.
    shortest: Duration,
    is_far: bool,
    /// For a near host: the time of a key that no output has followed.
    asked: Option<Instant>,
    /// The number of consecutive echoes that took as long as a far host's, or less.
    far_in_a_row: u32,
    near_in_a_row: u32,
}

/// The number of echoes that tell a near host from a far one.
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
        // The shortest time follows a longer path only slowly.
        self.shortest = ((7 * self.shortest + self.expectation().max(self.shortest)) / 8).min(taken);
        self.is_measured = true;
        self.near_in_a_row = if taken >= FAR { 0 } else { self.near_in_a_row + 1 };
        self.decide();
    }

    /// Returns whether echoes have shown that the host is near, so that its output need not be followed.
    fn is_near(&self) -> bool {
        !self.is_far && self.near_in_a_row >= TELLING
    }

    fn expectation(&self) -> Duration {
        match self.smoothed {
            Some(smoothed) if self.is_measured => smoothed,
            // For a proxy this time is too short.
            known => known.unwrap_or_default().max(UNKNOWN_ROUND_TRIP),
        }
    }

    /// Returns the least time for an echo.
    fn soonest(&self) -> Duration {
        match self.is_measured {
            true => self.shortest * 3 / 4,
            // The time to a proxy is shorter.
            false => self.shortest / 2,
        }
    }

    /// Returns the age at which a key without an answer counts as unanswered.
    fn limit(&self) -> Duration {
        self.expectation() + (4 * self.varies_by).max(PAUSE)
    }

    /// Notes a key for a near host.
    fn handle_key(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Measures output of a near host, even if it does not answer the key: it is late so often in a row only if the
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
