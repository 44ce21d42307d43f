//! Questions on a terminal.

use super::turn::{self, Place, Turn};
use super::{Answer, MAX_ANSWER, Prompt, Prompter};
use rustix::fs::OFlags;
use rustix::process::{Signal, getpgrp};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use zeroize::Zeroizing;

/// Asks on the terminal behind a device file, by default `/dev/tty`.
///
/// A terminal shows one question at a time, from any task or process; the others wait for their turn. Input from before
/// a question was shown does not answer it, as with readpassphrase(3).
///
/// While an answer is typed, the terminal passes on every key. The keys that interrupt, quit or suspend take effect
/// after the terminal is restored. It is also restored when the question is withdrawn, and whenever the process ends
/// except by a deadly signal from outside: see [`Self::guarded_by`]. A process in the background is stopped until it is
/// brought to the foreground, as by any attempt to change the terminal (SIGTTOU).
///
/// Needs a tokio runtime with I/O and time enabled.
#[derive(Clone)]
pub struct Terminal {
    path: PathBuf,
    guard: Option<Guard>,
    /// Shared with clones.
    interrupted: Arc<AtomicBool>,
}

/// Creates a guard that lives while the terminal's modes are changed.
type Guard = Arc<dyn Fn(BorrowedFd<'_>) -> Box<dyn Send> + Send + Sync>;

impl Default for Terminal {
    fn default() -> Self {
        Self::from_path("/dev/tty")
    }
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminal")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Terminal {
    /// Returns the terminal with the device file `path`.
    pub fn from_path(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            guard: None,
            interrupted: Arc::default(),
        }
    }

    /// Calls `guard` with the terminal before its modes are changed, and drops the result once they are restored. This
    /// is for programs that handle signals, which a library cannot do.
    #[must_use]
    pub fn guarded_by(
        mut self,
        guard: impl Fn(BorrowedFd<'_>) -> Box<dyn Send> + Send + Sync + 'static,
    ) -> Self {
        self.guard = Some(Arc::new(guard));
        self
    }

    /// Returns true if a question was ended by the terminal's interrupt or quit key. A program that handles that signal
    /// must ask nothing more: later input is for another program.
    pub fn was_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Returns true if there is a terminal to ask on.
    pub fn exists(&self) -> bool {
        self.open().is_ok()
    }

    /// Returns true if any program's question is on it. False if that cannot be determined.
    pub fn is_asking(&self) -> bool {
        let Ok(file) = self.open() else { return false };
        let (_, lock) = place_of(&self.path, &file);
        lock.and_then(|path| open(&path, false).ok())
            .is_some_and(|file| turn::is_taken(&file))
    }

    /// Waits for the turn to ask on it without a [`Prompt`]; `None` if there is no terminal.
    pub async fn turn(&self) -> Option<Turn> {
        let file = self.open().ok()?;
        let (place, lock) = place_of(&self.path, &file);
        let lock = lock.and_then(|path| open(&path, false).ok());
        Some(Turn::take(place, lock).await)
    }

    /// Opens the terminal again. The description is ours alone, so that making it non-blocking does not affect the
    /// shells and programs that share the terminal.
    fn open(&self) -> io::Result<File> {
        open(&self.path, true)
    }

    async fn answer(&self, prompt: &Prompt) -> io::Result<Option<Zeroizing<String>>> {
        let file = self.open()?;
        let (place, lock) = place_of(&self.path, &file);
        let device = register(file)?;
        loop {
            if !to_foreground(&device).await {
                return Ok(None);
            }
            let lock = lock.as_deref().and_then(|path| open(path, false).ok());
            let turn = Turn::take(place.clone(), lock).await;
            if !is_in_foreground(&device) {
                continue;
            }
            let guard = self.guard.as_ref().map(|guard| guard(device.as_fd()));
            // A carriage return first, as in ssh: it moves the question over premature input.
            let question = format!("\r{}", prompt.text_with_host());
            let typed = read_answer(&device, question.as_bytes(), prompt.echo).await?;
            drop(guard);
            drop(turn);
            let signal = match typed {
                Entry::Line(line) => {
                    return Ok(std::str::from_utf8(&line)
                        .ok()
                        .map(|s| Zeroizing::new(s.to_owned())));
                }
                Entry::End => return Ok(None),
                Entry::Signal(signal) => signal,
            };
            if signal != Signal::TSTP {
                self.interrupted.store(true, Ordering::Relaxed);
            }
            // The terminal is restored. The key now has its usual effect: its signal goes to the terminal's foreground
            // processes. A terminal that does not control us has none of ours.
            let Ok(foreground) = tcgetpgrp(&device) else {
                return Ok(None);
            };
            let _ = rustix::process::kill_process_group(foreground, signal);
            if signal != Signal::TSTP {
                return Ok(None);
            }
            // Continued after a suspension: ask again.
        }
    }
}

fn open(path: &Path, write: bool) -> io::Result<File> {
    let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("open(2)'s flags are those of a C int");
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(flags)
        .open(path)
}

/// Returns the identity of a terminal, and the file to lock against other processes.
///
/// `/dev/tty` is one file for all terminals of a machine, so the one behind it is looked up: other terminals must not
/// wait, and other users could block everyone by a lock on it.
fn place_of(path: &Path, file: &File) -> (Place, Option<PathBuf>) {
    let Ok(found) = file.metadata() else {
        return (Place::Unknown(path.to_owned()), None);
    };
    if found.rdev() != rustix::fs::makedev(5, 0) {
        return (Place::Terminal(found.rdev()), Some(path.to_owned()));
    }
    match controlling_terminal() {
        Some((device, path)) => (Place::Terminal(device), Some(path)),
        None => (Place::Unknown(path.to_owned()), None),
    }
}

/// Returns the number and path of the device behind `/dev/tty` (proc_pid_stat(5), field 7).
fn controlling_terminal() -> Option<(u64, PathBuf)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let number: u32 = rest.split_ascii_whitespace().nth(4)?.parse().ok()?;
    // The kernel's own encoding (new_encode_dev).
    let (major, minor) = (
        (number >> 8) & 0xfff,
        (number & 0xff) | ((number >> 12) & 0xf_ff00),
    );
    let path = match major {
        // UNIX98_PTY_SLAVE_MAJOR and the seven after it.
        136..=143 => format!("/dev/pts/{}", minor + (major - 136) * 256),
        4 if minor < 64 => format!("/dev/tty{minor}"),
        4 => format!("/dev/ttyS{}", minor - 64),
        _ => return None,
    };
    let device = rustix::fs::makedev(major, minor);
    let found = std::fs::metadata(&path).ok()?;
    (found.rdev() == device).then(|| (device, path.into()))
}

