//! [`Filters`] excludes names by rsync's patterns.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use regex::bytes::Regex;
use serde_bytes::ByteBuf;
use trunkline_request::copy::FilterRule;

use super::path::{is_pattern, shown};
use super::pattern::{compiled, expression, literal};
use crate::error::{Error, Invalid};

/// The rules of a copy, in their order.
#[derive(Debug, Clone)]
pub(super) struct Filters {
    rules: Vec<Rule>,
    only: Option<Arc<Only>>,
}

/// The only paths that are copied.
#[derive(Debug)]
struct Only {
    /// The paths, and whether each was found.
    paths: HashMap<Vec<u8>, AtomicBool>,
    /// The directories on the way to them.
    directories: HashSet<Vec<u8>>,
    /// Directories among them are copied with their contents.
    recursive: bool,
}

impl Only {
    fn new(paths: &[ByteBuf], recursive: bool) -> Result<Self, Error> {
        let mut only = Self {
            paths: HashMap::new(),
            directories: HashSet::new(),
            recursive,
        };
        for path in paths {
            let mut parts: Vec<&[u8]> = Vec::new();
            for part in path.split(|byte| *byte == b'/') {
                match part {
                    b"" | b"." => {}
                    // By its text, as rsync does it.
                    b".." if parts.pop().is_none() => return Err(Invalid::OutOfSource(shown(path)).into()),
                    b".." => {}
                    part => parts.push(part),
                }
            }
            for end in 1..parts.len() {
                only.directories.insert(parts[..end].join(&b'/'));
            }
            // The source itself is always there.
            only.paths
                .insert(parts.join(&b'/'), AtomicBool::new(parts.is_empty()));
        }
        Ok(only)
    }

    fn has(&self, path: &[u8], is_directory: bool) -> bool {
        if let Some(met) = self.paths.get(path) {
            met.store(true, Ordering::Relaxed);
            return true;
        }
        let mut above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let is_in_one = |end: usize| self.paths.contains_key(&path[..end]);
        is_directory && self.directories.contains(path)
            || self.recursive && (is_in_one(0) || above.any(|(end, _)| is_in_one(end)))
    }
}

#[derive(Debug, Clone)]
struct Rule {
    include: bool,
    expression: Regex,
    /// The rule matches directories only.
    directories: bool,
    /// A slash is put before the path: `**/x` matches `x`, too.
    slash_before: bool,
    /// A slash is put after a directory: `x/***` matches `x`, too.
    slash_behind: bool,
}

impl Filters {
    /// `only` has the only paths to copy, and whether directories among them include their contents.
    pub(super) fn new(rules: &[FilterRule], only: Option<(&[ByteBuf], bool)>) -> Result<Self, Error> {
        let rules = rules.iter().map(Rule::new).collect::<Result<_, _>>()?;
        let only = only.map(|(paths, recursive)| Only::new(paths, recursive));
        let only = only.transpose()?.map(Arc::new);
        Ok(Self { rules, only })
    }

    /// Returns the requested paths that do not exist.
    pub(super) fn missing(&self) -> Vec<Vec<u8>> {
        let paths = self.only.iter().flat_map(|only| &only.paths);
        let missing = paths.filter(|(_, met)| !met.load(Ordering::Relaxed));
        let mut missing: Vec<_> = missing.map(|(path, _)| path.clone()).collect();
        missing.sort();
        missing
    }

    /// Returns whether a path below a source is excluded. The caller has checked the directories on its way: the contents of an
    /// excluded directory are excluded, too.
    pub(super) fn leave_out(&self, path: &[u8], is_directory: bool) -> bool {
        if self.is_unlisted(path, is_directory) {
            return true;
        }
        let first = self.rules.iter().find(|rule| rule.matches(path, is_directory));
        first.is_some_and(|rule| !rule.include)
    }

    /// Returns whether a path is not among the only ones that are copied.
    pub(super) fn is_unlisted(&self, path: &[u8], is_directory: bool) -> bool {
        let only = self.only.as_ref();
        only.is_some_and(|only| !only.has(path, is_directory))
    }
}

impl Rule {
    fn new(rule: &FilterRule) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let (pattern, why) = (shown(&rule.pattern), why.to_owned());
            Error::from(Invalid::Pattern { pattern, why })
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
        let expression = expression.ok_or_else(|| wrong("it is too large"))?;
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
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

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

