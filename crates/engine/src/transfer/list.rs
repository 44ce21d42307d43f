//! What there is to copy.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use rustix::io::Errno;
use tokio::sync::mpsc;
use trunkline_sftp::transfer::LeftOut;

use super::path::{expand, folder_and_name, is_pattern, join, os, shown};
use super::pattern::{Names, Part, matches_itself};
use super::sessions::Sessions;
use super::tree::NameClaim;
use super::{Item, Job, Kind, Place, Reason, Source, Stream, There, Top, blocking};
use crate::error::Error;
use crate::sftp::{FileAttributes, FileType, Permissions, Sftp};

/// Finds everything below `paths`, tells the job's progress of it, and hands it on: a directory before what is in it.
pub(super) async fn names(
    job: &Arc<Job>,
    place: &Place,
    sources: &[Source],
    top: &Top,
    items: mpsc::Sender<Item>,
) -> Result<(), Error> {
    for source in sources {
        match place {
            Place::Local => local(job, source, top, &items).await,
            Place::Server(sessions) => remote(job, sessions, &source.path, top, &items).await?,
        }
    }
    Ok(())
}

/// Says of every name that it would be copied.
pub(super) async fn only_tell(job: &Job, mut found: mpsc::Receiver<Item>) {
    while let Some(item) = found.recv().await {
        job.progress.would_copy(item);
    }
}

/// Where a source's name goes. A source that is `.`, `..` or `/` has no name: what is in it goes into the target.
pub(super) fn target(source: &[u8], top: &Top) -> Bytes {
    if let Some(name) = &top.name {
        return name.clone();
    }
    let end = source
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |at| at + 1);
    let begin = source[..end]
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    match &source[begin..end] {
        // A server's name for a user's home may be anything.
        b"." | b".." => Bytes::new(),
        name if name.contains(&0) => Bytes::new(),
        name => Bytes::copy_from_slice(name),
    }
}

// This machine.

async fn local(job: &Arc<Job>, source: &Source, top: &Top, items: &mpsc::Sender<Item>) {
    let (job, target, items) = (job.clone(), target(&source.path, top), items.clone());
    let (path, stream) = (source.path.clone(), source.stream.clone());
    blocking(move || {
        let nth = job.tree.source();
        if let Some(stream) = stream {
            let item = stream_item(path, target, stream);
            let _ = send(&job, &items, nth, b"", item);
            return;
        }
        let root = Path::new(os(&path));
        let found = match std::fs::metadata(root) {
            Ok(found) => found,
            Err(error) => return job.failed(path.clone(), Reason::local(&path, &error)),
        };
        if let Some(stream) = Stream::of_special(root, &found) {
            let item = stream_item(path, target, stream);
            let _ = send(&job, &items, nth, b"", item);
            return;
        }
        let mut item = local_item(path.clone(), target, &found);
        item.named = true;
        if item.kind == Kind::Directory && !job.options.recursive {
            let reason = is_directory(shown(&path));
            return job.failed(path, reason);
        }
        if is_left_out(&job, &item) {
            return;
        }
        let below = item.target.clone();
        if send(&job, &items, nth, b"", item).is_ok() && found.is_dir() {
            let _ = local_directory(&job, nth, &path, &below, b"", &items);
        }
    })
    .await;
}

fn stream_item(source: Bytes, target: Bytes, stream: Stream) -> Item {
    Item {
        source,
        target,
        kind: Kind::File,
        size: 0,
        mode: None,
        times: None,
        named: true,
        stream: Some(stream),
        there: There::default(),
    }
}

/// The copy is over: nobody takes names any more.
struct Over;

fn local_directory(
    job: &Job,
    nth: u32,
    path: &[u8],
    target: &[u8],
    below: &[u8],
    items: &mpsc::Sender<Item>,
) -> Result<(), Over> {
    let failed = |path: &[u8], error: &std::io::Error| {
        job.failed(Bytes::copy_from_slice(path), Reason::local(path, error));
    };
    let entries = match std::fs::read_dir(Path::new(os(path))) {
        Ok(entries) => entries,
        Err(error) => {
            failed(path, &error);
            return Ok(());
        }
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                failed(path, &error);
                return Ok(());
            }
        };
        let name = entry.file_name();
        let (name, below) = (name.as_bytes(), join(below, name.as_bytes()));
        let (path, target) = (join(path, name), join(target, name));
        // Of the link itself, which is what is copied.
        let found = match entry.metadata() {
            Ok(found) => found,
            Err(error) => {
                failed(&path, &error);
                continue;
            }
        };
        if job.filters.leave_out(&below, found.is_dir()) {
            continue;
        }
        send(
            job,
            items,
            nth,
            &below,
            local_item(path.clone(), target.clone(), &found),
        )?;
        if found.is_dir() {
            local_directory(job, nth, &path, &target, &below, items)?;
        }
    }
    Ok(())
}

