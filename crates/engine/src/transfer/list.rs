//! Lists the names to copy.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::StreamExt as _;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use trunkline_request::copy::{Changes, CopyEvent, Obstacle};
use trunkline_sftp::transfer::LeftOut;

use super::blocking::blocking;
use super::compare::{Verdict, verdict};
use super::item::{Item, Kind};
use super::job::Job;
use super::owners::Owners;
use super::path::{Expanded, directory_and_name, is_pattern, join, os, shown};
use super::pattern::{Names, Part, matches_itself};
use super::place::Place;
use super::reason::Reason;
use super::sessions::Sessions;
use super::spool::Held;
use super::stream::Stream;
use super::top::{Source, Top, into_itself};
use super::tree::NameClaim;
use crate::error::{Error, Invalid};
use crate::sftp::{FileAttributes, FileType, Owner, Sftp};

/// Finds everything below the sources, counts it in the job's progress, and hands it on: a directory before its content.
pub(super) async fn names(
    job: &Arc<Job>,
    (place, owners): (&Place, &Arc<Owners>),
    sources: &[Source],
    to: &Place,
    top: &Top,
    items: mpsc::Sender<Item>,
) -> Result<(), Error> {
    for source in sources {
        match place {
            Place::Local => local(job, owners, source, top, &items).await?,
            Place::Server(sessions) => {
                remote(job, (sessions, owners), &source.path, to, top, &items).await?;
            }
        }
    }
    Ok(())
}

/// Reports every name as one that would be copied.
pub(super) async fn only_tell(job: &Job, mut found: mpsc::Receiver<Item>) {
    while let Some(item) = found.recv().await {
        job.progress.would_copy(item);
    }
}

/// Returns a source's name at the target. A source that is `.`, `..` or `/` has no name: its content goes into the target.
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
        // A server may name a user's home anything.
        b"." | b".." => Bytes::new(),
        name if name.contains(&0) => Bytes::new(),
        name => Bytes::copy_from_slice(name),
    }
}

// This machine.

async fn local(
    job: &Arc<Job>,
    owners: &Arc<Owners>,
    source: &Source,
    top: &Top,
    items: &mpsc::Sender<Item>,
) -> Result<(), Error> {
    let (job, target, items, top) = (job.clone(), target(&source.path, top), items.clone(), top.clone());
    let owners = (owners.clone(), Handle::current());
    let (path, stream) = (source.path.clone(), source.stream.clone());
    blocking(move || {
        job.tree.source();
        if let Some(stream) = stream {
            let item = stream_item(path, target, stream);
            send(&job, &top, &items, true, item)?;
            return Ok(());
        }
        let root = Path::new(os(&path));
        let found = match std::fs::metadata(root) {
            Ok(found) => found,
            Err(error) => {
                job.report_failed(path.clone(), Reason::local(&path, &error));
                return Ok(());
            }
        };
        if Stream::is_endless(&found) {
            let message = format!("{} is a device that never ends: it was not copied", shown(&path));
            job.report_failed(path.clone(), message);
            return Ok(());
        }
        if let Some(stream) = Stream::of_special(root, &found) {
            let item = stream_item(path, target, stream);
            send(&job, &top, &items, true, item)?;
            return Ok(());
        }
        let mut item = local_item(&job, path.clone(), target, &found);
        item.named = true;
        if item.kind == Kind::Directory && !job.options.recursive {
            let reason = is_directory(shown(&path));
            job.report_failed(path, reason);
            return Ok(());
        }
        if is_left_out(&job, &item) {
            return Ok(());
        }
        let below = item.target.clone();
        give(&owners, &mut item)?;
        if send(&job, &top, &items, true, item)?.is_none() && found.is_dir() {
            return local_directory(&job, &owners, &top, (&path, &below), &items);
        }
        Ok(())
    })
    .await
}

/// Replaces the owner of a local item by the target's numbers of that owner.
fn give((owners, runtime): &(Arc<Owners>, Handle), item: &mut Item) -> Result<(), Error> {
    if let Some(owner) = item.owner {
        let known = owners.find_known(owner);
        item.owner = Some(match known {
            Some(known) => known,
            None => runtime.block_on(owners.at_target(owner))?,
        });
    }
    Ok(())
}

