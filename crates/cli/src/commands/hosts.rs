//! The commands about connections: `ls`, `check`, `close`, `warm`, `explain`, `stop`.

mod each;
pub(crate) mod explain;
pub(crate) mod ls;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use trunkline_control::protocol::{
    Closed, HostRequest, MasterAction, MasterFound, MasterState, MastersOf, Reply, Request,
};
use trunkline_request::World;
use trunkline_request::hosts::Target;
use trunkline_text::{Printable, count_of};

use crate::ask::{answer, ask, unexpected_reply};
use crate::backend::{Backend, Daemon, Running, runtime};
use crate::questions::Conversation;
use crate::report::connections::milliseconds;

pub(crate) use each::HostArgs;

/// Arguments of `trunkline check`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "trunkline check [OPTIONS] <HOST>...")]
#[command(group(which_hosts()))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    hosts: HostArgs,
}

/// Arguments of `trunkline close`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "trunkline close [OPTIONS] <HOST>...\n       trunkline close [OPTIONS] --all\n       trunkline close [OPTIONS] --stale"
)]
#[command(group(which_hosts().args(["all", "stale"])))]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    hosts: HostArgs,
    /// Close every connection, and every ControlMaster of ssh's own that a ControlPath names.
    #[arg(long, conflicts_with_all = NAMING_HOSTS)]
    all: bool,
    /// Remove stale sockets of ssh's own ControlMasters.
    #[arg(long, conflicts_with_all = NAMING_HOSTS, conflicts_with = "all")]
    stale: bool,
    /// Do not wait for running sessions.
    #[arg(long)]
    now: bool,
}

/// Arguments of `trunkline warm`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "trunkline warm [OPTIONS] <HOST>...")]
#[command(group(which_hosts()))]
pub(crate) struct WarmArgs {
    #[command(flatten)]
    hosts: HostArgs,
    /// Keep the connections until you close them.
    #[arg(long)]
    pin: bool,
}

/// The arguments that name hosts.
pub(crate) const NAMING_HOSTS: [&str; 4] = ["destinations", "hosts", "group", "inventory"];

/// Requires at least one of them.
pub(crate) fn which_hosts() -> clap::ArgGroup {
    let group = clap::ArgGroup::new("which").required(true).multiple(true);
    group.args(NAMING_HOSTS)
}

/// Arguments of `trunkline stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Do not wait for running sessions.
    #[arg(long)]
    now: bool,
}

/// `trunkline check`.
pub(crate) fn check(args: CheckArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let hosts = &args.hosts.find(true, backend).await?;
        let check = async |_, target: &Target| {
            let found = check_one(hosts.request(target), backend).await?;
            Ok(format!("{}: {found}\n", Printable::line(&target.name)))
        };
        hosts.each(backend, usize::MAX, check).await
    })
}

/// Checks a connection of the daemon's first, else a master of ssh's own.
async fn check_one(request: HostRequest, backend: &Backend) -> anyhow::Result<String> {
    let checked = match backend.find(Running::Here).await? {
        Some(mut client) => ask(&mut client, Request::Check(request.clone()), backend).await,
        None => {
            let why = backend.reason_not_asked();
            let why = why.as_deref().unwrap_or("the daemon is not running");
            Err(anyhow!("no connection: {why}"))
        }
    };
    match checked {
        Ok(Reply::Checked { rtt: Some(rtt) }) => Ok(format!("alive, round trip {}", milliseconds(rtt))),
        Ok(Reply::Checked { rtt: None }) => Ok("alive, through the system's ssh".into()),
        Ok(other) => Err(unexpected_reply(&other)),
        Err(error) => {
            let of = MastersOf::Host(Box::new(request));
            let found = masters(of, MasterAction::Look, backend).await?;
            let Some(master) = found.into_iter().find_map(|found| found.report.master) else {
                return Err(error);
            };
            let path = master.socket.display();
            match (master.state, master.pid) {
                (MasterState::Alive, Some(pid)) => {
                    Ok(format!("alive, through ssh's own master (process {pid})"))
                }
                (MasterState::Stale, _) => {
                    Err(anyhow!("{path} is stale: `trunkline close --stale` removes it"))
                }
                _ => Err(anyhow!("the master on {path} does not answer")),
            }
        }
    }
}

/// Applies an action to the masters of the user's own ssh, which need no daemon, and returns them.
async fn masters(of: MastersOf, action: MasterAction, backend: &Backend) -> anyhow::Result<Vec<MasterFound>> {
    let mut client = backend.connect(Daemon::InPassing).await?;
    match ask(&mut client, Request::Masters { of, action }, backend).await? {
        Reply::Masters(found) => Ok(found),
        other => Err(unexpected_reply(&other)),
    }
}

fn all_masters(config_file: Option<OsString>) -> anyhow::Result<MastersOf> {
    let world = Box::new(World::current()?);
    Ok(MastersOf::All { world, config_file })
}

