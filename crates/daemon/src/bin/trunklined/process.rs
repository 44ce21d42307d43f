//! The daemon's own process: it keeps nothing of the environment that happened to start it, and its memory is private.
//! A daemon for a single program keeps that program's environment.

use rustix::fs::Mode;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// Resets what a child inherits and can reset: the file mode mask, the priority and the out-of-memory score. Blocked
/// signals need no reset, since Rust's `Command` does that. Soft limits on file sizes, CPU time and memory are raised to the
/// hard ones, which a process may not raise; control groups are the service manager's.
///
/// Files that others may read get their mode after they are created. Programs that run for a caller get the caller's
/// mask and soft limits.
pub(super) fn reset() {
    reset_umask();
    // Either may be forbidden; then all children had it before as well.
    let _ = rustix::process::setpriority_process(None, 0);
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    for resource in [Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data] {
        let mut limit = getrlimit(resource);
        limit.current = limit.maximum;
        let _ = setrlimit(resource, limit);
    }
}

/// Makes a write beyond the hard limit on file sizes (`ulimit -f`) fail instead of ending this process. The daemon can
/// work without host memory and the log.
///
/// Must be called inside a runtime.
pub(super) fn outlive_file_limits() {
    forget(SignalKind::from_raw(Signal::XFSZ.as_raw()));
}

/// Resets the file mode mask alone.
pub(super) fn reset_umask() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Lets this process survive signals from its terminal, such as Ctrl-C. Programs that it runs begin with the default
/// disposition, except for signals that it was started to ignore (nohup).
///
/// Must be called inside a runtime.
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

/// Handles a signal by doing nothing. Unlike with an ignored signal, programs that this process runs begin with the
/// default.
fn forget(kind: SignalKind) {
    // Its stream is not needed: the handler stays.
    if let Err(error) = signal(kind) {
        tracing::debug!(?kind, %error, "the signal's disposition stays as it is");
    }
}

/// Makes programs that this process runs begin with the default disposition of each signal that the starter ignored. A
/// signal with a handler gets its default back on exec; an ignored one stays ignored.
pub(super) fn reset_ignored_signals() {
    /// Rust's runtime ignores SIGPIPE, and resets it for children itself.
    const SIGPIPE: i32 = 13;
    for number in ignored_signals().filter(|number| *number != SIGPIPE) {
        forget(SignalKind::from_raw(number));
    }
}

/// Returns the ignored signals, from proc(5)'s SigIgn.
fn ignored_signals() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default();
    (1..=64).filter(move |number| mask & (1 << (number - 1)) != 0)
}

/// Makes this process's memory unreadable for other processes of the same user. Programs that it runs are unaffected
/// except for the limit on core files, which the engine restores for them.
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
