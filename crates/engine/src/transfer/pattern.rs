//! Patterns of names, as shells, scp and rsync have them: `*`, `?`, `[a-z]`, `[[:digit:]]` and `\\`, over bytes.

use regex::bytes::{Regex, RegexBuilder};

use super::path::{is_pattern, shown};
use crate::error::{Error, Invalid};

/// A part of a path that may be a pattern, as glob(3) reads it.
#[derive(Debug)]
pub(super) enum Part {
    /// One name, without its backslashes.
    Name(Vec<u8>),
    /// A pattern.
    Names(Names),
}

/// The names that a pattern matches.
#[derive(Debug)]
pub(super) struct Names {
    expression: Regex,
    /// A leading dot matches only itself.
    hidden: bool,
}

impl Part {
    /// # Errors
    /// The pattern is longer than anybody writes one.
    pub(super) fn new(part: &[u8]) -> Result<Self, Error> {
        // An unclosed bracket stands for itself.
        let Some(body) = expression(part).filter(|_| is_pattern(part)) else {
            return Ok(Self::Name(unescaped(part)));
        };
        let expression = compiled(&format!("^{body}$")).ok_or_else(|| Invalid::Pattern {
            pattern: shown(part),
            why: "a bracket is not closed, or has a class that is not known".into(),
        })?;
        Ok(Self::Names(Names {
            expression,
            hidden: part.starts_with(b".") || part.starts_with(b"\\."),
        }))
    }
}

impl Names {
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        (self.hidden || !name.starts_with(b".")) && self.expression.is_match(name)
    }
}

/// Returns whether a path, read as a pattern, matches itself: `*.gz` does, `x[1].txt` does not.
pub(super) fn matches_itself(path: &[u8]) -> bool {
    is_pattern(path)
        && path
            .split(|byte| *byte == b'/')
            .all(|part| match Part::new(part) {
                Ok(Part::Names(names)) => names.matches(part),
                Ok(Part::Name(name)) => name == part,
                Err(_) => false,
            })
}

/// Removes the backslashes that quote a byte; one at the end stays.
fn unescaped(part: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((&byte, behind)) = rest.split_first() {
        let (byte, behind) = match (byte, behind.split_first()) {
            (b'\\', Some((&byte, behind))) => (byte, behind),
            _ => (byte, behind),
        };
        name.push(byte);
        rest = behind;
    }
    name
}

/// Compiles an expression for bytes; `None` if it takes more memory than any that a person writes.
pub(super) fn compiled(expression: &str) -> Option<Regex> {
    const MOST_MEMORY: usize = 1024 * 1024;
    RegexBuilder::new(expression)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(MOST_MEMORY)
        .build()
        .ok()
}

/// Translates a pattern into an expression for bytes; `None` if a class is not closed.
pub(super) fn expression(mut pattern: &[u8]) -> Option<String> {
    let mut expression = String::new();
    while let Some((&byte, rest)) = pattern.split_first() {
        pattern = rest;
        match byte {
            b'*' => {
                let more = pattern.iter().take_while(|byte| **byte == b'*').count();
                pattern = &pattern[more..];
                expression += if more > 0 { ".*" } else { "[^/]*" };
            }
            b'?' => expression += "[^/]",
            b'[' => {
                let (class, rest) = class(pattern)?;
                expression += &class;
                pattern = rest;
            }
            b'\\' if !pattern.is_empty() => {
                expression += &literal(pattern[0]);
                pattern = &pattern[1..];
            }
            byte => expression += &literal(byte),
        }
    }
    Some(expression)
}

pub(super) fn literal(byte: u8) -> String {
    format!("\\x{byte:02x}")
}

/// The class names allowed between `[:` and `:]`.
const CLASSES: [&str; 12] = [
    "alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
    "xdigit",
];

/// Translates a class after its opening bracket, and returns the rest. A class never matches a slash.
fn class(pattern: &[u8]) -> Option<(String, &[u8])> {
    let (negated, mut rest) = match pattern.first()? {
        b'!' | b'^' => (true, &pattern[1..]),
        _ => (false, pattern),
    };
    let mut members = String::new();
    let mut is_first = true;
    loop {
        match rest {
            [b']', after @ ..] if !is_first => {
                let class = match negated {
                    true => format!("[^/{members}]"),
                    false => format!("[{members}&&[^/]]"),
                };
                return Some((class, after));
            }
            [b'[', b':', after @ ..] if after.windows(2).any(|two| two == b":]") => {
                let end = after.windows(2).position(|two| two == b":]")?;
                let name = std::str::from_utf8(&after[..end]).ok()?;
                if !CLASSES.contains(&name) {
                    return None;
                }
                members += &format!("[:{name}:]");
                rest = &after[end + 2..];
            }
            _ => {
                let (low, after) = member(rest)?;
                rest = after;
                members += &literal(low);
                if let [b'-', next, ..] = rest
                    && *next != b']'
                {
                    let (high, after) = member(&rest[1..])?;
                    rest = after;
                    // A backward range has only its first byte.
                    if high > low {
                        members += &format!("-{}", literal(high));
                    }
                }
            }
        }
        is_first = false;
    }
}

fn member(pattern: &[u8]) -> Option<(u8, &[u8])> {
    match pattern {
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => Some((*byte, rest)),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_match_as_globs_do() {
        for (pattern, matching, others) in [
            ("*.gz", "a.gz *.gz", "a.tar .gz .a.gz"),
            ("**.gz", "a.gz", "a.gzip"),
            (".*", ".a .", "a"),
            ("q\\?*", "q? q?x", "qa"),
            ("[[:alpha:]]1", "a1 Z1", "11 ab1"),
            ("[!a-c]x", "dx", "ax"),
            ("a\\*[12]", "a*1", "ab1"),
        ] {
            let Part::Names(names) = Part::new(pattern.as_bytes()).unwrap() else {
                panic!("{pattern} is a pattern");
            };
            for name in matching.split_whitespace() {
                assert!(names.matches(name.as_bytes()), "{pattern} {name}");
            }
            for name in others.split_whitespace() {
                assert!(!names.matches(name.as_bytes()), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn what_is_no_pattern_is_a_name() {
        for (part, name) in [
            ("a\\ b", "a b"),
            ("q\\\\", "q\\"),
            ("x[1", "x[1"),
            ("end\\", "end\\"),
        ] {
            match Part::new(part.as_bytes()).unwrap() {
                Part::Name(found) => assert_eq!(found, name.as_bytes(), "{part}"),
                Part::Names(_) => panic!("{part} is a name"),
            }
        }
    }

    #[test]
    fn a_name_with_brackets_does_not_match_itself() {
        for (path, does) in [
            ("d/*.gz", true),
            ("*/x", true),
            ("x[1].txt", false),
            ("d[1]/*", false),
            ("plain", false),
        ] {
            assert_eq!(matches_itself(path.as_bytes()), does, "{path}");
        }
    }
}
