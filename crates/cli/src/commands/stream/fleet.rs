//! `trunkline stream --fleet`: the nodes of a fleet run the commands, and what they print is followed here.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use trunkline_control::fleet::{
    Fleet, FleetHost, FleetReply, FleetRequest, FleetRestart, FleetStream, HOSTS_IN_A_FRAME, StreamNews,
};
use trunkline_control::protocol::Exit;
use trunkline_request::World;
use trunkline_text::{Printable, counted};

use super::{Args, Event, Restart, To, View, colours};
use crate::backend::Backend;
use crate::hints::Refused;
use crate::report::lines::{LinePrefixer, Names, Stream};
use crate::terminal::interrupts::{Interrupts, status_of};

/// The time limit for the end once it was requested.
const END: Duration = Duration::from_secs(10);

pub(super) async fn stream(args: &Args, to: Option<To>, backend: &Backend) -> anyhow::Result<ExitCode> {
    ensure!(
        args.ssh.to_args().is_empty(),
        "--fleet takes no options of ssh: each node reaches its hosts by its own ssh_config"
    );
    ensure!(
        args.retry_min <= args.retry_max,
        "--retry-min must not be more than --retry-max"
    );
    ensure!(
        to.is_some() || args.detach,
        "where the output goes has to be said: --to fifo:PATH, unix:PATH, file:PATH, nats:SUBJECT or -; or --detach, to follow it \
         later"
    );
    ensure!(
        args.attach.is_none() || !matches!(to, Some(To::Subject(_))),
        "a stream's subject is given when it is begun"
    );
    let world = World::current().context("reading the environment")?;
    let mut interrupts = Interrupts::watch()?;
    let mut fleet = Fleet::start()?;
    match &args.attach {
        Some(stream) => fleet.send(&FleetRequest::AttachStream(stream.clone())).await?,
        None => submit(args, to.as_ref(), &world, backend, &fleet).await?,
    }
    let ((stream, hosts), interrupted) = {
        let mut telling = std::pin::pin!(told_of(&mut fleet));
        match interrupts.or(&mut telling).await {
            Ok(told) => (told?, None),
            // What has been handed over can be ended once it has a name.
            Err(signal) => match interrupts.or(tokio::time::timeout(END, telling)).await {
                Ok(Ok(told)) => (told?, Some(signal)),
                _ => {
                    eprintln!(
                        "trunkline: interrupted while the stream was handed over: `trunkline fleet status` lists it if it has begun"
                    );
                    return Ok(ExitCode::from(status_of(signal)));
                }
            },
        }
    };
    if let Some(to) = &to {
        to.can_take(hosts.len())?;
    }
    if !args.json {
        let (stream, number) = (Printable::line(&stream), counted(hosts.len(), "host"));
        let rest = match (args.detach, args.attach.is_some()) {
            (true, _) => format!(
                "`trunkline fleet attach {stream} --to TARGET` follows it, `trunkline fleet cancel {stream}` ends it"
            ),
            (false, true) => "Ctrl-C here ends following, and the stream goes on".to_owned(),
            (false, false) => "Ctrl-C ends it".to_owned(),
        };
        eprintln!("trunkline: stream {stream} on {number}; {rest}");
    } else if args.detach {
        println!(
            "{}",
            serde_json::json!({ "stream": stream, "hosts": hosts.len() })
        );
    }
    if args.detach && interrupted.is_none() {
        fleet.send(&FleetRequest::Leave).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let target = match to {
        Some(To::Template(template)) => Some(absolute(&template, &world)?),
        _ => None,
    };
    let follow = FleetRequest::Follow {
        to: target,
        mark: args.mark_gaps.clone(),
    };
    fleet.send(&follow).await?;
    let view = View {
        prefixed: hosts.len() > 1,
        colours: colours(std::io::IsTerminal::is_terminal(&std::io::stdout())),
        error_colours: colours(std::io::IsTerminal::is_terminal(&std::io::stderr())),
        json: args.json,
    };
    let names = Names::default();
    let following = Following {
        args,
        stream,
        hosts: &hosts,
        lines: (1..)
            .zip(&hosts)
            .map(|(number, host)| Lines {
                out: LinePrefixer::new(&names, host, number, Stream::Stdout, view.colours),
                err: LinePrefixer::new(&names, host, number, Stream::Stderr, view.error_colours),
                broken: None,
            })
            .collect(),
        view: &view,
        successes: 0,
    };
    match interrupted {
        Some(signal) => following.end(&mut fleet, &mut interrupts, signal).await,
        None => following.follow(&mut fleet, &mut interrupts).await,
    }
}

/// Hands a stream over.
async fn submit(
    args: &Args,
    to: Option<&To>,
    world: &World,
    backend: &Backend,
    fleet: &Fleet,
) -> anyhow::Result<()> {
    let (targets, skipped) = args.hosts(world, backend).await?;
    if let Some(host) = skipped.first() {
        bail!("{} cannot be reached: {}", host.name, host.why);
    }
    if let Some(target) = targets.iter().find(|target| !target.ssh_args.is_empty()) {
        bail!(
            "{} needs options of ssh, which its inventory names: --fleet reaches hosts by the nodes' own ssh_config",
            target.name
        );
    }
    if let Some(to) = to {
        to.can_take(targets.len())?;
    }
    let command = args.command.join(" ".as_ref()).into_encoded_bytes();
    let hosts = targets.into_iter().map(|target| FleetHost {
        name: target.name,
        destination: target.destination,
        command: command.clone(),
    });
    for part in hosts.collect::<Vec<_>>().chunks(HOSTS_IN_A_FRAME) {
        fleet.send(&FleetRequest::Hosts(part.to_vec())).await?;
    }
    let wanted = FleetStream {
        restart: match args.restart {
            Restart::Lost => FleetRestart::Lost,
            Restart::Always => FleetRestart::Always,
            Restart::Never => FleetRestart::Never,
        },
        first: args.retry_min,
        longest: args.retry_max,
        subject: match to {
            Some(To::Subject(subject)) => Some(subject.clone()),
            _ => None,
        },
    };
    fleet.send(&FleetRequest::Stream(wanted)).await?;
    Ok(())
}

/// The stream's name, and its hosts.
async fn told_of(fleet: &mut Fleet) -> anyhow::Result<(String, Vec<String>)> {
    let mut told: Option<(String, usize)> = None;
    let mut names = Vec::new();
    loop {
        let reply = fleet.next().await?;
        match reply.context("trunkline-fleet ended before it had said anything")? {
            FleetReply::Job { job, hosts } => told = Some((job, usize::try_from(hosts)?)),
            FleetReply::Hosts(part) => names.extend(part.into_iter().map(|(name, _)| name)),
            FleetReply::Failed(failure) => bail!(Refused(failure)),
            _ => {}
        }
        if let Some((stream, _)) = told.take_if(|(_, hosts)| names.len() >= *hosts) {
            return Ok((stream, names));
        }
    }
}

/// A target with a path from the root, whatever the program that opens it has as its directory.
fn absolute(template: &str, world: &World) -> anyhow::Result<String> {
    let (kind, path) = template.split_once(':').context("not a target")?;
    let path = world.cwd.join(path);
    let path = path
        .to_str()
        .with_context(|| format!("{} is not text, which --fleet needs", path.display()))?;
    Ok(format!("{kind}:{path}"))
}

/// The output lines of a host.
struct Lines {
    out: LinePrefixer,
    err: LinePrefixer,
    /// The time at which its stream broke off.
    broken: Option<Instant>,
}

struct Following<'a> {
    args: &'a Args,
    stream: String,
    hosts: &'a [String],
    lines: Vec<Lines>,
    view: &'a View,
    successes: usize,
}

