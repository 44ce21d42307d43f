//! `trunkline setup ssh`. docs/adr/0008-up-stanza.md explains every line that it writes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use trunkline_control::protocol::{Reply, Request};
use trunkline_request::RESOLVING;

use super::block::{Block, Sections};
use super::edited_file::EditedFile;
use super::{Change, FileArgs, Lines, Outcome, answer, plain, program};
use crate::ask::unexpected_reply;
use crate::backend::{Backend, place};

const BLOCK: Block = Block { name: "ssh" };

/// ssh's name for the socket. Two names of one host stay separate, because their keys may differ. The daemon compares
/// the other settings that decide which connections are shared.
const SOCKET: &str = "%r@%n:%p";

/// Begins lines for all hosts, as if they were at the top of the file. Other programs that read ssh_config know `Host`,
/// but not all know `Match`; in JSch a second `Host *` replaces the user's own.
const FOR_ALL: &str = "Host **\n";

pub(super) fn main(args: &FileArgs, backend: &Backend) -> anyhow::Result<()> {
    let (path, own_file) = match &args.file {
        Some(path) => (path.clone(), None),
        None => match answer(Request::ConfigFile, backend)? {
            Reply::ConfigFile(path) => (path, Some("~/.ssh/config.trunkline")),
            other => return Err(unexpected_reply(&other)),
        },
    };
    let included = included_by(&path);
    let named = match own_file {
        Some(name) => name.to_owned(),
        None => plain(&std::path::absolute(&included)?)?,
    };
    let lines = format!(
        "# Whatever is set above wins. Leave these lines at the end of the file.\n\
         {FOR_ALL}    \
             Include {named}\n",
    );
    let asks = asks()?;
    let insert = |text: &str| Ok(BLOCK.append(text, &lines));
    let lines = Lines {
        block: BLOCK,
        lines: lines.clone(),
        insert: &insert,
        bridge: &bridge,
    };
    if args.change.print {
        println!("# in {}\n{}", included.display(), asks.trim_end());
    } else if !args.change.undo {
        // First, because the lines in the other file have no effect without it.
        EditedFile::open(&included)?.write(&asks)?;
    }
    let outcome = lines.change(&path, args.change)?;
    if args.change.undo {
        return remove(&included);
    }
    if outcome == Outcome::Unchanged {
        return Ok(());
    }
    let read = tell_what_wins(&path);
    if read.is_err() {
        let undo = Change {
            undo: true,
            print: false,
        };
        lines.change(&path, undo)?;
        remove(&included)?;
    }
    warn_of_shell();
    read
}

/// Returns our own file beside the user's. Programs that do not know `Match exec`, and would refuse all of ssh_config
/// for it, do not read that file: they ignore Include, or paths that begin with `~`.
fn included_by(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".trunkline");
    path.with_file_name(name)
}

/// Returns the file's content.
fn asks() -> anyhow::Result<String> {
    let sockets = format!("{}/{SOCKET}", plain(&place()?.mux())?);
    let program = program()?;
    // A missing program must not print an error at each ssh.
    Ok(format!(
        "# Made by `trunkline setup ssh`, and removed by `trunkline setup ssh --undo`.\n\
         Match exec \"test -x {program} && exec {program} up\"\n    \
             ControlMaster no\n    \
             ControlPath {sockets}\n",
    ))
}

fn remove(included: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(included) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("deleting {}", included.display()))
        }
        _ => Ok(()),
    }
}

/// Warns about SHELL. ssh runs a `Match exec` in it, and exits if it cannot be run (readconf.c, `execute_in_shell`).
fn warn_of_shell() {
    let Some(shell) = std::env::var_os("SHELL") else {
        return;
    };
    if rustix::fs::access(&shell, rustix::fs::Access::EXEC_OK).is_err() {
        eprintln!(
            "trunkline: SHELL is {shell:?}, which cannot be run: with these lines ssh ends wherever it is so. \
             Set SHELL to the path of a shell, or unset it"
        );
    }
}

/// Returns the line that keeps lines after the block valid for all hosts. Without it they would belong to the block
/// above.
fn bridge(found: &Sections<'_>) -> &'static str {
    let first = found.after.lines().find_map(opens_a_block);
    let above_is_open = found
        .before
        .lines()
        .any(|line| opens_a_block(line).unwrap_or(false));
    if first == Some(false) && above_is_open {
        FOR_ALL
    } else {
        ""
    }
}

/// Returns true if a line of ssh_config begins a block; `None` if it is blank or a comment.
fn opens_a_block(line: &str) -> Option<bool> {
    let line = line.trim_start();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line
        .find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(line.len());
    let keyword = &line[..end];
    Some(keyword.eq_ignore_ascii_case("host") || keyword.eq_ignore_ascii_case("match"))
}

/// Makes ssh read the file, for a host without settings, and reports what takes effect.
fn tell_what_wins(path: &Path) -> anyhow::Result<()> {
    let ssh = std::env::var_os("TRUNKLINE_SSH").unwrap_or_else(|| "ssh".into());
    let output = Command::new(ssh)
        .arg("-F")
        .arg(path)
        .args(["-G", "some-host.invalid"])
        .env(RESOLVING, "1")
        .stdin(Stdio::null())
        .output()
        .context("running ssh to read the file")?;
    let (told, complaint) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if !output.status.success() {
        bail!("ssh does not read {}: {}", path.display(), complaint.trim());
    }
    let sockets = place()?.mux();
    let ours = |path: &str| path.starts_with(&*sockets.to_string_lossy());
    let value = |name: &str| told.lines().find_map(|line| line.strip_prefix(name));
    match (value("controlpath "), value("controlmaster ")) {
        (Some(path), Some("false" | "no")) if ours(path) => {
            println!("ssh, scp, sftp, git and rsync now use trunkline's connections");
        }
        (Some(path), _) if !ours(path) => println!(
            "but your ControlPath {path} takes precedence for the hosts that it is set for; remove it to have them use trunkline"
        ),
        (None, _) => {
            println!("but your own `ControlPath none` takes precedence for the hosts that it is set for");
        }
        _ => println!(
            "but your own ControlMaster takes precedence for the hosts that it is set for; trunkline does not touch those"
        ),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge_between(before: &str, after: &str) -> &'static str {
        bridge(&Sections {
            before,
            block: "",
            after,
        })
    }

    #[test]
    fn lines_behind_the_block_go_on_to_hold_for_all_hosts() {
        assert_eq!(bridge_between("Host a\n", "# note\nUser b\n"), FOR_ALL);
        assert_eq!(bridge_between("host=a\n", "Include more\n"), FOR_ALL);
        assert_eq!(bridge_between("Host a\n", "\nhost b\n"), "");
        assert_eq!(bridge_between("User a\n", "User b\n"), "");
        assert_eq!(bridge_between("Host a\n", ""), "");
    }

    #[test]
    fn a_block_is_told_from_a_directive() {
        assert_eq!(opens_a_block("Host a"), Some(true));
        assert_eq!(opens_a_block("\tMATCH all"), Some(true));
        assert_eq!(opens_a_block("HostName a"), Some(false));
        assert_eq!(opens_a_block("  # Host a"), None);
    }
}
