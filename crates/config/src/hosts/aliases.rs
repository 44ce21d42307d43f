//! The names of hosts: `Host` aliases in ssh_config, and names in known_hosts.

use std::collections::HashSet;
use std::ffi::OsStr;

use trunkline_request::hosts::matches;

use crate::known_hosts::KnownHosts;
use crate::ssh_config::{ConfigError, World, files::Sources, files::known_hosts_files};

/// Returns the names on `Host` lines (without wildcards) that match `pattern`, in the order of the files, each once.
///
/// `pattern` is a comma-separated list as in ssh_config(5), PATTERNS: `*`, `?`, and `!` to exclude. `config_file` is
/// the argument of `-F`; `None` reads the user's and the system's file. Follows every `Include`.
///
/// # Errors
/// [`ConfigError::NoAccount`] if the local user has no entry in the password database.
pub fn matching_aliases(
    pattern: &str,
    world: &World,
    config_file: Option<&OsStr>,
) -> Result<Vec<String>, ConfigError> {
    let sources = Sources::for_current_user(world, config_file)?;
    let mut seen = HashSet::new();
    Ok(sources
        .aliases
        .into_iter()
        .filter(|name| in_list(name, pattern) && seen.insert(name.clone()))
        .collect())
}

/// Returns the names on `Host` lines (without wildcards), in the order of the files. See [`matching_aliases`].
///
/// # Errors
/// Those of [`matching_aliases`].
pub fn aliases(world: &World, config_file: Option<&OsStr>) -> Result<Vec<String>, ConfigError> {
    Ok(Sources::for_current_user(world, config_file)?.aliases)
}

/// Returns the names of hosts in the known_hosts files that are not hashed, not patterns and not bound to a port, in
/// the order of the files. Reads the usual files and all that ssh_config names, in any block.
///
/// # Errors
/// Those of [`matching_aliases`].
pub fn known_host_names(world: &World, config_file: Option<&OsStr>) -> Result<Vec<String>, ConfigError> {
    let files: Vec<_> = known_hosts_files(world, config_file)?.into_iter().collect();
    Ok(KnownHosts::load(&files).names())
}

/// Matches as match.c's `match_pattern_list`: a negated match excludes, whatever else matches.
pub fn in_list(name: &str, list: &str) -> bool {
    let mut found = false;
    for pattern in list
        .split(',')
        .map(str::trim)
        .filter(|pattern| !pattern.is_empty())
    {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(name.as_bytes(), pattern.as_bytes()) => return false,
            Some(_) => {}
            None => found |= matches(name.as_bytes(), pattern.as_bytes()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_come_from_every_included_file() {
        let directory = tempfile::tempdir().unwrap();
        let more = directory.path().join("more");
        let config = directory.path().join("config");
        std::fs::write(
            &config,
            format!(
                "Host web1 web2 *.x !web9\nInclude {}\nHost web1 db\n",
                more.display()
            ),
        )
        .unwrap();
        std::fs::write(&more, "Host web3 web-old\n").unwrap();
        let world = World::new("/", 0, std::collections::BTreeMap::new());
        let names = |pattern| matching_aliases(pattern, &world, Some(config.as_os_str())).unwrap();
        assert_eq!(names("web*"), ["web1", "web2", "web3", "web-old"]);
        assert_eq!(names("web?, db"), ["web1", "web2", "web3", "db"]);
        assert_eq!(names("*,!web*"), ["db"]);
        assert!(names("nothing").is_empty() && names("WEB*").is_empty());
    }
}