/// The number of times that a process is stopped before it gives up, if it is not brought to the foreground.
const STOPS: usize = 20;

/// Stops the process while it is in the background. Returns false if it cannot be stopped because it has no shell.
async fn to_foreground(device: &AsyncFd<File>) -> bool {
    for _ in 0..STOPS {
        if is_in_foreground(device) {
            return true;
        }
        let _ = rustix::process::kill_process_group(getpgrp(), Signal::TTOU);
        // The signal may take effect in another thread.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    is_in_foreground(device)
}

/// Returns true if this process may draw on a terminal and change its modes: in the background that would spoil another
/// program's screen, or stop this one (SIGTTOU). A terminal that does not control the process has no background.
pub fn is_in_foreground(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).map_or(true, |foreground| foreground == getpgrp())
}

impl Prompter for Terminal {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(async move {
            self.answer(prompt).await.unwrap_or_else(|error| {
                tracing::debug!(terminal = %self.path.display(), %error, "cannot ask on the terminal");
                None
            })
        })
    }
}

/// Input from the keyboard.
enum Entry {
    /// A line without its end.
    Line(Zeroizing<Vec<u8>>),
    /// The end of input: the terminal was closed, or its end-of-file key was pressed on an empty line.
    End,
    /// A key for a signal.
    Signal(Signal),
}

