//! Lists of hosts, and host list expressions, as in pdsh and ClusterShell.
//!
//! ```
//! use trunkline_request::hosts::expand;
//!
//! assert_eq!(expand("db[08-10],web1,!db09", "/".as_ref())?, ["db08", "db10", "web1"]);
//! # Ok::<(), trunkline_request::hosts::HostListError>(())
//! ```
//!
//! Written here for errors that name the column and for keeping the order: the `hostlist` crate's error is a string
//! without a position, and its list has no bound; `nodeset` folds names into sorted sets and brings a command line
//! parser, a logger and a YAML library.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::destination::{Destination, DestinationError};

pub use pattern::{is_pattern, matches, means_host, nearest};

mod pattern;

/// The most hosts that one list may name.
pub const MOST_HOSTS: usize = 1_000_000;

/// A host of a list: its name there, and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The name in the list, for display.
    pub name: String,
    /// The destination.
    pub destination: Destination,
    /// Arguments for ssh(1).
    #[serde(with = "crate::os_bytes::list")]
    pub ssh_args: Vec<OsString>,
}

impl Target {
    /// Parses `[user@]host[:port]`, an address in brackets with a port, or a URI.
    ///
    /// # Errors
    /// `name` is not a destination.
    pub fn parse(name: &str) -> Result<Self, DestinationError> {
        // As in ssh, several colons without a bracket are an IPv6 address.
        let is_address = !name.contains('[') && name.matches(':').count() > 1;
        let destination = if is_address {
            name.parse()
        } else {
            Destination::parse_hop(name)
        };
        Ok(Self {
            name: name.into(),
            destination: destination?,
            ssh_args: Vec::new(),
        })
    }
}

/// The hosts that a pattern selected from an inventory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The hosts to reach over SSH, in the order of the inventory.
    pub targets: Vec<Target>,
    /// Hosts that were selected but do not use SSH, or cannot be understood.
    pub skipped: Vec<Skipped>,
    /// Parts of the pattern that match nothing.
    pub unmatched: Vec<Unmatched>,
}

/// A part of a pattern that matches no host and no group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmatched {
    /// The part, as it was typed.
    pub part: String,
    /// The most similar known name.
    pub near: Option<String>,
}

/// A selected host that is not a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The host's name in the inventory.
    pub name: String,
    /// The reason, as a sentence for the user.
    pub why: String,
}

/// Returns the hosts in `expression`, in order, each once. Patterns are not expanded.
///
/// Names are separated by commas or white space. `[01-20]` counts, with the width of its first number; `[1-9/2]` counts
/// in steps; `[1,4-6]` lists. Several brackets in a name multiply. `!name` excludes hosts, wherever it stands. `@file`
/// reads a file of expressions, in which `#` begins a comment, and a line is not split at white space alone: in `web1
/// root`, the second word may be anything. A relative path starts at `directory`, and inside a file at that file's
/// directory. Brackets with a colon are an IPv6 address and stay.
///
/// # Errors
/// With a mark below the error, and its file and line; for more than [`MOST_HOSTS`] hosts; for a file that cannot be
/// read.
pub fn expand(expression: &str, directory: &Path) -> Result<Vec<String>, HostListError> {
    let mut list = HostList::read([expression], directory)?;
    let names = list.take_wanted();
    Ok(list.without_excluded(names))
}

/// Converts an expression into exclusions, each with a `!`. A file's hosts are excluded one by one.
///
/// # Errors
/// As for [`expand`], for files.
pub fn exclusions(expression: &str, directory: &Path) -> Result<Vec<String>, HostListError> {
    let mut exclusions = Vec::new();
    for (_, item) in items(expression) {
        let names = match item.starts_with('@') {
            true => expand(item, directory)?,
            false => vec![item.to_owned()],
        };
        exclusions.extend(names.iter().map(|name| format!("!{name}")));
    }
    Ok(exclusions)
}

