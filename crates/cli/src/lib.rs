//! The `trunkline` program, and the parts for programs that run commands in the daemon's place: the arguments of
//! [`run`] and [`stream`], and their reports.

/// Prints a line like std's macro, but does not panic if it cannot be written: if the reader has left (`| head`), the
/// program ends silently.
macro_rules! println {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        crate::end_unless_printed(writeln!(std::io::stdout(), $($words)*))
    }};
}

/// The same for messages, ignoring failures. Errors are printed in the system's words alone.
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), "{}", trunkline_request::words_of(format_args!($($words)*)));
    }};
}

/// The same for lines.
macro_rules! eprintln {
    () => {
        eprint!("\n")
    };
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", trunkline_request::words_of(format_args!($($words)*)));
    }};
}

mod ask;
mod backend;
mod commands;
mod duration;
mod exit_status;
mod first_steps;
mod hints;
mod questions;
mod report;
mod spool;
mod ssh_args;
mod ssh_options;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use trunkline_control::client::ClientError;

pub use crate::backend::{Backend, runtime};
pub use crate::exit_status::OWN_ERROR;
pub use crate::hints::Refused;
pub use crate::report::{lines::Stream, tell};
pub use crate::terminal::interrupts::{Interrupts, status_of as status_of_signal};
pub use crate::terminal::raw::restore_at_a_panic;

/// `trunkline run`.
pub mod run {
    pub use crate::commands::run::elsewhere::{Elsewhere, Work};
    pub use crate::commands::run::{Args, Run, View};
    pub use crate::spool::whole as standard_input;
}

/// `trunkline metrics`.
pub mod metrics {
    pub use crate::commands::daemon::metrics::Args;
}

/// `trunkline top` and `trunkline serve-ui`.
pub mod watch {
    pub use crate::commands::watch::{ServeUiArgs, TopArgs};
}

/// `trunkline stream`.
pub mod stream {
    pub use crate::commands::stream::{Args, Display, Event, Restart, To};
}

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
    /// Log in to a host, or run a command on it, with ssh's own options.
    #[command(disable_help_flag = true)]
    Ssh {
        /// As for ssh(1).
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        arguments: Vec<OsString>,
    },
    /// Let ssh use a shared connection; run by the lines that `setup ssh` adds to ssh_config.
    #[command(hide = true)]
    Up,
    /// Have ssh, git, rsync and Ansible use the shared connections.
    Setup(commands::setup::Args),
    /// Run one command on many hosts.
    Run(commands::run::Args),
    /// Spread commands over several control machines.
    Fleet(commands::fleet::Args),
    /// Write what long-running commands print to FIFOs, sockets or files.
    Stream(commands::stream::Args),
    /// Copy files and trees to, from and between hosts.
    Cp(commands::cp::Args),
    /// Measure what moves data to and from a host fastest, for `cp`.
    Tune(commands::tune::Args),
    /// List the open connections.
    Ls(commands::hosts::ls::Args),
    /// Show hosts, sessions, copies and failures as they change.
    Top(commands::watch::TopArgs),
    /// Show the same on a page, for a browser on this machine.
    ServeUi(commands::watch::ServeUiArgs),
    /// Show the daemon's process, memory, sockets and load.
    Status(commands::daemon::status::Args),
    /// Print the daemon's metrics for Prometheus.
    Metrics(commands::daemon::metrics::Args),
    /// Check that connections are alive, and measure the round trip.
    Check(commands::hosts::CheckArgs),
    /// Close connections once running sessions have ended.
    Close(commands::hosts::CloseArgs),
    /// Connect to hosts ahead of time.
    Warm(commands::hosts::WarmArgs),
    /// Show how a host resolves, its settings and its connections.
    Explain(commands::hosts::explain::Args),
    /// Stop the daemon once running sessions have ended.
    Stop(commands::hosts::StopArgs),
    /// Run the daemon, for service managers: it starts by itself.
    Daemon(commands::daemon::Args),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print what may come next on a command line; run by the scripts of `completions`.
    #[command(hide = true)]
    Complete(commands::complete::Args),
    /// Write the man pages to a directory.
    Man {
        /// The directory to write them to.
        directory: std::path::PathBuf,
    },
    /// Let a coding agent work on hosts, by the rules in mcp.toml.
    Mcp(commands::mcp::Args),
    /// Read and check the record of what was run on hosts.
    Audit(commands::audit::Args),
    /// Print every setting with its value, default and meaning.
    Settings(commands::daemon::settings::Args),
}