/// Asks `question` and reads a line, which is echoed if `echo`.
///
/// The terminal's own line editing is off in both cases: otherwise a key for a signal would end or stop the process
/// during the question. The few editing keys that make sense for an answer are handled here.
async fn read_answer(device: &AsyncFd<File>, question: &[u8], echo: bool) -> io::Result<Entry> {
    // In this order, so that input from a program that types as soon as it sees the question (expect) is neither echoed
    // nor flushed.
    let silenced = Silenced::new(device)?;
    write(device, question).await?;
    let mut on_screen = OnScreen {
        device,
        is_answered: false,
    };
    let key = |index: SpecialCodeIndex| {
        let code = silenced.saved.special_codes[index];
        // POSIX: 0 (_POSIX_VDISABLE on Linux, 255 on the BSDs) disables a key.
        (code != 0 && code != 0xff).then_some(code)
    };
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
    let typed = loop {
        let Some(byte) = read_byte(device).await? else {
            break Entry::End;
        };
        let is = |index| key(index) == Some(byte);
        if matches!(byte, b'\n' | b'\r') {
            break Entry::Line(line);
        } else if is(SpecialCodeIndex::VINTR) {
            break Entry::Signal(Signal::INT);
        } else if is(SpecialCodeIndex::VQUIT) {
            break Entry::Signal(Signal::QUIT);
        } else if is(SpecialCodeIndex::VSUSP) {
            break Entry::Signal(Signal::TSTP);
        } else if is(SpecialCodeIndex::VEOF) {
            break if line.is_empty() {
                Entry::End
            } else {
                Entry::Line(line)
            };
        } else if is(SpecialCodeIndex::VERASE) || matches!(byte, 0x08 | 0x7f) {
            if erase_character(&mut line) && echo {
                write(device, RUB_OUT).await?;
            }
        } else if is(SpecialCodeIndex::VKILL) {
            while erase_character(&mut line) {
                if echo {
                    write(device, RUB_OUT).await?;
                }
            }
        } else if line.len() < MAX_ANSWER {
            line.push(byte);
            if echo && byte >= b' ' {
                write(device, &[byte]).await?;
            }
        }
    };
    drop(silenced);
    // The user's line end was not echoed.
    on_screen.is_answered = true;
    write(device, b"\n").await?;
    Ok(typed)
}

/// A question on the screen. If it is withdrawn, a newline follows it, so that later output begins on a line of its
/// own.
struct OnScreen<'a> {
    device: &'a AsyncFd<File>,
    is_answered: bool,
}

impl Drop for OnScreen<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            // The descriptor does not block.
            let _ = rustix::io::write(self.device, b"\n");
        }
    }
}

/// Erases the last character on the screen.
const RUB_OUT: &[u8] = b"\x08 \x08";

/// Removes the last character, with all its bytes if it is UTF-8. Returns false if there is none.
fn erase_character(line: &mut Vec<u8>) -> bool {
    while let Some(byte) = line.pop() {
        if byte & 0xc0 != 0x80 {
            return true;
        }
    }
    false
}

/// A terminal without echo, line editing and signals, until dropped.
struct Silenced<'a> {
    device: &'a AsyncFd<File>,
    saved: Termios,
}

impl<'a> Silenced<'a> {
    fn new(device: &'a AsyncFd<File>) -> io::Result<Self> {
        let saved = tcgetattr(device)?;
        let mut silent = saved.clone();
        silent.local_modes &=
            !(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Flush: input from before the question is not its answer (readpassphrase(3)).
        tcsetattr(device, OptionalActions::Flush, &silent)?;
        Ok(Self { device, saved })
    }
}

impl Drop for Silenced<'_> {
    fn drop(&mut self) {
        // Drain, not flush: input after the answer may be for the next program.
        let _ = tcsetattr(self.device, OptionalActions::Drain, &self.saved);
    }
}

/// Registers the device with the runtime.
#[expect(
    deprecated,
    reason = "its successor `register` is unsafe, because a type could lend a descriptor it no longer owns; a File cannot"
)]
fn register(device: File) -> io::Result<AsyncFd<File>> {
    AsyncFd::new(device)
}

