//! Files: reading, writing, listing, searching, following and copying.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;
use trunkline::sftp::FileType;
use trunkline::transfer::{self, CopyOptions, Location, Progress};
use trunkline_embed::Failure;
use trunkline_request::destination::Destination;
use trunkline_text::{Printable, count_of};

use crate::arguments::{ContentEncoding, LONGEST_WAIT};
use crate::call::{Call, Permit, Problem};
use crate::files::{self, Files, Found, sha256};
use crate::rules::{Action, clean};
use crate::shown::{Encoding, Marks, exact, printable};
use crate::tools::Done;
use crate::{answers, arguments, record};

/// The most bytes of a file in one answer. With each byte as two bytes of JSON, twice, this is half of an answer's
/// limit.
const MOST_READ: u32 = 128 * 1024;

/// The most bytes written in one call.
const MOST_WRITTEN: usize = 1 << 20;

/// The most files in a search.
const MOST_FILES: usize = 2000;
const MOST_SEARCHED: u64 = 64 << 20;
const LONGEST_SEARCH: Duration = Duration::from_secs(20);
const MOST_OF_FILE: usize = 4 << 20;
/// The most files read at the same time.
const AT_ONCE: usize = 16;

/// A path, and the permission for an action on it.
struct Target {
    destination: Destination,
    path: String,
    permit: Permit,
}

async fn target(
    call: &Call<'_>,
    host: &str,
    path: &str,
    action: fn(String) -> Action,
) -> Result<Target, Problem> {
    let destination = call.destination(host).await?;
    let path = clean_path(path)?;
    let permit = call
        .permit(&[(destination.clone(), action(path.clone()))])
        .await?;
    Ok(Target {
        destination,
        path,
        permit,
    })
}

fn clean_path(path: &str) -> Result<String, Problem> {
    clean(path).ok_or_else(|| {
        let shown = Printable::short_line(path, 200);
        Problem::new(format!(
            "\"{shown}\" is not an absolute path without . and .. and control characters; nothing was done"
        ))
    })
}

impl Target {
    /// Runs `work` with the files of the host, and records the outcome.
    async fn with_files<T>(
        &self,
        call: &Call<'_>,
        work: impl AsyncFnOnce(&Files<'_>) -> Result<T, Failure>,
    ) -> Result<T, Problem> {
        let done = async {
            let host = call.host(&self.destination).await?;
            let _permit = host.at_once.acquire().await;
            let permits = |named: &Action, really: &Action| {
                call.permits(&self.permit, &self.destination, named, really)
            };
            let files = Files {
                sftp: host.sftp().await?,
                permits: &permits,
                directories: call
                    .rules
                    .directories(&self.destination)
                    .map(str::to_owned)
                    .collect(),
            };
            work(&files).await
        };
        let done = tokio::select! {
            biased;
            done = done => done,
            () = call.context.ct.cancelled() => Err(files::refuse("the call was cancelled").after_start()),
        };
        for entry in &self.permit.entries {
            record::end(entry, &done);
        }
        Ok(done?)
    }

    fn host(&self) -> String {
        self.destination.as_hop()
    }
}

pub(crate) async fn read(call: &Call<'_>, arguments: &arguments::Read) -> Result<Done, Problem> {
    let target = target(call, &arguments.host, &arguments.path, Action::Read).await?;
    let most = arguments.length.clamp(1, MOST_READ) as usize;
    let read = target
        .with_files(call, async |files| {
            files.read(&target.path, arguments.offset, most).await
        })
        .await?;
    let next_offset = arguments.offset + read.bytes.len() as u64;
    let (content, encoding) = exact(&read.bytes);
    let end = next_offset >= read.size;
    let whole = end && arguments.offset == 0;
    let answer = answers::Read {
        host: target.host(),
        path: target.path.clone(),
        sha256: if whole { sha256(&read.bytes) } else { String::new() },
        size_bytes: read.size,
        next_offset,
        end,
        encoding,
        content,
    };
    let marks = Marks::new();
    let title = format!("{} {}", answer.host, answer.path);
    let mut text = format!("{}\n{}", marks.notice(), marks.wrap(&title, &answer.content));
    if encoding == Encoding::Base64 {
        text.push_str("The content is base64.\n");
    }
    if whole {
        text.push_str(&format!("sha256 {}\n", answer.sha256));
    } else if !end {
        text.push_str(&format!(
            "{} of {} bytes; go on at offset {next_offset}\n",
            read.bytes.len(),
            answer.size_bytes
        ));
    }
    Done::new(text, &answer)
}

pub(crate) async fn write(call: &Call<'_>, arguments: arguments::Write) -> Result<Done, Problem> {
    let content = match arguments.encoding {
        ContentEncoding::Utf8 => Bytes::from(arguments.content),
        ContentEncoding::Base64 => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(&arguments.content);
            Bytes::from(decoded.map_err(|error| Problem::new(format!("content: {error}; nothing was done")))?)
        }
    };
    if content.len() > MOST_WRITTEN {
        return Err(Problem::new("content: at most 1 MiB; nothing was done"));
    }
    let target = target(call, &arguments.host, &arguments.path, Action::Write).await?;
    let expected = Some(arguments.expected_sha256.as_str()).filter(|hash| !hash.is_empty());
    let bytes = content.len() as u64;
    let written = target
        .with_files(call, async |files| {
            files.write(&target.path, content, expected).await
        })
        .await?;
    let answer = answers::Write {
        host: target.host(),
        path: target.path.clone(),
        created: written.created,
        bytes,
        sha256: written.sha256,
        mode: written.mode.map(|mode| format!("{mode:04o}")).unwrap_or_default(),
    };
    let what = if answer.created { "created" } else { "replaced" };
    Done::new(
        format!(
            "{what} {}:{} ({}), sha256 {}",
            answer.host,
            answer.path,
            count_of(bytes, "byte"),
            answer.sha256
        ),
        &answer,
    )
}

