//! `trunkline audit`: the daemon's trail of commands run on hosts.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use trunkline_control::program;

/// Arguments of `trunkline audit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check that no record of the audit trail was changed or removed.
    Verify(VerifyArgs),
    /// Print what was done on hosts, for whom, and how it ended: one line for each.
    Show(ShowArgs),
}

/// Arguments of `trunkline audit show`.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Where the trail is; that of your own daemon if not given.
    directory: Option<PathBuf>,
    /// Only what was done on this host.
    #[arg(long)]
    host: Option<String>,
    /// Only what was done since: 30m, 2h, 1d, or a date or time in UTC (2026-01-31T08:00:00Z).
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only what was done for whoever has this text in the name: a program, a coding agent, a submitter of a fleet, or
    /// a uid.
    #[arg(long, value_name = "TEXT")]
    who: Option<String>,
    /// Print the records as they are, one JSON document a line.
    #[arg(long)]
    json: bool,
}

/// Arguments of `trunkline audit verify`.
#[derive(Debug, clap::Args)]
struct VerifyArgs {
    /// Where the trail is; that of your own daemon if not given.
    directory: Option<PathBuf>,
    /// The last record of an earlier check, which must still be there: what `verify` printed then.
    #[arg(long, value_name = "NUMBER:HASH")]
    head: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs `trunklined`, which has the cryptography, to read the trail.
pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let (how, json, options, directory) = match &args.action {
        Action::Verify(args) => (
            "--verify-audit",
            args.json,
            vec![("--head", &args.head)],
            &args.directory,
        ),
        Action::Show(args) => {
            let options = vec![
                ("--host", &args.host),
                ("--since", &args.since),
                ("--who", &args.who),
            ];
            ("--show-audit", args.json, options, &args.directory)
        }
    };
    let mut arguments: Vec<OsString> = Vec::new();
    for (option, value) in options {
        // In one word, since a value may begin with a dash.
        arguments.extend(value.as_ref().map(|value| format!("{option}={value}").into()));
    }
    if json {
        arguments.push("--json".into());
    }
    arguments.push(how.into());
    arguments.extend(directory.as_ref().map(OsString::from));
    let program = program::find()?;
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}
