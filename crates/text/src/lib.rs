//! [`Printable`]: text that somebody else wrote, fit to be shown; and [`count_of`], for a number of things.
//!
//! Whoever looks at a terminal believes what is on it. A server could move the cursor, rewrite what stands there, answer a
//! question of the terminal's in the user's name, or turn a file's name around (RFC 4251 section 9.2 and RFC 4252 section
//! 5.4 ask for care). All text of a server's that is shown, logged or put in an error goes through this one type.

#![warn(missing_docs)]

use std::fmt::{self, Display, Write as _};
use std::ops::Deref;

/// `1 host`, `2 hosts`: a number of what is one `what`.
///
/// ```
/// assert_eq!(trunkline_text::count_of(0, "host"), "0 hosts");
/// assert_eq!(trunkline_text::count_of(1, "host"), "1 host");
/// ```
pub fn count_of<N: Copy + Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Text without anything that a terminal would act on, and bounded.
///
/// Control characters (C0, DEL and C1) and bytes that are not UTF-8 become `\ooo`, as in OpenSSH (vis(3)); characters that
/// turn the direction of a line, break it or cannot be seen become `\u{…}`. Making it twice changes nothing.
///
/// ```
/// use trunkline_text::Printable;
///
/// assert_eq!(&*Printable::line("a\x1b[2J\nb é"), "a\\033[2J\\012b é");
/// assert_eq!(&*Printable::text(b"one\r\ntwo\xff"), "one\ntwo\\377");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Printable(String);

/// The longest line, in bytes. A list of all of OpenSSH's algorithms has some 600.
const LONGEST_LINE: usize = 4 * 1024;
/// The longest text, in bytes. The longest banner that sshd can send fits in a packet.
const LONGEST_TEXT: usize = 64 * 1024;
/// Replaces the rest of longer text.
const CUT: &str = "…";

impl Printable {
    /// One line: line feeds and tabs are escaped, too.
    pub fn line(text: impl AsRef<[u8]>) -> Self {
        Self::new(text.as_ref(), LONGEST_LINE, false)
    }

    /// One line of so many bytes at most.
    pub fn short_line(text: impl AsRef<[u8]>, longest: usize) -> Self {
        Self::new(text.as_ref(), longest.min(LONGEST_LINE), false)
    }

    /// Text of more than one line: line feeds and tabs stay, and the carriage return in front of a line feed goes.
    pub fn text(text: impl AsRef<[u8]>) -> Self {
        Self::new(text.as_ref(), LONGEST_TEXT, true)
    }

    fn new(text: &[u8], longest: usize, lines: bool) -> Self {
        let mut shown = String::with_capacity(text.len().min(longest));
        for piece in text.utf8_chunks() {
            let mut chars = piece.valid().chars().peekable();
            while let Some(c) = chars.next() {
                match c {
                    '\n' | '\t' if lines => shown.push(c),
                    '\r' if lines && chars.peek() == Some(&'\n') => {}
                    c if c.is_control() => octal(&mut shown, u32::from(c)),
                    c if misleads(c) => shown.extend(c.escape_unicode()),
                    c => shown.push(c),
                }
                if shown.len() > longest {
                    return Self(cut(shown, longest));
                }
            }
            for byte in piece.invalid() {
                octal(&mut shown, u32::from(*byte));
            }
            if shown.len() > longest {
                return Self(cut(shown, longest));
            }
        }
        Self(shown)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text.
    pub fn into_string(self) -> String {
        self.0
    }
}

fn octal(shown: &mut String, value: u32) {
    // Writing to a String cannot fail.
    let _ = write!(shown, "\\{value:03o}");
}

/// Characters that are not control characters, and yet change how the rest of a line looks or where it ends: those of the
/// bidirectional algorithm ("Trojan Source", CVE-2021-42574), Unicode's own line ends, and tags that cannot be seen.
fn misleads(c: char) -> bool {
    matches!(
        c,
        '\u{61c}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

fn cut(mut shown: String, longest: usize) -> String {
    shown.truncate(shown.floor_char_boundary(longest - CUT.len()));
    shown.push_str(CUT);
    shown
}

/// The number of the line, from 1 on, in which the byte at `offset` is: where a mistake in a file is.
pub fn line_number(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

impl Deref for Printable {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Printable {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// As [`Printable::line`].
impl From<&str> for Printable {
    fn from(text: &str) -> Self {
        Self::line(text)
    }
}

/// As [`Printable::line`].
impl From<String> for Printable {
    fn from(text: String) -> Self {
        Self::line(text)
    }
}

impl From<Printable> for String {
    fn from(text: Printable) -> Self {
        text.0
    }
}

impl PartialEq<str> for Printable {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Printable {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_spelled_out() {
        for (text, line) in [
            ("\x1b]0;title\x07", "\\033]0;title\\007"),
            ("\u{9b}2J", "\\2332J"),
            ("a\x7f\0b", "a\\177\\000b"),
            ("cod\u{202e}fdp.exe", "cod\\u{202e}fdp.exe"),
            ("one\u{2028}two", "one\\u{2028}two"),
            ("plain é 漢 👩‍🚀", "plain é 漢 👩‍🚀"),
        ] {
            assert_eq!(Printable::line(text), line);
        }
        assert_eq!(Printable::line(b"\xffa\xc3"), "\\377a\\303");
    }

    #[test]
    fn lines_stay_where_they_are_meant() {
        assert_eq!(Printable::text("a\tb\r\nc\rd"), "a\tb\nc\\015d");
        assert_eq!(Printable::line("a\tb\r\nc"), "a\\011b\\015\\012c");
    }

    #[test]
    fn an_offset_is_in_the_line_that_its_line_feed_ends() {
        let text = "é\nb\n";
        let lines: Vec<_> = (0..7).map(|offset| line_number(text, offset)).collect();
        assert_eq!(lines, [1, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn what_is_too_long_is_cut_and_says_so() {
        let line = Printable::line("é".repeat(LONGEST_LINE));
        assert!(line.len() <= LONGEST_LINE && line.ends_with('…'));
        let text = Printable::text(vec![0xff; 2 * LONGEST_TEXT]);
        assert!(text.len() <= LONGEST_TEXT && text.ends_with('…'));
    }

    proptest! {
        #[test]
        fn nothing_is_left_that_moves_a_cursor(bytes: Vec<u8>, text: String) {
            for input in [bytes.as_slice(), text.as_bytes()] {
                for (shown, lines) in [(Printable::line(input), false), (Printable::text(input), true)] {
                    let allowed = |c: char| lines && (c == '\n' || c == '\t');
                    prop_assert!(!shown.contains(|c: char| (c.is_control() && !allowed(c)) || misleads(c)));
                }
                let once = Printable::line(input);
                prop_assert_eq!(&Printable::line(&*once), &once);
            }
        }
    }
}
