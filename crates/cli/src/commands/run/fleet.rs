//! `trunkline run --fleet`: the nodes of a fleet run the command, and what they tell is reported as that of a run.

use std::time::{Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use trunkline_control::fleet::{Fleet, FleetHost, FleetLimits, FleetReply, FleetRequest, HOSTS_IN_A_FRAME};
use trunkline_control::protocol::Failure;
use trunkline_request::destination::Destination;
use trunkline_request::hosts::Target;
use trunkline_text::Printable;

use super::command::Command;
use super::job::{Collected, Stopping, View, ended, failed};
use super::rolling::Failures;
use super::{Args, Done, Run, host_of};
use crate::report::files::OutputFiles;
use crate::report::lines::Stream;
use crate::report::{Execution, HostResult, INTERRUPTED, Outcome, SKIPPED};
use crate::spool::Stdin;
use crate::terminal::interrupts::{Interrupts, status_of};

/// The kind of failure of a host that no node started, or of which no node tells any more.
const FLEET: &str = "fleet";

/// What is asked of the fleet.
pub(super) enum Asked {
    /// A new job.
    Job(Vec<FleetHost>, FleetLimits),
    /// To tell of this one.
    Attach(String),
    /// To run this one again where it may have started.
    RetryUnknown(String),
}

impl Args {
    /// What is asked of the fleet, other than a new job.
    pub(super) fn asked_of_fleet(&self) -> Option<Asked> {
        let attach = self.attach.clone().map(Asked::Attach);
        attach.or_else(|| self.retry_unknown.clone().map(Asked::RetryUnknown))
    }

    /// A new job for the fleet.
    pub(super) fn job_for_fleet(&self, targets: &[Target], command: &Command) -> anyhow::Result<Asked> {
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
        let has_input = !self.no_input && !matches!(Stdin::find()?, Stdin::Nothing);
        ensure!(
            !has_input,
            "--fleet gives commands no input: add -n, or redirect standard input from /dev/null"
        );
        let hosts = (1..).zip(targets).map(|(number, target)| {
            Ok(FleetHost {
                name: target.name.clone(),
                destination: target.destination.clone(),
                command: command.for_host(host_of(target, number), None)?,
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
            failures: self.rolling.failures(all).borne().map(number),
            limit: self.timeout,
        };
        Ok(Asked::Job(hosts.collect::<anyhow::Result<_>>()?, limits))
    }
}

/// A host of the job, of which the end is not known yet.
struct Pending<'a> {
    collected: Collected<'a>,
    started: Option<(SystemTime, Instant)>,
}

impl Run<'_> {
    /// Has the fleet do it, and reports.
    pub(super) async fn on_fleet(&self, asked: Asked, interrupts: &mut Interrupts) -> anyhow::Result<Done> {
        let begun = (SystemTime::now(), Instant::now());
        let mut fleet = Fleet::start()?;
        ask(&fleet, asked).await?;
        let Ok(told) = interrupts.or(told_of(&mut fleet)).await else {
            bail!(
                "interrupted while the job was handed over: it may have started; `trunkline fleet status` lists it"
            );
        };
        let (job, targets) = told?;
        if !self.args.quiet {
            let job = Printable::line(&job);
            let hosts = match targets.len() {
                1 => "1 host".to_owned(),
                all => format!("{all} hosts"),
            };
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
        let mut following = Following {
            run: self,
            view: &view,
            targets: &targets,
            files: files.as_ref(),
            failures: self.args.rolling.failures(targets.len()),
            pending: Vec::new(),
            done: Vec::with_capacity(targets.len()),
            signal: None,
            begun,
        };
        for (number, target) in (1..).zip(&targets) {
            let collected = Collected::new(&view, &target.name, number);
            following.pending.push(Some(Pending {
                collected,
                started: None,
            }));
        }
        let is_over = following.follow(&mut fleet, interrupts).await?;
        let Following { done, signal, .. } = following;
        view.progress.clear();
        if !is_over {
            let code = std::process::ExitCode::from(signal.map_or(crate::OWN_ERROR, status_of));
            return self.end(Done::new(&done, code), &targets);
        }
        let code = self.report(&done, begun.1.elapsed(), signal, &view).await?;
        self.end(Done::new(&done, code), &targets)
    }
}

async fn ask(fleet: &Fleet, asked: Asked) -> anyhow::Result<()> {
    match asked {
        Asked::Job(hosts, limits) => {
            for part in hosts.chunks(HOSTS_IN_A_FRAME) {
                fleet.send(&FleetRequest::Hosts(part.to_vec())).await?;
            }
            fleet.send(&FleetRequest::Submit(limits)).await?;
        }
        Asked::Attach(job) => fleet.send(&FleetRequest::Attach(job)).await?,
        Asked::RetryUnknown(job) => fleet.send(&FleetRequest::RetryUnknown(job)).await?,
    }
    Ok(())
}

/// The job's name, and its hosts.
async fn told_of(fleet: &mut Fleet) -> anyhow::Result<(String, Vec<Target>)> {
    let mut told: Option<(String, usize)> = None;
    let mut targets: Vec<Target> = Vec::new();
    loop {
        match fleet
            .next()
            .await?
            .context("trunkline-fleet ended before it had said anything")?
        {
            FleetReply::Job { job, hosts } => told = Some((job, usize::try_from(hosts)?)),
            FleetReply::Hosts(part) => targets.extend(part.into_iter().map(target)),
            FleetReply::Failed(failure) => bail!(failure.message),
            _ => {}
        }
        if let Some((_, hosts)) = &told
            && targets.len() >= *hosts
        {
            let (job, _) = told.unwrap_or_default();
            return Ok((job, targets));
        }
    }
}

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
}

impl<'a> Following<'a> {
    /// Until all is told, or somebody has interrupted it twice; which of the two.
    async fn follow(&mut self, fleet: &mut Fleet, interrupts: &mut Interrupts) -> anyhow::Result<bool> {
        let mut is_cancelled = false;
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
                    self.view.progress.interrupted();
                    is_cancelled = true;
                    fleet.send(&FleetRequest::Cancel).await?;
                    continue;
                }
            };
            match reply {
                Some(FleetReply::Done) => break,
                Some(FleetReply::Failed(failure)) => self.lost(&failure)?,
                None => self.lost(&Failure::new(
                    trunkline_request::failure::ErrorKind::Local,
                    "trunkline-fleet has ended; the job goes on",
                ))?,
                Some(reply) => {
                    self.told(reply)?;
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

    fn told(&mut self, reply: FleetReply) -> anyhow::Result<()> {
        match reply {
            FleetReply::Started(host) => {
                if let Some((pending, target)) = self.pending(host)
                    && pending.started.is_none()
                {
                    pending.started = Some((SystemTime::now(), Instant::now()));
                    self.view.progress.started(&target.name);
                }
            }
            FleetReply::Output(host, data) => self.output(host, Stream::Stdout, &data)?,
            FleetReply::ErrorOutput(host, data) => self.output(host, Stream::Stderr, &data)?,
            FleetReply::Incomplete(host, messages) => {
                let text = format!("trunkline: {messages} parts of this host's output are lost\n");
                self.output(host, Stream::Stderr, text.as_bytes())?;
            }
            FleetReply::Ended(host, exit) => self.finished(host, ended(exit))?,
            FleetReply::HostFailed(host, failure) => {
                let interrupted = || Stopping::new(INTERRUPTED, "SIGTERM was sent".to_owned(), None);
                let stopping = self.signal.map(|_| interrupted());
                self.finished(host, failed(failure, None, stopping))?;
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
                self.finished(host, outcome)?;
            }
            FleetReply::Notice(text) => {
                let line = format!("trunkline: {}\n", Printable::line(text));
                self.view
                    .progress
                    .write(&mut std::io::stderr(), line.as_bytes())?;
            }
            FleetReply::Job { .. } | FleetReply::Hosts(_) | FleetReply::Done | FleetReply::Failed(_) => {}
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
            Some(Some(pending)) => pending.collected.add(stream, data),
            _ => Ok(()),
        }
    }

    fn finished(&mut self, host: u32, outcome: Outcome) -> anyhow::Result<()> {
        let place = usize::try_from(host)?;
        let Some(pending) = self.pending.get_mut(place).and_then(Option::take) else {
            return Ok(());
        };
        let target = &self.targets[place];
        let (started, begun) = pending.started.unwrap_or(self.begun);
        let (stdout, stderr) = pending.collected.end();
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
        self.view.progress.finished(&result);
        let result = self.run.finished(result, self.files)?;
        self.done.push(result);
        Ok(())
    }

    /// Nothing more is told: what becomes of the rest is not known here.
    fn lost(&mut self, failure: &Failure) -> anyhow::Result<()> {
        for host in 0..u32::try_from(self.pending.len())? {
            let outcome = Outcome::Failed {
                kind: FLEET.into(),
                message: failure.message.clone(),
                execution: Execution::MayHaveStarted,
            };
            self.finished(host, outcome)?;
        }
        Ok(())
    }
}
