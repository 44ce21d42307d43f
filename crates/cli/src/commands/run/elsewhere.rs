//! A run whose commands another program executes in the daemon's place: what is to run, and the report of what that tells.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use trunkline_control::protocol::{Exit, Failure};
use trunkline_request::World;
use trunkline_request::hosts::{Skipped, Target};
use trunkline_text::Printable;

use super::job::{Collected, Stopping, View, failed_outcome, outcome_of};
use super::rolling::Failures;
use super::sudo::without_password;
use super::{Args, Done, Run, host_of};
use crate::backend::Backend;
use crate::report::files::OutputFiles;
use crate::report::lines::Stream;
use crate::report::{Execution, HostResult, INTERRUPTED, Outcome, SKIPPED};
use crate::terminal::interrupts::status_of;

/// The commands of a run, and the limits for all of them.
#[derive(Debug)]
pub struct Work {
    /// The hosts in their order, each with its command line.
    pub hosts: Vec<(Target, Vec<u8>)>,
    /// Hosts that cannot be reached by what their inventory says.
    pub skipped: Vec<Skipped>,
    /// The beginning of every command's input.
    pub script: Arc<[u8]>,
    /// Hosts to run on at the same time.
    pub at_once: u16,
    /// Hosts in a batch, if not all of them are one.
    pub batch: Option<NonZeroUsize>,
    /// The number of failures after which no more hosts are started, if there is one.
    pub failures: Option<usize>,
    /// The time limit for each host.
    pub limit: Option<Duration>,
    /// The number of times that a host on which nothing may have run is tried again.
    pub retries: u32,
}

impl Args {
    /// Returns whether there are options for ssh.
    pub fn has_ssh_options(&self) -> bool {
        !self.ssh.to_args().is_empty()
    }

    /// The work, for a program that has no password for sudo. Ends the process if there is no command.
    ///
    /// # Errors
    /// What is wrong with hosts, inventories and scripts.
    pub async fn take_work(&mut self, world: &World, backend: &Backend) -> anyhow::Result<Work> {
        if self.command.is_empty() && self.script.is_none() {
            super::refuse_without_command();
        }
        let (targets, skipped) = self.targets(world, backend).await?;
        let command = self.take_command()?;
        let all = targets.len();
        let hosts = (1..).zip(targets).map(|(number, target)| {
            let line = command.for_host(host_of(&target, number), None)?;
            let line = match &self.r#become {
                Some(user) => without_password(user, &line),
                None => line,
            };
            Ok((target, line))
        });
        Ok(Work {
            hosts: hosts.collect::<anyhow::Result<_>>()?,
            skipped,
            script: command.script(),
            at_once: self.jobs,
            batch: self.rolling.batch(all),
            failures: self.rolling.failures(all).tolerated(),
            limit: self.timeout,
            retries: self.retry,
        })
    }
}

/// The report of a run that another program executes. Hosts are numbered from 0, in their order.
#[derive(Debug)]
pub struct Elsewhere<'a> {
    run: &'a Run<'a>,
    view: &'a View,
    targets: &'a [Target],
    files: Option<OutputFiles>,
    failures: Failures,
    pending: Vec<Option<Pending<'a>>>,
    done: Vec<HostResult>,
    signal: Option<i32>,
    begun: (SystemTime, Instant),
    without_password: Vec<String>,
}

/// A host of which the end is not known yet.
#[derive(Debug)]
struct Pending<'a> {
    collected: Collected<'a>,
    started: Option<(SystemTime, Instant)>,
    /// The first that it wrote to standard error.
    complaint: Vec<u8>,
}

/// The beginning of sudo's own messages, in every language.
const SUDO: &[u8] = b"sudo: ";

impl<'a> Elsewhere<'a> {
    /// Of hosts of which nothing is told yet. `signal` is the user's, if there was one already; `begun` is when the run began.
    ///
    /// # Errors
    /// Files for the output cannot be made.
    pub fn begin(
        run: &'a Run<'a>,
        view: &'a View,
        targets: &'a [Target],
        signal: Option<i32>,
        begun: (SystemTime, Instant),
    ) -> anyhow::Result<Self> {
        let numbered = || (1..).zip(targets);
        let names = numbered().map(|(number, target)| (host_of(target, number).name, number));
        let files = run.args.output.as_deref();
        let files = files.map(|path| OutputFiles::plan(path, names)).transpose()?;
        let done = run.unreachable(targets.len(), view, files.as_ref())?;
        let pending = numbered().map(|(number, target)| {
            Some(Pending {
                collected: Collected::new(view, &target.name, number),
                started: None,
                complaint: Vec::new(),
            })
        });
        Ok(Self {
            pending: pending.collect(),
            run,
            view,
            targets,
            files,
            failures: run.args.rolling.failures(targets.len()),
            done,
            signal,
            begun,
            without_password: Vec::new(),
        })
    }