fn stream_item(source: Bytes, target: Bytes, stream: Stream) -> Item {
    Item {
        named: true,
        stream: Some(stream),
        ..Item::new(source, target, Kind::File)
    }
}

/// The copy is over: nobody receives names any more.
struct Over;

/// Lists a directory and everything below it, each directory before its contents.
fn local_directory(
    job: &Job,
    owners: &(Arc<Owners>, Handle),
    top: &Top,
    (path, target): (&Bytes, &Bytes),
    items: &mpsc::Sender<Item>,
) -> Result<(), Error> {
    struct Directory {
        path: Bytes,
        target: Bytes,
    }
    let below = offset_below(target);
    // A list rather than recursion: somebody else may have nested the directories, as deep as paths go.
    let mut waiting = vec![Directory {
        path: path.clone(),
        target: target.clone(),
    }];
    let failed = |path: &[u8], error: &std::io::Error| {
        job.report_failed(Bytes::copy_from_slice(path), Reason::local(path, error));
    };
    while let Some(directory) = waiting.pop() {
        let entries = match std::fs::read_dir(Path::new(os(&directory.path))) {
            Ok(entries) => entries,
            Err(error) => {
                failed(&directory.path, &error);
                continue;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    failed(&directory.path, &error);
                    break;
                }
            };
            let name = entry.file_name();
            let within = |parent: &Bytes| join(parent, name.as_bytes());
            let found_at = Directory {
                path: within(&directory.path),
                target: within(&directory.target),
            };
            // A link itself is copied, so this is its own metadata.
            let found = match entry.metadata() {
                Ok(found) => found,
                Err(error) => {
                    failed(&found_at.path, &error);
                    continue;
                }
            };
            if job.filters.leave_out(&found_at.target[below..], found.is_dir()) {
                continue;
            }
            let mut item = local_item(job, found_at.path.clone(), found_at.target.clone(), &found);
            item.below = below;
            give(owners, &mut item)?;
            if send(job, top, items, false, item)?.is_some() {
                return Ok(());
            }
            if found.is_dir() {
                waiting.push(found_at);
            }
        }
    }
    Ok(())
}

fn local_item(job: &Job, source: Bytes, target: Bytes, found: &std::fs::Metadata) -> Item {
    let kind = Kind::of(found.file_type());
    // Version 3 has 32 bits for a time.
    let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
    Item {
        size: if kind == Kind::File { found.len() } else { 0 },
        mode: Some(job.mode(found.mode() & 0o7777, kind)),
        times: Some((seconds(found.atime()), seconds(found.mtime()))),
        owner: Some(Owner {
            uid: found.uid(),
            gid: found.gid(),
        }),
        inode: (kind == Kind::File && found.nlink() > 1).then(|| (found.dev(), found.ino())),
        ..Item::new(source, target, kind)
    }
}

/// Returns whether the filters leave out a file that the user named, by its name. Patterns begin in directories that the user
/// named.
fn is_left_out(job: &Job, item: &Item) -> bool {
    let name = directory_and_name(&item.source).1;
    item.kind != Kind::Directory && job.filters.leave_out(&name, false)
}

fn send(
    job: &Job,
    top: &Top,
    items: &mpsc::Sender<Item>,
    is_source: bool,
    item: Item,
) -> Result<Option<Over>, Error> {
    if !is_copied(job, is_source, &item, top)? || job.hard_links.keep(&item) {
        return Ok(None);
    }
    Ok(items.blocking_send(item).err().map(|_| Over))
}

/// Returns the offset in a target's path at which the path from the source begins.
fn offset_below(target: &Bytes) -> usize {
    match target.len() {
        0 => 0,
        length => length + 1,
    }
}

/// Returns the reason why a directory is not copied: directories are copied only on request.
fn is_directory(path: String) -> Reason {
    Reason {
        message: path + " is a directory",
        errno: Some(Errno::ISDIR.raw_os_error()),
        obstacle: Some(Obstacle::Directory),
        for_all: false,
    }
}

