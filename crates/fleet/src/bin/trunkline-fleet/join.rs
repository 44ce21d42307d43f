//! `trunkline fleet join`: the node.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use trunkline_control::client::{Client, Starter};
use trunkline_control::own_socket::{self, OwnSocket};
use trunkline_control::place::Place;
use trunkline_fleet::allow::Rule;
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::metrics::Metrics;
use trunkline_fleet::running::{self, Instruction, NodeOptions};
use trunkline_request::World;

use crate::executor::Daemon;
use crate::paths;
use crate::say;
use crate::settings::{AllowFile, Settings};

/// Arguments of `trunkline fleet join`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NATS: nats://HOST:4222 or tls://HOST:4222. The first time; then it is in fleet.toml, with what else is given
    /// here.
    url: Option<String>,
    /// The node's name, instead of the machine's.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Its site: hosts of that site are reached by its nodes only.
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    /// Trust these certificate authorities (PEM) as well as the system's, for a NATS certificate of an authority of your
    /// own.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Use this ssh_config to reach hosts, instead of the user's and the system's.
    #[arg(long, value_name = "FILE")]
    ssh_config: Option<PathBuf>,
    /// A public key whose jobs are executed here, on all hosts; may be given several times. Narrower rules stand in
    /// fleet.toml.
    #[arg(long, value_name = "KEY")]
    allow: Vec<String>,
}

/// Runs a node until it is told to leave.
pub(crate) async fn run(place: Place, args: Args) -> anyhow::Result<()> {
    let (settings, given) = settings(&place, args)?;
    place.make()?;
    place.make_state()?;
    let name = settings.name.clone().unwrap_or_else(machine);
    // A problem on this machine is reported now, and not once for each host.
    drop(Client::connect(&place, Some(&Starter::Installed)).await?);
    let world = World::current().context("reading the environment")?;
    let bucket = Bucket::open(&settings.access(&place)?).await?;
    let sites = &bucket.charter.zones.sites;
    if let Some(site) = settings.site.as_ref().filter(|site| !sites.contains_key(*site)) {
        let known: Vec<&str> = sites.keys().map(String::as_str).collect();
        let known = match known.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}", known.join(", ")),
        };
        say(&format!("no site of the fleet is called {site:?}: {known}"));
    }
    if settings.allow.is_empty() && given.is_empty() {
        say("nobody is allowed anything here: name submitters in fleet.toml, or with --allow");
    }
    let options = NodeOptions {
        name: name.clone(),
        site: settings.site.clone(),
        at_once: settings.at_once,
        directory: place.state.clone(),
        allow: Arc::new(AllowFile::new(&place, given)),
    };
    let (tell, told) = mpsc::channel(4);
    let executor = Arc::new(Daemon {
        place: place.clone(),
        world,
        ssh_config: settings.ssh_config.clone(),
    });
    // This comes before anything that only one node may use.
    let (listener, _socket) = listen(&place).await?;
    let metrics = Arc::new(Metrics::default());
    let node = tokio::spawn(running::run_counted(
        bucket,
        options,
        executor,
        told,
        metrics.clone(),
    ));
    let (socket, port) = (paths::metrics_socket(&place), settings.metrics_port);
    let (metrics_listener, _metrics_socket) = own_socket::for_metrics(&socket).unzip();
    let serving = tokio::spawn(trunkline_http::metrics::serve(metrics, metrics_listener, port));
    say(&format!(
        "node {name} of the fleet {} at {}",
        settings.prefix, settings.url
    ));
    let mut node = node;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Those who wait for the node's end notice it when their connection is closed.
    let mut waiting = Vec::new();
    let mut is_leaving = false;
    let ended = loop {
        let instruction = tokio::select! {
            ended = &mut node => break ended,
            _ = interrupt.recv() => Instruction::Leave,
            _ = terminate.recv() => Instruction::Leave,
            Ok((stream, _)) = listener.accept() => match receive_instruction(stream).await {
                Some((instruction, stream)) => {
                    waiting.push(stream);
                    instruction
                }
                None => continue,
            },
        };
        let instruction = match instruction {
            Instruction::Leave if is_leaving => Instruction::LeaveNow,
            other => other,
        };
        if instruction == Instruction::Leave {
            is_leaving = true;
            say(
                "leaving when what runs has ended; a second Ctrl-C leaves at once, and says that it may have started",
            );
        }
        let _ = tell.send(instruction).await;
    };
    serving.abort();
    ended.context("the node's task")??;
    Ok(())
}

/// Returns the settings, including the given ones, which are written to the file the first time. Rules that were given
/// but are not written down are returned separately.
fn settings(place: &Place, args: Args) -> anyhow::Result<(Settings, Vec<Rule>)> {
    let known = Settings::read(place)?;
    let is_new = known.is_none();
    let mut settings = match (known, args.url) {
        (Some(known), Some(url)) if !known.url.is_empty() && known.url != url => bail!(
            "{} names the fleet at {}, not {url}: change it there, or leave out the address",
            paths::settings(place).display(),
            known.url
        ),
        (Some(known), url) => Settings {
            url: url.unwrap_or_else(|| known.url.clone()),
            ..known
        },
        (None, Some(url)) => Settings::new(url),
        (None, None) => bail!("which fleet? Name its NATS: trunkline fleet join nats://HOST:4222"),
    };
    settings.name = args.name.or(settings.name);
    settings.site = args.site.or(settings.site);
    settings.trust(args.ca)?;
    if let Some(file) = args.ssh_config {
        let file = file.canonicalize();
        settings.ssh_config = Some(file.context("the file of --ssh-config")?);
    }
    let mut given = Vec::new();
    for key in args.allow {
        ensure!(
            nkeys::KeyPair::from_public_key(&key).is_ok(),
            "{key:?} is not a public key such as `trunkline fleet key` prints"
        );
        let is_known = settings.allow.iter().any(|rule| rule.submitters.contains(&key));
        if !is_known {
            given.push(Rule {
                submitters: vec![key],
                hosts: vec!["*".into()],
                users: Vec::new(),
                ports: Vec::new(),
                subjects: Vec::new(),
            });
        }
    }
    if is_new {
        settings.allow.append(&mut given);
        settings.write_new(place)?;
    }
    Ok((settings, given))
}

/// Returns the machine's name, without its domain.
fn machine() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

async fn listen(place: &Place) -> anyhow::Result<(UnixListener, OwnSocket)> {
    let path = paths::socket(place);
    if UnixStream::connect(&path).await.is_ok() {
        bail!("a node runs here already; `trunkline fleet leave` ends it");
    }
    own_socket::listen_anew(&path).with_context(|| format!("listening on {}", path.display()))
}

/// Reads the instruction of a program on this machine. Only the user can access the socket's directory.
async fn receive_instruction(stream: UnixStream) -> Option<(Instruction, UnixStream)> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    let limit = std::time::Duration::from_secs(2);
    tokio::time::timeout(limit, stream.read_line(&mut line))
        .await
        .ok()?
        .ok()?;
    let instruction = match line.trim() {
        "drain" => Instruction::Drain,
        "leave" => Instruction::Leave,
        _ => return None,
    };
    let mut stream = stream.into_inner();
    stream.write_all(b"ok\n").await.ok()?;
    Some((instruction, stream))
}
