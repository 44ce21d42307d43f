//! Two terminals that get the same output, one of them through a predictor; on simulated time.

use std::time::{Duration, Instant};

use alacritty_terminal::event::VoidListener;
use alacritty_terminal::grid::Dimensions;
use alacritty_terminal::index::{Column, Line};
use alacritty_terminal::term::cell::Cell;
use alacritty_terminal::term::{Config, Term};
use alacritty_terminal::vte::ansi::Processor;
use trunkline_predict::{Mode, Predictor, Size};

#[derive(Clone, Copy)]
struct Cells(Size);

impl Dimensions for Cells {
    fn total_lines(&self) -> usize {
        self.0.rows
    }
    fn screen_lines(&self) -> usize {
        self.0.rows
    }
    fn columns(&self) -> usize {
        self.0.columns
    }
}

/// The user's view of the screen.
pub(crate) struct Screen {
    term: Term<VoidListener>,
    parser: Processor,
    size: Size,
    /// The beginning of a character, without its end.
    cut: Vec<u8>,
}

impl Screen {
    /// One on which others have written before, down to `row`.
    pub(crate) fn with_used_rows(size: Size, row: usize) -> Self {
        let config = Config {
            scrolling_history: 0,
            ..Config::default()
        };
        let mut screen = Self {
            term: Term::new(config, &Cells(size), VoidListener),
            parser: Processor::new(),
            size,
            cut: Vec::new(),
        };
        for line in 0..row {
            screen.feed(format!("what stood in row {line} before\r\n").as_bytes());
        }
        screen
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        // This emulator loses the first of two characters that are both cut, where a terminal does not: it gets them whole.
        self.cut.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.cut) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.cut.len(),
        };
        self.parser.advance(&mut self.term, &self.cut[..whole]);
        self.cut.drain(..whole);
    }

    pub(crate) fn resize(&mut self, size: Size) {
        self.size = size;
        self.term.resize(Cells(size));
    }

    pub(crate) fn cell(&self, row: usize, column: usize) -> &Cell {
        &self.term.grid()[Line(i32::try_from(row).unwrap())][Column(column)]
    }

    pub(crate) fn cursor(&self) -> (i32, usize, bool) {
        let cursor = &self.term.grid().cursor;
        (
            cursor.point.line.0,
            cursor.point.column.0,
            cursor.input_needs_wrap,
        )
    }

    /// The cells in which two screens differ: row, column.
    fn differences(&self, other: &Self) -> Vec<(usize, usize)> {
        let all = (0..self.size.rows).flat_map(|row| (0..self.size.columns).map(move |column| (row, column)));
        all.filter(|&(row, column)| self.cell(row, column) != other.cell(row, column))
            .collect()
    }

    pub(crate) fn text(&self) -> String {
        let rows = (0..self.size.rows).map(|row| {
            let row: String = (0..self.size.columns)
                .map(|column| self.cell(row, column).c)
                .collect();
            row.trim_end().to_owned()
        });
        rows.collect::<Vec<_>>().join("\n")
    }
}

/// A character that stood on the user's screen and not on the other one.
struct Guess {
    at: (usize, usize),
    character: char,
    since: Instant,
    /// The time at which it was taken away.
    until: Option<Instant>,
}

/// Observations during a session.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) keys: usize,
    pub(crate) shown_at_once: usize,
    pub(crate) right: usize,
    pub(crate) wrong: Vec<(char, Duration)>,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    predictor: Predictor,
    pub(crate) user: Screen,
    pub(crate) plain: Screen,
    guesses: Vec<Guess>,
    pub(crate) seen: Seen,
}

impl World {
    pub(crate) fn new(size: Size, row: usize, round_trip: Duration) -> Self {
        Self {
            now: Instant::now(),
            predictor: Predictor::new(Mode::Always, size, Some(round_trip)),
            user: Screen::with_used_rows(size, row),
            plain: Screen::with_used_rows(size, row),
            guesses: Vec::new(),
            seen: Seen::default(),
        }
    }

