//! Ansible's host patterns (docs.ansible.com, "Patterns: targeting hosts and groups").

use std::collections::BTreeSet;

use super::{Inventory, InventoryError};

/// Returns the hosts of a pattern.
///
/// As in Ansible, the order of the parts does not matter: plain parts add hosts, then `&` cuts them down, then `!`
/// takes some away. A pattern of only `!` and `&` starts from all hosts. Adds parts that match nothing to `unmatched`.
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
        // Brackets are easily meant for another kind of pattern; the command would then run on the wrong hosts.
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

/// Splits at commas, even in brackets, or, if there are none, at colons outside brackets. Leaves a regular expression
/// between commas and an IPv6 address whole.
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

/// Evaluates one part: a regular expression, or a name with wildcards and a subscript.
fn one<'a>(inventory: &'a Inventory, part: &str) -> Result<Vec<&'a str>, InventoryError> {
    let malformed = |problem: String| InventoryError::Pattern {
        pattern: part.into(),
        problem,
    };
    let (name, subscript) = subscript(part);
    // Like Python's re.match, it must match at the start, not up to the end.
    let expression = match name.strip_prefix('~') {
        Some(expression) => format!("^(?:{expression})"),
        None => wildcards(name),
    };
    let expression = regex::Regex::new(&expression).map_err(|error| malformed(error.to_string()))?;
    let mut hosts = Vec::new();
    // Every group is below the group of all.
    let all = inventory.groups_below("all").into_iter();
    let mut groups = all.filter(|group| expression.is_match(group)).peekable();
    let is_group = groups.peek().is_some();
    hosts.extend(groups.flat_map(|group| inventory.members(group)));
    // The plain name of a group matches no host.
    if !is_group || name.starts_with('~') || name.contains(['.', '?', '*', '[']) {
        let all = inventory.hosts.iter().map(String::as_str);
        hosts.extend(all.filter(|host| expression.is_match(host)));
    }
    let Some(subscript) = subscript else {
        return Ok(hosts);
    };
    // A host of several matching groups counts several times.
    let range = indices(subscript, hosts.len())
        .ok_or_else(|| malformed("a subscript is [n], [-n], [from:to] or [from:]".into()))?;
    Ok(hosts.get(range).unwrap_or_default().to_vec())
}

/// Translates a pattern of Python's fnmatch: `*`, `?`, `[abc]`, `[a-c]` and `[!abc]`.
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

/// Translates a set after its opening bracket, and returns the text behind it; `None` if it is never closed. A `]` in
/// front does not close it, and a range that ends before it begins is empty.
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

/// Splits `name[subscript]`. A bracket that holds more than digits, `-` and `:` belongs to the name, as do those of a
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

/// Parses `n`, `-n`, `from:to` (both included) and `from:`, within `length`.
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
