//! The subject of the view in the terminal: the daemon, or that of another program.

use std::cmp::Ordering;
use std::fmt::Debug;

use ratatui::text::Line;

use super::palette::Palette;
use crate::feed::News;

/// A subject with tables.
pub trait Subject {
    /// Identifies a table.
    type View: Debug + Copy + PartialEq + Default + 'static;
    /// Identifies a row.
    type Row: Debug + Clone + PartialEq;
    /// An update about it.
    type Update: Send + 'static;

    /// The tables, in order.
    const VIEWS: &'static [Self::View];

    /// True if connections can be closed.
    const CLOSES: bool = false;

    /// Applies news.
    fn learn(&mut self, news: News<Self::Update>);

    /// Returns the title of a table.
    fn name(view: Self::View) -> &'static str;

    /// Returns the columns of a table.
    fn columns(view: Self::View) -> &'static [Column];

    /// Returns the text shown in place of rows if there are none.
    fn nothing(view: Self::View) -> &'static str;

    /// Returns the number of unfiltered rows of a table.
    fn count(&self, view: Self::View) -> usize;

    /// Selects the rows for whose words `has` returns true, in the order of a column.
    fn select(&self, view: Self::View, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Self::Row>;

    /// Returns the rows that pass a filter, in order.
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

    /// Returns the details of a row; `None` if it is gone.
    fn details(&self, row: &Self::Row) -> Option<Lines>;

    /// Returns the two lines above the tables.
    fn summary(&self, palette: Palette) -> [Line<'static>; 2];

    /// Returns the sharing key of the connections to close for a row.
    fn sharing(&self, _row: &Self::Row) -> Option<String> {
        None
    }

    /// Returns the question before closing connections.
    fn question(&self, _sharing: &str) -> Vec<Line<'static>> {
        Vec::new()
    }
}

/// Lines with a name and a value. A line without a name continues the previous one.
pub type Lines = Vec<(String, String)>;

#[derive(Debug)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// The width in cells; 0 takes the remaining space.
    pub width: u16,
    /// True if it is aligned to the right, and sorted in descending order.
    pub number: bool,
    /// The smallest width of a terminal that shows it.
    pub from: u16,
}

/// Returns a column of words.
pub const fn text(name: &'static str, width: u16, from: u16) -> Column {
    Column {
        name,
        width,
        number: false,
        from,
    }
}

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
    /// The column's index.
    pub by: usize,
    /// True to reverse the order.
    pub reversed: bool,
}

/// Compares names with their numbers in natural order: web2 before web10.
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
