//! `trunkline stream`: writes the output of commands on many hosts to FIFOs, sockets and files while they run.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::error::ErrorKind;
use serde::Serialize;
use trunkline_control::client::ClientError;
use trunkline_control::descriptors::raise_limit;
use trunkline_control::protocol::{ExitStatus, HostRequest, Program, Reply, SessionRequest, Stdio};
use trunkline_control::sink::{Sink, Target};
use trunkline_request::failure::{self, Execution};
use trunkline_request::hosts::{Skipped, Target as Host};
use trunkline_request::{Backoff, World, words_of};

use crate::OWN_ERROR;
use crate::backend::{Backend, runtime};
use crate::commands::run::{ManyHosts, colours, warn_of};
use crate::duration;
use crate::hints::Refused;
use crate::questions::Conversation;
use crate::report::colours::Colours;
use crate::report::lines::{LinePrefixer, Names, Stream};
use crate::ssh_options::SshOptions;
use crate::terminal::interrupts::{Interrupts, status_of};

/// Arguments of `trunkline stream`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "trunkline stream [OPTIONS] <DEST>... -- <COMMAND>...\n       \
                      trunkline stream [OPTIONS] -H <HOSTS> -- <COMMAND>...\n       \
                      trunkline stream [OPTIONS] -i <FILE> -- <COMMAND>...",
    group(clap::ArgGroup::new("where").required(true).multiple(true).args(["destinations", "hosts", "inventory"]))
)]
pub struct Args {
    #[command(flatten)]
    ssh: SshOptions,
    #[command(flatten)]
    many: ManyHosts,
    /// Have the nodes of a fleet run the command, until it is cancelled: see trunkline fleet.
    #[arg(help_heading = "Running", long)]
    pub(crate) fleet: bool,
    /// With --fleet: leave when the stream is handed over. `trunkline fleet attach STREAM --to TARGET` follows it.
    #[arg(help_heading = "Running", long, requires = "fleet")]
    pub detach: bool,
    /// Where the output goes: fifo:PATH, unix:PATH, file:PATH, or - for standard output. {host} in a path is the host's
    /// name. With --fleet also nats:SUBJECT, a subject of JetStream.
    ///
    /// Missing FIFOs and files are created with mode 0600. On a Unix socket trunkline listens, and serves one reader at
    /// a time. This option may also come at the very end, after the command.
    #[arg(help_heading = "Output", long, value_name = "TARGET")]
    to: Option<To>,
    /// When a command is started again.
    #[arg(help_heading = "Running", long, value_enum, default_value_t = Restart::Lost)]
    pub restart: Restart,
    /// How long to wait before the first new attempt. Each further one waits twice as long, less a random part of up to
    /// half.
    #[arg(help_heading = "Running", long, value_name = "TIME", default_value = "1", value_parser = duration::parse)]
    pub retry_min: Duration,
    /// The longest wait between attempts.
    #[arg(help_heading = "Running", long, value_name = "TIME", default_value = "1m", value_parser = duration::parse)]
    pub retry_max: Duration,
    /// Write a line to the stream where output may be missing. {host}, {time} and {reason} in it are replaced.
    #[arg(help_heading = "Output", long, value_name = "TEXT", num_args = 0..=1, require_equals = true, default_missing_value = MARK)]
    pub mark_gaps: Option<String>,
    /// Report events on standard error as JSON, one object a line.
    #[arg(help_heading = "Output", long)]
    pub json: bool,
    /// Hosts, as for ssh(1).
    #[arg(value_name = "DEST")]
    destinations: Vec<String>,
    /// The command; its words are joined with spaces, as ssh does.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The default line of `--mark-gaps`.
const MARK: &str = "trunkline: {host}: {time}: output may be missing here: {reason}";

/// When a command is started again. Trunkline never does so unasked; this command is the asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Restart {
    /// When the connection was lost, or cannot be made for a reason that may pass.
    Lost,
    /// Also when the command has ended.
    Always,
    /// Never.
    Never,
}

