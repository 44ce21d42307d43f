//! Where a session's streams go beside JavaScript: descriptors of this process, FIFOs, sockets and files, which the engine or
//! the daemon reads and writes itself.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use napi_derive::napi;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use trunkline_daemon::sink::{Sink, Target, open_input};

use crate::fault::Fault;

/// One of a session's streams, as JavaScript says it.
#[napi(object)]
pub struct StdioOption {
    /// "pipe", "ignore", "fd" or "path".
    pub kind: String,
    /// A descriptor of this process.
    pub fd: Option<i32>,
    /// A path, or a target as of `trunkline stream`.
    pub path: Option<String>,
}

/// The same, with descriptors that are ours.
pub(crate) enum Choice {
    Pipe,
    Ignore,
    Fd(OwnedFd),
    Path(String),
}

impl Choice {
    /// Takes what JavaScript says: its descriptor may be closed when this has returned.
    pub(crate) fn take(option: &StdioOption) -> Result<Self, Fault> {
        Ok(match (option.kind.as_str(), option.fd, &option.path) {
            ("fd", Some(fd), _) => Self::Fd(duplicate(fd)?),
            ("path", _, Some(path)) => Self::Path(path.clone()),
            ("ignore", ..) => Self::Ignore,
            _ => Self::Pipe,
        })
    }
}

/// A descriptor that JavaScript knows by its number. pidfd_getfd(2) is the one way to duplicate a bare number that Rust
/// calls safe.
fn duplicate(fd: i32) -> Result<OwnedFd, Fault> {
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    own.and_then(|own| pidfd_getfd(own, fd, PidfdGetfdFlags::empty()))
        .map_err(|error| match error {
            rustix::io::Errno::BADF => Fault::usage(&format!("{fd} is not an open file descriptor")),
            error => Fault::local(&format!(
                "the file descriptor {fd} cannot be used ({error}): give /proc/self/fd/{fd}"
            )),
        })
}

/// Where one stream goes.
pub(crate) enum Route {
    /// To JavaScript, or from it.
    Pipe,
    /// Nowhere; from nowhere.
    Ignore,
    Fd(OwnedFd),
    Sink(Sink),
}

impl Route {
    /// What is passed to the daemon.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Fd(fd) => Some(fd.as_fd()),
            Self::Sink(sink) => Some(sink.descriptor()),
            Self::Pipe | Self::Ignore => None,
        }
    }

    /// Waits until what was written to it has been taken.
    pub(crate) async fn taken(&self) {
        if let Self::Sink(sink) = self {
            sink.taken().await;
        }
    }

    async fn input(choice: Choice, folder: &Path) -> Result<Self, Fault> {
        Ok(match choice {
            Choice::Pipe => Self::Pipe,
            Choice::Ignore => Self::Ignore,
            Choice::Fd(fd) => Self::Fd(fd),
            Choice::Path(path) => Self::Fd(open_input(&folder.join(path)).await?),
        })
    }

    async fn output(choice: Choice, folder: &Path) -> Result<Self, Fault> {
        Ok(match choice {
            Choice::Pipe => Self::Pipe,
            Choice::Ignore => Self::Ignore,
            Choice::Fd(fd) => Self::Fd(fd),
            Choice::Path(path) => {
                let target = path.parse().unwrap_or_else(|_| Target::Path(PathBuf::from(path)));
                Self::Sink(Sink::open(&target.seen_from(folder), None).await?)
            }
        })
    }
}

/// Where all three go.
pub(crate) struct Routes {
    pub(crate) stdin: Route,
    pub(crate) stdout: Route,
    pub(crate) stderr: Route,
}

impl Routes {
    /// Opens what was named. Waits for nobody at the other end.
    pub(crate) async fn open(choices: [Choice; 3], folder: &Path) -> Result<Self, Fault> {
        let [stdin, stdout, stderr] = choices;
        Ok(Self {
            stdin: Route::input(stdin, folder).await?,
            stdout: Route::output(stdout, folder).await?,
            stderr: Route::output(stderr, folder).await?,
        })
    }
}
