//! The descriptors of this process: inherited ones, and their maximum number.

use std::os::fd::AsRawFd as _;

use rustix::fs::{Dir, Mode, OFlags};
use rustix::process::{Resource, getrlimit, setrlimit};

/// The number of descriptors to close if /proc is missing.
const GUESSED: i32 = 1024;

/// Closes every descriptor but the standard streams, like ssh's `closefrom`. A lock or a secret file of the caller's
/// would otherwise stay open in this process and its children.
///
/// `kept` are files that the arguments name by their descriptors.
///
/// Must be called before this process opens anything or has a second thread.
pub fn close_inherited(kept: &[i32]) {
    if has_standard_streams_only() {
        return;
    }
    let open = list_open().unwrap_or_else(|_| (0..GUESSED).collect());
    for fd in open.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)) {
        // An error means that it is not open.
        let _ = nix::unistd::close(fd);
    }
}

/// Returns true if there is nothing to close, as for most programs, with one system call: since 6.2 Linux gives the
/// number of descriptors as the directory's size. Rust's runtime has opened the three standard streams if the caller
/// had closed them.
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

/// Raises the limit: a client brings up to four descriptors and its connection is one, so thousands exceed the usual
/// limit of 1024.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit on open files stays as it is: {error}");
    }
}