/// Notes that a source's contents go into the target itself, which gets the source's attributes.
fn root(job: &Job, item: &Item, top: &Top) {
    let mut item = item.clone();
    let found = top.found.as_ref().filter(|_| job.options.looks_first());
    let looks = match found.map(|found| verdict(&job.options, &item, found)) {
        Some(Verdict::Stays(looks)) => Some(looks),
        _ => None,
    };
    item.is_right = looks.is_some_and(Changes::is_empty);
    if job.finish.root(&item)
        && let Some(looks) = looks.filter(|looks| !looks.is_empty())
    {
        job.progress.count_found(0);
        job.progress.report(CopyEvent::Adjusted {
            path: Bytes::from_static(b"."),
            changes: looks,
        });
    }
}

/// Returns whether an item is copied. Counts it, or reports why it cannot be copied. `is_source`: the item is the source itself.
fn is_copied(job: &Job, is_source: bool, item: &Item, top: &Top) -> Result<bool, Error> {
    if item.kind == Kind::Other {
        // An existing file of that name at the target stays.
        job.tree.leave(&item.target)?;
        if item.named {
            let message = format!("{} is not a file, directory or link", shown(&item.source));
            job.report_failed(item.source.clone(), message);
        } else {
            job.report_special(&item.source);
        }
        return Ok(false);
    }
    // The target's root, which exists.
    if item.target.is_empty() {
        match item.kind {
            Kind::Directory => {
                match job.tree.enter_root() {
                    true => job.deletion.enter(&item.target, item.below)?,
                    false => job.deletion.enter_again(&item.target, item.below)?,
                }
                root(job, item, top);
            }
            _ => job.report_failed(
                item.source.clone(),
                format!("{} is not a directory", shown(&item.source)),
            ),
        }
        return Ok(false);
    }
    let options = &job.options;
    let is_small = options.min_size.is_some_and(|least| item.size < least);
    let is_large = options.max_size.is_some_and(|most| item.size > most);
    if item.kind == Kind::File && item.stream.is_none() && (is_small || is_large) {
        // As with rsync, the file is not copied, and an existing file at the target stays.
        job.tree.leave(&item.target)?;
        return Ok(false);
    }
    let is_directory = item.kind == Kind::Directory;
    Ok(match job.tree.tell(&item.target, is_source, is_directory)? {
        NameClaim::New => {
            if is_directory {
                job.deletion.enter(&item.target, item.below)?;
            }
            job.progress.count_found(item.size);
            true
        }
        NameClaim::Again => {
            if is_directory && job.tree.sources() > 1 {
                job.deletion.enter_again(&item.target, item.below)?;
            }
            false
        }
        NameClaim::Taken => {
            let message = format!(
                "{} was not copied: another source is called {}, too",
                shown(&item.source),
                shown(&item.target)
            );
            job.report_failed(item.source.clone(), message);
            false
        }
    })
}

// A server.

async fn remote(
    job: &Job,
    (sessions, owners): (&Arc<Sessions>, &Owners),
    path: &Bytes,
    to: &Place,
    top: &Top,
    items: &mpsc::Sender<Item>,
) -> Result<(), Error> {
    let Sources { typed, meant } = Sources::find(job, sessions, path).await?;
    let from = From {
        job,
        sessions,
        owners,
        to,
        top,
        items,
    };
    let sftp = sessions.first();
    match meant {
        Meant::Itself { path, found } => {
            let name = target(&typed, top);
            from.source(path, name, found, true).await
        }
        Meant::Matching(paths) => {
            if paths.is_empty() {
                let message = format!("{}: {} matches nothing", sftp.host(), shown(path));
                job.report_failed(path.clone(), message);
            }
            let looks =
                futures_util::stream::iter(paths.iter()).map(async |path| (sftp.stat(&path).await, path));
            let mut looks = std::pin::pin!(looks.buffered(LISTINGS));
            while let Some((found, path)) = looks.next().await {
                match found {
                    Ok(found) => {
                        let name = target(&path, top);
                        from.source(path, name, found, false).await?;
                    }
                    Err(error) => job.go_on_after(path, error)?,
                }
            }
            Ok(())
        }
        Meant::Nothing(path, error) => job.go_on_after(path, error),
    }
}

