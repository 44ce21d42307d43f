//! Folds many names of hosts: `web[01-05,07],db1`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Folds names that differ in numbers into ranges, as `nodeset -f` does. The result expands to exactly these names,
/// each once; groups are in natural order.
///
/// Zero padding is kept: `01` and `10` fold to `[01,10]`, `1` and `10` to `[1,10]`. A name with a bracket, a comma or a
/// space cannot be part of an expression and stays separate.
pub(crate) fn fold<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: BTreeSet<Pattern> = names
        .into_iter()
        .map(|name| Pattern::from_name(name.as_ref()))
        .collect();
    let mut patterns: Vec<Pattern> = names.into_iter().collect();
    let most_numbers = patterns
        .iter()
        .map(|pattern| pattern.numbers.len())
        .max()
        .unwrap_or(0);
    // The last number usually varies fastest: rack1n01, rack1n02, … rack2n01.
    for place in (0..most_numbers).rev() {
        patterns = merge(patterns, place);
    }
    let folded: Vec<String> = patterns.iter().map(Pattern::expression).collect();
    folded.join(",")
}

/// Returns the key for natural order: web2 before web10.
pub(crate) fn natural(name: &str) -> impl Ord + use<> {
    Pattern::from_name(name)
}

/// A name, or several that differ only in numbers: the product of its number sets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern {
    /// The text before each number, and after the last one.
    texts: Vec<String>,
    numbers: Vec<Numbers>,
}

/// The numbers at one position, with the same padding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Numbers {
    values: BTreeSet<u64>,
    /// The number of digits after zero padding; 0 for none.
    width: usize,
}

/// Longer digits, which do not fit into a u64, are text.
const MAX_DIGITS: usize = 18;

impl Pattern {
    fn from_name(name: &str) -> Self {
        let mut pattern = Self {
            texts: vec![String::new()],
            numbers: Vec::new(),
        };
        if name.contains(['[', ']', ',', ' ']) {
            name.clone_into(&mut pattern.texts[0]);
            return pattern;
        }
        let mut rest = name;
        while !rest.is_empty() {
            let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let (text, behind) = rest.split_at(text);
            let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
            let (digits, behind) = behind.split_at(digits);
            rest = behind;
            let before = pattern
                .texts
                .last_mut()
                .expect("texts begin with one and only grow");
            before.push_str(text);
            match digits.parse() {
                Ok(value) if digits.len() <= MAX_DIGITS => {
                    let width = if digits.len() > 1 && digits.starts_with('0') {
                        digits.len()
                    } else {
                        0
                    };
                    pattern.numbers.push(Numbers {
                        values: BTreeSet::from([value]),
                        width,
                    });
                    pattern.texts.push(String::new());
                }
                _ => before.push_str(digits),
            }
        }
        pattern
    }

    fn expression(&self) -> String {
        let mut expression = self.texts.first().cloned().unwrap_or_default();
        for (numbers, text) in self.numbers.iter().zip(self.texts.iter().skip(1)) {
            expression.push_str(&numbers.expression());
            expression.push_str(text);
        }
        expression
    }
}

impl Numbers {
    fn expression(&self) -> String {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for &value in &self.values {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == value => *last = value,
                _ => ranges.push((value, value)),
            }
        }
        let width = self.width;
        let mut expression = String::new();
        for (index, (first, last)) in ranges.iter().enumerate() {
            // Writing to a String cannot fail.
            _ = write!(expression, "{}{first:0width$}", if index == 0 { "" } else { "," });
            if first != last {
                _ = write!(expression, "-{last:0width$}");
            }
        }
        if self.values.len() == 1 {
            expression
        } else {
            format!("[{expression}]")
        }
    }
}

