//! [`Walk`]: the names in a tree.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::Plan;
use super::budget::{NameBudget, Share};
use super::pace::{Pace, SendMark};
use crate::attributes::{FileAttributes, FileType};
use crate::client::{Client, RequestId};
use crate::reply::{DirEntry, Handle, Outcome, Reply};
use crate::request::Request;
use crate::status::{Status, StatusCode};

/// The options of a walk.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WalkOptions {
    /// The directory to start in.
    pub root: Bytes,
    /// The number of levels: 1 lists the root alone.
    pub depth: usize,
    /// Names to leave out.
    pub left_out: Option<LeftOut>,
    /// The budget for names that were not taken from the walk yet.
    pub budget: NameBudget,
}

/// A predicate that leaves names out. Its arguments are a path from the root, and whether the path is a directory. A name left
/// out is neither reported nor entered. A directory is checked before its entries.
#[derive(Clone)]
pub struct LeftOut(Arc<LeavesOut>);

type LeavesOut = dyn Fn(&[u8], bool) -> bool + Send + Sync;

impl LeftOut {
    /// Leaves out names for which `left_out` returns true.
    pub fn new(left_out: impl Fn(&[u8], bool) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(left_out))
    }
}

impl fmt::Debug for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeftOut")
    }
}

impl WalkOptions {
    /// Returns options to list a whole tree. Directories more than 2,048 deep cannot be reached by a path of 4,096 bytes, and
    /// fail.
    pub fn new(root: impl Into<Bytes>) -> Self {
        Self {
            root: root.into(),
            depth: usize::MAX,
            left_out: None,
            budget: NameBudget::default(),
        }
    }
}

/// An event of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WalkEvent {
    /// A name. A directory comes before its entries; there is no other order.
    Entry {
        /// The path from the root, without a slash at either end. Each of its parts has been checked: none is empty, `.` or `..`,
        /// none has a slash or NUL in it.
        path: Bytes,
        /// The attributes; for a link, those of the link itself. Links are not followed.
        attributes: FileAttributes,
        /// The server's line for the name, as [`DirEntry::longname`](crate::DirEntry::longname).
        longname: Bytes,
    },
    /// A name that no file can have, or that its directory has listed before. The name is left out, with anything below it: a
    /// server that lists such names tries to have files written elsewhere.
    Refused {
        /// The directory's path from the root.
        directory: Bytes,
        /// The name.
        name: Bytes,
    },
    /// A directory could not be read, or only in part.
    Failed {
        /// The directory's path from the root; empty for the root itself.
        directory: Bytes,
        /// The reason.
        status: Status,
    },
    /// Everything has been reported.
    Finished,
}

/// A recursive listing as a state machine without I/O.
///
/// Many directories are read at once, as many as their rate and the distance are worth within the server's handles, with several
/// READDIRs in flight for each. The server returns about a hundred names for each READDIR, and "end of file" for those after the
/// last name.
pub struct Walk {
    options: WalkOptions,
    /// Directories to read. The last directory found is read first, so that few wait at once.
    waiting: Waiting,
    open: HashMap<u64, Open>,
    next_open: u64,
    /// Open directories that can be read further.
    readable: Vec<u64>,
    asked: HashMap<RequestId, Purpose>,
    /// The pace, in directories.
    pace: Pace,
    events: VecDeque<WalkEvent>,
    events_bytes: usize,
    /// Names that the open directories have listed.
    listed: usize,
    /// READDIRs in flight.
    reading: usize,
    /// The size of the largest answer with names so far. As much is reserved for each READDIR in flight.
    largest: usize,
    share: Share,
    finished: bool,
    /// A keyed hasher, so that nobody can choose names with the same hash.
    hasher: RandomState,
}

#[derive(Clone)]
struct Directory {
    path: Bytes,
    depth: usize,
}

/// A stack of directories in one buffer: each directory is its path, followed by the path's length and the depth. A server may
/// make up a million directories.
#[derive(Default)]
struct Waiting(Vec<u8>);

