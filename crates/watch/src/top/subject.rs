//! The subject of the view in the terminal: the daemon, or what another program knows.

use std::cmp::Ordering;
use std::fmt::Debug;

use ratatui::text::Line;

use super::palette::Palette;
use crate::feed::News;

/// Something with tables.
pub trait Subject {
    /// Names a table.
    type View: Debug + Copy + PartialEq + Default + 'static;
    /// Names a row.
    type Row: Debug + Clone + PartialEq;
    /// A report about it.
    type Update: Send + 'static;

    /// Its tables, in their order.
    const VIEWS: &'static [Self::View];

    /// Whether connections can be closed.
    const CLOSES: bool = false;

    /// Takes in what is told.
    fn learn(&mut self, news: News<Self::Update>);

    /// Returns the title of a table.
    fn name(view: Self::View) -> &'static str;

    /// The columns of a table.
    fn columns(view: Self::View) -> &'static [Column];

    /// Returns the text shown in place of rows if there are none.
    fn nothing(view: Self::View) -> &'static str;

    /// Returns the number of rows that a table has without a filter.
    fn count(&self, view: Self::View) -> usize;

    /// Selects the rows of which `has` finds one of the words, in the order of a column.
    fn select(&self, view: Self::View, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Self::Row>;

    /// The rows that a filter lets through, in order.
    fn rows(&self, view: Self::View, filter: &str, sort: Sort) -> Vec<Self::Row> {
        let filter = filter.to_lowercase();
        let has = |words: &[&str]| {
            let mut words = words.iter();
            filter.is_empty() || words.any(|word| word.to_lowercase().contains(&filter))
        };
        let column = Self::columns(view).get(sort.by).map_or("", |column| column.name);
        let mut rows = self.select(view, column, has);
        if sort.reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns the text of a cell. `now`: seconds since 1970.
    fn cell(&self, row: &Self::Row, column: &Column, now: u64) -> String;

    /// All that is known of a row; nothing of one that has gone.
    fn details(&self, row: &Self::Row) -> Option<Lines>;

    /// The two lines above the tables.
    fn summary(&self, palette: Palette) -> [Line<'static>; 2];

    /// Returns the key of the connections to close for a row: the settings that decide who may share them.
    fn sharing(&self, _row: &Self::Row) -> Option<String> {
        None
    }

    /// Returns the question to ask before that.
    fn question(&self, _sharing: &str) -> Vec<Line<'static>> {
        Vec::new()
    }
}

/// A heading, and lines: what a value is called, and the value. A line without a name continues the one before.
pub type Lines = Vec<(String, String)>;

/// A column.
#[derive(Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Cells; 0 for what the others leave.
    pub width: u16,
    /// Whether it is aligned to the right, and sorted from the greatest on.
    pub number: bool,
    /// It is there in a terminal of at least so many columns.
    pub from: u16,
}

/// A column of words.
pub const fn text(name: &'static str, width: u16, from: u16) -> Column {
    Column {
        name,
        width,
        number: false,
        from,
    }
}

/// A column of numbers.
pub const fn number(name: &'static str, width: u16, from: u16) -> Column {
    Column {
        name,
        width,
        number: true,
        from,
    }
}

/// The sort order of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sort {
    /// By this column.
    pub by: usize,
    /// The other way round.
    pub reversed: bool,
}

/// Names with numbers in them by the numbers: web2 before web10.
pub fn natural(a: &str, b: &str) -> Ordering {
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
pub fn bar(share: f64, width: usize) -> String {
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
