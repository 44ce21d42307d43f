//! The line that is typed in: what it holds for certain, and what it will hold once all keys in flight are answered.

use crate::keys::Key;
use crate::truth::Truth;

/// The typed text of a line, and the cursor's place in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Typed {
    pub(crate) characters: Vec<char>,
    pub(crate) cursor: usize,
}

impl Typed {
    /// Applies a key to it. Anything but typed characters is out of reach: `false`, and nothing is changed.
    pub(crate) fn apply(&mut self, key: Key) -> bool {
        match key {
            Key::Character(character) => {
                self.characters.insert(self.cursor, character);
                self.cursor += 1;
            }
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.characters.remove(self.cursor);
            }
            Key::Left if self.cursor > 0 => self.cursor -= 1,
            Key::Right if self.cursor < self.characters.len() => self.cursor += 1,
            _ => return false,
        }
        true
    }
}

/// A line on the screen.
#[derive(Debug)]
pub(crate) struct TypedLine {
    pub(crate) row: usize,
    /// The column of the first typed character.
    pub(crate) start: usize,
    /// The text in front of it.
    before: Vec<char>,
    /// The part that output has confirmed.
    pub(crate) confirmed: Typed,
    /// After all keys in flight.
    pub(crate) expected: Typed,
    /// The most characters it has had since it was all confirmed.
    longest: usize,
}

impl TypedLine {
    /// One that begins at the cursor.
    pub(crate) fn at_cursor(truth: &Truth) -> Self {
        let (row, start) = truth.cursor();
        Self {
            row,
            start,
            before: (0..start).map(|column| truth.character(row, column)).collect(),
            confirmed: Typed::default(),
            expected: Typed::default(),
            longest: 0,
        }
    }

    /// Returns whether the cursor's row is this line still, whatever was typed in it.
    pub(crate) fn stands(&self, truth: &Truth) -> bool {
        let before = (0..self.start).map(|column| truth.character(self.row, column));
        truth.cursor().0 == self.row && before.eq(self.before.iter().copied())
    }

    /// Returns whether the screen shows it so.
    pub(crate) fn shows(&self, typed: &Typed, truth: &Truth) -> bool {
        let shown = (self.start..).map(|column| truth.character(self.row, column));
        truth.cursor() == (self.row, self.start + typed.cursor)
            && shown.zip(&typed.characters).all(|(shown, &typed)| shown == typed)
            && self.stands(truth)
    }

    /// Guesses what one more key does: `None` if that is not to be guessed, else whether its echo would prove anything.
    pub(crate) fn expect(&mut self, key: Key, truth: &Truth) -> Option<bool> {
        let mut next = self.expected.clone();
        if !next.apply(key) {
            return None;
        }
        // In the last column programs differ: they wrap, scroll sideways, or mark the line as continued.
        let limit = truth
            .columns()
            .saturating_sub(1 + truth.doubtful_columns(self.row));
        let is_within = self.start + next.characters.len() <= limit;
        let last = next.characters.len().max(self.expected.characters.len());
        let columns = self.start + self.expected.cursor.min(next.cursor)..self.start + last;
        if !is_within || !columns.clone().all(|column| truth.can_restore(self.row, column)) {
            return None;
        }
        let proves = match key {
            Key::Character(character) => self.expected_character(self.expected.cursor, truth) != character,
            _ => false,
        };
        self.longest = self.longest.max(last);
        self.expected = next;
        Some(proves)
    }

    /// Returns the character that is expected there before the next key.
    fn expected_character(&self, at: usize, truth: &Truth) -> char {
        match self.expected.characters.get(at) {
            Some(&character) => character,
            None => truth.character(self.row, self.start + at),
        }
    }

    /// Output has confirmed this much.
    pub(crate) fn confirm(&mut self, typed: Typed) {
        if typed == self.expected {
            self.longest = typed.characters.len();
        }
        self.confirmed = typed;
    }

    /// The cells that differ from what the screen shows, as columns and characters.
    pub(crate) fn differences(&self, truth: &Truth) -> Vec<(usize, char)> {
        // Where characters were taken away nothing is known, but that they go.
        let taken = self.longest.saturating_sub(self.expected.characters.len());
        let characters = self.expected.characters.iter().copied();
        (self.start..)
            .zip(characters.chain(std::iter::repeat_n(' ', taken)))
            .filter(|&(column, character)| truth.character(self.row, column) != character)
            .collect()
    }
}
