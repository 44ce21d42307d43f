//! The readers of directives whose values are more than a word, a number or a list.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::account::Account;
use super::dump::Fields;
use super::tokens::{Allowed, Tokens, VersionTokens};
use super::values::{self, Forward, ForwardAgent, ForwardTarget, Listen, Shown};
use super::{ConfigError, World};
use crate::destination::Destination;

/// The way in which the connection reaches the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxy {
    /// Directly, by TCP.
    Direct,
    /// Through a command's standard input and output. Tokens are expanded; the caller's shell runs it.
    Command(String),
    /// Through jump hosts, the first to be reached first. Each is resolved in turn
    /// ([`Request::for_jump`](super::Request::for_jump)).
    Jump(Vec<Destination>),
}

/// "none", the command, or the jump hosts as `-J` takes them.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("none"),
            Self::Command(command) => write!(f, "command {command}"),
            Self::Jump(hosts) => {
                let hosts: Vec<_> = hosts.iter().map(Destination::to_string).collect();
                write!(f, "jump {}", hosts.join(","))
            }
        }
    }
}

/// A private key file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdentityFile {
    /// The file.
    pub path: PathBuf,
    /// It is one of ssh's own list, not the user's: a missing one is passed over without a word.
    pub is_default: bool,
}

impl Shown for Vec<IdentityFile> {
    fn show(&self) -> String {
        // A missing file is an error when the user named it.
        let one = |file: &IdentityFile| {
            let origin = if file.is_default { " (default)" } else { "" };
            format!("{}{origin}", file.path.show())
        };
        self.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

/// The algorithms that an ssh without any configuration offers, as far as it matters whether somebody has chosen
/// others.
#[derive(Debug, Default)]
pub(crate) struct DefaultAlgorithms {
    pub(crate) host_key: Vec<String>,
    pub(crate) kex: Vec<String>,
}

/// A command to run here once the connection stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LocalCommand(
    /// The command, tokens expanded, for the caller's shell.
    pub String,
);

impl Shown for Proxy {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Shown for LocalCommand {
    fn show(&self) -> String {
        self.0.clone()
    }
}

/// The context for reading a dump.
pub(crate) struct Surroundings<'a> {
    pub(crate) world: &'a World,
    pub(crate) account: &'a Account,
    pub(crate) local_host: &'a str,
    pub(crate) original_host: &'a str,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) asked: VersionTokens,
    /// The output of the same ssh for `HostKeyAlgorithms` if nothing is configured.
    pub(crate) default_algorithms: &'a DefaultAlgorithms,
}

impl Surroundings<'_> {
    /// A path that begins at the caller's working directory.
    pub(super) fn absolute(&self, path: &str) -> PathBuf {
        self.world.absolute(path.as_ref())
    }
}

/// The lists of `~/.ssh/id_*` that ssh falls back on have these in common, from 9.2 (which adds `id_xmss` and
/// `id_dsa`) to 10.6 (which adds `id_mldsa44_ed25519`).
const DEFAULT_IDENTITIES: &[&str] = &[
    "~/.ssh/id_rsa",
    "~/.ssh/id_ecdsa",
    "~/.ssh/id_ecdsa_sk",
    "~/.ssh/id_ed25519",
    "~/.ssh/id_ed25519_sk",
];

/// `ssh -G` prints ssh's own list as if the user had written it. A list that holds all of the default names and no
/// other is taken for it: whoever writes exactly that gets what the default would give.
pub(super) fn identity_files(
    fields: &mut Fields,
    keyword: &str,
    tokens: &Tokens<'_>,
) -> Result<Vec<IdentityFile>, ConfigError> {
    let files = fields.all(keyword, |value| Some(value.to_owned()));
    let is_default = DEFAULT_IDENTITIES
        .iter()
        .all(|name| files.iter().any(|file| file == name))
        && files.iter().all(|file| {
            DEFAULT_IDENTITIES.contains(&file.as_str())
                || ["~/.ssh/id_xmss", "~/.ssh/id_dsa", "~/.ssh/id_mldsa44_ed25519"].contains(&file.as_str())
        });
    files
        .iter()
        .filter(|file| !file.eq_ignore_ascii_case("none"))
        .map(|file| {
            Ok(IdentityFile {
                path: tokens.path("IdentityFile", file)?,
                is_default,
            })
        })
        .collect()
}

pub(super) fn certificate_files(
    fields: &mut Fields,
    keyword: &str,
    tokens: &Tokens<'_>,
) -> Result<Vec<PathBuf>, ConfigError> {
    let files = fields.all(keyword, |value| Some(value.to_owned()));
    files
        .iter()
        .filter(|file| !file.eq_ignore_ascii_case("none"))
        .map(|file| tokens.path("CertificateFile", file))
        .collect()
}