/// The names and exclusions of host lists. Patterns among the names are not expanded yet.
#[derive(Debug, Default)]
pub struct HostList {
    wanted: Vec<String>,
    exclusions: Vec<Exclusion>,
    /// Excluded names, with the index of their exclusion.
    unwanted: HashMap<String, usize>,
}

/// A `!name` in a list.
#[derive(Debug)]
struct Exclusion {
    /// As it was typed, with its `!`.
    typed: String,
    patterns: Vec<String>,
    took_any: bool,
}

impl HostList {
    /// Reads expressions as [`expand`] does. An exclusion applies to all of them.
    ///
    /// # Errors
    /// As for [`expand`].
    pub fn read<'a>(
        expressions: impl IntoIterator<Item = &'a str>,
        directory: &Path,
    ) -> Result<Self, HostListError> {
        let mut list = Self::default();
        let place = Place {
            file: None,
            line: 0,
            depth: 0,
        };
        for expression in expressions {
            list.add(expression, directory, &place)?;
        }
        Ok(list)
    }

    /// Returns the names and patterns, in order. Names may repeat.
    pub fn take_wanted(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wanted)
    }

    /// Returns the names that are not excluded, each once. Excluding a host excludes it with every user and port.
    pub fn without_excluded(&mut self, mut names: Vec<String>) -> Vec<String> {
        let mut seen = HashSet::new();
        names.retain(|name| !self.excludes(name) && seen.insert(name.clone()));
        names
    }

    fn excludes(&mut self, name: &str) -> bool {
        let host = Target::parse(name).map_or_else(|_| name.to_owned(), |target| target.destination.host);
        let mut excluded = false;
        for spelling in [name, &host] {
            if let Some(&place) = self.unwanted.get(spelling) {
                self.exclusions[place].took_any = true;
                excluded = true;
            }
        }
        for exclusion in &mut self.exclusions {
            let takes = |pattern: &String| {
                [name, &host]
                    .iter()
                    .any(|name| matches(name.as_bytes(), pattern.as_bytes()))
            };
            if exclusion.patterns.iter().any(takes) {
                exclusion.took_any = true;
                excluded = true;
            }
        }
        excluded
    }

    /// Returns the exclusions, as typed, that excluded nothing.
    pub fn idle_exclusions(&self) -> impl Iterator<Item = &str> {
        let idle = self.exclusions.iter().filter(|exclusion| !exclusion.took_any);
        idle.map(|exclusion| exclusion.typed.as_str())
    }
}

/// An error in a host list.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostListError {
    /// The expression is malformed.
    #[error("{place}{problem}\n{}", caret(line, *column))]
    Syntax {
        /// The file and line, followed by a separator; empty for typed expressions.
        place: String,
        /// The line with the error.
        line: String,
        /// The column, from 1, in characters.
        column: usize,
        /// The error there.
        problem: &'static str,
    },
    /// More hosts than [`MOST_HOSTS`].
    #[error("{place}the list names more than {MOST_HOSTS} hosts")]
    TooMany {
        /// As in `Syntax`.
        place: String,
    },
    /// A file of hosts cannot be read.
    #[error("cannot read the host list {file}: {error}")]
    File {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Files include one another too deeply, or in a circle.
    #[error("the host list {0} is named through more than {DEEPEST} files")]
    TooDeep(PathBuf),
}

const DEEPEST: u32 = 8;

/// The longest number in a range; no host name has more digits.
const MOST_DIGITS: usize = 18;

/// The number of characters shown on either side of an error, so that the mark below fits on a terminal of 80 columns.
const SHOWN: usize = 35;