fn entry(name: String, found: &Found) -> answers::Entry {
    let attributes = &found.attributes;
    let modified = attributes.times.map(|times| {
        let time = std::time::UNIX_EPOCH + Duration::from_secs(times.modified.into());
        humantime::format_rfc3339_seconds(time).to_string()
    });
    answers::Entry {
        name,
        kind: found.kind.into(),
        size_bytes: attributes.size,
        mode: attributes
            .permissions
            .map(|mode| format!("{:04o}", mode.bits()))
            .unwrap_or_default(),
        owner: attributes
            .owner
            .map(|owner| format!("{}:{}", owner.uid, owner.gid))
            .unwrap_or_default(),
        modified: modified.unwrap_or_default(),
    }
}

fn render_entry(entry: &answers::Entry) -> String {
    let size = entry.size_bytes.map(|size| size.to_string()).unwrap_or_default();
    format!(
        "{} {} {} {size} {} {}\n",
        entry.kind, entry.mode, entry.owner, entry.modified, entry.name
    )
}

pub(crate) async fn list(call: &Call<'_>, arguments: &arguments::List) -> Result<Done, Problem> {
    let target = target(call, &arguments.host, &arguments.path, Action::Read).await?;
    let most = arguments.limit.clamp(1, 1000) as usize;
    let (names, more) = target
        .with_files(call, async |files| files.list(&target.path, most).await)
        .await?;
    let answer = answers::List {
        host: target.host(),
        path: target.path.clone(),
        entries: names
            .into_iter()
            .map(|(name, found)| entry(name, &found))
            .collect(),
        more,
    };
    let marks = Marks::new();
    let lines: String = answer.entries.iter().map(render_entry).collect();
    let more = if more { "There are more names.\n" } else { "" };
    let title = format!("{} {}", answer.host, answer.path);
    Done::new(
        format!("{}\n{}{more}", marks.notice(), marks.wrap(&title, &lines)),
        &answer,
    )
}

pub(crate) async fn stat(call: &Call<'_>, arguments: &arguments::Stat) -> Result<Done, Problem> {
    let target = target(call, &arguments.host, &arguments.path, Action::Read).await?;
    let found = async |files: &Files<'_>| {
        let real = files.real_parent(&target.path, Action::Read).await?;
        files.look(&real).await
    };
    let found = target.with_files(call, found).await?;
    let name = target.path.rsplit('/').next().unwrap_or_default().to_owned();
    let answer = answers::Stat {
        host: target.host(),
        path: target.path.clone(),
        entry: entry(name, &found),
    };
    Done::new(render_entry(&answer.entry), &answer)
}

pub(crate) async fn search(call: &Call<'_>, arguments: &arguments::Search) -> Result<Done, Problem> {
    let pattern = regex::bytes::RegexBuilder::new(&arguments.pattern)
        .size_limit(1 << 20)
        .build();
    let pattern = pattern.map_err(|error| Problem::new(format!("pattern: {error}; nothing was done")))?;
    let target = target(call, &arguments.host, &arguments.path, Action::Read).await?;
    let search = Search {
        pattern: Arc::new(pattern),
        name_ends: &arguments.name_ends,
        most: arguments.limit.clamp(1, 200) as usize,
    };
    let found = target
        .with_files(call, async |files| search.run(files, &target.path).await)
        .await?;
    let answer = answers::Search {
        host: target.host(),
        ..found
    };
    let marks = Marks::new();
    let line = |one: &answers::Match| format!("{}:{}: {}\n", one.path, one.line, one.text);
    let lines: String = answer.matches.iter().map(line).collect();
    let mut text = format!("{}\n{}", marks.notice(), marks.wrap(&answer.host, &lines));
    text.push_str(&format!("{} searched", count_of(answer.files_searched, "file")));
    if !answer.stopped_by.is_empty() {
        text.push_str(&format!(
            "; stopped by its bound on {}, so there may be more",
            answer.stopped_by
        ));
    }
    Done::new(text, &answer)
}

