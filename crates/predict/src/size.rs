//! [`Size`] of a terminal.

/// The size of a terminal, in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub rows: usize,
    pub columns: usize,
}

impl Size {
    /// The most cells of a model: 2000 columns and 500 rows.
    const MOST: usize = 1_000_000;

    /// Returns whether the predictor can model a terminal of this size. A terminal of unknown size reports 0.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self.rows >= 2 && self.columns >= 8 && self.rows.saturating_mul(self.columns) <= Self::MOST
    }
}
