//! What `trunkline ssh` tells its user: as much as `LogLevel` lets through, on standard error or in the file of `-E`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;

use anyhow::Context as _;
use trunkline_control::private::Log;
use trunkline_request::LogLevel;
use trunkline_text::Printable;

use crate::terminal::raw::RawMode;

/// Where it tells.
pub(super) struct Console {
    file: Option<File>,
    /// What is let through, where the command line or ssh_config has said so.
    pub(super) level: Option<LogLevel>,
    /// Whether the engine's log was taken.
    logs: bool,
    pub(super) raw: Option<RawMode>,
}

impl Console {
    /// With the file of `-E`.
    pub(super) fn open(file: Option<&OsStr>, level: Option<LogLevel>) -> anyhow::Result<Self> {
        let open = |path: &OsStr| {
            let file = File::options().create(true).append(true).open(path);
            file.with_context(|| format!("-E {}", path.display()))
        };
        Ok(Self {
            file: file.map(open).transpose()?,
            level,
            logs: false,
            raw: None,
        })
    }

    /// The engine's log, from `DEBUG1` on; once.
    pub(super) fn takes_log(&mut self) -> Option<Log> {
        let filter = match self.level {
            Some(LogLevel::Debug1) => "info,trunkline=debug,trunkline_proto=debug",
            Some(LogLevel::Debug2) => "debug",
            Some(LogLevel::Debug3) => "trace",
            _ => return None,
        };
        if std::mem::replace(&mut self.logs, true) {
            return None;
        }
        // Without the file, it is on standard error.
        let file = self.file.as_ref().and_then(|file| file.try_clone().ok());
        let filter = filter.to_owned();
        Some(Log { filter, file })
    }

    /// What ssh logs at this level.
    pub(super) fn log(&mut self, level: LogLevel, text: &str) {
        if level > self.level() {
            return;
        }
        match &self.file {
            Some(file) => {
                let text = Printable::text(text.trim_end());
                let _ = writeln!(&mut &*file, "{text}");
            }
            None => self.answer(text),
        }
    }

    /// What ssh prints on standard error itself, `-E` or not, unless it is to be quiet.
    pub(super) fn tell(&mut self, text: &str) {
        if self.level() >= LogLevel::Info {
            self.answer(text);
        }
    }

    /// What the user has just asked for. Raw mode needs a carriage return at the end of a line.
    pub(super) fn answer(&mut self, text: &str) {
        let text = Printable::text(text.trim_end());
        match self.raw {
            Some(_) => eprint!("{}\r\n", text.lines().collect::<Vec<_>>().join("\r\n")),
            None => eprintln!("{text}"),
        }
    }

    fn level(&self) -> LogLevel {
        self.level.unwrap_or(LogLevel::Info)
    }
}
