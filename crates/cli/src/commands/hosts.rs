//! The commands about connections: `ls`, `check`, `close`, `warm`, `explain`, `stop`.

pub(crate) mod explain;
pub(crate) mod ls;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use trunkline_control::client::Client;
use trunkline_control::protocol::{
    HostRequest, MasterAction, MasterFound, MasterState, MastersOf, Reply, Request,
};
use trunkline_request::World;
use trunkline_text::{Printable, counted};

use crate::backend::{Backend, host_request, runtime};
use crate::questions::Conversation;
use crate::report::connections::milliseconds;
use crate::ssh_options::SshOptions;

/// Arguments of commands on one or more hosts.
#[derive(Debug, clap::Args)]
pub(crate) struct HostArgs {
    #[command(flatten)]
    ssh: SshOptions,
    /// Hosts, as for ssh(1).
    #[arg(required = true)]
    destinations: Vec<String>,
}

/// Arguments of `trunkline close`.
#[derive(Debug, clap::Args)]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    ssh: SshOptions,
    /// Hosts, as for ssh(1).
    #[arg(required_unless_present_any = ["all", "stale"], conflicts_with_all = ["all", "stale"])]
    destinations: Vec<String>,
    /// Close every connection, and every ControlMaster of ssh's own that a ControlPath names.
    #[arg(long)]
    all: bool,
    /// Remove stale sockets of ssh's own ControlMasters.
    #[arg(long, conflicts_with = "all")]
    stale: bool,
    /// Do not wait for running sessions.
    #[arg(long)]
    now: bool,
}

/// Arguments of `trunkline warm`.
#[derive(Debug, clap::Args)]
pub(crate) struct WarmArgs {
    #[command(flatten)]
    hosts: HostArgs,
    /// Keep the connections until you close them.
    #[arg(long)]
    pin: bool,
}

/// Arguments of `trunkline stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Do not wait for running sessions.
    #[arg(long)]
    now: bool,
}

/// `trunkline check`.
pub(crate) fn check(args: &HostArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    runtime()?.block_on(async {
        let answers = args
            .destinations
            .iter()
            .map(|name| check_one(name, &args.ssh, backend));
        for answer in futures_util::future::join_all(answers).await {
            code = told(answer, code);
        }
    });
    Ok(code)
}

/// A connection of the daemon's first; else a master of ssh's own.
async fn check_one(name: &str, ssh: &SshOptions, backend: &Backend) -> anyhow::Result<String> {
    let request = host_request(name, ssh.to_args())?;
    let checked = match backend.connect_if_running().await? {
        Some(mut client) => ask(&mut client, Request::Check(request.clone()), backend).await,
        None => {
            let why = backend.apart();
            let why = why.as_deref().unwrap_or("the daemon is not running");
            Err(anyhow!("{name}: no connection: {why}"))
        }
    };
    match checked {
        Ok(Reply::Checked { rtt: Some(rtt) }) => {
            Ok(format!("{name}: alive, round trip {}", milliseconds(rtt)))
        }
        Ok(Reply::Checked { rtt: None }) => Ok(format!("{name}: alive, through the system's ssh")),
        Ok(other) => Err(unexpected(&other)),
        Err(error) => {
            let of = MastersOf::Host(Box::new(request));
            let found = masters(of, MasterAction::Look, backend).await?;
            let Some(master) = found.into_iter().find_map(|found| found.report.master) else {
                return Err(error);
            };
            let path = master.socket.display();
            match (master.state, master.pid) {
                (MasterState::Alive, Some(pid)) => {
                    Ok(format!("{name}: alive, through ssh's own master (process {pid})"))
                }
                (MasterState::Stale, _) => Err(anyhow!(
                    "{name}: {path} is stale: `trunkline close --stale` removes it"
                )),
                _ => Err(anyhow!("{name}: the master on {path} does not answer")),
            }
        }
    }
}

/// The masters of the user's own ssh, which need no daemon to be there, after what was to be done to them.
async fn masters(of: MastersOf, action: MasterAction, backend: &Backend) -> anyhow::Result<Vec<MasterFound>> {
    let mut client = backend.connect_in_passing().await?;
    match ask(&mut client, Request::Masters { of, action }, backend).await? {
        Reply::Masters(found) => Ok(found),
        other => Err(unexpected(&other)),
    }
}

fn all_masters(config_file: Option<OsString>) -> anyhow::Result<MastersOf> {
    let world = Box::new(World::current()?);
    Ok(MastersOf::All { world, config_file })
}

/// Prints a line or an error.
fn told(answer: anyhow::Result<String>, code: ExitCode) -> ExitCode {
    match answer {
        Ok(text) => {
            println!("{text}");
            code
        }
        Err(error) => {
            crate::report::tell(format_args!("{error:#}"));
            ExitCode::from(crate::OWN_ERROR)
        }
    }
}

/// `trunkline warm`.
pub(crate) fn warm(args: &WarmArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    let pin = args.pin;
    each(
        &args.hosts,
        backend,
        |host| Request::Warm { host, pin },
        |name, reply| match reply {
            Reply::Done => Ok(match backend.is_private() {
                true => format!("{name}: connected, and closed again (--no-daemon)"),
                false if pin => format!("{name}: connected, kept until closed"),
                false => format!("{name}: connected"),
            }),
            other => Err(unexpected(&other)),
        },
    )
}

