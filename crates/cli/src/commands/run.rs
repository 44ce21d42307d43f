//! `trunkline run`: one command on many hosts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use trunkline::config::World;
use trunkline::hosts::{Inventory, Target, expand, matching_aliases};
use trunkline_daemon::protocol::{
    Exit, Failure, HostRequest, Program, Reply, Request, SessionRequest, Stdio, Tty,
};

use crate::backend::{Backend, runtime};
use crate::commands::hosts::SshOptions;
use crate::report::colours::Colours;
use crate::report::files::OutputDir;
use crate::report::lines::{LinePrefixer, Stream};
use crate::report::progress::Progress;
use crate::report::{Execution, HostResult, Outcome, collate, json, summary};

/// Arguments of `trunkline run`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("where").required(true).multiple(true).args(["hosts", "inventory"])))]
pub(crate) struct Args {
    #[command(flatten)]
    ssh: SshOptions,
    #[command(flatten)]
    many: ManyHosts,
    /// Hosts at once.
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Seconds that each host may take, connecting included.
    #[arg(short, long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// One JSON object for each host, as they finish.
    #[arg(long, conflicts_with = "collate")]
    json: bool,
    /// Group hosts with identical output, when all have finished.
    #[arg(long)]
    collate: bool,
    /// Also write each host's output to files in this folder.
    #[arg(short = 'O', long = "output", value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// The command line; words are joined by blanks, as ssh does.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Hosts by the dozen.
#[derive(Debug, clap::Args)]
pub(crate) struct ManyHosts {
    /// Hosts: names, ranges and lists such as 'db[01-20],web1', patterns of ssh_config's Host aliases such as 'web*',
    /// files of names as '@FILE'.
    #[arg(short = 'H', long, value_name = "HOSTS")]
    hosts: Vec<String>,
    /// Ansible inventory: a file, a folder, or a script. With -H, the hosts are patterns in it.
    #[arg(short, long, value_name = "FILE")]
    inventory: Vec<PathBuf>,
    /// Limit the inventory's hosts, as for ansible.
    #[arg(long, requires = "inventory")]
    limit: Option<String>,
}

pub(crate) fn main(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    runtime(backend)?.block_on(run(args, backend))
}

async fn run(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let world = World::current().context("reading the environment")?;
    let targets = args.many.targets(&args.ssh, &world).await?;
    ensure!(!targets.is_empty(), "no hosts match");
    if let Some(timeout) = args.timeout {
        ensure!(
            timeout.is_finite() && timeout > 0.0,
            "--timeout wants a positive number of seconds"
        );
    }
    let folder = args.output.as_deref().map(OutputDir::create).transpose()?;
    let program = Program::Exec(args.command.join(" ".as_ref()).into_encoded_bytes());
    let begun = Instant::now();
    let stderr_is_terminal = std::io::stderr().is_terminal();
    let view = Arc::new(View {
        progress: Progress::new(targets.len(), stderr_is_terminal && !args.json),
        live: !args.json && !args.collate,
        keep: args.json || args.collate || folder.is_some(),
        colours: colours(std::io::stdout().is_terminal()),
        error_colours: colours(stderr_is_terminal),
    });
    let limit = args.timeout.map(Duration::from_secs_f64);
    let results = futures_util::stream::iter(targets).map(|target| {
        let (view, program, world) = (view.clone(), program.clone(), world.clone());
        let ssh_args = args.ssh.to_args();
        async move { one(backend, target, ssh_args, world, program, limit, &view).await }
    });
    let mut results = results.buffer_unordered(args.jobs.into());
    let mut all = Vec::new();
    while let Some(result) = results.next().await {
        view.progress.finished(&result);
        if let Some(folder) = &folder {
            folder.write(&result)?;
        }
        if args.json {
            print!("{}", json::line(&result));
        }
        all.push(result);
    }
    drop(results);
    view.progress.clear();
    if args.collate {
        let mut out = std::io::stdout().lock();
        for group in collate::groups(&all) {
            group.write(&mut out, view.colours)?;
        }
    }
    let width = comfy_table::Table::new().width();
    eprint!(
        "{}",
        summary::summary(&all, begun.elapsed(), width, view.error_colours)
    );
    let success = all.iter().all(|result| result.outcome.is_success());
    Ok(if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

pub(crate) fn colours(is_terminal: bool) -> Colours {
    Colours::choose(
        is_terminal,
        std::env::var_os("NO_COLOR").as_deref(),
        std::env::var_os("TERM").as_deref(),
    )
}

impl ManyHosts {
    /// Every host that was named, once.
    pub(crate) async fn targets(&self, ssh: &SshOptions, world: &World) -> anyhow::Result<Vec<Target>> {
        let mut targets: Vec<Target> = Vec::new();
        if !self.inventory.is_empty() {
            let inventory = Inventory::load(&self.inventory, world).await?;
            let pattern = if self.hosts.is_empty() {
                "all".to_owned()
            } else {
                self.hosts.join(",")
            };
            let selection = inventory.select(&pattern, self.limit.as_deref())?;
            for skipped in &selection.skipped {
                eprintln!("trunkline: {} is left out: {}", skipped.name, skipped.why);
            }
            targets.extend(selection.targets);
        } else {
            let config = ssh.config_file();
            for expression in &self.hosts {
                for name in expand(expression, &world.cwd)? {
                    if name.contains(['*', '?']) {
                        let names = matching_aliases(&name, world, config)?;
                        ensure!(!names.is_empty(), "no Host alias of ssh_config matches {name:?}");
                        for name in names {
                            targets.push(Target::named(&name)?);
                        }
                    } else {
                        targets.push(Target::named(&name)?);
                    }
                }
            }
        }
        let mut seen = std::collections::HashSet::new();
        targets.retain(|target| seen.insert(target.name.clone()));
        Ok(targets)
    }
}

/// What is shown while the run goes on.
struct View {
    progress: Progress,
    /// Lines are printed as they come.
    live: bool,
    /// Output is kept for later.
    keep: bool,
    colours: Colours,
    error_colours: Colours,
}

/// One host's output, on its way to the screen and to whoever wants all of it.
struct Collected<'a> {
    view: &'a View,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    out: LinePrefixer,
    err: LinePrefixer,
}

impl Collected<'_> {
    fn add(&mut self, stream: Stream, data: &[u8]) -> std::io::Result<()> {
        let (kept, prefixer) = match stream {
            Stream::Stdout => (&mut self.stdout, &mut self.out),
            Stream::Stderr => (&mut self.stderr, &mut self.err),
        };
        if self.view.keep {
            kept.extend_from_slice(data);
        }
        if !self.view.live {
            return Ok(());
        }
        let mut lines = Vec::new();
        prefixer.feed(data, &mut lines);
        show(self.view, stream, &lines)
    }
}

fn show(view: &View, stream: Stream, lines: &[u8]) -> std::io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    match stream {
        Stream::Stdout => view.progress.write(&mut std::io::stdout(), lines),
        Stream::Stderr => view.progress.write(&mut std::io::stderr(), lines),
    }
}