    #[test]
    fn a_list_names_its_paths_in_any_way_that_stays_in_the_source() {
        let listed = |path: &str| Filters::new(&[], Some((&[ByteBuf::from(path)], true)));
        for (path, is_listed) in [
            ("a/../top", "top"),
            ("./a//b/../../top/.", "top"),
            ("a/b/..", "a"),
            ("/top", "top"),
        ] {
            let filters = listed(path).unwrap();
            assert!(!filters.leave_out(is_listed.as_bytes(), true), "{path}");
            assert!(filters.leave_out(b"other", false), "{path}");
        }
        for path in ["..", "../source/top", "a/../../top"] {
            assert!(listed(path).is_err(), "{path}");
        }
    }

    /// A tree of short names, so that patterns of the same letters match often.
    fn tree() -> Vec<String> {
        let names = ["a", "b", "ab", "a.b", "a*", "[a]", "-a"];
        let mut paths = Vec::new();
        for first in names {
            paths.push(format!("{first}f"));
            for second in ["a", "b", "ab"] {
                paths.extend(["a", "b", "a.b"].map(|third| format!("{first}/{second}/{third}")));
                paths.push(format!("{first}/{second}f"));
            }
        }
        paths
    }

    /// The paths below a directory that a copy with these rules has, sorted: directories end in slashes.
    fn list_copied(root: &std::path::Path, rules: &[FilterRule]) -> Vec<String> {
        let filters = Filters::new(rules, None).unwrap();
        let (mut found, mut directories) = (Vec::new(), vec![root.to_owned()]);
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                if filters.leave_out(name.as_bytes(), path.is_dir()) {
                    continue;
                }
                if path.is_dir() {
                    found.push(name + "/");
                    directories.push(path);
                } else {
                    found.push(name);
                }
            }
        }
        found.sort();
        found
    }

    /// The same of the real rsync.
    fn list_copied_by_rsync(root: &std::path::Path, rules: &[FilterRule]) -> Vec<String> {
        let mut rsync = std::process::Command::new("rsync");
        rsync.args(["-rn", "--out-format=%n"]);
        for rule in rules {
            let word = if rule.include { "--include" } else { "--exclude" };
            rsync.arg(word).arg(std::str::from_utf8(&rule.pattern).unwrap());
        }
        let ran = rsync
            .arg(format!("{}/", root.display()))
            .arg(root.join("no-target"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let lines = String::from_utf8(ran.stdout).unwrap();
        let lines = lines.lines().filter(|line| !matches!(*line, "./" | ""));
        let mut found: Vec<String> = lines.map(str::to_owned).collect();
        // It says once that it would make the target.
        found.retain(|line| !line.starts_with("created directory"));
        found.sort();
        found
    }

    fn rules() -> impl Strategy<Value = Vec<FilterRule>> {
        let pieces = [
            "a", "b", "f", ".", "*", "**", "***", "?", "[ab]", "[!a]", "[a-b]", "/", "\\a", "\\*", "\\[", "-",
        ];
        let pattern = proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 1..6);
        let rule = (any::<bool>(), pattern).prop_map(|(include, pieces)| FilterRule {
            include,
            pattern: pieces.concat().into_bytes(),
        });
        // rsync reads what is before a space as the kind of the rule; and a slash alone is refused here.
        let rule = rule.prop_filter("a pattern", |rule| rule.pattern.iter().any(|byte| *byte != b'/'));
        proptest::collection::vec(rule, 1..5)
    }

    #[test]
    fn any_rules_choose_what_they_choose_for_rsync() {
        let root = tempfile::tempdir().unwrap();
        for path in tree() {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let mut runner = TestRunner::new(ProptestConfig::with_cases(30));
        runner
            .run(&rules(), |rules| {
                let shown: Vec<_> = rules
                    .iter()
                    .map(|rule| (rule.include, shown(&rule.pattern)))
                    .collect();
                prop_assert_eq!(
                    list_copied(root.path(), &rules),
                    list_copied_by_rsync(root.path(), &rules),
                    "{:?}",
                    shown
                );
                Ok(())
            })
            .unwrap();
    }
}