pub(super) fn local_command(
    fields: &mut Fields,
    keyword: &str,
    tokens: &Tokens<'_>,
    permitted: bool,
) -> Result<Option<LocalCommand>, ConfigError> {
    let Some(command) = fields.text(keyword).filter(|_| permitted) else {
        return Ok(None);
    };
    let command = tokens.command("LocalCommand", &command, Allowed::LocalCommand)?;
    Ok(Some(LocalCommand(command)))
}

/// ssh prints a forwarding to a socket a second time, as if it were dynamic (readconf.c, `dump_cfg_forwards`).
pub(super) fn dynamic_forwards(fields: &mut Fields, keyword: &str, local: &[Forward]) -> Vec<Listen> {
    let mut dynamic = fields.all(keyword, Listen::parse);
    dynamic.retain(|listen| {
        let is_it = |f: &Forward| f.listen == *listen && matches!(f.target, ForwardTarget::Socket(_));
        !local.iter().any(is_it)
    });
    dynamic
}

pub(super) fn proxy(fields: &mut Fields, keyword: &str, tokens: &Tokens<'_>) -> Result<Proxy, ConfigError> {
    let command = fields.text(keyword);
    if let Some(jump) = fields.text("proxyjump") {
        // ssh turns the jump into a ProxyCommand, so that the same tokens work in it.
        let jump = tokens.command("ProxyJump", &jump, Allowed::Proxy)?;
        let hops = jump
            .split(',')
            .map(|hop| Destination::parse_hop(hop.trim()))
            .collect::<Result<_, _>>()?;
        return Ok(Proxy::Jump(hops));
    }
    match command {
        Some(command) => Ok(Proxy::Command(tokens.command(
            "ProxyCommand",
            &command,
            Allowed::Proxy,
        )?)),
        None => Ok(Proxy::Direct),
    }
}

/// ssh.c: `none`, `SSH_AUTH_SOCK`, `$VAR`, or a path that `ssh -G` has expanded; by default `SSH_AUTH_SOCK`.
pub(super) fn identity_agent(fields: &mut Fields, keyword: &str, world: &World) -> Option<PathBuf> {
    let from = |name: &str| {
        world
            .var(name)
            .filter(|value| !value.is_empty())
            .map(|value| world.absolute(value.as_ref()))
    };
    match fields.parse(keyword, |value| Some(value.to_owned())).as_deref() {
        None | Some("SSH_AUTH_SOCK") => from("SSH_AUTH_SOCK"),
        Some("none") => None,
        Some(value) => match value.strip_prefix('$') {
            Some(name) if !name.starts_with('{') => from(name),
            _ => Some(world.absolute(value.as_ref())),
        },
    }
}

/// ssh.c: a variable that is not set turns the forwarding off.
pub(super) fn forward_agent(fields: &mut Fields, keyword: &str, world: &World) -> ForwardAgent {
    match fields.parse(keyword, |value| Some(value.to_owned())).as_deref() {
        None | Some("no" | "false") => ForwardAgent::No,
        Some("yes" | "true") => ForwardAgent::Yes,
        Some(value) => match value.strip_prefix('$') {
            Some(name) => match world.var(name) {
                Some(socket) => ForwardAgent::Socket(world.absolute(socket.as_ref())),
                None => ForwardAgent::No,
            },
            None => ForwardAgent::Socket(world.absolute(value.as_ref())),
        },
    }
}

/// ssh.c: `$VAR` names a variable, and no provider where that is not set. `internal` is what the agent does, too.
pub(super) fn security_key_provider(fields: &mut Fields, keyword: &str, world: &World) -> Option<String> {
    let provider = fields.text(keyword)?;
    let provider = match provider.strip_prefix('$') {
        Some(name) => world.var(name)?.to_string_lossy().into_owned(),
        None => provider,
    };
    // Empty is what is left of a variable that somebody has unset so: no provider at all.
    (provider != "internal" && !provider.is_empty()).then_some(provider)
}

/// `yes` is 20 ms, SSH_KEYSTROKE_DEFAULT_INTERVAL_MS in OpenSSH's ssh.h.
#[allow(clippy::option_option, reason = "\"no\" is a value that is understood")]
pub(super) fn keystroke_interval(value: &str) -> Option<Option<Duration>> {
    match values::flag(value) {
        Some(yes) => Some(yes.then_some(Duration::from_millis(20))),
        None => {
            let milliseconds = value.strip_prefix("interval:").unwrap_or(value);
            milliseconds
                .parse()
                .ok()
                .map(|milliseconds| Some(Duration::from_millis(milliseconds)))
        }
    }
}

pub(super) fn channel_timeouts(value: &str) -> Option<Vec<(String, Duration)>> {
    if value == "none" {
        return Some(Vec::new());
    }
    value
        .split_whitespace()
        .map(|entry| {
            let (kind, time) = entry.split_once('=')?;
            // In seconds, with a fraction from OpenSSH 10.6 on.
            let fraction = || Duration::try_from_secs_f64(time.parse().ok()?).ok();
            Some((kind.to_owned(), values::duration(time).or_else(fraction)?))
        })
        .collect()
}