async fn one(
    backend: &Backend,
    target: Target,
    mut ssh_args: Vec<OsString>,
    world: World,
    program: Program,
    limit: Option<Duration>,
    view: &View,
) -> HostResult {
    view.progress.started(&target.name);
    let (started, begun) = (SystemTime::now(), Instant::now());
    ssh_args.extend(target.ssh_args);
    // Two hosts cannot listen on one port, and nobody asked `run` for tunnels.
    ssh_args.extend(["-o".into(), "ClearAllForwardings=yes".into()]);
    let request = SessionRequest {
        host: HostRequest {
            destination: target.destination,
            ssh_args,
            world,
        },
        program,
        env: BTreeMap::new(),
        tty: Tty::No,
        terminal: None,
        stdio: [Stdio::Null, Stdio::Framed, Stdio::Framed],
        // Questions of a hundred hosts at once help nobody.
        answers: false,
        detached: false,
        limit,
    };
    let mut collected = Collected {
        view,
        stdout: Vec::new(),
        stderr: Vec::new(),
        out: LinePrefixer::new(&target.name, Stream::Stdout, view.colours),
        err: LinePrefixer::new(&target.name, Stream::Stderr, view.error_colours),
    };
    let mut progress = Progressed::default();
    let work = converse(backend, request, &target.name, &mut collected, &mut progress);
    let outcome = match limit {
        None => work.await,
        // The daemon keeps the time; this is for one that does not answer.
        Some(limit) => tokio::time::timeout(limit + GRACE, work)
            .await
            .unwrap_or_else(|_| {
                let seconds = limit.as_secs_f64();
                Ok(Outcome::Failed {
                    kind: "timeout".into(),
                    message: format!("not done within {seconds} s"),
                    execution: progress.execution(),
                })
            }),
    };
    let outcome = outcome.unwrap_or_else(|error| Outcome::Failed {
        kind: "local".into(),
        message: format!("{error:#}"),
        execution: progress.execution(),
    });
    let Collected {
        stdout,
        stderr,
        out,
        err,
        ..
    } = collected;
    if view.live {
        // A last line without its end.
        for (prefixer, stream) in [(out, Stream::Stdout), (err, Stream::Stderr)] {
            let mut lines = Vec::new();
            prefixer.finish(&mut lines);
            let _ = show(view, stream, &lines);
        }
    }
    HostResult {
        host: target.name,
        outcome,
        stdout,
        stderr,
        started,
        elapsed: begun.elapsed(),
        warm: progress.warm,
    }
}

