//! `trunkline audit`: the daemon's trail of what was run on hosts.

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

/// Has `trunklined` check it, which has the cryptography.
pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let Action::Verify(args) = &args.action;
    let mut arguments: Vec<OsString> = Vec::new();
    if let Some(head) = &args.head {
        arguments.extend(["--head".into(), head.into()]);
    }
    if args.json {
        arguments.push("--json".into());
    }
    arguments.push("--verify-audit".into());
    arguments.extend(args.directory.as_ref().map(OsString::from));
    let program = program::find()?;
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}
