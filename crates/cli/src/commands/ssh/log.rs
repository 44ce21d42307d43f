//! The messages of `trunkline ssh`, filtered by `LogLevel`, on standard error or in the file of `-E`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::time::SystemTime;

use trunkline_request::{LogLevel, LogLine, words_of};
use trunkline_text::Printable;

use crate::terminal::raw::RawMode;

/// The destination of messages.
pub(super) struct Console {
    file: Option<File>,
    /// The maximum level, if the command line or ssh_config has set one.
    pub(super) level: Option<LogLevel>,
    started: SystemTime,
    pub(super) raw: Option<RawMode>,
}

impl Console {
    /// Opens the file of `-E`. Returns ssh's message if that fails.
    pub(super) fn open(file: Option<&OsStr>, level: Option<LogLevel>) -> Result<Self, String> {
        let open = |path: &OsStr| {
            let file = File::options().create(true).append(true).open(path);
            file.map_err(|error| format!("Couldn't open logfile {}: {}", path.display(), words_of(error)))
        };
        Ok(Self {
            file: file.map(open).transpose()?,
            level,
            started: SystemTime::now(),
            raw: None,
        })
    }

    /// Writes a log line. At debug levels it gets the time since this program was started, which is negative for a
    /// shared connection's earlier log.
    pub(super) fn write(&mut self, line: &LogLine) {
        let LogLine { at, level, text } = line;
        if self.level() < LogLevel::Debug1 {
            return self.log(*level, text);
        }
        let seconds = match at.duration_since(self.started) {
            Ok(after) => after.as_secs_f64(),
            Err(before) => -before.duration().as_secs_f64(),
        };
        self.log(*level, &format!("{seconds:8.3} {}{text}", level.prefix()));
    }

    /// Logs a line that ssh logs at this level.
    pub(super) fn log(&mut self, level: LogLevel, text: &str) {
        if level > self.level() {
            return;
        }
        match &self.file {
            Some(file) => {
                let text = Printable::text(words_of(text.trim_end()));
                let _ = writeln!(&mut &*file, "{text}");
            }
            None => self.answer(text),
        }
    }

    /// Prints a line that ssh prints on standard error even with `-E`, unless it is quiet.
    pub(super) fn tell(&mut self, text: &str) {
        if self.level() >= LogLevel::Info {
            self.answer(text);
        }
    }

    /// Prints the answer to the user's request. Raw mode needs carriage returns.
    pub(super) fn answer(&mut self, text: &str) {
        let text = Printable::text(text.trim_end());
        match self.raw {
            Some(_) => eprint!("{}\r\n", text.lines().collect::<Vec<_>>().join("\r\n")),
            None => eprintln!("{text}"),
        }
    }

    /// Returns true if debug messages go to standard error.
    pub(super) fn logs_to_stderr(&self) -> bool {
        self.file.is_none() && self.level() >= LogLevel::Debug1
    }

    fn level(&self) -> LogLevel {
        self.level.unwrap_or(LogLevel::Info)
    }
}
