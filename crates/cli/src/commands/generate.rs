//! Texts generated from the arguments: completions and man pages.

mod manual;
mod sections;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::Cli;
use crate::commands::complete;

/// Prints the script of `trunkline completions SHELL`. For three shells it runs the program to complete; for others it
/// completes only commands and options.
pub(crate) fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    match complete::script(shell) {
        Some(text) => script.extend_from_slice(text.as_bytes()),
        None => clap_complete::generate(shell, &mut Cli::command(), "trunkline", &mut script),
    }
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the examples of a command, each with a description and the command line.
pub(crate) fn examples(typed: &str) -> &'static [(&'static str, &'static str)] {
    sections::for_command(typed).map_or(&[], |sections| sections.examples)
}

/// `trunkline man DIR`.
pub(crate) fn man_pages(directory: &Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    for (name, page) in manual::pages()? {
        let file = directory.join(name);
        std::fs::write(&file, page).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
