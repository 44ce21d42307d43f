//! The resolved configuration of one host, typed.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, LazyLock};

use trunkline_request::LogLevel;

use super::account::Account;
use super::algorithms::Algorithms;
use super::directives::{Beside, HostConfig, Row};
use super::dump::{Directive, Fields};
use super::readers::{DefaultAlgorithms, Surroundings};
use super::tokens::{Tokens, VersionTokens};
use super::{CommandWorld, ConfigError, World};

impl HostConfig {
    /// Returns `user@host`, with the host as the user named it.
    pub fn who(&self) -> String {
        format!("{}@{}", self.user, self.original_host)
    }

    /// Returns whether LogLevel allows messages other than errors, which ssh prints at INFO.
    pub fn tells(&self) -> bool {
        self.log_level >= LogLevel::Info
    }

    /// Creates a host from explicit values, for programs that provide everything themselves: no file, environment or
    /// `ssh` is used.
    ///
    /// `hostname` is a name or an address, `port` 1 to 65535. The rest are OpenSSH's defaults, without those from the
    /// user's account: no key files, agent, known_hosts files or proxy, and every algorithm that the engine has. Fields
    /// can be changed before it is used. Unknown host keys are refused (`StrictHostKeyChecking yes`): set its
    /// known_hosts files, or use a `Login` that knows the key.
    ///
    /// ```
    /// use trunkline_config::ssh_config::HostConfig;
    ///
    /// let mut host = HostConfig::explicit("db1.example", 22, "monitor")?;
    /// host.user_known_hosts_files = vec!["/etc/monitor/known_hosts".into()];
    /// # Ok::<(), trunkline_config::ssh_config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Explicit`] for an empty name or user, and for port 0.
    pub fn explicit(hostname: &str, port: u16, user: &str) -> Result<Self, ConfigError> {
        for (value, problem) in [(hostname, "has no name"), (user, "has no user")] {
            if value.is_empty() {
                return Err(ConfigError::Explicit(problem));
            }
        }
        if port == 0 {
            return Err(ConfigError::Explicit("has no port"));
        }
        Ok(Self {
            original_host: hostname.to_owned(),
            hostname: hostname.to_owned(),
            port,
            user: user.to_owned(),
            ..EXPLICIT.clone()
        })
    }

    /// Types the output of `ssh -G`. A directive that is merely odd is not an error; it is kept in `not_understood`.
    ///
    /// # Errors
    /// [`ConfigError::Expansion`] for a token or variable at which ssh would fail, [`ConfigError::Jump`] for an invalid
    /// jump host; `Err(None)` for output without host, user or port.
    pub(crate) fn read(
        directives: Vec<Directive>,
        around: &Surroundings<'_>,
    ) -> Result<Self, Option<ConfigError>> {
        let is_fixed =
            |line: &&Directive| Row::by_name(&line.keyword).is_some_and(|row| row.is_fixed_by_master);
        let fixed_by_master: Vec<_> = directives
            .iter()
            .filter(is_fixed)
            .map(|line| format!("{} {}", line.keyword, line.value))
            .collect();
        let mut fields = Fields::new(directives);
        let f = &mut fields;
        let hostname = f.name("hostname").ok_or(None)?;
        let user = f.name("user").ok_or(None)?;
        let port: u16 = f
            .parse("port", |value| value.parse().ok())
            .filter(|&port| port != 0)
            .ok_or(None)?;
        let original_host = f.name("host").unwrap_or_else(|| around.original_host.to_owned());
        let key_alias = f.peek("hostkeyalias").unwrap_or(&original_host).to_owned();
        let tokens = Tokens {
            world: around.world,
            account: around.account,
            hostname: &hostname,
            original_host: &original_host,
            key_alias: &key_alias,
            port,
            user: &user,
            local_host: around.local_host,
            asked: around.asked.clone(),
        };
        let beside = Beside {
            original_host: original_host.clone(),
            hostname: hostname.clone(),
            port,
            user: user.clone(),
            config_file: around.config_file.clone(),
            jump: None,
            commands: None,
            kex_is_default: false,
            host_key_order_is_free: false,
            remarks: Vec::new(),
            not_understood: Vec::new(),
            ambiguous: Vec::new(),
            unknown: Vec::new(),
            fixed_by_master: fixed_by_master.join("\n").into(),
            has_master: false,
        };
        let mut config = Self::from_rows(beside, f, &tokens, around)?;
        let default = around.default_algorithms;
        config.kex_is_default = !default.kex.is_empty() && *config.kex_algorithms == *default.kex;
        config.host_key_order_is_free = config.host_key_algorithms.starts_with(&default.host_key)
            || is_subsequence(&config.host_key_algorithms, &default.host_key);
        (config.unknown, config.not_understood) = fields.into_unread();
        config
            .unknown
            .retain(|line| Row::by_name(&line.keyword).is_none());
        // It has room for the whole output.
        config.unknown.shrink_to_fit();
        Ok(config)
    }

