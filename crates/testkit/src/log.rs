//! Log files of servers, which tests wait for, and which are printed when a test fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Error;

/// The time limit for everything that the kit waits for: long enough for a loaded machine, and short enough for a
/// person.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The interval between reads of a log file while something is awaited in it.
const POLL: Duration = Duration::from_millis(2);

/// The number of lines of a log that are printed when a test fails.
const TOLD: usize = 80;

/// The log of a server so far.
#[derive(Debug, Clone)]
pub struct ServerLog {
    path: PathBuf,
}

impl ServerLog {
    pub(crate) fn at_path(path: PathBuf) -> ServerLog {
        ServerLog { path }
    }

    /// Returns the file that the server writes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns everything logged since the fixture was made. When the server is restarted, it appends.
    pub fn text(&self) -> String {
        // A missing log counts as an empty log.
        fs::read(&self.path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Returns the number of lines that contain `pattern`.
    pub fn count(&self, pattern: &str) -> usize {
        self.count_lines(|line| line.contains(pattern))
    }

    pub(crate) fn count_lines(&self, matches: impl Fn(&str) -> bool) -> usize {
        self.text().lines().filter(|line| matches(line)).count()
    }

    /// Waits until at least `times` lines contain `pattern`.
    ///
    /// # Errors
    /// [`Error::Timeout`], with the log, after a minute.
    pub async fn wait_for(&self, pattern: &str, times: usize) -> Result<(), Error> {
        let started = Instant::now();
        while self.count(pattern) < times {
            self.check_patience(started, pattern)?;
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Prints the end of the log if a test has failed, to show the reason.
    pub(crate) fn tell_if_panicking(&self, program: &str) {
        if !std::thread::panicking() {
            return;
        }
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(TOLD)..];
        eprintln!("--- the end of {program}'s log\n{}\n---", last.join("\n"));
    }

    pub(crate) fn check_patience(&self, started: Instant, what: &str) -> Result<(), Error> {
        if started.elapsed() < PATIENCE {
            return Ok(());
        }
        Err(Error::Timeout {
            what: format!("`{what}`"),
            seconds: PATIENCE.as_secs(),
            log: self.text(),
        })
    }

    /// Waits for a server to announce `times` listening sockets. `ended` returns true if the server has ended.
    pub(crate) fn wait_until_ready(
        &self,
        program: &'static str,
        announcement: &str,
        times: usize,
        mut ended: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let started = Instant::now();
        while self.count(announcement) < times {
            if ended() {
                return Err(Error::Exited {
                    program,
                    log: self.text(),
                });
            }
            self.check_patience(started, announcement)?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}