/// How much later than a host's time is up its answer may come.
const GRACE: Duration = Duration::from_secs(5);

/// How far a host has come, for when its time is up.
#[derive(Default)]
struct Progressed {
    /// The daemon has the request. It may send the command in the same flight as the login, so that from here on only
    /// the daemon knows whether it has begun.
    asked: bool,
    warm: bool,
}

impl Progressed {
    fn execution(&self) -> Execution {
        if self.asked {
            Execution::MayHaveStarted
        } else {
            Execution::DidNotStart
        }
    }
}

async fn converse(
    backend: &Backend,
    request: SessionRequest,
    name: &str,
    collected: &mut Collected<'_>,
    progressed: &mut Progressed,
) -> anyhow::Result<Outcome> {
    let mut client = backend.connect().await?;
    // A request that the daemon did not get whole is none to it.
    client.send(&Request::Session(Box::new(request))).await?;
    progressed.asked = true;
    loop {
        match client.next().await? {
            Reply::Begun { warm, .. } => progressed.warm = warm,
            Reply::Output(data) => collected.add(Stream::Stdout, &data)?,
            Reply::ErrorOutput(data) => collected.add(Stream::Stderr, &data)?,
            Reply::Notice(text) => {
                let line = format!("trunkline: {name}: {}\n", text.trim_end());
                show(collected.view, Stream::Stderr, line.as_bytes())?;
            }
            Reply::Exit(Exit::Status(status)) => return Ok(Outcome::Exited(status)),
            Reply::Exit(Exit::Signal(name, core)) => return Ok(Outcome::Signaled { name, core }),
            Reply::Exit(Exit::Unknown) => {
                return Ok(Outcome::Failed {
                    kind: "peer".into(),
                    message: "the server did not say how the command ended".into(),
                    execution: Execution::MayHaveStarted,
                });
            }
            Reply::Failed(Failure {
                kind,
                message,
                execution,
            }) => {
                let execution = match execution.as_str() {
                    "did not start" => Execution::DidNotStart,
                    "finished" => Execution::Finished,
                    _ => Execution::MayHaveStarted,
                };
                return Ok(Outcome::Failed {
                    kind,
                    message,
                    execution,
                });
            }
            Reply::UseSystemSsh { reasons, .. } => {
                return Ok(Outcome::Failed {
                    kind: "configuration".into(),
                    message: format!("needs the system's ssh: {}", reasons.join("; ")),
                    execution: Execution::DidNotStart,
                });
            }
            _ => {}
        }
    }
}
