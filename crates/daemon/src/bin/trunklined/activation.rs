//! A socket that a service manager listens on and hands over (sd_listen_fds(3)).

use std::os::unix::net::UnixListener;

use anyhow::Context as _;
use listenfd::ListenFd;

/// The number of the first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;

/// Returns their numbers; none if they are meant for another process.
pub(super) fn descriptors() -> Vec<i32> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|count| i32::try_from(count).ok());
    (FIRST..FIRST + count.unwrap_or_default()).collect()
}

/// Returns the control socket, if it was handed over.
///
/// # Errors
/// More than one descriptor, or no Unix socket, was handed over.
pub(super) fn socket() -> anyhow::Result<Option<UnixListener>> {
    let mut handed_over = ListenFd::from_env();
    anyhow::ensure!(
        handed_over.len() <= 1,
        "the service manager hands over {} sockets: one is wanted, the control socket",
        handed_over.len()
    );
    let socket = handed_over
        .take_unix_listener(0)
        .context("the socket that the service manager hands over")?;
    if let Some(socket) = &socket {
        // Keeps it from programs that this process runs.
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok(socket)
}
