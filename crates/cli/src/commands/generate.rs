//! What is generated from the arguments: completions and man pages.

mod manual;
mod sections;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::shells::{Elvish, PowerShell};
use clap_complete::{Generator, Shell};

use crate::Cli;
use crate::commands::complete;

/// `trunkline completions SHELL`. Three shells run the program to complete; for others the script knows commands and options.
pub(crate) fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let script = match (complete::script(shell), shell) {
        (Some(script), _) => script.as_bytes().to_owned(),
        (None, Shell::Elvish) => generated(Elvish),
        (None, _) => generated(PowerShell),
    };
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// A script of clap's own. Each generator is named, so that the client has none that it does not need.
fn generated(generator: impl Generator) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut Cli::command(), "trunkline", &mut script);
    script
}

/// `trunkline man FOLDER`.
pub(crate) fn man_pages(folder: &Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for (name, page) in manual::pages()? {
        let file = folder.join(name);
        std::fs::write(&file, page).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
