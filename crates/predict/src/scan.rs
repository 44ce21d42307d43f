//! Finds the boundaries between text and control sequences in the server's bytes.
//!
//! A terminal obeys the predictor's bytes only if no sequence is open, and an emulator keeps only the parts of a
//! sequence that it models. So the scanner gathers each sequence until it is whole.

/// The longest control sequence that is parsed. Programs send up to some 60 bytes (SGR with two colours).
const LONGEST: usize = 256;

/// The bytes of a string (OSC, DCS, APC) that are kept. Terminals use strings for titles, answers and images, of which
/// only hyperlinks reach the grid.
const STRING: usize = 2048;

/// A piece of the server's output.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// Text with whole characters, and C0 controls other than ESC, CAN and SUB.
    Text(&'a [u8]),
    /// A whole control sequence (CSI), as it came.
    Control(Csi<'a>, &'a [u8]),
    /// A whole escape sequence that is neither a control sequence nor a string: `ESC`, intermediates, final byte.
    Escape(&'a [u8]),
    /// A string from its `ESC` to before its terminator, cut off if it is long.
    String(&'a [u8]),
    /// A sequence on which terminals disagree.
    Unclear,
}

/// The parts of a control sequence.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Csi<'a> {
    /// `?`, `>`, `=`, `<`, or 0.
    pub(crate) prefix: u8,
    /// The intermediate byte before the final one, such as `!` of DECSTR, or 0.
    pub(crate) intermediate: u8,
    /// The numbers as they came.
    pub(crate) params: &'a [u8],
    pub(crate) last: u8,
}

impl Csi<'_> {
    /// Returns the numbers, with `default` for one that is missing or 0.
    pub(crate) fn numbers(&self, default: usize) -> impl Iterator<Item = usize> {
        self.params
            .split(|&byte| matches!(byte, b';' | b':'))
            .map(move |digits| {
                let value = digits.iter().fold(0_usize, |value, digit| {
                    value
                        .saturating_mul(10)
                        .saturating_add(usize::from(digit.wrapping_sub(b'0') % 10))
                });
                if value == 0 { default } else { value }
            })
    }

    pub(crate) fn number(&self, default: usize) -> usize {
        self.numbers(default).next().unwrap_or(default)
    }

    /// Returns whether this is `CSI ? … h` or `CSI ? … l` with `mode` among its numbers.
    pub(crate) fn has_mode(&self, mode: usize) -> bool {
        self.prefix == b'?' && matches!(self.last, b'h' | b'l') && self.numbers(0).any(|one| one == mode)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ground,
    /// In a character of several bytes; the number of missing bytes.
    Character(u8),
    Escape,
    Control,
    /// In a string; BEL ends it if it is an OSC.
    String {
        bell: bool,
    },
    /// In a string, after ESC.
    StringEscape,
}

#[derive(Debug)]
pub(crate) struct Scanner {
    state: State,
    sequence: Vec<u8>,
    is_unclear: bool,
}

impl Scanner {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Ground,
            sequence: Vec::new(),
            is_unclear: false,
        }
    }

    /// Returns whether no sequence or character is open.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.state == State::Ground
    }

    /// Passes the pieces of `bytes` to `take`, in order. Keeps an unfinished piece.
    pub(crate) fn scan(&mut self, bytes: &[u8], mut take: impl FnMut(Piece<'_>)) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if self.state == State::Ground {
                let rest = &bytes[at..];
                let length = text_length(rest);
                if length > 0 {
                    take(Piece::Text(&rest[..length]));
                    at += length;
                    continue;
                }
            }
            at += 1;
            self.step(byte, &mut take);
        }
    }

    fn step(&mut self, byte: u8, take: &mut impl FnMut(Piece<'_>)) {
        match (self.state, byte) {
            (State::Ground, 0x1b) => self.open(),
            // CAN and SUB end a sequence, and a terminal may show them.
            (_, 0x18 | 0x1a) => {
                self.close();
                take(Piece::Unclear);
            }
            (State::Ground, _) => {
                self.sequence.clear();
                self.sequence.push(byte);
                match missing(byte) {
                    0 => take(Piece::Text(&self.sequence)),
                    missing => self.state = State::Character(missing),
                }
            }
            (State::Character(missing), 0x80..=0xbf) => {
                self.sequence.push(byte);
                self.state = State::Character(missing - 1);
                if missing == 1 {
                    self.state = State::Ground;
                    take(Piece::Text(&self.sequence));
                }
            }
            (State::Character(_), _) => {
                // For an unfinished character, terminals show one replacement or several.
                self.close();
                take(Piece::Unclear);
                self.step(byte, take);
            }
            (State::String { .. }, 0x1b) => self.state = State::StringEscape,
            (State::String { bell: true }, 0x07) => self.finish_string(take),
            (State::String { .. }, _) => {
                if self.sequence.len() < STRING {
                    self.sequence.push(byte);
                }
            }
            (State::StringEscape, b'\\') => self.finish_string(take),
            (State::StringEscape, _) => {
                self.open();
                take(Piece::Unclear);
                self.step(byte, take);
            }
            (State::Escape | State::Control, 0x1b) => {
                self.open();
                take(Piece::Unclear);
            }
            (State::Escape, b'[') if self.sequence.len() == 1 => self.push(byte, State::Control),
            (State::Escape, b']') if self.sequence.len() == 1 => {
                self.push(byte, State::String { bell: true });
            }
            (State::Escape, b'P' | b'X' | b'^' | b'_') if self.sequence.len() == 1 => {
                self.push(byte, State::String { bell: false });
            }
            (State::Escape, 0x20..=0x2f) => self.push(byte, State::Escape),
            (State::Escape, 0x30..=0x7e) => {
                self.push(byte, State::Ground);
                match self.is_unclear {
                    true => take(Piece::Unclear),
                    false => take(Piece::Escape(&self.sequence)),
                }
            }
            (State::Control, 0x20..=0x3f) => self.push(byte, State::Control),
            (State::Control, 0x40..=0x7e) => {
                self.push(byte, State::Ground);
                match control(&self.sequence).filter(|_| !self.is_unclear) {
                    Some(csi) => take(Piece::Control(csi, &self.sequence)),
                    None => take(Piece::Unclear),
                }
            }
            // Most terminals obey a control within a sequence at once.
            (State::Escape | State::Control, _) => self.is_unclear = true,
        }
    }

    fn open(&mut self) {
        self.state = State::Escape;
        self.is_unclear = false;
        self.sequence.clear();
        self.sequence.push(0x1b);
    }

    fn push(&mut self, byte: u8, next: State) {
        if self.sequence.len() < LONGEST {
            self.sequence.push(byte);
        } else {
            self.is_unclear = true;
        }
        self.state = next;
    }

    fn finish_string(&mut self, take: &mut impl FnMut(Piece<'_>)) {
        self.state = State::Ground;
        take(Piece::String(&self.sequence));
    }

    fn close(&mut self) {
        self.state = State::Ground;
        self.sequence.clear();
    }
}

/// Returns the number of bytes of text at the beginning: ASCII and C0 controls, and whole characters.
fn text_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            0x1b | 0x18 | 0x1a => break,
            0..0x80 => at += 1,
            _ => {
                let length = 1 + usize::from(missing(byte));
                match bytes.get(at..at + length) {
                    Some(character) if length > 1 && std::str::from_utf8(character).is_ok() => at += length,
                    _ => break,
                }
            }
        }
    }
    at
}

