//! A fleet of stock sshd servers, or of hostile ones, for demonstrations, tests and benchmarks. It prints their
//! addresses and files as one line of JSON, runs until standard input ends, and removes everything again.

#[cfg(feature = "russh")]
use std::io::BufRead as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;
use trunkline_testkit::hostile::{RawServer, Steering};
use trunkline_testkit::{Error, LogLevel, Relay, Sshd, write_ssh_config};

/// Starts sshd servers on loopback until standard input ends.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of servers.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    servers: u16,
    /// Round-trip time to each of them, in milliseconds, through a relay.
    #[arg(long, value_name = "MS")]
    rtt_ms: Option<f64>,
    /// A line for every server's sshd_config; may be given several times.
    #[arg(long, value_name = "LINE")]
    config: Vec<String>,
    /// The aliases are this name with a number: box1, box2, …
    #[arg(long, value_name = "NAME", default_value = "box")]
    alias: String,
    /// Lets users log in with this password, too.
    #[arg(long, value_name = "PASSWORD")]
    password: Option<String>,
    /// Answers at every loopback address (127.0.0.1, 127.0.0.2, …), so that a client sees as many hosts.
    #[arg(long)]
    any_address: bool,
    /// Servers whose words would steer a terminal instead of sshd, one for each place that a server has words in; the
    /// aliases are the places' names.
    #[arg(long)]
    steering: bool,
    /// A light server instead of sshd, with a host at every loopback address. For each line of standard input it prints
    /// how many connections it has had, and how many commands it has executed.
    #[cfg(feature = "russh")]
    #[arg(long)]
    light: bool,
}

/// The program's output.
#[derive(Debug, Serialize)]
struct Testbed {
    dir: PathBuf,
    ssh_config: PathBuf,
    aliases: Vec<String>,
    /// The ports to which clients connect: the relays' ports, if there are relays.
    ports: Vec<u16>,
    /// The data for clients that read no ssh_config.
    hosts: Vec<Host>,
}

/// One server.
#[derive(Debug, Serialize)]
struct Host {
    address: String,
    port: u16,
    user: String,
    /// A private key that the server accepts.
    key: PathBuf,
    /// The host keys, as lines of a `.pub` file.
    host_keys: Vec<String>,
    known_hosts: PathBuf,
    /// The server's log of connections and log-ins.
    log: PathBuf,
}

fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    if arguments.steering {
        return run_steering();
    }
    #[cfg(feature = "russh")]
    if arguments.light {
        return run_light();
    }
    let mut servers = Vec::new();
    let mut relays = Vec::new();
    let mut entries = Vec::new();
    let mut hosts = Vec::new();
    for number in 1..=arguments.servers {
        let alias = format!("{}{number}", arguments.alias);
        let builder = Sshd::builder().alias(&alias).log_level(LogLevel::Info);
        let builder = match &arguments.password {
            Some(password) => builder.password(password),
            None => builder,
        };
        let builder = if arguments.any_address {
            builder.any_loopback_address()
        } else {
            builder
        };
        let server = arguments
            .config
            .iter()
            .fold(builder, |builder, line| builder.config(line))
            .start()?;
        let mut entry = server.host_entry(&alias);
        if let Some(milliseconds) = arguments.rtt_ms {
            let rtt = Duration::try_from_secs_f64(milliseconds / 1000.0)
                .map_err(|error| Error::Misused(format!("--rtt-ms: {error}")))?;
            let relay = Relay::start(server.addr())?;
            relay.set_rtt(rtt);
            server.trust_at(relay.addr())?;
            entry = entry.with_address(relay.addr());
            relays.push(relay);
        }
        hosts.push(Host {
            address: entry.addr.ip().to_string(),
            port: entry.addr.port(),
            user: server.user().to_owned(),
            key: server.client_keys()[0].private_path().to_owned(),
            host_keys: server
                .host_keys()
                .iter()
                .map(|key| key.public_line().to_owned())
                .collect(),
            known_hosts: server.known_hosts(),
            log: server.log().path().to_owned(),
        });
        entries.push(entry);
        servers.push(server);
    }
    // The first server's directory is deleted even if this program is killed.
    let dir = servers[0].dir().to_owned();
    let testbed = Testbed {
        ssh_config: dir.join("testbed_ssh_config"),
        dir,
        aliases: entries.iter().map(|entry| entry.alias.clone()).collect(),
        ports: entries.iter().map(|entry| entry.addr.port()).collect(),
        hosts,
    };
    write_ssh_config(&testbed.ssh_config, entries)?;
    run(&testbed)
}

/// Runs servers that send control sequences for a terminal.
fn run_steering() -> Result<(), Error> {
    let mut servers = Vec::new();
    for steering in Steering::ALL {
        servers.push((format!("{steering:?}"), RawServer::steering(*steering)?));
    }
    let dir = tempfile::Builder::new().prefix("trunkline-steering-").tempdir()?;
    let hosts = servers.iter().map(|(_, server)| Host {
        address: server.addr().ip().to_string(),
        port: server.addr().port(),
        user: server.host_entry("raw").user,
        key: server.client_key().private_path().to_owned(),
        host_keys: Vec::new(),
        known_hosts: server.known_hosts(),
        log: PathBuf::new(),
    });
    let testbed = Testbed {
        dir: dir.path().to_owned(),
        ssh_config: dir.path().join("testbed_ssh_config"),
        aliases: servers.iter().map(|(name, _)| name.clone()).collect(),
        ports: servers.iter().map(|(_, server)| server.addr().port()).collect(),
        hosts: hosts.collect(),
    };
    let entries = servers.iter().map(|(name, server)| server.host_entry(name));
    write_ssh_config(&testbed.ssh_config, entries)?;
    run(&testbed)
}

/// Runs a light server, with a host at every loopback address.
#[cfg(feature = "russh")]
fn run_light() -> Result<(), Error> {
    let server = trunkline_testkit::LightServer::start()?;
    let ssh_config = server.ssh_config();
    let testbed = Testbed {
        dir: ssh_config.parent().unwrap_or(&ssh_config).to_owned(),
        ssh_config,
        aliases: vec!["127.*".to_owned()],
        ports: vec![server.port()],
        hosts: Vec::new(),
    };
    let mut stdout = io::stdout();
    tell(&testbed)?;
    for line in io::stdin().lock().lines() {
        line?;
        let counts =
            serde_json::json!({"connections": server.connections(), "executions": server.executions().len()});
        writeln!(stdout, "{counts}")?;
        stdout.flush()?;
    }
    Ok(())
}

/// Prints the testbed's description, and waits until standard input ends.
fn run(testbed: &Testbed) -> Result<(), Error> {
    tell(testbed)?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}

fn tell(testbed: &Testbed) -> Result<(), Error> {
    let mut stdout = io::stdout();
    writeln!(
        stdout,
        "{}",
        serde_json::to_string(testbed).map_err(io::Error::from)?
    )?;
    stdout.flush()?;
    Ok(())
}
