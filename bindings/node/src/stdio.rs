//! The targets of a session's streams other than JavaScript: descriptors of this process, FIFOs, sockets and files,
//! which the engine or the daemon reads and writes itself.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use napi_derive::napi;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use trunkline_embed::{Route, Target};

use crate::fault::Fault;

/// The kind of a stream.
#[napi(string_enum = "lowercase")]
#[derive(Debug, Clone, Copy)]
pub enum StdioKind {
    /// JavaScript's.
    Pipe,
    /// Nothing.
    Ignore,
    /// A descriptor.
    Fd,
    /// Whatever a path names.
    Path,
}

/// One of a session's streams, as JavaScript says it.
#[napi(object)]
pub struct StdioOption {
    /// Its kind.
    pub kind: StdioKind,
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
        Ok(match (option.kind, option.fd, &option.path) {
            (StdioKind::Fd, Some(fd), _) => Self::Fd(duplicate(fd)?),
            (StdioKind::Path, _, Some(path)) => Self::Path(path.clone()),
            (StdioKind::Ignore, ..) => Self::Ignore,
            (StdioKind::Pipe | StdioKind::Fd | StdioKind::Path, ..) => Self::Pipe,
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

/// Opens what was named. Waits for nobody at the other end.
pub(crate) async fn routes(choices: [Choice; 3], directory: &Path) -> Result<[Route; 3], Fault> {
    let [stdin, stdout, stderr] = choices;
    let stdin = match stdin {
        Choice::Path(path) => Route::from_path(&directory.join(path)).await?,
        choice => output(choice, directory).await?,
    };
    Ok([
        stdin,
        output(stdout, directory).await?,
        output(stderr, directory).await?,
    ])
}

async fn output(choice: Choice, directory: &Path) -> Result<Route, Fault> {
    Ok(match choice {
        Choice::Pipe => Route::Pipe,
        Choice::Ignore => Route::Ignore,
        Choice::Fd(fd) => Route::Fd(fd),
        Choice::Path(path) => {
            let target = path.parse().unwrap_or_else(|_| Target::Path(PathBuf::from(path)));
            Route::to_target(&target.seen_from(directory)).await?
        }
    })
}
