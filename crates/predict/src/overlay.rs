//! The cells drawn over the truth, and their removal.

use std::io::Write as _;

use alacritty_terminal::term::cell::Flags;
use alacritty_terminal::vte::ansi::{Color, NamedColor};

use crate::truth::{Style, Truth};

/// The cells shown in the cursor's row instead of the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Overlay {
    /// The cells by column, each once, in order.
    pub(crate) cells: Vec<(usize, char, Style)>,
    /// The cursor's column.
    pub(crate) cursor: usize,
    /// The typed characters are underlined.
    pub(crate) is_late: bool,
}

impl Overlay {
    fn cell(&self, column: usize) -> Option<(char, Style)> {
        let found = self.cells.binary_search_by_key(&column, |cell| cell.0).ok()?;
        self.cells
            .get(found)
            .map(|&(_, character, style)| (character, style))
    }
}

/// Returns the bytes that turn one overlay into another over the same truth.
pub(crate) fn redraw(truth: &Truth, old: Option<&Overlay>, new: Option<&Overlay>) -> Vec<u8> {
    let (row, at_rest) = truth.cursor();
    let mut brush = Brush {
        bytes: Vec::new(),
        column: old.map_or(at_rest, |old| old.cursor),
        pen: truth.pen(),
    };
    let mut columns: Vec<usize> = [old, new]
        .into_iter()
        .flatten()
        .flat_map(|one| one.cells.iter().map(|cell| cell.0))
        .collect();
    columns.sort_unstable();
    columns.dedup();
    let last_new = new.and_then(|new| new.cells.last()).map(|cell| cell.0);
    let looks = |overlay: Option<&Overlay>, column| {
        overlay
            .and_then(|overlay| overlay.cell(column))
            .unwrap_or_else(|| (truth.character(row, column), truth.style(row, column)))
    };
    for column in columns {
        let (was, is) = (looks(old, column), looks(new, column));
        if was == is {
            continue;
        }
        brush.go_to(column);
        // A cell that was never written is erased again, so that copied text has no extra blanks.
        if last_new < Some(column) && truth.is_blank_from(row, column) {
            brush.take(Style::PLAIN);
            brush.bytes.extend_from_slice(b"\x1b[K");
            break;
        }
        brush.take(is.1);
        brush.put(is.0);
    }
    brush.go_to(new.map_or(at_rest, |new| new.cursor));
    brush.take(truth.pen());
    brush.bytes
}

struct Brush {
    bytes: Vec<u8>,
    column: usize,
    pen: Style,
}

impl Brush {
    /// Moves relative to the cursor: the row may have another number on the real screen.
    fn go_to(&mut self, column: usize) {
        let result = match self.column.checked_sub(column) {
            Some(0) => Ok(()),
            Some(1) => self.bytes.write_all(b"\x08"),
            Some(left) => write!(self.bytes, "\x1b[{left}D"),
            None => write!(self.bytes, "\x1b[{}C", column - self.column),
        };
        debug_assert!(result.is_ok(), "memory takes what is written");
        self.column = column;
    }

    fn put(&mut self, character: char) {
        let mut buffer = [0; 4];
        self.bytes
            .extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
        self.column += 1;
    }

    fn take(&mut self, style: Style) {
        if self.pen != style {
            self.bytes.extend_from_slice(&sgr(style));
            self.pen = style;
        }
    }
}

fn sgr(style: Style) -> Vec<u8> {
    let mut bytes = b"\x1b[0".to_vec();
    for (flag, number) in [
        (Flags::BOLD, 1),
        (Flags::DIM, 2),
        (Flags::ITALIC, 3),
        (Flags::UNDERLINE, 4),
        (Flags::INVERSE, 7),
        (Flags::HIDDEN, 8),
        (Flags::STRIKEOUT, 9),
    ] {
        if style.flags.contains(flag) {
            bytes.extend_from_slice(format!(";{number}").as_bytes());
        }
    }
    bytes.extend_from_slice(colour(style.fg, 30).as_bytes());
    bytes.extend_from_slice(colour(style.bg, 40).as_bytes());
    bytes.push(b'm');
    bytes
}

/// Formats a colour for SGR; `base` is 30 for the text and 40 for the background.
fn colour(colour: Color, base: usize) -> String {
    match colour {
        Color::Named(NamedColor::Foreground | NamedColor::Background) => String::new(),
        Color::Named(name) => match name as usize {
            low @ 0..8 => format!(";{}", base + low),
            bright @ 8..16 => format!(";{}", base + 52 + bright),
            _ => String::new(),
        },
        Color::Indexed(index) => format!(";{};5;{index}", base + 8),
        Color::Spec(rgb) => format!(";{};2;{};{};{}", base + 8, rgb.r, rgb.g, rgb.b),
    }
}