/// Merges the patterns that differ only in the number at `place`.
fn merge(patterns: Vec<Pattern>, place: usize) -> Vec<Pattern> {
    let mut united = BTreeMap::<(Vec<String>, Vec<Numbers>), BTreeMap<usize, BTreeSet<u64>>>::new();
    let mut others = Vec::new();
    for mut pattern in patterns {
        if place >= pattern.numbers.len() {
            others.push(pattern);
            continue;
        }
        let numbers = pattern.numbers.remove(place);
        let by_width = united.entry((pattern.texts, pattern.numbers)).or_default();
        by_width.entry(numbers.width).or_default().extend(numbers.values);
    }
    for ((texts, rest), mut by_width) in united {
        join_padded(&mut by_width);
        for (width, values) in by_width {
            let mut numbers = rest.clone();
            numbers.insert(place, Numbers { values, width });
            others.push(Pattern {
                texts: texts.clone(),
                numbers,
            });
        }
    }
    others.sort();
    others
}

/// Joins unpadded numbers of full width: `10` beside `01` belongs to `[01-10]`.
fn join_padded(by_width: &mut BTreeMap<usize, BTreeSet<u64>>) {
    let Some(mut unpadded) = by_width.remove(&0) else {
        return;
    };
    for (&width, padded) in by_width.iter_mut() {
        let digits = |value: &u64| value.checked_ilog10().map_or(1, |log| log as usize + 1);
        let (fitting, rest) = unpadded.into_iter().partition(|value| digits(value) == width);
        let fitting: BTreeSet<u64> = fitting;
        padded.extend(fitting);
        unpadded = rest;
    }
    if !unpadded.is_empty() {
        by_width.insert(0, unpadded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_fold_at_their_numbers() {
        for (names, folded) in [
            ("", ""),
            ("web1", "web1"),
            ("web01 web02 web03 web05", "web[01-03,05]"),
            ("web9 web10 web11", "web[9-11]"),
            ("web09 web10 web11 web1", "web1,web[09-11]"),
            ("db1 web2 web1 db1", "db1,web[1-2]"),
            ("rack1n01 rack1n02 rack2n01 rack2n02", "rack[1-2]n[01-02]"),
            ("rack1n1 rack2n2", "rack1n1,rack2n2"),
            ("10.0.0.7 10.0.0.8 10.0.1.7", "10.0.0.[7-8],10.0.1.7"),
            ("a1.example.com a2.example.com", "a[1-2].example.com"),
            ("u@h1:22 u@h2:22", "u@h[1-2]:22"),
            ("n00 n0 n1", "n00,n[0-1]"),
            ("h99999999999999999999 h1", "h1,h99999999999999999999"),
            ("[::1] [::2]", "[::1],[::2]"),
        ] {
            assert_eq!(fold(names.split_whitespace()), folded, "{names}");
        }
    }

    /// Returns the names of an expression, by a simple method.
    fn expand(expression: &str) -> Vec<String> {
        let mut depth = 0;
        let parts = expression.split(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            c == ',' && depth == 0
        });
        parts.flat_map(expand_one).collect()
    }

    fn expand_one(part: &str) -> Vec<String> {
        let Some((before, rest)) = part.split_once('[') else {
            return vec![part.to_owned()];
        };
        let (ranges, after) = rest.split_once(']').expect("a bracket that opens also closes");
        let tails = expand_one(after);
        let mut names = Vec::new();
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |digits: &str| digits.parse::<u64>().expect("a range has numbers");
            for value in number(first)..=number(last) {
                let width = first.len();
                names.extend(tails.iter().map(|tail| format!("{before}{value:0width$}{tail}")));
            }
        }
        names
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_folded_expands_to_the_same_names(
            names in prop::collection::vec("[ab]?[0-9]{0,3}-?[0-9]{0,2}c?", 0..40),
        ) {
            let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
            let folded = fold(&names);
            let mut expanded: Vec<String> = if folded.is_empty() { Vec::new() } else { expand(&folded) };
            expanded.sort();
            let unique: BTreeSet<String> = names.into_iter().collect();
            prop_assert_eq!(expanded, unique.into_iter().collect::<Vec<_>>(), "{}", folded);
        }

        #[test]
        fn folding_is_total(names in prop::collection::vec(any::<String>(), 0..10)) {
            fold(&names);
        }
    }
}