/// A target for the output of every host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// Standard output.
    Stdout,
    /// A FIFO, a socket or a file. Its path may contain `{host}`.
    Template(String),
    /// A subject of JetStream.
    Subject(String),
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-" {
            return Ok(Self::Stdout);
        }
        if let Some(subject) = text.strip_prefix("nats:").filter(|subject| !subject.is_empty()) {
            return Ok(Self::Subject(subject.to_owned()));
        }
        Target::from_str(text).map_err(|error| format!("{error}, or - for standard output"))?;
        Ok(Self::Template(text.to_owned()))
    }
}

impl To {
    /// Refuses a target that this many hosts would share.
    ///
    /// # Errors
    /// Several hosts would share the target.
    pub fn can_take(&self, hosts: usize) -> anyhow::Result<()> {
        if let Self::Template(template) = self
            && hosts > 1
            && !template.contains("{host}")
        {
            bail!("{hosts} hosts would share {template}: put {{host}} into its path");
        }
        Ok(())
    }

    /// Returns the host's own target; `None` for standard output. Slashes in the host's name are replaced.
    fn of_host(&self, name: &str, world: &World) -> Option<Target> {
        let Self::Template(template) = self else {
            return None;
        };
        let text = template.replace("{host}", &name.replace('/', "_"));
        Some(text.parse::<Target>().ok()?.seen_from(&world.cwd))
    }
}

impl Args {
    /// Takes the target, which may also be at the end of the command.
    pub fn take_target(&mut self) -> Option<To> {
        self.to.take().or_else(|| split_target(&mut self.command))
    }

    pub fn has_ssh_options(&self) -> bool {
        !self.ssh.to_args().is_empty()
    }

    /// Checks the pauses' limits.
    ///
    /// # Errors
    /// The shortest is longer than the longest.
    pub fn check_pauses(&self) -> anyhow::Result<()> {
        ensure!(
            self.retry_min <= self.retry_max,
            "--retry-min must not be more than --retry-max"
        );
        Ok(())
    }

    /// Returns the hosts and the command, for another program that runs it.
    ///
    /// # Errors
    /// The inventory gives no way to reach a host.
    pub async fn work(&self, world: &World, backend: &Backend) -> anyhow::Result<(Vec<Host>, Vec<u8>)> {
        let (hosts, skipped) = self.hosts(world, backend).await?;
        if let Some(host) = skipped.first() {
            bail!("{} cannot be reached: {}", host.name, host.why);
        }
        Ok((hosts, self.command_line()))
    }

    fn command_line(&self) -> Vec<u8> {
        self.command.join(" ".as_ref()).into_encoded_bytes()
    }

    /// Returns all named hosts, and those of the inventory that cannot be reached.
    async fn hosts(&self, world: &World, backend: &Backend) -> anyhow::Result<(Vec<Host>, Vec<Skipped>)> {
        let selection = self
            .many
            .selection(self.ssh.config_file(), world, backend)
            .await?;
        let (mut hosts, skipped) = (selection.targets, selection.skipped);
        for name in &self.destinations {
            hosts.push(Host::parse(name).with_context(|| format!("{name:?} is not a valid destination"))?);
        }
        if hosts.is_empty() {
            warn_of(&skipped);
            bail!("no hosts match");
        }
        Ok((hosts, skipped))
    }
}

pub(crate) fn main(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    raise_limit();
    runtime()?.block_on(stream(args, backend))
}

/// Takes `--to TARGET` from the end of a command.
fn split_target(command: &mut Vec<OsString>) -> Option<To> {
    let [_, .., option, target] = &**command else {
        return None;
    };
    let to = target.to_str()?.parse().ok().filter(|_| option == "--to")?;
    command.truncate(command.len() - 2);
    Some(to)
}

