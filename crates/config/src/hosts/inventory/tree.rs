//! Inventories that are trees: YAML files, and the JSON of `--list`.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Inventory, InventoryError, Variables, expand_ranges, keep};

/// Reads a YAML inventory: `group: {hosts: {name: {var: value}}, vars: {}, children: {group: ...}}`.
pub(super) fn read_yaml(inventory: &mut Inventory, text: &str, file: &Path) -> Result<(), InventoryError> {
    let wrong = |problem: String| InventoryError::Syntax {
        file: file.into(),
        line: None,
        problem,
    };
    let groups = match parse_yaml(text, file)? {
        Value::Null => return Ok(()),
        Value::Object(groups) => groups,
        _ => return Err(wrong("an inventory is a mapping of groups".into())),
    };
    if groups.contains_key("plugin") {
        return Err(InventoryError::NeedsAnsible {
            file: file.into(),
            why: "is the configuration of an inventory plugin",
        });
    }
    for (name, group) in groups {
        yaml_group(inventory, &name, &group, 0).map_err(|problem| match problem {
            Problem::File(problem) => wrong(problem),
            Problem::Inventory(error) => error,
        })?;
    }
    Ok(())
}

enum Problem {
    File(String),
    Inventory(InventoryError),
}

/// Deeper trees are a mistake, and recursion is bounded.
const DEEPEST: usize = 64;

fn yaml_group(inventory: &mut Inventory, name: &str, group: &Value, depth: usize) -> Result<(), Problem> {
    let wrong = |what: &str| Problem::File(format!("group {name}: {what}"));
    if depth > DEEPEST {
        return Err(wrong("groups are nested too deeply"));
    }
    inventory.add_group(name);
    let Some(group) =
        entries(group).map_err(|()| wrong("a group is a mapping of hosts, vars and children"))?
    else {
        return Ok(());
    };
    for (key, value) in group {
        match key.as_str() {
            "hosts" => {
                // A list, or a single name, is a slip that Ansible forgives.
                let single = value
                    .as_str()
                    .map(|name| Map::from_iter([(name.to_owned(), Value::Null)]));
                let hosts = match &single {
                    Some(hosts) => Some(hosts),
                    None => entries(value).map_err(|()| wrong("hosts is a mapping of names"))?,
                };
                for (pattern, own) in hosts.into_iter().flatten() {
                    let mut variables = Variables::new();
                    keep_all(&mut variables, own);
                    for host in expand_ranges(pattern).map_err(Problem::File)? {
                        inventory
                            .add_host(&host)
                            .map_err(Problem::Inventory)?
                            .inventory
                            .extend(variables.clone());
                        inventory.add_group(name).hosts.push(host);
                    }
                }
            }
            "vars" => keep_all(&mut inventory.add_group(name).vars.inventory, value),
            "children" => {
                let children = entries(value).map_err(|()| wrong("children is a mapping of groups"))?;
                for (child, group) in children.into_iter().flatten() {
                    inventory.add_group(name).children.insert(child.clone());
                    yaml_group(inventory, child, group, depth + 1)?;
                }
            }
            other => return Err(wrong(&format!("{other:?} is none of hosts, vars and children"))),
        }
    }
    Ok(())
}

/// Reads what `ansible-inventory --list` and inventory scripts print. Returns whether the variables of all hosts
/// were in it (`_meta`).
pub(super) fn read_list(inventory: &mut Inventory, json: &[u8], file: &Path) -> Result<bool, InventoryError> {
    let wrong = |problem: String| InventoryError::Syntax {
        file: file.into(),
        line: None,
        problem,
    };
    let groups: Map<String, Value> =
        serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
    let mut complete = false;
    for (name, group) in &groups {
        if name == "_meta" {
            let all = group.get("hostvars").and_then(Value::as_object);
            complete = all.is_some();
            for (host, variables) in all.into_iter().flatten() {
                keep_all(&mut inventory.add_host(host)?.inventory, variables);
            }
            continue;
        }
        inventory.add_group(name);
        let hosts = group
            .as_array()
            .or_else(|| group.get("hosts").and_then(Value::as_array));
        for host in hosts.into_iter().flatten().filter_map(Value::as_str) {
            inventory.add_host(host)?;
            inventory.add_group(name).hosts.push(host.into());
        }
        for child in group
            .get("children")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            inventory.add_group(child);
            inventory.add_group(name).children.insert(child.into());
        }
        if let Some(variables) = group.get("vars") {
            keep_all(&mut inventory.add_group(name).vars.inventory, variables);
        }
    }
    Ok(complete)
}

/// Reads a file of `group_vars` or `host_vars`.
pub(super) fn read_vars(variables: &mut Variables, text: &str, file: &Path) -> Result<(), InventoryError> {
    keep_all(variables, &parse_yaml(text, file)?);
    Ok(())
}

/// Keeps the variables of a mapping that are scalars; anything else decides nothing here.
pub(super) fn keep_all(variables: &mut Variables, mapping: &Value) {
    for (name, value) in mapping.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => keep(variables, name, text.clone()),
            Value::Number(number) => keep(variables, name, number.to_string()),
            // ansible-inventory prints an encrypted value as {"__ansible_vault": "$ANSIBLE_VAULT;..."}.
            Value::Object(object) => {
                if let Some(Value::String(vaulted)) = object.get("__ansible_vault") {
                    keep(variables, name, vaulted.clone());
                }
            }
            Value::Null | Value::Bool(_) | Value::Array(_) => {}
        }
    }
}

/// YAML with bounds on depth, aliases and size; JSON is YAML.
fn parse_yaml(text: &str, file: &Path) -> Result<Value, InventoryError> {
    if text.trim_start().starts_with("$ANSIBLE_VAULT") {
        return Err(InventoryError::NeedsAnsible {
            file: file.into(),
            why: "is encrypted with ansible-vault",
        });
    }
    // An empty document, or one of comments, is no error.
    let empty = text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---" || line == "..."
    });
    if empty {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|error| InventoryError::Syntax {
        file: file.into(),
        line: None,
        problem: error.to_string(),
    })
}

fn entries(value: &Value) -> Result<Option<&Map<String, Value>>, ()> {
    match value {
        Value::Null => Ok(None),
        Value::Object(entries) => Ok(Some(entries)),
        _ => Err(()),
    }
}
