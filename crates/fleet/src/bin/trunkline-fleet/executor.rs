//! Commands, executed by this machine's daemon: its configuration, its known hosts, its warm connections, its audit trail.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use trunkline_control::client::{Client, ClientError, Starter};
use trunkline_control::place::Place;
use trunkline_control::protocol::{
    Exit as SessionExit, HostRequest, OnBehalf, Program, Reply, Request, SessionRequest, Stdio, Tty,
};
use trunkline_fleet::running::{Executor, Stream, Work};
use trunkline_fleet::state::Exit;
use trunkline_request::World;
use trunkline_request::failure::{ErrorKind, Execution, Failure};
use trunkline_request::ssh_options::NO_FORWARDINGS;

/// The daemon of this user on this machine.
pub(crate) struct Daemon {
    pub(crate) place: Place,
    pub(crate) world: World,
    /// Instead of the user's and the system's.
    pub(crate) ssh_config: Option<PathBuf>,
}

impl Executor for Daemon {
    fn execute(&self, work: Work) -> Pin<Box<dyn Future<Output = Exit> + Send>> {
        let (place, world) = (self.place.clone(), self.world.clone());
        let ssh_args = self
            .ssh_config
            .iter()
            .flat_map(|file| [OsString::from("-F"), file.into()]);
        let ssh_args = ssh_args.chain(NO_FORWARDINGS.map(OsString::from)).collect();
        Box::pin(async move { execute(place, world, ssh_args, work).await.unwrap_or_else(failed) })
    }
}

async fn execute(place: Place, world: World, ssh_args: Vec<OsString>, work: Work) -> Result<Exit, Failure> {
    let here = world.vantage.clone();
    let request = Request::Session(Box::new(SessionRequest {
        host: HostRequest {
            destination: work.host.destination.clone(),
            ssh_args,
            world,
        },
        program: Program::Exec(work.host.command.clone()),
        env: BTreeMap::new(),
        tty: Tty::No,
        terminal: None,
        stdio: [Stdio::Null, Stdio::Framed, Stdio::Framed],
        // There is nobody: a question is answered with no, and a host that needs the system's ssh gets it in batch mode.
        answers: false,
        ssh: None,
        limit: work.limit,
        on_behalf: Some(OnBehalf {
            submitter: work.submitter.clone(),
            job: work.job.0.clone(),
        }),
    }));
    let mut client = Client::connect_with(&place, Some(&Starter::Installed), &here, &request, &[]).await?;
    let mut is_cancelled = false;
    loop {
        let reply = tokio::select! {
            reply = client.next() => reply.map_err(after_start)?,
            () = work.cancelled.notified(), if !is_cancelled => {
                is_cancelled = true;
                client.send(&Request::Terminate).await.map_err(after_start)?;
                continue;
            }
        };
        match reply {
            Reply::Output(data) => work.output.write(Stream::Stdout, &data).await,
            Reply::ErrorOutput(data) => work.output.write(Stream::Stderr, &data).await,
            Reply::Exit(SessionExit::Status(status)) => return Ok(Exit::Status(status)),
            Reply::Exit(SessionExit::Signal(name, _)) => return Ok(Exit::Signal(name)),
            Reply::Exit(SessionExit::Unknown) => {
                let words = "the server did not report how the command ended";
                return Err(Failure::new(ErrorKind::Peer, words).after_start());
            }
            Reply::Failed(failure) => return Err(failure),
            Reply::UseSystemSsh { reasons, .. } => {
                let words = format!("needs the system's ssh: {}", reasons.join("; "));
                return Err(Failure::new(ErrorKind::Configuration, words));
            }
            _ => {}
        }
    }
}

/// The daemon had the request, and only it knows how far it came.
fn after_start(error: ClientError) -> Failure {
    Failure::from(error).after_start()
}

fn failed(failure: Failure) -> Exit {
    Exit::Failed {
        kind: failure.kind,
        message: failure.message,
        execution: match failure.execution {
            Execution::Finished => Execution::MayHaveStarted,
            other => other,
        },
    }
}
