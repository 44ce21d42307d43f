//! The daemon's log: its standard error, as long as that is the log file of its place.
//!
//! A server can cause log lines as often as it likes. So the rate is limited to a burst and then so much a second, and
//! at most two files of a bounded size are kept.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing_journald::Priority;
use tracing_subscriber::fmt::MakeWriter;

/// The size at which the file is put aside. There is one old file, so both take up to twice as much.
const LARGEST: u64 = 4 * 1024 * 1024;
/// Bytes that may be written in a burst, and per second after that.
const BURST: u64 = 256 * 1024;
const A_SECOND: u64 = 4 * 1024;

/// Returns the journal, if standard error is connected to it (systemd.exec(5), `JOURNAL_STREAM`) and its own socket can
/// be used.
pub(super) fn journal() -> Option<tracing_journald::Layer> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let found = rustix::fs::fstat(io::stderr()).ok()?;
    if stream != format!("{}:{}", found.st_dev, found.st_ino) {
        return None;
    }
    let layer = tracing_journald::layer().ok()?;
    Some(
        layer
            .with_priority_mappings(tracing_journald::PriorityMappings {
                error: Priority::Error,
                warn: Priority::Warning,
                info: Priority::Informational,
                debug: Priority::Debug,
                trace: Priority::Debug,
            })
            .with_field_prefix(Some("TRUNKLINE".into()))
            .with_syslog_identifier("trunklined".into()),
    )
}

/// The destination of the log's lines.
#[derive(Clone, Debug)]
pub(super) struct Log {
    /// The lock is held while a line is written.
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// The file, if this process may put it aside.
    file: Option<PathBuf>,
    /// True if excess lines are dropped.
    limited: bool,
    allowance: Allowance,
    /// Lines dropped since the last one that was written.
    left_out: u64,
}

impl Log {
    /// Returns the log of a process whose standard error is `file`. A terminal or a service manager's stream is not put
    /// aside. `limited`: excess lines are dropped.
    pub(super) fn new(file: &Path, limited: bool) -> Self {
        let file = is_stderr(file).then(|| file.to_owned());
        let log = Self {
            state: Arc::new(Mutex::new(State {
                file,
                limited,
                allowance: Allowance::new(Instant::now()),
                left_out: 0,
            })),
        };
        log.state().put_aside_if_full();
        log
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.limited && !self.allowance.take(line.len() as u64, Instant::now()) {
            self.left_out += 1;
            return Ok(());
        }
        self.put_aside_if_full();
        let mut stderr = io::stderr().lock();
        if self.left_out > 0 {
            let left_out = std::mem::take(&mut self.left_out);
            writeln!(
                stderr,
                "{left_out} lines were left out here, because there were too many"
            )?;
        }
        stderr.write_all(line)
    }

    /// Begins a new file if this one is full. Output of the user's programs counts too: it goes to the same file.
    fn put_aside_if_full(&mut self) {
        let Some(file) = &self.file else { return };
        let full = rustix::fs::fstat(io::stderr())
            .is_ok_and(|found| u64::try_from(found.st_size).is_ok_and(|size| size >= LARGEST));
        // If that fails, the file keeps growing.
        if full && let Ok(new) = put_aside(file) {
            let _ = rustix::stdio::dup2_stderr(&new);
        }
    }
}

/// Renames `file` to the old one, and creates a new one.
fn put_aside(file: &Path) -> io::Result<File> {
    let mut old = file.as_os_str().to_owned();
    old.push(".old");
    std::fs::rename(file, old)?;
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(file)
}

/// Returns true if standard error is this file.
fn is_stderr(file: &Path) -> bool {
    let (Ok(found), Ok(stderr)) = (std::fs::metadata(file), rustix::fs::fstat(io::stderr())) else {
        return false;
    };
    found.is_file() && (found.dev(), found.ino()) == (stderr.st_dev, stderr.st_ino)
}

/// A byte budget: a burst, then so much a second.
#[derive(Debug)]
struct Allowance {
    left: u64,
    at: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    /// Takes `wanted` bytes, if available. More than a whole burst passes when the budget is full.
    fn take(&mut self, wanted: u64, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.at);
        let earned = u64::try_from(elapsed.as_millis())
            .unwrap_or(u64::MAX)
            .saturating_mul(A_SECOND)
            / 1000;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(BURST);
            self.at = now;
        }
        let wanted = wanted.min(BURST);
        if wanted > self.left {
            return false;
        }
        self.left -= wanted;
        true
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line {
            log: self.clone(),
            text: Vec::new(),
        }
    }
}

/// One line of the log, written as a whole when it is dropped.
#[derive(Debug)]
pub(super) struct Line {
    log: Log,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            // A failure to write the log (a full disk) changes nothing else.
            let _ = self.log.state().write(&self.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut_to_so_much_a_second() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        let mut now = start;
        let mut written = 0;
        for _ in 0..1_000_000 {
            now += Duration::from_micros(100);
            if allowance.take(100, now) {
                written += 100;
            }
        }
        let seconds = 100;
        assert!(
            (BURST..=BURST + A_SECOND * (seconds + 1)).contains(&written),
            "{written}"
        );
        assert!(
            allowance.take(A_SECOND * 10, now + Duration::from_secs(10)),
            "silence is made up for"
        );
    }

    #[test]
    fn a_long_line_passes_when_nothing_else_did() {
        let now = Instant::now();
        assert!(Allowance::new(now).take(u64::MAX, now));
    }

    #[test]
    fn the_old_file_is_replaced_by_the_full_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("daemon.log");
        for text in ["first", "second"] {
            std::fs::write(&file, text).unwrap();
            put_aside(&file).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(
            (read("daemon.log"), read("daemon.log.old")),
            (String::new(), "second".into())
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