/// Returns the number of sources that a path on a server names: those that its pattern matches, or one, even if it does not
/// exist, which is reported later.
pub(super) async fn count(job: &Job, sessions: &Sessions, path: &Bytes) -> Result<usize, Error> {
    Ok(match Sources::find(job, sessions, path).await?.meant {
        Meant::Matching(paths) => paths.len(),
        Meant::Itself { .. } | Meant::Nothing(..) => 1,
    })
}

/// The sources that a path on a server names.
struct Sources {
    /// The path without its `~`.
    typed: Bytes,
    meant: Meant,
}

enum Meant {
    Itself {
        path: Bytes,
        found: FileAttributes,
    },
    /// The paths that the pattern matches.
    Matching(Paths),
    Nothing(Bytes, Error),
}

impl Sources {
    async fn find(job: &Job, sessions: &Sessions, path: &Bytes) -> Result<Self, Error> {
        let dot = &Bytes::from_static(b".");
        let named = if path.is_empty() { dot } else { path };
        let expand = |sftp: Sftp| async move { Expanded::of(&sftp, named).await };
        let expanded = sessions.retry(expand).await?;
        let (path, typed) = (expanded.path(), &expanded.typed);
        let stat = |sftp: Sftp| {
            let path = path.clone();
            async move { sftp.stat(path).await }
        };
        let meant = match sessions.retry(stat).await {
            // A name may have brackets in it: an existing file of that name is meant if the pattern would not match it.
            Ok(found) if !matches_itself(typed) => Meant::Itself { path, found },
            found @ (Ok(_) | Err(Error::File { .. })) if is_pattern(typed) || typed.contains(&b'\\') => {
                let expanded = &expanded;
                let matches = |sftp: Sftp| async move { matching(job, &sftp, expanded).await };
                match (sessions.retry(matches).await?, found) {
                    (none, Err(error)) if none.is_empty() && !is_pattern(typed) => {
                        Meant::Nothing(path, error)
                    }
                    (paths, _) => Meant::Matching(paths),
                }
            }
            Ok(found) => Meant::Itself { path, found },
            Err(error) => Meant::Nothing(path, error),
        };
        Ok(Self {
            typed: expanded.typed,
            meant,
        })
    }
}

/// A server that sources come from.
struct From<'a> {
    job: &'a Job,
    sessions: &'a Arc<Sessions>,
    owners: &'a Owners,
    to: &'a Place,
    top: &'a Top,
    items: &'a mpsc::Sender<Item>,
}

impl From<'_> {
    /// Finds a source and everything below it; `name` is the source's path below the target.
    async fn source(
        &self,
        path: Bytes,
        name: Bytes,
        found: FileAttributes,
        named: bool,
    ) -> Result<(), Error> {
        let Self {
            job,
            sessions,
            owners,
            to,
            top,
            items,
        } = *self;
        job.tree.source();
        let mut item = remote_item(job, path.clone(), name, &found);
        item.named = named;
        if is_left_out(job, &item) {
            return Ok(());
        }
        let (kind, below) = (item.kind, item.target.clone());
        if kind == Kind::Directory && !job.options.recursive {
            let host = sessions.first();
            let reason = is_directory(format!("{}:{}", host.host(), shown(&path)));
            job.report_failed(path, reason);
            return Ok(());
        }
        // Other sources were checked before.
        if kind == Kind::Directory
            && !named
            && !job.options.dry_run
            && let Some(root) = to.absolute(&top.root).await
        {
            let from = Place::Server(sessions.clone());
            if let Some(invalid) = into_itself(&from, &path, to, (&root, &below)).await? {
                job.report_failed(path, invalid.to_string());
                return Ok(());
            }
        }
        item.owner = at_target(owners, item.owner).await?;
        if is_copied(job, true, &item, top)? && items.send(item).await.is_err() || kind != Kind::Directory {
            return Ok(());
        }
        let walk = Walk {
            job,
            owners,
            path: &path,
            below: &below,
            top,
            items,
            has_begun: AtomicBool::new(false),
        };
        sessions.retry(|sftp| walk.run(sftp)).await
    }
}