impl Command {
    /// Returns true if `trunkline-fleet` runs the command.
    fn is_for_fleet(&self) -> bool {
        match self {
            Self::Run(args) => args.is_for_fleet(),
            Self::Stream(args) => args.fleet,
            Self::Top(args) => args.fleet,
            Self::ServeUi(args) => args.fleet,
            Self::Metrics(args) => args.fleet,
            _ => false,
        }
    }
}

/// The commands in the groups of `--help`.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Connect", &["ssh", "warm", "check", "close"]),
    ("Many hosts", &["run", "stream", "fleet", "mcp"]),
    ("Copy", &["cp", "tune"]),
    (
        "Look",
        &["ls", "top", "serve-ui", "explain", "status", "metrics", "audit"],
    ),
    (
        "Set up",
        &["setup", "settings", "daemon", "stop", "completions", "man"],
    ),
];

/// The commands that make their own connections with `--no-daemon`.
const WITHOUT_DAEMON: [&str; 6] = ["ssh", "warm", "run", "stream", "cp", "explain"];

/// Returns the arguments with additions to `--help`: the commands in groups, and examples.
pub(crate) fn arguments() -> clap::Command {
    let mut command = Cli::command();
    let names: Vec<String> = command
        .get_subcommands()
        .map(|below| below.get_name().to_owned())
        .collect();
    for name in names {
        command = command.mut_subcommand(&name, |below| {
            let below = with_examples(below, &format!("trunkline {name}"));
            if WITHOUT_DAEMON.contains(&&*name) {
                return below;
            }
            // Accepted everywhere, as before the command; shown only for commands that connect.
            let hidden = clap::Arg::new("no_daemon").long("no-daemon").hide(true);
            below.arg(hidden.action(clap::ArgAction::SetTrue))
        });
    }
    let header = *command.get_styles().get_header();
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        template += &format!("\n{header}{title}:{header:#}\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            template += &format!("  {name:<13}{}\n", about.cloned().unwrap_or_default());
        }
    }
    template += &format!("\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    with_examples(command, "trunkline").help_template(template)
}

/// Adds the first two examples of the man page to a command and its subcommands.
fn with_examples(mut command: clap::Command, typed: &str) -> clap::Command {
    let below: Vec<String> = command
        .get_subcommands()
        .filter(|_| typed != "trunkline")
        .map(|below| below.get_name().to_owned())
        .collect();
    for name in below {
        let typed = format!("{typed} {name}");
        command = command.mut_subcommand(name, |below| with_examples(below, &typed));
    }
    let header = *command.get_styles().get_header();
    let mut text = String::new();
    for (what, words) in commands::generate::examples(typed).iter().take(2) {
        if text.is_empty() {
            text += &format!("{header}Examples:{header:#}");
        }
        text += &format!("\n  {what}\n      {}", words.replace('\n', "\n      "));
    }
    match text.is_empty() {
        true => command,
        false => command.after_help(text),
    }
}

/// Parses the command line, or explains its error and exits.
fn parse(typed: std::env::ArgsOs) -> Cli {
    let parsed = arguments()
        .try_get_matches_from(typed)
        .and_then(|matches| Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut arguments())));
    parsed.unwrap_or_else(|error| first_steps::explain(error))
}

/// Runs the program.
pub fn main() -> ExitCode {
    terminal::raw::restore_at_a_panic();
    trunkline_control::descriptors::close_inherited(&named_descriptors());
    let mut typed = std::env::args_os();
    if typed.next().is_some_and(|name| is_named_ssh(&name)) {
        return commands::ssh::main(typed.collect(), Backend::new(false));
    }
    // ssh's options are not clap's, so `trunkline ssh` passes on all arguments as typed.
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
            let backend = Backend::in_background(no_daemon);
            return commands::ssh::main_in_background(arguments.collect(), backend);
        }
    }
    if command.as_ref().is_some_and(|command| command == "ssh") {
        let mut arguments: Vec<OsString> = arguments.collect();
        // ssh has no such option.
        if arguments == ["--help"] {
            return commands::ssh::help();
        }
        let no_daemon = commands::ssh::take_no_daemon(&mut arguments) || no_daemon;
        return commands::ssh::main(arguments, Backend::new(no_daemon));
    }
    // Every ssh waits for `up`. It skips clap, which first builds the whole tree of commands.
    if command.is_some_and(|command| command == "up") && arguments.len() == 0 && !no_daemon {
        return commands::up::main(&Backend::new(false));
    }
    end(as_typed())
}

