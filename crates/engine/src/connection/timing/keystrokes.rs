//! ObscureKeystrokeTiming: decides when typed keys are sent, so that an observer of the network cannot tell when they
//! were pressed (clientloop.c, `obfuscate_keystroke_timing`). The time is an argument.
//!
//! The first keystroke is sent at once. During the typing and for a random while after it, something is sent at about
//! equal intervals: the keys typed meanwhile, or chaff that looks like them. Each session does this by itself, without
//! delaying others on its connection.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

/// Chaff is sent for at least this long after the last keystroke, plus a random part of the spread.
const CHAFF_MIN: Duration = Duration::from_millis(1024);
const CHAFF_SPREAD: Duration = Duration::from_millis(2048);
/// The fraction by which intervals vary randomly.
const FUZZ: u32 = 10;
/// A person does not type this many bytes at once: they are sent as they come.
const PASTED: usize = 256;

/// The typing of one session.
#[derive(Debug)]
pub(crate) struct Keystrokes {
    interval: Duration,
    /// Returns a random part of a duration.
    random: fn(Duration) -> Duration,
    typing: Option<Typing>,
    /// Keys that wait for the next interval.
    held: BytesMut,
}

/// Somebody types, or has just typed.
#[derive(Debug)]
struct Typing {
    next: Instant,
    chaff_until: Instant,
    /// The extra length of the intervals during this typing.
    slower: Duration,
}

/// The data or chaff to send now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Nothing,
    Send(Bytes),
    Chaff,
}

impl Keystrokes {
    pub(crate) fn new(interval: Duration) -> Self {
        Self::with_random(interval, random)
    }

    fn with_random(interval: Duration, random: fn(Duration) -> Duration) -> Self {
        Self {
            interval,
            random,
            typing: None,
            held: BytesMut::new(),
        }
    }

    /// Takes typed keys and returns what to send now, when `waiting` bytes have not been sent yet.
    pub(crate) fn hold_keys(&mut self, data: Bytes, waiting: usize, now: Instant) -> Bytes {
        if waiting + self.held.len() + data.len() >= PASTED {
            return self.stop(data);
        }
        let chaff_until = now + CHAFF_MIN + (self.random)(CHAFF_SPREAD);
        match &mut self.typing {
            Some(typing) => {
                typing.chaff_until = chaff_until;
                self.held.extend_from_slice(&data);
                Bytes::new()
            }
            None => {
                let slower = (self.random)(self.interval / FUZZ);
                self.typing = Some(Typing {
                    next: self.next_after(self.interval, slower, now),
                    chaff_until,
                    slower,
                });
                data
            }
        }
    }

    /// Ends the typing, and returns the held keys followed by `data`.
    pub(crate) fn stop(&mut self, data: Bytes) -> Bytes {
        self.typing = None;
        if self.held.is_empty() {
            return data;
        }
        self.held.extend_from_slice(&data);
        self.held.split().freeze()
    }

    /// Returns when to call [`Self::turn`].
    pub(crate) fn due(&self) -> Option<Instant> {
        self.typing.as_ref().map(|typing| typing.next)
    }

    /// Returns what to send at `now`.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        let Some(typing) = self.typing.as_ref().filter(|typing| typing.next <= now) else {
            return Turn::Nothing;
        };
        if self.held.is_empty() && typing.chaff_until <= now {
            self.typing = None;
            return Turn::Nothing;
        }
        // Missed intervals are not made up for, which would show that this side was busy.
        let missed = (now - typing.next).as_nanos() / self.interval.as_nanos().max(1);
        let intervals = u32::try_from(missed + 1).unwrap_or(u32::MAX);
        let next = self.next_after(self.interval.saturating_mul(intervals), typing.slower, now);
        if let Some(typing) = &mut self.typing {
            typing.next = next;
        }
        match self.held.is_empty() {
            true => Turn::Chaff,
            false => Turn::Send(self.held.split().freeze()),
        }
    }

    fn next_after(&self, interval: Duration, slower: Duration, now: Instant) -> Instant {
        let fuzz = interval / FUZZ;
        now + (interval - fuzz) + (self.random)(fuzz) + slower
    }
}

