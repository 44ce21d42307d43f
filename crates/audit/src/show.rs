//! The audit trail for readers: each action, its host, its requester and its outcome.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read as _, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use serde::Deserialize;
use trunkline::Printable;

use crate::verify::{find, open, read_line};

/// A filter for records.
#[derive(Debug, Default)]
pub struct Filter {
    /// The host, as typed or as resolved.
    pub host: Option<String>,
    /// The earliest time, in the trail's format.
    pub since: Option<String>,
    /// Text that the requester must contain: a program, an assistant's client, a submitter of the fleet, or a uid.
    pub who: Option<String>,
}

/// The maximum number of unfinished records kept in memory; further ones are not reported at the end.
const MOST_BEGUN: usize = 100_000;

/// The fields of a record that are shown. They may contain anything that an attacker wrote, and are made printable when
/// shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Shown {
    number: u64,
    time: String,
    event: String,
    id: Option<String>,
    kind: String,
    host: Option<String>,
    hostname: Option<String>,
    user: Option<String>,
    tool: Option<String>,
    command: Option<String>,
    program: Option<String>,
    sources: Vec<String>,
    target: Option<String>,
    decision: Option<String>,
    submitter: Option<String>,
    asker: Asker,
    execution: Option<String>,
    status: Option<u32>,
    signal: Option<String>,
    error: Option<String>,
    seconds: Option<f64>,
    note: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asker {
    uid: Option<u32>,
    program: Option<String>,
    started_by: Option<String>,
    login_uid: Option<u32>,
}

impl Filter {
    /// Parses a time into the trail's format: RFC 3339, a date, or a duration before now ("2h").
    ///
    /// # Errors
    /// It is none of these.
    pub fn since(text: &str) -> anyhow::Result<String> {
        let wrong = || {
            format!(
                "{text}: give a time before now (30m, 2h, 1d), a date (2026-01-31) or a time in RFC 3339's form"
            )
        };
        let at = match humantime::parse_duration(text) {
            Ok(before) => SystemTime::now().checked_sub(before),
            Err(_) => match humantime::parse_rfc3339_weak(text) {
                Ok(at) => Some(at),
                Err(_) => humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).ok(),
            },
        };
        let at = at
            .filter(|at| *at >= SystemTime::UNIX_EPOCH + Duration::from_millis(1))
            .with_context(wrong)?;
        Ok(humantime::format_rfc3339_millis(at).to_string())
    }

    fn takes(&self, record: &Shown) -> bool {
        let is = |field: &Option<String>, wanted: &str| field.as_deref() == Some(wanted);
        let host = self
            .host
            .as_deref()
            .is_none_or(|host| is(&record.host, host) || is(&record.hostname, host));
        // Times have one format and are in UTC, so their text sorts by time.
        let since = self
            .since
            .as_deref()
            .is_none_or(|since| record.time.as_str() >= since);
        let asker = &record.asker;
        let texts = [&record.submitter, &asker.program, &asker.started_by];
        let who = self.who.as_deref().is_none_or(|who| {
            let uid = [asker.uid, asker.login_uid]
                .into_iter()
                .flatten()
                .any(|uid| uid.to_string() == who);
            uid || texts.into_iter().flatten().any(|text| text.contains(who))
        });
        host && since && who
    }
}

/// Writes the records of the trail in `directory` that pass `filter`: one line for each piece of work, or with `json`
/// each record as it is.
///
/// # Errors
/// The trail cannot be read, or the output is closed.
pub fn show(directory: &Path, filter: &Filter, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let here = || format!("the audit trail in {}", directory.display());
    let files = find(directory).with_context(here)?.files;
    anyhow::ensure!(!files.is_empty(), "{} has no audit.jsonl", directory.display());
    let mut begun: BTreeMap<String, Shown> = BTreeMap::new();
    for (path, len) in &files {
        let mut reader = BufReader::new(open(path).with_context(here)?.take(*len));
        let mut line = Vec::new();
        loop {
            let (is_longer, is_there) = read_line(&mut reader, &mut line).with_context(here)?;
            if !is_there {
                break;
            }
            // The check of the trail reports invalid lines.
            let Ok(record) = serde_json::from_slice::<Shown>(&line) else {
                continue;
            };
            if is_longer || !filter.takes(&record) {
                continue;
            }
            if json {
                // JSON has no control characters except for line ends.
                out.write_all(&line)?;
                continue;
            }
            match (record.event.as_str(), &record.id) {
                ("begin", Some(id)) if begun.len() < MOST_BEGUN => drop(begun.insert(id.clone(), record)),
                ("begin", _) => {}
                (_, id) => {
                    if let Some(id) = id {
                        begun.remove(id);
                    }
                    record.write(out)?;
                }
            }
        }
    }
    let mut rest: Vec<Shown> = begun.into_values().collect();
    rest.sort_by_key(|record| record.number);
    for record in rest {
        record.write(out)?;
    }
    Ok(())
}

