//! `trunkline run`: one command on many hosts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufWriter, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use trunkline_control::protocol::{
    Exit, Failure, HostRequest, InventoryRequest, Program, Reply, Request, SessionRequest, Stdio, Tty,
};
use trunkline_request::World;
use trunkline_request::copy::is_descriptor;
use trunkline_request::hosts::{Target, expand};

use crate::backend::{Backend, runtime};
use crate::commands::hosts::{SshOptions, ask, unexpected};
use crate::questions::Conversation;
use crate::report::colours::Colours;
use crate::report::files::OutputDir;
use crate::report::lines::{LinePrefixer, Stream};
use crate::report::output::{Output, Store};
use crate::report::progress::Progress;
use crate::report::{Execution, HostResult, Outcome, collate, json, summary};
use crate::spool::{HostInput, Stdin};
use crate::terminal;
use crate::terminal::interrupts::{Interrupts, status_of};

/// Arguments of `trunkline run`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("where").required(true).multiple(true).args(["hosts", "inventory"])))]
pub(crate) struct Args {
    #[command(flatten)]
    ssh: SshOptions,
    #[command(flatten)]
    many: ManyHosts,
    /// Hosts to run on at the same time.
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Seconds for each host, including connecting. When they are over, its command is sent SIGTERM.
    #[arg(short, long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Print one JSON object for each host as it finishes.
    #[arg(long, conflicts_with = "collate")]
    json: bool,
    /// Group hosts with identical output when all have finished.
    #[arg(long)]
    collate: bool,
    /// Give the command no input. Otherwise every host gets all of standard input, unless that is a terminal or /dev/null.
    ///
    /// In a loop that reads from standard input itself (while read …), the rest of the list would be the command's input
    /// without this option, as with ssh. A host that runs but does not read holds up the others' input when they are
    /// 64 MiB ahead of it.
    #[arg(short = 'n', long = "no-input", visible_alias = "nostdin")]
    no_input: bool,
    /// Also write each host's output to files in this directory.
    #[arg(short = 'O', long = "output", value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// The command; its words are joined with spaces, as ssh does.
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
    let runtime = runtime()?;
    let outcome = runtime.block_on(run(args, backend));
    // A thread may be waiting for input still.
    runtime.shutdown_background();
    outcome
}

