//! The copies to make: a single one, or one to or from each of many hosts.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use anyhow::{Context as _, bail, ensure};
use trunkline_control::protocol::CopyPlace;
use trunkline_request::World;
use trunkline_request::copy::is_descriptor;
use trunkline_request::hosts::{Skipped, Target};
use trunkline_text::Printable;

use super::Args;
use super::paths::{Argument, STDIN, STDOUT, split};
use crate::backend::Backend;
use crate::report::files::file_name;

/// The ends of one copy.
pub(super) struct Ends {
    /// The host of `-H`, or the target as it was typed.
    pub(super) name: String,
    pub(super) sources: Vec<CopyPlace>,
    pub(super) target: CopyPlace,
}

/// Replaced with the host's name in a path.
const HOST: &str = "{host}";

impl Ends {
    /// Returns the copy's name, and the host that it goes to or comes from.
    pub(super) fn host(&self) -> Option<(String, String)> {
        let mut places = std::iter::once(&self.target).chain(&self.sources);
        places.find_map(|place| match place {
            CopyPlace::Host(request, _) => Some((self.name.clone(), request.destination.host.clone())),
            CopyPlace::Local(_) | CopyPlace::Passed(_) => None,
        })
    }
}

impl Args {
    /// Returns the copies, and the hosts that the inventory gives no way to reach.
    pub(super) async fn copies(
        &self,
        sources: &[OsString],
        target: &OsStr,
        world: &World,
        backend: &Backend,
    ) -> anyhow::Result<(Vec<Ends>, Vec<Skipped>)> {
        if !self.many.are_given() {
            let place = |source: &OsString| self.place(split(source)?, source, STDIN, world);
            let copy = Ends {
                name: target.to_string_lossy().into_owned(),
                sources: sources.iter().map(place).collect::<anyhow::Result<_>>()?,
                target: self.place(split(target)?, target, STDOUT, world)?,
            };
            ensure!(
                copy.host().is_some(),
                "no host is named: use cp(1) for local copies"
            );
            return Ok((vec![copy], Vec::new()));
        }
        let selection = self
            .many
            .selection(self.ssh.config_file(), world, backend)
            .await?;
        let (hosts, skipped) = (selection.targets, selection.skipped);
        let is_every_host = |argument: &OsStr| Ok(matches!(split(argument)?, Argument::EveryHost(_)));
        let from: Vec<bool> = sources
            .iter()
            .map(|source| is_every_host(source))
            .collect::<anyhow::Result<_>>()?;
        match (is_every_host(target)?, from.contains(&true)) {
            (true, false) => {}
            (false, true) => Self::keep_apart(target, &hosts, &from)?,
            (true, true) => {
                bail!("with -H either the sources or the target are on each of the hosts, not both")
            }
            (false, false) => {
                bail!("with -H the target, or the sources, are paths on each of the hosts, written :PATH")
            }
        }
        let copies = hosts.into_iter().map(|host| {
            let place = |argument: &OsStr, standard: &str| match split(argument)? {
                Argument::EveryHost(path) => {
                    let path = with_host(&path, &host.name);
                    let request = self.host(host.destination.clone(), &host.ssh_args)?;
                    Ok(CopyPlace::Host(Box::new(request), path))
                }
                end => self.place(end, argument, standard, world),
            };
            let target = OsString::from_vec(with_host(target.as_bytes(), &host.name));
            Ok(Ends {
                sources: sources
                    .iter()
                    .map(|source| place(source, STDIN))
                    .collect::<anyhow::Result<_>>()?,
                target: place(&target, STDOUT)?,
                name: host.name,
            })
        });
        Ok((copies.collect::<anyhow::Result<_>>()?, skipped))
    }

    /// Checks that one host's files cannot replace another's.
    fn keep_apart(target: &OsStr, hosts: &[Target], from: &[bool]) -> anyhow::Result<()> {
        ensure!(
            !from.contains(&false),
            "with -H all sources are paths on each of the hosts, written :PATH"
        );
        if hosts.len() < 2 {
            return Ok(());
        }
        let shown = target.display();
        ensure!(
            target
                .as_bytes()
                .windows(HOST.len())
                .any(|part| part == HOST.as_bytes()),
            "{shown} would get the files of all {} hosts: put {HOST} in it, as in logs/{HOST}/",
            hosts.len()
        );
        // Some file systems ignore case.
        let mut folded = HashSet::new();
        for host in hosts {
            ensure!(
                folded.insert(host.name.to_lowercase()),
                "{shown} is the same for two hosts called {}",
                host.name
            );
        }
        Ok(())
    }

    /// Parses one end. `standard` is the path that `-` stands for.
    fn place(
        &self,
        end: Argument,
        typed: &OsStr,
        standard: &str,
        world: &World,
    ) -> anyhow::Result<CopyPlace> {
        Ok(match end {
            Argument::Standard => CopyPlace::Passed(standard.into()),
            // Only this process has its descriptors; in the daemon the same path would mean its own.
            Argument::Local(path) if is_descriptor(&path) => CopyPlace::Passed(path),
            Argument::Local(path) => CopyPlace::Local(world.cwd.join(path)),
            Argument::Host(name, path) => {
                ensure!(
                    !name.contains(['*', ',', '{']) && (!name.contains('[') || name.starts_with("ssh://")),
                    "{name} is more than one host: write -H '{name}' and :{}",
                    Printable::line(&path)
                );
                let destination = name
                    .parse()
                    .with_context(|| format!("{name:?} is not a valid destination"))?;
                CopyPlace::Host(Box::new(self.host(destination, &[])?), path)
            }
            Argument::EveryHost(_) => bail!("{} has no host name", typed.display()),
        })
    }
}

/// Fills in the host's name as one component of a path.
fn with_host(path: &[u8], host: &str) -> Vec<u8> {
    let name = file_name(host);
    let mut filled = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.windows(HOST.len()).position(|part| part == HOST.as_bytes()) {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(name.as_bytes());
        rest = &rest[at + HOST.len()..];
    }
    filled.extend_from_slice(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_name_in_a_path_is_one_part_of_it() {
        for (path, host, filled) in [
            ("logs/{host}/", "web1", "logs/web1/"),
            ("{host}-{host}.log", "me@web1", "me@web1-me@web1.log"),
            ("a/{host}", "../x", "a/%2E.%2Fx"),
            ("none", "web1", "none"),
        ] {
            assert_eq!(with_host(path.as_bytes(), host), filled.as_bytes(), "{path}");
        }
    }
}
