//! The program `trunkline-fleet`, which is run by `trunkline fleet`, `trunkline run --fleet` and `trunkline stream
//! --fleet`: a node of a fleet, and requests from its users. This machine's daemon runs the commands on hosts, over its
//! open connections.

mod cancel;
mod client;
mod converse;
mod executor;
mod follow;
mod init;
mod join;
mod metrics;
mod paths;
mod run;
mod settings;
mod status;
mod stream;
mod tell;
mod watch;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use trunkline_cli::watch::{ServeUiArgs, TopArgs};
use trunkline_control::place::Place;

/// Commands on hosts, spread over several control machines that share NATS JetStream.
#[derive(Debug, Parser)]
#[command(
    name = "trunkline fleet",
    bin_name = "trunkline fleet",
    version,
    max_term_width = 110
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Work(Work),
    /// Follow a job from its beginning: `trunkline fleet attach JOB`, with the options of `trunkline run` for output;
    /// or a stream from where it was left: `trunkline fleet attach STREAM --to TARGET`.
    Attach {
        /// The job or the stream, and options.
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ID"
        )]
        words: Vec<OsString>,
    },
    /// `trunkline run --fleet`.
    #[command(hide = true)]
    Run(Box<run::Args>),
    /// `trunkline stream --fleet`.
    #[command(hide = true)]
    Stream(Box<follow::Args>),
    /// `trunkline metrics --fleet`.
    #[command(hide = true)]
    Metrics(trunkline_cli::metrics::Args),
    /// `trunkline top --fleet`.
    #[command(hide = true)]
    Top(TopArgs),
    /// `trunkline serve-ui --fleet`.
    #[command(hide = true)]
    ServeUi(ServeUiArgs),
}

/// Commands that take this machine's key.
#[derive(Debug, Subcommand)]
enum Work {
    /// Make a fleet in NATS, and this machine's settings and key for it.
    Init(init::Args),
    /// Be a node: execute the fleet's jobs on the hosts that are this machine's share, until it is told to leave.
    Join(join::Args),
    /// Show the nodes, the jobs and the streams.
    Status(status::Args),
    /// Let the node on this machine finish what runs and take no more hosts; it stays a member.
    Drain,
    /// Let the node on this machine finish what runs, give its hosts to the others, and end.
    Leave,
    /// Print this machine's public key, which others name in their allow lists. Makes the key where there is none.
    Key,
    /// End a stream, or cancel a job: what runs is sent SIGTERM, and nothing more is begun.
    Cancel(cancel::Args),
    /// Does the work of `run` and `stream`, which start it.
    #[command(hide = true)]
    Converse {
        /// The fleet's NATS, instead of the one that fleet.toml names.
        #[arg(long)]
        url: Option<String>,
    },
}

fn main() -> ExitCode {
    trunkline_cli::restore_at_a_panic();
    trunkline_cli::end(match parse(std::env::args_os()) {
        Command::Work(work) => run_work(work),
        Command::Run(args) => run::main(*args),
        Command::Stream(args) => follow::main(*args),
        Command::Attach { words } => attach(words),
        Command::Metrics(args) => metrics::main(&args),
        Command::Top(args) => watch::top(&args),
        Command::ServeUi(args) => watch::serve_ui(&args),
    })
}

fn parse(typed: impl IntoIterator<Item = OsString>) -> Command {
    let matches = Arguments::command()
        .mut_subcommand("run", |run| run.mut_group("where", |hosts| hosts.arg("attach")))
        .mut_subcommand("stream", |stream| {
            stream
                .mut_group("where", |hosts| hosts.arg("attach"))
                .mut_arg("command", |command| {
                    command.required(false).required_unless_present("attach")
                })
        })
        .get_matches_from(typed);
    let arguments = Arguments::from_arg_matches(&matches);
    arguments.unwrap_or_else(|error| error.exit()).command
}

/// Runs `attach` as the command that it means: the one for streams has a target.
fn attach(words: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let is_target = |word: &OsString| word == "--to" || word.as_encoded_bytes().starts_with(b"--to=");
    let command = if words.iter().any(is_target) {
        "stream"
    } else {
        "run"
    };
    let before = ["trunkline-fleet", command, "--fleet", "--attach"].map(OsString::from);
    match parse(before.into_iter().chain(words)) {
        Command::Run(args) => run::main(*args),
        Command::Stream(args) => follow::main(*args),
        _ => bail!("attach follows a job or a stream"),
    }
}

/// Keeps this process's memory private, because it will hold this machine's key.
fn keep_key() {
    if let Err(error) = trunkline_control::memory::keep_private() {
        tracing::warn!("this program's memory can be read by programs of the same user: {error}");
    }
}

/// Prints a message for the user.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "trunkline: {text}");
}

fn run_work(work: Work) -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_target(false)
        .init();
    keep_key();
    let place = Place::find(|name| std::env::var_os(name).map(Into::into))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        match work {
            Work::Init(args) => init::run(&place, args).await,
            Work::Join(args) => join::run(place, args).await,
            Work::Status(args) => status::run(&place, args).await,
            Work::Drain => tell::drain(&place).await,
            Work::Leave => tell::leave(&place).await,
            Work::Key => init::key(&place),
            Work::Cancel(args) => cancel::run(&place, args).await,
            Work::Converse { url } => converse::run(&place, url).await,
        }
    });
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}
