//! Completions for shells: names of hosts, and paths on connected hosts.

use std::collections::HashMap;
use std::ffi::OsStr;

use futures_util::future::join_all;
use trunkline::config::World;
use trunkline::hosts::{aliases, known_host_names};
use trunkline::sftp::FileType;
use trunkline::{Engine, Error, Interaction, Printable};

use crate::protocol::{HostName, HostRequest, HostSource, RemoteName, Reply};
use crate::reports::engine_request;

/// The most names in an answer: nobody looks through more.
const MOST_NAMES: usize = 2_000;
/// The most names of a directory that are considered.
const MOST_LISTED: usize = 20_000;
/// The most symbolic links that are followed to find directories.
const MOST_LINKS: usize = 64;

/// Returns the hosts whose names begin with `prefix`, each once: connected ones, aliases of ssh_config, and unhashed
/// names in known_hosts.
pub(crate) fn host_names(
    engine: &Engine,
    prefix: &str,
    world: &World,
    config_file: Option<&OsStr>,
) -> Result<Reply, Error> {
    let connected = engine
        .status()
        .into_iter()
        .filter(|host| !host.lanes.is_empty())
        .map(|host| (host.host.original_host.clone(), HostSource::Connected));
    let aliases = aliases(world, config_file)?.into_iter();
    let aliases = aliases.map(|name| (name, HostSource::Config));
    let known = known_host_names(world, config_file)?.into_iter();
    // Addresses are only offered after their first characters.
    let known = known
        .filter(|name| !prefix.is_empty() || name.parse::<std::net::IpAddr>().is_err())
        .map(|name| (name, HostSource::KnownHosts));
    let mut names: HashMap<String, HostSource> = HashMap::new();
    for (name, source) in connected.chain(aliases).chain(known) {
        if names.len() >= MOST_NAMES {
            break;
        }
        if name.starts_with(prefix) && is_plain(&name) {
            names.entry(name).or_insert(source);
        }
    }
    let mut names: Vec<HostName> = names
        .into_iter()
        .map(|(name, source)| HostName { name, source })
        .collect();
    names.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::HostNames(names))
}

/// Returns the names in a host's directory that begin with `prefix`. Neither connects nor asks.
pub(crate) async fn remote_names(
    engine: &Engine,
    host: &HostRequest,
    directory: &str,
    prefix: &str,
) -> Result<Reply, Error> {
    let asked = engine_request(host);
    let config = engine.resolve(&asked).await?;
    let none = Reply::RemoteNames(Vec::new());
    let is_connected = engine
        .find_connected(&config)
        .is_some_and(|status| status.lanes.iter().any(|lane| lane.info.is_some()));
    // A completion is not worth a question to the user.
    if !is_connected || engine.confirms_use(&config) {
        return Ok(none);
    }
    let host = engine.host_for(&asked, &Interaction::none()).await?;
    if !host.is_warm() || host.confirms_use() {
        return Ok(none);
    }
    let sftp = host.sftp().await?;
    let path = if directory.is_empty() { "." } else { directory };
    let mut listing = sftp.read_dir(path);
    let (mut names, mut links) = (Vec::new(), Vec::new());
    for _ in 0..MOST_LISTED {
        let Some(entry) = listing.next().await else { break };
        let Ok(entry) = entry else { continue };
        let Ok(name) = std::str::from_utf8(&entry.path) else {
            continue;
        };
        let is_hidden = name.starts_with('.') && !prefix.starts_with('.');
        if !name.starts_with(prefix) || is_hidden || !is_plain(name) {
            continue;
        }
        let kind = entry.attributes.file_type();
        if kind == Some(FileType::Symlink) && links.len() < MOST_LINKS {
            links.push(names.len());
        }
        names.push(RemoteName {
            name: name.to_owned(),
            is_directory: kind == Some(FileType::Directory),
        });
        if names.len() >= MOST_NAMES {
            break;
        }
    }
    let followed = links.iter().map(|&at| {
        let target = match directory {
            "" => names[at].name.clone(),
            directory => format!("{directory}{}", names[at].name),
        };
        let sftp = &sftp;
        async move { sftp.stat(target).await }
    });
    let followed = join_all(followed).await;
    for (at, attributes) in links.into_iter().zip(followed) {
        names[at].is_directory =
            attributes.is_ok_and(|attributes| attributes.file_type() == Some(FileType::Directory));
    }
    names.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::RemoteNames(names))
}

/// Returns true if a name can be shown and typed as it is. Other people's names are offered in no other form.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && Printable::line(name) == name
}
