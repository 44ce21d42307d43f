//! Tables and paragraphs of all commands, fitted to the terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// A table without rules. Columns are two spaces apart, and cells wrap if the terminal is too narrow.
pub(crate) struct Grid(Table);

impl Grid {
    /// Returns a table with these titles and no rows.
    pub(crate) fn new<T: Into<Cell>>(header: impl IntoIterator<Item = T>) -> Self {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(header.into_iter().map(Into::into).collect::<Vec<Cell>>());
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self(table)
    }

    /// Aligns some columns to the right, as for numbers.
    pub(crate) fn numbers(mut self, columns: impl IntoIterator<Item = usize>) -> Self {
        for column in columns {
            if let Some(column) = self.0.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self
    }

    pub(crate) fn row<T: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0
            .add_row(cells.into_iter().map(Into::into).collect::<Vec<Cell>>());
    }

    /// Returns the table, at most `width` columns wide; `None` not to wrap. Ends in a newline.
    pub(crate) fn draw(mut self, width: Option<u16>) -> String {
        if let Some(width) = width {
            // The padding of the last column is not printed.
            self.0
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width.saturating_add(2));
        }
        let lines = self.0.lines().map(|line| format!("{}\n", line.trim_end()));
        lines.collect()
    }
}

/// Wraps a line between words if the terminal is too narrow. Further lines are indented by `hang` more columns. A word
/// that does not fit stays whole, so that it can be copied. Returns no final newline.
pub(crate) fn wrap(line: &str, hang: usize, width: Option<u16>) -> String {
    break_line(line, hang, width, |word| vec![word])
}

/// Wraps a line like [`wrap`], but breaks a word that does not fit, such as a list of algorithms, after commas.
pub(crate) fn wrapped_list(line: &str, hang: usize, width: Option<u16>) -> String {
    break_line(line, hang, width, |word| word.split_inclusive(',').collect())
}

/// `parts` splits a word that does not fit into pieces that stay whole.
fn break_line(line: &str, hang: usize, width: Option<u16>, parts: fn(&str) -> Vec<&str>) -> String {
    let Some(width) = width else {
        return line.to_owned();
    };
    let words = line.trim_start();
    let indent = line.len() - words.len();
    let mut text = " ".repeat(indent);
    let mut column = indent;
    for (nth, word) in words.split(' ').enumerate() {
        let length = word.chars().count();
        if nth > 0 && column + 1 + length > usize::from(width) {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent + hang));
            column = indent + hang;
        } else if nth > 0 {
            text.push(' ');
            column += 1;
        }
        let parts = match column + length > usize::from(width) {
            true => parts(word),
            false => vec![word],
        };
        for (nth, part) in parts.into_iter().enumerate() {
            let length = part.chars().count();
            if nth > 0 && column + length > usize::from(width) {
                text.push('\n');
                text.extend(std::iter::repeat_n(' ', indent + hang));
                column = indent + hang;
            }
            text.push_str(part);
            column += length;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_no_word_breaks() {
        assert_eq!(
            wrap("  one two three four", 2, Some(12)),
            "  one two\n    three\n    four"
        );
        assert_eq!(wrap("one two", 2, None), "one two");
        assert_eq!(wrap("a /long/path/of/it b", 0, Some(6)), "a\n/long/path/of/it\nb");
        assert_eq!(wrap("", 2, Some(10)), "");
        assert_eq!(
            wrap("hosts: web1,web22,web3", 2, Some(14)),
            "hosts:\n  web1,web22,web3"
        );
    }

    #[test]
    fn a_list_of_algorithms_breaks_behind_its_commas() {
        assert_eq!(
            wrapped_list("  macs: hmac-a,hmac-bc,umac-d and more", 2, Some(14)),
            "  macs:\n    hmac-a,\n    hmac-bc,\n    umac-d and\n    more"
        );
        assert_eq!(wrapped_list("macs: a,b", 2, None), "macs: a,b");
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal_at_most() {
        let drawn = |width| {
            let mut grid = Grid::new(["NAME", "N", "WORDS"]).numbers([1]);
            grid.row(["a", "1", "one two three"]);
            grid.row(["b", "10", "four"]);
            grid.draw(width)
        };
        assert_eq!(
            drawn(Some(22)),
            "NAME   N  WORDS\na      1  one two three\nb     10  four\n"
                .replace("one two three", "one two\n          three")
        );
        assert_eq!(drawn(Some(23)), drawn(None));
    }
}
