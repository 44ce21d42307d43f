//! Ansible's host patterns (docs.ansible.com, "Patterns: targeting hosts and groups").

use std::collections::BTreeSet;

use trunkline_request::hosts::matches;

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
        hosts = inventory.members("all");
    }
    for part in plain() {
        hosts.extend(one(part, "")?);
    }
    for part in parts.iter().filter_map(|part| part.strip_prefix('&')) {
        let both = one(part, "&")?;
        hosts.retain(|host| both.contains(host));
    }
    for part in parts.iter().filter_map(|part| part.strip_prefix('!')) {
        let out = one(part, "!")?;
        hosts.retain(|host| !out.contains(host));
    }
    Ok(hosts)
}

/// Splits at commas, or where there are none at colons outside brackets. A regular expression is left whole between
/// commas, and so is an IPv6 address.
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
            c == separator && depth == 0
        })
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

/// One part: a regular expression, or a name with wildcards and a subscript.
fn one<'a>(inventory: &'a Inventory, part: &str) -> Result<BTreeSet<&'a str>, InventoryError> {
    if let Some(expression) = part.strip_prefix('~') {
        // Python's re.match: from the start, not to the end.
        let expression =
            regex::Regex::new(&format!("^(?:{expression})")).map_err(|error| InventoryError::Pattern {
                pattern: part.into(),
                problem: error.to_string(),
            })?;
        return Ok(named(inventory, |name| expression.is_match(name)));
    }
    let (name, subscript) = subscript(part);
    if let Some(subscript) = subscript {
        let members = list(inventory, name);
        let problem = || InventoryError::Pattern {
            pattern: part.into(),
            problem: "a subscript is [n], [-n], [from:to] or [from:]".into(),
        };
        let range = indices(subscript, members.len()).ok_or_else(problem)?;
        return Ok(members.get(range).unwrap_or_default().iter().copied().collect());
    }
    Ok(list(inventory, part).into_iter().collect())
}

/// The hosts of a group, a host or a wildcard, in the order of the inventory.
fn list<'a>(inventory: &'a Inventory, name: &str) -> Vec<&'a str> {
    let hosts = if name == "*" || name == "all" {
        inventory.members("all")
    } else if inventory.groups.contains_key(name) || name == "ungrouped" {
        inventory.members(name)
    } else {
        named(inventory, |candidate| {
            matches(candidate.as_bytes(), name.as_bytes())
        })
    };
    inventory
        .hosts
        .iter()
        .map(String::as_str)
        .filter(|host| hosts.contains(host))
        .collect()
}

/// The hosts that match by name, and those of every group that does.
fn named(inventory: &Inventory, matches: impl Fn(&str) -> bool) -> BTreeSet<&str> {
    let groups = inventory
        .groups
        .keys()
        .filter(|name| matches(name))
        .flat_map(|name| inventory.members(name));
    let hosts = inventory
        .hosts
        .iter()
        .map(String::as_str)
        .filter(|host| matches(host));
    groups.chain(hosts).collect()
}

/// Splits `name[subscript]`; a bracket that holds anything but digits, `-` and `:` belongs to the name.
fn subscript(part: &str) -> (&str, Option<&str>) {
    let split = part.strip_suffix(']').and_then(|part| part.rsplit_once('['));
    match split {
        Some((name, inside))
            if !name.is_empty()
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
