//! The program `trunkline-mcp`, run by `trunkline mcp`: hosts for coding agents, over the Model Context Protocol on
//! standard input and output. The daemon has the connections; `mcp.toml` has the rules.

mod answers;
mod arguments;
mod ask;
mod call;
mod check;
mod files;
mod hosts;
mod jobs;
mod record;
mod rules;
mod server;
mod setup;
mod shown;
mod spool;
mod state;
mod tools;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trunkline_control::place::Place;
use trunkline_text::Printable;

/// Hosts for coding agents, by rules. `trunkline mcp` runs this program.
#[derive(Debug, Parser)]
#[command(name = "trunkline-mcp", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what the rules say of a command or a path.
    Check(check::Args),
    /// Have a client start `trunkline mcp`.
    Setup(setup::Args),
}

/// The exit status for our own errors, the same as `trunkline`'s.
const OWN_ERROR: u8 = 255;

fn main() {
    let code = run(Arguments::parse()).unwrap_or_else(|error| {
        let error = Printable::text(trunkline_request::words_of(format!("{error:#}")));
        eprintln!("trunkline: {error}");
        OWN_ERROR
    });
    std::process::exit(code.into());
}

fn run(arguments: Arguments) -> anyhow::Result<u8> {
    let place = Place::find(|name| std::env::var_os(name).map(PathBuf::from))?;
    let rules = place.config.with_file_name("mcp.toml");
    match arguments.command {
        Some(Command::Check(args)) => check::main(&args, &rules),
        Some(Command::Setup(args)) => setup::main(&args, &rules).map(|()| 0),
        None => {
            tracing_subscriber::fmt()
                .with_writer(std::io::stderr)
                .with_max_level(tracing::Level::ERROR)
                .init();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let code = runtime.block_on(server::serve(rules));
            // A thread may be blocked in a read of standard input.
            runtime.shutdown_background();
            Ok(u8::from(code? != ExitCode::SUCCESS))
        }
    }
}