    /// A signal of the user's ends the run; returns whether it is the first.
    pub fn interrupt(&mut self, signal: i32) -> bool {
        if self.signal.is_some() {
            self.view.progress.clear();
            return false;
        }
        self.signal = Some(signal);
        self.view.progress.show_interrupt();
        true
    }

    /// Returns whether the user has ended the run.
    pub fn is_interrupted(&self) -> bool {
        self.signal.is_some()
    }

    /// Returns whether nobody reads the output any more.
    pub fn is_unread(&self) -> bool {
        self.view.is_unread.load(Ordering::Relaxed)
    }

    /// Returns the hosts whose sudo did not run the command.
    pub fn without_password(&self) -> &[String] {
        &self.without_password
    }

    /// The command has begun.
    pub fn start(&mut self, host: u32) {
        if let Some((pending, target)) = self.pending(host)
            && pending.started.is_none()
        {
            pending.started = Some((SystemTime::now(), Instant::now()));
            self.view.progress.start(&target.name);
        }
    }

    /// The command has printed this.
    ///
    /// # Errors
    /// It cannot be written or kept.
    pub fn output(&mut self, host: u32, stream: Stream, data: &[u8]) -> std::io::Result<()> {
        let Some((pending, _)) = self.pending(host) else {
            return Ok(());
        };
        if stream == Stream::Stderr {
            let missing = SUDO.len().saturating_sub(pending.complaint.len());
            pending.complaint.extend(data.iter().take(missing));
        }
        pending.collected.add(stream, data)
    }

    /// Something for the user.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn notice(&self, text: &str) -> std::io::Result<()> {
        let line = format!("trunkline: {}\n", Printable::line(text));
        let progress = &self.view.progress;
        progress.write(&mut std::io::stderr(), line.as_bytes())
    }

    /// The command has ended.
    ///
    /// # Errors
    /// The result cannot be written.
    pub fn finish(&mut self, host: u32, exit: Exit) -> anyhow::Result<()> {
        self.finish_with(host, outcome_of(exit))
    }

    /// The command was not started, or its end is not known.
    ///
    /// # Errors
    /// The result cannot be written.
    pub fn fail(&mut self, host: u32, failure: &Failure) -> anyhow::Result<()> {
        let interrupted = || Stopping::new(INTERRUPTED, "SIGTERM was sent".to_owned(), None);
        let stopping = self.signal.map(|_| interrupted());
        self.finish_with(host, failed_outcome(failure, None, stopping))
    }

    /// Nobody started the command, and nobody will. `kind` is for a reason that is neither the user nor other hosts.
    ///
    /// # Errors
    /// The result cannot be written.
    pub fn skip(&mut self, host: u32, kind: &str, message: String) -> anyhow::Result<()> {
        let kind = match () {
            () if self.signal.is_some() => INTERRUPTED,
            () if self.failures.too_many().is_some() => SKIPPED,
            () => kind,
        };
        let outcome = Outcome::Failed {
            kind: kind.into(),
            message,
            execution: Execution::DidNotStart,
        };
        self.finish_with(host, outcome)
    }

    /// Nothing more is told: what becomes of the rest is not known here.
    ///
    /// # Errors
    /// A result cannot be written.
    pub fn lose_rest(&mut self, kind: &str, message: &str) -> anyhow::Result<()> {
        for host in 0..u32::try_from(self.pending.len())? {
            let outcome = Outcome::Failed {
                kind: kind.into(),
                message: message.to_owned(),
                execution: Execution::MayHaveStarted,
            };
            self.finish_with(host, outcome)?;
        }
        Ok(())
    }

    /// Prints the end of the run; the exit status. `is_over`: all has been told.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn end(&self, is_over: bool) -> anyhow::Result<ExitCode> {
        self.view.progress.clear();
        let code = match is_over {
            true => {
                let elapsed = self.begun.1.elapsed();
                self.run
                    .report(&self.done, elapsed, self.signal, self.view)
                    .await?
            }
            false => ExitCode::from(self.signal.map_or(crate::OWN_ERROR, status_of)),
        };
        Ok(self.run.end(Done::new(&self.done, code), self.targets)?.code)
    }

    fn pending(&mut self, host: u32) -> Option<(&mut Pending<'a>, &'a Target)> {
        let host = usize::try_from(host).ok()?;
        Some((self.pending.get_mut(host)?.as_mut()?, self.targets.get(host)?))
    }

    fn finish_with(&mut self, host: u32, outcome: Outcome) -> anyhow::Result<()> {
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
        let result = self.run.finish(result, self.files.as_ref())?;
        self.view.progress.finish(&result);
        self.done.push(result);
        Ok(())
    }
}