/// Does a request for each host, all at once, and prints a line for each in order. It is to last: only the shared daemon can
/// do it, unless the user wants none.
fn each(
    args: &HostArgs,
    backend: &Backend,
    request: impl Fn(HostRequest) -> Request,
    line: impl Fn(&str, Reply) -> anyhow::Result<String>,
) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    runtime()?.block_on(async {
        let hosts = args.destinations.iter().filter_map(|name| {
            let destination: trunkline_request::destination::Destination = name.parse().ok()?;
            Some((name.clone(), destination.host))
        });
        backend.questions().name_hosts(hosts.collect()).await;
        let answers = args.destinations.iter().enumerate().map(async |(place, name)| {
            let host = host_request(name, args.ssh.to_args())?;
            let client = match backend.is_told_to_be_private() {
                true => backend.connect().await,
                false => backend.connect_to_shared().await,
            };
            let mut client = client.with_context(|| name.clone())?;
            let talk = Conversation::new(&mut client, backend.questions()).at(place);
            line(name, answer(talk, request(host)).await?)
        });
        for answer in futures_util::future::join_all(answers).await {
            code = told(answer, code);
        }
        anyhow::Ok(())
    })?;
    Ok(code)
}

/// `trunkline close`.
pub(crate) fn close(args: &CloseArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    if args.stale {
        let removed = runtime.block_on(remove_stale(args, backend))?;
        println!("removed {}", counted(removed, "socket"));
        return Ok(ExitCode::SUCCESS);
    }
    let closed = runtime.block_on(async {
        let hosts: Vec<Option<HostRequest>> = match args.all {
            true => vec![None],
            false => args
                .destinations
                .iter()
                .map(|name| host_request(name, args.ssh.to_args()).map(Some))
                .collect::<Result<_, _>>()?,
        };
        // Of each host: how many were closed, and whether one stays open for a while.
        let mut closed = vec![(0, false); hosts.len()];
        if let Some(mut client) = backend.connect_to_look().await? {
            for ((closed, _), host) in closed.iter_mut().zip(hosts.iter().cloned()) {
                let at_once = args.now;
                match ask(&mut client, Request::Close { host, at_once }, backend).await? {
                    Reply::Closed(count) => *closed += count,
                    other => return Err(unexpected(&other)),
                }
            }
        }
        for ((closed, stays), host) in closed.iter_mut().zip(hosts) {
            let of = match host {
                None => all_masters(args.ssh.config_file().map(OsStr::to_owned))?,
                Some(host) => MastersOf::Host(Box::new(host)),
            };
            let at_once = args.now;
            let found = masters(of, MasterAction::Close { at_once }, backend).await?;
            for MasterFound { report, acted } in found {
                *closed += usize::from(acted);
                let busy = report.master.filter(|master| master.state == MasterState::Alive && !acted);
                if let Some(master) = busy
                    && let Some(sessions @ 1..) = master.sessions
                {
                    *stays = true;
                    eprintln!(
                        "trunkline: {} stays open until its {sessions} sessions end; use --now to end them at once",
                        master.socket.display()
                    );
                }
            }
        }
        anyhow::Ok(closed)
    })?;
    let count: usize = closed.iter().map(|(closed, _)| closed).sum();
    println!("closed {}", counted(count, "connection"));
    // As `ssh -O exit`: closing what is not there is an error for whoever named it.
    let mut code = ExitCode::SUCCESS;
    if !args.all {
        for (name, (closed, stays)) in args.destinations.iter().zip(closed) {
            if closed == 0 && !stays {
                eprintln!("trunkline: {}: no connection to close", Printable::line(name));
            }
            if closed == 0 {
                code = ExitCode::from(crate::OWN_ERROR);
            }
        }
    }
    Ok(code)
}

async fn remove_stale(args: &CloseArgs, backend: &Backend) -> anyhow::Result<usize> {
    let of = all_masters(args.ssh.config_file().map(OsStr::to_owned))?;
    let found = masters(of, MasterAction::RemoveStale, backend).await?;
    Ok(found.iter().filter(|found| found.acted).count())
}

/// `trunkline stop`.
pub(crate) fn stop(args: &StopArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let Some(mut client) = backend.connect_to_stop().await? else {
            println!("the daemon is not running");
            return Ok(ExitCode::SUCCESS);
        };
        match ask(&mut client, Request::Stop { at_once: args.now }, backend).await? {
            Reply::Done => Ok(ExitCode::SUCCESS),
            other => Err(unexpected(&other)),
        }
    })
}

/// Sends a request and returns its answer; shows notices and puts questions to the user on the way.
pub(crate) async fn ask(client: &mut Client, request: Request, backend: &Backend) -> anyhow::Result<Reply> {
    answer(Conversation::new(client, backend.questions()), request).await
}

async fn answer(mut talk: Conversation<'_, &mut Client>, request: Request) -> anyhow::Result<Reply> {
    talk.send(&request).await?;
    loop {
        match talk.next().await? {
            Reply::Welcome { .. } => {}
            Reply::Notice(text) => {
                let _quiet = talk.quiet().await?;
                eprintln!("{}", Printable::text(text.trim_end()));
            }
            Reply::Failed(failure) => bail!(failure.message),
            reply => return Ok(reply),
        }
    }
}

pub(crate) fn unexpected(reply: &Reply) -> anyhow::Error {
    anyhow!("unexpected reply from the daemon: {reply:?}")
}
