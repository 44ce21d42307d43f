//! Commands that act on each of many hosts, named as for `run`: with results as they arrive and a summary at the end.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use futures_util::{StreamExt as _, TryStreamExt as _};
use trunkline_control::protocol::{Failure, HostRequest, Reply, Request};
use trunkline_request::World;
use trunkline_request::destination::Destination;
use trunkline_request::failure::ErrorKind;
use trunkline_request::hosts::{Skipped, Target};
use trunkline_text::Printable;

use crate::OWN_ERROR;
use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Running};
use crate::commands::run::{ManyHosts, colours, misspelt, trouble};
use crate::hints::Refused;
use crate::report::output::Output;
use crate::report::progress::Progress;
use crate::report::{Execution, HostResult, Outcome, Trouble, summary, tell};
use crate::ssh_options::SshOptions;
use crate::terminal;

/// Hosts that are worked on at the same time, as for `run`.
const AT_ONCE: usize = 100;

/// Arguments of commands on one or more hosts.
#[derive(Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Hosts, written as for -H.
    #[arg(value_name = "HOST")]
    destinations: Vec<String>,
    #[command(flatten)]
    many: ManyHosts,
    #[command(flatten)]
    pub(crate) ssh: SshOptions,
}

/// The hosts of a command.
pub(crate) struct Hosts {
    pub(crate) targets: Vec<Target>,
    /// Hosts that the inventory gives no way to reach.
    skipped: Vec<Skipped>,
    ssh: SshOptions,
    world: World,
}

impl HostArgs {
    /// Returns every named host once. With `open`, patterns match hosts with connections; if none does, they match
    /// aliases of ssh_config.
    pub(crate) async fn find(mut self, open: bool, backend: &Backend) -> anyhow::Result<Hosts> {
        self.many.add(self.destinations);
        let open = match open && self.many.has_patterns() {
            true => open_names(backend).await?,
            false => Vec::new(),
        };
        let world = World::current()?;
        let selection = self
            .many
            .selection_among(&open, self.ssh.config_file(), &world, backend)
            .await?;
        let (targets, skipped) = (selection.targets, selection.skipped);
        ensure!(!(targets.is_empty() && skipped.is_empty()), "no hosts match");
        Ok(Hosts {
            targets,
            skipped,
            ssh: self.ssh,
            world,
        })
    }
}

/// Returns the names of the hosts with connections.
async fn open_names(backend: &Backend) -> anyhow::Result<Vec<String>> {
    let Some(mut client) = backend.find(Running::Anywhere).await? else {
        return Ok(Vec::new());
    };
    match ask(&mut client, Request::List, backend).await? {
        Reply::Hosts(hosts) => Ok(hosts.into_iter().map(|host| host.name).collect()),
        other => Err(unexpected_reply(&other)),
    }
}

impl Hosts {
    /// Returns true if there is only one host, and thus no summary.
    pub(crate) fn is_one(&self) -> bool {
        self.targets.len() + self.skipped.len() == 1
    }

    /// Returns the request to the daemon about one host.
    pub(crate) fn request(&self, target: &Target) -> HostRequest {
        let mut ssh_args = self.ssh.to_args();
        ssh_args.extend_from_slice(&target.ssh_args);
        HostRequest::new(target.destination.clone(), ssh_args, self.world.clone())
    }

