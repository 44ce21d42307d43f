//! `--json`: one object a line for each host, for programs to read.

use super::output::Output;
use super::{Execution, HostResult, Outcome};
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes one result as a line of JSON. `null` fields are included:
///
/// | field | value |
/// |---|---|
/// | `host` | the name the user gave |
/// | `kind` | `exited`, `signaled`, or the kind of the error |
/// | `status` | the exit status, or `null` |
/// | `signal` | the signal without "SIG", or `null` |
/// | `error` | a sentence, or `null` |
/// | `execution` | `did not start`, `may have started` or `finished` |
/// | `stdout` or `stdout_base64` | the output, as text where it is UTF-8 |
/// | `stderr` or `stderr_base64` | likewise |
/// | `started` | seconds since 1970 UTC, to the millisecond |
/// | `seconds` | how long it took, connecting included |
/// | `warm` | whether the connection was there already |
///
/// # Errors
/// Errors of `out`, and of reading output from disk.
pub(crate) fn write(out: &mut impl Write, result: &HostResult) -> io::Result<()> {
    let problem = RefCell::new(None);
    let [(stdout, stdout_base64), (stderr, stderr_base64)] = [
        text_or_base64(&result.stdout, &problem)?,
        text_or_base64(&result.stderr, &problem)?,
    ];
    let fields = Fields::from_result(result);
    let object = Object {
        host: fields.host,
        kind: fields.kind,
        status: fields.status,
        signal: fields.signal,
        error: fields.error,
        execution: fields.execution,
        stdout,
        stdout_base64,
        stderr,
        stderr_base64,
        started: fields.started,
        seconds: fields.seconds,
        warm: fields.warm,
    };
    serde_json::to_writer(&mut *out, &object)?;
    match problem.into_inner() {
        Some(problem) => Err(problem),
        None => out.write_all(b"\n"),
    }
}

/// The fields of a host, except for its output.
pub(super) struct Fields<'a> {
    pub(super) host: &'a str,
    pub(super) kind: &'a str,
    pub(super) status: Option<u32>,
    pub(super) signal: Option<&'a str>,
    pub(super) error: Option<&'a str>,
    pub(super) execution: &'a str,
    pub(super) started: f64,
    pub(super) seconds: f64,
    pub(super) warm: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn from_result(result: &'a HostResult) -> Self {
        let (kind, status, signal, error, execution) = match &result.outcome {
            Outcome::Exited(status) => ("exited", Some(*status), None, None, Execution::Finished),
            Outcome::Signaled { name, .. } => {
                ("signaled", None, Some(name.as_str()), None, Execution::Finished)
            }
            Outcome::Failed {
                kind,
                message,
                execution,
            } => (kind.as_str(), None, None, Some(message.as_str()), *execution),
        };
        Self {
            host: &result.host,
            kind,
            status,
            signal,
            error,
            execution: execution.as_str(),
            started: seconds_since_1970(result.started),
            seconds: milliseconds(result.elapsed.as_secs_f64()),
            warm: result.warm,
        }
    }
}

#[derive(Serialize)]
struct Object<'a> {
    host: &'a str,
    kind: &'a str,
    status: Option<u32>,
    signal: Option<&'a str>,
    error: Option<&'a str>,
    execution: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<Base64<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<Base64<'a>>,
    started: f64,
    seconds: f64,
    warm: bool,
}

/// An error of reading an output while it is written.
type Problem = RefCell<Option<io::Error>>;

/// Output as a string, piece by piece.
struct Text<'a>(&'a Output, &'a Problem);

/// Output in base64, piece by piece.
struct Base64<'a>(&'a Output, &'a Problem);

/// Returns text if the output is UTF-8, else base64: replacement characters would change what the host printed.
fn text_or_base64<'a>(
    output: &'a Output,
    problem: &'a Problem,
) -> io::Result<(Option<Text<'a>>, Option<Base64<'a>>)> {
    Ok(match output.each_text(|_| {})? {
        true => (Some(Text(output, problem)), None),
        false => (None, Some(Base64(output, problem))),
    })
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = Ok(());
        let read = self.0.each_text(|text| {
            if written.is_ok() {
                written = f.write_str(text);
            }
        });
        // A formatter can only report its own failures.
        if let Err(error) = read {
            self.1.replace(Some(error));
        }
        written
    }
}

impl fmt::Display for Base64<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = Ok(());
        let read = self.0.each_piece(|piece| {
            if written.is_ok() {
                written = write!(f, "{}", Base64Display::new(piece, &STANDARD));
            }
            Ok(())
        });
        if let Err(error) = read {
            self.1.replace(Some(error));
        }
        written
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Returns seconds since 1970; negative for a clock before that.
fn seconds_since_1970(time: SystemTime) -> f64 {
    milliseconds(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    })
}

fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::super::tests::{failure, result};
    use super::*;

    fn line(result: &HostResult) -> String {
        let mut line = Vec::new();
        write(&mut line, result).expect("a Vec takes everything");
        String::from_utf8(line).expect("JSON is text")
    }

    #[test]
    fn every_outcome_has_the_same_fields() {
        let mut binary = result("web1", Outcome::Exited(0), "");
        binary.stdout = [0xff, 0x00].as_slice().into();
        let signaled = Outcome::Signaled {
            name: "TERM".to_owned(),
            core: false,
        };
        let lost = failure("network", "the connection \"broke\"", Execution::MayHaveStarted);
        let lines: String = [
            result("web1", Outcome::Exited(3), "a\nb\u{e9}"),
            binary,
            result("w", signaled, ""),
            result("w", lost, ""),
        ]
        .iter()
        .map(line)
        .collect();
        insta::assert_snapshot!(lines, @r#"
        {"host":"web1","kind":"exited","status":3,"signal":null,"error":null,"execution":"finished","stdout":"a\nbé","stderr":"","started":1700000000.25,"seconds":1.5,"warm":true}
        {"host":"web1","kind":"exited","status":0,"signal":null,"error":null,"execution":"finished","stdout_base64":"/wA=","stderr":"","started":1700000000.25,"seconds":1.5,"warm":true}
        {"host":"w","kind":"signaled","status":null,"signal":"TERM","error":null,"execution":"finished","stdout":"","stderr":"","started":1700000000.25,"seconds":1.5,"warm":true}
        {"host":"w","kind":"network","status":null,"signal":null,"error":"the connection \"broke\"","execution":"may have started","stdout":"","stderr":"","started":1700000000.25,"seconds":1.5,"warm":true}
        "#);
    }

    #[test]
    fn a_line_is_one_line_and_reads_back() {
        let text = line(&result("h\n", Outcome::Exited(0), "x\r\n\u{0}\u{2028}"));
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["stdout"], "x\r\n\u{0}\u{2028}");
        assert_eq!(value["started"], 1_700_000_000.25);
    }
}
