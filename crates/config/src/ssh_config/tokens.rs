//! `%` tokens, `${VAR}` and `~` in values that `ssh -G` prints unexpanded (ssh_config(5), TOKENS).

use std::path::PathBuf;

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use super::account::Account;
use super::{ConfigError, World};

/// The values of one connection's tokens.
pub(crate) struct Tokens<'a> {
    pub(crate) world: &'a World,
    pub(crate) account: &'a Account,
    /// `%h`: the host name to connect to.
    pub(crate) hostname: &'a str,
    /// `%n`: the host as typed.
    pub(crate) original_host: &'a str,
    /// `%k`: the host key alias, else the host as typed.
    pub(crate) key_alias: &'a str,
    /// `%p`.
    pub(crate) port: u16,
    /// `%r`.
    pub(crate) user: &'a str,
    /// `%l`: the local host name. `%L` is its first label.
    pub(crate) local_host: &'a str,
    /// `%C`: the connection hash, and `%j`: the jump host.
    pub(crate) asked: VersionTokens,
}

/// The two tokens whose meaning changed between releases, for which the installed ssh is asked.
///
/// `%C` was a hash of `%l%h%p%r` until `%j` was added, and `%j` was only the jump host before it became the whole
/// `ProxyJump` specification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VersionTokens {
    pub(crate) connection_hash: Option<String>,
    pub(crate) jump: Option<String>,
}

/// The tokens that a directive accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// `%%`, `%C %d %h %i %j %k %L %l %n %p %r %u`, and `${VAR}`: `IdentityFile` and `CertificateFile`.
    Path,
    /// The same without `${VAR}`, plus `%T`: `LocalCommand`.
    LocalCommand,
    /// `%% %h %n %p %r`: `ProxyCommand` and `ProxyJump`.
    Proxy,
}

impl Tokens<'_> {
    /// Expands a path directive: `~`, tokens and variables; relative paths begin at the caller's working directory.
    pub(crate) fn path(&self, directive: &'static str, value: &str) -> Result<PathBuf, ConfigError> {
        let failed = |reason| ConfigError::Expansion {
            directive,
            value: value.into(),
            reason,
        };
        let at_home = self
            .account
            .expand_tilde(value)
            .ok_or_else(|| failed("no such user, or a home directory that is not UTF-8".into()))?;
        let expanded = self.expand(&at_home, Allowed::Path).map_err(failed)?;
        Ok(self.world.absolute(expanded.as_ref()))
    }

    pub(crate) fn command(
        &self,
        directive: &'static str,
        value: &str,
        allowed: Allowed,
    ) -> Result<String, ConfigError> {
        self.expand(value, allowed)
            .map_err(|reason| ConfigError::Expansion {
                directive,
                value: value.into(),
                reason,
            })
    }

    /// Expands tokens and variables (misc.c `vdollar_percent_expand`).
    fn expand(&self, text: &str, allowed: Allowed) -> Result<String, String> {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(['%', '$']) {
            expanded.push_str(&rest[..at]);
            let (sign, tail) = rest[at..].split_at(1);
            if sign == "$" {
                let Some(named) = tail.strip_prefix('{').filter(|_| allowed == Allowed::Path) else {
                    expanded.push('$');
                    rest = tail;
                    continue;
                };
                let (name, tail) = named.split_once('}').ok_or("\"${\" without \"}\"")?;
                let value = self
                    .world
                    .var(name)
                    .ok_or_else(|| format!("${{{name}}} is not set"))?;
                expanded.push_str(
                    value
                        .to_str()
                        .ok_or_else(|| format!("${{{name}}} is not UTF-8"))?,
                );
                rest = tail;
            } else {
                let token = tail.chars().next().ok_or("a single \"%\" at the end")?;
                let value = self
                    .token(token, allowed)
                    .ok_or_else(|| format!("unknown token %{token}"))?;
                expanded.push_str(&value);
                rest = &tail[token.len_utf8()..];
            }
            if expanded.len() > LONGEST {
                return Err(format!("more than {LONGEST} bytes"));
            }
        }
        expanded.push_str(rest);
        Ok(expanded)
    }

    fn token(&self, token: char, allowed: Allowed) -> Option<String> {
        match token {
            '%' => return Some("%".into()),
            'h' => return Some(self.hostname.into()),
            'n' => return Some(self.original_host.into()),
            'p' => return Some(self.port.to_string()),
            'r' => return Some(self.user.into()),
            _ => {}
        }
        match (token, allowed) {
            (_, Allowed::Proxy) => None,
            ('C', _) => Some(
                self.asked
                    .connection_hash
                    .clone()
                    .unwrap_or_else(|| self.connection_hash()),
            ),
            ('d', _) => self.account.home.to_str().map(str::to_owned),
            ('i', _) => Some(self.account.uid.to_string()),
            ('j', _) => self.asked.jump.clone(),
            ('k', _) => Some(self.key_alias.into()),
            ('L', _) => Some(self.local_host.split('.').next().unwrap_or_default().into()),
            ('l', _) => Some(self.local_host.into()),
            ('u', _) => Some(self.account.name.clone()),
            // The name of the tunnel's interface: the engine opens none.
            ('T', Allowed::LocalCommand) => Some("NONE".into()),
            _ => None,
        }
    }

    /// Computes readconf.c's `ssh_connection_hash` as it was before `%j`, if ssh could not be asked.
    fn connection_hash(&self) -> String {
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        for part in [self.local_host, self.hostname, &self.port.to_string(), self.user] {
            hash.update(part.as_bytes());
        }
        super::hex(hash.finish().as_ref())
    }
}