/// A walk through a server's directory. If its session is lost, the walk begins anew on another one, and names that were reported
/// are not reported again.
struct Walk<'a> {
    job: &'a Job,
    owners: &'a Owners,
    path: &'a Bytes,
    below: &'a Bytes,
    top: &'a Top,
    items: &'a mpsc::Sender<Item>,
    has_begun: AtomicBool,
}

impl Walk<'_> {
    async fn run(&self, sftp: Sftp) -> Result<(), Error> {
        if self.has_begun.swap(true, Ordering::Relaxed) {
            self.job.tree.begin_anew();
        }
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
            let mut item = remote_item(
                self.job,
                join(self.path, &entry.path),
                join(self.below, &entry.path),
                &entry.attributes,
            );
            item.below = offset_below(self.below);
            item.owner = at_target(self.owners, item.owner).await?;
            if !is_copied(self.job, false, &item, self.top)? {
                continue;
            }
            if self.items.send(item).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Returns the target's numbers of an owner that a server reports.
async fn at_target(owners: &Owners, owner: Option<Owner>) -> Result<Option<Owner>, Error> {
    Ok(match owner {
        Some(owner) => Some(owners.at_target(owner).await?),
        None => None,
    })
}

fn remote_item(job: &Job, source: Bytes, target: Bytes, found: &FileAttributes) -> Item {
    let kind = match found.file_type() {
        Some(FileType::Directory) => Kind::Directory,
        Some(FileType::Symlink) => Kind::Link,
        // Servers that report no type have files.
        None | Some(FileType::Regular) => Kind::File,
        Some(_) => Kind::Other,
    };
    Item {
        size: if kind == Kind::File {
            found.size.unwrap_or(0)
        } else {
            0
        },
        mode: found.permissions.map(|mode| job.mode(mode.bits(), kind)),
        times: found.times.map(|times| (times.accessed, times.modified)),
        owner: found.owner,
        ..Item::new(source, target, kind)
    }
}

/// The number of directories to list, and of paths to look at, at once for a pattern.
const LISTINGS: usize = 32;

/// Returns the paths that a pattern matches, part by part. They are matched here: a server lists its names, and knows no
/// patterns.
async fn matching(job: &Job, sftp: &Sftp, path: &Expanded) -> Result<Paths, Error> {
    let root: &[u8] = match path.typed.starts_with(b"/") && path.home.is_empty() {
        true => b"/",
        false => &path.home,
    };
    let mut found = Paths::new(job);
    found.push(root, b"")?;
    let mut unseen = false;
    for part in path
        .typed
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
    {
        let mut next = Paths::new(job);
        match Part::new(part)? {
            Part::Name(name) => {
                unseen = true;
                found
                    .iter()
                    .try_for_each(|directory| next.push(&directory, &name))?;
            }
            Part::Names(pattern) => {
                unseen = false;
                let mut listing = futures_util::stream::iter(found.iter())
                    .map(|directory| matching_in(job, sftp, directory, &pattern))
                    .buffered(LISTINGS);
                while let Some(names) = listing.next().await {
                    next.extend(names?)?;
                }
            }
        }
        found = next;
    }
    if unseen {
        found = present(job, sftp, &found).await?;
    }
    found.sort();
    Ok(found)
}

/// Returns those of the paths that exist.
async fn present(job: &Job, sftp: &Sftp, paths: &Paths) -> Result<Paths, Error> {
    let mut present = Paths::new(job);
    let looks = futures_util::stream::iter(paths.iter());
    let looks = looks.map(async |path| (sftp.lstat(&path).await.is_ok(), path));
    let mut looks = std::pin::pin!(looks.buffered(LISTINGS));
    while let Some((is_there, path)) = looks.next().await {
        if is_there {
            present.push(&path, b"")?;
        }
    }
    Ok(present)
}

/// Returns the paths in a directory whose names match.
async fn matching_in(job: &Job, sftp: &Sftp, directory: Bytes, pattern: &Names) -> Result<Paths, Error> {
    let listed = if directory.is_empty() {
        &b"."[..]
    } else {
        &directory
    };
    let mut listing = sftp.read_dir(listed);
    let mut paths = Paths::new(job);
    while let Some(entry) = listing.next().await {
        match entry {
            Ok(entry) if pattern.matches(&entry.path) => paths.push(&directory, &entry.path)?,
            Ok(_) => {}
            // A path that is not a directory has no content.
            Err(error) if error.is_no_such_file() => {}
            Err(error) => job.go_on_after(directory.clone(), error)?,
        }
    }
    Ok(paths)
}

/// Paths in one buffer: a pattern may match a million.
struct Paths {
    held: Held,
    bytes: Vec<u8>,
    /// The offset and length of each path.
    spans: Vec<(u32, u32)>,
}

impl Paths {
    fn new(job: &Job) -> Self {
        Self {
            held: Held::new(&job.names),
            bytes: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Adds a name in a directory.
    ///
    /// # Errors
    /// The paths take more memory than there is for names.
    fn push(&mut self, directory: &[u8], name: &[u8]) -> Result<(), Error> {
        let path = join(directory, name);
        room_for(&mut self.held, &mut self.bytes, path.len())?;
        room_for(&mut self.held, &mut self.spans, 1)?;
        let begin = u32::try_from(self.bytes.len()).map_err(|_| Invalid::TooManyNames)?;
        let length = u32::try_from(path.len()).map_err(|_| Invalid::TooManyNames)?;
        self.bytes.extend_from_slice(&path);
        self.spans.push((begin, length));
        Ok(())
    }

    fn extend(&mut self, others: Self) -> Result<(), Error> {
        if self.is_empty() {
            *self = others;
            return Ok(());
        }
        others.iter().try_for_each(|path| self.push(&path, b""))
    }

    fn sort(&mut self) {
        let Self { bytes, spans, .. } = self;
        spans.sort_unstable_by(|one, other| path_at(bytes, *one).cmp(path_at(bytes, *other)));
    }

    fn iter(&self) -> impl Iterator<Item = Bytes> {
        let paths = self.spans.iter().map(|span| path_at(&self.bytes, *span));
        paths.map(Bytes::copy_from_slice)
    }

    fn len(&self) -> usize {
        self.spans.len()
    }

    fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

fn path_at(bytes: &[u8], (begin, length): (u32, u32)) -> &[u8] {
    &bytes[begin as usize..][..length as usize]
}

/// Makes room for `more` elements in a list.
fn room_for<T>(held: &mut Held, list: &mut Vec<T>, more: usize) -> Result<(), Error> {
    if list.capacity() - list.len() < more {
        let more = more.max(list.len() / 4).max(64);
        held.must_grow(more * size_of::<T>())?;
        list.reserve_exact(more);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use trunkline_sftp::transfer::NameBudget;

    use super::*;

    #[test]
    fn a_source_keeps_its_name_unless_the_target_gives_one() {
        let into = |name: Option<&'static str>| Top {
            root: "r".into(),
            name: name.map(Into::into),
            found: None,
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

    #[test]
    fn paths_are_kept_in_order_within_what_all_may_take() {
        let budget = NameBudget::new(1 << 16);
        let new = || Paths {
            held: Held::new(&budget),
            bytes: Vec::new(),
            spans: Vec::new(),
        };
        let (mut paths, mut others) = (new(), new());
        for name in ["c", "a", "ab"] {
            others.push(b"d", name.as_bytes()).unwrap();
        }
        paths.push(b"d", b"b").unwrap();
        paths.extend(others).unwrap();
        paths.sort();
        let found: Vec<_> = paths.iter().collect();
        assert_eq!(found, ["d/a", "d/ab", "d/b", "d/c"]);
        let many = (0..)
            .take_while(|_| paths.push(b"", &[b'x'; 100]).is_ok())
            .count();
        assert!(many > 300 && many * 108 < 1 << 16, "{many}");
    }
}
