//! The descriptors of this process: those that it was started with, and how many it may have.

use std::os::fd::AsRawFd as _;

use rustix::fs::{Dir, Mode, OFlags};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors beyond these are closed where /proc does not tell which there are.
const GUESSED: i32 = 1024;

/// Closes every descriptor but the standard streams: a lock or a secret file of the caller's would otherwise stay open for
/// as long as this process runs, and be handed on to what it runs. As ssh's `closefrom`.
///
/// `kept` are files that the arguments name by their descriptors.
///
/// To be called before anything of this process's own is open, and before it has a second thread.
pub fn close_inherited(kept: &[i32]) {
    if has_standard_streams_only() {
        return;
    }
    let open = list_open().unwrap_or_else(|_| (0..GUESSED).collect());
    for fd in open.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)) {
        // Nothing could be done about one that is not open.
        let _ = nix::unistd::close(fd);
    }
}

/// Returns whether there is nothing to close, as for most programs, in one system call: Linux tells since 6.2 as the
/// directory's size how many descriptors there are. Rust's start has opened the three where the caller had closed them.
fn has_standard_streams_only() -> bool {
    std::fs::metadata("/proc/self/fd").is_ok_and(|directory| directory.len() == 3)
}

fn list_open() -> rustix::io::Result<Vec<i32>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
    let itself = directory.as_raw_fd();
    let mut open = Vec::new();
    for entry in Dir::new(directory)? {
        let number = entry?
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.parse::<i32>().ok());
        open.extend(number.filter(|fd| *fd != itself));
    }
    Ok(open)
}

/// A client brings up to four descriptors, a connection is one: thousands do not fit into the usual limit of 1024.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit on open files stays as it is: {error}");
    }
}
