//! One file for each command.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use trunkline_control::program;

pub(crate) mod audit;
pub(crate) mod complete;
pub(crate) mod cp;
pub(crate) mod daemon;
pub(crate) mod fleet;
pub(crate) mod generate;
pub(crate) mod hosts;
pub(crate) mod mcp;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod ssh;
pub(crate) mod stream;
pub(crate) mod tune;
pub(crate) mod up;
pub(crate) mod watch;

/// Executes another program of trunkline with these arguments.
fn become_part(name: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> anyhow::Result<ExitCode> {
    let program = program::find_part(name)?;
    let error = Command::new(&program).args(words).exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}