fn local_item(source: Bytes, target: Bytes, found: &std::fs::Metadata) -> Item {
    let kind = if found.is_dir() {
        Kind::Directory
    } else if found.is_symlink() {
        Kind::Link
    } else if found.is_file() {
        Kind::File
    } else {
        Kind::Other
    };
    // Version 3 has 32 bits for a time.
    let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
    Item {
        source,
        target,
        kind,
        size: if kind == Kind::File { found.len() } else { 0 },
        mode: Some(found.mode() & 0o7777),
        times: Some((seconds(found.atime()), seconds(found.mtime()))),
        named: false,
        stream: None,
        there: There::default(),
    }
}

/// Whether a file that the user named is left out, by its name. Directories that the user named are where patterns begin.
fn is_left_out(job: &Job, item: &Item) -> bool {
    let name = folder_and_name(&item.source).1;
    item.kind != Kind::Directory && job.filters.leave_out(&name, false)
}

fn send(job: &Job, items: &mpsc::Sender<Item>, nth: u32, below: &[u8], item: Item) -> Result<(), Over> {
    if !is_copied(job, nth, below, &item) {
        return Ok(());
    }
    items.blocking_send(item).map_err(|_| Over)
}

/// Directories are copied only if that was asked for.
fn is_directory(path: String) -> Reason {
    Reason {
        message: path + " is a directory: -r copies it",
        errno: Some(Errno::ISDIR.raw_os_error()),
        for_all: false,
    }
}

/// Counts what is to be copied, and tells what cannot be. `below` is the path from the source.
fn is_copied(job: &Job, nth: u32, below: &[u8], item: &Item) -> bool {
    if item.kind == Kind::Directory {
        job.deletion.enter(&item.target, below);
    }
    if item.kind == Kind::Other {
        // What has its name at the target stays.
        job.deletion.pass_over(&item.target);
        let message = format!("{} is not a file, directory or link", shown(&item.source));
        job.failed(item.source.clone(), message);
        return false;
    }
    // The target's root is there.
    if item.target.is_empty() {
        return false;
    }
    match job.tree.tell(&item.target, nth, item.kind == Kind::Directory) {
        NameClaim::New => {
            job.deletion.expect(&item.target);
            job.progress.found(item.size);
            true
        }
        NameClaim::Again => false,
        NameClaim::Taken => {
            let message = format!(
                "{} was not copied: another source is called {}, too",
                shown(&item.source),
                shown(&item.target)
            );
            job.failed(item.source.clone(), message);
            false
        }
    }
}

// A server.

async fn remote(
    job: &Job,
    sessions: &Sessions,
    path: &Bytes,
    top: &Top,
    items: &mpsc::Sender<Item>,
) -> Result<(), Error> {
    let sftp = &sessions.first();
    let path = match path {
        empty if empty.is_empty() => Bytes::from_static(b"."),
        path => expand(sftp, path).await?,
    };
    let stat = |sftp: Sftp| {
        let path = path.clone();
        async move { sftp.stat(path).await }
    };
    match sessions.with(stat).await {
        // A name may have brackets in it: where it is there and the pattern would leave it out, it is what is meant.
        Ok(found) if !matches_itself(&path) => {
            remote_source(job, sessions, path, found, top, items, true).await
        }
        found @ (Ok(_) | Err(Error::File { .. })) if is_pattern(&path) || path.contains(&b'\\') => {
            let mut any = false;
            for path in matching(job, sftp, &path).await? {
                any = true;
                match sftp.stat(&path).await {
                    Ok(found) => remote_source(job, sessions, path, found, top, items, false).await?,
                    Err(error) => job.go_on_after(path, error)?,
                }
            }
            match found {
                _ if any => {}
                Err(error) if !is_pattern(&path) => job.go_on_after(path, error)?,
                _ => {
                    let message = format!("{}: {} matches nothing", sftp.host(), shown(&path));
                    job.failed(path, message);
                }
            }
            Ok(())
        }
        Ok(found) => remote_source(job, sessions, path, found, top, items, true).await,
        Err(error) => job.go_on_after(path, error),
    }
}

async fn remote_source(
    job: &Job,
    sessions: &Sessions,
    path: Bytes,
    found: FileAttributes,
    top: &Top,
    items: &mpsc::Sender<Item>,
    named: bool,
) -> Result<(), Error> {
    let nth = job.tree.source();
    let mut item = remote_item(path.clone(), target(&path, top), &found);
    item.named = named;
    if is_left_out(job, &item) {
        return Ok(());
    }
    let (kind, below) = (item.kind, item.target.clone());
    if kind == Kind::Directory && !job.options.recursive {
        let host = sessions.first();
        let reason = is_directory(format!("{}: {}", host.host(), shown(&path)));
        job.failed(path, reason);
        return Ok(());
    }
    if is_copied(job, nth, b"", &item) && items.send(item).await.is_err() || kind != Kind::Directory {
        return Ok(());
    }
    // A session that is lost on the way begins the walk anew on another one: what was told is not told again.
    let walk = Walk {
        job,
        path: &path,
        below: &below,
        items,
        nth,
    };
    sessions.with(|sftp| walk.on(sftp)).await
}

