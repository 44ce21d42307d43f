//! The progress line on standard error, below the output.
//!
//! A terminal shows `^C` at the cursor. After a line that fills the terminal that would be on the next line, and the
//! progress line would remain when the next one is drawn. So lines end before the terminal's edge.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};

use console::{Term, measure_text_width, truncate_str};
use indicatif::{ProgressDrawTarget, TermLike};
use trunkline_local::prompt::is_in_foreground;

/// Columns that a line leaves free, for `^C` and the cursor.
const FREE: u16 = 3;

/// The most redraws per second.
const RATE: u8 = 10;

/// True while a line is drawn. Later output replaces it, with a `^C` after it.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Begins a new line on standard error after a `^C`, so that further output or the shell's prompt does not follow it
/// directly.
pub(super) fn leave_interrupted_line() {
    if io::stderr().is_terminal() && !IS_SHOWN.load(Ordering::Relaxed) {
        eprintln!();
    }
}

/// Returns the target for a line on standard error, hidden unless that is a terminal that can move its cursor.
pub(crate) fn target() -> ProgressDrawTarget {
    let term = Term::buffered_stderr();
    if super::can_be_drawn_on(&io::stderr()) {
        ProgressDrawTarget::term_like_with_hz(Box::new(Narrowed(term)), RATE)
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// Returns the most columns of a line.
pub(crate) fn width() -> usize {
    Narrowed(Term::stderr()).width().into()
}

/// Shortens text to that width, with an ellipsis.
pub(crate) fn fit(text: &str) -> String {
    truncate_str(text, width(), "…").into_owned()
}

/// Returns the last part of a path, if all of it does not fit into a line.
pub(crate) fn short_path(path: &str) -> String {
    /// The room in a line of 80 columns beside a bar, amounts and a rate.
    const COLUMNS: usize = 24;
    let most = COLUMNS.max(width() / 3);
    if measure_text_width(path) <= most {
        return path.to_owned();
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    let beginning = if name.len() == path.len() { "" } else { "…/" };
    truncate_str(&format!("{beginning}{name}"), most, "…").into_owned()
}

/// A terminal without its last columns. Draws only while this process is in the foreground, so as not to overwrite the
/// question of a program that has the terminal, or the shell beside a background job.
#[derive(Debug)]
struct Narrowed(Term);

impl Narrowed {
    fn draw(&self, write: impl FnOnce(&Term) -> io::Result<()>) -> io::Result<()> {
        match is_in_foreground(io::stderr()) {
            true => write(&self.0),
            false => Ok(()),
        }
    }
}

impl TermLike for Narrowed {
    fn width(&self) -> u16 {
        let (_, columns) = self.0.size();
        columns.saturating_sub(FREE).max(1)
    }

    fn height(&self) -> u16 {
        let (rows, _) = self.0.size();
        rows
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.draw(|term| term.move_cursor_up(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.draw(|term| term.move_cursor_down(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.draw(|term| term.move_cursor_right(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.draw(|term| term.move_cursor_left(n))
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.draw(|term| term.write_line(line))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        IS_SHOWN.fetch_or(!text.is_empty(), Ordering::Relaxed);
        self.draw(|term| term.write_str(&break_lines(text, self.width().into())))
    }

    fn clear_line(&self) -> io::Result<()> {
        IS_SHOWN.store(false, Ordering::Relaxed);
        self.draw(Term::clear_line)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Breaks text into lines of this width, as indicatif counts them: the terminal is wider and would break it elsewhere.
fn break_lines(text: &str, columns: usize) -> String {
    if measure_text_width(text) <= columns {
        return text.to_owned();
    }
    let mut lines = String::new();
    let mut column = 0;
    for character in text.chars() {
        let wide = measure_text_width(character.encode_utf8(&mut [0; 4]));
        if column + wide > columns {
            lines.push_str("\r\n");
            column = 0;
        }
        column += wide;
        lines.push(character);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_broken_where_it_was_counted() {
        assert_eq!(break_lines("abc", 3), "abc");
        assert_eq!(break_lines("abcd", 3), "abc\r\nd");
        assert_eq!(break_lines("a\u{4e2d}\u{4e2d}b", 3), "a\u{4e2d}\r\n\u{4e2d}b");
    }

    #[test]
    fn of_a_long_path_the_name_is_left() {
        assert_eq!(short_path("site/index.html"), "site/index.html");
        let long = format!("{}/index.html", "directory/".repeat(60));
        assert_eq!(short_path(&long), "…/index.html");
        let name = "n".repeat(600);
        assert!(measure_text_width(&short_path(&name)) < 600);
    }
}
