//! `trunkline run --fleet`: the nodes of a fleet run the command, and what they tell is reported as that of a run.

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use trunkline_control::fleet::{
    Fleet, FleetHost, FleetLimits, FleetReply, FleetRequest, HOSTS_IN_A_FRAME, LONGEST_INPUT,
};
use trunkline_control::protocol::Failure;
use trunkline_control::socket::FrameError;
use trunkline_control::stdio::Input;
use trunkline_request::destination::Destination;
use trunkline_request::hosts::Target;
use trunkline_text::{Printable, counted};

use super::command::Command;
use super::job::{Collected, Stopping, View, failed_outcome, outcome_of};
use super::rolling::Failures;
use super::sudo::without_password;
use super::{Args, Done, Run, host_of};
use crate::hints::Refused;
use crate::report::files::OutputFiles;
use crate::report::lines::Stream;
use crate::report::{Execution, HostResult, INTERRUPTED, Outcome, SKIPPED};
use crate::spool;
use crate::terminal::interrupts::{Interrupts, status_of};

/// The kind of failure of a host that no node started, or of which no node tells any more.
const FLEET: &str = "fleet";

/// The job that is asked about, or for.
pub(super) enum Subject {
    /// A new job, with the script that comes before its input.
    Job(Vec<FleetHost>, FleetLimits, Arc<[u8]>),
    /// To tell of this one.
    Attach(String),
    /// To run this one again where it may have started.
    RetryUnknown(String),
}

impl Args {
    /// Returns the request to the fleet, other than a new job.
    pub(super) fn asked_of_fleet(&self) -> Option<Subject> {
        let attach = self.attach.clone().map(Subject::Attach);
        attach.or_else(|| self.retry_unknown.clone().map(Subject::RetryUnknown))
    }

    /// A new job for the fleet.
    pub(super) fn job_for_fleet(&self, targets: &[Target], command: &Command) -> anyhow::Result<Subject> {
        ensure!(
            self.ssh.to_args().is_empty(),
            "--fleet takes no options of ssh: each node reaches its hosts by its own ssh_config"
        );
        if let Some(target) = targets.iter().find(|target| !target.ssh_args.is_empty()) {
            bail!(
                "{} needs options of ssh, which its inventory names: --fleet reaches hosts by the nodes' own ssh_config",
                target.name
            );
        }
        let hosts = (1..).zip(targets).map(|(number, target)| {
            let line = command.for_host(host_of(target, number), None)?;
            Ok(FleetHost {
                name: target.name.clone(),
                destination: target.destination.clone(),
                command: match &self.r#become {
                    Some(user) => without_password(user, &line),
                    None => line,
                },
            })
        });
        let all = targets.len();
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let limits = FleetLimits {
            at_once: self.jobs.into(),
            batch: self
                .rolling
                .batch(all)
                .map_or(u32::MAX, |batch| number(batch.get())),
            failures: self.rolling.failures(all).tolerated().map(number),
            limit: self.timeout,
            retries: self.retry,
        };
        Ok(Subject::Job(
            hosts.collect::<anyhow::Result<_>>()?,
            limits,
            command.script(),
        ))
    }
}

/// A host of the job, of which the end is not known yet.
struct Pending<'a> {
    collected: Collected<'a>,
    started: Option<(SystemTime, Instant)>,
    /// The first that it wrote to standard error.
    complaint: Vec<u8>,
}

/// The beginning of sudo's own messages, in every language.
const SUDO: &[u8] = b"sudo: ";

impl Run<'_> {
    /// Has the fleet do it, and reports.
    pub(super) async fn on_fleet(&self, asked: Subject, interrupts: &mut Interrupts) -> anyhow::Result<Done> {
        let begun = (SystemTime::now(), Instant::now());
        let mut fleet = Fleet::start()?;
        let HandedOver { job, targets, signal } = match self.hand_over(&mut fleet, asked, interrupts).await? {
            Ok(handed_over) => handed_over,
            Err(code) => return Ok(Done::new(&[], code)),
        };
        if !self.args.quiet {
            let job = Printable::line(&job);
            let hosts = counted(targets.len(), "host");
            eprintln!("trunkline: job {job} on {hosts}; `trunkline fleet attach {job}` follows it, too");
        }
        let names = (1..)
            .zip(&targets)
            .map(|(number, target)| (host_of(target, number).name, number));
        let files = self
            .args
            .output
            .as_deref()
            .map(|path| OutputFiles::plan(path, names));
        let files = files.transpose()?;
        let view = self.view(&targets);
        let done = self.unreachable(targets.len(), &view, files.as_ref())?;
        let mut following = Following {
            run: self,
            view: &view,
            targets: &targets,
            files: files.as_ref(),
            failures: self.args.rolling.failures(targets.len()),
            pending: Vec::new(),
            done,
            signal,
            begun,
            without_password: Vec::new(),
        };
        for (number, target) in (1..).zip(&targets) {
            let collected = Collected::new(&view, &target.name, number);
            following.pending.push(Some(Pending {
                collected,
                started: None,
                complaint: Vec::new(),
            }));
        }
        let is_over = following.follow(&mut fleet, interrupts).await?;
        let Following {
            done,
            signal,
            without_password,
            ..
        } = following;
        view.progress.clear();
        if !is_over {
            let code = ExitCode::from(signal.map_or(crate::OWN_ERROR, status_of));
            return self.end(Done::new(&done, code), &targets);
        }
        let code = self.report(&done, begun.1.elapsed(), signal, &view).await?;
        if let Some(words) = of_sudo(&without_password) {
            eprintln!("trunkline: {words}");
        }
        self.end(Done::new(&done, code), &targets)
    }
}