/// The longest expansion: no path or command line of the system is longer (Linux's MAX_ARG_STRLEN).
const LONGEST: usize = 128 * 1024;

/// Returns the local host name, `%l`.
pub(crate) fn local_host() -> String {
    nix::unistd::gethostname()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_tokens<T>(test: impl FnOnce(&Tokens<'_>) -> T) -> T {
        let world = World::new("/elsewhere", 0, [("V".into(), "%h".into())].into());
        let account = Account {
            uid: 7,
            name: "me".into(),
            home: "/home/me".into(),
        };
        test(&Tokens {
            world: &world,
            account: &account,
            hostname: "h.example",
            original_host: "h",
            key_alias: "alias",
            port: 22,
            user: "bob",
            local_host: "box.lan",
            asked: VersionTokens {
                connection_hash: None,
                jump: Some("j".into()),
            },
        })
    }

    #[test]
    fn a_path_takes_every_connection_token_and_variables() {
        with_tokens(|tokens| {
            let path = tokens
                .path("IdentityFile", "~/%%-%h-%n-%p-%r-%d-%i-%j-%k-%L-%l-%u-${V}-$V")
                .unwrap();
            // A variable's own percent sign is not expanded again.
            let expected = "/home/me/%-h.example-h-22-bob-/home/me-7-j-alias-box-box.lan-me-%h-$V";
            assert_eq!(path.to_str().unwrap(), expected);
            assert_eq!(
                tokens.path("IdentityFile", "key").unwrap().to_str(),
                Some("/elsewhere/key")
            );
        });
    }

    #[test]
    fn what_ssh_would_stop_at_is_an_error() {
        with_tokens(|tokens| {
            for value in ["%", "%z", "${V", "${UNSET}", "%T", "~nobody-of-that-name/x"] {
                assert!(tokens.path("IdentityFile", value).is_err(), "{value}");
            }
            assert!(tokens.command("ProxyCommand", "%C", Allowed::Proxy).is_err());
        });
    }

    #[test]
    fn commands_keep_what_belongs_to_the_shell() {
        with_tokens(|tokens| {
            let command = |value, allowed| tokens.command("x", value, allowed).unwrap();
            assert_eq!(
                command("nc %h %p ${V} $?", Allowed::Proxy),
                "nc h.example 22 ${V} $?"
            );
            assert_eq!(command("echo %T %u ~", Allowed::LocalCommand), "echo NONE me ~");
        });
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), near in "[%${}hCpVé~/]{0,16}") {
            with_tokens(|tokens| {
                let _ = tokens.path("x", &text);
                let _ = tokens.path("x", &near);
                let _ = tokens.command("x", &near, Allowed::Proxy);
            });
        }
    }
}