impl Waiting {
    fn push(&mut self, directory: &Directory) {
        let Self(bytes) = self;
        let more = directory.held_bytes();
        if bytes.capacity() - bytes.len() < more {
            bytes.reserve_exact(more.max(bytes.len() / 4).max(LEAST_WAITING));
        }
        bytes.extend_from_slice(&directory.path);
        for number in [directory.path.len(), directory.depth] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
    }

    fn pop(&mut self) -> Option<Directory> {
        let Self(bytes) = self;
        let (rest, depth) = bytes.split_last_chunk()?;
        let (paths, length) = rest.split_last_chunk()?;
        let (depth, length) = (usize::from_ne_bytes(*depth), usize::from_ne_bytes(*length));
        let begin = paths.len().checked_sub(length)?;
        let path = Bytes::copy_from_slice(&paths[begin..]);
        bytes.truncate(begin);
        if bytes.len() < bytes.capacity() / 4 {
            bytes.shrink_to((bytes.len() * 2).max(LEAST_WAITING));
        }
        Some(Directory { path, depth })
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the memory that the directories take.
    fn held_bytes(&self) -> usize {
        self.0.capacity()
    }
}

impl Directory {
    /// Returns the memory that the directory takes while it waits.
    fn held_bytes(&self) -> usize {
        self.path.len() + 2 * size_of::<usize>()
    }
}

struct Open {
    directory: Directory,
    handle: Option<Handle>,
    sent: SendMark,
    /// READDIRs in flight, the number that should be, and the number of names in the last answer.
    reading: usize,
    ahead: usize,
    batch: usize,
    ended: bool,
    /// Hashes of the names that the directory has listed.
    listed: HashSet<u64>,
}

enum Purpose {
    Opendir(u64),
    Readdir(u64),
    /// LSTAT of a name that came without a type.
    Lstat(DirectoryEntry),
}

struct DirectoryEntry {
    path: Bytes,
    depth: usize,
    longname: Bytes,
}

/// Directories in flight at the start, if handles allow.
const FIRST_FLIGHT: u64 = 128;
/// READDIRs in flight for a directory at the start: small directories need one for the names and one for their end.
const FIRST_AHEAD: usize = 2;
const MOST_AHEAD: usize = 16;
/// The number of names that sftp-server returns at once if a directory has them.
const FULL_BATCH: usize = 100;
/// The number of waiting events at which no more names are requested.
const MOST_EVENTS: usize = 16 * 1024;
/// The memory for data that a walk cannot put off (paths of waiting directories, hashes of names) even if the budget is used up.
/// A server that makes up a tree without end must not fill the memory.
const LEAST: usize = 1024 * 1024;
/// The room for waiting directories that is made at once.
const LEAST_WAITING: usize = 4096;
/// The memory of a name in addition to its bytes.
const AN_EVENT: usize = 160;
/// The memory of a hash.
const A_HASH: usize = 20;
/// An answer with a hundred names, as sftp-server gives it.
const FIRST_LARGEST: usize = 32 * 1024;
/// The most bytes of a path.
const LONGEST_PATH: usize = 32 * 1024;
/// The most levels of directories.
const DEEPEST: usize = 2048;
/// The most names in a directory.
const MOST_NAMES: usize = 1 << 24;

impl Walk {
    /// Returns a walk. It begins when it is driven.
    pub fn new(options: WalkOptions) -> Self {
        let mut waiting = Waiting::default();
        waiting.push(&Directory {
            path: Bytes::new(),
            depth: 1,
        });
        let share = Share::new(options.budget.clone());
        Self {
            options,
            waiting,
            open: HashMap::new(),
            next_open: 0,
            readable: Vec::new(),
            asked: HashMap::new(),
            pace: Pace::new(FIRST_FLIGHT, 4096),
            events: VecDeque::new(),
            events_bytes: 0,
            listed: 0,
            reading: 0,
            largest: FIRST_LARGEST,
            share,
            finished: false,
            hasher: RandomState::new(),
        }
    }

    /// Returns whether [`WalkEvent::Finished`] was returned or is queued.
    pub fn is_over(&self) -> bool {
        self.finished
    }
}

impl Plan for Walk {
    type Worker = ();
    type Event = WalkEvent;

