//! One session of a client of the control socket. It is [`Asked`] for, finds its [`Place`] on the engine's connections
//! or in the system's ssh, becomes a [`Spec`](spec::Spec), and is started and [`Running`](running::Running) to its end.
//! A session of stock ssh starts with a `Spec` of its own.

pub(crate) mod asked;
pub(crate) mod events;
pub(crate) mod forwards;
mod hosted;
pub(crate) mod listening;
pub(crate) mod log;
pub(crate) mod observers;
mod place;
pub(crate) mod running;
pub(crate) mod spec;
mod ssh_words;
pub(crate) mod streams;

use std::os::fd::OwnedFd;

use tokio::sync::mpsc;
use trunkline::Error;

use crate::protocol::{Failure, Program, Reply, Request};
use asked::Asked;
use hosted::Hosted;
use place::Place;

/// Runs a session to its end and returns the last frame. `inputs` has its client's requests about it, and ends when the
/// client is gone.
pub(crate) async fn run(asked: &Asked<'_>, fds: Vec<OwnedFd>, inputs: mpsc::Receiver<Request>) -> Reply {
    let error = match try_run(asked, fds, inputs).await {
        Ok(reply) => {
            asked.observers.audit.end_by(&reply);
            return reply;
        }
        Err(error) => error,
    };
    asked.observers.audit.fail(&error);
    let mut failure = Failure::from(&error);
    if asked.is_for_ssh() {
        let program = &asked.request.program;
        let request = crate::reports::engine_request(&asked.request.host);
        let config = asked.engine.resolve(&request).await.ok();
        let meant = config
            .as_ref()
            .map(|config| spec::resolve_program(config, program, true));
        let meant = meant.and_then(Result::ok).unwrap_or_else(|| program.clone());
        failure.in_words_of_ssh = ssh_words::describe(&error, config.as_deref(), &meant);
    }
    Reply::Failed(failure)
}

async fn try_run(
    asked: &Asked<'_>,
    fds: Vec<OwnedFd>,
    inputs: mpsc::Receiver<Request>,
) -> Result<Reply, Error> {
    if let Program::Incoming(number) = asked.request.program {
        return Box::pin(hosted::carry_incoming(asked, number, fds, inputs)).await;
    }
    match Place::find(asked).await? {
        Place::SystemSsh(ssh) => ssh.run(asked, fds, inputs).await,
        Place::Engine(host) => {
            let warm = host.is_warm();
            Hosted { asked, host, warm }.run(fds, inputs).await
        }
    }
}
