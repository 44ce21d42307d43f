//! Ansible inventories: which hosts a pattern means, and how each is reached.

mod ini;
mod load;
mod pattern;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Selection, Skipped, Target};
use crate::destination::Destination;
use crate::ssh_config::World;

/// Groups, hosts, and of their variables those that decide how a host is reached.
///
/// Everything else in an inventory, secrets above all, is read over and not kept.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Every host, in the order of the inventory.
    hosts: Vec<String>,
    host_vars: HashMap<String, Layers>,
    groups: BTreeMap<String, Group>,
}

/// Why an inventory could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// A file or folder cannot be read.
    #[error("cannot read the inventory {file}: {error}")]
    File {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A file is malformed.
    #[error("{file}{line}: {problem}", line = line.map(|line| format!(":{line}")).unwrap_or_default())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, from 1, where it is known.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
    /// An inventory script or `ansible-inventory` failed.
    #[error("{program} failed: {problem}")]
    Program {
        /// The program.
        program: PathBuf,
        /// Its complaint.
        problem: String,
    },
    /// Only Ansible itself can read this.
    #[error(
        "{file} {why}, which only Ansible understands; install Ansible, which provides ansible-inventory"
    )]
    NeedsAnsible {
        /// The file.
        file: PathBuf,
        /// What it does.
        why: &'static str,
    },
    /// A host pattern is malformed.
    #[error("the host pattern {pattern:?} is malformed: {problem}")]
    Pattern {
        /// The part of the pattern.
        pattern: String,
        /// What is wrong.
        problem: String,
    },
    /// More hosts than [`MOST_HOSTS`](super::MOST_HOSTS).
    #[error("the inventory has more than {} hosts", super::MOST_HOSTS)]
    TooMany,
}