impl Shown {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let line = match &self.note {
            Some(note) => format!("note: {note}"),
            None if self.kind.is_empty() => format!("daemon: {}", self.event),
            None => self.work(),
        };
        writeln!(out, "{} {}", Printable::line(&self.time), Printable::line(line))
    }

    fn work(&self) -> String {
        let host = self.host.as_deref().unwrap_or("-");
        let user = self
            .user
            .as_ref()
            .map(|user| format!("{user}@"))
            .unwrap_or_default();
        let at = if host.contains('@') {
            host.to_owned()
        } else {
            format!("{user}{host}")
        };
        let mut parts = vec![
            at,
            self.who(),
            self.tool.clone().unwrap_or_else(|| self.kind.clone()),
        ];
        let what = self.command.clone().or_else(|| self.program.clone());
        parts.extend(what);
        if let Some(target) = &self.target {
            parts.push(format!("{} -> {target}", self.sources.join(" ")));
        }
        parts.extend(self.decision.as_ref().map(|decision| format!("({decision})")));
        parts.push(match (&self.execution, self.status, &self.signal) {
            (_, Some(status), _) => format!("exit {status}"),
            (_, _, Some(signal)) => format!("SIG{signal}"),
            (Some(execution), ..) => execution.clone(),
            (None, ..) => "no end recorded".into(),
        });
        parts.extend(self.error.as_ref().map(|error| format!("[{error}]")));
        parts.extend(self.seconds.map(|seconds| format!("{seconds} s")));
        parts.join("  ")
    }

    /// Returns the assistant or the submitter; else the name of the program that asked.
    fn who(&self) -> String {
        let name = |path: &String| path.rsplit('/').next().unwrap_or(path).to_owned();
        let program = self.asker.program.as_ref().map(name);
        let who = self.submitter.clone().or(program).unwrap_or_else(|| "-".into());
        match self.asker.uid {
            Some(uid) => format!("{who} (uid {uid})"),
            None => who,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAIL: &str = concat!(
        r#"{"number":1,"time":"2026-01-01T00:00:00.000Z","event":"begin","id":"a","asker":{"uid":7,"program":"/usr/bin/git"},"kind":"session","host":"web1","command":"uptime"}"#,
        "\n",
        r#"{"number":2,"time":"2026-01-01T00:00:01.000Z","event":"end","id":"a","asker":{"uid":7,"program":"/usr/bin/git"},"kind":"session","host":"web1","command":"uptime","execution":"finished","status":3,"seconds":0.5}"#,
        "\n",
        "not a record\n",
        r#"{"number":3,"time":"2026-01-02T00:00:00.000Z","event":"begin","id":"b","asker":{"uid":8},"kind":"call","tool":"run","host":"db1","hostname":"10.0.0.9","command":"run evil\u001b[2J","submitter":"claude-code 2","decision":"allowed by rule allow 1"}"#,
        "\n",
    );

    fn render(filter: &Filter, json: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("audit.jsonl"), TRAIL).unwrap();
        let mut out = Vec::new();
        show(dir.path(), filter, json, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_thing_is_one_line_whether_it_has_an_end_or_not() {
        let text = render(&Filter::default(), false);
        let expected = "2026-01-01T00:00:01.000Z web1  git (uid 7)  session  uptime  exit 3  0.5 s\n\
            2026-01-02T00:00:00.000Z db1  claude-code 2 (uid 8)  run  run evil\\033[2J  (allowed by rule allow 1)  no end recorded\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn filters_take_what_they_name() {
        let count = |filter: Filter| render(&filter, true).lines().count();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(count(Filter::default()), 3);
        assert_eq!(
            count(Filter {
                host: text("web1"),
                ..Filter::default()
            }),
            2
        );
        assert_eq!(
            count(Filter {
                host: text("10.0.0.9"),
                ..Filter::default()
            }),
            1
        );
        assert_eq!(
            count(Filter {
                who: text("claude"),
                ..Filter::default()
            }),
            1
        );
        assert_eq!(
            count(Filter {
                who: text("7"),
                ..Filter::default()
            }),
            2
        );
        let since = Filter::since("2026-01-01T12:00:00Z").unwrap();
        assert_eq!(
            count(Filter {
                since: Some(since),
                ..Filter::default()
            }),
            1
        );
        assert_eq!(Filter::since("2026-01-02").unwrap(), "2026-01-02T00:00:00.000Z");
        assert!(Filter::since("2h").is_ok() && Filter::since("soon").is_err());
    }
}