    fn drive(&mut self, (): (), client: &mut Client, now: Instant) {
        if self.events.len() >= MOST_EVENTS {
            return;
        }
        let mut readable = std::mem::take(&mut self.readable);
        readable.sort_unstable();
        readable.dedup();
        for id in readable {
            self.read_ahead(id, client);
        }
        while client.has_room()
            && self.pace.has_room(0)
            && (client.free_handles() > 0 || self.open.is_empty())
            && self.has_room()
        {
            let Some(directory) = self.waiting.pop() else {
                break;
            };
            self.open(directory, client, now);
        }
        if !self.finished && self.open.is_empty() && self.asked.is_empty() && self.waiting.is_empty() {
            self.finished = true;
            self.tell(WalkEvent::Finished);
        }
        self.account();
    }

    fn handle_reply(
        &mut self,
        (): (),
        client: &mut Client,
        request: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome> {
        match self.asked.remove(&request) {
            None => return Some(outcome),
            Some(Purpose::Opendir(id)) => self.handle_open(id, outcome, now),
            Some(Purpose::Readdir(id)) => {
                self.reading -= 1;
                self.handle_entries(id, client, outcome, now);
            }
            Some(Purpose::Lstat(entry)) => {
                let attributes = match outcome {
                    Ok(Reply::Attributes(attributes)) => attributes,
                    // The name existed a moment ago. Whoever needs its attributes will get the error.
                    _ => FileAttributes::default(),
                };
                self.note_entry(entry, attributes);
            }
        }
        self.account();
        None
    }

    fn poll_event(&mut self) -> Option<WalkEvent> {
        let event = self.events.pop_front()?;
        self.events_bytes -= event.held_bytes();
        if self.events.is_empty() {
            // Give back the memory of a queue that has grown.
            self.events.shrink_to(MOST_EVENTS / 16);
            self.account();
        }
        Some(event)
    }

    fn remove_worker(&mut self, (): (), client: &mut Client) {
        self.asked.drain().for_each(|(request, _)| client.cancel(request));
        for (_, open) in self.open.drain() {
            self.pace.note_lost(open.sent);
            open.handle.into_iter().for_each(|handle| client.close(handle));
        }
        self.readable = Vec::new();
        self.waiting = Waiting::default();
        self.events = VecDeque::new();
        (self.events_bytes, self.listed, self.reading) = (0, 0, 0);
        self.finished = true;
        self.account();
    }
}

impl Walk {
    /// Returns whether there is room for the names of one more READDIR. A walk without waiting events or READDIRs in flight
    /// always has room for one: otherwise walks could wait for each other.
    fn has_room(&mut self) -> bool {
        self.account();
        let is_at_rest = self.reading == 0 && self.events.is_empty();
        is_at_rest || self.share.budget().has_room_for(self.largest)
    }

    /// Updates the walk's share of the budget. Each READDIR in flight may bring as much as the largest answer so far.
    fn account(&mut self) {
        let kept = self.waiting.held_bytes() + self.listed * A_HASH;
        self.share
            .set(self.reading * self.largest + kept + self.events_bytes);
    }

    /// Returns whether data that the walk cannot put off takes more memory than it may.
    fn holds_too_much(&self, more: usize) -> bool {
        let kept = self.waiting.held_bytes() + self.listed * A_HASH + more;
        kept > LEAST && self.share.budget().is_exceeded()
    }

    fn tell(&mut self, event: WalkEvent) {
        self.events_bytes += event.held_bytes();
        self.events.push_back(event);
    }

    fn open(&mut self, directory: Directory, client: &mut Client, now: Instant) {
        let path = match join(&self.options.root, &directory.path) {
            // The empty path is the user's home directory.
            empty if empty.is_empty() => Bytes::from_static(b"."),
            path => path,
        };
        let id = self.next_open;
        self.next_open += 1;
        self.asked
            .insert(client.request(Request::Opendir { path }), Purpose::Opendir(id));
        let sent = self.pace.note_sent(1, now);
        let open = Open {
            directory,
            handle: None,
            sent,
            reading: 0,
            ahead: FIRST_AHEAD,
            batch: 0,
            ended: false,
            listed: HashSet::new(),
        };
        self.open.insert(id, open);
    }

