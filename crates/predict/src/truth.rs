//! The terminal after the server's bytes, as far as that can be known.
//!
//! The session begins somewhere on a screen that other programs have written to, and nothing asks the terminal for the
//! cursor's place. So the cursor starts in the *last* row of the model, below unknown rows. New output scrolls in the
//! model and may stand lower on the real screen, but relative movements agree. From the first absolute position on, the
//! rows agree too, and all cells not written or erased since are unknown.

use std::ops::RangeInclusive;

use alacritty_terminal::event::VoidListener;
use alacritty_terminal::grid::Dimensions;
use alacritty_terminal::index::{Column, Line};
use alacritty_terminal::term::cell::{Cell, Flags};
use alacritty_terminal::term::{Config, Term, TermMode};
use alacritty_terminal::vte::ansi::{Color, NamedColor, Processor, Timeout};

use crate::Size;
use crate::scan::{Csi, Piece, Scanner};

/// The mark of an unknown cell: a private character that nobody prints.
const UNKNOWN: char = '\u{10fffd}';

/// The amount of output from which only the part that can still be on the screen is parsed.
const BULK: usize = 8 * 1024;

/// Effects of output other than printing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effects {
    /// A row may have moved.
    pub(crate) scrolled: bool,
    /// The whole screen may have changed: it was erased, or another one is shown.
    pub(crate) cleared: bool,
}

/// The style of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) fg: Color,
    pub(crate) bg: Color,
    pub(crate) flags: Flags,
}

/// A character and its style.
pub(crate) type Glyph = (char, Style);

impl Style {
    pub(crate) const PLAIN: Self = Self {
        fg: Color::Named(NamedColor::Foreground),
        bg: Color::Named(NamedColor::Background),
        flags: Flags::empty(),
    };

    fn from_cell(cell: &Cell) -> Self {
        Self {
            fg: cell.fg,
            bg: cell.bg,
            flags: cell.flags & LOOKS,
        }
    }
}

/// The attributes that drawing a cell sets again.
const LOOKS: Flags = Flags::BOLD
    .union(Flags::DIM)
    .union(Flags::ITALIC)
    .union(Flags::UNDERLINE)
    .union(Flags::INVERSE)
    .union(Flags::HIDDEN)
    .union(Flags::STRIKEOUT);

/// The model ignores the timeout of synchronised updates, because it takes each part at once.
#[derive(Debug, Default)]
struct Never;

impl Timeout for Never {
    fn set_timeout(&mut self, _: std::time::Duration) {}
    fn clear_timeout(&mut self) {}
    fn pending_timeout(&self) -> bool {
        false
    }
}

impl Dimensions for Size {
    fn total_lines(&self) -> usize {
        self.rows
    }
    fn screen_lines(&self) -> usize {
        self.rows
    }
    fn columns(&self) -> usize {
        self.columns
    }
}

/// The state that DECSC saves and the model's cursor lacks.
#[derive(Debug, Clone)]
struct Saved {
    has_exotic_pen: bool,
    charsets: Charsets,
    is_anchored: bool,
}

/// The designated character sets, and the invoked one.
#[derive(Debug, Clone, Copy)]
struct Charsets {
    is_ascii: [bool; 2],
    active: usize,
}

impl Charsets {
    const ASCII: Self = Self {
        is_ascii: [true; 2],
        active: 0,
    };
}

pub(crate) struct Truth {
    term: Term<VoidListener>,
    parser: Processor<Never>,
    scanner: Scanner,
    /// Output that has not been parsed yet.
    backlog: Vec<u8>,
    size: Size,
    /// New text gets attributes that the model does not keep.
    has_exotic_pen: bool,
    charsets: Charsets,
    /// The saved state of each screen.
    saved: [Option<Saved>; 2],
    is_alternate: bool,
    /// The model's rows are the terminal's: for this screen, and for the main one while the other is shown.
    is_anchored: bool,
    main_is_anchored: bool,
    /// The model's column is the terminal's.
    knows_column: bool,
    is_in_update: bool,
    has_link: bool,
    has_margins: bool,
    region_is_whole: bool,
    /// The screen shows something that the model cannot draw again.
    is_exotic: bool,
    is_lost: bool,
    effects: Effects,
}