/// Reads one byte, so that nothing after the line is taken from the terminal's next reader; `None` at the end.
async fn read_byte(device: &AsyncFd<File>) -> io::Result<Option<u8>> {
    let mut byte = Zeroizing::new([0]);
    loop {
        let mut ready = device.readable().await?;
        match ready.try_io(|inner| inner.get_ref().read(&mut byte[..])) {
            Ok(Ok(0)) => return Ok(None),
            Ok(Ok(_)) => return Ok(Some(byte[0])),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // EIO: the other side of a pseudo-terminal is gone.
            Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                return Ok(None);
            }
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

async fn write(device: &AsyncFd<File>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = device.writable().await?;
        match ready.try_io(|inner| inner.get_ref().write(bytes)) {
            Ok(Ok(n)) => bytes = &bytes[n..],
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::PromptKind;
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStringExt as _;
    use tokio::io::unix::AsyncFd;

    /// The user's side of a pseudo-terminal.
    struct User {
        side: AsyncFd<File>,
        /// Keeps the terminal alive, and shows its modes.
        terminal: File,
        path: PathBuf,
    }

    impl User {
        fn sits_down() -> Self {
            let side: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
            grantpt(&side).unwrap();
            unlockpt(&side).unwrap();
            let path = PathBuf::from(std::ffi::OsString::from_vec(
                ptsname(&side, Vec::new()).unwrap().into_bytes(),
            ));
            let flags = rustix::fs::fcntl_getfl(&side).unwrap();
            rustix::fs::fcntl_setfl(&side, flags | OFlags::NONBLOCK).unwrap();
            let terminal = Terminal::from_path(&path).open().unwrap();
            Self {
                side: register(side.into()).unwrap(),
                terminal,
                path,
            }
        }

        fn modes(&self) -> LocalModes {
            tcgetattr(&self.terminal).unwrap().local_modes
        }

        /// Waits until the terminal shows `text`.
        async fn sees(&self, text: &str) -> String {
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains(text) {
                seen.push(read_byte(&self.side).await.unwrap().unwrap());
            }
            String::from_utf8(seen).unwrap()
        }

        async fn types(&self, keys: &str) {
            write(&self.side, keys.as_bytes()).await.unwrap();
        }

        /// Asks, types `keys` as soon as the question is shown, and returns the answer.
        async fn answers(&self, keys: &str, echo: bool) -> Option<String> {
            let terminal = Terminal::from_path(&self.path);
            let prompt = Prompt::new(PromptKind::Password, "Password: ", echo);
            let typing = async {
                self.sees("Password: ").await;
                self.types(keys).await;
            };
            let (answer, ()) = tokio::join!(terminal.ask(&prompt), typing);
            answer.map(|answer| answer.as_str().to_owned())
        }
    }

    #[tokio::test]
    async fn a_secret_is_read_without_echo_and_the_terminal_put_back() {
        let user = User::sits_down();
        let before = user.modes();
        assert_eq!(user.answers("sesam\r", false).await.as_deref(), Some("sesam"));
        assert_eq!(user.modes(), before);
        user.types("visible\n").await;
        let seen = user.sees("visible").await;
        assert!(!seen.contains("sesam"), "{seen:?}");
    }

    #[tokio::test]
    async fn an_answer_that_may_be_seen_is_echoed() {
        let user = User::sits_down();
        assert_eq!(user.answers("yes\n", true).await.as_deref(), Some("yes"));
        user.sees("yes").await;
    }

    #[tokio::test]
    async fn editing_keys_work_unseen() {
        let user = User::sits_down();
        assert_eq!(
            user.answers("wrong\x15aé\x7fbc\x7f\n", false).await.as_deref(),
            Some("ab")
        );
    }

    #[tokio::test]
    async fn what_follows_the_line_is_left_for_the_next_reader() {
        let user = User::sits_down();
        assert_eq!(
            user.answers("first\nsecond\n", true).await.as_deref(),
            Some("first")
        );
        let next = register(Terminal::from_path(&user.path).open().unwrap()).unwrap();
        for expected in b"second" {
            assert_eq!(read_byte(&next).await.unwrap(), Some(*expected));
        }
    }

    #[tokio::test]
    async fn what_was_typed_too_early_answers_nothing() {
        for echo in [true, false] {
            let user = User::sits_down();
            user.types("yes\n").await;
            user.sees("yes").await;
            assert_eq!(user.answers("no\n", echo).await.as_deref(), Some("no"), "{echo}");
        }
    }

    #[tokio::test]
    async fn one_question_is_on_the_terminal_at_a_time() {
        let user = User::sits_down();
        let terminal = Terminal::from_path(&user.path);
        let question = |host: &str, echo| {
            let mut prompt = Prompt::new(PromptKind::Password, "Say: ", echo);
            prompt.host = host.to_owned();
            prompt
        };
        let (first, second) = (question("me@one", false), question("me@two", true));
        let typing = async {
            let seen = user.sees("Say: ").await;
            assert!(seen.contains("me@one") && !seen.contains("me@two"), "{seen:?}");
            user.types("for one\n").await;
            let seen = user.sees("Say: ").await;
            assert!(seen.contains("me@two") && !seen.contains("for one"), "{seen:?}");
            user.types("for two\n").await;
        };
        let (one, two, ()) = tokio::join!(terminal.ask(&first), terminal.ask(&second), typing);
        assert_eq!(one.unwrap().as_str(), "for one");
        assert_eq!(two.unwrap().as_str(), "for two");
    }

    #[tokio::test]
    async fn a_guard_lives_while_the_modes_are_changed() {
        let user = User::sits_down();
        let (log, before) = (Arc::new(std::sync::Mutex::new(Vec::new())), user.modes());
        struct Guard(Box<dyn Fn() + Send>);
        impl Drop for Guard {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let noted = log.clone();
        let path = user.path.clone();
        let terminal = Terminal::from_path(&user.path).guarded_by(move |device| {
            noted.lock().unwrap().push(tcgetattr(device).unwrap().local_modes);
            let (noted, path) = (noted.clone(), path.clone());
            Box::new(Guard(Box::new(move || {
                let now = tcgetattr(Terminal::from_path(&path).open().unwrap()).unwrap();
                noted.lock().unwrap().push(now.local_modes);
            })))
        });
        let prompt = Prompt::new(PromptKind::Password, "Password: ", false);
        let typing = async {
            user.sees("Password: ").await;
            user.types("x\n").await;
        };
        tokio::join!(terminal.ask(&prompt), typing).0.unwrap();
        assert_eq!(*log.lock().unwrap(), [before, before]);
    }

    #[tokio::test]
    async fn giving_up_is_no_answer_and_the_terminal_is_put_back() {
        for key in ["\x03", "\x1c", "\x1a", "\x04"] {
            let user = User::sits_down();
            let before = user.modes();
            assert_eq!(user.answers(key, false).await, None, "{key:?}");
            assert_eq!(user.modes(), before);
        }
    }

    #[tokio::test]
    async fn a_question_taken_back_leaves_the_terminal_as_it_was() {
        let user = User::sits_down();
        let before = user.modes();
        let terminal = Terminal::from_path(&user.path);
        let prompt = Prompt::new(PromptKind::Passphrase, "Passphrase: ", false);
        let taken_back = async {
            user.sees("Passphrase: ").await;
            assert!(!user.modes().contains(LocalModes::ECHO));
        };
        tokio::select! {
            _ = terminal.ask(&prompt) => panic!("nobody answered"),
            () = taken_back => {}
        }
        // Later output begins on a line of its own.
        user.sees("\r\n").await;
        assert_eq!(user.modes(), before);
    }

    #[tokio::test]
    async fn without_a_terminal_there_is_no_answer() {
        let terminal = Terminal::from_path("/nowhere/tty");
        assert!(!terminal.exists());
        assert!(
            terminal
                .ask(&Prompt::new(PromptKind::Password, "? ", false))
                .await
                .is_none()
        );
    }
}
