//! `trunkline mcp` and `trunkline setup mcp`, which run `trunkline-mcp`.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::ensure;

use super::become_part;
use crate::backend::Backend;

/// Arguments of `trunkline mcp`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Nothing, to serve a coding agent on standard input and output; or check, and what belongs to it; --help tells
    /// more.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

/// Executes the program.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    ensure!(
        !backend.is_told_to_be_private(),
        "mcp uses the shared daemon: leave out --no-daemon"
    );
    become_mcp(&args.words)
}

/// Executes the program with these arguments.
pub(crate) fn become_mcp(words: &[OsString]) -> anyhow::Result<ExitCode> {
    become_part("trunkline-mcp", words)
}
