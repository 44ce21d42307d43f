//! `trunkline run`: one command on many hosts.

mod command;
pub(crate) mod elsewhere;
mod hosts;
mod job;
mod prompt;
mod rolling;
mod sudo;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use clap::error::ErrorKind;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use trunkline_request::World;
use trunkline_request::destination::Destination;
use trunkline_request::failure::{self, Execution};
use trunkline_request::hosts::{Skipped, Target};
use trunkline_text::Printable;

use crate::OWN_ERROR;
use crate::backend::{Backend, Daemon, runtime};
use crate::duration;
use crate::report::colours::Colours;
use crate::report::files::{OutputError, OutputFiles};
use crate::report::lines::{LinePrefixer, Names, Stream};
use crate::report::output::Output;
use crate::report::progress::Progress;
use crate::report::{HostResult, Outcome, Trouble, collate, csv, fold, json, summary, table, trouble_here};
use crate::spool::Stdin;
use crate::ssh_options::SshOptions;
use crate::terminal;
use crate::terminal::interrupts::{Interrupts, status_of};
use command::{Command, Host, Script, Variable};
use job::{Common, Job};
use rolling::Rolling;
use sudo::{SharedPassword, Tokens};

pub(crate) use hosts::{ManyHosts, misspelt, warn_of};
pub(crate) use job::trouble;

pub use job::View;

