//! `trunkline setup rsync`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use trunkline::memory::{HostId, Memory};
use trunkline::tune;

use super::block::Block;
use super::{FileArgs, Lines, Outcome, program};

const BLOCK: Block = Block { name: "rsync" };

/// Runs it.
pub(super) fn main(args: &FileArgs) -> anyhow::Result<()> {
    let shell = std::env::var_os("SHELL").unwrap_or_default();
    let shell = Path::new(&shell)
        .file_name()
        .unwrap_or(OsStr::new("sh"))
        .to_owned();
    let path = match &args.file {
        Some(path) => path.clone(),
        None => profile(&shell)?,
    };
    let value = format!("{} ssh", program()?);
    let lines = if path.extension() == Some(OsStr::new("fish")) {
        format!("set -gx RSYNC_RSH \"{value}\"\n")
    } else {
        format!("export RSYNC_RSH=\"{value}\"\n")
    };
    let insert = |text: &str| Ok(BLOCK.append(text, &lines));
    let lines = Lines {
        block: BLOCK,
        lines: lines.clone(),
        insert: &insert,
        bridge: &|_| "",
    };
    if lines.change(&path, args.change)? == Outcome::Written {
        println!("new shells will use it");
        for line in measured()? {
            println!("{line}");
        }
    }
    Ok(())
}

/// What `trunkline tune` found for rsync, a line for each host. Cipher and compression go by themselves: they are those of
/// the connection.
fn measured() -> anyhow::Result<Vec<String>> {
    let state = crate::backend::place()?.state;
    if !state.exists() {
        return Ok(Vec::new());
    }
    let hosts = Memory::open(&state).list();
    let tuned = hosts
        .iter()
        .filter_map(|(host, facts)| Some((host, tune::of(facts)?)));
    Ok(tuned
        .map(|(host, choice)| {
            let options = match choice.rsync.join(" ") {
                none if none.is_empty() => "no options of its own".into(),
                options => options,
            };
            let HostId { hostname, port, user } = host;
            format!(
                "{user}@{hostname}:{port}: measured best with {options}, over {}",
                choice.describe()
            )
        })
        .collect())
}

/// The file that a login of this shell reads, by the shells' manuals.
fn profile(shell: &OsStr) -> anyhow::Result<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
    Ok(match shell.to_str() {
        Some("bash") => [".bash_profile", ".bash_login"]
            .map(|name| home.join(name))
            .into_iter()
            .find(|file| file.exists())
            .unwrap_or_else(|| home.join(".profile")),
        Some("zsh") => std::env::var_os("ZDOTDIR")
            .map_or(home, PathBuf::from)
            .join(".zprofile"),
        Some("fish") => std::env::var_os("XDG_CONFIG_HOME")
            .map_or_else(|| home.join(".config"), PathBuf::from)
            .join("fish/conf.d/trunkline.fish"),
        _ => home.join(".profile"),
    })
}
