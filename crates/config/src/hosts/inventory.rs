//! Ansible inventories, which Ansible reads: the hosts of a pattern, and the way to reach each.

mod memory;
mod pattern;
mod source;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trunkline_request::hosts::nearest;

use super::{Selection, Skipped, Target, Unmatched};
use crate::destination::Destination;
use crate::ssh_config::World;

/// Groups, hosts, and the variables that decide how a host is reached.
///
/// Everything else in an inventory, above all secrets, is skipped and not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Every host, in the order of its groups.
    hosts: Vec<String>,
    variables: HashMap<String, Variables>,
    groups: BTreeMap<String, Group>,
    /// The settings of ansible.cfg and the environment, used if no variable overrides them.
    defaults: Variables,
}

/// The reason why an inventory could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// A file or directory cannot be read.
    #[error("cannot read the inventory {file}: {error}")]
    File {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Ansible is not installed.
    #[error(
        "reading an inventory takes ansible-inventory, which is not on the PATH: install ansible-core, or put the hosts' \
         names into a file and use -H @FILE"
    )]
    NoAnsible,
    /// `ansible-inventory` failed.
    #[error("{program} failed: {problem}")]
    Program {
        /// The program.
        program: PathBuf,
        /// Its complaint.
        problem: String,
    },
    /// A host pattern is malformed.
    #[error("the host pattern {pattern:?} is malformed: {problem}")]
    Pattern {
        /// The malformed part of the pattern.
        pattern: String,
        /// The error.
        problem: String,
    },
    /// The inventory has more hosts than [`MOST_HOSTS`](super::MOST_HOSTS).
    #[error("the inventory has more than {} hosts", super::MOST_HOSTS)]
    TooMany,
}