/// Arguments of `trunkline run`.
#[derive(Debug, clap::Args)]
#[command(
    // clap's own usage is longer than a line.
    override_usage = "trunkline run [OPTIONS] <-H HOSTS|-g GROUP|-i FILE> [COMMAND]...",
    group(clap::ArgGroup::new("where").required(true).multiple(true).args(["hosts", "group", "inventory", "retry_unknown"])),
    group(clap::ArgGroup::new("shape").args(["json", "collate", "table", "csv"]))
)]
pub struct Args {
    #[command(flatten)]
    ssh: SshOptions,
    #[command(flatten)]
    many: ManyHosts,
    /// Hosts to leave out, written as for --hosts; the same as '!HOSTS' there.
    #[arg(help_heading = "Hosts", short = 'x', long, value_name = "HOSTS")]
    exclude: Vec<String>,
    /// Hosts to run on at the same time.
    #[arg(help_heading = "Running", short, visible_short_alias = 'f', long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Time for each host, including connecting: seconds, or a time such as 5m or 1h30m. When it is over, its command
    /// is sent SIGTERM.
    #[arg(help_heading = "Running", short, visible_short_alias = 'u', long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    rolling: Rolling,
    /// Try again this many times where nothing may have run: a host that is down, or refuses for a while.
    #[arg(help_heading = "Running", long, value_name = "N", default_value_t = 0)]
    retry: u32,
    /// Have the nodes of the fleet run it (`trunkline fleet`), each on its share of the hosts. -j, --serial,
    /// --fail-fast and
    /// --timeout hold for the whole fleet. Standard input is read to its end before anything starts, and has at most 64 MiB.
    #[arg(help_heading = "Running", long)]
    fleet: bool,
    /// Run this job of the fleet again on the hosts where it may have started, and on no others, with that job's
    /// limits.
    #[arg(help_heading = "Running", long, value_name = "JOB", requires = "fleet", conflicts_with_all = [
        "hosts", "group", "inventory", "command", "dry_run", "jobs", "timeout", "serial", "fail_fast", "max_fail", "script",
        "become", "retry", "env",
    ])]
    pub retry_unknown: Option<String>,
    /// Write the names of the hosts that did not succeed to this file, one a line; `-H @FILE` takes them.
    #[arg(help_heading = "Output", long, value_name = "FILE")]
    failed: Option<PathBuf>,
    /// Print what would run on each host, and connect to none.
    #[arg(help_heading = "Running", long)]
    dry_run: bool,
    /// Run this script of this machine; the words behind it are its arguments.
    ///
    /// It is sent before the command's input, and its file on the server loses its name before it runs, so that nothing
    /// is left behind. The first line says what runs it (#!); sh does without one.
    #[arg(help_heading = "Running", long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Set a variable for the command. The value can be seen among the server's processes for a moment.
    #[arg(help_heading = "Running", long, value_name = "NAME=VALUE", value_parser = Variable::parse)]
    env: Vec<Variable>,
    /// Run the command as this user (root if none is named), by sudo. Its password is asked for once, where sudo needs
    /// one; with --fleet it must not need one.
    #[arg(help_heading = "Running", long, value_name = "USER", num_args = 0..=1, require_equals = true, default_missing_value = "root")]
    r#become: Option<String>,
    /// Print one JSON object for each host as it finishes.
    #[arg(help_heading = "Output", long)]
    json: bool,
    /// Group hosts with identical output when all have finished.
    #[arg(help_heading = "Output", short = 'b', visible_short_alias = 'B', long)]
    collate: bool,
    /// Print the lines when all have finished, host by host in the order of the list. With --collate: each line behind
    /// the hosts that printed it, without headings.
    #[arg(help_heading = "Output", short = 'L', long, conflicts_with_all = ["json", "table", "csv"])]
    by_host: bool,
    /// Print lines without the host's name before them.
    #[arg(help_heading = "Output", short = 'N', long)]
    no_names: bool,
    /// Print a row for each host when all have finished: status, time, and the beginning of the output.
    #[arg(help_heading = "Output", long)]
    table: bool,
    /// Print a CSV record for each host when all have finished, for spreadsheets, with the fields of --json.
    #[arg(help_heading = "Output", long)]
    csv: bool,
    /// Return the largest exit status that a command returned, and 255 where one did not run to its end.
    #[arg(help_heading = "Output", short = 'S', long)]
    maxrc: bool,
    /// Print what commands print and what went wrong, and nothing else.
    #[arg(help_heading = "Output", short, long)]
    pub quiet: bool,
    /// Give the command no input. Otherwise every host gets all of standard input, unless that is a terminal or
    /// /dev/null.
    ///
    /// In a loop that reads from standard input itself (while read …), the rest of the list would be the command's
    /// input without this option, as with ssh. A host that runs but does not read holds up the others' input when they
    /// are 64 MiB ahead of it, for ten seconds.
    #[arg(
        help_heading = "Input",
        short = 'n',
        long = "no-input",
        visible_alias = "nostdin"
    )]
    pub no_input: bool,
    // clap takes the n in braces for a line break.
    /// Also write each host's output to files in this directory, HOST.stdout and HOST.stderr. With {host} in it, or n
    /// in braces for the host's number in the list, it is the beginning of the files' names: logs/{host}/run.
    #[arg(help_heading = "Output", short = 'O', long = "output", value_name = "DIR")]
    output: Option<PathBuf>,
    /// The command, whose words are joined with spaces, as ssh does. {host} in it is the host's name, and n in braces
    /// its number in the list. Without a command, a prompt on the terminal takes commands for all hosts.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(run(args, backend));
    // A thread may still be waiting for input.
    runtime.shutdown_background();
    outcome
}

