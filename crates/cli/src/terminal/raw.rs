//! Raw mode: typed bytes go to the server unchanged, and the terminal is always restored.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use trunkline_control::terminal::modes::IUCLC;
use trunkline_local::prompt::is_in_foreground;

/// A terminal in raw mode while this exists.
///
/// The terminal gets its modes back when this is dropped (by a panic too), when SIGINT, SIGQUIT, SIGTERM or SIGHUP ends
/// the process, and while the process is stopped: SIGTSTP restores them, SIGCONT enters raw mode again. After the first
/// [`enter`](Self::enter), these signals take their default action once the terminal is restored. A signal that the
/// process was started to ignore (nohup) stays ignored.
///
/// For anything but a terminal this does nothing. A process has one terminal: while a `RawMode` exists, a second one
/// does nothing either.
#[derive(Debug)]
pub(crate) struct RawMode {
    terminal: Option<Arc<Terminal>>,
}

impl RawMode {
    /// Puts `terminal` (usually standard input) into raw mode.
    pub(crate) fn enter(terminal: impl AsFd) -> Self {
        Self {
            terminal: Self::try_enter(terminal),
        }
    }

    /// Guards a terminal whose modes others are about to change for a question: if a signal ends or stops the process
    /// meanwhile, the terminal gets its current modes back.
    pub(crate) fn guard(terminal: impl AsFd) -> Self {
        Self {
            terminal: Self::try_guard(terminal),
        }
    }

    fn try_enter(terminal: impl AsFd) -> Option<Arc<Terminal>> {
        let saved = tcgetattr(&terminal).ok()?;
        let terminal = Self::watch(terminal, raw(&saved), saved)?;
        terminal.resume();
        Some(terminal)
    }

    fn try_guard(terminal: impl AsFd) -> Option<Arc<Terminal>> {
        let saved = tcgetattr(&terminal).ok()?;
        let terminal = Self::watch(terminal, saved.clone(), saved)?;
        let mut state = lock(&terminal.state);
        (state.wanted, state.entered, state.foreign) = (true, true, true);
        drop(state);
        Some(terminal)
    }

    fn watch(terminal: impl AsFd, raw: Termios, saved: Termios) -> Option<Arc<Terminal>> {
        let terminal = Arc::new(Terminal {
            raw: Mutex::new(raw),
            saved,
            // A duplicate, which can be restored after the caller has closed its descriptor.
            fd: fcntl_dupfd_cloexec(terminal, 0).ok()?,
            state: Mutex::default(),
        });
        {
            let mut current = lock(&CURRENT);
            if current.is_some() {
                return None;
            }
            // The signal thread knows the terminal before anything changes, so that no signal is missed.
            *current = Some(Arc::clone(&terminal));
        }
        watch_signals();
        Some(terminal)
    }

    /// Returns the terminal's original modes; `None` if this does nothing.
    #[cfg(test)]
    pub(crate) fn saved_modes(&self) -> Option<&Termios> {
        self.terminal.as_ref().map(|terminal| &terminal.saved)
    }

    /// Restores the terminal until [`resume`](Self::resume), to ask the user something.
    pub(crate) fn pause(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.pause();
        }
    }

    /// Enters raw mode again after [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.resume();
        }
    }

    /// Stops the process, for `~^Z`, and returns when it is continued. The window may have another size then.
    ///
    /// # Errors
    /// The system's error if the process could not be stopped; the terminal is in raw mode again.
    pub(crate) fn suspend(&self) -> io::Result<()> {
        self.pause();
        let stopped = emulate_default_handler(SIGTSTP);
        self.resume();
        stopped
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal {
            // Restored first, so that a signal in between has nothing to do.
            terminal.pause();
            *lock(&CURRENT) = None;
        }
    }
}

/// The terminal to restore on signals. Global because signals are.
static CURRENT: Mutex<Option<Arc<Terminal>>> = Mutex::new(None);

#[derive(Debug)]
struct Terminal {
    fd: OwnedFd,
    saved: Termios,
    raw: Mutex<Termios>,
    /// Locked while the modes are changed, so that a signal and the owner do not interfere.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The owner wants raw mode, so SIGCONT may enter it.
    wanted: bool,
    /// Raw mode is active.
    entered: bool,
    /// Others change the modes: leaving saves the current modes, and resuming sets them again.
    foreign: bool,
}

