//! The `trunkline` program.

mod backend;
mod commands;
mod report;
mod settings;
mod ssh_args;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::backend::Backend;

/// One warm SSH connection per host, shared by everything you run.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// Run the engine in this process: share nothing with other commands, leave nothing behind.
    #[arg(long, global = true)]
    no_daemon: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Drop-in for ssh(1), over a shared connection: takes ssh's own options.
    #[command(disable_help_flag = true)]
    Ssh {
        /// As for ssh(1).
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        arguments: Vec<OsString>,
    },
    /// Run one command on many hosts.
    Run(commands::run::Args),
    /// List connections.
    Ls(commands::hosts::LsArgs),
    /// Ask a host's connection for a sign of life.
    Check(commands::hosts::HostArgs),
    /// Close connections; running sessions may end first.
    Close(commands::hosts::CloseArgs),
    /// Connect ahead of time.
    Warm(commands::hosts::WarmArgs),
    /// Say what a destination resolves to, which transport it takes and why, and what it may share.
    Explain(commands::hosts::ExplainArgs),
    /// End the daemon, when running sessions have ended.
    Stop(commands::hosts::StopArgs),
    /// Run the daemon. It starts by itself when first needed; this is for service managers.
    Daemon(commands::daemon::Args),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages.
    Man {
        /// The folder to write them to.
        folder: std::path::PathBuf,
    },
    /// Print every setting of config.toml with its default and meaning.
    Settings,
}

fn main() -> ExitCode {
    // ssh's options are not clap's: `trunkline ssh` is taken as typed, up to its last argument.
    let mut arguments = std::env::args_os().skip(1);
    let no_daemon = std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == "--no-daemon");
    if no_daemon {
        arguments.next();
    }
    if arguments.next().is_some_and(|first| first == "ssh") {
        return commands::ssh::main(arguments.collect(), Backend::new(no_daemon));
    }
    let cli = Cli::parse();
    let backend = Backend::new(cli.no_daemon);
    let result = match cli.command {
        Command::Ssh { arguments } => return commands::ssh::main(arguments, backend),
        Command::Run(args) => commands::run::main(args, &backend),
        Command::Ls(args) => commands::hosts::ls(&args, &backend),
        Command::Check(args) => commands::hosts::check(&args, &backend),
        Command::Close(args) => commands::hosts::close(&args, &backend),
        Command::Warm(args) => commands::hosts::warm(&args, &backend),
        Command::Explain(args) => commands::hosts::explain(&args, &backend),
        Command::Stop(args) => commands::hosts::stop(&args, &backend),
        Command::Daemon(args) => commands::daemon::main(&args),
        Command::Completions { shell } => commands::generate::completions(shell),
        Command::Man { folder } => commands::generate::man_pages(&folder),
        Command::Settings => commands::generate::settings(),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trunkline: {error:#}");
            ExitCode::from(OWN_ERROR)
        }
    }
}

/// The exit status for errors of our own, as ssh's.
pub(crate) const OWN_ERROR: u8 = 255;

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind)
    };
    error
        .chain()
        .any(|cause| io(cause) == Some(std::io::ErrorKind::BrokenPipe))
}
