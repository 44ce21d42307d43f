//! A recording's file: a header, then a line for each event, with the seconds since the previous one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use trunkline::TerminalSize;

/// The number of pending bytes at which they are written.
const PIECE: usize = 64 * 1024;

/// The first line.
#[derive(Debug, Serialize)]
pub(super) struct Header {
    version: u32,
    term: Term,
    timestamp: u64,
    title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

#[derive(Debug, Serialize)]
struct Term {
    cols: u32,
    rows: u32,
    #[serde(rename = "type")]
    kind: String,
}

impl Header {
    pub(super) fn new(
        now: SystemTime,
        (term, size): (&str, TerminalSize),
        title: String,
        command: Option<String>,
    ) -> Self {
        Self {
            version: 3,
            term: Term {
                cols: size.columns,
                rows: size.rows,
                kind: term.to_owned(),
            },
            timestamp: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            title,
            command,
        }
    }
}

/// An event, with its time since the start.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) at: Duration,
    /// Bytes of output before it that are not recorded.
    pub(super) left_out: u64,
    pub(super) kind: Kind,
    /// Its size in the queue.
    pub(super) cost: u64,
}

#[derive(Debug)]
pub(super) enum Kind {
    Output(Box<[u8]>),
    Resize(u32, u32),
    Exit(u32),
    Marker(String),
}

/// Returns a name like `2026-03-01T09-14-02Z-web1-PROCESS-NUMBER.cast`, which sorts by time and is unique to the
/// process.
pub(super) fn file_name(now: SystemTime, host: &str, number: u64) -> String {
    let plain = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '_' => c,
        _ => '_',
    };
    let host: String = host.chars().take(64).map(plain).collect();
    let time = humantime::format_rfc3339_seconds(now)
        .to_string()
        .replace(':', "-");
    format!("{time}-{host}-{}-{number}.cast", std::process::id())
}

/// A recording's file.
#[derive(Debug)]
pub(super) struct Cast {
    path: PathBuf,
    header: Header,
    state: State,
    /// The time of the previous event.
    last: Duration,
    /// The start of a character that is still incomplete.
    begun: Vec<u8>,
    /// Lines that are not written yet.
    lines: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Nothing has happened yet.
    New,
    /// Open, with the number of bytes written, which are whole lines.
    Open(File, u64),
    /// Writing has failed.
    GivenUp,
}