impl Terminal {
    fn resume(&self) {
        let mut state = lock(&self.state);
        state.wanted = true;
        self.enter(&mut state);
    }

    fn pause(&self) {
        let mut state = lock(&self.state);
        state.wanted = false;
        self.leave(&mut state, OptionalActions::Drain);
    }

    /// Handles SIGCONT.
    fn handle_continue(&self) {
        let mut state = lock(&self.state);
        if state.wanted {
            self.enter(&mut state);
        }
    }

    /// Restores the terminal before the process is stopped or killed. Never blocks: neither on unread output, nor on an
    /// owner that is in [`pause`](Self::pause).
    fn handle_interrupt(&self) {
        match self.state.try_lock() {
            Ok(mut state) => self.leave(&mut state, OptionalActions::Now),
            Err(_) => {
                let mut unknown = State {
                    wanted: false,
                    entered: true,
                    foreign: false,
                };
                self.leave(&mut unknown, OptionalActions::Now);
            }
        }
    }

    /// Does nothing in the background: the shell sends SIGCONT when it brings the process to the foreground.
    fn enter(&self, state: &mut State) {
        // TCSADRAIN as in OpenSSH's enter_raw_mode(), which keeps typed input.
        if is_in_foreground(&self.fd) && tcsetattr(&self.fd, OptionalActions::Drain, &lock(&self.raw)).is_ok()
        {
            state.entered = true;
        }
    }

    fn leave(&self, state: &mut State, when: OptionalActions) {
        // A terminal that is gone (EIO after a hang-up) has no modes to restore. If it belongs to another job now, the
        // shell has restored them.
        if std::mem::take(&mut state.entered) && is_in_foreground(&self.fd) {
            if state.foreign
                && let Ok(now) = tcgetattr(&self.fd)
            {
                *lock(&self.raw) = now;
            }
            _ = tcsetattr(&self.fd, when, &self.saved);
        }
    }
}

/// Returns the modes that OpenSSH's `enter_raw_mode()` sets. Unlike cfmakeraw(3), they keep the character size, and
/// drop bytes with a parity error.
fn raw(saved: &Termios) -> Termios {
    let mut raw = saved.clone();
    raw.input_modes.insert(InputModes::IGNPAR);
    raw.input_modes.remove(
        InputModes::ISTRIP
            | InputModes::INLCR
            | InputModes::IGNCR
            | InputModes::ICRNL
            | InputModes::IXON
            | InputModes::IXANY
            | InputModes::IXOFF
            | InputModes::from_bits_retain(IUCLC),
    );
    raw.local_modes.remove(
        LocalModes::ISIG
            | LocalModes::ICANON
            | LocalModes::ECHO
            | LocalModes::ECHOE
            | LocalModes::ECHOK
            | LocalModes::ECHONL
            | LocalModes::IEXTEN,
    );
    raw.output_modes.remove(OutputModes::OPOST);
    raw.special_codes[SpecialCodeIndex::VMIN] = 1;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    raw
}

/// Starts, once in a process, the thread that restores the terminal before a signal takes effect, and returns when it
/// is ready. If it cannot start, the terminal is restored in all cases but signals.
fn watch_signals() {
    static WATCHED: OnceLock<()> = OnceLock::new();
    WATCHED.get_or_init(|| {
        let (on_guard, ready) = channel();
        let thread = std::thread::Builder::new().name("terminal-signals".into());
        if thread.spawn(move || guard_terminal(&on_guard)).is_ok() {
            // An error means that the thread gave up.
            _ = ready.recv();
        }
    });
}

/// Never ends, since a signal that was once caught would have no effect without it.
fn guard_terminal(on_guard: &Sender<()>) {
    let ignored = ignored_signals();
    let watched = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT]
        .into_iter()
        .filter(|&signal| ignored & (1 << (signal - 1)) == 0);
    let Ok(mut signals) = Signals::new(watched) else {
        return;
    };
    _ = on_guard.send(());
    for signal in signals.forever() {
        if signal == SIGINT && INTERRUPT_HANDLED.load(Ordering::Acquire) {
            continue;
        }
        let terminal = lock(&CURRENT).clone();
        if signal == SIGCONT {
            if let Some(terminal) = terminal {
                terminal.handle_continue();
            }
            continue;
        }
        if let Some(terminal) = terminal {
            terminal.handle_interrupt();
        }
        let ends = matches!(signal, SIGINT | SIGTERM | SIGHUP);
        if !(ends && HANDLED.load(Ordering::Acquire)) {
            _ = emulate_default_handler(signal);
        }
    }
}