impl Inventory {
    /// Reads inventories of every kind that Ansible knows (files, directories, scripts, plugins, pipes), merged in the
    /// order given, with the `ansible-inventory` on the caller's `PATH`. It runs in the caller's world, up to a minute.
    ///
    /// Keeps the answer in the caller's cache directory and reuses it while the files behind it stay the same. Never
    /// keeps the answers of scripts and plugins.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn load(sources: &[PathBuf], world: &World) -> Result<Self, InventoryError> {
        let program = source::ansible_inventory(world).ok_or(InventoryError::NoAnsible)?;
        let sources: Vec<PathBuf> = sources.iter().map(|source| world.absolute(source)).collect();
        for file in &sources {
            // Ansible takes a missing list for one without hosts.
            let readable = std::fs::metadata(file);
            readable.map_err(|error| InventoryError::File {
                file: file.clone(),
                error,
            })?;
        }
        let before = memory::Key::new(&program, &sources, world);
        if let Some(known) = before.as_ref().and_then(|key| key.recall(world)) {
            return Ok(known);
        }
        let (json, options) = tokio::try_join!(
            source::list(&program, &sources, world),
            source::ssh_options(&program, world),
        )?;
        let unreadable = |problem: Problem| match problem {
            Problem::Inventory(error) => error,
            Problem::Json(problem) => InventoryError::Program {
                program: program.clone(),
                problem,
            },
        };
        let mut inventory = Self::from_json(&json).map_err(unreadable)?;
        inventory.defaults = defaults(&options).map_err(unreadable)?;
        // A file that changed meanwhile may have been read before or after the change.
        if before.is_some() && memory::Key::new(&program, &sources, world) == before {
            before.inspect(|key| key.remember(&inventory, world));
        }
        Ok(inventory)
    }

    /// Reads the output of `ansible-inventory --list`: the hosts and children of each group, and each host's variables
    /// including those of its groups.
    fn from_json(json: &[u8]) -> Result<Self, Problem> {
        let groups: Map<String, Value> =
            serde_json::from_slice(json).map_err(|error| Problem::Json(error.to_string()))?;
        let mut inventory = Self::default();
        let names = |group: &Value, of: &str| -> Vec<String> {
            let listed = group.get(of).and_then(Value::as_array).into_iter().flatten();
            listed.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        for (name, group) in groups.iter().filter(|(name, _)| *name != "_meta") {
            let group = Group {
                hosts: names(group, "hosts"),
                children: names(group, "children"),
            };
            for child in &group.children {
                inventory.groups.entry(child.clone()).or_default();
            }
            inventory.groups.insert(name.clone(), group);
        }
        // As in Ansible, a group that is in no other belongs to the group of all.
        let inner: BTreeSet<_> = inventory
            .groups
            .values()
            .flat_map(|group| &group.children)
            .collect();
        let outer = inventory
            .groups
            .keys()
            .filter(|name| *name != "all" && !inner.contains(name));
        let outer: Vec<_> = outer.cloned().collect();
        let all = inventory.groups.entry("all".into()).or_default();
        all.children.extend(outer);
        let mut known = BTreeSet::new();
        let listed = inventory.hosts_below("all");
        let others = inventory
            .groups
            .values()
            .flat_map(|group| group.hosts.iter().map(String::as_str));
        let ordered = listed.into_iter().chain(others);
        inventory.hosts = ordered
            .filter(|host| known.insert(*host))
            .map(str::to_owned)
            .collect();
        if inventory.hosts.len() > super::MOST_HOSTS {
            return Err(Problem::Inventory(InventoryError::TooMany));
        }
        let variables = groups
            .get("_meta")
            .and_then(|meta| meta.get("hostvars")?.as_object());
        for (host, variables) in variables.into_iter().flatten() {
            inventory
                .variables
                .insert(host.clone(), connection_variables(variables));
        }
        Ok(inventory)
    }

    /// Returns the hosts of `pattern` that also belong to `limit`.
    ///
    /// Both are Ansible's host patterns: names, groups and wildcards joined by `:` or `,`, `&` to intersect, `!` to
    /// exclude, `~` before a regular expression, `group[0]` and `group[1:3]`.
    ///
    /// # Errors
    /// [`InventoryError::Pattern`].
    pub fn select(&self, pattern: &str, limit: Option<&str>) -> Result<Selection, InventoryError> {
        let mut unmatched = Vec::new();
        let mut chosen = pattern::evaluate(self, pattern, &mut unmatched)?;
        if let Some(limit) = limit {
            let limit = pattern::evaluate(self, limit, &mut unmatched)?;
            chosen.retain(|host| limit.contains(host));
        }
        let mut selection = Selection {
            unmatched: unmatched
                .into_iter()
                .map(|part| self.to_unmatched(part))
                .collect(),
            ..Selection::default()
        };
        for name in self.hosts.iter().filter(|host| chosen.contains(host.as_str())) {
            match target(name, &self.variables_of(name)) {
                Ok(target) => selection.targets.push(target),
                Err(why) => selection.skipped.push(Skipped {
                    name: name.clone(),
                    why,
                }),
            }
        }
        Ok(selection)
    }

    /// Returns a host's variables, completed with the configuration's.
    fn variables_of(&self, host: &str) -> Variables {
        let mut variables = self.variables.get(host).cloned().unwrap_or_default();
        for (name, value) in &self.defaults {
            let names = ONE_MEANING.iter().find(|names| names.contains(&name.as_str()));
            let is_set = |name: &str| variables.get(name).is_some_and(|value| !value.is_empty());
            if !names.is_some_and(|names| names.iter().any(|name| is_set(name))) && !is_set(name) {
                variables.insert(name.clone(), value.clone());
            }
        }
        variables
    }

    fn to_unmatched(&self, part: String) -> Unmatched {
        let names = self.hosts.iter().chain(self.groups.keys()).map(String::as_str);
        let near = nearest(part.trim_start_matches(['!', '&']), names);
        Unmatched {
            near: near.map(str::to_owned),
            part,
        }
    }

    /// Returns every host's name, in the order of its groups.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Returns the hosts of a group, in its order, each once.
    fn members(&self, name: &str) -> Vec<&str> {
        match name {
            "all" => self.hosts.iter().map(String::as_str).collect(),
            _ => self.hosts_below(name),
        }
    }

    /// Returns the hosts of a group and of all groups below it, each once.
    fn hosts_below(&self, name: &str) -> Vec<&str> {
        let mut known = BTreeSet::new();
        let groups = self.groups_below(name).into_iter();
        let hosts = groups.flat_map(|name| self.groups[name].hosts.iter().map(String::as_str));
        hosts.filter(|host| known.insert(*host)).collect()
    }

    /// Returns a group and all groups below it. As in Ansible, its children come first, then theirs.
    fn groups_below(&self, name: &str) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        let mut groups = Vec::new();
        let mut front = VecDeque::from([name]);
        while let Some(name) = front.pop_front() {
            let Some((name, group)) = self.groups.get_key_value(name) else {
                continue;
            };
            if seen.insert(name) {
                groups.push(name.as_str());
                front.extend(group.children.iter().map(String::as_str));
            }
        }
        groups
    }
}

enum Problem {
    /// The output is not a list of hosts.
    Json(String),
    Inventory(InventoryError),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    hosts: Vec<String>,
    children: Vec<String>,
}

type Variables = BTreeMap<String, String>;