fn random(most: Duration) -> Duration {
    let mut bytes = [0; 4];
    // Without randomness the intervals are equal, which hides as much.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    most.mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(20);

    fn keystrokes() -> Keystrokes {
        Keystrokes::with_random(INTERVAL, |most| most)
    }

    fn key() -> Bytes {
        Bytes::from_static(b"k")
    }

    #[test]
    fn the_first_keystroke_leaves_at_once_and_the_next_at_the_interval() {
        let (mut keystrokes, start) = (keystrokes(), Instant::now());
        assert_eq!(keystrokes.due(), None);
        assert_eq!(keystrokes.hold_keys(key(), 0, start), key());
        let due = keystrokes.due().unwrap();
        for later in [1, 5, 9] {
            let typed = keystrokes.hold_keys(key(), 0, start + Duration::from_millis(later));
            assert!(typed.is_empty());
        }
        assert_eq!(keystrokes.turn(due - Duration::from_nanos(1)), Turn::Nothing);
        assert_eq!(keystrokes.turn(due), Turn::Send(Bytes::from_static(b"kkk")));
        assert!(keystrokes.due().unwrap() > due);
    }

    #[test]
    fn chaff_fills_the_intervals_until_some_time_after_the_last_keystroke() {
        let (mut keystrokes, start) = (keystrokes(), Instant::now());
        let _ = keystrokes.hold_keys(key(), 0, start);
        let mut last = start;
        let mut chaff = 0;
        while let Some(due) = keystrokes.due() {
            match keystrokes.turn(due) {
                Turn::Chaff => chaff += 1,
                Turn::Nothing => assert_eq!(keystrokes.due(), None),
                Turn::Send(data) => panic!("{data:?} was never typed"),
            }
            last = due;
        }
        let longest = CHAFF_MIN + CHAFF_SPREAD;
        assert!(
            (longest..longest + INTERVAL * 2).contains(&(last - start)),
            "{:?}",
            last - start
        );
        // Each interval is a tenth longer: this typing's own rate.
        assert_eq!(chaff, 139);
        // The next typing begins anew.
        assert_eq!(keystrokes.hold_keys(key(), 0, last), key());
    }

    #[test]
    fn intervals_stay_within_their_fuzz() {
        let (mut keystrokes, start) = (Keystrokes::new(INTERVAL), Instant::now());
        let _ = keystrokes.hold_keys(key(), 0, start);
        let mut last = start;
        while let Some(due) = keystrokes.due() {
            let interval = due - last;
            assert!(
                (INTERVAL * 9 / 10..=INTERVAL * 11 / 10).contains(&interval),
                "{interval:?}"
            );
            last = due;
            let _ = keystrokes.turn(due);
        }
        assert!(last - start >= CHAFF_MIN);
    }

    #[test]
    fn a_paste_leaves_as_it_comes_behind_what_was_held() {
        let (mut keystrokes, start) = (keystrokes(), Instant::now());
        let _ = keystrokes.hold_keys(key(), 0, start);
        assert!(keystrokes.hold_keys(key(), 0, start).is_empty());
        let pasted = Bytes::from(vec![b'p'; PASTED]);
        let sent = keystrokes.hold_keys(pasted.clone(), 0, start);
        assert_eq!(sent, [&b"k"[..], &pasted].concat());
        assert_eq!(keystrokes.due(), None);
        assert_eq!(keystrokes.hold_keys(pasted.clone(), 0, start), pasted);
        assert_eq!(keystrokes.due(), None);
    }

    #[test]
    fn nothing_is_held_behind_other_data_nor_behind_a_stop() {
        let (mut keystrokes, start) = (keystrokes(), Instant::now());
        assert_eq!(keystrokes.hold_keys(key(), PASTED, start), key());
        assert_eq!(keystrokes.due(), None);
        let _ = keystrokes.hold_keys(key(), 0, start);
        let _ = keystrokes.hold_keys(key(), 0, start);
        assert_eq!(keystrokes.stop(Bytes::new()), key());
        assert_eq!(keystrokes.stop(Bytes::new()), Bytes::new());
        assert_eq!(keystrokes.turn(start + INTERVAL * 100), Turn::Nothing);
    }

    #[test]
    fn missed_intervals_are_not_made_up_for() {
        let (mut keystrokes, start) = (keystrokes(), Instant::now());
        let _ = keystrokes.hold_keys(key(), 0, start);
        let late = keystrokes.due().unwrap() + INTERVAL * 10;
        assert_eq!(keystrokes.turn(late), Turn::Chaff);
        assert!(keystrokes.due().unwrap() > late + INTERVAL * 9);
    }
}
