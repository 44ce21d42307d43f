//! The program `trunkline-watch`, run by `trunkline top` and `trunkline serve-ui`: shows the daemon's work in a
//! terminal or on a web page. It only asks the daemon for updates, and to close connections for the user.
//!
//! Other programs show their own [`Subject`](table::Subject) with the same tables ([`top()`]), and their own page with
//! the same server ([`serve`]).

mod feed;
mod model;
mod page;
mod quantity;
mod top;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use trunkline_control::place::Place;
use trunkline_text::Printable;

pub use feed::{News, follow};
pub use page::{Page, serve};
pub use quantity::time;
pub use top::{Screenshots, top};

/// Tables in a terminal.
pub mod table {
    pub use crate::top::details::line;
    pub use crate::top::palette::{BOLD, Palette};
    pub use crate::top::subject::{Column, Lines, Sort, Subject, bar, natural, number, text};
}

/// Shows what the trunkline daemon does. `trunkline top` and `trunkline serve-ui` run this program.
#[derive(Debug, Parser)]
#[command(name = "trunkline-watch", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// In this terminal.
    Top {
        /// Seconds between two updates.
        #[arg(long, default_value = "1", value_parser = seconds)]
        interval: Duration,
    },
    /// On a page of this machine.
    ServeUi {
        /// Seconds between two updates.
        #[arg(long, default_value = "1", value_parser = seconds)]
        interval: Duration,
        /// The port on 127.0.0.1; 0 for any that is free.
        #[arg(long, default_value = "0")]
        port: u16,
    },
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&time) => Ok(time),
        _ => Err("from 0.1 to 60 seconds".into()),
    }
}

/// The exit status for our own errors, the same as `trunkline`'s.
const OWN_ERROR: u8 = 255;

/// Runs the program.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Top { interval } => run(|place| top::of_daemon(place, interval)),
        Command::ServeUi { interval, port } => run(|place| page::of_daemon(place, interval, port)),
    };
    result.unwrap_or_else(|error| {
        use std::io::Write as _;
        let _ = writeln!(
            std::io::stderr(),
            "trunkline: {}",
            Printable::text(format!("{error:#}"))
        );
        ExitCode::from(OWN_ERROR)
    })
}

/// Runs `work` in a runtime with one thread.
///
/// # Errors
/// `work` fails.
pub fn run<F: Future<Output = anyhow::Result<ExitCode>>>(
    work: impl FnOnce(Place) -> F,
) -> anyhow::Result<ExitCode> {
    let place = Place::find(|name| std::env::var_os(name).map(Into::into))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(work(place));
    // A thread may be blocked in a read of the terminal.
    runtime.shutdown_background();
    result
}
