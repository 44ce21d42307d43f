//! `trunkline run --fleet`: the nodes of a fleet run the command, and the results are reported like those of a run.

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use trunkline_cli::run::{Elsewhere, Run, Work, standard_input};
use trunkline_cli::{Backend, Interrupts, Refused, Stream, status_of_signal};
use trunkline_control::socket::FrameError;
use trunkline_control::stdio::Input;
use trunkline_fleet_client::{
    Fleet, FleetHost, FleetLimits, FleetReply, FleetRequest, HOSTS_IN_A_FRAME, LONGEST_INPUT,
};
use trunkline_request::World;
use trunkline_request::destination::Destination;
use trunkline_request::hosts::Target;
use trunkline_text::{Printable, count_of};

use crate::client::{refuse_ssh_options, start};
use crate::say;

/// The failure kind of a host that no node started, or of which no node reports any more.
const FLEET: &str = "fleet";

/// Arguments of `trunkline run --fleet`, and of `trunkline fleet attach JOB`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    run: trunkline_cli::run::Args,
    /// Tell of this job.
    #[arg(long, value_name = "JOB", hide = true, requires = "fleet", conflicts_with_all = [
        "hosts", "group", "inventory", "command", "dry_run", "script", "become", "retry", "env",
    ])]
    attach: Option<String>,
}

/// The requested job.
enum Subject {
    /// A new job, with the script that precedes its input.
    Job(Vec<FleetHost>, FleetLimits, Arc<[u8]>),
    /// An existing job to follow.
    Attach(String),
    /// A job to run again on hosts where it may have started.
    RetryUnknown(String),
}

pub(crate) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = trunkline_cli::runtime()?;
    let outcome = runtime.block_on(run(args));
    // A thread may still be waiting for input.
    runtime.shutdown_background();
    outcome
}

/// Runs the command on the fleet, and reports the results.
async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args {
        run: mut args,
        attach,
    } = args;
    let world = World::current().context("reading the environment")?;
    let backend = Backend::new(false);
    let mut skipped = Vec::new();
    let asked = match (attach, args.retry_unknown.clone()) {
        (Some(job), _) => Subject::Attach(job),
        (None, Some(job)) => Subject::RetryUnknown(job),
        (None, None) => {
            let mut work = args.take_work(&world, &backend).await?;
            refuse_ssh_options(args.has_ssh_options(), work.hosts.iter().map(|(host, _)| host))?;
            skipped = std::mem::take(&mut work.skipped);
            Subject::from(work)
        }
    };
    let run = Run::new(&args, &backend, &world, &skipped);
    let mut interrupts = Interrupts::watch()?;
    let begun = (SystemTime::now(), Instant::now());
    let mut fleet = start()?;
    let HandedOver { job, targets, signal } =
        match hand_over(&args, &mut fleet, asked, &mut interrupts).await? {
            Ok(handed_over) => handed_over,
            Err(code) => return Ok(code),
        };
    if !args.quiet {
        let job = Printable::line(&job);
        let hosts = count_of(targets.len(), "host");
        say(&format!(
            "job {job} on {hosts}; `trunkline fleet attach {job}` follows it, too"
        ));
    }
    let view = run.view(&targets);
    let mut report = Elsewhere::begin(&run, &view, &targets, signal, begun)?;
    let is_over = follow(&mut fleet, &mut report, &mut interrupts).await?;
    let code = report.end(is_over).await?;
    if let Some(words) = of_sudo(report.without_password()).filter(|_| is_over) {
        say(&words);
    }
    Ok(code)
}

impl From<Work> for Subject {
    fn from(work: Work) -> Self {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let limits = FleetLimits {
            at_once: work.at_once.into(),
            batch: work.batch.map_or(u32::MAX, |batch| number(batch.get())),
            failures: work.failures.map(number),
            limit: work.limit,
            retries: work.retries,
        };
        let hosts = work.hosts.into_iter().map(|(target, command)| FleetHost {
            name: target.name,
            destination: target.destination,
            command,
        });
        Self::Job(hosts.collect(), limits, work.script)
    }
}