/// A walk through a server's directory. A session that is lost on the way begins it anew on another one: what was told
/// is not told again.
struct Walk<'a> {
    job: &'a Job,
    path: &'a Bytes,
    below: &'a Bytes,
    items: &'a mpsc::Sender<Item>,
    nth: u32,
}

impl Walk<'_> {
    async fn on(&self, sftp: Sftp) -> Result<(), Error> {
        let filters = self.job.filters.clone();
        let left_out = LeftOut::new(move |path, is_directory| filters.leave_out(path, is_directory));
        let mut walk = sftp.walk_without(self.path, left_out);
        while let Some(entry) = walk.next().await {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.job.go_on_after(self.path.clone(), error)?;
                    continue;
                }
            };
            let item = remote_item(
                join(self.path, &entry.path),
                join(self.below, &entry.path),
                &entry.attributes,
            );
            if !is_copied(self.job, self.nth, &entry.path, &item) {
                continue;
            }
            if self.items.send(item).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn remote_item(source: Bytes, target: Bytes, found: &FileAttributes) -> Item {
    let kind = match found.file_type() {
        Some(FileType::Directory) => Kind::Directory,
        Some(FileType::Symlink) => Kind::Link,
        // Servers that do not tell a type have files.
        None | Some(FileType::Regular) => Kind::File,
        Some(_) => Kind::Other,
    };
    Item {
        source,
        target,
        kind,
        size: if kind == Kind::File {
            found.size.unwrap_or(0)
        } else {
            0
        },
        mode: found.permissions.map(Permissions::bits),
        times: found.times.map(|times| (times.accessed, times.modified)),
        named: false,
        stream: None,
        there: There::default(),
    }
}

/// Directories that are listed at once for a pattern.
const LISTINGS: usize = 32;

/// The paths that a pattern matches, part by part. They are matched here: a server says what there is, not what was
/// asked for.
async fn matching(job: &Job, sftp: &Sftp, path: &Bytes) -> Result<Vec<Bytes>, Error> {
    let root = if path.starts_with(b"/") { &b"/"[..] } else { b"" };
    let mut found = vec![Bytes::from_static(root)];
    let mut unseen = false;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        let pattern = match Part::new(part)? {
            Part::Name(name) => {
                unseen = true;
                found.iter_mut().for_each(|folder| *folder = join(folder, &name));
                continue;
            }
            Part::Names(pattern) => pattern,
        };
        unseen = false;
        let mut listing = futures_util::stream::iter(std::mem::take(&mut found))
            .map(|folder| matching_in(job, sftp, folder, &pattern))
            .buffered(LISTINGS);
        while let Some(names) = listing.next().await {
            found.extend(names?);
        }
    }
    if unseen {
        let looks = found.into_iter().map(|path| {
            let sftp = sftp.clone();
            async move {
                let there = sftp.lstat(&path).await.is_ok();
                there.then_some(path)
            }
        });
        let mut looks = futures_util::stream::iter(looks).buffered(LISTINGS);
        found = Vec::new();
        while let Some(there) = looks.next().await {
            found.extend(there);
        }
    }
    found.sort();
    Ok(found)
}

/// The paths in a directory whose names match.
async fn matching_in(job: &Job, sftp: &Sftp, folder: Bytes, pattern: &Names) -> Result<Vec<Bytes>, Error> {
    let listed = if folder.is_empty() { &b"."[..] } else { &folder };
    let mut listing = sftp.read_dir(listed);
    let mut paths = Vec::new();
    while let Some(entry) = listing.next().await {
        match entry {
            Ok(entry) if pattern.matches(&entry.path) => {
                paths.push(join(&folder, &entry.path));
            }
            Ok(_) => {}
            // What is not a directory has nothing in it.
            Err(error) if error.is_no_such_file() => {}
            Err(error) => job.go_on_after(folder.clone(), error)?,
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_keeps_its_name_unless_the_target_gives_one() {
        let into = |name: Option<&'static str>| Top {
            root: "r".into(),
            name: name.map(Into::into),
        };
        for (source, name) in [
            ("a/b", "b"),
            ("a/b//", "b"),
            ("b", "b"),
            ("..", ""),
            ("/", ""),
            ("a/.", ""),
        ] {
            assert_eq!(target(source.as_bytes(), &into(None)), name, "{source}");
        }
        assert_eq!(target(b"a/b", &into(Some("c"))), "c");
    }
}
