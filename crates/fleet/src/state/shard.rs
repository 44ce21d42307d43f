//! The hosts that belong together, and the node that owns them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use trunkline_request::hosts::means_host;

/// The number of shards that the hosts of a zone are divided into.
pub const SHARDS: u16 = 256;

/// The name of the zone for all hosts without a site.
const COMMON: &str = "_";

/// The unit of ownership: a 256th of the hosts of a zone. A zone is a site, or all hosts without a site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// The site; `None` for hosts without a site.
    pub site: Option<String>,
    pub shard: u8,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.site.as_deref().unwrap_or(COMMON), self.shard)
    }
}

/// A text that does not name a [`Unit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not SITE.SHARD")]
pub struct NotAUnit;

impl FromStr for Unit {
    type Err = NotAUnit;

    fn from_str(text: &str) -> Result<Self, NotAUnit> {
        let (site, shard) = text.split_once('.').ok_or(NotAUnit)?;
        Ok(Self {
            site: (site != COMMON).then(|| site.to_owned()),
            shard: shard.parse().map_err(|_| NotAUnit)?,
        })
    }
}

impl Unit {
    /// Returns the owner among these nodes: the one with the highest weight for the unit (rendezvous hashing). So a
    /// node that comes or goes only moves the units that it gets or had. `None` if there are no nodes.
    pub fn owner<'a>(&self, nodes: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let unit = self.to_string();
        nodes
            .into_iter()
            .max_by_key(|node| hash([node.as_bytes(), b"\0", unit.as_bytes()].concat().as_slice()))
    }
}

/// The division of the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zones {
    /// The hosts of each site: site labels with patterns of host names (`*.eu`). A host belongs to the first matching
    /// site, in order of their names.
    pub sites: BTreeMap<String, Vec<String>>,
    /// The number of shards that each zone is divided into: [`SHARDS`], or fewer.
    pub shards: u16,
}

impl Default for Zones {
    fn default() -> Self {
        Self {
            sites: BTreeMap::new(),
            shards: SHARDS,
        }
    }
}

impl Zones {
    /// Returns the unit that a host belongs to, from its name without user and port. Upper and lower case are the same.
    pub fn unit_of(&self, host: &str) -> Unit {
        let site = self.sites.iter().find(|(_, patterns)| means_host(patterns, host));
        Unit {
            site: site.map(|(site, _)| site.clone()),
            shard: self.shard(host.to_ascii_lowercase().as_bytes()),
        }
    }

    /// Returns all units that a node with this label may own: those of its site, and those without a site.
    pub fn units(&self, site: Option<&str>) -> Vec<Unit> {
        let site = site.filter(|site| self.sites.contains_key(*site));
        let zones = [None, site.map(str::to_owned)];
        let zones = zones.into_iter().take(if site.is_some() { 2 } else { 1 });
        zones
            .flat_map(|site| {
                (0..=u8::MAX).take(self.shards.into()).map(move |shard| Unit {
                    site: site.clone(),
                    shard,
                })
            })
            .collect()
    }

    /// Returns the unit whose owner is responsible for a job.
    pub(crate) fn unit_of_job(&self, job: &str) -> Unit {
        Unit {
            site: None,
            shard: self.shard(job.as_bytes()),
        }
    }

    fn shard(&self, name: &[u8]) -> u8 {
        let shard = u16::from(hash(name)[0]) % self.shards.clamp(1, SHARDS);
        u8::try_from(shard).unwrap_or_default()
    }
}

/// Hashes bytes. The result is the same on every machine and in every version.
fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_gets_its_part_and_a_node_that_goes_moves_only_its_own() {
        let all = ["a", "b", "c"];
        let units = Zones::default().units(None);
        assert_eq!(units.len(), usize::from(SHARDS));
        for node in all {
            let own = units.iter().filter(|unit| unit.owner(all) == Some(node)).count();
            assert!((60..=110).contains(&own), "{node}: {own}");
        }
        for unit in &units {
            let before = unit.owner(all).unwrap();
            let after = unit.owner(["a", "b"]).unwrap();
            assert!(before == "c" || before == after);
        }
    }

    #[test]
    fn a_site_has_its_hosts() {
        let zones = Zones {
            sites: [("eu".to_owned(), vec!["*.eu".to_owned()])].into(),
            ..Zones::default()
        };
        assert_eq!(zones.unit_of("Web1.EU").site.as_deref(), Some("eu"));
        assert_eq!(zones.unit_of("web1.us").site, None);
        assert_eq!(zones.unit_of("WEB1.us"), zones.unit_of("web1.us"));
        assert_eq!(zones.units(Some("eu")).len(), 512);
        assert_eq!(zones.units(Some("moon")).len(), 256);
        for unit in zones.units(Some("eu")) {
            assert_eq!(unit.to_string().parse(), Ok(unit));
        }
    }
}
