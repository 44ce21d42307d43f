//! The local account.

use std::path::PathBuf;

use super::ConfigError;

/// The local user, from the password database: as in ssh, `HOME` and `USER` do not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) name: String,
    pub(crate) home: PathBuf,
}

impl Account {
    pub(crate) fn current() -> Result<Self, ConfigError> {
        let uid = nix::unistd::Uid::current();
        match nix::unistd::User::from_uid(uid) {
            Ok(Some(user)) => Ok(Self {
                uid: uid.as_raw(),
                name: user.name,
                home: user.dir,
            }),
            Ok(None) => Err(ConfigError::NoAccount(uid.as_raw())),
            Err(errno) => Err(ConfigError::AccountUnread {
                uid: uid.as_raw(),
                reason: errno.desc().to_owned(),
            }),
        }
    }

    /// Expands `~`, `~/path` and `~user/path` (misc.c `tilde_expand`). Returns `None` for an unknown user.
    pub(crate) fn expand_tilde(&self, path: &str) -> Option<String> {
        let Some(rest) = path.strip_prefix('~') else {
            return Some(path.into());
        };
        let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
        let home = if name.is_empty() {
            self.home.clone()
        } else {
            nix::unistd::User::from_name(name).ok()??.dir
        };
        let home = home.to_str()?;
        let slash = if home.ends_with('/') { "" } else { "/" };
        Some(format!("{home}{slash}{}", below.trim_start_matches('/')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_means_the_home_of_the_password_database() {
        let account = Account {
            uid: 1,
            name: "me".into(),
            home: "/home/me".into(),
        };
        assert_eq!(account.expand_tilde("~/.ssh/id").unwrap(), "/home/me/.ssh/id");
        assert_eq!(account.expand_tilde("/a/~").unwrap(), "/a/~");
        assert_eq!(account.expand_tilde("~root/x").unwrap(), "/root/x");
        assert_eq!(account.expand_tilde("~no-such-user-here/x"), None);
    }
}
