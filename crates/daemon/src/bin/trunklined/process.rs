//! The daemon's own process, prepared so that nothing of whoever happened to start it is left for those who come later,
//! and what is in its memory stays there; and what one that serves a single program leaves as that has it.

use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// Resets what a child inherits and what can be reset: the file mode mask, the priority and the preference of the kernel when
/// memory runs out. Signals that were blocked are not: whoever starts this through Rust's `Command` has reset that. Limits stay, since a process may not raise them; control groups are the service
/// manager's.
///
/// Files that are to be seen by others get their mode after they are made, and programs that are run for a caller get the
/// caller's mask and limits.
pub(super) fn reset() {
    reset_umask();
    // Each is only possible for one who may do so; otherwise all children had it before as well.
    let _ = rustix::process::setpriority_process(None, 0);
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
}

/// The file mode mask alone.
pub(super) fn reset_umask() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Lets this process survive a signal that the terminal sends to all that run on it, as with Ctrl-C. Programs that it runs
/// begin with the default disposition; what it was started to ignore (nohup), they ignore too.
///
/// To be called inside a runtime.
pub(super) fn outlive_the_terminal() {
    let ignored: Vec<i32> = ignored_signals().collect();
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::hangup(),
        SignalKind::terminate(),
    ];
    for kind in kinds {
        if !ignored.contains(&kind.as_raw_value()) {
            forget(kind);
        }
    }
}

/// Handles a signal from now on, by doing nothing: unlike one that is ignored, programs that this process runs begin with its
/// default.
fn forget(kind: SignalKind) {
    // Its stream is not needed: the handler stays, and what comes is forgotten.
    if let Err(error) = signal(kind) {
        tracing::debug!(?kind, %error, "the signal's disposition stays as it is");
    }
}

/// Has programs that this process runs begin with the default disposition of each signal that whoever started it ignored.
/// A signal with a handler gets its default back when another program is executed, one that is ignored stays ignored
/// forever.
pub(super) fn reset_ignored_signals() {
    /// SIGPIPE is ignored by Rust's runtime, which takes care of children itself.
    const SIGPIPE: i32 = 13;
    for number in ignored_signals().filter(|number| *number != SIGPIPE) {
        forget(SignalKind::from_raw(number));
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

/// Keeps this process's memory from others of the same user. A program that it executes is not affected but for the limit on
/// core files, which the engine gives back to what it runs.
pub(super) fn keep_memory_private() {
    if let Err(error) = trunkline_control::memory::keep_private() {
        tracing::warn!("the daemon's memory can be read by programs of the same user: {error}");
    }
    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(0);
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!("the daemon may leave a core file: {error}");
    }
}
