//! The `trunkline` program.

mod backend;
mod commands;
mod questions;
mod report;
mod spool;
mod ssh_args;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::backend::Backend;
use trunkline_text::Printable;

/// One warm SSH connection per host, shared by everything you run.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// Do not use the daemon: share no connections with other commands, and leave nothing running.
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
    /// Let the ssh that runs this use a shared connection; used by the lines that `setup ssh` adds to ssh_config.
    Up,
    /// Set up other programs to use shared connections: ssh and whatever runs it, git, rsync, Ansible.
    Setup(commands::setup::Args),
    /// Run one command on many hosts.
    Run(commands::run::Args),
    /// Write the output of commands on hosts to FIFOs, sockets or files, and reconnect when a connection is lost.
    Stream(commands::stream::Args),
    /// Copy files and trees to and from hosts, over shared connections.
    Cp(commands::cp::Args),
    /// Measure what moves data fastest to and from a host, and have `cp` use it.
    Tune(commands::tune::Args),
    /// List connections.
    Ls(commands::hosts::LsArgs),
    /// Check that a host's connection is alive, and measure the round trip.
    Check(commands::hosts::HostArgs),
    /// Close connections once running sessions have ended, or at once with --now.
    Close(commands::hosts::CloseArgs),
    /// Connect ahead of time.
    Warm(commands::hosts::WarmArgs),
    /// Show what a destination resolves to, which transport it uses and why, and what may share its connections.
    Explain(commands::hosts::ExplainArgs),
    /// Stop the daemon once running sessions have ended, or at once with --now.
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
        /// The directory to write them to.
        folder: std::path::PathBuf,
    },
    /// Print every setting of config.toml with its default and meaning.
    Settings,
}

fn main() -> ExitCode {
    trunkline_control::descriptors::close_inherited(&named_descriptors());
    let mut typed = std::env::args_os();
    if typed.next().is_some_and(|name| is_named_ssh(&name)) {
        return commands::ssh::main(typed.collect(), Backend::new(false));
    }
    // ssh's options are not clap's: `trunkline ssh` is taken as typed, up to its last argument.
    let mut arguments = std::env::args_os().skip(1);
    let no_daemon = std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == "--no-daemon");
    if no_daemon {
        arguments.next();
    }
    let mut command = arguments.next();
    if command
        .as_ref()
        .is_some_and(|command| command == commands::ssh::IN_BACKGROUND)
    {
        command = arguments.next();
        if command.as_ref().is_some_and(|command| command == "ssh") {
            return commands::ssh::main_in_background(arguments.collect(), Backend::new(no_daemon));
        }
    }
    if command.as_ref().is_some_and(|command| command == "ssh") {
        let arguments: Vec<OsString> = arguments.collect();
        // ssh has no option of this name.
        if arguments == ["--help"] {
            return commands::ssh::help();
        }
        return commands::ssh::main(arguments, Backend::new(no_daemon));
    }
    // Every ssh waits for `up`: it does without clap, which builds the whole tree of commands first.
    if command.is_some_and(|command| command == "up") && arguments.len() == 0 && !no_daemon {
        return commands::up::main(&Backend::new(false));
    }
    let cli = Cli::parse();
    let backend = Backend::new(cli.no_daemon);
    let result = match cli.command {
        Command::Ssh { arguments } => return commands::ssh::main(arguments, backend),
        Command::Up => return commands::up::main(&backend),
        Command::Setup(args) => commands::setup::main(&args, &backend),
        Command::Run(args) => commands::run::main(args, &backend),
        Command::Stream(args) => commands::stream::main(args, &backend),
        Command::Cp(args) => commands::cp::main(args, &backend),
        Command::Tune(args) => commands::tune::main(&args, &backend),
        Command::Ls(args) => commands::hosts::ls(&args, &backend),
        Command::Check(args) => commands::hosts::check(&args, &backend),
        Command::Close(args) => commands::hosts::close(&args, &backend),
        Command::Warm(args) => commands::hosts::warm(&args, &backend),
        Command::Explain(args) => commands::hosts::explain(&args, &backend),
        Command::Stop(args) => commands::hosts::stop(&args, &backend),
        Command::Daemon(args) => commands::daemon::main(&args),
        Command::Completions { shell } => commands::generate::completions(shell),
        Command::Man { folder } => commands::generate::man_pages(&folder),
        Command::Settings => commands::daemon::settings(),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trunkline: {}", Printable::text(format!("{error:#}")));
            ExitCode::from(OWN_ERROR)
        }
    }
}

/// The descriptors that the arguments name as files (`--hosts @<(list)`, `cp host:log /dev/fd/3`). The daemon and ssh keep none:
/// ssh closes what it inherits as the first of all.
fn named_descriptors() -> Vec<i32> {
    let mut typed = std::env::args_os();
    if typed.next().is_some_and(|name| is_named_ssh(&name)) {
        return Vec::new();
    }
    let typed: Vec<OsString> = typed
        .filter(|argument| argument != "--no-daemon" && argument != commands::ssh::IN_BACKGROUND)
        .collect();
    if typed
        .first()
        .is_none_or(|command| command == "daemon" || command == "ssh")
    {
        return Vec::new();
    }
    typed
        .iter()
        .flat_map(|argument| descriptors_in(&argument.to_string_lossy()))
        .collect()
}

/// The numbers behind each `/fd/` of a text.
fn descriptors_in(text: &str) -> Vec<i32> {
    let behind = text.split("/fd/").skip(1);
    let digits = behind.map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())]);
    digits.filter_map(|digits| digits.parse().ok()).collect()
}

/// Whether the program runs under a name for which it takes ssh's arguments: for programs that are told where ssh is and
/// not with which arguments to run it.
pub(crate) fn is_named_ssh(name: &OsStr) -> bool {
    let name = Path::new(name).file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"ssh")
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