    fn read_ahead(&mut self, id: u64, client: &mut Client) {
        let Some(open) = self.open.get(&id) else {
            return;
        };
        let Some(handle) = open.handle.as_ref().filter(|_| !open.ended) else {
            return;
        };
        let (handle, more) = (handle.clone(), open.ahead.saturating_sub(open.reading));
        for _ in 0..more {
            if !self.has_room() {
                self.readable.push(id);
                return;
            }
            let readdir = client.request(Request::Readdir {
                handle: handle.clone(),
            });
            self.asked.insert(readdir, Purpose::Readdir(id));
            self.reading += 1;
            if let Some(open) = self.open.get_mut(&id) {
                open.reading += 1;
            }
        }
    }

    fn handle_open(&mut self, id: u64, outcome: Outcome, now: Instant) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        match outcome {
            Ok(Reply::Handle(handle)) => {
                open.handle = Some(handle);
                self.readable.push(id);
            }
            Ok(_) => {}
            Err(status) => {
                if let Some(open) = self.open.remove(&id) {
                    self.pace.note_done(open.sent, now);
                    self.tell(WalkEvent::Failed {
                        directory: open.directory.path,
                        status,
                    });
                }
            }
        }
    }

    fn handle_entries(&mut self, id: u64, client: &mut Client, outcome: Outcome, now: Instant) {
        let is_full = self.holds_too_much(0);
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        open.reading -= 1;
        let mut failed = None;
        let entries = match outcome {
            Ok(Reply::Entries(entries)) => entries,
            Err(status) if status.code != StatusCode::EOF && !open.ended => {
                failed = Some(status);
                Vec::new()
            }
            _ => Vec::new(),
        };
        let size = |entry: &DirEntry| entry.name.len() + entry.longname.len() + AN_EVENT;
        self.largest = self.largest.max(entries.iter().map(size).sum());
        // An answer without names is an end too: otherwise reading could continue forever.
        open.ended |= entries.is_empty();
        // The batch is not full: READDIRs in flight will most likely bring the end. With more READDIRs each small directory would
        // wait for answers that nobody needs.
        let full = entries.len() >= FULL_BATCH || entries.len() == open.batch;
        open.ahead = if full { (open.ahead * 2).min(MOST_AHEAD) } else { 1 };
        open.batch = entries.len();
        let directory = open.directory.clone();
        let too_many = open.listed.len() > MOST_NAMES;
        if (too_many || is_full) && !open.ended {
            open.ended = true;
            let why = match too_many {
                true => "the directory has more than 16,777,216 names".to_owned(),
                false => self.too_much("names of directories that are being read"),
            };
            failed = Some(Status::local(StatusCode::FAILURE, why.as_str()));
        }
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        // A name that comes twice, as a link and then as a directory, would let files be written through the link.
        let new: Vec<bool> = entries
            .iter()
            .map(|entry| open.listed.insert(self.hasher.hash_one(&entry.name)))
            .collect();
        self.listed += new.iter().filter(|new| **new).count();
        self.readable.push(id);
        let read = open.ended && open.reading == 0;
        if let Some(open) = if read { self.open.remove(&id) } else { None } {
            self.listed -= open.listed.len();
            self.pace.note_done(open.sent, now);
            open.handle.into_iter().for_each(|handle| client.close(handle));
        }
        if let Some(status) = failed {
            let directory = directory.path.clone();
            self.tell(WalkEvent::Failed { directory, status });
        }
        for (entry, new) in entries.into_iter().zip(new) {
            self.handle_entry(&directory, entry, new, client);
        }
    }