struct Search<'a> {
    pattern: Arc<regex::bytes::Regex>,
    name_ends: &'a str,
    most: usize,
}

impl Search<'_> {
    async fn run(&self, files: &Files<'_>, path: &str) -> Result<answers::Search, Failure> {
        let real = files.real(path, Action::Read).await?;
        let mut found = answers::Search {
            host: String::new(),
            matches: Vec::new(),
            files_searched: 0,
            stopped_by: String::new(),
        };
        if files.sftp.stat(&real).await?.file_type() == Some(FileType::Regular) {
            let bytes = files.read(path, 0, MOST_OF_FILE).await?.bytes;
            found.files_searched = 1;
            found.matches = self.matching(path, &bytes, self.most);
            return Ok(found);
        }
        let deadline = Instant::now() + LONGEST_SEARCH;
        let mut listing = files.sftp.walk(&real);
        let (mut reading, mut searched, mut names) = (JoinSet::new(), 0_u64, true);
        while names || !reading.is_empty() {
            if found.matches.len() >= self.most {
                found.stopped_by = "limit".into();
                break;
            }
            tokio::select! {
                biased;
                Some(read) = reading.join_next() => {
                    // A file that cannot be read has no matches.
                    let Ok(Some(read)) = read else { continue };
                    let (path, bytes): (String, Vec<u8>) = read;
                    let room = self.most - found.matches.len();
                    found.matches.extend(self.matching(&path, &bytes, room));
                    found.files_searched += 1;
                }
                entry = listing.next(), if names && reading.len() < AT_ONCE => {
                    let Some(entry) = entry else { names = false; continue };
                    let Ok(entry) = entry else { continue };
                    let Ok(below) = std::str::from_utf8(&entry.path) else { continue };
                    let (shown, place) = (format!("{path}/{below}"), format!("{real}/{below}"));
                    let is_wanted = entry.attributes.file_type() == Some(FileType::Regular)
                        && shown.ends_with(self.name_ends)
                        && (files.permits)(&Action::Read(shown.clone()), &Action::Read(place.clone()));
                    if !is_wanted {
                        continue;
                    }
                    searched += entry.attributes.size.unwrap_or(0).min(MOST_OF_FILE as u64);
                    let begun = found.files_searched as usize + reading.len();
                    if searched > MOST_SEARCHED || begun >= MOST_FILES {
                        found.stopped_by = if searched > MOST_SEARCHED { "bytes" } else { "files" }.into();
                        names = false;
                        continue;
                    }
                    let sftp = files.sftp.clone();
                    reading.spawn(async move {
                        let read = read_some(&sftp, &place).await.ok()?;
                        Some((shown, read))
                    });
                }
                () = tokio::time::sleep_until(deadline) => {
                    found.stopped_by = "time".into();
                    break;
                }
            }
        }
        found
            .matches
            .sort_by(|one, other| (&one.path, one.line).cmp(&(&other.path, other.line)));
        Ok(found)
    }

    fn matching(&self, path: &str, bytes: &[u8], most: usize) -> Vec<answers::Match> {
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        let matching = lines.filter(|(_, line)| self.pattern.is_match(line)).take(most);
        let shown = |(number, line): (usize, &[u8])| answers::Match {
            path: Printable::line(path).into_string(),
            line: number as u64 + 1,
            text: Printable::short_line(line.strip_suffix(b"\r").unwrap_or(line), 300).into_string(),
        };
        matching.map(shown).collect()
    }
}