impl Inventory {
    /// Reads files, folders of files and executable scripts, merged in the order given. `group_vars` and `host_vars`
    /// folders beside them are read as well.
    ///
    /// What only Ansible understands (inventory plugins, vaulted files) is read by `ansible-inventory` where it is
    /// on the caller's `PATH`. Programs run in the caller's world and may take a minute.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn load(sources: &[PathBuf], world: &World) -> Result<Self, InventoryError> {
        let mut inventory = Self::default();
        for source in sources {
            load::load(&mut inventory, &world.absolute(source), world).await?;
        }
        Ok(inventory)
    }

    /// The output of `ansible-inventory --list`, or of an inventory script.
    ///
    /// # Errors
    /// [`InventoryError::Syntax`], which names `file`.
    pub fn from_json(json: &[u8], file: &Path) -> Result<Self, InventoryError> {
        let mut inventory = Self::default();
        tree::read_list(&mut inventory, json, file)?;
        Ok(inventory)
    }

    /// Reads a file in INI's form.
    pub(crate) fn read_ini(&mut self, text: &str, file: &Path) -> Result<(), InventoryError> {
        ini::read(self, text, file)
    }

    /// Reads a file in YAML's form.
    pub(crate) fn read_yaml(&mut self, text: &str, file: &Path) -> Result<(), InventoryError> {
        tree::read_yaml(self, text, file)
    }

    /// The hosts that `pattern` means, cut down to those that `limit` means.
    ///
    /// Both are Ansible's host patterns: names, groups and wildcards joined by `:` or `,`, `&` to intersect, `!` to
    /// exclude, `~` before a regular expression, `group[0]` and `group[1:3]`.
    ///
    /// # Errors
    /// [`InventoryError::Pattern`].
    pub fn select(&self, pattern: &str, limit: Option<&str>) -> Result<Selection, InventoryError> {
        let mut chosen = pattern::evaluate(self, pattern)?;
        if let Some(limit) = limit {
            let limit = pattern::evaluate(self, limit)?;
            chosen.retain(|host| limit.contains(host));
        }
        let membership = self.membership();
        let mut selection = Selection::default();
        for name in self.hosts.iter().filter(|host| chosen.contains(host.as_str())) {
            let groups = membership
                .get(name.as_str())
                .map(Vec::as_slice)
                .unwrap_or_default();
            match target(name, &self.variables(name, groups)) {
                Ok(target) => selection.targets.push(target),
                Err(why) => selection.skipped.push(Skipped {
                    name: name.clone(),
                    why,
                }),
            }
        }
        Ok(selection)
    }

    /// Every host's name, in the order of the inventory.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn add_host(&mut self, name: &str) -> Result<&mut Layers, InventoryError> {
        if !self.host_vars.contains_key(name) {
            if self.hosts.len() == super::MOST_HOSTS {
                return Err(InventoryError::TooMany);
            }
            self.hosts.push(name.into());
        }
        Ok(self.host_vars.entry(name.into()).or_default())
    }

    fn add_group(&mut self, name: &str) -> &mut Group {
        self.groups.entry(name.into()).or_default()
    }

    /// The variables of a host that is in `groups` (name and depth), in Ansible's order of precedence: groups from
    /// the outermost in, each layer below the next; then the host's own.
    fn variables(&self, host: &str, groups: &[(&str, usize)]) -> Variables {
        let mut order: Vec<_> = groups
            .iter()
            .filter_map(|&(name, depth)| {
                let group = self.groups.get(name)?;
                Some(((depth, group.priority(), name), &group.vars))
            })
            .collect();
        order.sort_by_key(|(rank, _)| *rank);
        let own = self.host_vars.get(host);
        let layers = order
            .iter()
            .map(|(_, vars)| &vars.inventory)
            .chain(order.iter().map(|(_, vars)| &vars.files))
            .chain(own.map(|own| &own.inventory))
            .chain(own.map(|own| &own.files));
        layers
            .flatten()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// The groups that each host is in, directly or through others, with each group's distance below `all`.
    fn membership(&self) -> HashMap<&str, Vec<(&str, usize)>> {
        let mut membership: HashMap<&str, Vec<(&str, usize)>> = HashMap::new();
        for (name, depth) in self.depths() {
            for host in self.members(name) {
                membership.entry(host).or_default().push((name, depth));
            }
        }
        membership
    }

    /// Every group's distance below `all`; of several ways to a group the longest counts.
    fn depths(&self) -> HashMap<&str, usize> {
        let below_another: BTreeSet<&str> = self
            .groups
            .iter()
            .filter(|(name, _)| *name != "all")
            .flat_map(|(_, group)| group.children.iter().map(String::as_str))
            .collect();
        let mut depths = HashMap::from([("all", 0)]);
        let mut level: BTreeSet<&str> = self
            .groups
            .keys()
            .map(String::as_str)
            .filter(|name| *name != "all" && !below_another.contains(name))
            .collect();
        // No sound tree has more levels than groups: that ends circles.
        for depth in 1..=self.groups.len() {
            depths.extend(level.iter().map(|name| (*name, depth)));
            level = level
                .iter()
                .filter_map(|name| self.groups.get(*name))
                .flat_map(|group| group.children.iter().map(String::as_str))
                .collect();
        }
        depths
    }

    /// The hosts of a group and all groups below it.
    fn members(&self, name: &str) -> BTreeSet<&str> {
        if name == "all" {
            return self.hosts.iter().map(String::as_str).collect();
        }
        if name == "ungrouped" {
            let grouped: BTreeSet<&str> = self
                .groups
                .iter()
                .filter(|(name, _)| !["all", "ungrouped"].contains(&name.as_str()))
                .flat_map(|(_, group)| group.hosts.iter().map(String::as_str))
                .collect();
            return self
                .hosts
                .iter()
                .map(String::as_str)
                .filter(|host| !grouped.contains(host))
                .collect();
        }
        let mut seen = BTreeSet::new();
        let mut hosts = BTreeSet::new();
        let mut front = vec![name];
        while let Some(name) = front.pop() {
            let Some(group) = self.groups.get(name).filter(|_| seen.insert(name)) else {
                continue;
            };
            hosts.extend(group.hosts.iter().map(String::as_str));
            front.extend(group.children.iter().map(String::as_str));
        }
        hosts
    }
}

#[derive(Debug, Clone, Default)]
struct Group {
    hosts: Vec<String>,
    children: BTreeSet<String>,
    vars: Layers,
}