async fn run(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let world = World::current().context("reading the environment")?;
    let targets = args.many.targets(&args.ssh, &world, backend).await?;
    ensure!(!targets.is_empty(), "no hosts match");
    if let Some(timeout) = args.timeout {
        ensure!(
            timeout.is_finite() && timeout > 0.0,
            "--timeout needs a positive number of seconds"
        );
    }
    let folder = args.output.as_deref().map(OutputDir::create).transpose()?;
    let program = Program::Exec(args.command.join(" ".as_ref()).into_encoded_bytes());
    let begun = Instant::now();
    let stderr_is_terminal = std::io::stderr().is_terminal();
    let view = Arc::new(View {
        progress: Progress::new(targets.len(), stderr_is_terminal && !args.json),
        live: !args.json && !args.collate,
        keep: (args.json || args.collate || folder.is_some()).then(Arc::default),
        colours: colours(std::io::stdout().is_terminal()),
        error_colours: colours(stderr_is_terminal),
    });
    let limit = args.timeout.map(Duration::from_secs_f64);
    let mut interrupts = Interrupts::watch()?;
    let stdin = if args.no_input {
        Stdin::Nothing
    } else {
        Stdin::find()?
    };
    let questions = backend.questions();
    questions.hide_while_asking(view.progress.bar()).await;
    let named = targets
        .iter()
        .map(|target| (target.name.clone(), target.destination.host.clone()));
    questions.name_hosts(named.collect()).await;
    let (interrupt, interrupted) = watch::channel(false);
    let mut jobs = Vec::with_capacity(targets.len());
    for target in targets {
        jobs.push(Job {
            backend,
            target,
            ssh_args: args.ssh.to_args(),
            world: world.clone(),
            program: program.clone(),
            limit,
            input: stdin.for_host()?,
            interrupted: interrupted.clone(),
            view: view.clone(),
        });
    }
    let results = futures_util::stream::iter(jobs).map(Job::run);
    let mut results = results.buffer_unordered(args.jobs.into());
    let mut all = Vec::new();
    let mut signal = None;
    loop {
        let mut result = tokio::select! {
            result = results.next() => match result {
                Some(result) => result,
                None => break,
            },
            number = interrupts.next() => {
                if signal.is_some() {
                    // The second time: at once. The daemon ends what is left.
                    view.progress.clear();
                    eprintln!("trunkline: interrupted again: commands may still be running");
                    return Ok(ExitCode::from(status_of(number)));
                }
                signal = Some(number);
                interrupt.send_replace(true);
                continue;
            }
        };
        view.progress.finished(&result);
        if let Some(folder) = &folder {
            folder.write(&result)?;
        }
        if args.json {
            let mut out = BufWriter::new(std::io::stdout().lock());
            json::write(&mut out, &result)?;
            out.flush()?;
        }
        if !args.collate {
            result.stdout = Output::default();
            result.stderr = Output::default();
        }
        all.push(result);
    }
    drop(results);
    view.progress.clear();
    if args.collate {
        let mut out = BufWriter::new(std::io::stdout().lock());
        for group in collate::groups(&all)? {
            group.write(&mut out, view.colours)?;
        }
        out.flush()?;
    }
    if signal.is_some() {
        eprint!("{}", summary::interrupted(&all));
    }
    let width = terminal::width(std::io::stderr());
    eprint!(
        "{}",
        summary::summary(&all, begun.elapsed(), width, view.error_colours)
    );
    Ok(match signal {
        Some(signal) => ExitCode::from(status_of(signal)),
        None if all.iter().all(|result| result.outcome.is_success()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
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
    pub(crate) async fn targets(
        &self,
        ssh: &SshOptions,
        world: &World,
        backend: &Backend,
    ) -> anyhow::Result<Vec<Target>> {
        let mut targets: Vec<Target> = Vec::new();
        if !self.inventory.is_empty() {
            targets = self.inventory_targets(world, backend).await?;
        } else {
            for expression in &self.hosts {
                for name in expand(expression, &world.cwd)? {
                    if name.contains(['*', '?']) {
                        let names = aliases(&name, ssh, world, backend).await?;
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

    /// The hosts of the inventories, which a private daemon reads: what it runs for that may ask on our terminal.
    async fn inventory_targets(&self, world: &World, backend: &Backend) -> anyhow::Result<Vec<Target>> {
        let pattern = match self.hosts.is_empty() {
            true => "all".to_owned(),
            false => self.hosts.join(","),
        };
        let request = InventoryRequest {
            sources: self.inventory.iter().map(|path| seen_by_others(path)).collect(),
            pattern,
            limit: self.limit.clone(),
            world: world.clone(),
        };
        let mut client = backend.connect_privately().await?;
        let selection = match ask(&mut client, Request::Inventory(Box::new(request)), backend).await? {
            Reply::Selection(selection) => selection,
            other => return Err(unexpected(&other)),
        };
        for skipped in &selection.skipped {
            eprintln!("trunkline: {} is left out: {}", skipped.name, skipped.why);
        }
        Ok(selection.targets)
    }
}

/// A path by which another process finds what this one has open (`-i <(script)`).
fn seen_by_others(path: &Path) -> OsString {
    let number = match path.to_str() {
        Some("/dev/stdin") => "0",
        Some(text) if is_descriptor(path) => text.rsplit('/').next().unwrap_or_default(),
        _ => return path.into(),
    };
    format!("/proc/{}/fd/{number}", std::process::id()).into()
}

/// The aliases of ssh_config that match a pattern.
async fn aliases(
    pattern: &str,
    ssh: &SshOptions,
    world: &World,
    backend: &Backend,
) -> anyhow::Result<Vec<String>> {
    let request = Request::Aliases {
        pattern: pattern.to_owned(),
        world: world.clone(),
        config_file: ssh.config_file().map(OsStr::to_owned),
    };
    match ask(&mut backend.connect_in_passing().await?, request, backend).await? {
        Reply::Aliases(names) => Ok(names),
        other => Err(unexpected(&other)),
    }
}

/// What is shown while the run goes on.
struct View {
    progress: Progress,
    /// Lines are printed as they come.
    live: bool,
    /// Output is kept for later, here.
    keep: Option<Arc<Store>>,
    colours: Colours,
    error_colours: Colours,
}

/// One host's output, on its way to the screen and to whoever wants all of it.
struct Collected<'a> {
    view: &'a View,
    stdout: Output,
    stderr: Output,
    out: LinePrefixer,
    err: LinePrefixer,
}

impl Collected<'_> {
    fn add(&mut self, stream: Stream, data: &[u8]) -> std::io::Result<()> {
        let (kept, prefixer) = match stream {
            Stream::Stdout => (&mut self.stdout, &mut self.out),
            Stream::Stderr => (&mut self.stderr, &mut self.err),
        };
        if self.view.keep.is_some() {
            kept.add(data)?;
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

/// One host's part of a run.
struct Job<'a> {
    backend: &'a Backend,
    target: Target,
    ssh_args: Vec<OsString>,
    world: World,
    program: Program,
    limit: Option<Duration>,
    input: HostInput,
    interrupted: watch::Receiver<bool>,
    view: Arc<View>,
}

impl Job<'_> {
    async fn run(self) -> HostResult {
        let (started, begun) = (SystemTime::now(), Instant::now());
        let mut progressed = Progressed::default();
        let view = self.view.clone();
        let name = self.target.name.clone();
        let output = || view.keep.as_ref().map(Output::new).unwrap_or_default();
        let mut collected = Collected {
            view: &view,
            stdout: output(),
            stderr: output(),
            out: LinePrefixer::new(&name, Stream::Stdout, view.colours),
            err: LinePrefixer::new(&name, Stream::Stderr, view.error_colours),
        };
        let outcome = if *self.interrupted.borrow() {
            Ok(Outcome::Failed {
                kind: INTERRUPTED.into(),
                message: RUN_INTERRUPTED.into(),
                execution: Execution::DidNotStart,
            })
        } else {
            view.progress.started(&name);
            self.attempts(&mut collected, &mut progressed).await
        };
        let outcome = outcome.unwrap_or_else(|error| Outcome::Failed {
            kind: "local".into(),
            message: format!("{error:#}"),
            execution: progressed.execution(),
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
                let _quiet = self.backend.questions().quiet().await;
                let _ = show(&view, stream, &lines);
            }
        }
        HostResult {
            host: name,
            outcome,
            stdout,
            stderr,
            started,
            elapsed: begun.elapsed(),
            warm: progressed.warm,
        }
    }

    /// Runs the command, at most once.
    async fn attempts(
        &self,
        collected: &mut Collected<'_>,
        progressed: &mut Progressed,
    ) -> anyhow::Result<Outcome> {
        match self.attempt(true, collected, progressed).await? {
            Attempt::Over(outcome) => return Ok(outcome),
            Attempt::NeedsSystemSsh(_) => {}
        }
        // Nothing was begun. Where nobody is to be asked, the daemon runs the system's ssh itself.
        Ok(match self.attempt(false, collected, progressed).await? {
            Attempt::Over(outcome) => outcome,
            Attempt::NeedsSystemSsh(reasons) => Outcome::Failed {
                kind: "configuration".into(),
                message: format!("needs the system's ssh: {}", reasons.join("; ")),
                execution: Execution::DidNotStart,
            },
        })
    }

    async fn attempt(
        &self,
        answers: bool,
        collected: &mut Collected<'_>,
        progressed: &mut Progressed,
    ) -> anyhow::Result<Attempt> {
        let work = self.converse(answers, collected, progressed);
        let Some(limit) = self.limit else {
            return work.await;
        };
        // The daemon keeps the time; this is for one that does not answer.
        let Ok(attempt) = tokio::time::timeout(limit + GRACE, work).await else {
            let seconds = limit.as_secs_f64();
            return Ok(Attempt::Over(Outcome::Failed {
                kind: "timeout".into(),
                message: format!("timed out after {seconds} s"),
                execution: progressed.execution(),
            }));
        };
        attempt
    }

    fn request(&self, answers: bool, stdin: Stdio) -> SessionRequest {
        let mut ssh_args = self.ssh_args.clone();
        ssh_args.extend(self.target.ssh_args.iter().cloned());
        // Two hosts cannot listen on one port, and nobody asked `run` for tunnels.
        ssh_args.extend(["-o".into(), "ClearAllForwardings=yes".into()]);
        SessionRequest {
            host: HostRequest {
                destination: self.target.destination.clone(),
                ssh_args,
                world: self.world.clone(),
            },
            program: self.program.clone(),
            env: BTreeMap::new(),
            tty: Tty::No,
            terminal: None,
            stdio: [stdin, Stdio::Framed, Stdio::Framed],
            answers,
            ssh: None,
            limit: self.limit,
        }
    }

    async fn converse(
        &self,
        answers: bool,
        collected: &mut Collected<'_>,
        progressed: &mut Progressed,
    ) -> anyhow::Result<Attempt> {
        let questions = self.backend.questions();
        let mut feed = None;
        let client = match self.input.begin().context("passing on the input")? {
            Some((fd, writes)) => {
                feed = writes.map(|writes| Box::pin(writes.run()));
                let request = self.request(answers, Stdio::Passed);
                self.backend.ask_for(request, &[fd.as_fd()]).await?
            }
            None => {
                let request = self.request(answers, Stdio::Null);
                self.backend.ask_for(request, &[]).await?
            }
        };
        // A request that the daemon did not get whole is none to it.
        progressed.asked = true;
        let mut talk = Conversation::new(client, questions);
        let mut interrupted = self.interrupted.clone();
        let mut stopping: Option<Stopping> = None;
        loop {
            let deadline = stopping.as_ref().map(|stopping| stopping.deadline);
            let reply = tokio::select! {
                biased;
                reply = talk.next() => reply?,
                fed = fed(&mut feed) => {
                    feed = None;
                    if let Err((message, pipe)) = fed {
                        talk.send(&Request::Terminate).await?;
                        stopping = Some(Stopping::new("local", message, Some(pipe)));
                    }
                    continue;
                }
                Ok(_) = interrupted.wait_for(|now| *now), if stopping.is_none() => {
                    talk.withdraw();
                    talk.send(&Request::Terminate).await?;
                    let message = "SIGTERM was sent".to_owned();
                    stopping = Some(Stopping::new(INTERRUPTED, message, None));
                    continue;
                }
                () = until(deadline) => {
                    let Some(Stopping { kind, message, .. }) = stopping else { continue };
                    let message = format!("{message}, and the command may still run");
                    let execution = Execution::MayHaveStarted;
                    return Ok(Attempt::Over(Outcome::Failed { kind, message, execution }));
                }
            };
            if !matches!(reply, Reply::Begun { .. }) {
                let _quiet = talk.quiet().await?;
                match &reply {
                    Reply::Output(data) => collected.add(Stream::Stdout, data)?,
                    Reply::ErrorOutput(data) => collected.add(Stream::Stderr, data)?,
                    Reply::Notice(text) => {
                        let line = format!("trunkline: {}: {}\n", self.target.name, text.trim_end());
                        show(collected.view, Stream::Stderr, line.as_bytes())?;
                    }
                    _ => {}
                }
            }
            let over = match reply {
                Reply::Begun { warm, .. } => {
                    progressed.warm = warm;
                    continue;
                }
                Reply::Exit(exit) => ended(exit),
                Reply::Failed(failure) => {
                    let advice = talk.is_unanswered().then_some(self.target.name.as_str());
                    failed(failure, advice, stopping)
                }
                Reply::UseSystemSsh { reasons, .. } => return Ok(Attempt::NeedsSystemSsh(reasons)),
                _ => continue,
            };
            return Ok(Attempt::Over(over));
        }
    }
}

enum Attempt {
    Over(Outcome),
    /// For these reasons.
    NeedsSystemSsh(Vec<String>),
}

/// A session that was told to end.
struct Stopping {
    kind: String,
    message: String,
    /// By when it has to answer.
    deadline: tokio::time::Instant,
    /// Input that is not whole must not look as if it had come to its end.
    _pipe: Option<pipe::Sender>,
}

impl Stopping {
    fn new(kind: &str, message: String, pipe: Option<pipe::Sender>) -> Self {
        Self {
            kind: kind.into(),
            message,
            deadline: tokio::time::Instant::now() + GRACE,
            _pipe: pipe,
        }
    }
}

type Fed = Result<(), (String, pipe::Sender)>;

async fn fed(feed: &mut Option<Pin<Box<impl Future<Output = Fed>>>>) -> Fed {
    match feed {
        Some(feed) => feed.await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The kind of failure of a host that the user's interruption kept from finishing.
const INTERRUPTED: &str = "interrupted";
/// What is said of a host on which nothing was started.
const RUN_INTERRUPTED: &str = "the run was interrupted";

fn ended(exit: Exit) -> Outcome {
    match exit {
        Exit::Status(status) => Outcome::Exited(status),
        Exit::Signal(name, core) => Outcome::Signaled { name, core },
        Exit::Unknown => Outcome::Failed {
            kind: "peer".into(),
            message: "the server did not report how the command ended".into(),
            execution: Execution::MayHaveStarted,
        },
    }
}

/// What a failure means. `unanswered`: the host had a question for which there was nobody.
fn failed(failure: Failure, unanswered: Option<&str>, stopping: Option<Stopping>) -> Outcome {
    let Failure {
        mut kind,
        mut message,
        execution,
    } = failure;
    let execution = match execution.as_str() {
        "did not start" => Execution::DidNotStart,
        "finished" => Execution::Finished,
        _ => Execution::MayHaveStarted,
    };
    if let Some(stopping) = stopping {
        message = match execution {
            Execution::MayHaveStarted => format!("{}, and the command may still run", stopping.message),
            Execution::DidNotStart if stopping.kind == INTERRUPTED => RUN_INTERRUPTED.into(),
            _ => stopping.message,
        };
        kind = stopping.kind;
    } else if let Some(name) = unanswered {
        message = format!("{message}; in a terminal, `trunkline warm {name}` asks what is to be asked");
    }
    Outcome::Failed {
        kind,
        message,
        execution,
    }
}

/// How much later than a host's time is up, or it was told to end, its answer may come. The daemon gives commands four
/// seconds.
const GRACE: Duration = Duration::from_secs(6);

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