    /// Returns whether the user's commands take part in who is reached or trusted, including jump hosts.
    #[must_use]
    pub fn runs_commands(&self) -> bool {
        self.commands.is_some() || self.jump.as_deref().is_some_and(Self::runs_commands)
    }

    /// Returns whether the same commands would see the same in another caller's environment.
    #[must_use]
    pub fn is_for(&self, world: &World) -> bool {
        let same = self
            .commands
            .as_ref()
            .is_none_or(|commands| commands.is_that_of(world));
        same && self.jump.as_deref().is_none_or(|jump| jump.is_for(world))
    }

    /// Returns the same host as reached by ssh itself, for a caller in `world`. ssh uses more of the environment than
    /// its configuration shows (KRB5CCNAME, which determines the identity; variables of PKCS#11 libraries), and its
    /// master decides more for its sharers.
    #[must_use]
    pub fn through_ssh(self: &Arc<Self>, world: &World) -> Arc<Self> {
        let of_caller = || CommandWorld::from_world(world, |_| false);
        Arc::new(Self {
            commands: Some(self.commands.clone().unwrap_or_else(of_caller)),
            has_master: true,
            ..Self::clone(self)
        })
    }

    /// Returns the command that replaces the login shell, if the caller has none: RemoteCommand.
    ///
    /// # Errors
    /// [`ConfigError::TwoCommands`].
    pub fn remote_command(&self, has_command: bool) -> Result<Option<&str>, ConfigError> {
        match &self.remote_command {
            Some(_) if has_command => Err(ConfigError::TwoCommands),
            command => Ok(command.as_deref()),
        }
    }

    /// Returns the environment variables of SendEnv and SetEnv, in the order in which OpenSSH's client sends them.
    pub fn session_env<'a>(&'a self, world: &'a World) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let sendable = world
            .env
            .iter()
            .filter_map(|(name, value)| Some((name.to_str()?, value.as_bytes())))
            .filter(|(name, _)| self.send_env.iter().any(|pattern| sends(pattern, name)));
        let set = self.set_env.iter();
        sendable.chain(set.map(|(name, value)| (name.as_str(), value.as_bytes())))
    }
}

/// The configuration of an explicit host. Thousands share its lists.
static EXPLICIT: LazyLock<HostConfig> = LazyLock::new(|| {
    let around = Surroundings {
        world: &World::new("/", 0o077, BTreeMap::new()),
        account: &Account {
            uid: 0,
            name: "-".into(),
            home: "/".into(),
        },
        local_host: "localhost",
        original_host: "-",
        config_file: Some("none".into()),
        asked: VersionTokens::default(),
        default_algorithms: &DefaultAlgorithms::default(),
    };
    let mut config = HostConfig::read(explicit_directives(), &around).expect("the directives are valid");
    config.host_key_order_is_free = true;
    config
});

/// Returns the lines of `ssh -G` for an explicit host that differ from the defaults of [`HostConfig::read`]. The names
/// are placeholders.
fn explicit_directives() -> Vec<Directive> {
    let host_keys = trunkline_proto::HOST_KEY_ALGORITHMS.join(",");
    let Algorithms {
        kex,
        host_key,
        cipher,
        mac,
        ..
    } = Algorithms::all_supported();
    let directives: [(&str, String); 10] = [
        ("host", "-".into()),
        ("hostname", "-".into()),
        ("user", "-".into()),
        ("port", "22".into()),
        ("ciphers", cipher.join(",")),
        ("macs", mac.join(",")),
        ("kexalgorithms", kex.join(",")),
        ("hostkeyalgorithms", host_keys.clone()),
        ("pubkeyacceptedalgorithms", host_keys),
        ("casignaturealgorithms", host_key.join(",")),
    ];
    let own = [("stricthostkeychecking", "true"), ("identityagent", "none")];
    directives
        .into_iter()
        .chain(own.map(|(keyword, value)| (keyword, value.to_owned())))
        .map(|(keyword, value)| Directive {
            keyword: keyword.to_owned(),
            value,
        })
        .collect()
}

/// Returns whether `part` is `whole` with some left out.
fn is_subsequence(part: &[String], whole: &[String]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|name| whole.any(|other| other == name))
}

/// Returns whether a SendEnv pattern, with `*` and `?`, matches a name.
fn sends(pattern: &str, name: &str) -> bool {
    fn matches(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) if matches(rest, name) => true,
            (Some((b'*', _)), Some((_, name))) => matches(pattern, name),
            (Some((b'?', rest)), Some((_, name))) => matches(rest, name),
            (Some((p, rest)), Some((n, name))) => p == n && matches(rest, name),
            _ => false,
        }
    }
    matches(pattern.as_bytes(), name.as_bytes())
}

#[cfg(test)]
pub(crate) mod tests;
