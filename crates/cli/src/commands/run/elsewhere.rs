//! A run whose commands another program executes in the daemon's place: its work, and the report of its results.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use trunkline_control::protocol::{ExitStatus, Failure};
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

/// The commands of a run, and their limits.
#[derive(Debug)]
pub struct Work {
    /// The hosts in order, each with its command line.
    pub hosts: Vec<(Target, Vec<u8>)>,
    /// Hosts that the inventory gives no way to reach.
    pub skipped: Vec<Skipped>,
    /// The beginning of every command's input.
    pub script: Arc<[u8]>,
    /// Hosts to run on at the same time.
    pub at_once: u16,
    /// Hosts in a batch; `None` if there are no batches.
    pub batch: Option<NonZeroUsize>,
    /// The number of failures after which no more hosts are started.
    pub failures: Option<usize>,
    /// The time limit for each host.
    pub limit: Option<Duration>,
    /// The maximum number of retries for a host on which nothing can have run.
    pub retries: u32,
}

impl Args {
    pub fn has_ssh_options(&self) -> bool {
        !self.ssh.to_args().is_empty()
    }

    /// Returns the work for a program that has no password for sudo. Ends the process if there is no command.
    ///
    /// # Errors
    /// Hosts, inventories or scripts are invalid.
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
            failures: self.rolling.failures(all).tolerated_count(),
            limit: self.timeout,
            retries: self.retry,
        })
    }
}

/// The report of a run that another program executes. Hosts are numbered from 0, in order.
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

/// A host that has not ended yet.
#[derive(Debug)]
struct Pending<'a> {
    collected: Collected<'a>,
    started: Option<(SystemTime, Instant)>,
    /// The first bytes of its standard error.
    complaint: Vec<u8>,
}

/// The beginning of sudo's own messages, in every language.
const SUDO: &[u8] = b"sudo: ";

impl<'a> Elsewhere<'a> {
    /// Starts the report. `signal` is one that the user has already sent; `begun` is when the run began.
    ///
    /// # Errors
    /// Files for the output cannot be created.
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

    /// Ends the run because of a signal. Returns true for the first one.
    pub fn interrupt(&mut self, signal: i32) -> bool {
        if self.signal.is_some() {
            self.view.progress.clear();
            return false;
        }
        self.signal = Some(signal);
        self.view.progress.show_interrupt();
        true
    }

    /// Returns true if the user has ended the run.
    pub fn is_interrupted(&self) -> bool {
        self.signal.is_some()
    }

    /// Returns true if the output is no longer read.
    pub fn is_unread(&self) -> bool {
        self.view.is_unread.load(Ordering::Relaxed)
    }

    /// Returns the hosts whose sudo did not run the command.
    pub fn without_password(&self) -> &[String] {
        &self.without_password
    }

    /// Notes that the command has started.
    pub fn start(&mut self, host: u32) {
        if let Some((pending, target)) = self.pending(host)
            && pending.started.is_none()
        {
            pending.started = Some((SystemTime::now(), Instant::now()));
            self.view.progress.start(&target.name);
        }
    }

    /// Handles the command's output.
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

    /// Shows the user a message.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn notice(&self, text: &str) -> std::io::Result<()> {
        let line = format!("trunkline: {}\n", Printable::line(text));
        let progress = &self.view.progress;
        progress.write(&mut std::io::stderr(), line.as_bytes())
    }

    /// Notes that the command has ended.
    ///
    /// # Errors
    /// The result cannot be written.
    pub fn finish(&mut self, host: u32, exit: ExitStatus) -> anyhow::Result<()> {
        self.finish_with(host, outcome_of(exit))
    }

    /// Notes that the command was not started, or that its end is not known.
    ///
    /// # Errors
    /// The result cannot be written.
    pub fn fail(&mut self, host: u32, failure: &Failure) -> anyhow::Result<()> {
        let interrupted = || Stopping::new(INTERRUPTED, "SIGTERM was sent".to_owned(), None);
        let stopping = self.signal.map(|_| interrupted());
        self.finish_with(host, failed_outcome(failure, None, stopping))
    }

    /// Notes that the command will never start. `kind` is the reason if that is neither the user nor other hosts.
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

    /// Notes that the end of the remaining commands will not be known.
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

    /// Prints the end of the run and returns the exit status. `is_over`: all hosts have ended.
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
