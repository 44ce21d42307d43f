//! `trunkline fleet`, which is `trunkline-fleet`, but for `attach`, which is a run or a stream that others have begun.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use trunkline_control::program;

use crate::backend::Backend;

/// Arguments of `trunkline fleet`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// init, join, status, drain, leave, key, cancel ID or attach ID, and what belongs to them; --help tells more.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

impl Args {
    /// The arguments of `trunkline run` that `attach JOB` stands for; of `trunkline stream`, where there is a target.
    pub(crate) fn attach_arguments(&self) -> Option<Vec<OsString>> {
        let (first, rest) = self.words.split_first()?;
        let is_asked = first == "attach" && rest.first().is_some_and(|word| word != "--help" && word != "-h");
        is_asked.then(|| {
            let is_target = |word: &OsString| word == "--to" || word.as_encoded_bytes().starts_with(b"--to=");
            let command = if rest.iter().any(is_target) {
                "stream"
            } else {
                "run"
            };
            let before = ["trunkline", command, "--fleet", "--attach"].map(OsString::from);
            before.into_iter().chain(rest.iter().cloned()).collect()
        })
    }
}

/// Becomes the program.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    ensure!(
        !backend.is_told_to_be_private(),
        "the nodes of a fleet use the shared daemon: leave out --no-daemon"
    );
    let program = program::find_fleet()?;
    let error = Command::new(&program).args(&args.words).exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}
