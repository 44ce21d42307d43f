//! The program `trunkline-fleet`, which `trunkline fleet`, `trunkline run --fleet` and `trunkline stream --fleet` run: a node of a fleet, and what its
//! users ask of it. Commands on hosts are run by this machine's daemon, over its warm connections.

mod cancel;
mod client;
mod converse;
mod executor;
mod init;
mod join;
mod settings;
mod status;
mod stream;
mod tell;
mod view;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trunkline_control::place::Place;
use trunkline_text::Printable;

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
    /// Follow a job from its beginning: `trunkline fleet attach JOB`, with the options of `trunkline run` for output; or a
    /// stream from where it was left: `trunkline fleet attach STREAM --to TARGET`.
    Attach,
    /// End a stream, or cancel a job: what runs is sent SIGTERM, and nothing more is begun.
    Cancel(cancel::Args),
    /// What `trunkline run --fleet` and `trunkline stream --fleet` start.
    #[command(hide = true)]
    Converse {
        /// The fleet's NATS, instead of the one that fleet.toml names.
        #[arg(long)]
        url: Option<String>,
    },
    /// What `trunkline top --fleet` starts.
    #[command(hide = true)]
    View(view::Args),
}

/// The exit status for errors of our own, as that of `trunkline`.
const OWN_ERROR: u8 = 255;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_target(false)
        .init();
    // This machine's signing key is in it.
    if let Err(error) = trunkline_control::memory::keep_private() {
        tracing::warn!("this program's memory can be read by programs of the same user: {error}");
    }
    let result = run(arguments.command);
    result.unwrap_or_else(|error| {
        say(Printable::text(format!("{error:#}")).as_ref());
        ExitCode::from(OWN_ERROR)
    })
}

/// Tells the person at the terminal.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "trunkline: {text}");
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let place = Place::find(|name| std::env::var_os(name).map(Into::into))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        match command {
            Command::Init(args) => init::run(&place, args).await,
            Command::Join(args) => join::run(place, args).await,
            Command::Status(args) => status::run(&place, args).await,
            Command::Drain => tell::drain(&place).await,
            Command::Leave => tell::leave(&place).await,
            Command::Key => init::key(&place),
            Command::Attach => {
                anyhow::bail!("run `trunkline fleet attach JOB`: the client shows what is told of a job")
            }
            Command::Cancel(args) => cancel::run(&place, args).await,
            Command::Converse { url } => converse::run(&place, url).await,
            Command::View(args) => view::run(&place, args).await,
        }
    });
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}