async fn stream(mut args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let Some(to) = args.take_target() else {
        let missing = "where the output goes has to be said: --to fifo:PATH, unix:PATH, file:PATH or -\n";
        clap::Error::raw(ErrorKind::MissingRequiredArgument, missing).exit();
    };
    args.check_pauses()?;
    ensure!(
        !matches!(to, To::Subject(_)),
        "nats:SUBJECT is written to by the nodes of a fleet: add --fleet"
    );
    let world = World::current().context("reading the environment")?;
    let (hosts, skipped) = args.hosts(&world, backend).await?;
    let named = hosts
        .iter()
        .map(|host| (host.name.clone(), host.destination.host.clone()));
    backend.questions().name_hosts(named.collect()).await;
    to.can_take(hosts.len())?;
    let view = View::new(&args, hosts.len());
    for host in &skipped {
        view.tell(&host.name, Event::Failed { reason: &host.why });
    }
    let any_begun = Cell::new(false);
    let followed = hosts.into_iter().enumerate().map(|(place, host)| {
        let follower = Follower {
            args: &args,
            to: &to,
            backend,
            world: &world,
            view: &view,
            place,
            host,
            any_begun: &any_begun,
        };
        follower.follow()
    });
    // An interrupt ends everything at once: files keep what was written, and the daemon notices that the commands'
    // output is no longer read.
    let mut interrupts = Interrupts::watch()?;
    let ended = match interrupts.or(futures_util::future::join_all(followed)).await {
        Ok(ended) => ended,
        Err(signal) => return Ok(ExitCode::from(status_of(signal))),
    };
    let is_well = skipped.is_empty() && ended.into_iter().all(|success| success);
    Ok(match any_begun.get() {
        _ if is_well => ExitCode::SUCCESS,
        true => ExitCode::FAILURE,
        false => ExitCode::from(OWN_ERROR),
    })
}

/// The display's settings.
#[derive(Debug)]
struct View {
    /// Lines on standard output begin with the host's name.
    prefixed: bool,
    colours: Colours,
    error_colours: Colours,
    json: bool,
}

/// An event in a host's stream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// The command has started.
    Begun {
        /// The gap in the output, in seconds.
        gap: Option<f64>,
    },
    /// The connection was lost or could not be made.
    Lost {
        reason: &'a str,
        /// The seconds until the next attempt.
        retry: f64,
    },
    /// The command has ended.
    Ended {
        /// Its exit status.
        status: Option<u32>,
        /// The signal that ended it.
        signal: Option<&'a str>,
    },
    /// There will be no other attempt.
    Failed {
        /// The reason.
        reason: &'a str,
    },
    /// A message from the host.
    Notice {
        /// The message's text.
        text: &'a str,
    },
}

impl<'a> From<&'a ExitStatus> for Event<'a> {
    fn from(exit: &'a ExitStatus) -> Self {
        let (status, signal) = match exit {
            ExitStatus::Exited(status) => (Some(*status), None),
            ExitStatus::Signaled { signal, .. } => (None, Some(signal.as_str())),
            ExitStatus::Unknown => (None, None),
        };
        Self::Ended { status, signal }
    }
}

impl View {
    fn new(args: &Args, hosts: usize) -> Self {
        Self {
            prefixed: hosts > 1,
            colours: colours(std::io::stdout().is_terminal()),
            error_colours: colours(std::io::stderr().is_terminal()),
            json: args.json,
        }
    }

