//! The typed line: the text that is certain, and the text once all keys in flight are answered.

use crate::keys::Key;
use crate::truth::{Glyph, Style, Truth};

/// The typed text of a line, and the cursor's place in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Typed {
    pub(crate) characters: Vec<char>,
    pub(crate) cursor: usize,
}

impl Typed {
    /// Applies a key. Returns `false`, without a change, if the key would reach beyond the typed characters.
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

/// Returns the number of equal characters at the beginning of both.
fn count_same(old: &[Glyph], new: &[Glyph]) -> usize {
    old.iter()
        .zip(new)
        .take_while(|(old, new)| old.0 == new.0)
        .count()
}

/// A line on the screen.
#[derive(Debug)]
pub(crate) struct TypedLine {
    pub(crate) row: usize,
    /// The column of the first typed character.
    pub(crate) start: usize,
    /// The text in front of the typed characters.
    before: Vec<char>,
    /// The part that output has confirmed.
    pub(crate) confirmed: Typed,
    /// The text after all keys in flight.
    pub(crate) expected: Typed,
    /// The most characters since everything was confirmed.
    longest: usize,
    behind: Behind,
}

/// The cells right of the typed characters, as of the last confirmation by output.
#[derive(Debug, Default)]
struct Behind {
    glyphs: Vec<Glyph>,
    /// The number of these cells that move with the typed characters. None do until an echo has shown it, because a
    /// suggestion stays in place and is overwritten.
    moving: usize,
    /// The number of blank cells between the moving cells and text that stays in place, such as a right prompt.
    room: usize,
}

impl Behind {
    fn read(truth: &Truth, row: usize, column: usize) -> Self {
        Self {
            glyphs: truth.glyphs_from(row, column),
            ..Self::default()
        }
    }

    /// Returns the cells after an echo that made the typed text `by` characters longer.
    fn follow(&self, by: isize, truth: &Truth, row: usize, column: usize) -> Self {
        let mut new = Self::read(truth, row, column);
        let kept = count_same(&self.glyphs, &new.glyphs);
        let moved = self.glyphs[..kept]
            .iter()
            .rposition(|glyph| glyph.0 != ' ')
            .map_or(0, |at| at + 1);
        let (longer, shorter) = (by.max(0).unsigned_abs(), by.min(0).unsigned_abs());
        let in_place = [self.glyphs.get(longer..), new.glyphs.get(shorter..)].map(Option::unwrap_or_default);
        let stayed = count_same(in_place[0], in_place[1]) == in_place[0].len().min(in_place[1].len());
        new.moving = match by {
            0 if moved < self.moving => 0,
            0 => self.moving,
            _ if stayed => 0,
            _ => moved,
        };
        new.room = new.glyphs[new.moving..]
            .iter()
            .take_while(|glyph| glyph.0 == ' ')
            .count();
        new
    }
}

impl TypedLine {
    /// Makes a line that begins at the cursor.
    pub(crate) fn at_cursor(truth: &Truth) -> Self {
        let (row, start) = truth.cursor();
        Self {
            row,
            start,
            before: (0..start).map(|column| truth.character(row, column)).collect(),
            confirmed: Typed::default(),
            expected: Typed::default(),
            longest: 0,
            behind: Behind::read(truth, row, start),
        }
    }

    /// Returns whether the cursor is still in this line, whatever was typed in it.
    pub(crate) fn stands(&self, truth: &Truth) -> bool {
        let before = (0..self.start).map(|column| truth.character(self.row, column));
        truth.cursor().0 == self.row && before.eq(self.before.iter().copied())
    }

    /// Returns whether the cursor's row begins with the text that stays visible until all `keys` are answered.
    pub(crate) fn is_there(&self, keys: impl Iterator<Item = Key>, truth: &Truth) -> bool {
        let mut typed = self.confirmed.clone();
        let mut sure = typed.characters.clone();
        for key in keys {
            typed.apply(key);
            let same = sure
                .iter()
                .zip(&typed.characters)
                .take_while(|(a, b)| a == b)
                .count();
            sure.truncate(same);
        }
        let shown = (self.start..).map(|column| truth.character(self.row, column));
        self.stands(truth)
            && self.start + sure.len() > 0
            && shown.zip(&sure).all(|(shown, &sure)| shown == sure)
    }

    /// Returns whether the screen shows `typed`.
    pub(crate) fn shows(&self, typed: &Typed, truth: &Truth) -> bool {
        let shown = (self.start..).map(|column| truth.character(self.row, column));
        truth.cursor() == (self.row, self.start + typed.cursor)
            && shown.zip(&typed.characters).all(|(shown, &typed)| shown == typed)
            && self.stands(truth)
    }

    /// Guesses the effect of a key. Returns `None` if it cannot, else whether the key's echo would prove anything.
    pub(crate) fn expect(&mut self, key: Key, truth: &Truth) -> Option<bool> {
        let mut next = self.expected.clone();
        if !next.apply(key) {
            return None;
        }
        let is_within = self.start + next.characters.len() <= self.limit(truth);
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

    /// Returns the character that is expected at `at` before the next key.
    fn expected_character(&self, at: usize, truth: &Truth) -> char {
        match self.expected.characters.get(at) {
            Some(&character) => character,
            None => truth.character(self.row, self.start + at),
        }
    }

    /// Notes that output has confirmed `typed`; `is_all` if no key of the line is in flight.
    pub(crate) fn confirm(&mut self, typed: Typed, is_all: bool, truth: &Truth) {
        if is_all {
            self.longest = typed.characters.len();
        }
        let (was, is) = (self.confirmed.characters.len(), typed.characters.len());
        let by = is.cast_signed() - was.cast_signed();
        self.behind = self.behind.follow(by, truth, self.row, self.start + is);
        self.confirmed = typed;
    }

    /// Returns the cells that differ from the screen: columns, characters, and known styles.
    pub(crate) fn differences(&self, truth: &Truth) -> Vec<(usize, char, Option<Style>)> {
        let typed = self
            .expected
            .characters
            .iter()
            .map(|&character| (character, None));
        let moving = self.behind.glyphs.iter().take(self.behind.moving);
        let moving = moving.map(|&(character, style)| (character, Some(style)));
        // Deleted characters leave blanks; in a full row other text may move in.
        let had = match self.behind.moving {
            0 => self.longest,
            _ if self.behind.room == 0 => 0,
            _ => self.confirmed.characters.len(),
        };
        let taken = had.saturating_sub(self.expected.characters.len());
        let end = match self.behind.moving {
            0 => truth.columns(),
            moving => (self.start + self.confirmed.characters.len() + moving + self.behind.room)
                .min(self.limit(truth)),
        };
        (self.start..end)
            .zip(typed.chain(moving).chain(std::iter::repeat_n((' ', None), taken)))
            .filter(|&(column, (character, style))| {
                truth.character(self.row, column) != character
                    || style.is_some_and(|style| truth.style(self.row, column) != style)
            })
            .map(|(column, (character, style))| (column, character, style))
            .collect()
    }

    /// Returns the column from which nothing is drawn. In the last column programs differ: they wrap, scroll sideways,
    /// or mark the line as continued.
    fn limit(&self, truth: &Truth) -> usize {
        truth
            .columns()
            .saturating_sub(1 + truth.doubtful_columns(self.row))
    }
}
