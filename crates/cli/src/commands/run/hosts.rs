//! The hosts of one command: lists, patterns, files and inventories.

mod groups;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use trunkline_control::protocol::{InventoryRequest, Reply, Request};
use trunkline_request::World;
use trunkline_request::copy::is_descriptor;
use trunkline_request::hosts::{
    HostList, Selection, Skipped, Target, exclusions, is_pattern, matches, nearest,
};
use trunkline_text::Printable;

use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Daemon};
use crate::report::fold::fold;
use crate::ssh_options::HOSTS;

/// Hosts by the dozen.
#[derive(Debug, clap::Args)]
pub(crate) struct ManyHosts {
    /// Hosts: names, ranges and lists such as 'db[01-20],web1' or 'me@web[1-3]:2222', patterns of ssh_config's Host
    /// aliases such as 'web*', exclusions such as '!web3', files of names as '@FILE'.
    #[arg(help_heading = HOSTS, short = 'H', visible_short_alias = 'w', long, value_name = "HOSTS")]
    hosts: Vec<String>,
    /// A group of hosts that ClusterShell's nodeset knows, as for clush; '*' is all of them.
    #[arg(help_heading = HOSTS, short, long, value_name = "GROUP", conflicts_with = "inventory")]
    group: Vec<String>,
    /// Ansible inventory: a file, a directory, or a script. With -H, the hosts are patterns in it.
    #[arg(help_heading = HOSTS, short, long, value_name = "FILE")]
    inventory: Vec<PathBuf>,
    /// Limit the inventory's hosts, as for ansible; '@FILE' is a file of names.
    #[arg(help_heading = HOSTS, long, requires = "inventory")]
    limit: Option<String>,
}

impl ManyHosts {
    /// Returns true if any options name hosts.
    pub(crate) fn are_given(&self) -> bool {
        !self.hosts.is_empty() || !self.inventory.is_empty() || !self.group.is_empty()
    }

    /// Adds hosts as -H does.
    pub(crate) fn add(&mut self, names: Vec<String>) {
        self.hosts.extend(names);
    }

    /// Returns true if the hosts may include patterns.
    pub(crate) fn has_patterns(&self) -> bool {
        self.hosts
            .iter()
            .any(|list| is_pattern(list) || list.contains('@'))
    }

    /// Excludes hosts, as `!` does in a list.
    ///
    /// # Errors
    /// A file of names cannot be read, or is malformed.
    pub(crate) fn exclude(&mut self, hosts: &[String], world: &World) -> anyhow::Result<()> {
        if !hosts.is_empty() && self.hosts.is_empty() && !self.inventory.is_empty() {
            self.hosts.push("all".into());
        }
        for list in hosts {
            self.hosts.extend(exclusions(list, &world.cwd)?);
        }
        Ok(())
    }

    /// Returns every named host once, and those of the inventory that cannot be reached.
    pub(crate) async fn selection(
        &self,
        config_file: Option<&OsStr>,
        world: &World,
        backend: &Backend,
    ) -> anyhow::Result<Selection> {
        self.selection_among(&[], config_file, world, backend).await
    }

    /// Returns the hosts like [`Self::selection`], but a pattern matches these names, or aliases of ssh_config if it
    /// matches none of them.
    pub(crate) async fn selection_among(
        &self,
        names: &[String],
        config_file: Option<&OsStr>,
        world: &World,
        backend: &Backend,
    ) -> anyhow::Result<Selection> {
        let mut selection = if self.inventory.is_empty() {
            Selection {
                targets: self.list_hosts(names, config_file, world, backend).await?,
                ..Selection::default()
            }
        } else {
            self.in_inventory(world, backend).await?
        };
        let mut seen = HashSet::new();
        selection
            .targets
            .retain(|target| seen.insert(target.name.clone()));
        Ok(selection)
    }

    async fn list_hosts(
        &self,
        known: &[String],
        config_file: Option<&OsStr>,
        world: &World,
        backend: &Backend,
    ) -> anyhow::Result<Vec<Target>> {
        let mut list = HostList::read(self.hosts.iter().map(String::as_str), &world.cwd)?;
        let mut names = Vec::new();
        for name in list.take_wanted() {
            if !is_pattern(&name) {
                names.push(name);
                continue;
            }
            let mut matching = known.to_vec();
            matching.retain(|known| matches(known.as_bytes(), name.as_bytes()));
            if matching.is_empty() {
                matching = aliases(&name, config_file, world, backend).await?;
            }
            if matching.is_empty() {
                let known = aliases("*", config_file, world, backend).await?;
                let near = nearest(&name, known.iter().map(String::as_str));
                bail!("no Host alias of ssh_config matches {name:?}{}", suggestion(near));
            }
            names.extend(matching);
        }
        if !self.group.is_empty() {
            names.extend(groups::members(&self.group)?);
        }
        let names = list.without_excluded(names);
        for exclusion in list.idle_exclusions() {
            let near = nearest(
                exclusion.trim_start_matches('!'),
                names.iter().map(String::as_str),
            );
            let near = near.map(|name| format!("!{name}"));
            warn(&format!(
                "{exclusion} excludes no host{}",
                suggestion(near.as_deref())
            ));
        }
        let targets = names
            .iter()
            .map(|name| Target::parse(name).with_context(|| format!("{name:?} in the list of hosts")));
        targets.collect()
    }