/// Reads the beginning of a regular file that a walk has found.
async fn read_some(sftp: &trunkline::sftp::Sftp, path: &str) -> Result<Vec<u8>, Failure> {
    let nothing = || trunkline::sftp::FileAttributes::default();
    let mut file = sftp
        .open(path, trunkline::sftp::OpenFlags::READ, nothing())
        .await?;
    let mut bytes = Vec::new();
    while bytes.len() < MOST_OF_FILE {
        let chunk = file.chunk(256 * 1024).await?;
        if chunk.is_empty() {
            break;
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The interval at which a followed file is checked.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) async fn tail(call: &Call<'_>, arguments: &arguments::Tail) -> Result<Done, Problem> {
    let target = target(call, &arguments.host, &arguments.path, Action::Read).await?;
    let most = 32 * 1024;
    let lines = arguments.lines.clamp(1, 1000) as usize;
    let wait = Duration::from_secs(arguments.wait_seconds.min(LONGEST_WAIT).into());
    let deadline = Instant::now() + wait;
    let look = async |files: &Files<'_>| {
        let after = arguments.after_offset;
        if after == 0 {
            let (bytes, end) = files.tail(&target.path, lines, most).await?;
            return Ok((bytes, end, false));
        }
        loop {
            let read = files.read(&target.path, after, most).await?;
            if read.bytes.is_empty() && files.size(&target.path).await? < after {
                let (bytes, end) = files.tail(&target.path, lines, most).await?;
                return Ok((bytes, end, true));
            }
            if !read.bytes.is_empty() || Instant::now() >= deadline {
                let end = after + read.bytes.len() as u64;
                return Ok((read.bytes, end, false));
            }
            tokio::time::sleep(LOOK.min(deadline - Instant::now())).await;
        }
    };
    let (bytes, next_offset, truncated) = target.with_files(call, look).await?;
    let (text, encoding) = printable(&bytes);
    let answer = answers::Tail {
        host: target.host(),
        path: target.path.clone(),
        text,
        encoding,
        next_offset,
        truncated,
    };
    let marks = Marks::new();
    let title = format!("{} {}", answer.host, answer.path);
    let text = format!(
        "{}\n{}next_offset {next_offset}\n",
        marks.notice(),
        marks.wrap(&title, &answer.text)
    );
    Done::new(text, &answer)
}

pub(crate) async fn copy(call: &Call<'_>, arguments: &arguments::Copy) -> Result<Done, Problem> {
    let from = call.destination(&arguments.from_host).await?;
    let to = call.destination(&arguments.to_host).await?;
    let (from_path, to_path) = (clean_path(&arguments.from_path)?, clean_path(&arguments.to_path)?);
    let wants = [
        (from.clone(), Action::Read(from_path.clone())),
        (to.clone(), Action::Write(to_path.clone())),
    ];
    let permit = call.permit(&wants).await?;
    let done = async {
        let (source, target) = (call.host(&from).await?, call.host(&to).await?);
        let reads = |named: &Action, really: &Action| call.permits(&permit, &from, named, really);
        let writes = |named: &Action, really: &Action| call.permits(&permit, &to, named, really);
        let source = Files {
            sftp: source.sftp().await?,
            permits: &reads,
            directories: call.rules.directories(&from).map(str::to_owned).collect(),
        };
        let target = Files {
            sftp: target.sftp().await?,
            permits: &writes,
            directories: call.rules.directories(&to).map(str::to_owned).collect(),
        };
        let real_from = source.real(&from_path, Action::Read).await?;
        let real_to = target.real_parent(&to_path, Action::Write).await?;
        source.size(&from_path).await?;
        match target.look(&real_to).await {
            Ok(found) if found.kind != "file" => {
                return Err(files::refuse(format!(
                    "{to_path} is a {}, not a file",
                    found.kind
                )));
            }
            Ok(_) if !arguments.overwrite => {
                return Err(files::refuse(format!(
                    "{to_path} exists: overwrite would replace it"
                )));
            }
            _ => {}
        }
        let sources = [Location::Session(source.sftp, pattern(&real_from))];
        let target = Location::Session(target.sftp, Bytes::from(real_to));
        let progress = Arc::new(Progress::default());
        let copied = transfer::copy(&sources, &target, &CopyOptions::default(), &progress).await?;
        match copied.failed {
            0 => Ok(copied.bytes),
            _ => Err(files::refuse("the file could not be copied").after_start()),
        }
    };
    let done = tokio::select! {
        biased;
        done = done => done,
        () = call.context.ct.cancelled() => Err(files::refuse("the call was cancelled").after_start()),
    };
    for entry in &permit.entries {
        record::end(entry, &done);
    }
    let answer = answers::Copy {
        bytes: done?,
        to_host: to.as_hop(),
        to_path,
    };
    Done::new(
        format!(
            "copied {} to {}:{}",
            count_of(answer.bytes, "byte"),
            answer.to_host,
            answer.to_path
        ),
        &answer,
    )
}

/// Quotes a path as the source of a copy, so that no character acts as a pattern.
fn pattern(path: &str) -> Bytes {
    let mut quoted = String::new();
    for c in path.chars() {
        if "*?[\\".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    Bytes::from(quoted)
}