/// Returns the part of a line around a column, with a mark below the column.
fn caret(line: &str, column: usize) -> String {
    let from = column.saturating_sub(SHOWN);
    let shown = line.chars().skip(from).take(2 * SHOWN);
    // Each character must take one column, so that the mark is below the right one.
    let shown: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let before = if from > 0 { "…" } else { "" };
    let behind = if line.chars().count() > from + 2 * SHOWN {
        "…"
    } else {
        ""
    };
    let indent = before.chars().count() + column - 1 - from;
    format!("  {before}{shown}{behind}\n  {:indent$}^", "")
}

/// The place of an expression, for errors.
struct Place<'a> {
    file: Option<&'a Path>,
    line: usize,
    depth: u32,
}

impl Place<'_> {
    fn prefix(&self) -> String {
        self.file
            .map(|file| format!("{}:{}: ", file.display(), self.line))
            .unwrap_or_default()
    }
}

impl HostList {
    fn add(&mut self, text: &str, directory: &Path, place: &Place<'_>) -> Result<(), HostListError> {
        let mut end = 0;
        for (offset, item) in items(text) {
            let wrong = |error: Wrong| error.into_error(text, offset, place);
            let is_second_word = end > 0 && !text[end..offset].contains(',');
            end = offset + item.len();
            if place.file.is_some() && is_second_word {
                return Err(wrong(Wrong {
                    at: 0,
                    problem: "a second word: write one host a line, or commas between hosts",
                }));
            }
            if let Some(file) = item.strip_prefix('@') {
                self.add_file(&directory.join(file), place)?;
                continue;
            }
            let (name, unwanted) = match item.strip_prefix('!') {
                Some(name) => (name, true),
                None => (item, false),
            };
            let skipped = item.len() - name.len();
            let parts = parts(name).map_err(|error| wrong(error.shift(skipped)))?;
            let count = parts
                .iter()
                .try_fold(1u64, |count, part| count.checked_mul(part.count()));
            let room = (MOST_HOSTS - self.wanted.len().min(MOST_HOSTS)) as u64;
            let room = if unwanted { MOST_HOSTS as u64 } else { room };
            if count.is_none_or(|count| count > room) {
                return Err(HostListError::TooMany {
                    place: place.prefix(),
                });
            }
            if unwanted {
                let exclusion = self.exclusions.len();
                let mut patterns = Vec::new();
                write_out(&parts, &mut |name| {
                    if is_pattern(&name) {
                        patterns.push(name);
                    } else {
                        self.unwanted.insert(name, exclusion);
                    }
                });
                self.exclusions.push(Exclusion {
                    typed: item.to_owned(),
                    patterns,
                    took_any: false,
                });
            } else {
                write_out(&parts, &mut |name| self.wanted.push(name));
            }
            if self.unwanted.len() > MOST_HOSTS {
                return Err(HostListError::TooMany {
                    place: place.prefix(),
                });
            }
        }
        Ok(())
    }

    fn add_file(&mut self, file: &Path, place: &Place<'_>) -> Result<(), HostListError> {
        if place.depth == DEEPEST {
            return Err(HostListError::TooDeep(file.into()));
        }
        let text = fs::read_to_string(file).map_err(|error| HostListError::File {
            file: file.into(),
            error,
        })?;
        let directory = file.parent().unwrap_or(Path::new("/"));
        // Windows editors begin files with it.
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let place = Place {
                file: Some(file),
                line: number + 1,
                depth: place.depth + 1,
            };
            self.add(line, directory, &place)?;
        }
        Ok(())
    }
}

/// A problem and its byte offset.
struct Wrong {
    at: usize,
    problem: &'static str,
}

impl Wrong {
    fn shift(self, by: usize) -> Self {
        Self {
            at: self.at + by,
            ..self
        }
    }

    fn into_error(self, text: &str, offset: usize, place: &Place<'_>) -> HostListError {
        let before = text.get(..offset + self.at).unwrap_or(text);
        let column = before.chars().count() + 1;
        HostListError::Syntax {
            place: place.prefix(),
            line: text.to_owned(),
            column,
            problem: self.problem,
        }
    }
}