    pub(crate) fn output(&mut self, bytes: &[u8]) {
        let (before, after) = self.predictor.output(bytes, self.now);
        self.user.feed(&before);
        assert_same(&self.user, &self.plain, "what the server's bytes meet");
        self.user.feed(bytes);
        self.plain.feed(bytes);
        self.user.feed(&after);
        self.look();
    }

    pub(crate) fn type_bytes(&mut self, bytes: &[u8]) {
        let shown = self.predictor.handle_input(bytes, self.now);
        self.user.feed(&shown);
        self.seen.keys += 1;
        self.seen.shown_at_once += usize::from(!shown.is_empty());
        self.look_after(true);
    }

    pub(crate) fn resize(&mut self, size: Size) {
        self.user.resize(size);
        self.plain.resize(size);
        let bytes = self.predictor.handle_resize(size, self.now);
        self.user.feed(&bytes);
        self.guesses.clear();
        self.look();
    }

    /// Lets time pass.
    pub(crate) fn advance_to(&mut self, then: Instant) {
        while let Some(deadline) = self.predictor.deadline().filter(|deadline| *deadline <= then) {
            self.now = self.now.max(deadline);
            let bytes = self.predictor.timed_out(self.now);
            self.user.feed(&bytes);
            self.look();
            assert_ne!(
                self.predictor.deadline(),
                Some(deadline),
                "a deadline that passes"
            );
        }
        self.now = self.now.max(then);
    }

    /// All output has arrived, and all time-outs have passed.
    pub(crate) fn end(&mut self) {
        self.advance_to(self.now + Duration::from_secs(3600));
        assert_eq!(self.predictor.deadline(), None, "nothing is waited for");
        assert_same(&self.user, &self.plain, "the screen in the end");
        self.look();
    }

    /// Returns whether anything is on the user's screen that the server has not sent.
    pub(crate) fn guesses_are_shown(&self) -> bool {
        self.guesses.iter().any(|guess| guess.until.is_none())
    }

    fn look(&mut self) {
        self.look_after(false);
    }

    /// A guess that the next key takes away was none that could be right or wrong.
    fn look_after(&mut self, is_typed: bool) {
        let differences = self.user.differences(&self.plain);
        for &at in &differences {
            let character = self.user.cell(at.0, at.1).c;
            let is_known = |guess: &&mut Guess| guess.at == at && guess.character == character;
            match self.guesses.iter_mut().find(is_known) {
                Some(guess) => guess.until = None,
                None => self.guesses.push(Guess {
                    at,
                    character,
                    since: self.now,
                    until: None,
                }),
            }
        }
        let (user, plain, now, seen) = (&self.user, &self.plain, self.now, &mut self.seen);
        self.guesses.retain_mut(|guess| {
            let (row, column) = guess.at;
            let is_there = |screen: &Screen| screen.cell(row, column).c == guess.character;
            if is_there(plain) {
                seen.right += 1;
                return false;
            }
            if is_typed && !is_there(user) {
                return false;
            }
            if !is_there(user) {
                // An echo that comes in pieces hides it for a moment.
                let since = *guess.until.get_or_insert(now);
                if now - since > Duration::from_millis(100) {
                    seen.wrong.push((guess.character, since - guess.since));
                    return false;
                }
            }
            true
        });
    }
}

#[track_caller]
fn assert_same(user: &Screen, plain: &Screen, what: &str) {
    let differences = user.differences(plain);
    assert!(
        differences.is_empty() && user.cursor() == plain.cursor(),
        "{what}: cells {:?}, cursors {:?} and {:?}\n{}\n-- and without prediction\n{}",
        differences
            .iter()
            .map(|&(row, column)| (row, column, user.cell(row, column), plain.cell(row, column)))
            .collect::<Vec<_>>(),
        user.cursor(),
        plain.cursor(),
        user.text(),
        plain.text()
    );
}