/// Returns the number of bytes that follow the first byte of a UTF-8 character.
fn missing(first: u8) -> u8 {
    match first {
        0xc2..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf4 => 3,
        _ => 0,
    }
}

/// Parses a whole control sequence. Returns `None` if its parts are out of order.
fn control(sequence: &[u8]) -> Option<Csi<'_>> {
    let (&last, body) = sequence.get(2..)?.split_last()?;
    let (prefix, body) = match body.split_first() {
        Some((&first @ b'<'..=b'?', rest)) => (first, rest),
        _ => (0, body),
    };
    let end = body.iter().position(|byte| !matches!(byte, b'0'..=b';'));
    let (params, intermediates) = body.split_at(end.unwrap_or(body.len()));
    let intermediate = match intermediates {
        [] => 0,
        [one @ 0x20..=0x2f] => *one,
        _ => return None,
    };
    Some(Csi {
        prefix,
        intermediate,
        params,
        last,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(chunks: &[&[u8]]) -> Vec<String> {
        let mut scanner = Scanner::new();
        let mut found: Vec<String> = Vec::new();
        for chunk in chunks {
            scanner.scan(chunk, |piece| {
                found.push(match piece {
                    Piece::Text(text) => format!("text {}", text.escape_ascii()),
                    Piece::Control(csi, _) => {
                        format!("csi {} {}", csi.params.escape_ascii(), char::from(csi.last))
                    }
                    Piece::Escape(escape) => format!("esc {}", escape.escape_ascii()),
                    Piece::String(string) => format!("string {}", string.escape_ascii()),
                    Piece::Unclear => "unclear".into(),
                });
            });
        }
        found.push(scanner.is_at_rest().to_string());
        found
    }

    #[test]
    fn a_sequence_is_whole_wherever_it_was_cut() {
        let all = b"a\r\n\x1b[1;31mb\x1b]0;t\x07\x1b(B\x1bP+q\x1b\\";
        let whole = pieces(&[all]);
        assert_eq!(
            whole,
            [
                "text a\\r\\n",
                "csi 1;31 m",
                "text b",
                "string \\x1b]0;t",
                "esc \\x1b(B",
                "string \\x1bP+q",
                "true"
            ]
        );
        for cut in 4..all.len() {
            let (left, right) = all.split_at(cut);
            let joined: Vec<_> = pieces(&[left, right]);
            assert_eq!(joined, whole, "cut at {cut}");
        }
    }

    #[test]
    fn nothing_is_drawn_into_what_is_open() {
        for open in [
            &b"\x1b"[..],
            b"\x1b[",
            b"\x1b[3",
            b"\x1b]8;;",
            b"\xc3",
            b"\x1bP$q\x1b",
            b"\x1b(",
        ] {
            assert_eq!(
                pieces(&[open]).last().map(String::as_str),
                Some("false"),
                "{open:?}"
            );
        }
    }

    #[test]
    fn what_never_ends_takes_no_memory() {
        let mut scanner = Scanner::new();
        for start in [&b"\x1b]0;"[..], b"\x1b\\\x1b[", b"\x1bP"] {
            scanner.scan(start, |_| {});
            for _ in 0..100 {
                scanner.scan(&[b'1'; 4096], |_| {});
            }
            assert!(scanner.sequence.len() <= STRING);
        }
    }
}