    fn handle_entry(&mut self, directory: &Directory, entry: DirEntry, new: bool, client: &mut Client) {
        let DirEntry {
            name,
            attributes,
            longname,
        } = entry;
        match &name[..] {
            // Every directory lists itself and its parent.
            b"." | b".." => return,
            // A repeated name is harmless if no directory is entered.
            _ if !new && self.options.depth == 1 => return,
            name if new && is_name(name) && directory.path.len() + name.len() < LONGEST_PATH => {}
            _ => {
                self.tell(WalkEvent::Refused {
                    directory: directory.path.clone(),
                    name,
                });
                return;
            }
        }
        let entry = DirectoryEntry {
            path: join(&directory.path, &name),
            depth: directory.depth,
            longname,
        };
        if attributes.permissions.is_some() {
            self.note_entry(entry, attributes);
        } else {
            let lstat = client.request(Request::Lstat {
                path: join(&self.options.root, &entry.path),
            });
            self.asked.insert(lstat, Purpose::Lstat(entry));
        }
    }

    fn note_entry(&mut self, entry: DirectoryEntry, attributes: FileAttributes) {
        let DirectoryEntry {
            path,
            depth,
            longname,
        } = entry;
        let is_directory = attributes.file_type() == Some(FileType::Directory);
        let left_out = |LeftOut(left_out): &LeftOut| left_out(&path, is_directory);
        if self.options.left_out.as_ref().is_some_and(left_out) {
            return;
        }
        let enter = is_directory && depth < self.options.depth;
        self.tell(WalkEvent::Entry {
            path: path.clone(),
            attributes,
            longname,
        });
        if !enter {
            return;
        }
        let directory = Directory {
            path,
            depth: depth + 1,
        };
        let why = if depth >= DEEPEST {
            Some("directories are nested more than 2,048 deep".to_owned())
        } else if self.holds_too_much(directory.held_bytes()) {
            Some(self.too_much("directories that wait to be read"))
        } else {
            None
        };
        match why {
            None => {
                self.waiting.push(&directory);
            }
            Some(why) => self.tell(WalkEvent::Failed {
                directory: directory.path,
                status: Status::local(StatusCode::FAILURE, why.as_str()),
            }),
        }
    }

    fn too_much(&self, what: &str) -> String {
        let most = self.share.budget().most() / (1024 * 1024);
        format!(
            "the {what} take too much of the {most} MiB that all listings may (names_memory in config.toml)"
        )
    }
}

impl WalkEvent {
    /// Returns the approximate memory that the event takes.
    fn held_bytes(&self) -> usize {
        let bytes = match self {
            Self::Entry { path, longname, .. } => path.len() + longname.len(),
            Self::Refused { directory, name } => directory.len() + name.len(),
            Self::Failed { directory, .. } => directory.len(),
            Self::Finished => 0,
        };
        bytes + AN_EVENT
    }
}

/// Returns whether a file can have this name in a directory.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

fn join(directory: &[u8], name: &[u8]) -> Bytes {
    let mut path = BytesMut::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() && !directory.ends_with(b"/") && !name.is_empty() {
        path.extend_from_slice(b"/");
    }
    path.extend_from_slice(name);
    path.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"/etc", b"a\0b"] {
            assert!(!is_name(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b".a", b"\xff\xfe", b"a b\n"] {
            assert!(is_name(name), "{name:?}");
        }
    }

    #[test]
    fn the_directory_that_came_last_is_read_first_and_room_is_given_back() {
        let mut waiting = Waiting::default();
        let path = |nth: usize| Bytes::from(format!("{nth}").repeat(nth % 7));
        for depth in 0..10_000 {
            let path = path(depth);
            waiting.push(&Directory { path, depth });
        }
        assert!(waiting.held_bytes() < 10_000 * 45, "{}", waiting.held_bytes());
        for nth in (0..10_000).rev() {
            let directory = waiting.pop().unwrap();
            assert_eq!((directory.path, directory.depth), (path(nth), nth));
        }
        assert!(waiting.pop().is_none() && waiting.is_empty());
        assert!(waiting.held_bytes() <= LEAST_WAITING);
    }

    #[test]
    fn paths_are_joined_with_one_slash() {
        assert_eq!(&join(b"/", b"a")[..], b"/a");
        assert_eq!(&join(b"r", b"a")[..], b"r/a");
        assert_eq!(&join(b"", b"a")[..], b"a");
        assert_eq!(&join(b"r", b"")[..], b"r");
    }
}