impl Cast {
    pub(super) fn new(path: PathBuf, header: Header) -> Self {
        Self {
            path,
            header,
            state: State::New,
            last: Duration::ZERO,
            begun: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Adds an event. [`Self::flush`] writes it.
    pub(super) fn add(&mut self, event: Event) {
        if let State::GivenUp = self.state {
            return;
        }
        if event.left_out > 0 {
            let words = format!(
                "{} bytes of output are not recorded: the disk was too slow",
                event.left_out
            );
            self.line(event.at, "m", &words);
            self.begun.clear();
        }
        match event.kind {
            Kind::Output(bytes) => {
                self.begun.extend_from_slice(&bytes);
                let text = take_text(&mut self.begun);
                if !text.is_empty() {
                    self.line(event.at, "o", &text);
                }
            }
            Kind::Resize(columns, rows) => self.line(event.at, "r", &format!("{columns}x{rows}")),
            Kind::Exit(status) => self.line(event.at, "x", &status.to_string()),
            Kind::Marker(words) => self.line(event.at, "m", &words),
        }
        if self.lines.len() >= PIECE {
            self.flush();
        }
    }

    fn line(&mut self, at: Duration, code: &str, data: &str) {
        // Rounded before the difference is taken, so that errors do not add up.
        let at = Duration::from_millis(u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
        let since = at.saturating_sub(self.last);
        self.last = self.last.max(at);
        // Writing to a Vec does not fail, and JSON can represent these values.
        if serde_json::to_writer(&mut self.lines, &(since.as_secs_f64(), code, data)).is_ok() {
            self.lines.push(b'\n');
        }
    }

    /// Writes the pending lines. On failure the file ends with its last whole line, and the recording stops.
    pub(super) fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        if let Err(error) = self.write() {
            tracing::error!(file = %self.path.display(), %error, "the session continues, and is not recorded any more");
            if let State::Open(file, whole) = &self.state {
                let _ = file.set_len(*whole);
            }
            self.state = State::GivenUp;
        }
        self.lines.clear();
    }

    fn write(&mut self) -> io::Result<()> {
        if let State::New = self.state {
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&self.path)?;
            let mut first = serde_json::to_vec(&self.header)?;
            first.push(b'\n');
            self.lines.splice(0..0, first);
            self.state = State::Open(file, 0);
        }
        if let State::Open(file, whole) = &mut self.state {
            file.write_all(&self.lines)?;
            *whole += self.lines.len() as u64;
        }
        Ok(())
    }
}

/// Takes the text out of these bytes and replaces what is invalid. The start of an incomplete character stays.
fn take_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = &bytes[..];
    let kept = loop {
        match str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                break 0;
            }
            Err(error) => {
                let (valid, invalid) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                let Some(length) = error.error_len() else {
                    break invalid.len();
                };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &invalid[length..];
            }
        }
    };
    bytes.drain(..bytes.len() - kept);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let size = TerminalSize {
            columns: 80,
            rows: 24,
            width: 0,
            height: 0,
        };
        Header::new(
            UNIX_EPOCH + Duration::from_secs(7),
            ("xterm", size),
            "me@web1".into(),
            None,
        )
    }

    fn event(milliseconds: u64, kind: Kind) -> Event {
        Event {
            at: Duration::from_millis(milliseconds),
            left_out: 0,
            kind,
            cost: 0,
        }
    }

    fn output(milliseconds: u64, bytes: &[u8]) -> Event {
        event(milliseconds, Kind::Output(bytes.into()))
    }

    #[test]
    fn a_recording_has_the_form_of_asciicast_3() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.cast");
        let mut cast = Cast::new(path.clone(), header());
        cast.add(output(1500, "a\u{1b}[1m\r\n".as_bytes()));
        cast.add(event(1750, Kind::Resize(100, 30)));
        cast.add(Event {
            left_out: 9,
            ..output(1750, b"b")
        });
        cast.flush();
        cast.add(event(2000, Kind::Exit(3)));
        cast.flush();
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                r#"{"version":3,"term":{"cols":80,"rows":24,"type":"xterm"},"timestamp":7,"title":"me@web1"}"#,
                r#"[1.5,"o","a\u001b[1m\r\n"]"#,
                r#"[0.25,"r","100x30"]"#,
                r#"[0.0,"m","9 bytes of output are not recorded: the disk was too slow"]"#,
                r#"[0.0,"o","b"]"#,
                r#"[0.25,"x","3"]"#,
            ]
        );
    }

    #[test]
    fn characters_that_come_in_pieces_are_whole_and_what_is_none_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.cast");
        let mut cast = Cast::new(path.clone(), header());
        for byte in "é→".as_bytes() {
            cast.add(output(0, &[*byte]));
        }
        cast.add(output(0, b"\xffx\xc3"));
        cast.add(output(0, b"y"));
        cast.flush();
        let text = std::fs::read_to_string(path).unwrap();
        let said: String = text
            .lines()
            .skip(1)
            .map(|line| serde_json::from_str::<(f64, String, String)>(line).unwrap().2)
            .collect();
        assert_eq!(said, "é→\u{fffd}x\u{fffd}y");
    }

    #[test]
    fn nothing_is_written_where_nothing_has_happened() {
        let directory = tempfile::tempdir().unwrap();
        let mut cast = Cast::new(directory.path().join("a.cast"), header());
        cast.flush();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_recording_that_cannot_be_written_is_given_up() {
        let mut cast = Cast::new("/dev/null/nowhere".into(), header());
        cast.add(output(0, b"a"));
        cast.flush();
        assert!(matches!(cast.state, State::GivenUp));
        // A full disk.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        cast.state = State::Open(full, 0);
        cast.add(output(0, b"a"));
        cast.flush();
        assert!(matches!(cast.state, State::GivenUp));
        cast.add(output(0, b"b"));
        assert!(cast.lines.is_empty(), "nothing is kept for it");
    }

    #[test]
    fn whatever_a_host_is_called_its_file_is_in_the_directory() {
        let name = file_name(UNIX_EPOCH, "../é/x", 1);
        assert!(name.starts_with("1970-01-01T00-00-00Z-..___x-"), "{name}");
        assert!(!name.contains('/'));
    }
}
