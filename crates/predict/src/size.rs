//! [`Size`]: of a terminal.

/// The size of a terminal, in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub rows: usize,
    pub columns: usize,
}

impl Size {
    /// The most cells that are modelled: 2000 columns and 500 rows.
    const MOST: usize = 1_000_000;

    /// Returns whether a terminal of this size can be modelled. One that does not know its size says 0.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self.rows >= 2 && self.columns >= 8 && self.rows.saturating_mul(self.columns) <= Self::MOST
    }
}
