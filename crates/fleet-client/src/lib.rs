//! The messages between `trunkline-fleet converse`, which knows NATS, and who has jobs for a fleet: the same program, which
//! shows what becomes of them, and Python.
//!
//! They are of one release, and speak over a socket that the client passes as standard input. Frames are those of the
//! [control protocol](trunkline_control::protocol).

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use trunkline_control::client::ClientError;
use trunkline_control::program::ProgramError;
use trunkline_control::socket::{FrameError, FrameReader, FrameWriter, split};
use trunkline_request::ExitStatus;
use trunkline_request::destination::Destination;
use trunkline_request::failure::Failure;

/// The most hosts in one [`FleetRequest::Hosts`], so that a frame holds them.
pub const HOSTS_IN_A_FRAME: usize = 1000;

/// The longest input of a job, in bytes, with its script.
pub const LONGEST_INPUT: u64 = 64 << 20;

/// A client's message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FleetRequest {
    /// Hosts of a job to come; several follow each other.
    Hosts(Vec<FleetHost>),
    /// Of what the commands of a job to come read; several follow each other.
    Input(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Hand the job over, with the hosts that were named.
    Submit(FleetLimits),
    /// Tell of a job that there is.
    Attach(String),
    /// Make a job of the hosts of another one that may have started there, with their commands and its limits, and hand it over.
    RetryUnknown(String),
    /// Hand a stream over, with the hosts that were named.
    Stream(FleetStream),
    /// Tell of a stream that there is.
    AttachStream(String),
    /// Follow the stream that was told of.
    Follow {
        /// The target of output: `fifo:PATH`, `unix:PATH` or `file:PATH` with an absolute path, in which `{host}` is
        /// the host's name. It is told where there is none.
        to: Option<String>,
        /// The line that is written where output may be missing or come twice. `{host}`, `{time}` and `{reason}` are replaced.
        mark: Option<String>,
    },
    /// Follow no longer: the stream goes on. Answered with the last frame once the position is kept.
    Leave,
    /// End the job: what runs is sent SIGTERM, and nothing more is started.
    Cancel,
}

/// A host, and what is run on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FleetHost {
    /// The name for people.
    pub name: String,
    /// The destination.
    pub destination: Destination,
    /// The command line.
    #[serde(with = "serde_bytes")]
    pub command: Vec<u8>,
}

/// The limits for all hosts of a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FleetLimits {
    /// On so many hosts at once, in the whole fleet.
    pub at_once: u32,
    /// So many hosts make a batch.
    pub batch: u32,
    /// The number of failures after which no more hosts are started.
    pub failures: Option<u32>,
    /// The time limit for each host.
    pub limit: Option<Duration>,
    /// The number of times that a host on which nothing may have run is tried again.
    pub retries: u32,
}

/// The restarts of a stream's commands, and the target of their output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FleetStream {
    /// The condition.
    pub restart: FleetRestart,
    /// The first pause.
    pub first: Duration,
    /// The longest one.
    pub longest: Duration,
    /// A subject of JetStream, instead of those who follow.
    pub subject: Option<String>,
}

/// The condition for starting a command again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FleetRestart {
    /// When the connection was lost.
    Lost,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A report about a host of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamNews {
    /// A node runs the command: not for the first time, where there is a reason.
    Begun(String, Option<String>),
    /// It runs no longer, and is begun again.
    Lost(String),
    /// It has ended.
    Ended(ExitStatus),
    /// It does not work.
    Failed(String),
    /// A node does not run it, or waits, for this reason.
    Waits(String),
    /// Output may be missing or come twice, for this reason.
    Gap(String),
    /// Nothing more comes. Whether the command ended with 0.
    Over(bool),
}

/// A message of the program. Hosts are numbered from 0, in the order of the job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FleetReply {
    /// The first part of what is told: the job, and how many hosts it has.
    Job {
        /// Its name.
        job: String,
        /// The number of hosts.
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
    Ended(u32, ExitStatus),
    /// Nobody started it, for this reason, and nobody will.
    NotStarted(u32, String),
    /// It did not work.
    HostFailed(u32, Failure),
    /// Something about a host of a stream.
    Stream(u32, StreamNews),
    /// Something for the user.
    Notice(String),
    /// All is told: last frame.
    Done,
    /// Nothing can be told, or no more: last frame. Says whether commands may have run.
    Failed(Failure),
}

/// The program at work for this one. It ends when this is dropped, and the job goes on, unless it was to be cancelled: then
/// it ends once it has done that.
#[derive(Debug)]
pub struct Fleet {
    replies: FrameReader,
    /// Held for a frame at a time.
    requests: Arc<Mutex<FrameWriter>>,
    /// There until this is dropped.
    child: Option<Child>,
    is_cancelled: Arc<AtomicBool>,
}

/// Cancels the job of a program at work, whoever else speaks with it.
#[derive(Debug, Clone)]
pub struct Canceller {
    /// Held for a frame at a time.
    requests: Arc<Mutex<FrameWriter>>,
    is_cancelled: Arc<AtomicBool>,
}

impl Canceller {
    /// Ends the job: what runs is sent SIGTERM, and nothing more is started. Once this returns, the program does that, whatever
    /// becomes of this process.
    ///
    /// # Errors
    /// The program is gone.
    pub async fn cancel(&self) -> Result<(), FrameError> {
        self.requests.lock().await.send(&FleetRequest::Cancel).await?;
        self.is_cancelled.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Fleet {
    /// Starts the program by this command. Must be called within a runtime.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn start(command: &[OsString]) -> Result<Self, ClientError> {
        let (program, arguments) = command
            .split_first()
            .ok_or(ProgramError::NoPath("no command".into()))?;
        let program = PathBuf::from(program);
        let failed = |error: std::io::Error| ClientError::Private {
            program: program.clone(),
            why: error.to_string(),
        };
        let (ours, its) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        its.set_nonblocking(true).map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let its: std::os::fd::OwnedFd = its.into();
        let child = Command::new(&program)
            .args(arguments)
            .stdin(Stdio::from(its))
            .stdout(Stdio::null())
            // The user's Ctrl-C is this program's affair.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (replies, requests) = split(UnixStream::from_std(ours).map_err(failed)?);
        Ok(Self {
            replies,
            requests: Arc::new(Mutex::new(requests)),
            child: Some(child),
            is_cancelled: Arc::default(),
        })
    }

    /// Says something.
    ///
    /// # Errors
    /// The program is gone.
    pub async fn send(&self, request: &FleetRequest) -> Result<(), FrameError> {
        match request {
            FleetRequest::Cancel => self.canceller().cancel().await,
            request => self.requests.lock().await.send(request).await,
        }
    }

    /// Returns the canceller of its job.
    pub fn canceller(&self) -> Canceller {
        Canceller {
            requests: self.requests.clone(),
            is_cancelled: self.is_cancelled.clone(),
        }
    }

    /// Returns the next message; `None` when the program has ended. Cancel-safe.
    ///
    /// # Errors
    /// What it says cannot be read.
    pub async fn next(&mut self) -> Result<Option<FleetReply>, FrameError> {
        self.replies.next().await
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        if self.is_cancelled.load(Ordering::Relaxed) {
            // It ends by itself, since nobody listens any more.
            std::thread::spawn(move || child.wait());
            return;
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