/// Splits at commas and white space outside brackets. Returns items with their byte offsets.
fn items(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut depth = 0usize;
    let mut start = 0;
    let ends = text
        .char_indices()
        .map(|(at, c)| (at, at + c.len_utf8(), c))
        .chain([(text.len(), text.len(), ',')]);
    ends.filter_map(move |(at, next, c)| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        // The end of the text ends an item even inside brackets, so that the missing bracket is reported.
        let separates = at == text.len() || depth == 0 && (c == ',' || c.is_whitespace());
        if !separates {
            return None;
        }
        let item = (start, &text[start..at]);
        start = next;
        (!item.1.is_empty()).then_some(item)
    })
}

/// A part of a name.
enum Part<'a> {
    Text(&'a str),
    Ranges(Vec<Range>),
}

/// `first-last/step`, with each number at least `width` digits wide.
struct Range {
    first: u64,
    last: u64,
    step: u64,
    width: usize,
}

impl Part<'_> {
    fn count(&self) -> u64 {
        match self {
            Part::Text(_) => 1,
            Part::Ranges(ranges) => ranges
                .iter()
                .map(|range| (range.last - range.first) / range.step + 1)
                .fold(0, u64::saturating_add),
        }
    }
}

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Returns true for control characters, and for those that turn or join text without a width of their own.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | BYTE_ORDER_MARK)
}

fn parts(name: &str) -> Result<Vec<Part<'_>>, Wrong> {
    let mut parts = Vec::new();
    let mut rest = name;
    let at = |rest: &str| name.len() - rest.len();
    if name.is_empty() {
        return Err(Wrong {
            at: 0,
            problem: "a name is missing",
        });
    }
    if let Some(at) = name.find(is_invisible) {
        return Err(Wrong {
            at,
            problem: "an invisible character, which no host name has",
        });
    }
    if let Some(at) = name.find('!') {
        // ClusterShell's notation of a difference.
        return Err(Wrong {
            at,
            problem: "an exclusion is an item of its own: put a comma before \"!\"",
        });
    }
    while let Some(open) = rest.find(['[', ']']) {
        let (text, bracket) = rest.split_at(open);
        if bracket.starts_with(']') {
            return Err(Wrong {
                at: at(bracket),
                problem: "unmatched \"]\"",
            });
        }
        let Some(close) = bracket.find(']') else {
            return Err(Wrong {
                at: at(bracket),
                problem: "unmatched \"[\"",
            });
        };
        let inside = &bracket[1..close];
        if inside.contains(':') {
            parts.push(Part::Text(&rest[..open + close + 1]));
        } else {
            if !text.is_empty() {
                parts.push(Part::Text(text));
            }
            parts.push(Part::Ranges(
                ranges(inside).map_err(|error| error.shift(at(bracket) + 1))?,
            ));
        }
        rest = &bracket[close + 1..];
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    Ok(parts)
}

fn ranges(inside: &str) -> Result<Vec<Range>, Wrong> {
    let mut start = 0;
    inside
        .split(',')
        .map(|text| {
            let range = range(text).map_err(|problem| Wrong { at: start, problem });
            start += text.len() + 1;
            range
        })
        .collect()
}

fn range(text: &str) -> Result<Range, &'static str> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let fits = text.len() <= MOST_DIGITS;
        text.parse::<u64>()
            .ok()
            .filter(|_| digits && fits)
            .ok_or("expected a number or a range such as 01-20")
    };
    let (span, step) = text.split_once('/').unwrap_or((text, "1"));
    let (first, last) = span.split_once('-').unwrap_or((span, span));
    let (from, to, step) = (number(first)?, number(last)?, number(step)?);
    if from > to {
        return Err("the range ends before it begins");
    }
    if step == 0 {
        return Err("the step of a range is at least 1");
    }
    Ok(Range {
        first: from,
        last: to,
        step,
        width: first.len(),
    })
}