async fn run(mut args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let is_prompt = args.command.is_empty() && args.script.is_none();
    let is_on_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if is_prompt && (args.dry_run || !is_on_terminal) {
        refuse_without_command();
    }
    let world = World::current().context("reading the environment")?;
    let (targets, mut skipped) = args.targets(&world, backend).await?;
    if is_prompt || args.dry_run {
        warn_of(&std::mem::take(&mut skipped));
    }
    let command = args.take_command()?;
    let run = Run::new(&args, backend, &world, &skipped);
    if is_prompt {
        drop(backend.connect(Daemon::Usual).await?);
        let mut interrupts = Interrupts::watch()?;
        return run.converse(command.into_env(), targets, &mut interrupts).await;
    }
    if args.dry_run {
        let mut out = std::io::stdout();
        let colours = colours(out.is_terminal());
        out.write_all(args.plan(&targets, &command, colours)?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Connects once first, so that a problem of this machine is reported once and not by each host.
    drop(backend.connect(Daemon::Usual).await?);
    let stdin = if args.no_input {
        Stdin::Nothing
    } else {
        Stdin::find()?
    };
    let mut interrupts = Interrupts::watch()?;
    let done = run.execute(&targets, &command, &stdin, &mut interrupts).await?;
    Ok(done.code)
}

fn refuse_without_command() -> ! {
    let missing = "a command is missing; without one, commands are taken from a prompt on a terminal\n";
    clap::Error::raw(ErrorKind::MissingRequiredArgument, missing).exit();
}

pub(crate) fn colours(is_terminal: bool) -> Colours {
    Colours::choose(
        is_terminal,
        std::env::var_os("NO_COLOR").as_deref(),
        std::env::var_os("TERM").as_deref(),
    )
}

/// Returns the largest exit status of the commands, or 255 if one did not run to its end.
fn largest(done: &[HostResult]) -> u8 {
    let statuses = done.iter().map(|result| match &result.outcome {
        Outcome::Exited(status) => u8::try_from(*status).unwrap_or(OWN_ERROR),
        Outcome::Signaled { .. } | Outcome::Failed { .. } => OWN_ERROR,
    });
    statuses.max().unwrap_or_default()
}

/// Returns the host's name for `{host}`: a listed name without user and port, an inventory's name as it is.
fn host_of(target: &Target, number: usize) -> Host<'_> {
    let destination = &target.destination;
    let is_listed = destination.user.is_some() || destination.port.is_some();
    let name = if is_listed && target.ssh_args.is_empty() && target.name.contains(&destination.host) {
        &destination.host
    } else {
        &target.name
    };
    Host { name, number }
}

impl Args {
    /// Returns true if the nodes of a fleet run the command.
    pub(crate) fn is_for_fleet(&self) -> bool {
        self.fleet && !self.dry_run
    }

    /// Returns the hosts to run on, and those of the inventory that cannot be reached.
    async fn targets(
        &mut self,
        world: &World,
        backend: &Backend,
    ) -> anyhow::Result<(Vec<Target>, Vec<Skipped>)> {
        self.many.exclude(&self.exclude, world)?;
        let selection = self
            .many
            .selection(self.ssh.config_file(), world, backend)
            .await?;
        if selection.targets.is_empty() {
            warn_of(&selection.skipped);
            bail!("no hosts are left to run on");
        }
        Ok((selection.targets, selection.skipped))
    }

    fn take_command(&mut self) -> anyhow::Result<Command> {
        let script = self.script.as_deref().map(Script::read).transpose()?;
        let (words, env) = (std::mem::take(&mut self.command), std::mem::take(&mut self.env));
        Ok(Command::new(words, env, script))
    }

    /// Returns true if output is printed when all hosts have finished.
    fn is_held(&self) -> bool {
        self.collate || self.by_host || self.table || self.csv
    }

    /// Returns the hosts in order, with the command that each would run.
    fn plan(&self, targets: &[Target], command: &Command, colours: Colours) -> anyhow::Result<String> {
        let all = targets.len();
        let batch = self.rolling.batch(all).map_or(all, usize::from);
        let mut plan = String::new();
        let names = Names::align(targets.iter().map(|target| target.name.as_str()));
        for (index, target) in targets.iter().enumerate() {
            if batch < all && index % batch == 0 {
                let last = targets.len().min(index + batch);
                let (nth, first) = (index / batch + 1, index + 1);
                writeln!(plan, "# batch {nth}: hosts {first} to {last}")?;
            }
            let number = index + 1;
            let command = command.for_people(host_of(target, number))?;
            let by = match &self.r#become {
                Some(user) => format!("(as {user}) "),
                None => String::new(),
            };
            let line = Printable::text(format!("{by}{command}")).into_string();
            writeln!(plan, "{}{line}", names.prefix(&target.name, number, colours))?;
        }
        Ok(plan)
    }
}