    /// Reports an event. Failure to print it does not stop the stream.
    fn tell(&self, host: &str, event: Event<'_>) {
        let mut out = std::io::stderr().lock();
        if self.json {
            #[derive(Serialize)]
            struct Line<'a> {
                time: f64,
                host: &'a str,
                #[serde(flatten)]
                event: Event<'a>,
            }
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let time = since.unwrap_or_default().as_secs_f64();
            if let Ok(line) = serde_json::to_string(&Line { time, host, event }) {
                let _ = writeln!(out, "{line}");
            }
            return;
        }
        let text = match event {
            Event::Begun { gap: None } => return,
            Event::Begun { gap: Some(gap) } => format!("resumed after {gap:.1} s"),
            Event::Lost { reason, retry } => format!("{reason}; next attempt in {retry:.1} s"),
            Event::Ended { status: Some(0), .. } => return,
            Event::Ended {
                status: Some(status), ..
            } => format!("the command ended with status {status}"),
            Event::Ended {
                signal: Some(signal), ..
            } => format!("the command was ended by SIG{signal}"),
            Event::Ended { .. } => "the server did not report how the command ended".to_owned(),
            Event::Failed { reason } => reason.to_owned(),
            Event::Notice { text } => text.trim_end().to_owned(),
        };
        let _ = writeln!(out, "trunkline: {host}: {text}");
    }

    /// Shows a host's output on one of our own streams.
    fn show(&self, stream: Stream, prefixer: &mut LinePrefixer, data: &[u8]) -> std::io::Result<()> {
        let mut lines = Vec::new();
        if self.prefixed || stream == Stream::Stderr {
            prefixer.feed(data, &mut lines);
        } else {
            lines.extend_from_slice(data);
        }
        write_out(stream, &lines)
    }
}

fn write_out(stream: Stream, bytes: &[u8]) -> std::io::Result<()> {
    match stream {
        Stream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        Stream::Stderr => std::io::stderr().write_all(bytes),
    }
}

/// Writes incomplete last lines of standard output and standard error.
fn finish([out, err]: [LinePrefixer; 2]) -> std::io::Result<()> {
    for (prefixer, stream) in [(out, Stream::Stdout), (err, Stream::Stderr)] {
        let mut lines = Vec::new();
        prefixer.finish(&mut lines);
        write_out(stream, &lines)?;
    }
    Ok(())
}

/// The output and events of hosts whose commands another program runs. Hosts are numbered from 0, in order.
#[derive(Debug)]
pub struct Display<'a> {
    view: View,
    hosts: &'a [String],
    /// For each host, standard output and standard error.
    lines: Vec<[LinePrefixer; 2]>,
}

impl<'a> Display<'a> {
    /// Returns the display for hosts of these names.
    pub fn new(args: &Args, hosts: &'a [String]) -> Self {
        let view = View::new(args, hosts.len());
        let names = Names::default();
        let lines = (1..).zip(hosts).map(|(number, host)| {
            [
                LinePrefixer::new(&names, host, number, Stream::Stdout, view.colours),
                LinePrefixer::new(&names, host, number, Stream::Stderr, view.error_colours),
            ]
        });
        Self {
            lines: lines.collect(),
            view,
            hosts,
        }
    }

    /// Shows a host's output.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn show(&mut self, host: usize, stream: Stream, data: &[u8]) -> std::io::Result<()> {
        let Some([out, err]) = self.lines.get_mut(host) else {
            return Ok(());
        };
        let prefixer = match stream {
            Stream::Stdout => out,
            Stream::Stderr => err,
        };
        self.view.show(stream, prefixer, data)
    }

    /// Reports an event.
    pub fn tell(&self, host: usize, event: Event<'_>) {
        if let Some(host) = self.hosts.get(host) {
            self.view.tell(host, event);
        }
    }

    /// Writes incomplete last lines.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn finish(self) -> std::io::Result<()> {
        self.lines.into_iter().try_for_each(finish)
    }
}

/// The end of one attempt.
enum Attempt {
    Exited(ExitStatus),
    /// For a temporary reason.
    Lost(String),
    /// For a permanent reason.
    Failed(String),
}

/// Keeps one host's stream running.
struct Follower<'a> {
    args: &'a Args,
    to: &'a To,
    backend: &'a Backend,
    world: &'a World,
    view: &'a View,
    /// The host's index in the list.
    place: usize,
    host: Host,
    /// Set once the command has started on any host.
    any_begun: &'a Cell<bool>,
}

