//! Commands, executed by this machine's daemon, which has the configuration, the known hosts, the open connections and
//! the audit trail.

use std::ffi::OsString;
use std::future::Future;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use trunkline_control::client::{Client, ClientError, Starter};
use trunkline_control::place::Place;
use trunkline_control::protocol::{
    ExitStatus, HostRequest, OnBehalf, Program, Reply, Request, SessionRequest, Stdio,
};
use trunkline_fleet::input::Input;
use trunkline_fleet::running::{Executor, Stream, Work};
use trunkline_fleet::state::Exit;
use trunkline_request::World;
use trunkline_request::failure::{ErrorKind, Execution, Failure};
use trunkline_request::ssh_options::NO_FORWARDINGS;

/// The daemon of this user on this machine.
pub(crate) struct Daemon {
    pub(crate) place: Place,
    pub(crate) world: World,
    /// The ssh_config to use instead of the user's and the system's.
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
        Box::pin(async move {
            execute(place, world, ssh_args, work)
                .await
                .unwrap_or_else(failed_exit)
        })
    }
}

async fn execute(place: Place, world: World, ssh_args: Vec<OsString>, work: Work) -> Result<Exit, Failure> {
    let here = world.vantage.clone();
    let (read_end, mut feeding) = match &work.input {
        Some(input) => {
            let (sender, receiver) = pipe::pipe().map_err(|error| of_this_machine(&error))?;
            let read_end = receiver
                .into_blocking_fd()
                .map_err(|error| of_this_machine(&error))?;
            (Some(read_end), Some(Box::pin(feed(input.clone(), sender))))
        }
        None => (None, None),
    };
    let stdin = read_end.as_ref().map_or(Stdio::Null, |_| Stdio::Passed);
    let host = HostRequest::new(work.host.destination.clone(), ssh_args, world);
    let program = Program::Exec(work.host.command.clone());
    // No user is present: each question is answered with no, and the system's ssh runs in batch mode for hosts that
    // need it.
    let request = Request::Session(Box::new(SessionRequest {
        limit: work.limit,
        on_behalf: Some(OnBehalf {
            submitter: work.submitter.clone(),
            job: work.job.0.clone(),
        }),
        ..SessionRequest::new(host, program, [stdin, Stdio::Framed, Stdio::Framed])
    }));
    let passed: Vec<BorrowedFd<'_>> = read_end.iter().map(OwnedFd::as_fd).collect();
    let mut client =
        Client::connect_with(&place, Some(&Starter::Installed), &here, &request, &passed).await?;
    // Only the daemon may have the reading end, so that the writer notices when the command has ended.
    drop(passed);
    drop(read_end);
    let mut is_cancelled = false;
    let mut not_whole = None;
    loop {
        let reply = tokio::select! {
            reply = client.next() => reply.map_err(after_start)?,
            () = work.cancelled.notified(), if !is_cancelled => {
                is_cancelled = true;
                client.send(&Request::Terminate).await.map_err(after_start)?;
                continue;
            }
            Some(fed) = async { Some(feeding.as_mut()?.await) }, if feeding.is_some() => {
                feeding = None;
                if let Err(cut) = fed {
                    // The end of the input is not sent, so that nobody takes the part so far for all of it.
                    not_whole = Some(cut);
                    client.send(&Request::Terminate).await.map_err(after_start)?;
                }
                continue;
            }
        };
        if let (Some((why, _)), Reply::Exit(_) | Reply::Failed(_)) = (&not_whole, &reply) {
            let words = format!("the job's input cannot be read on this node: {why}");
            return Err(Failure::new(ErrorKind::Local, words).after_start());
        }
        match reply {
            Reply::Output(data) => work.output.write(Stream::Stdout, &data).await,
            Reply::ErrorOutput(data) => work.output.write(Stream::Stderr, &data).await,
            Reply::Exit(ExitStatus::Exited(status)) => return Ok(Exit::Status(status)),
            Reply::Exit(ExitStatus::Signaled { signal: name, .. }) => return Ok(Exit::Signal(name)),
            Reply::Exit(ExitStatus::Unknown) => {
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

/// The reason why an input was not passed on completely, and the pipe, still open.
type NotWhole = (std::io::Error, pipe::Sender);

/// Writes a job's input for one host, then its end. Returns early if nobody reads it any more.
async fn feed(input: Arc<Input>, mut sender: pipe::Sender) -> Result<(), NotWhole> {
    let mut place = 0;
    loop {
        let data = match input.read_at(place).await {
            Ok(data) if data.is_empty() => return Ok(()),
            Ok(data) => data,
            Err(error) => return Err((error, sender)),
        };
        if sender.write_all(&data).await.is_err() {
            return Ok(());
        }
        place += data.len() as u64;
    }
}

fn of_this_machine(error: &std::io::Error) -> Failure {
    Failure::new(ErrorKind::Local, format!("a pipe for the job's input: {error}"))
}

/// Makes the failure of a request that the daemon has received: only the daemon knows how far it got.
fn after_start(error: ClientError) -> Failure {
    Failure::from(error).after_start()
}

fn failed_exit(failure: Failure) -> Exit {
    Exit::Failed {
        kind: failure.kind,
        message: failure.message,
        execution: match failure.execution {
            Execution::Finished => Execution::MayHaveStarted,
            other => other,
        },
    }
}
