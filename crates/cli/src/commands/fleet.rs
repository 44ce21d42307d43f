//! `trunkline fleet`, and other commands with `--fleet`, which run `trunkline-fleet`.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::ensure;

use super::become_part;
use crate::backend::Backend;

/// Arguments of `trunkline fleet`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// init, join, status, drain, leave, key, cancel ID or attach ID, and what belongs to them; --help tells more.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) words: Vec<OsString>,
}

/// Executes the program with these arguments.
pub(crate) fn main(words: impl IntoIterator<Item = OsString>, backend: &Backend) -> anyhow::Result<ExitCode> {
    ensure!(
        !backend.is_told_to_be_private(),
        "the nodes of a fleet use the shared daemon: leave out --no-daemon"
    );
    become_part("trunkline-fleet", words)
}