impl Follower<'_> {
    /// Follows the stream to its end. Returns true if it ended well.
    async fn follow(self) -> bool {
        let outcome = self.try_follow().await;
        if let Err(error) = &outcome {
            let reason = words_of(format_args!("{error:#}"));
            self.view.tell(&self.host.name, Event::Failed { reason: &reason });
        }
        outcome.unwrap_or(false)
    }

    async fn try_follow(&self) -> anyhow::Result<bool> {
        let name = &self.host.name;
        let sink = match self.to.of_host(name, self.world) {
            Some(target) => {
                let lost = self.mark("a reader left before it had received everything; that data is lost");
                Some(Sink::open(&target, lost).await?)
            }
            None => None,
        };
        let backoff = Backoff::new(self.args.retry_min, self.args.retry_max);
        let mut failures = 0;
        // A user may be there to answer at the first attempt. A stream may run for weeks.
        let mut answers = true;
        // The time at which the stream broke off.
        let mut broken: Option<Instant> = None;
        loop {
            let mut begun = None;
            let attempt = self
                .attempt(sink.as_ref(), broken, &mut begun, &mut answers)
                .await?;
            if let Some(begun) = begun {
                broken = None;
                // An attempt that ran for longer than the next pause resets the backoff.
                if begun.elapsed() > backoff.pause_after(u32::saturating_add(failures, 1)) {
                    failures = 0;
                }
            }
            let (reason, end) = match attempt {
                Attempt::Exited(exit) => {
                    self.view.tell(name, Event::from(&exit));
                    let is_success = matches!(exit, ExitStatus::Exited(0));
                    ("the command ended".to_owned(), Some(is_success))
                }
                Attempt::Lost(reason) => (reason, None),
                Attempt::Failed(reason) => bail!(reason),
            };
            let again = match self.args.restart {
                Restart::Always => true,
                Restart::Lost => end.is_none(),
                Restart::Never => false,
            };
            if !again {
                if let Some(sink) = &sink {
                    sink.wait_until_taken().await;
                }
                return end.ok_or_else(|| anyhow::anyhow!(reason));
            }
            failures = u32::saturating_add(failures, 1);
            // Random, so that hosts that were lost together do not reconnect together.
            let wait = backoff
                .pause_after(failures)
                .mul_f64(1.0 - rand::random::<f64>() / 2.0);
            let retry = wait.as_secs_f64();
            self.view.tell(
                name,
                Event::Lost {
                    reason: &reason,
                    retry,
                },
            );
            let waited = tokio::time::Instant::now() + wait;
            if broken.is_none() {
                broken = Some(Instant::now());
                // One mark for each gap, at its start, since the end is not known before.
                if let (Some(mark), true) = (self.mark(&reason), begun.is_some()) {
                    match &sink {
                        Some(sink) => drop(sink.output()?.write_all(vec![mark]).await?),
                        None => self.show(&mark)?,
                    }
                }
            }
            tokio::time::sleep_until(waited).await;
        }
    }

    /// Shows text of our own among the output.
    fn show(&self, text: &[u8]) -> anyhow::Result<()> {
        let names = Names::default();
        let colours = self.view.colours;
        let mut out = LinePrefixer::new(&names, &self.host.name, 1, Stream::Stdout, colours);
        Ok(self.view.show(Stream::Stdout, &mut out, text)?)
    }

    /// Returns the line that marks a gap. It starts with a newline in case the output broke off within a line.
    fn mark(&self, reason: &str) -> Option<Bytes> {
        let template = self.args.mark_gaps.as_ref()?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let line = template
            .replace("{host}", &self.host.name)
            .replace("{time}", &since.unwrap_or_default().as_secs().to_string())
            .replace("{reason}", &reason.replace('\n', " "));
        Some(format!("\n{line}\n").into())
    }

    /// Runs the command once. Sets `begun` when the command starts.
    async fn attempt(
        &self,
        sink: Option<&Sink>,
        broken: Option<Instant>,
        begun: &mut Option<Instant>,
        answers: &mut bool,
    ) -> anyhow::Result<Attempt> {
        let output = match sink {
            Some(_) => Stdio::Passed,
            None => Stdio::Framed,
        };
        let passed: Vec<_> = sink.iter().map(|sink| sink.descriptor()).collect();
        let asks = std::mem::take(answers);
        let client = match self.backend.ask_for(self.request(output, asks), &passed).await {
            Ok(client) => client,
            Err(error) => {
                *answers = asks;
                return Ok(Attempt::Lost(format!("{error:#}")));
            }
        };
        let questions = self.backend.questions();
        let mut talk = Conversation::new(client, questions).with_place(self.place);
        let name = &self.host.name;
        let names = Names::default();
        let mut out = LinePrefixer::new(&names, name, 1, Stream::Stdout, self.view.colours);
        let mut err = LinePrefixer::new(&names, name, 1, Stream::Stderr, self.view.error_colours);
        let attempt = loop {
            let mut reply = talk.next().await;
            let _quiet = match talk.quiet().await {
                Ok(quiet) => Some(quiet),
                Err(error) => {
                    reply = Err(error);
                    None
                }
            };
            match reply {
                Ok(Reply::Begun { .. }) => {
                    *begun = Some(Instant::now());
                    self.any_begun.set(true);
                    let gap = broken.map(|broken| broken.elapsed().as_secs_f64());
                    self.view.tell(name, Event::Begun { gap });
                }
                Ok(Reply::Output(data)) => self.view.show(Stream::Stdout, &mut out, &data)?,
                Ok(Reply::ErrorOutput(data)) => self.view.show(Stream::Stderr, &mut err, &data)?,
                Ok(Reply::Notice(text)) => self.view.tell(name, Event::Notice { text: &text }),
                Ok(Reply::Exit(exit)) => break Attempt::Exited(exit),
                Ok(Reply::Failed(failure)) => {
                    // A full disk stops the output; the command is not restarted for that.
                    let is_unwritten = failure.kind == failure::ErrorKind::Local
                        && failure.execution != Execution::DidNotStart;
                    let is_end = is_unwritten && !matches!(self.args.restart, Restart::Always);
                    break match failure.kind.may_pass() && !is_end {
                        true => Attempt::Lost(failure.to_string()),
                        false => Attempt::Failed(Refused(failure).to_string()),
                    };
                }
                // Without a user to ask, the daemon runs the system's ssh itself.
                Ok(Reply::UseSystemSsh { .. }) if asks => {
                    drop(_quiet);
                    return Box::pin(self.attempt(sink, broken, begun, answers)).await;
                }
                Ok(Reply::UseSystemSsh { reasons, .. }) => {
                    break Attempt::Failed(format!("needs the system's ssh: {}", reasons.join("; ")));
                }
                Ok(_) => {}
                Err(error @ ClientError::Gone) => break Attempt::Lost(error.to_string()),
                Err(error) => break Attempt::Failed(error.to_string()),
            }
        };
        finish([out, err])?;
        Ok(attempt)
    }

    fn request(&self, output: Stdio, answers: bool) -> SessionRequest {
        let host = HostRequest::new(
            self.host.destination.clone(),
            self.args.ssh.to_session_args(&self.host.ssh_args),
            self.world.clone(),
        );
        let program = Program::Exec(self.args.command_line());
        SessionRequest {
            answers,
            ..SessionRequest::new(host, program, [Stdio::Null, output, Stdio::Framed])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_own_target() {
        let world = World::from_parts("/here".into(), Default::default());
        let to: To = "fifo:logs/{host}.log".parse().unwrap();
        let target = to.of_host("a/../b", &world).unwrap();
        assert_eq!(target, Target::Fifo("/here/logs/a_.._b.log".into()));
        assert_eq!("-".parse::<To>().unwrap().of_host("a", &world), None);
        assert!("log".parse::<To>().is_err());
    }
}
