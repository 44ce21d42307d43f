//! The subject of the view in the terminal: the daemon, or a fleet.

use std::cmp::Ordering;
use std::fmt::Debug;

use ratatui::text::Line;

use super::palette::Palette;

/// Something with tables.
pub(super) trait Subject {
    /// Names a table.
    type View: Debug + Copy + PartialEq + Default + 'static;
    /// Names a row.
    type Row: Debug + Clone + PartialEq;
    type News;

    /// Its tables, in their order.
    const VIEWS: &'static [Self::View];

    /// Whether connections can be closed.
    const CLOSES: bool;

    /// Takes in what is told.
    fn learn(&mut self, news: Self::News);

    /// Returns the title of a table.
    fn name(view: Self::View) -> &'static str;

    /// The columns of a table.
    fn columns(view: Self::View) -> &'static [Column];

    /// Returns the text shown in place of rows if there are none.
    fn nothing(view: Self::View) -> &'static str;

    /// Returns the number of rows that a table has without a filter.
    fn count(&self, view: Self::View) -> usize;

    /// The rows that a filter lets through, in order.
    fn rows(&self, view: Self::View, filter: &str, sort: Sort) -> Vec<Self::Row>;

    /// Returns the text of a cell. `now`: seconds since 1970.
    fn cell(&self, row: &Self::Row, column: &Column, now: u64) -> String;

    /// All that is known of a row; nothing of one that has gone.
    fn details(&self, row: &Self::Row) -> Option<Lines>;

    /// The two lines above the tables.
    fn summary(&self, palette: Palette) -> [Line<'static>; 2];

    /// Returns the key of the connections to close for a row: the settings that decide who may share them.
    fn sharing(&self, row: &Self::Row) -> Option<String>;

    /// Returns the question to ask before that.
    fn question(&self, sharing: &str) -> Vec<Line<'static>>;
}

/// A heading, and lines: what a value is called, and the value. A line without a name continues the one before.
pub(super) type Lines = Vec<(String, String)>;

pub(super) struct Column {
    pub(super) name: &'static str,
    /// Cells; 0 for what the others leave.
    pub(super) width: u16,
    /// Whether it is aligned to the right, and sorted from the greatest on.
    pub(super) number: bool,
    /// It is there in a terminal of at least so many columns.
    pub(super) from: u16,
}

pub(super) const fn text(name: &'static str, width: u16, from: u16) -> Column {
    Column {
        name,
        width,
        number: false,
        from,
    }
}

pub(super) const fn number(name: &'static str, width: u16, from: u16) -> Column {
    Column {
        name,
        width,
        number: true,
        from,
    }
}

/// The sort order of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sort {
    pub(super) by: usize,
    /// The other way round.
    pub(super) reversed: bool,
}

/// Names with numbers in them by the numbers: web2 before web10.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        match (digits(a), digits(b)) {
            (0, _) | (_, 0) => match (a.split_first(), b.split_first()) {
                (Some((x, rest_a)), Some((y, rest_b))) => {
                    let order = x.to_ascii_lowercase().cmp(&y.to_ascii_lowercase());
                    if order.is_ne() {
                        return order;
                    }
                    (a, b) = (rest_a, rest_b);
                }
                (x, y) => return x.is_some().cmp(&y.is_some()),
            },
            (x, y) => {
                let ((x, rest_a), (y, rest_b)) = (a.split_at(x), b.split_at(y));
                let significant = |digits: &[u8]| digits.iter().skip_while(|digit| **digit == b'0').count();
                let order = significant(x).cmp(&significant(y)).then_with(|| x.cmp(y));
                if order.is_ne() {
                    return order;
                }
                (a, b) = (rest_a, rest_b);
            }
        }
    }
}

/// Returns the progress as a bar of this width.
pub(super) fn bar(share: f64, width: usize) -> String {
    let eighths = (share * width as f64 * 8.0) as usize;
    let mut bar = "█".repeat(eighths / 8);
    if eighths / 8 < width {
        let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        bar.push_str(part);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_numbers() {
        let mut names = vec!["web10", "web2", "db1", "web02", "web", "Web3", "web2a"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["db1", "web", "web02", "web2", "web2a", "Web3", "web10"]);
    }
}