    /// Returns the hosts of the inventories. A private daemon reads them, so that programs it runs can ask on our
    /// terminal.
    async fn in_inventory(&self, world: &World, backend: &Backend) -> anyhow::Result<Selection> {
        let patterns = self.hosts.iter().map(|pattern| names_in_file(pattern, world));
        let pattern = match self.hosts.is_empty() {
            true => "all".to_owned(),
            false => patterns.collect::<anyhow::Result<Vec<_>>>()?.join(","),
        };
        let limit = self.limit.as_deref().map(|limit| names_in_file(limit, world));
        let request = InventoryRequest {
            sources: self.inventory.iter().map(|path| seen_by_others(path)).collect(),
            pattern,
            limit: limit.transpose()?,
            world: world.clone(),
        };
        let mut client = backend.connect(Daemon::Own).await?;
        let selection = match ask(&mut client, Request::Inventory(Box::new(request)), backend).await? {
            Reply::Selection(selection) => selection,
            other => return Err(unexpected_reply(&other)),
        };
        for unmatched in &selection.unmatched {
            let near = suggestion(unmatched.near.as_deref());
            warn(&format!(
                "{} matches nothing in the inventory{near}",
                unmatched.part
            ));
        }
        Ok(selection)
    }
}

/// Warns of hosts that the inventory gives no way to reach, unless they are reported as failed.
pub(crate) fn warn_of(skipped: &[Skipped]) {
    for host in skipped {
        warn(&format!("{} is left out: {}", host.name, host.why));
    }
}

/// Warns of something odd about the hosts.
fn warn(text: &str) {
    crate::report::tell(Printable::line(text));
}

/// Returns the suggestion of a name similar to the typed one.
pub(super) fn suggestion(near: Option<&str>) -> String {
    near.map(|near| format!("; did you mean {near}?"))
        .unwrap_or_default()
}

/// Suggests the aliases of ssh_config that were probably meant for hosts without an address.
pub(crate) async fn misspelt(
    names: &[&str],
    config_file: Option<&OsStr>,
    world: &World,
    backend: &Backend,
) -> anyhow::Result<Option<String>> {
    if names.is_empty() {
        return Ok(None);
    }
    let known = aliases("*", config_file, world, backend).await?;
    let (slips, near): (Vec<&str>, Vec<&str>) = names
        .iter()
        .filter_map(|name| Some((*name, nearest(name, known.iter().map(String::as_str))?)))
        .unzip();
    Ok(match slips.len() {
        0 => None,
        1 => Some(format!(
            "{} is not known{}",
            slips[0],
            suggestion(near.first().copied())
        )),
        _ => Some(format!(
            "{} are not known{}",
            fold(slips),
            suggestion(Some(&fold(near)))
        )),
    })
}

/// Returns the pattern for a file of names; any other pattern as it is.
fn names_in_file(pattern: &str, world: &World) -> anyhow::Result<String> {
    if !pattern.starts_with('@') {
        return Ok(pattern.to_owned());
    }
    let mut list = HostList::read([pattern], &world.cwd)?;
    let names = list.take_wanted();
    Ok(list.without_excluded(names).join(","))
}

/// Returns a path with which another process can open a descriptor of this one (`-i <(script)`).
fn seen_by_others(path: &Path) -> OsString {
    let number = match path.to_str() {
        Some("/dev/stdin") => "0",
        Some(text) if is_descriptor(path) => text.rsplit('/').next().unwrap_or_default(),
        _ => return path.into(),
    };
    format!("/proc/{}/fd/{number}", std::process::id()).into()
}

/// Returns the aliases of ssh_config that match a pattern.
async fn aliases(
    pattern: &str,
    config_file: Option<&OsStr>,
    world: &World,
    backend: &Backend,
) -> anyhow::Result<Vec<String>> {
    let request = Request::Aliases {
        pattern: pattern.to_owned(),
        world: world.clone(),
        config_file: config_file.map(OsStr::to_owned),
    };
    match ask(&mut backend.connect(Daemon::InPassing).await?, request, backend).await? {
        Reply::Aliases(names) => Ok(names),
        other => Err(unexpected_reply(&other)),
    }
}
