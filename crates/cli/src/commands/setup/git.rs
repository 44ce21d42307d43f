//! `trunkline setup git`.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::{Change, program};

/// Runs it.
///
/// `ssh.variant` spares git finding out by `-G`, a process more for each command (git-config(1)).
pub(super) fn main(change: Change) -> anyhow::Result<()> {
    let settings = [
        ("core.sshCommand", format!("{} ssh", program()?)),
        ("ssh.variant", "ssh".to_owned()),
    ];
    if change.print {
        for (name, value) in &settings {
            println!("git config --global {name} '{value}'");
        }
        return Ok(());
    }
    let [(name, ours), _] = &settings;
    let found = value_of(name)?;
    let is_ours = |value: &str| value.ends_with("trunkline ssh");
    match found {
        Some(found) if !is_ours(&found) => bail!(
            "git's {name} is already set to {found:?}: `git config --global --unset {name}` removes it; `trunkline setup ssh` works without this setting"
        ),
        None if change.undo => println!("git's {name} is not set"),
        Some(found) if !change.undo && found == *ours => println!("git already uses {found:?}"),
        _ if change.undo => {
            for (name, _) in &settings {
                git(&["--unset", name])?;
            }
            println!("git uses ssh again");
        }
        _ => {
            for (name, value) in &settings {
                git(&[name, value])?;
            }
            println!("git now uses {ours:?} (set in your global configuration)");
        }
    }
    Ok(())
}

/// `None` where it is not set.
fn value_of(name: &str) -> anyhow::Result<Option<String>> {
    let output = command(&["--get", name]).output().context("running git")?;
    match output.status.code() {
        Some(0) => Ok(Some(
            String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
        )),
        Some(1) => Ok(None),
        _ => bail!(
            "git config --get {name}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

fn git(arguments: &[&str]) -> anyhow::Result<()> {
    let output = command(arguments).output().context("running git")?;
    // 5: unset what is not set.
    if !matches!(output.status.code(), Some(0 | 5)) {
        bail!(
            "git config {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .args(["config", "--global"])
        .args(arguments)
        .stdin(Stdio::null());
    command
}