impl Following<'_> {
    async fn follow(mut self, fleet: &mut Fleet, interrupts: &mut Interrupts) -> anyhow::Result<ExitCode> {
        loop {
            let reply = match interrupts.or(fleet.next()).await {
                Ok(reply) => reply?,
                Err(signal) => return self.end(fleet, interrupts, signal).await,
            };
            let told = match reply {
                Some(FleetReply::Done) => break,
                Some(FleetReply::Failed(failure)) => bail!(Refused(failure)),
                None => bail!(
                    "trunkline-fleet has ended; the stream goes on: `trunkline fleet attach {} --to TARGET`",
                    self.stream
                ),
                Some(reply) => self.handle_reply(reply),
            };
            if let Err(error) = told {
                // As a program that SIGPIPE ends.
                self.leave(fleet).await;
                return Err(error);
            }
        }
        for lines in self.lines {
            lines.finish()?;
        }
        Ok(match self.successes == self.hosts.len() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Ends following: whoever has begun a stream ends it with Ctrl-C; a follower stops following it.
    async fn end(
        self,
        fleet: &mut Fleet,
        interrupts: &mut Interrupts,
        signal: i32,
    ) -> anyhow::Result<ExitCode> {
        let code = ExitCode::from(status_of(signal));
        if self.args.attach.is_some() {
            self.leave(fleet).await;
            eprintln!(
                "trunkline: following has ended; stream {} goes on",
                Printable::line(&self.stream)
            );
            return Ok(code);
        }
        fleet.send(&FleetRequest::Cancel).await?;
        let ended = interrupts.or(tokio::time::timeout(END, drain(fleet))).await;
        match ended {
            Ok(Ok(true)) => eprintln!("trunkline: stream {} is cancelled", Printable::line(&self.stream)),
            _ => eprintln!(
                "trunkline: it is not known whether stream {0} was cancelled: `trunkline fleet cancel {0}` does that",
                Printable::line(&self.stream)
            ),
        }
        Ok(code)
    }

    async fn leave(&self, fleet: &mut Fleet) {
        if fleet.send(&FleetRequest::Leave).await.is_ok() {
            let _ = tokio::time::timeout(END, drain(fleet)).await;
        }
    }

    fn handle_reply(&mut self, reply: FleetReply) -> anyhow::Result<()> {
        match reply {
            FleetReply::Output(host, data) => {
                if let Some(lines) = lines_of(&mut self.lines, host) {
                    self.view.show(Stream::Stdout, &mut lines.out, &data)?;
                }
            }
            FleetReply::ErrorOutput(host, data) => {
                if let Some(lines) = lines_of(&mut self.lines, host) {
                    self.view.show(Stream::Stderr, &mut lines.err, &data)?;
                }
            }
            FleetReply::Stream(host, news) => self.news(host, &news),
            FleetReply::Notice(text) => eprintln!("trunkline: {}", Printable::line(text)),
            _ => {}
        }
        Ok(())
    }

    fn news(&mut self, host: u32, news: &StreamNews) {
        let name = usize::try_from(host).ok().and_then(|host| self.hosts.get(host));
        let (Some(name), Some(lines)) = (name, lines_of(&mut self.lines, host)) else {
            return;
        };
        let tell = |event: Event<'_>| self.view.tell(name, event);
        match news {
            StreamNews::Begun(node, reason) => {
                let gap = lines.broken.take().map(|since| since.elapsed().as_secs_f64());
                if let Some(reason) = reason {
                    let text = format!("node {node} begins the command again: {reason}");
                    tell(Event::Notice { text: &text });
                }
                tell(Event::Begun {
                    gap: gap.filter(|_| self.view.json),
                });
            }
            StreamNews::Lost(reason) => {
                lines.broken.get_or_insert_with(Instant::now);
                tell(Event::Notice { text: reason });
            }
            StreamNews::Ended(exit) => {
                let (status, signal) = match exit {
                    Exit::Status(status) => (Some(*status), None),
                    Exit::Signal(signal, _) => (None, Some(signal.as_str())),
                    Exit::Unknown => (None, None),
                };
                tell(Event::Ended { status, signal });
            }
            StreamNews::Failed(reason) => tell(Event::Failed { reason }),
            StreamNews::Waits(text) => tell(Event::Notice { text }),
            StreamNews::Gap(reason) => {
                let text = format!("output may be missing or come twice: {reason}");
                tell(Event::Notice { text: &text });
            }
            StreamNews::Over(is_success) => self.successes += usize::from(*is_success),
        }
    }
}

fn lines_of(lines: &mut [Lines], host: u32) -> Option<&mut Lines> {
    lines.get_mut(usize::try_from(host).ok()?)
}

impl Lines {
    /// Last lines without their ends.
    fn finish(self) -> std::io::Result<()> {
        for (prefixer, stream) in [(self.out, Stream::Stdout), (self.err, Stream::Stderr)] {
            let mut lines = Vec::new();
            prefixer.finish(&mut lines);
            super::write_out(stream, &lines)?;
        }
        Ok(())
    }
}

/// Waits for the last frame; whether it says that all went well.
async fn drain(fleet: &mut Fleet) -> bool {
    let mut is_well = true;
    loop {
        match fleet.next().await {
            Ok(Some(FleetReply::Done)) => return is_well,
            Ok(Some(FleetReply::Notice(text))) => {
                is_well = false;
                eprintln!("trunkline: {}", Printable::line(text));
            }
            Ok(Some(FleetReply::Failed(_)) | None) | Err(_) => return false,
            Ok(Some(_)) => {}
        }
    }
}
