//! Parsers of directives whose values are more than a word, a number or a list.

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
    /// Through jump hosts, in this order. Each is resolved in turn ([`Request::for_jump`](super::Request::for_jump)).
    Jump(Vec<Destination>),
}

/// Formats as "none", the command, or the jump hosts as for `-J`.
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
    /// It is one of ssh's default files: if it is missing, it is skipped silently.
    pub is_default: bool,
}

impl Shown for Vec<IdentityFile> {
    fn show(&self) -> String {
        // A missing file is an error if the user named it.
        let one = |file: &IdentityFile| {
            let origin = if file.is_default { " (default)" } else { "" };
            format!("{}{origin}", file.path.show())
        };
        self.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

/// An ssh's default algorithms, of the kinds for which it matters whether the user has chosen others.
#[derive(Debug, Default)]
pub(crate) struct DefaultAlgorithms {
    pub(crate) host_key: Vec<String>,
    pub(crate) kex: Vec<String>,
}

/// A command to run here once the connection is established.
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

/// The context for parsing a dump.
pub(crate) struct Surroundings<'a> {
    pub(crate) world: &'a World,
    pub(crate) account: &'a Account,
    pub(crate) local_host: &'a str,
    pub(crate) original_host: &'a str,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) asked: VersionTokens,
    /// The same ssh's default algorithms.
    pub(crate) default_algorithms: &'a DefaultAlgorithms,
}

impl Surroundings<'_> {
    /// Returns a path relative to the caller's working directory as an absolute one.
    pub(super) fn absolute(&self, path: &str) -> PathBuf {
        self.world.absolute(path.as_ref())
    }
}

/// The names common to ssh's lists of default `~/.ssh/id_*`, from 9.2 (which adds `id_xmss` and `id_dsa`) to 10.6
/// (which adds `id_mldsa44_ed25519`).
const DEFAULT_IDENTITIES: &[&str] = &[
    "~/.ssh/id_rsa",
    "~/.ssh/id_ecdsa",
    "~/.ssh/id_ecdsa_sk",
    "~/.ssh/id_ed25519",
    "~/.ssh/id_ed25519_sk",
];

/// Reads the identity files. `ssh -G` prints ssh's default list as if the user had written it. A list of all of the
/// default names and no others is taken for it: a user who writes exactly that gets the default's behaviour.
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

/// Reads dynamic forwardings. ssh prints one to a socket as dynamic, too (readconf.c, `dump_cfg_forwards`).
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

/// Reads the agent's socket (ssh.c): `none`, `SSH_AUTH_SOCK` (the default), `$VAR`, or an expanded path.
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

/// Reads the forwarded agent (ssh.c): an unset variable disables the forwarding.
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

/// Reads the provider (ssh.c): `$VAR` names a variable, none if unset. The agent supports `internal`, too.
pub(super) fn security_key_provider(fields: &mut Fields, keyword: &str, world: &World) -> Option<String> {
    let provider = fields.text(keyword)?;
    let provider = match provider.strip_prefix('$') {
        Some(name) => world.var(name)?.to_string_lossy().into_owned(),
        None => provider,
    };
    // Empty if somebody has cleared the variable: no provider at all.
    (provider != "internal" && !provider.is_empty()).then_some(provider)
}

/// Parses the interval: `yes` is 20 ms, SSH_KEYSTROKE_DEFAULT_INTERVAL_MS in OpenSSH's ssh.h.
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
            // In seconds, with a fraction since OpenSSH 10.6.
            let fraction = || Duration::try_from_secs_f64(time.parse().ok()?).ok();
            Some((kind.to_owned(), values::duration(time).or_else(fraction)?))
        })
        .collect()
}
