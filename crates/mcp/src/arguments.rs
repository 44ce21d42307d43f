//! The arguments of the tools. Unknown arguments are refused, so that a misspelt one is not ignored.

use schemars::JsonSchema;
use serde::Deserialize;

/// The most seconds that one call waits. Clients give up after 60.
pub(crate) const LONGEST_WAIT: u32 = 50;

fn longest_wait() -> u32 {
    LONGEST_WAIT
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hosts {
    /// Only hosts whose name has this text in it.
    #[serde(default)]
    pub(crate) filter: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// The hosts to run it on, at the same time, each as `[user@]host[:port]` as 'hosts' lists them.
    #[schemars(length(min = 1, max = 1000))]
    pub(crate) hosts: Vec<String>,
    /// A program and its arguments as words, quoted as for a shell. No shell runs it: pipes, redirections, variables and patterns
    /// are refused unless they are in quotes, where they reach the program as they are. It runs in the account's home directory.
    pub(crate) command: String,
    /// Text for the command's standard input, which is empty otherwise.
    #[serde(default)]
    pub(crate) input: String,
    /// Seconds after which the command is stopped. 0 for the limit of the rules.
    #[serde(default)]
    #[schemars(range(max = 86400))]
    pub(crate) timeout_seconds: u32,
    /// Seconds to wait for its end, at most 50. A command that runs longer goes on, and 'follow' waits for more of it. 0 starts it
    /// in the background.
    #[serde(default = "longest_wait")]
    #[schemars(range(max = 50))]
    pub(crate) wait_seconds: u32,
    /// Run it as root, by sudo without a password. Do not put sudo into the command.
    #[serde(default)]
    pub(crate) sudo: bool,
    /// Give the command line to the account's shell as it is. Only for hosts whose rules say so.
    #[serde(default)]
    pub(crate) shell: bool,
    /// Let it go on when this session ends or the call is cancelled. Otherwise it is stopped.
    #[serde(default)]
    pub(crate) keep_running: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Follow {
    /// The command, as 'run' named it.
    pub(crate) job: String,
    /// Seconds to wait for more output or the end, at most 50.
    #[serde(default)]
    #[schemars(range(max = 50))]
    pub(crate) wait_seconds: u32,
    /// The byte of standard output to read from: next_offset of the call before.
    #[serde(default)]
    pub(crate) stdout_offset: u64,
    /// The byte of standard error to read from.
    #[serde(default)]
    pub(crate) stderr_offset: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stop {
    /// The command, as 'run' named it.
    pub(crate) job: String,
}

fn read_length() -> u32 {
    65_536
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    /// The host.
    pub(crate) host: String,
    /// The file's absolute path, without . and .. in it.
    pub(crate) path: String,
    /// The byte to read from.
    #[serde(default)]
    pub(crate) offset: u64,
    /// Bytes to read, at most 131072.
    #[serde(default = "read_length")]
    #[schemars(range(min = 1, max = 131_072))]
    pub(crate) length: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
pub(crate) enum ContentEncoding {
    /// The content is the text.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// The content is base64.
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    /// The host.
    pub(crate) host: String,
    /// The file's absolute path, without . and .. in it. Its directory has to exist.
    pub(crate) path: String,
    /// All of the file's new content, at most 1 MiB.
    pub(crate) content: String,
    /// The encoding of the content.
    #[serde(default)]
    pub(crate) encoding: ContentEncoding,
    /// To replace a file: the SHA-256 of what is there, as 'read' told it. Left out to create one.
    #[serde(default)]
    pub(crate) expected_sha256: String,
}

fn names() -> u32 {
    200
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    /// The host.
    pub(crate) host: String,
    /// The directory's absolute path.
    pub(crate) path: String,
    /// Names at most, up to 1000.
    #[serde(default = "names")]
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stat {
    /// The host.
    pub(crate) host: String,
    /// The absolute path. A link at its end is not followed.
    pub(crate) path: String,
}

fn matches() -> u32 {
    50
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Search {
    /// The host.
    pub(crate) host: String,
    /// A file, or a directory whose files are searched with those below it. Links are not followed.
    pub(crate) path: String,
    /// A regular expression for a line (RE2 syntax).
    pub(crate) pattern: String,
    /// Only files whose name ends so, as ".log".
    #[serde(default)]
    pub(crate) name_ends: String,
    /// Lines at most, up to 200.
    #[serde(default = "matches")]
    #[schemars(range(min = 1, max = 200))]
    pub(crate) limit: u32,
}

fn lines() -> u32 {
    50
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tail {
    /// The host.
    pub(crate) host: String,
    /// The file's absolute path.
    pub(crate) path: String,
    /// Lines from its end, up to 1000.
    #[serde(default = "lines")]
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) lines: u32,
    /// Instead of the last lines: what follows this byte, which is next_offset of the call before. 0 for the last lines.
    #[serde(default)]
    pub(crate) after_offset: u64,
    /// Seconds to wait for something behind after_offset, at most 50.
    #[serde(default)]
    #[schemars(range(max = 50))]
    pub(crate) wait_seconds: u32,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Copy {
    /// The host that has the file.
    pub(crate) from_host: String,
    /// Its absolute path there.
    pub(crate) from_path: String,
    /// The host that gets it.
    pub(crate) to_host: String,
    /// Its absolute path there, with its name.
    pub(crate) to_path: String,
    /// Replace a file that is there.
    #[serde(default)]
    pub(crate) overwrite: bool,
}
