//! Programs started for a caller: by this process, or by the caller, at whose terminal they can ask.

use std::ffi::{OsStr, OsString};
use std::io::{self, pipe};
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::net::unix::pipe::{Receiver, Sender};
use trunkline_request::World;

use crate::lent::{End, Lent};
use crate::program::local_program;

/// A program with pipes for its standard streams, in a process group of its own.
#[derive(Debug)]
pub struct Child {
    /// The standard input.
    pub stdin: Sender,
    /// The standard output.
    pub stdout: Receiver,
    /// The standard error.
    pub stderr: Receiver,
    pub process: Process,
}

/// The process of a [`Child`].
#[derive(Debug)]
pub enum Process {
    Own(tokio::process::Child),
    /// A child of the caller's.
    Lent(Lent),
}

impl Child {
    /// Starts `program` in `world`: at its caller's terminal, if the caller lends one and `may_ask`. If it asks at this
    /// process's own terminal it is killed.
    ///
    /// # Errors
    /// It cannot be run.
    pub async fn start(
        program: impl AsRef<OsStr>,
        arguments: &[OsString],
        world: &World,
        may_ask: bool,
    ) -> io::Result<Self> {
        let (input, stdin) = pipe()?;
        let (stdout, output) = pipe()?;
        let (stderr, errors) = pipe()?;
        let streams: [OwnedFd; 3] = [input.into(), output.into(), errors.into()];
        let lent = match may_ask {
            true => Lent::start(program.as_ref(), arguments, world, &streams).await,
            false => None,
        };
        let lent = match lent {
            None => Lent::start_refused(program.as_ref(), arguments, world, &streams).await,
            started => started,
        };
        let process = match lent {
            Some(started) => Process::Lent(started?),
            None => {
                let [input, output, errors] = streams;
                let mut command = local_program(program, world);
                command.args(arguments).process_group(0);
                command.stdin(input).stdout(output).stderr(errors);
                Process::Own(command.spawn()?)
            }
        };
        Ok(Self {
            stdin: Sender::from_owned_fd(stdin.into())?,
            stdout: Receiver::from_owned_fd(stdout.into())?,
            stderr: Receiver::from_owned_fd(stderr.into())?,
            process,
        })
    }
}

impl Process {
    /// Waits for its end.
    ///
    /// # Errors
    /// The caller that started it has left without reporting the end.
    pub async fn wait(&mut self) -> io::Result<End> {
        match self {
            Self::Own(child) => Ok(End::Exited {
                success: child.wait().await?.success(),
                asked: false,
            }),
            Self::Lent(lent) => lent.wait().await,
        }
    }

    pub async fn wait_until_gone(&mut self) {
        match self {
            Self::Own(child) => drop(child.wait().await),
            Self::Lent(lent) => lent.wait_until_gone().await,
        }
    }

    /// Notes that it will not ask again: the caller gets its terminal back.
    pub fn give_back_terminal(&self) {
        if let Self::Lent(lent) = self {
            lent.give_back();
        }
    }

    /// Returns true if it can ask on its caller's terminal.
    pub fn may_ask(&self) -> bool {
        matches!(self, Self::Lent(_))
    }

    /// Sends it a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        match self {
            Self::Own(child) => {
                // There is no number once it was waited for, since it may have been reused.
                if let Some(process) = pid(child) {
                    let _ = kill_process(process, signal);
                }
            }
            Self::Lent(lent) => lent.signal(signal),
        }
    }

    /// Kills it and the rest of its process group.
    pub fn kill_group(&self) {
        match self {
            Self::Own(child) => {
                if let Some(process) = pid(child) {
                    let _ = kill_process_group(process, Signal::KILL);
                }
            }
            Self::Lent(lent) => lent.kill_group(),
        }
    }
}

fn pid(child: &tokio::process::Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}
