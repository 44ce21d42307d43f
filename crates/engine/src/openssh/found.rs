//! The masters of the user's ssh: sockets that a ControlPath of ssh_config can name.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use regex::Regex;

use super::Master;
use crate::config::{ConfigError, World, control_paths};

/// Returns the sockets that ControlPath directives can name, in the order of the files, each once.
///
/// `config_file` is the argument of `-F`; `None` reads the user's and the system's file. Tokens match anything, so that
/// a result may not be a master; [`Master::state`] tells.
///
/// # Errors
/// [`ConfigError::NoAccount`] if the local user is not in the password database.
pub fn find_masters(world: &World, config_file: Option<&OsStr>) -> Result<Vec<Master>, ConfigError> {
    let mut masters: Vec<Master> = Vec::new();
    for path in control_paths(world, config_file)? {
        for master in Template::parse(&path).masters() {
            if masters.iter().all(|known| known.path != master.path) {
                masters.push(master);
            }
        }
    }
    Ok(masters)
}

/// A ControlPath with tokens.
struct Template {
    glob: String,
    expression: String,
}

impl Template {
    fn parse(path: &str) -> Self {
        let (mut glob, mut expression) = (String::new(), "^".to_owned());
        let mut has_host = false;
        let mut characters = path.chars();
        while let Some(character) = characters.next() {
            let literal = match character {
                '%' => match characters.next() {
                    Some('%') => '%',
                    token => {
                        glob.push('*');
                        let names_host = matches!(token, Some('n' | 'h' | 'k')) && !has_host;
                        has_host |= names_host;
                        expression.push_str(match token {
                            _ if names_host => "(?<host>[^/]+)",
                            // These must not match the host's name: `%r@%h:%p`.
                            Some('p' | 'i') => "[0-9]+",
                            Some('C') => "[0-9a-f]+",
                            _ => "[^/]*?",
                        });
                        continue;
                    }
                },
                other => other,
            };
            glob.push_str(&glob::Pattern::escape(literal.encode_utf8(&mut [0; 4])));
            expression.push_str(&regex::escape(literal.encode_utf8(&mut [0; 4])));
        }
        expression.push('$');
        Self { glob, expression }
    }

    fn masters(&self) -> Vec<Master> {
        let (Ok(paths), Ok(expression)) = (glob::glob(&self.glob), Regex::new(&self.expression)) else {
            return Vec::new();
        };
        let is_socket = |path: &Path| {
            path.symlink_metadata()
                .is_ok_and(|file| file.file_type().is_socket())
        };
        paths
            .flatten()
            .filter(|path| is_socket(path))
            .filter_map(|path| {
                let captures = expression.captures(path.to_str()?)?;
                let host = captures.name("host").map(|host| host.as_str().to_owned());
                Some(Master { path, host })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn tokens_stand_for_what_they_may_be() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let _sockets =
            ["me@web1:22", "me@web2:2222", "no-port"].map(|name| UnixListener::bind(at(name)).unwrap());
        std::fs::write(at("me@file:22"), "").unwrap();
        let template = Template::parse(&format!("{}/%r@%h:%p", directory.path().display()));
        let mut found = template.masters();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        let found: Vec<_> = found
            .iter()
            .map(|master| master.host.as_deref().unwrap())
            .collect();
        assert_eq!(found, ["web1", "web2"]);
        let hashed = Template::parse(&format!("{}/%C", directory.path().display())).masters();
        assert_eq!(hashed, []);
        let fixed = Template::parse(&at("no-port").display().to_string()).masters();
        assert_eq!(fixed, [Master::at_path(at("no-port"))]);
    }

    #[test]
    fn what_looks_like_a_wildcard_is_none() {
        let template = Template::parse("/a[1]*?/100%%/%n");
        assert_eq!(template.glob, "/a[[]1[]][*][?]/100%/*");
        assert!(
            Regex::new(&template.expression)
                .unwrap()
                .is_match("/a[1]*?/100%/x")
        );
    }
}
