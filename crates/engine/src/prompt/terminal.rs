//! Asking on a terminal.

use super::{Answer, MAX_ANSWER, Prompt, Prompter};
use rustix::fs::OFlags;
use rustix::process::Signal;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use tokio::io::unix::AsyncFd;
use zeroize::Zeroizing;

/// Asks on the terminal behind a device file, `/dev/tty` unless said otherwise.
///
/// While a secret is typed the terminal shows nothing and passes every key on; the keys that interrupt, quit or
/// suspend are acted on after the terminal has been put back as it was. So it is too when the question
/// is taken back, and at every end of the process but a deadly signal from outside.
///
/// Needs a tokio runtime with I/O enabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    path: PathBuf,
}

impl Default for Terminal {
    fn default() -> Self {
        Self::at("/dev/tty")
    }
}

impl Terminal {
    /// The terminal with the device file `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Whether there is a terminal to ask on.
    pub fn exists(&self) -> bool {
        self.open().is_ok()
    }

    /// Opens it anew. The descriptor is ours alone, so that making it non-blocking changes nothing for the
    /// shells and programs that share the terminal.
    fn open(&self) -> io::Result<File> {
        let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).expect("open(2)'s flags are those of a C int");
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&self.path)
    }

    async fn answer(&self, prompt: &Prompt) -> io::Result<Option<Zeroizing<String>>> {
        let device = register(self.open()?)?;
        loop {
            // A carriage return first, as ssh does: it moves the question over what was typed too early.
            let question = format!("\r{}", prompt.text);
            let typed = if prompt.echo {
                write(&device, question.as_bytes()).await?;
                read_line(&device).await?
            } else {
                read_secret(&device, question.as_bytes()).await?
            };
            let signal = match typed {
                Typed::Line(line) => {
                    return Ok(std::str::from_utf8(&line)
                        .ok()
                        .map(|s| Zeroizing::new(s.to_owned())));
                }
                Typed::End => return Ok(None),
                Typed::Signal(signal) => signal,
            };
            // The terminal is as it was. The key does now what it does elsewhere: its signal goes to the terminal's
            // foreground processes. A terminal that does not control us has none of ours.
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

/// What came from the keyboard.
enum Typed {
    /// A line, without its end.
    Line(Zeroizing<Vec<u8>>),
    /// The end of input: the terminal was closed, or its end-of-file key was hit on an empty line.
    End,
    /// A key that asks for a signal.
    Signal(Signal),
}

/// Reads a line with the terminal's own editing and echo; nothing about the terminal changes.
async fn read_line(device: &AsyncFd<File>) -> io::Result<Typed> {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
    loop {
        let byte = match read_byte(device).await? {
            Some(byte) => byte,
            None if line.is_empty() => return Ok(Typed::End),
            None => return Ok(Typed::Line(line)),
        };
        match byte {
            b'\n' | b'\r' => return Ok(Typed::Line(line)),
            // As in readpassphrase(3), what is too long is read and dropped.
            byte if line.len() < MAX_ANSWER => line.push(byte),
            _ => {}
        }
    }
}

/// Asks `question` and reads a line that is not shown.
///
/// The terminal's line editing has to be off, for with it the keys that make signals do so while echo is off; the few
/// editing keys that make sense without seeing the line are done here.
async fn read_secret(device: &AsyncFd<File>, question: &[u8]) -> io::Result<Typed> {
    // In this order: a program that types as soon as it sees the question (expect) is neither echoed nor flushed away.
    let silenced = Silenced::new(device)?;
    write(device, question).await?;
    let key = |index: SpecialCodeIndex| {
        let code = silenced.saved.special_codes[index];
        // POSIX: 0 (_POSIX_VDISABLE on Linux and the BSDs' 255) switches a key off.
        (code != 0 && code != 0xff).then_some(code)
    };
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
    let typed = loop {
        let Some(byte) = read_byte(device).await? else {
            break Typed::End;
        };
        let is = |index| key(index) == Some(byte);
        if matches!(byte, b'\n' | b'\r') {
            break Typed::Line(line);
        } else if is(SpecialCodeIndex::VINTR) {
            break Typed::Signal(Signal::INT);
        } else if is(SpecialCodeIndex::VQUIT) {
            break Typed::Signal(Signal::QUIT);
        } else if is(SpecialCodeIndex::VSUSP) {
            break Typed::Signal(Signal::TSTP);
        } else if is(SpecialCodeIndex::VEOF) {
            break if line.is_empty() {
                Typed::End
            } else {
                Typed::Line(line)
            };
        } else if is(SpecialCodeIndex::VERASE) || matches!(byte, 0x08 | 0x7f) {
            erase_character(&mut line);
        } else if is(SpecialCodeIndex::VKILL) {
            line.clear();
        } else if line.len() < MAX_ANSWER {
            line.push(byte);
        }
    };
    drop(silenced);
    // The user's line end was not shown either.
    write(device, b"\n").await?;
    Ok(typed)
}

/// Takes the last character away, all of its bytes if it is UTF-8.
fn erase_character(line: &mut Vec<u8>) {
    while let Some(byte) = line.pop() {
        if byte & 0xc0 != 0x80 {
            break;
        }
    }
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
        // Flush: what was typed before the question is not its answer (readpassphrase(3)).
        tcsetattr(device, OptionalActions::Flush, &silent)?;
        Ok(Self { device, saved })
    }
}

impl Drop for Silenced<'_> {
    fn drop(&mut self) {
        // Drain, not flush: what follows the answer may be input for the next program.
        let _ = tcsetattr(self.device, OptionalActions::Drain, &self.saved);
    }
}

/// Lets the runtime watch the device.
#[expect(
    deprecated,
    reason = "its successor `register` is unsafe, because a type could lend a descriptor it no longer owns; a File cannot"
)]
fn register(device: File) -> io::Result<AsyncFd<File>> {
    AsyncFd::new(device)
}

/// One byte, so that nothing behind the line is taken from whoever reads the terminal next; `None` at the end.
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
        /// Keeps the terminal in existence, and shows its modes.
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
            let terminal = Terminal::at(&path).open().unwrap();
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
            let terminal = Terminal::at(&self.path);
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
        assert_eq!(user.answers("", true).await.as_deref(), Some("second"));
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
        let terminal = Terminal::at(&user.path);
        let prompt = Prompt::new(PromptKind::Passphrase, "Passphrase: ", false);
        let taken_back = async {
            user.sees("Passphrase: ").await;
            assert!(!user.modes().contains(LocalModes::ECHO));
        };
        tokio::select! {
            _ = terminal.ask(&prompt) => panic!("nobody answered"),
            () = taken_back => {}
        }
        assert_eq!(user.modes(), before);
    }

    #[tokio::test]
    async fn without_a_terminal_there_is_no_answer() {
        let terminal = Terminal::at("/nowhere/tty");
        assert!(!terminal.exists());
        assert!(
            terminal
                .ask(&Prompt::new(PromptKind::Password, "? ", false))
                .await
                .is_none()
        );
    }
}
