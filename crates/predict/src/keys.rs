//! The user's keys, as far as their echo can be guessed.

use unicode_width::UnicodeWidthChar as _;

/// The most bytes of one piece that count as typed. More is a paste, which programs answer in their own ways.
const PASTE: usize = 64;

/// The expected effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// Appears itself.
    Character(char),
    /// Removes the character left of the cursor.
    Backspace,
    Left,
    Right,
    /// Has an unknown effect: Enter, Tab, control and function keys, the mouse, pastes.
    Other,
    /// Is no key, but the terminal's own answer or a report of its focus.
    Report,
}

/// Splits typed bytes into keys, across the borders of reads.
#[derive(Debug, Default)]
pub(crate) struct Keyboard {
    /// The input is in the string of an answer, before its terminator.
    in_string: bool,
    in_paste: bool,
}

impl Keyboard {
    /// Returns the keys of one piece of input.
    pub(crate) fn keys(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut rest = bytes;
        while let Some((key, length)) = self.next(rest) {
            let again = key == Key::Other && keys.last() == Some(&Key::Other);
            if !again {
                keys.push(key);
            }
            rest = &rest[length..];
        }
        let typed = keys.iter().filter(|key| matches!(key, Key::Character(_))).count();
        if typed > PASTE {
            return vec![Key::Other];
        }
        keys
    }

    /// Returns the first key and its number of bytes.
    fn next(&mut self, bytes: &[u8]) -> Option<(Key, usize)> {
        let first = *bytes.first()?;
        if self.in_string {
            let end = bytes.windows(2).position(|two| two == b"\x1b\\").map(|at| at + 2);
            let bell = bytes.iter().position(|&byte| byte == 0x07).map(|at| at + 1);
            let end = end.into_iter().chain(bell).min();
            self.in_string = end.is_none();
            return Some((Key::Report, end.unwrap_or(bytes.len())));
        }
        if self.in_paste {
            const END: &[u8] = b"\x1b[201~";
            let end = bytes.windows(END.len()).position(|part| part == END);
            self.in_paste = end.is_none();
            return Some((Key::Other, end.map_or(bytes.len(), |at| at + END.len())));
        }
        match first {
            0x1b => Some(self.sequence(bytes)),
            0x7f => Some((Key::Backspace, 1)),
            b' '..=b'~' => Some((Key::Character(char::from(first)), 1)),
            0..0x80 => Some((Key::Other, 1)),
            _ => Some(character(bytes)),
        }
    }

    fn sequence(&mut self, bytes: &[u8]) -> (Key, usize) {
        match bytes {
            [_, b'P' | b']' | b'_' | b'^', rest @ ..] => {
                self.in_string = true;
                let string = self.next(rest).map_or(0, |(_, length)| length);
                (Key::Report, 2 + string)
            }
            [_, b'O', b'D', ..] => (Key::Left, 3),
            [_, b'O', b'C', ..] => (Key::Right, 3),
            [_, b'O', _, ..] => (Key::Other, 3),
            [_, b'[', body @ ..] => {
                let Some(end) = body.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
                    return (Key::Other, bytes.len());
                };
                let key = match &body[..=end] {
                    b"D" => Key::Left,
                    b"C" => Key::Right,
                    b"I" | b"O" => Key::Report,
                    b"200~" => {
                        self.in_paste = true;
                        Key::Other
                    }
                    // Answers to DA, DECRQM, and to queries of the keyboard mode.
                    [b'?' | b'>' | b'=', .., b'c' | b'y' | b'u' | b'n'] => Key::Report,
                    _ => Key::Other,
                };
                // An old mouse report has three more bytes.
                let more = if &body[..=end] == b"M" { 3 } else { 0 };
                (key, (2 + end + 1 + more).min(bytes.len()))
            }
            // Alt and a key.
            [_, _, ..] => (Key::Other, 2),
            _ => (Key::Other, 1),
        }
    }
}

/// Decodes a character of several bytes. Only a character that takes one column on all terminals is guessed.
fn character(bytes: &[u8]) -> (Key, usize) {
    let length = match bytes[0] {
        0xf0.. => 4,
        0xe0.. => 3,
        _ => 2,
    };
    let text = bytes
        .get(..length)
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
    match text.and_then(|text| text.chars().next()) {
        Some(one) if one.width() == Some(1) && one.width_cjk() == Some(1) && !is_joined(one) => {
            (Key::Character(one), length)
        }
        Some(_) => (Key::Other, length),
        None => (Key::Other, 1),
    }
}

/// Returns whether the next character may change this one's look, as in scripts with ligatures or from right to left.
fn is_joined(character: char) -> bool {
    !matches!(character, '\u{a1}'..='\u{2ff}' | '\u{370}'..='\u{52f}' | '\u{1e00}'..='\u{20cf}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pieces: &[&str]) -> Vec<Key> {
        let mut keyboard = Keyboard::default();
        pieces
            .iter()
            .flat_map(|piece| keyboard.keys(piece.as_bytes()))
            .collect()
    }

    #[test]
    fn keys_are_told_apart() {
        use Key::{Backspace, Character, Left, Other, Report, Right};
        assert_eq!(
            keys(&["a\x7f\x1b[D\x1bOD\x1b[C\x1bOC\r"]),
            [Character('a'), Backspace, Left, Left, Right, Right, Other]
        );
        assert_eq!(keys(&["\x1b[A", "\x1b[3~", "\x1bb", "\x1b"]), [Other; 4]);
        assert_eq!(
            keys(&["\x1b[?64;1;2c", "\x1b[I", "\x1b]11;rgb:ffff", "/ffff\x07", "x"]),
            [Report, Report, Report, Report, Character('x')]
        );
        assert_eq!(keys(&["\x1bP>|XTerm(412)\x1b\\y"]), [Report, Character('y')]);
        assert_eq!(
            keys(&["\x1b[200~ls", " -l\r", "x\x1b[201~y"]),
            [Other, Other, Other, Character('y')]
        );
        assert_eq!(keys(&["\x1b[M abx"]), [Other, Character('x')]);
    }

    #[test]
    fn only_characters_of_one_column_are_guessed() {
        use Key::{Character, Other};
        assert_eq!(keys(&["é"]), [Character('é')]);
        assert_eq!(keys(&["漢"]), [Other]);
        assert_eq!(keys(&["\u{301}"]), [Other]);
        assert_eq!(keys(&["🙂"]), [Other]);
        assert_eq!(keys(&["ش"]), [Other]);
        assert_eq!(keys(&[&"x".repeat(100)]), [Other]);
    }
}