/// Generates every combination; the last bracket counts fastest.
fn write_out(parts: &[Part<'_>], take: &mut impl FnMut(String)) {
    fn go(parts: &[Part<'_>], name: &mut String, take: &mut impl FnMut(String)) {
        let Some((part, rest)) = parts.split_first() else {
            take(name.clone());
            return;
        };
        let length = name.len();
        match part {
            Part::Text(text) => {
                name.push_str(text);
                go(rest, name, take);
                name.truncate(length);
            }
            Part::Ranges(ranges) => {
                for range in ranges {
                    let mut number = range.first;
                    while number <= range.last {
                        name.push_str(&format!("{number:0width$}", width = range.width));
                        go(rest, name, take);
                        name.truncate(length);
                        number += range.step;
                    }
                }
            }
        }
    }
    go(parts, &mut String::new(), take);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(expression: &str) -> Vec<String> {
        expand(expression, Path::new("/")).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    fn column(expression: &str) -> usize {
        match expand(expression, Path::new("/")) {
            Err(HostListError::Syntax { column, .. }) => column,
            other => panic!("{expression}: {other:?}"),
        }
    }

    #[test]
    fn ranges_count_as_wide_as_they_are_written() {
        assert_eq!(names("db[08-11],web1"), ["db08", "db09", "db10", "db11", "web1"]);
        assert_eq!(names("n[8-11]"), ["n8", "n9", "n10", "n11"]);
        assert_eq!(names("n[1-9/4]"), ["n1", "n5", "n9"]);
    }

    #[test]
    fn brackets_multiply_and_list() {
        assert_eq!(
            names("r[1-2]n[1,3-4].x"),
            ["r1n1.x", "r1n3.x", "r1n4.x", "r2n1.x", "r2n3.x", "r2n4.x"]
        );
        assert_eq!(names("rack[1-3]n[001-100]").len(), 300);
    }

    #[test]
    fn a_host_comes_once_and_may_be_taken_away() {
        assert_eq!(names("!c,b,a,b c a,,"), ["b", "a"]);
        assert_eq!(names("db[1-5],!db[2-4]"), ["db1", "db5"]);
    }

    #[test]
    fn an_exclusion_takes_hosts_away_by_name_and_pattern_and_says_if_there_were_none() {
        let mut list =
            HostList::read(["web1,me@web2:22,old-1", "!web2,!old-*,!db[1-3]"], Path::new("/")).unwrap();
        let names = list.take_wanted();
        assert_eq!(list.without_excluded(names), ["web1"]);
        assert_eq!(list.idle_exclusions().collect::<Vec<_>>(), ["!db[1-3]"]);
    }

    #[test]
    fn a_list_can_be_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("down"), "web7\nweb9 # since Monday\n").unwrap();
        let taken = exclusions("web[1,3], db*,@down", directory.path()).unwrap();
        assert_eq!(taken, ["!web[1,3]", "!db*", "!web7", "!web9"]);
        assert!(exclusions("@none", directory.path()).is_err());
    }

    #[test]
    fn a_host_may_have_a_user_and_a_port() {
        let parts = |name: &str| {
            let Destination { user, host, port } = Target::parse(name).unwrap().destination;
            (user.unwrap_or_default(), host, port)
        };
        assert_eq!(parts("me@web1:2222"), ("me".into(), "web1".into(), Some(2222)));
        assert_eq!(parts("::1"), (String::new(), "::1".into(), None));
        assert_eq!(parts("me@[::1]:22"), ("me".into(), "::1".into(), Some(22)));
        assert_eq!(parts("ssh://web1:22"), (String::new(), "web1".into(), Some(22)));
        assert!(Target::parse("web1:http").is_err());
    }

    #[test]
    fn a_mark_stands_under_what_is_wrong() {
        assert_eq!(caret("db[1-", 3), "  db[1-\n    ^");
        let long = format!("{}db[x]{}", "web1,".repeat(40), ",web2".repeat(40));
        let shown = caret(&long, 204);
        let (line, mark) = shown.split_once('\n').unwrap();
        let column = mark.chars().count() - 1;
        assert_eq!(line.chars().nth(column), Some('x'), "{shown}");
        assert!(line.chars().count() <= 80, "{shown}");
    }

    #[test]
    fn an_address_in_brackets_is_no_range() {
        assert_eq!(
            names("ssh://u@[::1]:22,[fe80::1]"),
            ["ssh://u@[::1]:22", "[fe80::1]"]
        );
    }

    #[test]
    fn errors_name_the_column() {
        assert_eq!(column("a,db[1-"), 5);
        assert_eq!(column("é,db]"), 5);
        assert_eq!(column("db[1-2,x]"), 8);
        assert_eq!(column("!db[9-2]"), 5);
        assert_eq!(column("db[]"), 4);
        assert_eq!(column("db[1-2/0]"), 4);
        assert_eq!(column("a,!"), 4);
        assert_eq!(column("web[1-3]!web2"), 9);
    }

    #[test]
    fn files_hold_expressions_and_comments() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("all"), "web[1-2] # front\n\n@more\n!web1\n").unwrap();
        fs::write(directory.path().join("more"), "db[1\n").unwrap();
        let error = expand("@all", directory.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("more:1: unmatched \"[\"\n  db[1\n    ^"),
            "{error}"
        );
        fs::write(directory.path().join("more"), "db1").unwrap();
        assert_eq!(expand("@all", directory.path()).unwrap(), ["web2", "db1"]);
        fs::write(directory.path().join("more"), "@all").unwrap();
        assert!(matches!(
            expand("@all", directory.path()),
            Err(HostListError::TooDeep(_))
        ));
        assert!(matches!(
            expand("@none", directory.path()),
            Err(HostListError::File { .. })
        ));
    }

    #[test]
    fn a_file_names_hosts_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            fs::write(directory.path().join("list"), text).unwrap();
            expand("@list", directory.path()).map_err(|error| error.to_string())
        };
        for (text, says) in [
            (
                "web1 root\n",
                "list:1: a second word: write one host a line, or commas between hosts\n  web1 root\n       ^",
            ),
            ("10.0.0.1\tweb1\n", "list:1: a second word"),
            ("web1\nweb2,web3 root\n", "list:2: a second word"),
            (
                "we\u{200b}b1\n",
                "list:1: an invisible character, which no host name has",
            ),
            ("web1\n\u{feff}web2\n", "list:2: an invisible character"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
        assert_eq!(
            read("\u{feff}web1\r\nweb2 , web3\n").unwrap(),
            ["web1", "web2", "web3"]
        );
        assert_eq!(read("web1 # root\n").unwrap(), ["web1"]);
    }

    #[test]
    fn an_endless_list_is_refused_before_it_is_written_out() {
        for expression in [
            "n[1-1000001]",
            "n[0-999][0-999],x",
            "a[0-999999999999999999][0-999999999999999999]",
            "!n[1-2000000]",
        ] {
            assert!(
                matches!(
                    expand(expression, Path::new("/")),
                    Err(HostListError::TooMany { .. })
                ),
                "{expression}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), near in "[a\\[\\]0-9,!/ -]{0,24}") {
            // `@` reads files; this directory has none.
            let _ = expand(&text, Path::new("/nonexistent"));
            let _ = expand(&near, Path::new("/nonexistent"));
        }

        #[test]
        fn a_range_holds_every_number(first in 0u32..500, length in 0u32..500, width in 1usize..6) {
            let last = first + length;
            let written = names(&format!("h[{first:0width$}-{last}]"));
            let wanted: Vec<_> = (first..=last).map(|n| format!("h{n:0width$}", width = width)).collect();
            prop_assert_eq!(written, wanted);
        }
    }
}