/// The variables that are kept. Of two names for one setting the first wins, which is the last in the list of Ansible's
/// ssh plugin.
const HOST: [&str; 2] = ["ansible_ssh_host", "ansible_host"];
const PORT: [&str; 2] = ["ansible_ssh_port", "ansible_port"];
const USER: [&str; 2] = ["ansible_ssh_user", "ansible_user"];
const KEY: [&str; 2] = ["ansible_ssh_private_key_file", "ansible_private_key_file"];
const ONE_MEANING: [[&str; 2]; 4] = [HOST, PORT, USER, KEY];
const ARGS: [&str; 3] = [
    "ansible_ssh_args",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
];
const CONNECTION: &str = "ansible_connection";

fn known_variables() -> impl Iterator<Item = &'static str> {
    let names = [HOST, PORT, USER, KEY].into_iter().flatten();
    names.chain(ARGS).chain([CONNECTION])
}

/// The options of Ansible's ssh plugin that decide how a host is reached, with the matching variables.
const OPTIONS: [(&str, &str); 6] = [
    ("remote_user", USER[1]),
    ("port", PORT[1]),
    ("private_key_file", KEY[1]),
    ("ssh_args", ARGS[0]),
    ("ssh_common_args", ARGS[1]),
    ("ssh_extra_args", ARGS[2]),
];

/// Reads the output of `ansible-config dump --only-changed --type connection ssh`, `[{"ssh": [{"name": …, "value":
/// …}]}]`. It holds what is configured, without Ansible's defaults.
fn defaults(json: &[u8]) -> Result<Variables, Problem> {
    #[derive(Deserialize)]
    struct Plugin {
        #[serde(default)]
        ssh: Vec<Set>,
    }
    #[derive(Deserialize)]
    struct Set {
        name: String,
        value: Value,
    }
    if json.is_empty() {
        return Ok(Variables::new());
    }
    let plugins: Vec<Plugin> =
        serde_json::from_slice(json).map_err(|error| Problem::Json(error.to_string()))?;
    let options = plugins.into_iter().flat_map(|plugin| plugin.ssh);
    let variables = options.filter_map(|option| {
        let (_, variable) = OPTIONS.iter().find(|(name, _)| *name == option.name)?;
        Some((variable.to_string(), option.value))
    });
    Ok(connection_variables(&Value::Object(variables.collect())))
}

/// Returns the variables that decide how a host is reached; they are scalars.
fn connection_variables(variables: &Value) -> Variables {
    let known = variables
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| known_variables().any(|known| known == name.as_str()));
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        // Ansible prints an encrypted value as {"__ansible_vault": "$ANSIBLE_VAULT;..."}.
        Value::Object(object) => Some(object.get("__ansible_vault")?.as_str()?.to_owned()),
        Value::Null | Value::Bool(_) | Value::Array(_) => None,
    };
    known
        .filter_map(|(name, value)| Some((name.clone(), scalar(value)?)))
        .collect()
}

/// Returns the target that Ansible's ssh connection plugin would use for the host.
fn target(name: &str, variables: &Variables) -> Result<Target, String> {
    let value = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| {
            variables
                .get(name)
                .filter(|value| !value.is_empty())
                .map(|value| (name, value))
        })
    };
    if let Some((name, value)) = variables
        .iter()
        .find(|(_, value)| value.contains("{{") || value.contains("{%"))
    {
        return Err(format!(
            "{name} is the template {value:?}, which only a running playbook can fill in"
        ));
    }
    if let Some(vaulted) = variables
        .iter()
        .find(|(_, value)| value.starts_with("$ANSIBLE_VAULT"))
    {
        return Err(format!("{} is encrypted, which only ansible can undo", vaulted.0));
    }
    if let Some(connection) = variables.get(CONNECTION) {
        let short = connection.rsplit('.').next().unwrap_or_default();
        if !["ssh", "trunkline", "smart", "paramiko", "paramiko_ssh", "libssh"].contains(&short) {
            return Err(format!("its ansible_connection is {connection:?}, not ssh"));
        }
    }
    let port = value(PORT).map(|(name, port)| {
        port.parse::<u16>()
            .map_err(|_| format!("{name} is {port:?}, which is not a port number"))
    });
    let host = value(HOST).map_or(name, |(_, host)| host.as_str());
    let user = value(USER).map(|(_, user)| user.as_str());
    let destination = Destination::new(user, host, port.transpose()?).map_err(|error| error.to_string())?;
    let mut ssh_args: Vec<OsString> = Vec::new();
    if let Some((_, key)) = value(KEY) {
        ssh_args.extend(["-i".into(), key.into()]);
    }
    for name in ARGS {
        let Some(text) = variables.get(name) else { continue };
        let words = shlex::split(text).ok_or_else(|| format!("{name} has an open quote: {text:?}"))?;
        ssh_args.extend(words.into_iter().map(OsString::from));
    }
    Ok(Target {
        name: name.into(),
        destination,
        ssh_args,
    })
}

#[cfg(test)]
mod tests;