/// Makes a panic in any thread restore the terminal and end the process with ssh's exit status for its own errors.
/// Release builds do not unwind, and leave no core file with the user's input.
pub fn restore_at_a_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // The lock may be held by the thread that panicked, or briefly by another one, so this must not block.
        let terminal = CURRENT.try_lock().ok().and_then(|current| current.clone());
        if let Some(terminal) = terminal {
            terminal.handle_interrupt();
        }
        match cfg!(panic = "abort") {
            // Without a backtrace, which is useless without the source.
            true => eprintln!("trunkline: {panic}"),
            false => print(panic),
        }
        std::process::exit(crate::OWN_ERROR.into());
    }));
}

/// SIGINT, SIGTERM and SIGHUP are handled elsewhere in the program.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Notes that the program handles SIGINT, SIGTERM and SIGHUP itself: here they only restore the terminal.
pub(crate) fn signals_are_handled() {
    HANDLED.store(true, Ordering::Release);
}

/// SIGINT is handled elsewhere in the program, and may not be meant for the process.
static INTERRUPT_HANDLED: AtomicBool = AtomicBool::new(false);

/// Notes that the program handles SIGINT itself: here it has no effect, and does not even restore the terminal.
pub(crate) fn interrupt_is_handled() {
    INTERRUPT_HANDLED.store(true, Ordering::Release);
}