/// Runs the commands that use clap: all but `ssh`, and `up` for ssh.
fn as_typed() -> anyhow::Result<ExitCode> {
    let cli = parse(std::env::args_os());
    let backend = Backend::new(cli.no_daemon);
    if cli.command.is_for_fleet() {
        return commands::fleet::main(std::env::args_os().skip(1), &backend);
    }
    match cli.command {
        Command::Ssh { arguments } => Ok(commands::ssh::main(arguments, backend)),
        Command::Up => Ok(commands::up::main(&backend)),
        Command::Setup(args) => commands::setup::main(&args, &backend),
        Command::Run(args) => commands::run::main(args, &backend),
        Command::Fleet(args) => commands::fleet::main(args.words, &backend),
        Command::Stream(args) => commands::stream::main(args, &backend),
        Command::Cp(args) => commands::cp::main(args, &backend),
        Command::Tune(args) => commands::tune::main(args, &backend),
        Command::Ls(args) => commands::hosts::ls::main(args, &backend),
        Command::Top(args) => commands::watch::top(&args, &backend),
        Command::ServeUi(args) => commands::watch::serve_ui(&args, &backend),
        Command::Status(args) => commands::daemon::status::main(&args, &backend),
        Command::Metrics(args) => commands::daemon::metrics::main(&args, &backend),
        Command::Check(args) => commands::hosts::check(args, &backend),
        Command::Close(args) => commands::hosts::close(args, &backend),
        Command::Warm(args) => commands::hosts::warm(args, &backend),
        Command::Explain(args) => commands::hosts::explain::main(args, &backend),
        Command::Stop(args) => commands::hosts::stop(&args, &backend),
        Command::Daemon(args) => commands::daemon::main(&args),
        Command::Completions { shell } => commands::generate::completions(shell),
        Command::Complete(args) => commands::complete::main(&args),
        Command::Man { directory } => commands::generate::man_pages(&directory),
        Command::Mcp(args) => commands::mcp::main(&args, &backend),
        Command::Audit(args) => commands::audit::main(&args),
        Command::Settings(args) => commands::daemon::settings::main(&args, &backend),
    }
}

/// Ends the program: reports an error, or dies of the signal that ended its work.
pub fn end(result: anyhow::Result<ExitCode>) -> ExitCode {
    terminal::interrupts::end(result.unwrap_or_else(|error| ExitCode::from(status_of(&error))))
}

/// Reports an error, and returns the exit status.
fn status_of(error: &anyhow::Error) -> u8 {
    if is_broken_pipe(error) {
        return 0;
    }
    report::tell(format_args!("{error:#}"));
    OWN_ERROR
}

/// Ends the program if standard output could not be written.
fn end_unless_printed(result: std::io::Result<()>) {
    if let Err(error) = result {
        std::process::exit(status_of(&error.into()).into());
    }
}

/// Returns the descriptors that the arguments name as files (`--hosts @<(list)`, `cp host:log /dev/fd/3`). The daemon
/// and ssh need none; ssh closes inherited descriptors first of all.
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

/// Returns the numbers after each `/fd/` in a text.
fn descriptors_in(text: &str) -> Vec<i32> {
    let behind = text.split("/fd/").skip(1);
    let digits = behind.map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())]);
    digits.filter_map(|digits| digits.parse().ok()).collect()
}

/// Returns true if the program runs under a name for which it takes ssh's arguments. This is for programs that let
/// their user choose ssh's path, but not its arguments.
pub(crate) fn is_named_ssh(name: &OsStr) -> bool {
    let name = Path::new(name).file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"ssh")
}

/// Returns true if the program's output is no longer read. Errors of the connection to the daemon do not count.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        io.or_else(|| cause.downcast_ref::<serde_json::Error>()?.io_error_kind())
    };
    let is_daemons = |cause: &(dyn std::error::Error + 'static)| cause.is::<ClientError>();
    !error.chain().any(is_daemons)
        && error
            .chain()
            .any(|cause| kind(cause) == Some(std::io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    /// Passes on the help of a command and its subcommands, at this width.
    fn helps(command: &Command, width: usize, take: &mut impl FnMut(&str, String)) {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        let help = command.clone().term_width(width).render_help().to_string();
        take(name, help);
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            helps(below, width, take);
        }
    }

    #[test]
    fn each_command_has_help_that_fits_the_terminal() {
        let mut cli = arguments().disable_help_subcommand(true);
        cli.build();
        helps(&cli, 80, &mut |name, help| {
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            insta::assert_snapshot!(format!("help_{}_80", name.replace(' ', "_")), help);
        });
    }

    #[test]
    fn each_command_is_in_one_group_and_has_two_examples() {
        let command = arguments();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
        let mut shown: Vec<&str> = shown.map(Command::get_name).collect();
        grouped.sort_unstable();
        shown.sort_unstable();
        assert_eq!(grouped, shown);
        for name in shown {
            let examples = commands::generate::examples(&format!("trunkline {name}"));
            assert!(examples.len() >= 2, "{name}");
        }
    }
}
