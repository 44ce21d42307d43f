//! The test relay as a program, for benchmarks: prints its port and relays until it is killed.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use clap::Parser;
use trunkline_testkit::{Direction, Error, Relay};

/// Relays TCP connections over a path of a chosen delay and rate.
#[derive(Debug, Parser)]
struct Arguments {
    /// The address to listen on; port 0 takes a free one, which is printed.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The server to connect to.
    #[arg(long, value_name = "ADDR")]
    to: SocketAddr,
    /// Round-trip time in milliseconds, half of it in each direction.
    #[arg(long, value_name = "MS", default_value = "0")]
    rtt_ms: f64,
    /// Bytes a second for each connection, in each direction.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Do not charge a connection for TCP's own handshake.
    #[arg(long)]
    no_handshake: bool,
}

fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let rtt = Duration::try_from_secs_f64(arguments.rtt_ms / 1000.0)
        .map_err(|error| Error::Misused(format!("--rtt-ms: {error}")))?;
    let relay = Relay::start_on(arguments.listen, arguments.to)?;
    relay.set_rtt(rtt);
    relay.set_rate(Direction::ToServer, arguments.rate);
    relay.set_rate(Direction::ToClient, arguments.rate);
    relay.set_handshake(!arguments.no_handshake);
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", relay.port())?;
    stdout.flush()?;
    loop {
        thread::park();
    }
}
