//! The output of a test's programs.

use std::fs::{self, File};
use std::path::Path;

/// The file for what a program says, behind what it has said before.
pub(crate) fn log_at(path: &Path) -> File {
    let mut options = File::options();
    options.create(true).append(true).open(path).unwrap()
}

/// The end of what one of this name has said.
pub(crate) fn last_words(name: &str, log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(12)..];
    let lines = last.iter().map(|line| format!("    {line}\n"));
    format!("  {name}:\n{}", lines.collect::<String>())
}