/// `trunkline warm`. Only the shared daemon can keep connections open, unless the user wants none.
pub(crate) fn warm(args: WarmArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    let pin = args.pin;
    let daemon = match backend.is_told_to_be_private() {
        true => Daemon::Own,
        false => Daemon::Shared,
    };
    runtime()?.block_on(async {
        let hosts = &args.hosts.find(false, backend).await?;
        // Connects once first, so that a problem of this machine is reported once and not for each host.
        drop(backend.connect(daemon).await?);
        let warm = async |place, target: &Target| {
            let mut client = backend.connect(daemon).await?;
            let talk = Conversation::new(&mut client, backend.questions()).with_place(place);
            let host = hosts.request(target);
            match answer(talk, Request::Warm { host, pin }).await? {
                Reply::Done => {}
                other => return Err(unexpected_reply(&other)),
            }
            let name = Printable::line(&target.name);
            Ok(match backend.is_told_to_be_private() {
                true => format!("{name}: connected, and closed again (--no-daemon)\n"),
                false if pin => format!("{name}: connected, kept until closed\n"),
                false => format!("{name}: connected\n"),
            })
        };
        hosts.each(backend, usize::MAX, warm).await
    })
}

/// `trunkline close`.
pub(crate) fn close(args: CloseArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    if args.stale {
        let config_file = args.hosts.ssh.config_file().map(OsStr::to_owned);
        let removed = runtime.block_on(remove_stale(config_file, backend))?;
        println!("removed {}", count_of(removed, "socket"));
        return Ok(ExitCode::SUCCESS);
    }
    let at_once = args.now;
    runtime.block_on(async {
        if args.all {
            let of = all_masters(args.hosts.ssh.config_file().map(OsStr::to_owned))?;
            let (closed, busy) = close_one(None, of, at_once, backend).await?;
            for text in busy {
                crate::report::tell(text);
            }
            println!("{closed}");
            return Ok(ExitCode::SUCCESS);
        }
        let hosts = &args.hosts.find(true, backend).await?;
        let close = async |_, target: &Target| {
            let host = hosts.request(target);
            let of = MastersOf::Host(Box::new(host.clone()));
            let (closed, busy) = close_one(Some(host), of, at_once, backend).await?;
            let busy = busy.join("; ");
            match closed.count() {
                // As with `ssh -O exit`, closing a connection that does not exist is an error.
                0 if busy.is_empty() => bail!("no connection to close"),
                0 => bail!(busy),
                _ => {}
            }
            let mut text = format!("{closed}\n");
            if !busy.is_empty() {
                text = format!("{busy}\n{text}");
            }
            Ok(match hosts.is_one() {
                true => text,
                false => format!("{}: {text}", Printable::line(&target.name)),
            })
        };
        hosts.each(backend, usize::MAX, close).await
    })
}

/// Closes the daemon's connections to a host, or all of them, and ssh's own masters. Returns messages about those
/// masters that stay open for a while.
async fn close_one(
    host: Option<HostRequest>,
    of: MastersOf,
    at_once: bool,
    backend: &Backend,
) -> anyhow::Result<(Closed, Vec<String>)> {
    let (mut closed, mut busy) = (Closed::default(), Vec::new());
    if let Some(mut client) = backend.find(Running::Anywhere).await? {
        match ask(&mut client, Request::Close { host, at_once }, backend).await? {
            Reply::Closed(by_daemon) => closed = by_daemon,
            other => return Err(unexpected_reply(&other)),
        }
    }
    for MasterFound { report, acted } in masters(of, MasterAction::Close { at_once }, backend).await? {
        closed.now += usize::from(acted);
        let left = report
            .master
            .filter(|master| master.state == MasterState::Alive && !acted);
        if let Some(master) = left
            && let Some(sessions @ 1..) = master.sessions
        {
            busy.push(format!(
                "{} stays open until its {sessions} sessions end; use --now to end them at once",
                Printable::line(master.socket.as_os_str().as_encoded_bytes())
            ));
        }
    }
    Ok((closed, busy))
}

async fn remove_stale(config_file: Option<OsString>, backend: &Backend) -> anyhow::Result<usize> {
    let of = all_masters(config_file)?;
    let found = masters(of, MasterAction::RemoveStale, backend).await?;
    Ok(found.iter().filter(|found| found.acted).count())
}

/// `trunkline stop`.
pub(crate) fn stop(args: &StopArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let Some(mut client) = backend.find(Running::OfAnyVersion).await? else {
            println!("the daemon is not running");
            return Ok(ExitCode::SUCCESS);
        };
        match ask(&mut client, Request::Stop { at_once: args.now }, backend).await? {
            Reply::Done => Ok(ExitCode::SUCCESS),
            other => Err(unexpected_reply(&other)),
        }
    })
}