impl std::fmt::Debug for Truth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Truth")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Truth {
    pub(crate) fn new(size: Size) -> Self {
        let config = Config {
            scrolling_history: 0,
            ..Config::default()
        };
        let mut truth = Self {
            term: Term::new(config, &size, VoidListener),
            parser: Processor::new(),
            scanner: Scanner::new(),
            backlog: Vec::new(),
            size,
            has_exotic_pen: false,
            charsets: Charsets::ASCII,
            saved: [None, None],
            is_alternate: false,
            is_anchored: false,
            main_is_anchored: false,
            knows_column: false,
            is_in_update: false,
            has_link: false,
            has_margins: false,
            region_is_whole: true,
            is_exotic: false,
            is_lost: false,
            effects: Effects::default(),
        };
        truth.forget();
        // The user's shell leaves an empty row, with the cursor at its beginning.
        truth.knows_column = true;
        let row = truth.last_row();
        truth.fill(row..=row, &Cell::default());
        truth
    }

    fn last_row(&self) -> Line {
        Line(i32::try_from(self.size.rows).unwrap_or(i32::MAX) - 1)
    }

    /// Forgets the screen's cells and the cursor's place.
    pub(crate) fn forget(&mut self) {
        self.fill_with_unknown();
        let row = self.last_row();
        self.term.grid_mut().cursor.point.line = row;
        self.term.grid_mut().cursor.input_needs_wrap = false;
        self.is_anchored = false;
        self.knows_column = false;
        self.effects.cleared = true;
    }

    /// Marks every cell as unknown.
    fn fill_with_unknown(&mut self) {
        let unknown = Cell {
            c: UNKNOWN,
            ..Cell::default()
        };
        self.fill(Line(0)..=self.last_row(), &unknown);
    }

    fn fill(&mut self, rows: RangeInclusive<Line>, cell: &Cell) {
        for row in rows.start().0..=rows.end().0 {
            for column in 0..self.size.columns {
                self.term.grid_mut()[Line(row)][Column(column)].clone_from(cell);
            }
        }
    }

    /// Handles a new size of the terminal, which moves its rows in its own way.
    pub(crate) fn resize(&mut self, size: Size) {
        self.look();
        self.size = size;
        self.term.resize(size);
        self.region_is_whole = true;
        self.forget();
    }

    /// Takes output that need not be parsed now.
    pub(crate) fn feed_later(&mut self, bytes: &[u8]) {
        self.backlog.extend_from_slice(bytes);
        if self.backlog.len() >= 8 * BULK {
            self.look();
        }
    }

    /// Parses all output so far, `bytes` last.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Effects {
        self.backlog.extend_from_slice(bytes);
        self.look();
        std::mem::take(&mut self.effects)
    }

    fn look(&mut self) {
        let backlog = std::mem::take(&mut self.backlog);
        let mut scanner = std::mem::replace(&mut self.scanner, Scanner::new());
        let start = self.start_of_what_stays(&backlog, &scanner);
        scanner.scan(&backlog[start..], |piece| self.take(piece));
        self.scanner = scanner;
        if std::mem::take(&mut self.is_lost) {
            self.forget();
        }
        if backlog.capacity() <= 16 * BULK {
            self.backlog = backlog;
            self.backlog.clear();
        }
    }

    /// Returns the start of the plain text that alone fills the screen: twice as many lines as there are rows push all
    /// earlier text off it.
    fn start_of_what_stays(&self, bytes: &[u8], scanner: &Scanner) -> usize {
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | 0x80.. | b'\r' | b'\n' | b'\t');
        if bytes.len() < BULK || !scanner.is_at_rest() || !self.region_is_whole || !bytes.iter().all(is_plain)
        {
            return 0;
        }
        let ends = bytes
            .windows(2)
            .enumerate()
            .rev()
            .filter(|(_, two)| *two == b"\r\n");
        ends.map(|(at, _)| at).nth(2 * self.size.rows).unwrap_or(0)
    }

    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) => self.text(text),
            Piece::Control(csi, bytes) => self.control(csi, bytes),
            Piece::Escape(bytes) => self.escape(bytes),
            Piece::String(bytes) => self.string(bytes),
            Piece::Unclear => self.is_lost = true,
        }
    }

    fn text(&mut self, mut text: &[u8]) {
        // In a full row terminals differ: a backspace leads to the last column or the one before it.
        while let Some(at) = text.iter().position(|&byte| byte == 0x08) {
            self.print(&text[..at]);
            if self.term.grid().cursor.input_needs_wrap {
                self.knows_column = false;
            }
            self.print(&text[at..=at]);
            text = &text[at + 1..];
        }
        self.print(text);
    }

    fn print(&mut self, text: &[u8]) {
        self.parser.advance(&mut self.term, text);
        for &byte in text {
            match byte {
                b'\r' => self.knows_column = true,
                0x0a..=0x0c => self.effects.scrolled = true,
                0x0e => self.charsets.active = 1,
                0x0f => self.charsets.active = 0,
                _ => {}
            }
        }
    }

    fn escape(&mut self, bytes: &[u8]) {
        match bytes {
            [_, b'7'] => self.save(),
            [_, b'8'] => self.restore(),
            [_, b'c'] => self.reset(),
            [_, b'D' | b'M'] => self.effects.scrolled = true,
            [_, b'E'] => (self.effects.scrolled, self.knows_column) = (true, true),
            [_, set @ (b'(' | b')'), which] => {
                self.charsets.is_ascii[usize::from(*set == b')')] = *which == b'B';
            }
            // DECALN, other character sets, and shifts to them.
            [_, b'#' | b'*' | b'+' | b'-' | b'.' | b'/' | b'%', ..]
            | [_, b'n' | b'o' | b'|' | b'}' | b'~'] => {
                self.is_lost = true;
            }
            _ => {}
        }
        self.parser.advance(&mut self.term, bytes);
        if bytes == b"\x1bc" {
            self.region_is_whole = true;
            self.is_anchored = true;
            self.knows_column = true;
        }
    }

    fn reset(&mut self) {
        (self.charsets, self.saved) = (Charsets::ASCII, [None, None]);
        self.has_exotic_pen = false;
        self.is_alternate = false;
        self.has_link = false;
        self.has_margins = false;
        self.is_in_update = false;
        self.is_exotic = false;
        self.effects.cleared = true;
    }

    fn save(&mut self) {
        self.saved[usize::from(self.is_alternate)] = Some(Saved {
            has_exotic_pen: self.has_exotic_pen,
            charsets: self.charsets,
            is_anchored: self.is_anchored,
        });
    }

    fn restore(&mut self) {
        let saved = self.saved[usize::from(self.is_alternate)].clone();
        self.is_lost |= saved
            .as_ref()
            .is_none_or(|saved| saved.is_anchored != self.is_anchored);
        (self.has_exotic_pen, self.charsets) = saved.map_or((false, Charsets::ASCII), |saved| {
            (saved.has_exotic_pen, saved.charsets)
        });
    }

    fn string(&mut self, bytes: &[u8]) {
        if let Some(link) = bytes.strip_prefix(b"\x1b]8;") {
            let uri = link
                .iter()
                .position(|&byte| byte == b';')
                .map(|at| &link[at + 1..]);
            self.has_link = uri.is_some_and(|uri| !uri.is_empty());
            // A link cannot be drawn again.
            self.is_exotic |= self.has_link;
            return;
        }
        let is_image = match bytes {
            [_, b'P', rest @ ..] => rest.iter().find(|byte| !matches!(byte, b'0'..=b';')) == Some(&b'q'),
            [_, b'_', rest @ ..] => rest.first() == Some(&b'G'),
            [_, b']', rest @ ..] => rest.starts_with(b"1337;"),
            _ => false,
        };
        self.is_lost |= is_image;
    }

    fn control(&mut self, csi: Csi<'_>, bytes: &[u8]) {
        if csi.intermediate != 0 {
            // The model has no DECSTR, rectangles and columns. Cursor styles and queries change no cell.
            let changes_cells = matches!(
                (csi.intermediate, csi.last),
                (b'!', b'p')
                    | (b'$', b'r' | b't' | b'v' | b'x' | b'z' | b'{')
                    | (b'\'', b'}' | b'~')
                    | (b' ', b'@' | b'A')
            );
            self.is_lost |= changes_cells;
            if !changes_cells {
                self.parser.advance(&mut self.term, bytes);
            }
            return;
        }
        match csi.prefix {
            0 => self.before_plain(csi),
            b'?' => self.before_private(csi),
            _ => {}
        }
        let alternate = csi.has_mode(1049);
        self.parser.advance(&mut self.term, bytes);
        match (csi.prefix, csi.last) {
            (0, b'H' | b'f' | b'd' | b'r') => self.is_anchored = true,
            (b'?', b'l') if alternate => {
                self.is_anchored = self.main_is_anchored;
                self.restore();
            }
            _ => {}
        }
    }

    /// Handles effects of a control sequence that the model lacks or handles differently from terminals.
    fn before_plain(&mut self, csi: Csi<'_>) {
        let cursor = &self.term.grid().cursor;
        let below = usize::try_from(self.last_row().0 - cursor.point.line.0).unwrap_or(0);
        match csi.last {
            b'm' => self.set_pen(csi.params),
            b'H' | b'f' | b'd' | b'r' => {
                if !self.is_anchored && !self.is_blank() {
                    self.fill_with_unknown();
                }
                self.knows_column |= csi.last != b'd';
                if csi.last == b'r' {
                    let mut numbers = csi.numbers(0);
                    let (top, bottom) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                    self.region_is_whole = top <= 1 && (bottom == 0 || bottom >= self.size.rows);
                    self.effects.cleared |= !self.region_is_whole;
                }
            }
            b'G' | b'`' => self.knows_column = true,
            b'D' if cursor.input_needs_wrap => self.knows_column = false,
            // The model may have fewer rows below the cursor than the terminal.
            b'B' | b'E' | b'e' => {
                self.is_lost |= !self.is_anchored && csi.number(1) > below;
                self.knows_column |= csi.last == b'E';
            }
            b'F' => self.knows_column = true,
            b'J' if csi.number(0) >= 2 => {
                self.effects.cleared = true;
                self.is_exotic = self.has_link;
            }
            b'L' | b'M' | b'S' | b'T' => {
                self.effects.scrolled = true;
                self.is_lost |= !self.is_anchored && csi.last != b'S';
            }
            // DECSLRM, if DECLRMM is set.
            b's' if self.has_margins && !csi.params.is_empty() => {
                let mut numbers = csi.numbers(0);
                let whole = numbers.next().unwrap_or(0) <= 1
                    && numbers
                        .next()
                        .is_none_or(|right| right == 0 || right >= self.size.columns);
                self.is_lost |= !whole;
            }
            b's' => self.save(),
            b'u' => self.restore(),
            _ => {}
        }
    }

    fn before_private(&mut self, csi: Csi<'_>) {
        let is_set = csi.last == b'h';
        if csi.has_mode(2026) {
            self.is_in_update = is_set;
        }
        if csi.has_mode(69) {
            self.has_margins = is_set;
        }
        if csi.has_mode(47) || csi.has_mode(1047) || csi.has_mode(3) {
            self.is_lost = true;
        }
        if csi.has_mode(1049) && is_set != self.is_alternate {
            self.effects.cleared = true;
            if is_set {
                self.save();
                self.main_is_anchored = self.is_anchored;
                self.is_anchored = false;
            }
            self.is_alternate = is_set;
        }
    }

    fn set_pen(&mut self, params: &[u8]) {
        let resets = matches!(params, [] | [b'0'] | [b'0', b';', ..] | [b';', ..]);
        let is_exotic = has_exotic(params);
        self.has_exotic_pen = is_exotic || self.has_exotic_pen && !resets;
        self.is_exotic |= is_exotic;
    }

    fn is_blank(&self) -> bool {
        (0..=self.last_row().0).all(|row| {
            let row = &self.term.grid()[Line(row)];
            (0..self.size.columns).all(|column| row[Column(column)] == Cell::default())
        })
    }

    /// Returns whether the predictor's own bytes would have their intended effect.
    pub(crate) fn can_draw(&self) -> bool {
        let cursor = &self.term.grid().cursor;
        self.backlog.is_empty()
            && self.scanner.is_at_rest()
            && self.knows_column
            && !cursor.input_needs_wrap
            && !self.is_in_update
            && !self.has_link
            && !self.has_exotic_pen
            && self.charsets.is_ascii[self.charsets.active]
            && self.term.mode().contains(TermMode::LINE_WRAP)
            && !self.term.mode().contains(TermMode::INSERT)
    }

    /// Returns the row and column.
    pub(crate) fn cursor(&self) -> (usize, usize) {
        let point = self.term.grid().cursor.point;
        (usize::try_from(point.line.0).unwrap_or(0), point.column.0)
    }

    pub(crate) fn columns(&self) -> usize {
        self.size.columns
    }

    fn cell(&self, row: usize, column: usize) -> Option<&Cell> {
        let row = i32::try_from(row).ok().filter(|_| row < self.size.rows)?;
        (column < self.size.columns).then(|| &self.term.grid()[Line(row)][Column(column)])
    }

    /// Returns the character of a cell, and a blank beyond the screen.
    pub(crate) fn character(&self, row: usize, column: usize) -> char {
        self.cell(row, column).map_or(' ', |cell| cell.c)
    }

    pub(crate) fn style(&self, row: usize, column: usize) -> Style {
        self.cell(row, column).map_or(Style::PLAIN, Style::from_cell)
    }

    /// Returns whether the model can draw a cell again as it is.
    pub(crate) fn can_restore(&self, row: usize, column: usize) -> bool {
        let is_plain = |cell: &Cell| {
            let extra = !(LOOKS | Flags::WRAPLINE);
            cell.extra.is_none() && (cell.flags & extra).is_empty() && cell.c != UNKNOWN && cell.c != '\t'
        };
        !self.is_exotic && self.cell(row, column).is_some_and(is_plain)
    }

    /// Returns the cells of a row from a column on, up to the first that cannot be drawn again.
    pub(crate) fn glyphs_from(&self, row: usize, column: usize) -> Vec<Glyph> {
        let plain = (column..self.size.columns).take_while(|&at| self.can_restore(row, at));
        plain
            .map(|at| (self.character(row, at), self.style(row, at)))
            .collect()
    }

    /// Returns whether a row is empty from a column on, without colours too.
    pub(crate) fn is_blank_from(&self, row: usize, column: usize) -> bool {
        (column..self.size.columns).all(|at| self.cell(row, at) == Some(&Cell::default()))
    }

    /// Returns the number of columns of a row that may differ on the user's terminal: terminals disagree about the
    /// widths of wide, combined and ambiguous characters.
    pub(crate) fn doubtful_columns(&self, row: usize) -> usize {
        let is_doubtful = |cell: &Cell| {
            !cell.c.is_ascii() && cell.c != UNKNOWN && {
                let width = |character| {
                    (
                        unicode_width::UnicodeWidthChar::width(character),
                        unicode_width::UnicodeWidthChar::width_cjk(character),
                    )
                };
                cell.extra.is_some() || width(cell.c) != (Some(1), Some(1))
            }
        };
        let cells = (0..self.size.columns).filter_map(|column| self.cell(row, column));
        2 * cells.filter(|cell| is_doubtful(cell)).count()
    }

    /// Returns the style of the next character.
    pub(crate) fn pen(&self) -> Style {
        Style::from_cell(&self.term.grid().cursor.template)
    }
}

/// Returns whether SGR sets more than [`LOOKS`] and colours.
fn has_exotic(params: &[u8]) -> bool {
    let mut groups = params.split(|&byte| byte == b';');
    while let Some(group) = groups.next() {
        match group {
            b"38" | b"48" => match groups.next() {
                Some(b"5") => drop(groups.next()),
                Some(b"2") => drop(groups.nth(2)),
                _ => return true,
            },
            _ if group.starts_with(b"38:") || group.starts_with(b"48:") => {}
            b"5" | b"6" | b"21" | b"26" => return true,
            _ if group.starts_with(b"4:") => return !matches!(group, b"4:0" | b"4:1"),
            _ if group.contains(&b':') => return true,
            _ => {
                let number = group.iter().fold(0_u32, |value, digit| {
                    value.saturating_mul(10) + u32::from(digit.saturating_sub(b'0'))
                });
                if matches!(number, 10..=20 | 50..=58 | 60..=89) || number > 107 {
                    return true;
                }
            }
        }
    }
    false
}
