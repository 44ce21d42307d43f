//! What the daemon makes of its own process, so that nothing of whoever happened to start it is left for those who come later,
//! and what is in its memory stays there.

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// Descriptors beyond these are closed where /proc does not tell which there are.
const GUESSED: i32 = 1024;

/// Closes every descriptor but the standard streams: a lock or a secret file of the caller's would otherwise stay open for
/// as long as this process runs, and be handed on to what it runs. As ssh's `closefrom`.
///
/// `kept` are files that the arguments name by their descriptors.
///
/// To be called before anything of this process's own is open, and before it has a second thread.
pub(crate) fn close_inherited(kept: &[i32]) {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter_map(|name| name.to_str()?.parse().ok())
            .collect::<Vec<i32>>()
    });
    let open = listed.unwrap_or_else(|_| (0..GUESSED).collect());
    for fd in open.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)) {
        // One that is not open any more is the folder's that was read.
        let _ = nix::unistd::close(fd);
    }
}

/// Resets what a child inherits and what can be reset: the file mode mask, the priority and the preference of the kernel when
/// memory runs out. Signals that were blocked are not: whoever starts this through Rust's `Command` has reset that. Limits stay, since a process may not raise them; control groups are the service
/// manager's.
///
/// Files that are to be seen by others get their mode after they are made, and programs that are run for a caller get the
/// caller's mask and limits.
pub(crate) fn reset() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    // Each is only possible for one who may do so; otherwise all children had it before as well.
    let _ = rustix::process::setpriority_process(None, 0);
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
}

/// Has programs that this process runs begin with the default disposition of each signal that whoever started it ignored.
/// A signal with a handler gets its default back when another program is executed, one that is ignored stays ignored
/// for ever.
pub(crate) fn reset_ignored_signals() {
    /// SIGPIPE is ignored by Rust's runtime, which takes care of children itself.
    const SIGPIPE: i32 = 13;
    for number in ignored_signals().filter(|number| *number != SIGPIPE) {
        // Its stream is not needed: the handler stays, and what comes is forgotten.
        if let Err(error) = signal(SignalKind::from_raw(number)) {
            tracing::debug!(number, %error, "the signal stays ignored");
        }
    }
}

/// The signals that are ignored, from proc(5)'s SigIgn.
fn ignored_signals() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default();
    (1..=64).filter(move |number| mask & (1 << (number - 1)) != 0)
}

/// Keeps this process's memory, in which there are keys and passwords, from others of the same user: no debugger attaches,
/// /proc/PID/mem and the like are root's, and no core file is written. A program that it executes is not affected but for
/// the limit, which the engine gives back to what it runs.
pub(crate) fn keep_memory_private() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("the daemon's memory can be read by programs of the same user: {error}");
    }
    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(0);
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!("the daemon may leave a core file: {error}");
    }
}
