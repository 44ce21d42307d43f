//! `trunkline stream --fleet`: the nodes of a fleet run the commands, and this program follows their output.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use trunkline_cli::stream::{Display, Event, Restart, To};
use trunkline_cli::{Backend, Interrupts, Refused, Stream, status_of_signal};
use trunkline_fleet_client::{
    Fleet, FleetHost, FleetReply, FleetRequest, FleetRestart, FleetStream, HOSTS_IN_A_FRAME, StreamNews,
};
use trunkline_request::World;
use trunkline_text::{Printable, count_of};

use crate::client::{refuse_ssh_options, start};
use crate::say;
use crate::status::print;

/// The time limit for the stream to end after that was requested.
const END: Duration = Duration::from_secs(10);

/// Arguments of `trunkline stream --fleet`, and of `trunkline fleet attach STREAM`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    stream: trunkline_cli::stream::Args,
    /// Follow this stream.
    #[arg(long, hide = true, value_name = "STREAM", requires = "fleet", conflicts_with_all = [
        "destinations", "hosts", "inventory", "command", "detach",
    ])]
    attach: Option<String>,
}

pub(crate) fn main(args: Args) -> anyhow::Result<ExitCode> {
    trunkline_cli::runtime()?.block_on(stream(args))
}

async fn stream(args: Args) -> anyhow::Result<ExitCode> {
    let Args {
        stream: mut args,
        attach,
    } = args;
    let to = args.take_target();
    refuse_ssh_options(args.has_ssh_options(), [])?;
    args.check_pauses()?;
    ensure!(
        to.is_some() || args.detach,
        "where the output goes has to be said: --to fifo:PATH, unix:PATH, file:PATH, nats:SUBJECT or -; or --detach, to follow it \
         later"
    );
    ensure!(
        attach.is_none() || !matches!(to, Some(To::Subject(_))),
        "a stream's subject is given when it is begun"
    );
    let world = World::current().context("reading the environment")?;
    let mut interrupts = Interrupts::watch()?;
    let mut fleet = start()?;
    let is_attached = attach.is_some();
    match attach {
        Some(stream) => fleet.send(&FleetRequest::AttachStream(stream)).await?,
        None => submit(&args, to.as_ref(), &world, &fleet).await?,
    }
    let ((stream, hosts), interrupted) = {
        let mut telling = std::pin::pin!(told_of(&mut fleet));
        match interrupts.or(&mut telling).await {
            Ok(told) => (told?, None),
            // A stream that was handed over can only be ended once its name is known.
            Err(signal) => match interrupts.or(tokio::time::timeout(END, telling)).await {
                Ok(Ok(told)) => (told?, Some(signal)),
                _ => {
                    say(
                        "interrupted while the stream was handed over: `trunkline fleet status` lists it if it has begun",
                    );
                    return Ok(ExitCode::from(status_of_signal(signal)));
                }
            },
        }
    };
    if let Some(to) = &to {
        to.can_take(hosts.len())?;
    }
    if !args.json {
        let (stream, number) = (Printable::line(&stream), count_of(hosts.len(), "host"));
        let rest = match (args.detach, is_attached) {
            (true, _) => format!(
                "`trunkline fleet attach {stream} --to TARGET` follows it, `trunkline fleet cancel {stream}` ends it"
            ),
            (false, true) => "Ctrl-C here ends following, and the stream goes on".to_owned(),
            (false, false) => "Ctrl-C ends it".to_owned(),
        };
        say(&format!("stream {stream} on {number}; {rest}"));
    } else if args.detach {
        let line = serde_json::json!({ "stream": stream, "hosts": hosts.len() });
        print(&format!("{line}\n"))?;
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
    let following = Following {
        stream,
        is_attached,
        display: Display::new(&args, &hosts),
        broken: vec![None; hosts.len()],
        shows_gaps: args.json,
        successes: 0,
    };
    match interrupted {
        Some(signal) => following.end(&mut fleet, &mut interrupts, signal).await,
        None => following.follow(&mut fleet, &mut interrupts).await,
    }
}

/// Hands a stream over to the fleet.
async fn submit(
    args: &trunkline_cli::stream::Args,
    to: Option<&To>,
    world: &World,
    fleet: &Fleet,
) -> anyhow::Result<()> {
    let (targets, command) = args.work(world, &Backend::new(false)).await?;
    refuse_ssh_options(false, &targets)?;
    if let Some(to) = to {
        to.can_take(targets.len())?;
    }
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

/// Reads the stream's name and its hosts.
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

/// Makes the path of a target absolute, because the program that opens it may have another working directory.
fn absolute(template: &str, world: &World) -> anyhow::Result<String> {
    let (kind, path) = template.split_once(':').context("not a target")?;
    let path = world.cwd.join(path);
    let path = path
        .to_str()
        .with_context(|| format!("{} is not text, which --fleet needs", path.display()))?;
    Ok(format!("{kind}:{path}"))
}

struct Following<'a> {
    stream: String,
    /// True if somebody else started the stream.
    is_attached: bool,
    display: Display<'a>,
    /// The times when the hosts' streams were interrupted.
    broken: Vec<Option<Instant>>,
    /// True if gaps are reported as events.
    shows_gaps: bool,
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
                // Ends like a program that gets SIGPIPE.
                self.leave(fleet).await;
                return Err(error);
            }
        }
        self.display.finish()?;
        Ok(match self.successes == self.broken.len() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Ends following. Ctrl-C ends the stream if this program started it; otherwise only the following stops.
    async fn end(
        self,
        fleet: &mut Fleet,
        interrupts: &mut Interrupts,
        signal: i32,
    ) -> anyhow::Result<ExitCode> {
        let code = ExitCode::from(status_of_signal(signal));
        if self.is_attached {
            self.leave(fleet).await;
            say(&format!(
                "following has ended; stream {} goes on",
                Printable::line(&self.stream)
            ));
            return Ok(code);
        }
        fleet.send(&FleetRequest::Cancel).await?;
        let ended = interrupts.or(tokio::time::timeout(END, drain(fleet))).await;
        match ended {
            Ok(Ok(true)) => say(&format!("stream {} is cancelled", Printable::line(&self.stream))),
            _ => say(&format!(
                "it is not known whether stream {0} was cancelled: `trunkline fleet cancel {0}` does that",
                Printable::line(&self.stream)
            )),
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
            FleetReply::Output(host, data) => self.display.show(place(host), Stream::Stdout, &data)?,
            FleetReply::ErrorOutput(host, data) => self.display.show(place(host), Stream::Stderr, &data)?,
            FleetReply::Stream(host, news) => self.news(place(host), &news),
            FleetReply::Notice(text) => say(Printable::line(text).as_ref()),
            _ => {}
        }
        Ok(())
    }

    fn news(&mut self, host: usize, news: &StreamNews) {
        let Some(broken) = self.broken.get_mut(host) else {
            return;
        };
        let tell = |event: Event<'_>| self.display.tell(host, event);
        match news {
            StreamNews::Begun(node, reason) => {
                let gap = broken.take().map(|since| since.elapsed().as_secs_f64());
                if let Some(reason) = reason {
                    let text = format!("node {node} begins the command again: {reason}");
                    tell(Event::Notice { text: &text });
                }
                tell(Event::Begun {
                    gap: gap.filter(|_| self.shows_gaps),
                });
            }
            StreamNews::Lost(reason) => {
                broken.get_or_insert_with(Instant::now);
                tell(Event::Notice { text: reason });
            }
            StreamNews::Ended(exit) => tell(Event::from(exit)),
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

fn place(host: u32) -> usize {
    usize::try_from(host).unwrap_or(usize::MAX)
}

/// Waits for the last frame. Returns true if everything went well.
async fn drain(fleet: &mut Fleet) -> bool {
    let mut is_well = true;
    loop {
        match fleet.next().await {
            Ok(Some(FleetReply::Done)) => return is_well,
            Ok(Some(FleetReply::Notice(text))) => {
                is_well = false;
                say(Printable::line(text).as_ref());
            }
            Ok(Some(FleetReply::Failed(_)) | None) | Err(_) => return false,
            Ok(Some(_)) => {}
        }
    }
}