/// The result of a command.
struct Done {
    code: ExitCode,
    /// The hosts on which it succeeded.
    well: HashSet<String>,
}

impl Done {
    fn new(done: &[HostResult], code: ExitCode) -> Self {
        let well = done.iter().filter(|result| result.outcome.is_success());
        let well = well.map(|result| result.host.clone()).collect();
        Self { code, well }
    }

    /// Returns the hosts on which it did not succeed.
    fn unsuccessful<'a>(&self, targets: &'a [Target]) -> impl Iterator<Item = &'a str> {
        let names = targets.iter().map(|target| target.name.as_str());
        names.filter(|name| !self.well.contains(*name))
    }
}

/// Fails if a file cannot be written. Does not change it.
fn check_writable(path: &Path) -> anyhow::Result<()> {
    let is_there = path.exists();
    let mut options = std::fs::OpenOptions::new();
    let opened = options.append(true).create(!is_there).open(path);
    opened.with_context(|| format!("writing {}", path.display()))?;
    if !is_there {
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// Returns the outcome of a host whose output files cannot be written. A failure of its own takes precedence.
fn unwritten(outcome: &Outcome, error: &OutputError) -> Outcome {
    let message = match outcome {
        Outcome::Failed { .. } => return outcome.clone(),
        Outcome::Exited(0) => error.to_string(),
        ended => format!("{error}; the command: {ended}"),
    };
    Outcome::Failed {
        kind: failure::ErrorKind::Local.as_str().to_owned(),
        message,
        execution: Execution::Finished,
    }
}

/// The settings of a run, without its command.
#[derive(Debug)]
pub struct Run<'a> {
    args: &'a Args,
    backend: &'a Backend,
    world: &'a World,
    /// Hosts that the inventory gives no way to reach.
    skipped: &'a [Skipped],
}

impl<'a> Run<'a> {
    /// Returns the settings; `skipped` are hosts that the inventory gives no way to reach.
    pub fn new(args: &'a Args, backend: &'a Backend, world: &'a World, skipped: &'a [Skipped]) -> Self {
        Self {
            args,
            backend,
            world,
            skipped,
        }
    }
}

impl Run<'_> {
    /// Runs a command on the hosts, and reports.
    async fn execute(
        &self,
        targets: &[Target],
        command: &Command,
        stdin: &Stdin,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Done> {
        let args = self.args;
        let all = targets.len();
        let begun = Instant::now();
        let numbered = || (1..).zip(targets);
        let names = numbered().map(|(number, target)| (host_of(target, number).name, number));
        let files = args.output.as_deref().map(|path| OutputFiles::plan(path, names));
        let files = files.transpose()?;
        if let Some(path) = &args.failed {
            check_writable(path)?;
        }
        let (interrupt, interrupted) = watch::channel(false);
        let common = Common {
            backend: self.backend,
            world: self.world.clone(),
            limit: args.timeout,
            retries: args.retry,
            failures: args.rolling.failures(all),
            password: SharedPassword::default(),
            interrupted,
            view: self.view(targets),
        };
        let questions = self.backend.questions();
        questions.hide_while_asking(common.view.progress.bar()).await;
        let named = targets
            .iter()
            .map(|target| (target.name.clone(), target.destination.host.clone()));
        questions.name_hosts(named.collect()).await;
        let mut jobs = Vec::with_capacity(all);
        for (number, target) in numbered() {
            let tokens = args.r#become.as_deref().map(|user| Arc::new(Tokens::new(user)));
            jobs.push(Job {
                common: &common,
                number,
                command: command.for_host(host_of(target, number), tokens.as_deref())?,
                ssh_args: args.ssh.to_session_args(&target.ssh_args),
                target: target.clone(),
                sudo: tokens,
                input: stdin.for_host(command.script())?,
            });
        }
        let mut done = self.unreachable(all, &common.view, files.as_ref())?;
        let mut signal = None;
        let batch = args.rolling.batch(all).map_or(all, usize::from).max(1);
        let mut jobs = jobs.into_iter();
        loop {
            let now: Vec<Job<'_>> = jobs.by_ref().take(batch).collect();
            if now.is_empty() {
                break;
            }
            let mut results = futures_util::stream::iter(now)
                .map(Job::run)
                .buffer_unordered(args.jobs.into());
            loop {
                let result = match interrupts.or(results.next()).await {
                    Ok(Some(result)) => result,
                    Ok(None) => break,
                    Err(number) if signal.is_some() => {
                        // The daemon ends the remaining commands.
                        common.view.progress.clear();
                        eprintln!("trunkline: interrupted again: commands may still be running");
                        let code = ExitCode::from(status_of(number));
                        return self.end(Done::new(&done, code), targets);
                    }
                    Err(number) => {
                        signal = Some(number);
                        common.view.progress.show_interrupt();
                        interrupt.send_replace(true);
                        continue;
                    }
                };
                if common.view.is_unread.load(Ordering::Relaxed) {
                    // As after SIGPIPE: running commands notice the end.
                    return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
                }
                let result = self.finish(result, files.as_ref())?;
                common.view.progress.finish(&result);
                done.push(result);
            }
        }
        common.view.progress.clear();
        let code = self.report(&done, begun.elapsed(), signal, &common.view).await?;
        self.end(Done::new(&done, code), targets)
    }

    /// Returns results for hosts that the inventory gives no way to reach. Their numbers follow those of all others.
    fn unreachable(
        &self,
        others: usize,
        view: &View,
        files: Option<&OutputFiles>,
    ) -> anyhow::Result<Vec<HostResult>> {
        let results = (others + 1..).zip(self.skipped).map(|(number, host)| {
            let result = HostResult {
                host: host.name.clone(),
                number,
                address: Destination {
                    user: None,
                    host: host.name.clone(),
                    port: None,
                },
                outcome: Outcome::Failed {
                    kind: failure::ErrorKind::Configuration.as_str().to_owned(),
                    message: host.why.clone(),
                    execution: Execution::DidNotStart,
                },
                stdout: Output::default(),
                stderr: Output::default(),
                started: SystemTime::now(),
                elapsed: Duration::ZERO,
                warm: false,
                trouble: None,
            };
            let result = self.finish(result, files)?;
            view.progress.finish(&result);
            Ok(result)
        });
        results.collect()
    }

    /// Returns the display of a run on these hosts.
    pub fn view(&self, targets: &[Target]) -> View {
        let args = self.args;
        let (stdout_is_terminal, stderr_is_terminal) =
            (std::io::stdout().is_terminal(), std::io::stderr().is_terminal());
        let live = !args.json && !args.is_held();
        let names = targets.iter().map(|target| target.name.as_str());
        View {
            progress: Progress::new(
                targets.len() + self.skipped.len(),
                stderr_is_terminal && !args.json && !args.csv && !args.quiet,
            ),
            live,
            keep: (!live || args.output.is_some()).then(Arc::default),
            names: match (args.no_names, stdout_is_terminal) {
                (true, _) => Names::absent(),
                (false, true) => Names::align(names),
                (false, false) => Names::default(),
            },
            colours: colours(stdout_is_terminal),
            error_colours: colours(stderr_is_terminal),
            is_unread: AtomicBool::new(false),
        }
    }

    /// Handles the result of one host: writes its files and prints what is due.
    fn finish(&self, mut result: HostResult, files: Option<&OutputFiles>) -> anyhow::Result<HostResult> {
        // The other hosts continue, since their commands are already running.
        if let Some(Err(error)) = files.map(|files| files.write(&result)) {
            result.outcome = unwritten(&result.outcome, &error);
        }
        if self.args.json {
            let mut out = BufWriter::new(std::io::stdout().lock());
            json::write(&mut out, &result)?;
            out.flush()?;
        }
        if !self.args.is_held() {
            result.stdout = Output::default();
            result.stderr = Output::default();
        }
        Ok(result)
    }

    /// Writes the names of hosts that did not succeed, including those that never started.
    fn end(&self, done: Done, targets: &[Target]) -> anyhow::Result<Done> {
        if let Some(path) = &self.args.failed {
            let mut text = String::new();
            let unreachable = self.skipped.iter().map(|host| host.name.as_str());
            for name in done.unsuccessful(targets).chain(unreachable) {
                writeln!(text, "{name}")?;
            }
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(done)
    }

    /// Prints the end of a run, and returns the exit status.
    async fn report(
        &self,
        done: &[HostResult],
        elapsed: Duration,
        signal: Option<i32>,
        view: &View,
    ) -> anyhow::Result<ExitCode> {
        if let Some(message) = trouble_here(done) {
            crate::report::tell(message);
            return Ok(ExitCode::from(OWN_ERROR));
        }
        self.print_held(done, view)?;
        if signal.is_some() {
            eprint!("{}", summary::render_interrupted(done));
        }
        let is_well = done.iter().all(|result| result.outcome.is_success());
        if !(self.args.quiet && is_well) {
            eprint!("{}", summary::counts(done, elapsed, view.error_colours));
            // The table's rows and the groups have shown the failures.
            if !self.args.table && (!self.args.collate || self.args.by_host) {
                let width = terminal::width(std::io::stderr());
                eprint!("{}", summary::failures(done, width));
            }
        }
        let unknown = done
            .iter()
            .filter(|result| result.trouble == Some(Trouble::UnknownName));
        let unknown: Vec<&str> = unknown.map(|result| result.address.host.as_str()).collect();
        let config_file = self.args.ssh.config_file();
        if let Some(sentence) = hosts::misspelt(&unknown, config_file, self.world, self.backend).await? {
            crate::report::tell(Printable::line(sentence));
        }
        Ok(match signal {
            Some(signal) => ExitCode::from(status_of(signal)),
            None if is_well => ExitCode::SUCCESS,
            None if self.args.maxrc => ExitCode::from(largest(done)),
            None => ExitCode::FAILURE,
        })
    }

    fn print_held(&self, done: &[HostResult], view: &View) -> anyhow::Result<()> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.args.by_host {
            return self.print_by_host(done, view, &mut out);
        }
        if self.args.collate {
            let width = terminal::width(std::io::stdout());
            for group in collate::groups(done)? {
                group.write(&mut out, view.colours, width)?;
            }
        }
        if self.args.table {
            let width = terminal::width(std::io::stdout());
            out.write_all(table::table(done, width, view.colours)?.as_bytes())?;
        }
        if self.args.csv {
            let mut done: Vec<&HostResult> = done.iter().collect();
            done.sort_by_key(|result| result.number);
            csv::write_header(&mut out)?;
            for result in done {
                csv::write(&mut out, result)?;
            }
        }
        Ok(out.flush()?)
    }

    /// Prints lines without headings in the order of the list. Equal output is printed once.
    fn print_by_host(&self, done: &[HostResult], view: &View, out: &mut impl Write) -> anyhow::Result<()> {
        let mut err = std::io::stderr().lock();
        let mut write = |hosts: &str, number, stdout: &Output, stderr: &Output| -> anyhow::Result<()> {
            let names = &view.names;
            stdout.write_lines(
                LinePrefixer::new(names, hosts, number, Stream::Stdout, view.colours),
                &mut *out,
            )?;
            out.flush()?;
            stderr.write_lines(
                LinePrefixer::new(names, hosts, number, Stream::Stderr, view.error_colours),
                &mut err,
            )?;
            Ok(())
        };
        if self.args.collate {
            for (number, group) in (1..).zip(collate::groups(done)?) {
                write(&fold::fold(&group.hosts), number, group.stdout, group.stderr)?;
            }
            return Ok(());
        }
        let mut done: Vec<&HostResult> = done.iter().collect();
        done.sort_by_key(|result| result.number);
        for result in done {
            write(&result.host, result.number, &result.stdout, &result.stderr)?;
        }
        Ok(())
    }
}
