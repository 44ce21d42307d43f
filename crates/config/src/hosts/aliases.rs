//! `Host` aliases of ssh_config that match a pattern.

use std::collections::HashSet;
use std::ffi::OsStr;

use crate::ssh_config::{ConfigError, World, files::Sources};

/// The names on `Host` lines (those without wildcards) that match `pattern`, in the order of the files, each once.
///
/// `pattern` is a comma-separated list as in ssh_config(5), PATTERNS: `*`, `?`, and `!` to exclude. `config_file` is
/// what `-F` would name; `None` reads the user's and the system's file. Every `Include` is followed.
///
/// # Errors
/// [`ConfigError::NoAccount`] where the local user has no entry in the password database.
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

/// match.c `match_pattern_list`: a negated match decides against, whatever else matches.
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

/// match.c `match_pattern`, without its exponential worst case: only the last `*` is ever gone back to.
pub(super) fn matches(text: &[u8], pattern: &[u8]) -> bool {
    let (mut t, mut p) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c.eq_ignore_ascii_case(&text[t]) => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else {
                    return false;
                };
                star = Some((star_at, taken + 1));
                p = star_at + 1;
                t = taken + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn aliases_come_from_every_included_file() {
        let folder = tempfile::tempdir().unwrap();
        let more = folder.path().join("more");
        let config = folder.path().join("config");
        std::fs::write(
            &config,
            format!(
                "Host web1 web2 *.x !web9\nInclude {}\nHost web1 db\n",
                more.display()
            ),
        )
        .unwrap();
        std::fs::write(&more, "Host web3 web-old\n").unwrap();
        let world = World {
            cwd: "/".into(),
            umask: 0,
            env: std::collections::BTreeMap::new(),
            vantage: crate::ssh_config::Vantage::default(),
            limits: crate::ssh_config::Limits::default(),
        };
        let names = |pattern| matching_aliases(pattern, &world, Some(config.as_os_str())).unwrap();
        assert_eq!(names("web*"), ["web1", "web2", "web3", "web-old"]);
        assert_eq!(names("web?, db"), ["web1", "web2", "web3", "db"]);
        assert_eq!(names("*,!web*"), ["db"]);
        assert!(names("nothing").is_empty());
    }

    proptest! {
        #[test]
        fn a_pattern_means_what_the_expression_means(text in "[abA]{0,8}", pattern in "[ab*?]{0,8}") {
            let expression = pattern.replace('*', ".*").replace('?', ".");
            let expression = regex::Regex::new(&format!("(?i)^{expression}$")).unwrap();
            prop_assert_eq!(matches(text.as_bytes(), pattern.as_bytes()), expression.is_match(&text));
        }
    }
}
