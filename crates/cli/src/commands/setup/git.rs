//! `trunkline setup git`.

use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, bail, ensure};

use super::{Change, program};

/// Runs `trunkline setup git`.
///
/// With `ssh.variant` set, git need not run `ssh -G`, which would be one more process for each command (git-config(1)).
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
    let [(name, ours), (variant, kind)] = &settings;
    let is_ours = |value: &String| value.ends_with(OURS);
    let (mine, others): (Vec<String>, Vec<String>) = values_of(name)?.into_iter().partition(is_ours);
    let refuse = |name: &str, found: &str| {
        bail!(
            "git's {name} is already set to {found:?}: remove that, which `git config --global --includes --show-origin \
             --get-all {name}` finds; `trunkline setup ssh` works without this setting"
        )
    };
    if let Some(found) = others.last().filter(|_| mine.is_empty() || !change.undo) {
        return refuse(name, found);
    }
    if change.undo {
        if mine.is_empty() {
            println!("git's {name} is not set");
            return Ok(());
        }
        unset(name, &format!("{OURS}$"))?;
        unset(variant, &format!("^{kind}$"))?;
        if let Some(left) = values_of(name)?.iter().rfind(|value| is_ours(value)) {
            bail!(
                "git's {name} is still {left:?}, which a file says that your global configuration includes"
            );
        }
        println!("git uses ssh again");
        return Ok(());
    }
    if let Some(found) = values_of(variant)?.iter().find(|found| *found != kind) {
        return refuse(variant, found);
    }
    if mine.last() == Some(ours) {
        println!("git already uses {ours:?}");
        return Ok(());
    }
    for (name, value) in &settings {
        let output = output_of(&["--replace-all", name, value])?;
        ensure!(
            output.status.success(),
            "git config {name}: {}",
            complaint(&output)
        );
    }
    println!("git now uses {ours:?} (set in your global configuration)");
    Ok(())
}

/// The end of our `core.sshCommand`.
const OURS: &str = "trunkline ssh";

/// Returns all values of a setting in the global configuration and its includes.
fn values_of(name: &str) -> anyhow::Result<Vec<String>> {
    let output = output_of(&["--includes", "--null", "--get-all", name])?;
    match output.status.code() {
        Some(0) => {
            let values = String::from_utf8_lossy(&output.stdout);
            Ok(values.split_terminator('\0').map(str::to_owned).collect())
        }
        // The setting has no value.
        Some(1) => Ok(Vec::new()),
        _ => bail!("git config --get-all {name}: {}", complaint(&output)),
    }
}

/// Removes the values that match an expression.
fn unset(name: &str, expression: &str) -> anyhow::Result<()> {
    let output = output_of(&["--unset-all", name, expression])?;
    // 5: there is none.
    let is_unset = matches!(output.status.code(), Some(0 | 5));
    ensure!(is_unset, "git config --unset-all {name}: {}", complaint(&output));
    Ok(())
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

fn output_of(arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new("git");
    command
        .args(["config", "--global"])
        .args(arguments)
        .stdin(Stdio::null());
    command.output().context("running git")
}