/// A job that was submitted.
struct HandedOver {
    job: String,
    targets: Vec<Target>,
    /// The user's signal, which cancels it.
    signal: Option<i32>,
}

/// Submits the job. Returns the exit status if a signal came first.
async fn hand_over(
    args: &trunkline_cli::run::Args,
    fleet: &mut Fleet,
    asked: Subject,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Result<HandedOver, ExitCode>> {
    let last = match interrupts.or(ask(args, fleet, asked)).await {
        // A job exists only after the last message.
        Err(signal) => {
            say("interrupted before the job was handed over: it did not start on any host");
            return Ok(Err(ExitCode::from(status_of_signal(signal))));
        }
        Ok(last) => last,
    };
    if let Err(error) = last {
        // A program that no longer reads has sent the reason.
        let is_deaf = error.is::<FrameError>();
        while is_deaf && let Ok(Some(reply)) = fleet.next().await {
            if let FleetReply::Failed(failure) = reply {
                bail!(Refused(failure));
            }
        }
        return Err(error);
    }
    let (mut job, mut targets, mut signal): (_, Vec<Target>, _) = (None::<(String, usize)>, Vec::new(), None);
    loop {
        let reply = match interrupts.or(fleet.next()).await {
            Err(_) if signal.is_some() => bail!(
                "interrupted again while the job was handed over: it may have started; `trunkline fleet status` lists it"
            ),
            Err(number) => {
                signal = Some(number);
                fleet.send(&FleetRequest::Cancel).await?;
                continue;
            }
            Ok(reply) => reply?,
        };
        match reply.context("trunkline-fleet ended before it had said anything")? {
            FleetReply::Job { job: name, hosts } => job = Some((name, usize::try_from(hosts)?)),
            FleetReply::Hosts(part) => targets.extend(part.into_iter().map(target)),
            FleetReply::Failed(failure) => match signal {
                Some(signal) => {
                    say(Printable::line(failure.to_string()).as_ref());
                    return Ok(Err(ExitCode::from(status_of_signal(signal))));
                }
                None => bail!(Refused(failure)),
            },
            _ => {}
        }
        if let Some((_, hosts)) = &job
            && targets.len() >= *hosts
        {
            let (job, _) = job.unwrap_or_default();
            return Ok(Ok(HandedOver { job, targets, signal }));
        }
    }
}

/// Sends the request. A new job exists only after the last message.
async fn ask(args: &trunkline_cli::run::Args, fleet: &Fleet, asked: Subject) -> anyhow::Result<()> {
    let last = match asked {
        Subject::Job(hosts, limits, script) => {
            for part in hosts.chunks(HOSTS_IN_A_FRAME) {
                fleet.send(&FleetRequest::Hosts(part.to_vec())).await?;
            }
            for part in script.chunks(PIECE) {
                fleet.send(&FleetRequest::Input(part.to_vec())).await?;
            }
            let input = if args.no_input { None } else { standard_input()? };
            if let Some(input) = input {
                pass_on(args.quiet, input, script.len() as u64, fleet).await?;
            }
            FleetRequest::Submit(limits)
        }
        Subject::Attach(job) => FleetRequest::Attach(job),
        Subject::RetryUnknown(job) => FleetRequest::RetryUnknown(job),
    };
    Ok(fleet.send(&last).await?)
}

/// Passes on standard input to its end, after this many bytes of a script.
async fn pass_on(is_quiet: bool, mut input: Input, script: u64, fleet: &Fleet) -> anyhow::Result<()> {
    let mut bytes = script;
    let mut patience = pin!(tokio::time::sleep(PATIENCE));
    let mut is_told = is_quiet;
    loop {
        let data = {
            let mut reading = pin!(input.read());
            tokio::select! {
                data = &mut reading => data,
                () = &mut patience, if !is_told => {
                    is_told = true;
                    say("the job starts when standard input, which all hosts get, has ended (-n gives them none)");
                    reading.await
                }
            }
        };
        let data = data.context("reading the input: the job did not start on any host")?;
        if data.is_empty() {
            return Ok(());
        }
        bytes += data.len() as u64;
        ensure!(
            bytes <= LONGEST_INPUT,
            "standard input is longer than {} MiB, the most that a fleet takes with a job, and the job did not start on any \
             host: copy it there first",
            LONGEST_INPUT >> 20
        );
        for part in data.chunks(PIECE) {
            fleet.send(&FleetRequest::Input(part.to_vec())).await?;
        }
    }
}

/// Returns advice for hosts where sudo did not run the command because it needs a password, which a fleet's nodes do
/// not have.
fn of_sudo(hosts: &[String]) -> Option<String> {
    let first = Printable::line(hosts.first()?);
    let hosts = match hosts.len() {
        1 => first.to_string(),
        2 => format!("{first} and 1 other host"),
        all => format!("{first} and {} other hosts", all - 1),
    };
    Some(format!(
        "sudo did not run the command on {hosts}. A fleet gives it no password, which NATS would keep: let sudo need none there \
         (NOPASSWD in sudoers), or leave out --fleet, and you are asked for it"
    ))
}

/// The size of the part of an input in one frame.
const PIECE: usize = 256 * 1024;

/// The time that standard input may take before a message tells the user that it is awaited.
const PATIENCE: Duration = Duration::from_secs(5);

fn target((name, destination): (String, Destination)) -> Target {
    Target {
        name,
        destination,
        ssh_args: Vec::new(),
    }
}

/// Reports until everything is told, or the user has interrupted it twice. Returns true in the first case.
async fn follow(
    fleet: &mut Fleet,
    report: &mut Elsewhere<'_>,
    interrupts: &mut Interrupts,
) -> anyhow::Result<bool> {
    let mut is_cancelled = report.is_interrupted();
    loop {
        let reply = match interrupts.or(fleet.next()).await {
            Ok(reply) => reply?,
            Err(signal) if report.interrupt(signal) => {
                is_cancelled = true;
                fleet.send(&FleetRequest::Cancel).await?;
                continue;
            }
            Err(_) => {
                say("interrupted again: the job is cancelled, and commands may still be running");
                return Ok(false);
            }
        };
        match reply {
            Some(FleetReply::Done) => break,
            Some(FleetReply::Failed(failure)) => {
                report.lose_rest(FLEET, &failure.message)?;
                break;
            }
            None => {
                report.lose_rest(FLEET, "trunkline-fleet has ended; the job goes on")?;
                break;
            }
            Some(reply) => handle_reply(report, reply)?,
        }
        if report.is_unread() && !is_cancelled {
            // Ends like a program that gets SIGPIPE, but first shows the results of the commands that are running.
            is_cancelled = true;
            fleet.send(&FleetRequest::Cancel).await?;
        }
    }
    if report.is_unread() {
        return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
    }
    Ok(true)
}

fn handle_reply(report: &mut Elsewhere<'_>, reply: FleetReply) -> anyhow::Result<()> {
    match reply {
        FleetReply::Started(host) => report.start(host),
        FleetReply::Output(host, data) => report.output(host, Stream::Stdout, &data)?,
        FleetReply::ErrorOutput(host, data) => report.output(host, Stream::Stderr, &data)?,
        FleetReply::Incomplete(host, messages) => {
            let text = format!("trunkline: {messages} parts of this host's output are lost\n");
            report.output(host, Stream::Stderr, text.as_bytes())?;
        }
        FleetReply::Ended(host, exit) => report.finish(host, exit)?,
        FleetReply::HostFailed(host, failure) => report.fail(host, &failure)?,
        FleetReply::NotStarted(host, why) => report.skip(host, FLEET, why)?,
        FleetReply::Notice(text) => report.notice(&text)?,
        FleetReply::Job { .. }
        | FleetReply::Hosts(_)
        | FleetReply::Stream(..)
        | FleetReply::Done
        | FleetReply::Failed(_) => {}
    }
    Ok(())
}
