//! A pseudo-terminal, and somebody who types and reads.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OutputModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::home::{PATIENCE, end_of};

/// A terminal with a program that it controls.
pub(crate) struct Terminal {
    master: File,
    /// Kept open, so that the modes can be looked at when the program is gone.
    slave: OwnedFd,
    child: Child,
    screen: Arc<Screen>,
    /// Up to where `expect` has read.
    seen: usize,
}

/// A string to a terminal that does nothing (ECMA-48, APC).
const END: &[u8] = b"\x1b_end\x1b\\";

#[derive(Default)]
struct Screen {
    text: Mutex<Vec<u8>>,
    grown: Condvar,
    is_slow: AtomicBool,
}

impl Terminal {
    /// Starts a program as the leader of the terminal's session, in a window of 80 by 24.
    pub(crate) fn start(command: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        set_size(&master, 80, 24);
        // setsid(1) makes its standard input the controlling terminal and then becomes the program.
        let mut leader = Command::new("setsid");
        leader
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        let end = || slave.try_clone().unwrap();
        let child = leader.stdin(end()).stdout(end()).stderr(end()).spawn();
        let child = child.expect("setsid is needed (util-linux)");
        drop(leader);
        let screen = Arc::<Screen>::default();
        let mut output = File::from(master.try_clone().unwrap());
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                lock(&shown.text).extend_from_slice(&bytes[..n]);
                shown.grown.notify_all();
                if shown.is_slow.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(4));
                }
            }
        });
        Self {
            master: master.into(),
            slave,
            child,
            screen,
            seen: 0,
        }
    }

    /// Waits for a text, reads up to its end, and returns what was before it.
    #[track_caller]
    pub(crate) fn expect(&mut self, wanted: &str) -> String {
        let started = Instant::now();
        let mut text = lock(&self.screen.text);
        loop {
            let unread = &text[self.seen..];
            let found = unread
                .windows(wanted.len())
                .position(|window| window == wanted.as_bytes());
            if let Some(at) = found {
                let before = String::from_utf8_lossy(&unread[..at]).into_owned();
                self.seen += at + wanted.len();
                return before;
            }
            if started.elapsed() > PATIENCE {
                let shown = String::from_utf8_lossy(unread).into_owned();
                drop(text);
                panic!("no {wanted:?} on the terminal, but {shown:?}");
            }
            let waited = self.screen.grown.wait_timeout(text, PATIENCE);
            text = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a text, and then types.
    #[track_caller]
    pub(crate) fn answer(&mut self, wanted: &str, typed: &str) {
        self.expect(wanted);
        self.send(typed);
    }

    /// Everything shown so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.screen.text)).into_owned()
    }

    /// From now on it takes about a megabyte a second, as terminals do that draw much.
    pub(crate) fn becomes_slow(&self) {
        self.screen.is_slow.store(true, Ordering::Relaxed);
    }

    /// Types.
    pub(crate) fn send(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the window another size, of which its foreground processes are told.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        set_size(&self.master, columns, rows);
    }

    /// The terminal's modes.
    pub(crate) fn modes(&self) -> Modes {
        Modes::from(tcgetattr(self.slave.as_fd()).unwrap())
    }

    /// The program's process.
    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Waits for the program's end, and until all that it wrote is shown.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let status = end_of(&mut self.child, "the program on the terminal");
        // What comes last through the terminal comes after everything else.
        rustix::io::write(&self.slave, END).unwrap();
        let mut text = lock(&self.screen.text);
        while !text.ends_with(END) {
            let (shown, waited) = self
                .screen
                .grown
                .wait_timeout(text, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner);
            text = shown;
            assert!(!waited.timed_out(), "the terminal's output does not end");
        }
        let length = text.len() - END.len();
        text.truncate(length);
        status
    }
}

fn set_size(master: impl AsFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(master, size).unwrap();
}

/// Locks the text, which a failed test may have left: it is shown all the same.
fn lock(text: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the terminal\n{}\n---", self.text());
        }
    }
}

/// The modes of a terminal that a program may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Modes {
    local: u32,
    input: u32,
    output: u32,
    keys: Vec<u8>,
}

impl Modes {
    /// Returns whether lines are edited and shown, and signals made, by this terminal.
    pub(crate) fn is_cooked(&self) -> bool {
        let cooked = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        let local = LocalModes::from_bits_retain(self.local);
        local.contains(cooked) && OutputModes::from_bits_retain(self.output).contains(OutputModes::OPOST)
    }
}

impl From<Termios> for Modes {
    fn from(modes: Termios) -> Self {
        use rustix::termios::SpecialCodeIndex as Key;
        let keys = [
            Key::VINTR,
            Key::VEOF,
            Key::VERASE,
            Key::VSUSP,
            Key::VMIN,
            Key::VTIME,
        ];
        Self {
            local: modes.local_modes.bits(),
            input: modes.input_modes.bits(),
            output: modes.output_modes.bits(),
            keys: keys.map(|key| modes.special_codes[key]).to_vec(),
        }
    }
}