    /// Runs `work` for each host, `at_once` at the same time, and prints each result as it arrives. Errors are printed
    /// with the host's name, and again in a final table in which equal failures share a row.
    pub(crate) async fn each(
        &self,
        backend: &Backend,
        at_once: usize,
        work: impl AsyncFn(usize, &Target) -> anyhow::Result<String>,
    ) -> anyhow::Result<ExitCode> {
        let begun = Instant::now();
        let all = self.targets.len() + self.skipped.len();
        let progress = Progress::new(all, all > 1 && at_once > 1 && std::io::stderr().is_terminal());
        let questions = backend.questions();
        questions.hide_while_asking(progress.bar()).await;
        let named = self
            .targets
            .iter()
            .map(|target| (target.name.clone(), target.destination.host.clone()));
        questions.name_hosts(named.collect()).await;
        let mut results: Vec<HostResult> = Vec::with_capacity(all);
        for (number, host) in (self.targets.len() + 1..).zip(&self.skipped) {
            let target = Target {
                name: host.name.clone(),
                destination: Destination {
                    user: None,
                    host: host.name.clone(),
                    port: None,
                },
                ssh_args: Vec::new(),
            };
            let failure = Failure::new(ErrorKind::Configuration, &host.why);
            let result = result(&target, number, Some(&Refused(failure).into()));
            self.tell(&result, &progress, backend).await;
            results.push(result);
        }
        let (work, progress) = (&work, &progress);
        // Each host reports its own end, while another may have a question on the screen.
        let mut answers = futures_util::stream::iter(self.targets.iter().enumerate())
            .map(async |(place, target)| {
                progress.start(&target.name);
                let (asked, started) = (Instant::now(), SystemTime::now());
                let answer = work(place, target).await;
                let mut result = result(target, place + 1, answer.as_ref().err());
                (result.elapsed, result.started) = (asked.elapsed(), started);
                if let Ok(text) = answer {
                    let _quiet = questions.quiet().await;
                    progress.write(&mut std::io::stdout(), text.as_bytes())?;
                }
                self.tell(&result, progress, backend).await;
                anyhow::Ok(result)
            })
            .buffer_unordered(at_once.min(AT_ONCE));
        while let Some(result) = answers.try_next().await? {
            results.push(result);
        }
        progress.clear();
        self.sum_up(&results, begun, backend).await
    }

    /// Counts a host, and prints its error.
    async fn tell(&self, result: &HostResult, progress: &Progress, backend: &Backend) {
        if let Outcome::Failed { message, .. } = &result.outcome {
            let _quiet = backend.questions().quiet().await;
            let told = Printable::text(format!("{}: {message}", result.host));
            progress.bar().suspend(|| tell(told));
        }
        progress.finish(result);
    }

    async fn sum_up(
        &self,
        results: &[HostResult],
        begun: Instant,
        backend: &Backend,
    ) -> anyhow::Result<ExitCode> {
        if !self.is_one() {
            let stderr = std::io::stderr();
            let colours = colours(stderr.is_terminal());
            eprint!("{}", summary::counts(results, begun.elapsed(), colours));
            eprint!(
                "{}",
                summary::failures_without_commands(results, terminal::width(stderr))
            );
        }
        let unknown = results
            .iter()
            .filter(|result| result.trouble == Some(Trouble::UnknownName));
        let unknown: Vec<&str> = unknown.map(|result| result.address.host.as_str()).collect();
        if let Some(sentence) = misspelt(&unknown, self.ssh.config_file(), &self.world, backend).await? {
            tell(Printable::line(sentence));
        }
        Ok(match results.iter().all(|result| result.outcome.is_success()) {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(OWN_ERROR),
        })
    }
}

/// Removes the host's name from the start of a message.
fn without_name<'a>(target: &Target, message: &'a str) -> &'a str {
    let names = [&target.name, &target.destination.host];
    let mut rests = names
        .iter()
        .filter_map(|name| message.strip_prefix(name.as_str())?.strip_prefix(": "));
    rests.next().unwrap_or(message)
}

fn result(target: &Target, number: usize, error: Option<&anyhow::Error>) -> HostResult {
    let failure = error.and_then(|error| error.downcast_ref::<Refused>());
    let failure = failure.map(|Refused(failure)| failure);
    let outcome = match error {
        None => Outcome::Exited(0),
        Some(error) => Outcome::Failed {
            kind: failure
                .map_or("failed", |failure| failure.kind.as_str())
                .to_owned(),
            message: without_name(target, &format!("{error:#}")).to_owned(),
            execution: Execution::DidNotStart,
        },
    };
    HostResult {
        host: target.name.clone(),
        number,
        address: target.destination.clone(),
        outcome,
        stdout: Output::default(),
        stderr: Output::default(),
        started: SystemTime::now(),
        elapsed: Duration::ZERO,
        warm: false,
        trouble: failure.and_then(trouble),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_loses_its_own_hosts_name_alone() {
        let target = Target::parse("jo@web1").unwrap();
        for (message, rest) in [
            ("web1: no connection", "no connection"),
            ("jo@web1: no connection", "no connection"),
            ("web10: refused", "web10: refused"),
            (
                "connecting to 10.0.0.1 port 22: refused",
                "connecting to 10.0.0.1 port 22: refused",
            ),
        ] {
            assert_eq!(without_name(&target, message), rest);
        }
    }
}
