//! Our lines in a file of the user's: found by their markers, inserted and removed.

/// A block for one purpose, the word after `trunkline setup`, which is in its markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) name: &'static str,
}

/// A file with damaged markers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BlockError {
    /// Part of them was removed, or they were copied.
    #[error(
        "the lines from `{begin}` to `{end}` are incomplete: remove what is left of them by hand, and try again"
    )]
    NotWhole {
        /// The start of the first line.
        begin: String,
        /// The last line.
        end: String,
    },
}

/// A text in three parts; the second is the block with its markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sections<'a> {
    pub(super) before: &'a str,
    pub(super) block: &'a str,
    pub(super) after: &'a str,
}

/// The first marker's note that the text before the block had no final newline, so that removing the block restores it.
const JOINED: &str = " (the line above had no end)";

impl Block {
    /// Returns the start of its first line.
    fn begin(self) -> String {
        format!("# >>> trunkline setup {} >>>", self.name)
    }

    /// Returns its last line.
    fn end(self) -> String {
        format!("# <<< trunkline setup {} <<<", self.name)
    }

    /// Returns the lines between the block's markers.
    pub(super) fn wrap(self, lines: &str) -> String {
        self.with_note("", lines)
    }

    fn with_note(self, note: &str, lines: &str) -> String {
        format!("{}{note}\n{lines}{}\n", self.begin(), self.end())
    }

    /// Finds the block.
    ///
    /// # Errors
    /// [`BlockError::NotWhole`].
    pub(super) fn find(self, text: &str) -> Result<Option<Sections<'_>>, BlockError> {
        let (begin, end) = (self.begin(), self.end());
        let (mut begins, mut ends) = (Vec::new(), Vec::new());
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            if line.starts_with(&begin) {
                begins.push(at);
            } else if line.trim_end() == end {
                ends.push(at + line.len());
            }
            at += line.len();
        }
        match (&begins[..], &ends[..]) {
            ([], []) => Ok(None),
            (&[from], &[to]) if from < to => Ok(Some(Sections {
                before: &text[..from],
                block: &text[from..to],
                after: &text[to..],
            })),
            _ => Err(BlockError::NotWhole { begin, end }),
        }
    }

    /// Returns the text with the block at its end.
    pub(super) fn append(self, text: &str, lines: &str) -> String {
        let joined = !text.is_empty() && !text.ends_with('\n');
        if joined {
            format!("{text}\n{}", self.with_note(JOINED, lines))
        } else {
            format!("{text}{}", self.wrap(lines))
        }
    }
}

impl Sections<'_> {
    /// Returns the text without the block. `bridge` replaces it if anything follows.
    pub(super) fn remove_block(&self, bridge: &str) -> String {
        let first_line = self.block.lines().next().unwrap_or_default();
        let before = if self.after.is_empty() && first_line.ends_with(JOINED) {
            self.before.strip_suffix('\n').unwrap_or(self.before)
        } else {
            self.before
        };
        format!("{before}{bridge}{}", self.after)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: Block = Block { name: "test" };

    #[test]
    fn a_block_is_found_whole_or_not_at_all() {
        let text = BLOCK.append("a\n", "line\n");
        assert_eq!(
            text,
            "a\n# >>> trunkline setup test >>>\nline\n# <<< trunkline setup test <<<\n"
        );
        let found = BLOCK.find(&text).unwrap().unwrap();
        assert_eq!((found.before, found.after), ("a\n", ""));
        assert_eq!(BLOCK.find("a\n"), Ok(None));
        assert_eq!(Block { name: "other" }.find(&text), Ok(None));
    }

    #[test]
    fn half_a_block_is_an_error() {
        let text = BLOCK.wrap("line\n");
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for broken in [
            lines[..2].concat(),
            lines[1..].concat(),
            text.repeat(2),
            [lines[2], lines[1], lines[0]].concat(),
        ] {
            assert!(BLOCK.find(&broken).is_err(), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn taking_a_block_out_restores_the_text(text in "[ab#\n ]{0,20}", lines in "([a-c ]{0,9}\n){0,3}") {
            let with = BLOCK.append(&text, &lines);
            let found = BLOCK.find(&with).unwrap().unwrap();
            prop_assert!(found.block.contains(&lines));
            prop_assert_eq!(found.remove_block(""), text);
        }
    }
}
