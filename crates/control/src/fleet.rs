//! What `trunkline run --fleet` and the program `trunkline-fleet` say to each other. The client shows; the program knows NATS.
//!
//! They are of one release, and speak over a socket that the client passes as standard input. Frames are those of the
//! [control protocol](crate::protocol).

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use trunkline_request::destination::Destination;
use trunkline_request::failure::Failure;

use crate::client::ClientError;
use crate::program;
use crate::protocol::Exit;
use crate::socket::{FrameError, FrameReader, FrameWriter, split};

/// The most hosts in one [`FleetRequest::Hosts`], so that a frame holds them.
pub const HOSTS_IN_A_FRAME: usize = 1000;

/// What the client says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FleetRequest {
    /// Hosts of a job to come; several follow each other.
    Hosts(Vec<FleetHost>),
    /// Hand the job over, with the hosts that were named.
    Submit(FleetLimits),
    /// Tell of a job that there is.
    Attach(String),
    /// Make a job of the hosts of another one that may have started there, with their commands and its limits, and hand it over.
    RetryUnknown(String),
    /// End the job: what runs is sent SIGTERM, and nothing more is started.
    Cancel,
}

/// A host, and what is run on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FleetHost {
    /// What people call it.
    pub name: String,
    /// Where it is.
    pub destination: Destination,
    /// The command line.
    #[serde(with = "serde_bytes")]
    pub command: Vec<u8>,
}

/// What holds for all hosts of a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FleetLimits {
    /// On so many hosts at once, in the whole fleet.
    pub at_once: u32,
    /// So many hosts make a batch.
    pub batch: u32,
    /// When more than so many have failed, no more are started.
    pub failures: Option<u32>,
    /// How long each host may take.
    pub limit: Option<Duration>,
}

/// What the program says. Hosts are numbered from 0, in the order of the job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FleetReply {
    /// The first part of what is told: the job, and how many hosts it has.
    Job {
        /// Its name.
        job: String,
        /// How many.
        hosts: u32,
    },
    /// The hosts, in their order; several follow each other.
    Hosts(Vec<(String, Destination)>),
    /// A node is executing the command on this host.
    Started(u32),
    /// Output of a host.
    Output(u32, #[serde(with = "serde_bytes")] Vec<u8>),
    /// Error output of a host.
    ErrorOutput(u32, #[serde(with = "serde_bytes")] Vec<u8>),
    /// So many messages of the output of a host are lost.
    Incomplete(u32, u64),
    /// The command has ended.
    Ended(u32, Exit),
    /// Nobody started it, for this reason, and nobody will.
    NotStarted(u32, String),
    /// It did not work.
    HostFailed(u32, Failure),
    /// Something for the user.
    Notice(String),
    /// All is told: last frame.
    Done,
    /// Nothing can be told, or no more: last frame. Says whether commands may have run.
    Failed(Failure),
}

/// The program at work for this one. It ends when this is dropped, and the job goes on.
#[derive(Debug)]
pub struct Fleet {
    replies: FrameReader,
    requests: FrameWriter,
    child: Child,
}

impl Fleet {
    /// Starts the program. Must be called within a runtime.
    ///
    /// # Errors
    /// It is not installed, or cannot be run.
    pub fn start() -> Result<Self, ClientError> {
        let program = program::find_fleet()?;
        let failed = |error: std::io::Error| ClientError::Private {
            program: program.clone(),
            why: error.to_string(),
        };
        let (ours, its) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        its.set_nonblocking(true).map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let its: std::os::fd::OwnedFd = its.into();
        let child = Command::new(&program)
            .arg("converse")
            .stdin(Stdio::from(its))
            .stdout(Stdio::null())
            // The user's Ctrl-C is this program's affair.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (replies, requests) = split(UnixStream::from_std(ours).map_err(failed)?);
        Ok(Self {
            replies,
            requests,
            child,
        })
    }

    /// Says something.
    ///
    /// # Errors
    /// The program is gone.
    pub async fn send(&self, request: &FleetRequest) -> Result<(), FrameError> {
        self.requests.send(request).await
    }

    /// What it says next; `None` where it has ended. Cancel-safe.
    ///
    /// # Errors
    /// What it says cannot be read.
    pub async fn next(&mut self) -> Result<Option<FleetReply>, FrameError> {
        self.replies.next().await
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