/// A job that the fleet has.
struct HandedOver {
    job: String,
    targets: Vec<Target>,
    /// The user's, which cancels it.
    signal: Option<i32>,
}

impl Run<'_> {
    /// Hands the job over; the exit status, where a signal came before.
    async fn hand_over(
        &self,
        fleet: &mut Fleet,
        asked: Subject,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Result<HandedOver, ExitCode>> {
        let last = match interrupts.or(self.ask(fleet, asked)).await {
            // Nobody has a job before the last word.
            Err(signal) => {
                eprintln!(
                    "trunkline: interrupted before the job was handed over: it did not start on any host"
                );
                return Ok(Err(ExitCode::from(status_of(signal))));
            }
            Ok(last) => last,
        };
        if let Err(error) = last {
            // A program that reads no more has said why.
            let is_deaf = error.is::<FrameError>();
            while is_deaf && let Ok(Some(reply)) = fleet.next().await {
                if let FleetReply::Failed(failure) = reply {
                    bail!(Refused(failure));
                }
            }
            return Err(error);
        }
        let (mut job, mut targets, mut signal): (_, Vec<Target>, _) =
            (None::<(String, usize)>, Vec::new(), None);
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
                        eprintln!("trunkline: {}", Printable::line(failure.to_string()));
                        return Ok(Err(ExitCode::from(status_of(signal))));
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

    /// Says what is asked. A new job is one with the last word, and nothing before.
    async fn ask(&self, fleet: &Fleet, asked: Subject) -> anyhow::Result<()> {
        let last = match asked {
            Subject::Job(hosts, limits, script) => {
                for part in hosts.chunks(HOSTS_IN_A_FRAME) {
                    fleet.send(&FleetRequest::Hosts(part.to_vec())).await?;
                }
                for part in script.chunks(PIECE) {
                    fleet.send(&FleetRequest::Input(part.to_vec())).await?;
                }
                let input = if self.args.no_input { None } else { spool::whole()? };
                if let Some(input) = input {
                    self.pass_on(input, script.len() as u64, fleet).await?;
                }
                FleetRequest::Submit(limits)
            }
            Subject::Attach(job) => FleetRequest::Attach(job),
            Subject::RetryUnknown(job) => FleetRequest::RetryUnknown(job),
        };
        Ok(fleet.send(&last).await?)
    }

    /// Passes on standard input, behind so many bytes of a script, to its end.
    async fn pass_on(&self, mut input: Input, script: u64, fleet: &Fleet) -> anyhow::Result<()> {
        let mut bytes = script;
        let mut patience = pin!(tokio::time::sleep(PATIENCE));
        let mut is_told = self.args.quiet;
        loop {
            let data = {
                let mut reading = pin!(input.read());
                tokio::select! {
                    data = &mut reading => data,
                    () = &mut patience, if !is_told => {
                        is_told = true;
                        eprintln!(
                            "trunkline: the job starts when standard input, which all hosts get, has ended (-n gives them none)"
                        );
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
}

/// Returns advice for hosts whose sudo did not run a command, which a fleet's nodes have no password for.
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

/// The time that standard input may take before somebody who may not know of it is told what is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

fn target((name, destination): (String, Destination)) -> Target {
    Target {
        name,
        destination,
        ssh_args: Vec::new(),
    }
}

/// A job on its way.
struct Following<'a> {
    run: &'a Run<'a>,
    view: &'a View,
    targets: &'a [Target],
    files: Option<&'a OutputFiles>,
    failures: Failures,
    pending: Vec<Option<Pending<'a>>>,
    done: Vec<HostResult>,
    signal: Option<i32>,
    begun: (SystemTime, Instant),
    /// Hosts whose sudo did not run the command.
    without_password: Vec<String>,
}

impl<'a> Following<'a> {
    /// Until all is told, or somebody has interrupted it twice; which of the two.
    async fn follow(&mut self, fleet: &mut Fleet, interrupts: &mut Interrupts) -> anyhow::Result<bool> {
        let mut is_cancelled = self.signal.is_some();
        loop {
            let reply = match interrupts.or(fleet.next()).await {
                Ok(reply) => reply?,
                Err(_) if self.signal.is_some() => {
                    self.view.progress.clear();
                    eprintln!(
                        "trunkline: interrupted again: the job is cancelled, and commands may still be running"
                    );
                    return Ok(false);
                }
                Err(number) => {
                    self.signal = Some(number);
                    self.view.progress.show_interrupt();
                    is_cancelled = true;
                    fleet.send(&FleetRequest::Cancel).await?;
                    continue;
                }
            };
            match reply {
                Some(FleetReply::Done) => break,
                Some(FleetReply::Failed(failure)) => self.lose_rest(&failure)?,
                None => self.lose_rest(&Failure::new(
                    trunkline_request::failure::ErrorKind::Local,
                    "trunkline-fleet has ended; the job goes on",
                ))?,
                Some(reply) => {
                    self.handle_reply(reply)?;
                    if self.view.is_unread.load(std::sync::atomic::Ordering::Relaxed) && !is_cancelled {
                        // As a program that SIGPIPE ends; what runs is to be told first.
                        is_cancelled = true;
                        fleet.send(&FleetRequest::Cancel).await?;
                    }
                    continue;
                }
            }
            break;
        }
        if self.view.is_unread.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        }
        Ok(true)
    }

    fn handle_reply(&mut self, reply: FleetReply) -> anyhow::Result<()> {
        match reply {
            FleetReply::Started(host) => {
                if let Some((pending, target)) = self.pending(host)
                    && pending.started.is_none()
                {
                    pending.started = Some((SystemTime::now(), Instant::now()));
                    self.view.progress.start(&target.name);
                }
            }
            FleetReply::Output(host, data) => self.output(host, Stream::Stdout, &data)?,
            FleetReply::ErrorOutput(host, data) => self.output(host, Stream::Stderr, &data)?,
            FleetReply::Incomplete(host, messages) => {
                let text = format!("trunkline: {messages} parts of this host's output are lost\n");
                self.output(host, Stream::Stderr, text.as_bytes())?;
            }
            FleetReply::Ended(host, exit) => self.finish_host(host, outcome_of(exit))?,
            FleetReply::HostFailed(host, failure) => {
                let interrupted = || Stopping::new(INTERRUPTED, "SIGTERM was sent".to_owned(), None);
                let stopping = self.signal.map(|_| interrupted());
                self.finish_host(host, failed_outcome(&failure, None, stopping))?;
            }
            FleetReply::NotStarted(host, why) => {
                let kind = match () {
                    () if self.signal.is_some() => INTERRUPTED,
                    () if self.failures.too_many().is_some() => SKIPPED,
                    () => FLEET,
                };
                let outcome = Outcome::Failed {
                    kind: kind.into(),
                    message: why,
                    execution: Execution::DidNotStart,
                };
                self.finish_host(host, outcome)?;
            }
            FleetReply::Notice(text) => {
                let line = format!("trunkline: {}\n", Printable::line(text));
                self.view
                    .progress
                    .write(&mut std::io::stderr(), line.as_bytes())?;
            }
            FleetReply::Job { .. }
            | FleetReply::Hosts(_)
            | FleetReply::Stream(..)
            | FleetReply::Done
            | FleetReply::Failed(_) => {}
        }
        Ok(())
    }

    fn pending(&mut self, host: u32) -> Option<(&mut Pending<'a>, &'a Target)> {
        let host = usize::try_from(host).ok()?;
        Some((self.pending.get_mut(host)?.as_mut()?, self.targets.get(host)?))
    }

    fn output(&mut self, host: u32, stream: Stream, data: &[u8]) -> std::io::Result<()> {
        let host = usize::try_from(host).unwrap_or(usize::MAX);
        match self.pending.get_mut(host) {
            Some(Some(pending)) => {
                if stream == Stream::Stderr {
                    let missing = SUDO.len().saturating_sub(pending.complaint.len());
                    pending.complaint.extend(data.iter().take(missing));
                }
                pending.collected.add(stream, data)
            }
            _ => Ok(()),
        }
    }

    fn finish_host(&mut self, host: u32, outcome: Outcome) -> anyhow::Result<()> {
        let place = usize::try_from(host)?;
        let Some(pending) = self.pending.get_mut(place).and_then(Option::take) else {
            return Ok(());
        };
        let target = &self.targets[place];
        let (started, begun) = pending.started.unwrap_or(self.begun);
        let (stdout, stderr) = pending.collected.end();
        let is_of_sudo = self.run.args.r#become.is_some() && pending.complaint == SUDO;
        if is_of_sudo && outcome == Outcome::Exited(1) {
            self.without_password.push(target.name.clone());
        }
        if !outcome.is_success() {
            self.failures.add();
        }
        let result = HostResult {
            host: target.name.clone(),
            number: place + 1,
            address: target.destination.clone(),
            outcome,
            stdout,
            stderr,
            started,
            elapsed: begun.elapsed(),
            warm: false,
            trouble: None,
        };
        let result = self.run.finish(result, self.files)?;
        self.view.progress.finish(&result);
        self.done.push(result);
        Ok(())
    }

    /// Nothing more is told: what becomes of the rest is not known here.
    fn lose_rest(&mut self, failure: &Failure) -> anyhow::Result<()> {
        for host in 0..u32::try_from(self.pending.len())? {
            let outcome = Outcome::Failed {
                kind: FLEET.into(),
                message: failure.message.clone(),
                execution: Execution::MayHaveStarted,
            };
            self.finish_host(host, outcome)?;
        }
        Ok(())
    }
}
