//! The answers of the tools. Fields that do not apply are left out: no client takes null for a number.

use schemars::JsonSchema;
use serde::Serialize;

use crate::shown::Encoding;

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Hosts {
    pub(crate) hosts: Vec<Host>,
    /// Names that the rules allow beside those listed: in them, * and ? stand for anything but a dot.
    pub(crate) patterns: Vec<String>,
    /// The file with the rules, which a person can change.
    pub(crate) rules: String,
    /// Whether names were left out because there are too many.
    pub(crate) more: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Host {
    pub(crate) host: String,
    /// Whether a connection is open: the next command takes one round trip.
    pub(crate) connected: bool,
    /// user@hostname:port, where a connection is open.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) address: String,
    /// The round-trip time in milliseconds, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    pub(crate) round_trip_ms: Option<f64>,
    /// The rules about it: "allow run: …", "ask-for write: …".
    pub(crate) rules: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Run {
    pub(crate) hosts: Vec<Ran>,
}

/// A command on a host.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ran {
    pub(crate) host: String,
    /// "finished", "running", "did not start" (trying again is safe) or "may have started" (look before trying again).
    pub(crate) state: String,
    /// Of a command that ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub(crate) exit_status: Option<u32>,
    /// The signal that ended it, without SIG.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) signal: String,
    /// The failure, and what to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) error: String,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    /// For 'follow' and 'stop', while it runs or has more output than is here: for ten minutes after its end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) job: String,
}

/// The output of a command.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) encoding: Encoding,
    /// Bytes so far.
    pub(crate) total_bytes: u64,
    /// Bytes that are left out of the middle of the text, where it says so; 'follow' reads them by their offset.
    pub(crate) omitted_bytes: u64,
    /// Where the next call of 'follow' goes on.
    pub(crate) next_offset: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Read {
    pub(crate) host: String,
    pub(crate) path: String,
    /// Text where it is text, else base64.
    pub(crate) content: String,
    pub(crate) encoding: Encoding,
    pub(crate) size_bytes: u64,
    pub(crate) next_offset: u64,
    /// Whether this is the end of the file.
    pub(crate) end: bool,
    /// Of all of the file, where all of it is here: for 'write'.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) sha256: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Write {
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) created: bool,
    pub(crate) bytes: u64,
    /// Of what is there now.
    pub(crate) sha256: String,
    /// The permissions that were kept, in octal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) mode: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct List {
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) entries: Vec<Entry>,
    /// Whether there are more names than the limit.
    pub(crate) more: bool,
}

/// A name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// "file", "directory", "link", "special" or "unknown".
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    pub(crate) size_bytes: Option<u64>,
    /// Permissions in octal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) mode: String,
    /// Numbers of owner and group, as "0:0".
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) owner: String,
    /// When it was changed: UTC, RFC 3339.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) modified: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Stat {
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) entry: Entry,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Search {
    pub(crate) host: String,
    pub(crate) matches: Vec<Match>,
    pub(crate) files_searched: u64,
    /// Why there may be more: "limit", "files", "bytes", "time", or empty where all was searched.
    pub(crate) stopped_by: String,
}

/// A line that matched.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Match {
    pub(crate) path: String,
    /// From 1 on.
    pub(crate) line: u64,
    /// At most 300 bytes of it.
    pub(crate) text: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Tail {
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) encoding: Encoding,
    /// For after_offset of the next call.
    pub(crate) next_offset: u64,
    /// Whether the file has become shorter than after_offset: it was replaced, and this is its end.
    pub(crate) truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Copy {
    pub(crate) bytes: u64,
    pub(crate) to_host: String,
    pub(crate) to_path: String,
}
