//! What `trunkline ssh` tells its user: as much as `LogLevel` lets through, on standard error or in the file of `-E`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;

use anyhow::Context as _;
use tracing_subscriber::fmt::MakeWriter;
use trunkline::Printable;
use trunkline::config::LogLevel;

use crate::terminal::raw::RawMode;

/// Where it tells.
pub(super) struct Console {
    file: Option<Arc<File>>,
    /// What is let through, where the command line or ssh_config has said so.
    pub(super) level: Option<LogLevel>,
    /// Whether the engine's log is written.
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
            file: file.map(open).transpose()?.map(Arc::new),
            level,
            logs: false,
            raw: None,
        })
    }

    /// Starts the engine's log from `DEBUG1` on, and says whether it is written.
    pub(super) fn starts_log(&mut self) -> bool {
        let filter = match self.level {
            Some(LogLevel::Debug1) => "info,trunkline=debug,trunkline_proto=debug",
            Some(LogLevel::Debug2) => "debug",
            Some(LogLevel::Debug3) => "trace",
            _ => return false,
        };
        if !std::mem::replace(&mut self.logs, true) {
            let log = tracing_subscriber::fmt().with_env_filter(filter);
            match &self.file {
                Some(file) => log.with_ansi(false).with_writer(file.clone()).init(),
                None => {
                    let has_colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
                    log.with_ansi(has_colours).with_writer(StandardError).init();
                }
            }
        }
        true
    }

    /// What ssh logs at this level.
    pub(super) fn log(&mut self, level: LogLevel, text: &str) {
        if level > self.level() {
            return;
        }
        match &self.file {
            Some(file) => {
                let text = Printable::text(text.trim_end());
                let _ = writeln!(&**file, "{text}");
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

/// Standard error, where a terminal gets a carriage return at the end of each line: it may be in raw mode (log.c).
struct StandardError;

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        Lines {
            for_terminal: io::stderr().is_terminal(),
        }
    }
}

struct Lines {
    for_terminal: bool,
}

impl Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if !self.for_terminal {
            return io::stderr().write(text);
        }
        let mut returned = Vec::with_capacity(text.len() + 1);
        for byte in text {
            if *byte == b'\n' {
                returned.push(b'\r');
            }
            returned.push(*byte);
        }
        io::stderr().write_all(&returned)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
