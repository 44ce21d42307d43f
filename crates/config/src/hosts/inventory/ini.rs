//! Ansible's INI: not INI, but lines of host names with shell-like `key=value` words under group headings.

use std::path::Path;

use super::{Inventory, InventoryError, Variables, expand_ranges, keep};

/// What the lines below a heading are.
enum Section {
    Hosts(String),
    Vars(String),
    Children(String),
}

/// Reads one file into `inventory`.
pub(super) fn read(inventory: &mut Inventory, text: &str, file: &Path) -> Result<(), InventoryError> {
    let mut section = Section::Hosts("ungrouped".into());
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = |problem: String| InventoryError::Syntax {
            file: file.into(),
            line: Some(number + 1),
            problem,
        };
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(heading) = heading(line) {
            section = match heading.split_once(':') {
                None => Section::Hosts(heading.into()),
                Some((group, "vars")) => Section::Vars(group.into()),
                Some((group, "children")) => Section::Children(group.into()),
                Some(_) => {
                    return Err(wrong(format!(
                        "[{heading}] is not a valid section: it may end only in :vars, :children or nothing"
                    )));
                }
            };
            let (Section::Hosts(group) | Section::Vars(group) | Section::Children(group)) = &section;
            inventory.add_group(group);
            continue;
        }
        match &section {
            Section::Hosts(group) => host_line(inventory, group, line).map_err(|problem| match problem {
                Problem::Line(problem) => wrong(problem),
                Problem::Inventory(error) => error,
            })?,
            Section::Children(group) => {
                let child = line.split(['#', ' ', '\t']).next().unwrap_or(line);
                inventory.add_group(child);
                inventory.add_group(group).children.insert(child.into());
            }
            Section::Vars(group) => {
                let (name, value) = line
                    .split_once('=')
                    .ok_or_else(|| wrong(format!("expected key=value, found {line:?}")))?;
                keep(
                    &mut inventory.add_group(group).vars.inventory,
                    name.trim(),
                    unquoted(value.trim()).into(),
                );
            }
        }
    }
    Ok(())
}

enum Problem {
    Line(String),
    Inventory(InventoryError),
}

/// `name[:port] key=value ...`, split as shlex.split with comments does.
fn host_line(inventory: &mut Inventory, group: &str, line: &str) -> Result<(), Problem> {
    let words = shlex::split(line).ok_or_else(|| Problem::Line(format!("open quote in {line:?}")))?;
    let Some((name, assignments)) = words.split_first() else {
        return Ok(());
    };
    let mut variables = Variables::new();
    let (name, port) = name_and_port(name);
    if let Some(port) = port {
        keep(&mut variables, "ansible_port", port.into());
    }
    for word in assignments {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| Problem::Line(format!("expected key=value, found {word:?}")))?;
        keep(&mut variables, key, unquoted(value).into());
    }
    for name in expand_ranges(name).map_err(Problem::Line)? {
        let host = inventory.add_host(&name).map_err(Problem::Inventory)?;
        host.inventory.extend(variables.clone());
        inventory.add_group(group).hosts.push(name);
    }
    Ok(())
}

/// The group of `[group]`, `[group:vars]` or `[group:children]`, a comment behind it allowed. `[1:3].example` is
/// a host.
fn heading(line: &str) -> Option<&str> {
    let (inside, after) = line.strip_prefix('[')?.split_once(']')?;
    let after = after.trim_start();
    (after.is_empty() || after.starts_with(['#', ';'])).then(|| inside.trim())
}

/// `host:port`, where the colon is in no bracket and the only one.
fn name_and_port(text: &str) -> (&str, Option<&str>) {
    let outside = |at: usize| text[..at].matches('[').count() == text[..at].matches(']').count();
    let colons: Vec<usize> = text
        .match_indices(':')
        .map(|(at, _)| at)
        .filter(|&at| outside(at))
        .collect();
    if let [at] = colons[..] {
        let (name, port) = (&text[..at], &text[at + 1..]);
        if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
            // "[::1]:22" names an address.
            let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
            return (
                address.filter(|address| address.contains("::")).unwrap_or(name),
                Some(port),
            );
        }
    }
    (text, None)
}

/// Values are Python literals where they can be: of those only the quotes of a string matter here.
fn unquoted(value: &str) -> &str {
    ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote))
        .unwrap_or(value)
}
