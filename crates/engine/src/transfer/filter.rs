//! [`Filters`]: which names are left out, by rsync's patterns.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use regex::bytes::Regex;
use serde_bytes::ByteBuf;
use trunkline_request::copy::FilterRule;

use super::path::{is_pattern, shown};
use super::pattern::{compiled, expression, literal};
use crate::error::Error;

/// The rules of a copy, in their order.
#[derive(Debug, Clone)]
pub(super) struct Filters {
    rules: Vec<Rule>,
    only: Option<Arc<Only>>,
}

/// The only paths that are copied.
#[derive(Debug)]
struct Only {
    /// Whether each was met.
    paths: HashMap<Vec<u8>, AtomicBool>,
    /// Directories that lead to them.
    directories: HashSet<Vec<u8>>,
}

impl Only {
    fn new(paths: &[ByteBuf]) -> Result<Self, Error> {
        let mut only = Self {
            paths: HashMap::new(),
            directories: HashSet::new(),
        };
        for path in paths {
            let parts = path.split(|byte| *byte == b'/');
            let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
            if parts.contains(&&b".."[..]) {
                let path = shown(path);
                return Err(Error::Invalid(format!(
                    "{path} leads out of the source: write it without .."
                )));
            }
            for end in 1..parts.len() {
                only.directories.insert(parts[..end].join(&b'/'));
            }
            if !parts.is_empty() {
                only.paths.insert(parts.join(&b'/'), AtomicBool::new(false));
            }
        }
        Ok(only)
    }

    fn has(&self, path: &[u8], is_directory: bool) -> bool {
        if let Some(met) = self.paths.get(path) {
            met.store(true, Ordering::Relaxed);
            return true;
        }
        is_directory && self.directories.contains(path)
    }
}

#[derive(Debug, Clone)]
struct Rule {
    include: bool,
    expression: Regex,
    /// It is for directories only.
    directories: bool,
    /// A slash is put before the path: `**/x` is for `x`, too.
    slash_before: bool,
    /// A slash is put behind a directory: `x/***` is for `x`, too.
    slash_behind: bool,
}

impl Filters {
    pub(super) fn new(rules: &[FilterRule], only: Option<&[ByteBuf]>) -> Result<Self, Error> {
        let rules = rules.iter().map(Rule::new).collect::<Result<_, _>>()?;
        let only = only.map(Only::new).transpose()?.map(Arc::new);
        Ok(Self { rules, only })
    }

    /// The paths that were to be copied and are not there.
    pub(super) fn missing(&self) -> Vec<Vec<u8>> {
        let paths = self.only.iter().flat_map(|only| &only.paths);
        let missing = paths.filter(|(_, met)| !met.load(Ordering::Relaxed));
        let mut missing: Vec<_> = missing.map(|(path, _)| path.clone()).collect();
        missing.sort();
        missing
    }

    /// Returns whether a path below a source is left out. The directories that lead to it have been asked about before:
    /// what is in one that is left out is left out, too.
    pub(super) fn leave_out(&self, path: &[u8], is_directory: bool) -> bool {
        if self
            .only
            .as_ref()
            .is_some_and(|only| !only.has(path, is_directory))
        {
            return true;
        }
        let first = self.rules.iter().find(|rule| rule.matches(path, is_directory));
        first.is_some_and(|rule| !rule.include)
    }
}

impl Rule {
    fn new(rule: &FilterRule) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::Invalid(format!(
                "the pattern {} is not valid: {why}",
                shown(&rule.pattern)
            ))
        };
        let (pattern, directories) = match rule.pattern.strip_suffix(b"/") {
            Some(pattern) if !pattern.is_empty() => (pattern, true),
            _ => (&rule.pattern[..], false),
        };
        if pattern.is_empty() {
            return Err(wrong("it is empty"));
        }
        let is_wild = is_pattern(pattern);
        let wild = if is_wild { pattern } else { b"" };
        let any_depth = wild.windows(2).any(|two| two == b"**");
        let slash_before = wild.starts_with(b"**");
        let (anchored, pattern) = match pattern.strip_prefix(b"/") {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        let begin = if anchored || slash_before { "^" } else { "(?:^|/)" };
        let body = match is_wild {
            true => expression(pattern)
                .ok_or_else(|| wrong("a bracket is not closed, or has a class that is not known"))?,
            false => pattern.iter().map(|byte| literal(*byte)).collect(),
        };
        let expression = compiled(&format!("{begin}{body}$"));
        let expression = expression.ok_or_else(|| wrong("the pattern is not valid"))?;
        Ok(Self {
            include: rule.include,
            expression,
            directories,
            slash_before,
            slash_behind: any_depth && wild.ends_with(b"***"),
        })
    }

    fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if self.directories && !is_directory {
            return false;
        }
        let mut path = Cow::Borrowed(path);
        if self.slash_before {
            path.to_mut().insert(0, b'/');
        }
        if self.slash_behind && is_directory {
            path.to_mut().push(b'/');
        }
        self.expression.is_match(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(rules: &[&str], path: &str) -> bool {
        let rules: Vec<FilterRule> = rules
            .iter()
            .map(|rule| FilterRule {
                include: rule.starts_with('+'),
                pattern: rule[2..].into(),
            })
            .collect();
        let filters = Filters::new(&rules, None).unwrap();
        let is_directory = path.ends_with('/');
        filters.leave_out(path.trim_end_matches('/').as_bytes(), is_directory)
    }

    #[test]
    fn patterns_match_as_rsyncs_do() {
        for (pattern, matching, others) in [
            ("*.o", "x.o d/x.o .o", "x.oo x.o/y"),
            ("foo", "foo d/foo d/e/foo foo/", "foobar d/barfoo foo/x"),
            ("/foo", "foo", "d/foo"),
            ("target/", "target/ d/target/", "target d/target"),
            ("a/b", "a/b d/a/b", "b xa/b a/b/c"),
            ("/a/*/c", "a/b/c", "a/c a/b/d/c d/a/b/c"),
            ("/a/**/c", "a/b/c a/b/d/c", "a/c d/a/b/c"),
            ("a/**", "a/b a/b/c d/a/b", "a a/"),
            ("**/c", "c a/c a/b/c", "ac a/bc"),
            ("foo/***", "foo/ foo/x foo/x/y d/foo/", "foo foox/"),
            ("?.c", "a.c d/a.c", "ab.c .c"),
            ("[a-c]x[!0-9]", "axy d/cx-", "ax1 dxy ax/"),
            ("[[:digit:]]*", "1 12ab", "a1"),
            ("[]x]y", "]y xy", "ay"),
            ("a\\*", "a*", "ab a\\*"),
            ("a\\*?", "a*b", "acb"),
            ("x[a/]y", "xay", "x/y"),
            ("*", "a d/e x/", ""),
        ] {
            for path in matching.split_whitespace() {
                assert!(left_out(&[&format!("- {pattern}")], path), "{pattern} {path}");
            }
            for path in others.split_whitespace() {
                assert!(!left_out(&[&format!("- {pattern}")], path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = ["+ */", "+ *.c", "- *"];
        assert!(!left_out(&rules, "d/") && !left_out(&rules, "d/x.c") && left_out(&rules, "d/x.h"));
        assert!(left_out(&["- x.c", "+ *.c"], "x.c"));
        assert!(!left_out(&["+ *.c"], "x.h"), "what no rule matches is copied");
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for pattern in ["", "[a", "[[:what:]]"] {
            let rule = FilterRule {
                include: false,
                pattern: pattern.into(),
            };
            assert!(Filters::new(&[rule], None).is_err(), "{pattern}");
        }
    }
}
