//! Ansible's host patterns (docs.ansible.com, "Patterns: targeting hosts and groups").

use std::collections::BTreeSet;

use super::{Inventory, InventoryError};

/// The hosts that a pattern means.
///
/// As in Ansible, the order of its parts does not matter: first everything named, then what `&` cuts it down to,
/// then what `!` takes away. Only `!` and `&` start from all hosts. Parts that match nothing are added to `unmatched`.
pub(super) fn evaluate<'a>(
    inventory: &'a Inventory,
    pattern: &str,
    unmatched: &mut Vec<String>,
) -> Result<BTreeSet<&'a str>, InventoryError> {
    let parts = split(pattern);
    let plain = || parts.iter().filter(|part| !part.starts_with(['!', '&']));
    let mut hosts = BTreeSet::new();
    let mut one = |part: &str, sign: &str| {
        let found = one(inventory, part)?;
        if found.is_empty() {
            unmatched.push(format!("{sign}{part}"));
        }
        Ok::<_, InventoryError>(found)
    };
    if plain().next().is_none() {
        hosts.extend(inventory.members("all"));
    }
    for part in plain() {
        // A host goes before a group of the same name.
        match inventory.hosts.iter().find(|host| host == part) {
            Some(host) => hosts.extend([host.as_str()]),
            None => hosts.extend(one(part, "")?),
        }
    }
    for part in parts.iter().filter_map(|part| part.strip_prefix('&')) {
        let both = one(part, "&")?;
        hosts.retain(|host| both.contains(host));
    }
    for part in parts.iter().filter_map(|part| part.strip_prefix('!')) {
        let out = one(part, "!")?;
        // With brackets it is easily written for a pattern of another kind, and would run where it must not.
        if out.is_empty() && part.contains('[') {
            return Err(InventoryError::Pattern {
                pattern: format!("!{part}"),
                problem: "it matches no host, so it would exclude none".into(),
            });
        }
        hosts.retain(|host| !out.contains(host));
    }
    Ok(hosts)
}

/// Splits at commas, in brackets, too, or where there are none at colons outside brackets. A regular expression is left
/// whole between commas, and so is an IPv6 address.
fn split(pattern: &str) -> Vec<&str> {
    let separator = if pattern.contains(',') { ',' } else { ':' };
    let address = pattern
        .trim_start_matches(['!', '&'])
        .parse::<std::net::Ipv6Addr>()
        .is_ok();
    if address {
        return vec![pattern.trim()];
    }
    let mut depth = 0usize;
    pattern
        .split(|c: char| {
            match c {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == separator && (separator == ',' || depth == 0)
        })
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

/// One part: a regular expression, or a name with wildcards and a subscript.
fn one<'a>(inventory: &'a Inventory, part: &str) -> Result<Vec<&'a str>, InventoryError> {
    let malformed = |problem: String| InventoryError::Pattern {
        pattern: part.into(),
        problem,
    };
    let (name, subscript) = subscript(part);
    // Python's re.match: from the start, not to the end.
    let expression = match name.strip_prefix('~') {
        Some(expression) => format!("^(?:{expression})"),
        None => wildcards(name),
    };
    let expression = regex::Regex::new(&expression).map_err(|error| malformed(error.to_string()))?;
    let mut hosts = Vec::new();
    // All are below the group of all.
    let all = inventory.groups_below("all").into_iter();
    let mut groups = all.filter(|group| expression.is_match(group)).peekable();
    let is_group = groups.peek().is_some();
    hosts.extend(groups.flat_map(|group| inventory.members(group)));
    // The plain name of a group means no host.
    if !is_group || name.starts_with('~') || name.contains(['.', '?', '*', '[']) {
        let all = inventory.hosts.iter().map(String::as_str);
        hosts.extend(all.filter(|host| expression.is_match(host)));
    }
    let Some(subscript) = subscript else {
        return Ok(hosts);
    };
    // A host of several groups that match counts several times.
    let range = indices(subscript, hosts.len())
        .ok_or_else(|| malformed("a subscript is [n], [-n], [from:to] or [from:]".into()))?;
    Ok(hosts.get(range).unwrap_or_default().to_vec())
}

/// The regular expression of a pattern of Python's fnmatch: `*`, `?`, `[abc]`, `[a-c]` and `[!abc]`.
fn wildcards(pattern: &str) -> String {
    let mut expression = String::from("(?s)^");
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let mut after = &rest[c.len_utf8()..];
        match c {
            '*' => expression.push_str(".*"),
            '?' => expression.push('.'),
            '[' => match set(after) {
                Some((set, behind)) => {
                    expression.push_str(&set);
                    after = behind;
                }
                None => expression.push_str("\\["),
            },
            c => expression.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
        rest = after;
    }
    expression + "$"
}

/// A set whose bracket has been opened, as a regular expression, and what is behind it; `None` where it is never closed.
/// A `]` that comes first does not close it, and a range that ends before it begins is empty.
fn set(text: &str) -> Option<(String, &str)> {
    let (not, text) = match text.strip_prefix('!') {
        Some(text) => ("^", text),
        None => ("", text),
    };
    let first = text.chars().next()?.len_utf8();
    let close = first + text[first..].find(']')?;
    let members: Vec<char> = text[..close].chars().collect();
    let mut ranges = String::new();
    let mut at = 0;
    while let Some(&from) = members.get(at) {
        let (to, length) = match members.get(at + 1..) {
            Some(['-', to, ..]) => (*to, 3),
            _ => (from, 1),
        };
        at += length;
        if from <= to {
            ranges.push_str(&format!(
                "\\x{{{:x}}}-\\x{{{:x}}}",
                u32::from(from),
                u32::from(to)
            ));
        }
    }
    let set = match (ranges.is_empty(), not) {
        (false, not) => format!("[{not}{ranges}]"),
        (true, "") => r"[^\s\S]".to_owned(),
        (true, _) => ".".to_owned(),
    };
    Some((set, &text[close + 1..]))
}

/// Splits `name[subscript]`; a bracket that holds anything but digits, `-` and `:` belongs to the name, as do those of a
/// regular expression.
fn subscript(part: &str) -> (&str, Option<&str>) {
    let split = part.strip_suffix(']').and_then(|part| part.rsplit_once('['));
    match split {
        Some((name, inside))
            if !name.is_empty()
                && !name.starts_with('~')
                && inside
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || b"-:".contains(&byte)) =>
        {
            (name, Some(inside))
        }
        _ => (part, None),
    }
}

/// `n`, `-n`, `from:to` (both included) and `from:`, within `length`.
fn indices(subscript: &str, length: usize) -> Option<std::ops::Range<usize>> {
    let position = |text: &str| match text.strip_prefix('-') {
        Some(back) => back.parse().ok().map(|back: usize| length.checked_sub(back)),
        None => text.parse().ok().map(Some),
    };
    match subscript.split_once([':']) {
        None => Some(position(subscript)?.map_or(0..0, |at| at..at.saturating_add(1).min(length.max(at)))),
        Some((from, to)) => {
            let from = if from.is_empty() { Some(0) } else { position(from)? };
            let end = if to.is_empty() {
                Some(length)
            } else {
                position(to)?.map(|to| to.saturating_add(1))
            };
            let (from, end) = (from.unwrap_or(0), end.unwrap_or(0).min(length));
            Some(from.min(end)..end)
        }
    }
}