/// Returns the signals that this process ignores, one bit each (proc_pid_status(5), `SigIgn`); none if /proc is
/// missing.
pub(super) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Locks even after a panic elsewhere, when restoring the terminal matters most.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// Opens a new pseudo-terminal, and returns the master's end and the slave's.
    pub(in crate::terminal) fn pty() -> (OwnedFd, File) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal opens");
        grantpt(&master).expect("a pseudo-terminal is granted");
        unlockpt(&master).expect("a pseudo-terminal unlocks");
        let name = ptsname(&master, Vec::new()).expect("a pseudo-terminal has a name");
        let path = name.to_str().expect("a device's name is ASCII").to_owned();
        // O_NOCTTY, or the test runner's session could adopt it.
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).expect("the slave's end opens");
        (master, slave.into())
    }

    fn is_raw(terminal: &File) -> bool {
        let modes = tcgetattr(terminal).expect("a terminal has modes");
        !modes
            .local_modes
            .intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
            && !modes.output_modes.contains(OutputModes::OPOST)
    }

    /// Only one terminal at a time can be raw in a process, so these tests take turns.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn the_terminal_is_restored_on_drop_and_on_panic() {
        let _turn = lock(&TURN);
        let (_master, slave) = pty();
        let modes = || format!("{:?}", tcgetattr(&slave).expect("a terminal has modes"));
        let before = modes();
        let raw = RawMode::enter(&slave);
        assert!(is_raw(&slave));
        assert_eq!(
            raw.saved_modes().map(|saved| format!("{saved:?}")),
            Some(before.clone())
        );
        raw.pause();
        assert_eq!(modes(), before);
        raw.resume();
        assert!(is_raw(&slave));
        drop(raw);
        assert_eq!(modes(), before);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _raw = RawMode::enter(&slave);
            assert!(!is_raw(&slave), "raw mode, and so this panics");
        }));
        assert!(panicked.is_err());
        assert_eq!(modes(), before);
    }

    #[test]
    fn only_one_guard_changes_the_terminal() {
        let _turn = lock(&TURN);
        let (_master, slave) = pty();
        let first = RawMode::enter(&slave);
        drop(RawMode::enter(&slave));
        assert!(is_raw(&slave));
        drop(first);
        assert!(!is_raw(&slave));
    }

    #[test]
    fn what_is_no_terminal_is_left_alone() {
        let null = File::open("/dev/null").expect("/dev/null opens");
        let raw = RawMode::enter(&null);
        raw.pause();
        raw.resume();
        assert!(raw.saved_modes().is_none());
    }

    const IN_CHILD: &str = "TRUNKLINE_TEST_RAW_MODE_CHILD";
    const CHILD: &str = "terminal::raw::tests::child_in_raw_mode";

    /// Not a test by itself: the process that the tests below send signals to. With [`IN_CHILD`] set, it puts its
    /// standard input into raw mode and waits. If the variable says "suspend" or "panic", it first does that.
    #[test]
    fn child_in_raw_mode() {
        let Some(role) = std::env::var_os(IN_CHILD) else {
            return;
        };
        let raw = RawMode::enter(io::stdin());
        match role.to_str() {
            Some("suspend") => raw.suspend().expect("a process can stop itself"),
            Some("panic") => {
                restore_at_a_panic();
                panic!("as asked for");
            }
            _ => {}
        }
        eprintln!("ready");
        loop {
            std::thread::park();
        }
    }

    fn child(role: &str) -> (OwnedFd, File, Child) {
        let (master, slave) = pty();
        let child = Command::new(std::env::current_exe().expect("a test knows its program"))
            .args(["--exact", CHILD, "--nocapture"])
            .env(IN_CHILD, role)
            .stdin(slave.try_clone().expect("a file clones"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a test starts itself");
        (master, slave, child)
    }

    fn wait_until_ready(child: &mut Child) {
        let stderr = BufReader::new(child.stderr.take().expect("a child's stderr is piped"));
        assert!(
            stderr.lines().map_while(Result::ok).any(|line| line == "ready"),
            "the child gets ready"
        );
    }

    fn wait_until_stopped(child: &Child) {
        let state = waitpid(Some(Pid::from_child(child)), WaitOptions::UNTRACED);
        let stopped = state
            .expect("a child can be waited for")
            .is_some_and(|(_, status)| status.stopped());
        assert!(stopped, "the child stops and does not end");
    }

    #[test]
    fn a_deadly_signal_restores_the_terminal_and_still_kills() {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let (_master, slave, mut child) = child("wait");
            wait_until_ready(&mut child);
            assert!(is_raw(&slave));
            kill_process(Pid::from_child(&child), signal).expect("a child takes signals");
            let status = child.wait().expect("a child ends");
            assert_eq!(status.signal(), Some(signal.as_raw()));
            assert!(!is_raw(&slave), "{signal:?}");
        }
    }

    #[test]
    fn a_panic_restores_the_terminal_and_ends_the_program_with_an_error_of_its_own() {
        let (_master, slave, child) = child("panic");
        let ended = child.wait_with_output().expect("a child ends");
        assert_eq!(ended.status.code(), Some(i32::from(crate::OWN_ERROR)));
        let printed = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(printed.contains("as asked for"), "{printed}");
        assert!(!is_raw(&slave));
    }

    #[test]
    fn a_signal_that_is_ignored_from_the_start_stays_ignored() {
        let (_master, slave) = pty();
        let mut child = Command::new("sh")
            .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().expect("a test knows its program"))
            .args(["--exact", CHILD, "--nocapture"])
            .env(IN_CHILD, "wait")
            .stdin(slave.try_clone().expect("a file clones"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test needs the program sh");
        wait_until_ready(&mut child);
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::HUP).expect("a child takes signals");
        kill_process(pid, Signal::TERM).expect("a child takes signals");
        let status = child.wait().expect("a child ends");
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
        assert!(!is_raw(&slave));
    }

    #[test]
    fn a_stopped_process_gives_the_terminal_back_and_takes_it_again() {
        let (_master, slave, mut child) = child("wait");
        wait_until_ready(&mut child);
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TSTP).expect("a child takes signals");
        wait_until_stopped(&child);
        assert!(!is_raw(&slave));
        kill_process(pid, Signal::CONT).expect("a child takes signals");
        // Bounded only so that a failure ends the test.
        let hung = Instant::now() + Duration::from_secs(30);
        while !is_raw(&slave) {
            assert!(Instant::now() < hung, "SIGCONT leads back to raw mode");
            std::thread::yield_now();
        }
        child.kill().expect("a child can be killed");
        child.wait().expect("a child ends");
    }

    #[test]
    fn suspending_stops_the_process_with_the_terminal_restored() {
        let (_master, slave, mut child) = child("suspend");
        wait_until_stopped(&child);
        assert!(!is_raw(&slave));
        kill_process(Pid::from_child(&child), Signal::CONT).expect("a child takes signals");
        wait_until_ready(&mut child);
        assert!(is_raw(&slave));
        child.kill().expect("a child can be killed");
        child.wait().expect("a child ends");
    }
}
