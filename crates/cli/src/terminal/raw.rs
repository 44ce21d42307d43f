//! Raw mode: what is typed goes to the server untouched, and the terminal is given back whatever happens.

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

/// A terminal in raw mode for as long as this lives.
///
/// The terminal gets its modes back when this is dropped (by a panic too), when SIGINT, SIGQUIT, SIGTERM or
/// SIGHUP ends the process, and while the process is stopped: SIGTSTP restores, SIGCONT enters raw mode
/// again. From the first [`enter`](Self::enter) of a terminal on, these signals do in this process what they
/// do by default, after the terminal was restored; a signal that the process was started to ignore (nohup) is
/// left alone.
///
/// For anything but a terminal it does nothing, so callers need not ask first. A process has one terminal:
/// while a `RawMode` lives, a second one does nothing either.
#[derive(Debug)]
pub(crate) struct RawMode {
    terminal: Option<Arc<Terminal>>,
}

impl RawMode {
    /// Puts the terminal that `terminal` refers to (usually standard input) into raw mode.
    pub(crate) fn enter(terminal: impl AsFd) -> Self {
        Self {
            terminal: Self::try_enter(terminal),
        }
    }

    /// Watches over a terminal whose modes are about to be changed by others, to ask a question: where a signal ends or
    /// stops the process meanwhile, it gets back the modes that it has now.
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
            // Of its own, so that it can be restored after the caller has closed its end.
            fd: fcntl_dupfd_cloexec(terminal, 0).ok()?,
            state: Mutex::default(),
        });
        {
            let mut current = lock(&CURRENT);
            if current.is_some() {
                return None;
            }
            // Known to the signal thread before anything changes: no signal can fall between the two.
            *current = Some(Arc::clone(&terminal));
        }
        watch_signals();
        Some(terminal)
    }

    /// The modes the terminal had before; `None` when this does nothing.
    #[cfg(test)]
    pub(crate) fn saved_modes(&self) -> Option<&Termios> {
        self.terminal.as_ref().map(|terminal| &terminal.saved)
    }

    /// Gives the terminal back until [`resume`](Self::resume), to ask the user something.
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

    /// Stops the process, as `~^Z` asks for, and returns when it is continued. The window may have another
    /// size then.
    ///
    /// # Errors
    /// The system's error when the process could not be stopped; the terminal is in raw mode again.
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
            // Restored first: a signal in between finds nothing left to do.
            terminal.pause();
            *lock(&CURRENT) = None;
        }
    }
}

/// The terminal that signals must restore. Global because signals are.
static CURRENT: Mutex<Option<Arc<Terminal>>> = Mutex::new(None);

#[derive(Debug)]
struct Terminal {
    fd: OwnedFd,
    saved: Termios,
    raw: Mutex<Termios>,
    /// Held while the modes are changed, so that a signal and the owner do not cross.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The owner wants raw mode: SIGCONT may enter it.
    wanted: bool,
    /// Raw mode was entered and not left.
    entered: bool,
    /// Others change the modes: those to come back to are the ones that the terminal has when it is left.
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

    /// SIGCONT.
    fn handle_continue(&self) {
        let mut state = lock(&self.state);
        if state.wanted {
            self.enter(&mut state);
        }
    }

    /// The process is about to be stopped or killed. Never waits: neither for output that nobody reads, nor
    /// for an owner that waits for it in [`pause`](Self::pause).
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

    /// Does nothing in the background: raw mode is entered when the shell brings the process to the
    /// foreground, which sends SIGCONT.
    fn enter(&self, state: &mut State) {
        // TCSADRAIN as in OpenSSH's enter_raw_mode(): what was typed ahead is kept.
        if is_in_foreground(&self.fd) && tcsetattr(&self.fd, OptionalActions::Drain, &lock(&self.raw)).is_ok()
        {
            state.entered = true;
        }
    }

    fn leave(&self, state: &mut State, when: OptionalActions) {
        // A terminal that is gone (EIO after a hang-up) has no modes to restore, and one that belongs to
        // another job now has had them restored by the shell.
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

/// The modes that OpenSSH's `enter_raw_mode()` sets. Unlike cfmakeraw(3), it keeps the character size, and
/// drops what arrives with a parity error.
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

/// Starts, once in a process, the thread that restores the terminal before a signal takes effect, and returns
/// when it is on guard. Where it cannot start, the terminal is still restored in every case but a signal's.
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

/// Never ends: a signal that was once caught would be lost for good without it.
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

/// From now on a panic, in whichever thread, restores the terminal and ends the process with ssh's exit status for errors of
/// its own: what is shipped unwinds nothing, and leaves no core with what the user typed.
pub fn restore_at_a_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Held by the thread that panicked, or for a moment by another one that changes it: not to be waited for.
        let terminal = CURRENT.try_lock().ok().and_then(|current| current.clone());
        if let Some(terminal) = terminal {
            terminal.handle_interrupt();
        }
        match cfg!(panic = "abort") {
            // Without a backtrace, which says nothing to those who have the program only.
            true => eprintln!("trunkline: {panic}"),
            false => print(panic),
        }
        std::process::exit(crate::OWN_ERROR.into());
    }));
}

/// SIGINT, SIGTERM and SIGHUP are handled elsewhere in the program.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Says that the program handles SIGINT, SIGTERM and SIGHUP itself: here, they only restore the terminal from now on.
pub(crate) fn signals_are_handled() {
    HANDLED.store(true, Ordering::Release);
}

/// SIGINT is handled elsewhere in the program, and may not be meant for the process.
static INTERRUPT_HANDLED: AtomicBool = AtomicBool::new(false);

/// Says that the program handles SIGINT itself: from now on it does nothing here, and does not even restore the terminal.
pub(crate) fn interrupt_is_handled() {
    INTERRUPT_HANDLED.store(true, Ordering::Release);
}

/// The signals this process ignores, one bit each (proc_pid_status(5), `SigIgn`); none where /proc is
/// missing.
pub(super) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// A lock that a panic elsewhere does not take away: restoring the terminal matters then most of all.
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

    /// A fresh pseudo-terminal: the master's end and the slave's.
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

    /// One terminal at a time is raw in a process, so the tests that enter take turns.
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

    /// Not a test by itself: the process that the tests below send signals to. With [`IN_CHILD`] set it holds
    /// its standard input in raw mode and waits, or first suspends itself where the variable says "suspend", or
    /// panics where it says "panic".
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
