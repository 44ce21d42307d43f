//! ClusterShell's groups of hosts, from files, SLURM, genders and others, read by its `nodeset`.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

/// The program that comes with clush.
const NODESET: &str = "nodeset";

/// Returns the hosts of groups, which may be prefixed by their source (`slurm:compute`).
///
/// # Errors
/// nodeset is not installed, does not know a group, or finds no hosts.
pub(super) fn members(groups: &[String]) -> anyhow::Result<Vec<String>> {
    let sets = groups
        .iter()
        .map(|group| format!("@{}", group.trim_start_matches('@')));
    let run = Command::new(NODESET)
        .args(["--expand", "--separator", "\n", "--"])
        .args(sets)
        .stdin(Stdio::null())
        .output();
    let output = match run {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "groups are read by ClusterShell's nodeset, which is not installed (Debian: clustershell; Fedora: python3-clustershell)"
        ),
        run => run.context("running nodeset")?,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim_end().lines().last().unwrap_or("it said nothing");
        bail!("nodeset: {last}");
    }
    let text = String::from_utf8(output.stdout).context("nodeset printed names that are not text")?;
    let names: Vec<String> = text
        .lines()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "no host is in {}", groups.join(","));
    Ok(names)
}
