//! `trunkline mcp check`: shows what the rules decide, without doing it.

use std::io::Write as _;
use std::path::Path;

use anyhow::{anyhow, bail};

use crate::hosts;
use crate::rules::{Action, Rules, Verdict, clean};
use crate::words;

/// Arguments of `trunkline mcp check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, as an assistant would give it: one argument. Without it and without a path, the rules are only
    /// read.
    command: Option<String>,
    /// On which host; every host that the rules name if not given.
    #[arg(long, short = 'H', value_name = "HOST")]
    host: Option<String>,
    /// As root.
    #[arg(long)]
    sudo: bool,
    /// As a line for the shell.
    #[arg(long, conflicts_with = "sudo")]
    shell: bool,
    /// Whether this path may be read.
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    read: Option<String>,
    /// Whether this path may be written.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["command", "read"])]
    write: Option<String>,
}

/// Returns 0 if the action is allowed everywhere, 1 if it is denied somewhere, 2 if a user would be asked.
pub(crate) fn main(args: &Args, path: &Path) -> anyhow::Result<u8> {
    let rules = Rules::load(path)?;
    let mut out = std::io::stdout();
    let Some(action) = action(args)? else {
        writeln!(out, "{}: no mistakes", path.display())?;
        return Ok(0);
    };
    let (named, patterns) = rules.hosts();
    let names: Vec<String> = match &args.host {
        Some(host) => vec![host.clone()],
        None => named.into_iter().map(str::to_owned).collect(),
    };
    if names.is_empty() {
        bail!(
            "the rules name hosts by patterns only ({}): say which one with --host",
            patterns.join(" ")
        );
    }
    let mut code = 0;
    for name in names {
        let host = hosts::destination(&name).map_err(|wrong| anyhow!(wrong))?;
        let (verdict, one) = match rules.verdict(&host, &action) {
            Verdict::Allowed(rule) => (format!("allowed by rule {rule}"), 0),
            Verdict::Ask(rule) => (format!("asked for, by rule {rule}"), 2),
            Verdict::Denied(why) => (format!("denied: {why}"), 1),
        };
        code = match (code, one) {
            (1, _) | (_, 1) => 1,
            (code, one) => code.max(one),
        };
        writeln!(out, "{name}: {verdict}")?;
    }
    Ok(code)
}

fn action(args: &Args) -> anyhow::Result<Option<Action>> {
    let cleaned =
        |path: &String| clean(path).ok_or_else(|| anyhow!("{path} is not an absolute path without . and .."));
    Ok(match (&args.command, &args.read, &args.write) {
        (Some(line), ..) if args.shell => Some(Action::Shell(line.clone())),
        (Some(line), ..) => Some(Action::Run {
            words: words::parse(line)?,
            sudo: args.sudo,
        }),
        (None, Some(path), _) => Some(Action::Read(cleaned(path)?)),
        (None, None, Some(path)) => Some(Action::Write(cleaned(path)?)),
        (None, None, None) => None,
    })
}
