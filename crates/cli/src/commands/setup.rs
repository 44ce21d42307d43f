//! `trunkline setup`: makes other programs use trunkline's connections, through lines in their own files.

mod ansible;
mod block;
mod edited_file;
mod git;
mod rsync;
mod ssh;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use trunkline_control::protocol::{Reply, Request};

use self::block::{Block, Sections};
use self::edited_file::EditedFile;
use crate::ask::ask;
use crate::backend::{Backend, Daemon, runtime};
use crate::commands::mcp::become_mcp;

/// Arguments of `trunkline setup`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    program: Program,
}

#[derive(Debug, clap::Subcommand)]
enum Program {
    /// Set up ssh and everything that runs it (scp, sftp, git, rsync), by lines at the end of ~/.ssh/config.
    Ssh(FileArgs),
    /// Set up git alone, by core.sshCommand in your global configuration.
    Git(Change),
    /// Set up rsync alone, by RSYNC_RSH in your shell's profile.
    Rsync(FileArgs),
    /// Set up Ansible's ssh plugin to follow your ssh_config instead of setting a ControlPath of its own.
    Ansible(ansible::Args),
    /// Set up a coding agent's client to start `trunkline mcp`, by an entry in its configuration; --help tells which
    /// clients.
    #[command(disable_help_flag = true)]
    Mcp {
        /// The client, and what is to be done.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        words: Vec<std::ffi::OsString>,
    },
}

/// A change to a configuration.
#[derive(Debug, Clone, Copy, clap::Args)]
struct Change {
    /// Print what would be written, and change nothing.
    #[arg(long)]
    print: bool,
    /// Remove what was written, and restore everything as it was.
    #[arg(long, conflicts_with = "print")]
    undo: bool,
}

/// The same to a file.
#[derive(Debug, clap::Args)]
struct FileArgs {
    #[command(flatten)]
    change: Change,
    /// Change this file instead of the usual one.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Returns the answer to a request that needs no connections to hosts.
fn answer(request: Request, backend: &Backend) -> anyhow::Result<Reply> {
    runtime()?.block_on(async { ask(&mut backend.connect(Daemon::InPassing).await?, request, backend).await })
}

/// `trunkline setup`.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    match &args.program {
        Program::Ssh(args) => ssh::main(args, backend)?,
        Program::Git(change) => git::main(*change)?,
        Program::Rsync(args) => rsync::main(args, backend)?,
        Program::Ansible(args) => ansible::main(args)?,
        Program::Mcp { words } => {
            let setup = std::iter::once("setup".into());
            return become_mcp(&setup.chain(words.iter().cloned()).collect::<Vec<_>>());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The result of changing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Written,
    Unchanged,
}

/// Our lines in one of the user's files.
struct Lines<'a> {
    block: Block,
    /// Each ends in a newline.
    lines: String,
    /// Inserts the block into a text without it.
    insert: &'a dyn Fn(&str) -> anyhow::Result<String>,
    /// Returns the line that replaces the block if later lines would otherwise change their meaning.
    bridge: &'a dyn Fn(&Sections<'_>) -> &'static str,
}

impl Lines<'_> {
    /// Makes the requested change, and reports it.
    fn change(&self, path: &Path, change: Change) -> anyhow::Result<Outcome> {
        let mut out = std::io::stdout();
        let file = EditedFile::open(path)?;
        let shown = file.path.display();
        let found = self.block.find(file.text()).with_context(|| format!("{shown}"))?;
        if change.undo {
            let Some(found) = found else {
                writeln!(
                    out,
                    "{shown} has no lines from `trunkline setup {}`",
                    self.block.name
                )?;
                return Ok(Outcome::Unchanged);
            };
            file.restore(&found.remove_block((self.bridge)(&found)))?;
            writeln!(out, "removed trunkline's lines from {shown}")?;
            return Ok(Outcome::Written);
        }
        let done = match found {
            Some(_) => "changed trunkline's lines in",
            None => "added lines to",
        };
        let without = found.map_or_else(
            || file.text().to_owned(),
            |found| found.remove_block((self.bridge)(&found)),
        );
        let with = (self.insert)(&without)?;
        if change.print {
            writeln!(out, "# in {shown}\n{}", self.block.wrap(&self.lines).trim_end())?;
            return Ok(Outcome::Unchanged);
        }
        if with == file.text() {
            writeln!(
                out,
                "{shown} already has the lines from `trunkline setup {}`",
                self.block.name
            )?;
            return Ok(Outcome::Unchanged);
        }
        file.replace(&with)?;
        write!(out, "{done} {shown}")?;
        if file.text.is_some() {
            write!(out, "; the previous version is in {}", file.backup().display())?;
        }
        writeln!(out)?;
        Ok(Outcome::Written)
    }
}

/// Returns the program's path for use in files: the name on PATH if that is this program, because it stays valid after
/// an update.
///
/// # Errors
/// The path contains characters that each file would have to quote in its own way.
fn program() -> anyhow::Result<String> {
    let this = std::env::current_exe().context("finding this program's path")?;
    let on_path = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|directory| directory.join("trunkline"))
            .find(|file| file.is_absolute() && file.canonicalize().is_ok_and(|file| file == this))
    });
    plain(&on_path.unwrap_or(this))
}

fn home() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(home.into())
}

/// Returns a path that needs no quoting in a shell, in ssh_config, in git's configuration or in an INI file.
fn plain(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,".contains(c);
    if text.is_empty() || !text.chars().all(is_plain) {
        bail!(
            "{} contains characters that need quoting: move it to a path of only letters, digits and ./_-+@:,",
            path.display()
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_only_where_it_means_the_same_everywhere() {
        assert!(plain(Path::new("/usr/local/bin/trunkline")).is_ok());
        for path in [
            "/a b", "/a'b", "/a\"b", "/a%b", "/a$b", "/a\\b", "/a;b", "/a#b", "/ä", "",
        ] {
            assert!(plain(Path::new(path)).is_err(), "{path}");
        }
    }
}
