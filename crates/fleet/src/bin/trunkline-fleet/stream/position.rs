//! The progress of each host of a stream in writing to its sink: a file in the state directory for each stream and
//! target.
//!
//! A message counts as written when its bytes are in the file, or have been read from the FIFO.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use trunkline_control::place::Place;
use trunkline_control::sink::Sink;
use trunkline_fleet::state::StreamId;
use trunkline_fleet::streaming::following::Position;
use trunkline_request::own;

/// The stored position of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) position: Position,
    /// True if there was any output.
    pub(super) has_output: bool,
    /// True if more may have been written.
    pub(super) is_unsure: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Text {
    /// True while somebody is following, or after they were killed while following.
    is_open: bool,
    hosts: BTreeMap<u32, Kept>,
}

/// All hosts of a stream and a target.
pub(super) struct Positions {
    file: PathBuf,
    /// Held for as long as somebody follows.
    _lock: File,
    kept: Text,
    hosts: BTreeMap<u32, Arc<HostPosition>>,
    pipes: BTreeMap<u32, Arc<Sink>>,
    is_removed: bool,
}

/// The position of a host, as its task reports it.
#[derive(Debug, Default)]
pub(super) struct HostPosition(Mutex<Written>);

#[derive(Debug, Default)]
struct Written {
    /// The number of bytes since it was opened.
    bytes: u64,
    /// Messages with bytes that may still be in a pipe: the end of each, and the position to store once it is read.
    waiting: VecDeque<(u64, Kept)>,
    /// True while a message is being written.
    is_writing: bool,
}

impl HostPosition {
    /// Notes that a message is about to be written.
    pub(super) fn begin(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_writing = true;
    }

    /// Notes that a message of this many bytes was written.
    pub(super) fn add(&self, bytes: usize, position: Position, has_output: bool) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.is_writing = false;
        written.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        let kept = Kept {
            position,
            has_output,
            is_unsure: false,
        };
        let end = written.bytes;
        // A message without bytes counts as read together with the message before it.
        match written.waiting.back_mut() {
            Some(last) if last.0 == end => last.1 = kept,
            _ => written.waiting.push_back((end, kept)),
        }
    }

    /// Returns the position up to which data was read, if this many bytes are still in the pipe, and true if some data
    /// was not read.
    fn position_taken(&self, left: u64) -> (Option<Kept>, bool) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = written.bytes.saturating_sub(left);
        let mut kept = None;
        while let Some((end, this)) = written.waiting.front().copied()
            && end <= taken
        {
            kept = Some(this);
            written.waiting.pop_front();
        }
        (kept, left > 0 || written.is_writing)
    }
}

impl Positions {
    /// Reads the stored positions, or starts at the beginning.
    pub(super) fn open(place: &Place, stream: &StreamId, to: &str) -> anyhow::Result<Self> {
        let directory = place.state.join("streams");
        own::make_directory(&directory).with_context(|| format!("making {}", directory.display()))?;
        let mut hash = DefaultHasher::new();
        to.hash(&mut hash);
        let file = directory.join(format!("{stream}-{:016x}.json", hash.finish()));
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(file.with_extension("lock"))
            .with_context(|| format!("writing to {}", directory.display()))?;
        ensure!(
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
            "stream {stream} is followed into {to} already"
        );
        let mut kept = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{} is damaged: remove it to begin again", file.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Text::default(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
        };
        if kept.is_open {
            for host in kept.hosts.values_mut() {
                host.is_unsure |= host.has_output;
            }
        }
        Ok(Self {
            file,
            _lock: lock,
            kept,
            hosts: BTreeMap::new(),
            pipes: BTreeMap::new(),
            is_removed: false,
        })
    }

    /// Returns the position where a host was left.
    pub(super) fn left_at(&mut self, host: u32) -> Kept {
        self.hosts.entry(host).or_default();
        self.kept.hosts.get(&host).copied().unwrap_or_default()
    }

    /// Returns the place where a host's task reports its position.
    pub(super) fn host(&self, host: u32) -> Arc<HostPosition> {
        self.hosts.get(&host).cloned().unwrap_or_default()
    }

    /// Counts the content of this pipe as not yet read.
    pub(super) fn watch(&mut self, host: u32, pipe: Option<Arc<Sink>>) {
        self.pipes.extend(pipe.map(|pipe| (host, pipe)));
    }

    /// Stores the positions if they have changed.
    pub(super) fn keep(&mut self, is_open: bool) -> std::io::Result<()> {
        if self.is_removed {
            return Ok(());
        }
        let mut is_changed = self.kept.is_open != is_open;
        for (host, position) in &self.hosts {
            let left = self.pipes.get(host);
            let left = left.map_or(Ok(0), |sink| rustix::io::ioctl_fionread(sink.descriptor()));
            let (kept, is_left) = position.position_taken(left.unwrap_or_default());
            let entry = self.kept.hosts.entry(*host).or_default();
            if let Some(kept) = kept {
                is_changed |= *entry != kept;
                *entry = kept;
            }
            if !is_open && is_left {
                entry.is_unsure = true;
            }
        }
        if !is_changed {
            return Ok(());
        }
        self.kept.is_open = is_open;
        let text = serde_json::to_vec(&self.kept).map_err(std::io::Error::other)?;
        let new = self.file.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&new).and_then(|mut file| file.write_all(&text));
        let written = written.and_then(|()| fs::rename(&new, &self.file));
        if written.is_err() {
            // Makes the next call try again.
            self.kept.is_open = !is_open;
        }
        written
    }

    /// Removes the stored positions, because nothing more will come.
    pub(super) fn remove(&mut self) {
        self.is_removed = true;
        for file in [self.file.clone(), self.file.with_extension("lock")] {
            let _ = fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position_at(next: u64) -> Position {
        Position { next, last: None }
    }

    #[test]
    fn what_a_pipe_still_has_is_not_counted() {
        let host = HostPosition::default();
        host.add(0, position_at(1), false);
        host.add(10, position_at(2), true);
        host.add(0, position_at(3), true);
        host.add(5, position_at(4), true);
        let next = |(kept, left): (Option<Kept>, bool)| (kept.map(|kept| kept.position.next), left);
        assert_eq!(next(host.position_taken(15)), (Some(1), true));
        assert_eq!(next(host.position_taken(6)), (None, true));
        assert_eq!(next(host.position_taken(5)), (Some(3), true));
        assert_eq!(next(host.position_taken(0)), (Some(4), false));
        assert_eq!(next(host.position_taken(0)), (None, false));
    }

    #[test]
    fn a_position_is_kept_and_whoever_was_killed_is_not_sure() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place {
            runtime: directory.path().into(),
            state: directory.path().join("state"),
            config: directory.path().join("config.toml"),
        };
        let stream = StreamId("s".into());
        let open = || Positions::open(&place, &stream, "file:/x/{host}");
        let mut positions = open().unwrap();
        assert_eq!(positions.left_at(0), Kept::default());
        positions.host(0).add(3, position_at(8), true);
        positions.keep(true).unwrap();
        assert!(open().is_err(), "two follow into the same files");
        drop(positions);
        let mut positions = open().unwrap();
        let kept = positions.left_at(0);
        assert_eq!((kept.position, kept.is_unsure), (position_at(8), true));
        positions.keep(false).unwrap();
        drop(positions);
        let mut positions = open().unwrap();
        assert_eq!(positions.left_at(0).position, position_at(8));
        positions.remove();
        assert!(positions.keep(false).is_ok());
        drop(positions);
        assert_eq!(open().unwrap().left_at(0), Kept::default());
    }
}
