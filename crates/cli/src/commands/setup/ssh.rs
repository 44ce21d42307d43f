//! `trunkline setup ssh`. docs/adr/0008-up-stanza.md has the reasons for every line that it writes.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use trunkline_control::protocol::{Reply, Request};
use trunkline_request::RESOLVING;

use super::block::{Block, Sections};
use super::{Change, FileArgs, Lines, Outcome, answer, plain, program};
use crate::ask::unexpected;
use crate::backend::{Backend, place};

const BLOCK: Block = Block { name: "ssh" };

/// ssh's name for the socket: two names of one host stay apart, because their keys may differ. The daemon compares the
/// rest of what decides who talks to whom.
const SOCKET: &str = "%r@%n:%p";

/// Ends the block, so that lines behind it hold for all hosts, as they would have at the top of the file.
const CLOSE: &str = "Match all\n";

/// Runs it.
pub(super) fn main(args: &FileArgs, backend: &Backend) -> anyhow::Result<()> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => match answer(Request::ConfigFile, backend)? {
            Reply::ConfigFile(path) => path,
            other => return Err(unexpected(&other)),
        },
    };
    let sockets = format!("{}/{SOCKET}", plain(&place()?.mux())?);
    let program = program()?;
    // A program that was removed says nothing at each ssh.
    let lines = format!(
        "# Whatever is set above wins. Leave these lines at the end of the file.\n\
         Match exec \"test -x {program} && exec {program} up\"\n    \
             ControlMaster no\n    \
             ControlPath {sockets}\n\
         {CLOSE}",
    );
    let insert = |text: &str| Ok(BLOCK.append(text, &lines));
    let lines = Lines {
        block: BLOCK,
        lines: lines.clone(),
        insert: &insert,
        bridge: &bridge,
    };
    let outcome = lines.change(&path, args.change)?;
    if outcome == Outcome::Unchanged || args.change.undo {
        return Ok(());
    }
    let read = tell_what_wins(&path);
    if read.is_err() {
        let undo = Change {
            undo: true,
            print: false,
        };
        lines.change(&path, undo)?;
    }
    read
}

/// Lines behind the block hold for all hosts. Without it they would belong to whatever block is above.
fn bridge(found: &Sections<'_>) -> &'static str {
    let first = found.after.lines().find_map(opens_a_block);
    let above_is_open = found
        .before
        .lines()
        .any(|line| opens_a_block(line).unwrap_or(false));
    if first == Some(false) && above_is_open {
        CLOSE
    } else {
        ""
    }
}

/// Whether a line of ssh_config begins a block; `None` where it says nothing.
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

/// Has ssh read the file, for a host that nobody has written anything about.
fn tell_what_wins(path: &std::path::Path) -> anyhow::Result<()> {
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

    fn bridged(before: &str, after: &str) -> &'static str {
        bridge(&Sections {
            before,
            block: "",
            after,
        })
    }

    #[test]
    fn lines_behind_the_block_go_on_to_hold_for_all_hosts() {
        assert_eq!(bridged("Host a\n", "# note\nUser b\n"), CLOSE);
        assert_eq!(bridged("host=a\n", "Include more\n"), CLOSE);
        assert_eq!(bridged("Host a\n", "\nhost b\n"), "");
        assert_eq!(bridged("User a\n", "User b\n"), "");
        assert_eq!(bridged("Host a\n", ""), "");
    }

    #[test]
    fn a_block_is_told_from_a_directive() {
        assert_eq!(opens_a_block("Host a"), Some(true));
        assert_eq!(opens_a_block("\tMATCH all"), Some(true));
        assert_eq!(opens_a_block("HostName a"), Some(false));
        assert_eq!(opens_a_block("  # Host a"), None);
    }
}