impl Group {
    fn priority(&self) -> i64 {
        let own = self.vars.inventory.get("ansible_group_priority");
        own.and_then(|priority| priority.parse().ok()).unwrap_or(1)
    }
}

/// Variables of the inventory itself, and those of `group_vars` and `host_vars`, which win over them.
#[derive(Debug, Clone, Default)]
struct Layers {
    inventory: Variables,
    files: Variables,
}

type Variables = BTreeMap<String, String>;

/// The variables that are kept; of two names for one thing the first wins.
const HOST: [&str; 2] = ["ansible_host", "ansible_ssh_host"];
const PORT: [&str; 2] = ["ansible_port", "ansible_ssh_port"];
const USER: [&str; 2] = ["ansible_user", "ansible_ssh_user"];
const KEY: [&str; 2] = ["ansible_ssh_private_key_file", "ansible_private_key_file"];
const ARGS: [&str; 2] = ["ansible_ssh_common_args", "ansible_ssh_extra_args"];
const OTHER: [&str; 2] = ["ansible_connection", "ansible_group_priority"];

/// Keeps a variable that decides how a host is reached.
fn keep(variables: &mut Variables, name: &str, value: String) {
    if [HOST, PORT, USER, KEY, ARGS, OTHER]
        .iter()
        .flatten()
        .any(|known| *known == name)
    {
        variables.insert(name.into(), value);
    }
}

/// How Ansible's ssh connection plugin would reach the host.
fn target(name: &str, variables: &Variables) -> Result<Target, String> {
    let value = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| {
            variables
                .get(name)
                .filter(|value| !value.is_empty())
                .map(|value| (name, value))
        })
    };
    if let Some((name, value)) = [HOST, PORT, USER, KEY, ARGS, OTHER]
        .iter()
        .filter_map(|names| value(*names))
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
    if let Some(connection) = variables.get("ansible_connection") {
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

/// Writes out Ansible's ranges in a host name: `www[01:50].example`, `db-[a:f]`, `n[0:100:10]`. Brackets that are no
/// range (an IPv6 address) stay.
fn expand_ranges(name: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = name;
    while let Some((text, tail)) = rest.split_once('[') {
        let Some((inside, after)) = tail.split_once(']') else {
            break;
        };
        let Some(range) = range(inside)? else { break };
        if names.len().saturating_mul(range.len()) > super::MOST_HOSTS {
            return Err(format!("{name:?} means more than {} hosts", super::MOST_HOSTS));
        }
        names = names
            .iter()
            .flat_map(|head| range.iter().map(move |item| format!("{head}{text}{item}")))
            .collect();
        rest = after;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// `begin:end[:step]` in numbers (as wide as `begin` is written) or single letters. `None` where it is neither.
fn range(inside: &str) -> Result<Option<Vec<String>>, String> {
    let parts: Vec<&str> = inside.split(':').collect();
    let (begin, end, step) = match parts[..] {
        [begin, end] => (begin, end, "1"),
        [begin, end, step] => (begin, end, step),
        _ => return Ok(None),
    };
    let Some(step) = step.parse::<usize>().ok().filter(|step| *step > 0) else {
        return Ok(None);
    };
    let begin = if begin.is_empty() { "0" } else { begin };
    let letter = |text: &str| match text.as_bytes() {
        [byte] if byte.is_ascii_alphabetic() => Some(*byte),
        _ => None,
    };
    if let (Some(first), Some(last)) = (letter(begin), letter(end)) {
        return Ok(Some(
            (first..=last)
                .step_by(step)
                .map(|byte| char::from(byte).to_string())
                .collect(),
        ));
    }
    let (Ok(first), Ok(last)) = (begin.parse::<u32>(), end.parse::<u32>()) else {
        return Ok(None);
    };
    if last < first {
        return Err(format!("the range [{inside}] ends before it begins"));
    }
    if (last - first) as usize / step >= super::MOST_HOSTS {
        return Err(format!(
            "the range [{inside}] means more than {} hosts",
            super::MOST_HOSTS
        ));
    }
    let width = begin.len();
    Ok(Some(
        (first..=last)
            .step_by(step)
            .map(|number| format!("{number:0width$}"))
            .collect(),
    ))
}

#[cfg(test)]
mod tests;
