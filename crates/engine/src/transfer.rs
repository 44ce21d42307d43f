//! Copies of files and trees: between this machine and a server, or between two servers through this machine.
//!
//! | module | what it is |
//! |---|---|
//! | `list` | what there is to copy: names, as they are found |
//! | `down`, `up` | how it is copied: towards this machine, towards a server |
//! | `folder` | the local folder that is written into, and nowhere else |
//! | `tree` | what has been made below the target, and where something may be made |
//! | `pattern` | patterns of names, as scp's and rsync's |
//! | `filter` | which names are left out |
//! | `compare`, `there` | whether the target has what the source has; what a server's directories have |
//! | `content` | whether files' contents are the same, by hash |
//! | `exposed` | which of a server's directories others can rename or fill |
//! | `delete` | what the target has and the source has not |
//! | `backup`, `hard_links` | what is replaced keeps a name; names of one file |
//! | `part` | the names that files have until they are whole |
//! | `reason` | why something was not copied |
//! | `stream` | ends that are not regular files: pipes, devices, descriptors |
//! | `sessions` | the sessions that a copy goes over |
//! | `small`, `striped` | how several of them share small files, or one large file |
//! | `compression` | whether they compress, where nobody has decided it |
//! | `blocks` | what is right already: both ends' hashes, block by block |
//! | `verify` | whether what was copied is the same on both ends |

mod backup;
mod blocks;
mod compare;
mod compression;
mod content;
mod delete;
mod down;
mod exposed;
mod filter;
mod finish;
mod folder;
mod hard_links;
mod list;
mod part;
mod path;
mod pattern;
mod reason;
mod sessions;
mod small;
mod source;
mod stream;
mod striped;
mod there;
mod tree;
mod up;
mod verify;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
pub use trunkline_request::copy::{
    Backup, Changes, Comparison, CopyEvent, CopyOptions, FilterRule, Snapshot, Waiting,
};
pub use trunkline_request::mode::{ModeChange, ModeError};

use crate::engine::Host;
use crate::error::Error;
use crate::memory::tuned::MOST_STREAMS;
use crate::sftp::{FileAttributes, FileType, Owner, Permissions, Sftp, Status};
use backup::Backups;
use compare::Beside;
use compression::Flow;
use delete::Deletion;
use filter::Filters;
use finish::Finish;
use hard_links::HardLinks;
use part::Tag;
use path::{Expanded, folder_and_name, shown};
use reason::{Reason, STOPPED};
use sessions::Sessions;
pub(crate) use sessions::{NEAR, SESSIONS_A_CONNECTION};
pub use stream::Stream;
use tree::{HeldNames, Tree};
use verify::{Pair, Verification};

/// One end of a copy.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Location {
    /// A path on this machine. A pipe or a device is read from or written to, and not replaced.
    Local(PathBuf),
    /// What is open already: as a source read to its end, as a target written to.
    Stream(Stream),
    /// A path on a server, reached over as many sessions as are worth having. Not absolute, it starts at the user's
    /// home. As a source its parts may be patterns with `*`, `?` and `[…]`.
    Host(Host, Bytes),
    /// A path on a server, over this session alone.
    Session(Sftp, Bytes),
}

/// How far a copy is. Shared between the copy and whoever watches it.
#[derive(Default)]
pub struct Progress {
    bytes: AtomicU64,
    /// What need not be moved again, whatever becomes of the sessions.
    kept: AtomicU64,
    /// Of files that are there.
    copied_bytes: AtomicU64,
    total_bytes: AtomicU64,
    files: AtomicU64,
    total_files: AtomicU64,
    skipped: AtomicU64,
    adjusted: AtomicU64,
    found_bytes: AtomicU64,
    failed: AtomicU64,
    deleted: AtomicU64,
    resumed: AtomicU64,
    streams: AtomicU64,
    compressed: AtomicBool,
    counted: AtomicBool,
    current: Mutex<Bytes>,
    /// The host that is being connected to, and the length of what is being checked.
    connecting: Mutex<Option<String>>,
    checking: AtomicU64,
    /// Guards the list for as long as it takes to add to it.
    sessions: Mutex<Vec<Weak<Sessions>>>,
    watcher: Option<Box<dyn Fn(CopyEvent) + Send + Sync>>,
}

impl Progress {
    /// With somebody who wants to know what becomes of each name. Called from the copy's tasks: it must not block.
    pub fn watched(watcher: impl Fn(CopyEvent) + Send + Sync + 'static) -> Self {
        Self {
            watcher: Some(Box::new(watcher)),
            ..Self::default()
        }
    }

    /// How far it is.
    pub fn snapshot(&self) -> Snapshot {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Snapshot {
            bytes: load(&self.bytes),
            total_bytes: load(&self.total_bytes),
            files: load(&self.files),
            total_files: load(&self.total_files),
            skipped: load(&self.skipped),
            adjusted: load(&self.adjusted),
            found_bytes: load(&self.found_bytes),
            failed: load(&self.failed),
            deleted: load(&self.deleted),
            resumed: load(&self.resumed),
            streams: load(&self.streams),
            compressed: self.compressed.load(Ordering::Relaxed),
            counted: self.counted.load(Ordering::Relaxed),
            current: self
                .current
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            waiting: self.waiting(),
        }
    }

    fn waiting(&self) -> Option<Waiting> {
        let connecting = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = connecting.clone() {
            return Some(Waiting::Connecting { host });
        }
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |sessions: &Weak<Sessions>| sessions.upgrade()?.waits_for();
        if let Some(waiting) = sessions.iter().find_map(waits) {
            return Some(waiting);
        }
        let bytes = self.checking.load(Ordering::Relaxed);
        (bytes > 0).then_some(Waiting::Checking { bytes })
    }

    /// Shows what an earlier copy left as being checked until the answer is dropped.
    fn checks(&self, bytes: u64) -> impl Drop {
        self.checking.fetch_add(bytes, Ordering::Relaxed);
        Checking {
            progress: self,
            bytes,
        }
    }

    /// A place for one end of the copy, shown as being connected to meanwhile.
    async fn connect(&self, location: &Location) -> Result<Place, Error> {
        let shown = |host| *self.connecting.lock().unwrap_or_else(PoisonError::into_inner) = host;
        if let Location::Host(host, _) = location {
            shown(Some(host.config().original_host.clone()));
        }
        let place = Place::of(location).await;
        shown(None);
        let place = place?;
        if let Place::Server(sessions) = &place {
            let mut all = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(Arc::downgrade(sessions));
        }
        Ok(place)
    }

    /// How far it was when it ended. What was moved of files that then failed, or more than once, no longer counts.
    fn ended(&self) -> Snapshot {
        let bytes = self.copied_bytes.load(Ordering::Relaxed);
        let now = self.snapshot();
        Snapshot {
            bytes,
            resumed: now.resumed.min(bytes),
            ..now
        }
    }

    /// Grows with everything that is copied, looked at or deleted.
    fn steps(&self) -> u64 {
        let counts = [
            &self.kept,
            &self.files,
            &self.skipped,
            &self.adjusted,
            &self.failed,
            &self.deleted,
            &self.total_files,
        ];
        counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn found(&self, bytes: u64) {
        self.total_files.fetch_add(1, Ordering::Relaxed);
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.found_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of a large file: a lost session does not take them with it.
    fn kept(&self, bytes: u64) {
        self.moved(bytes);
        self.kept.fetch_add(bytes, Ordering::Relaxed);
    }

    fn compressed(&self, compressed: bool) {
        self.compressed.store(compressed, Ordering::Relaxed);
    }

    fn began(&self, path: &Bytes) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = path.clone();
    }

    fn tell(&self, event: CopyEvent) {
        let counter = match &event {
            CopyEvent::Copied { .. } => &self.files,
            CopyEvent::Skipped { .. } => &self.skipped,
            CopyEvent::Adjusted { .. } => &self.adjusted,
            CopyEvent::Failed { .. } => &self.failed,
            CopyEvent::Deleted { .. } => &self.deleted,
            CopyEvent::Note { .. } => return self.show(event),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.show(event);
    }

    fn show(&self, event: CopyEvent) {
        if let Some(watcher) = &self.watcher {
            watcher(event);
        }
    }

    fn copied(&self, path: Bytes, length: u64, changes: Changes) {
        self.copied_bytes.fetch_add(length, Ordering::Relaxed);
        self.tell(CopyEvent::Copied {
            path,
            length,
            changes,
        });
    }

    fn would_copy(&self, item: Item) {
        self.moved(item.size);
        self.copied(item.target, item.size, item.changes);
    }

    /// The target has it, and these of its looks were set.
    fn adjusted(&self, item: &Item, changes: Changes) {
        if changes.is_empty() {
            return self.skipped(item);
        }
        self.total_bytes.fetch_sub(item.size, Ordering::Relaxed);
        self.tell(CopyEvent::Adjusted {
            path: item.target.clone(),
            changes,
        });
    }

    fn skipped(&self, item: &Item) {
        // What is not going to be copied is not left to copy.
        self.total_bytes.fetch_sub(item.size, Ordering::Relaxed);
        self.tell(CopyEvent::Skipped {
            path: item.target.clone(),
        });
    }

    fn failed(&self, path: Bytes, reason: impl Into<Reason>) {
        let Reason { message, errno, .. } = reason.into();
        self.tell(CopyEvent::Failed {
            path,
            message,
            errno,
            below: false,
        });
    }

    /// A name is not copied because its directory, which was told, is not there.
    fn failed_below(&self, path: Bytes, shown: &str) {
        self.tell(CopyEvent::Failed {
            path,
            message: format!("{shown} was not copied: its directory could not be created"),
            errno: None,
            below: true,
        });
    }
}

/// What is being checked, until this is dropped.
struct Checking<'a> {
    progress: &'a Progress,
    bytes: u64,
}

impl Drop for Checking<'_> {
    fn drop(&mut self) {
        self.progress.checking.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Copies `sources` to `target`, as cp(1) does: into it if it is a directory, which it must be for several sources. A
/// source directory goes with its name into a target that is there, and under the target's name where there is none.
/// Symbolic links that the sources name are followed, those in trees are copied. Of two sources that have one name the
/// first is copied; folders of one name become one.
///
/// A file is written under a name of its own beside the target and renamed when it is whole, so that nobody meets half
/// of it. One that is replaced keeps its owner and permissions; a link that the user named leads on to what is written,
/// and pipes and devices are written to. Dropping the future ends the copy.
///
/// Below the target nothing is made in a folder that is a link, whoever made it.
///
/// # Errors
/// What keeps all of it from being copied: no session, no target. What concerns one file is told to `progress`, and
/// the others continue; [`Snapshot::failed`] counts them. A full disk is told once, and ends the copy.
pub async fn copy(
    sources: &[Location],
    target: &Location,
    options: &CopyOptions,
    progress: &Arc<Progress>,
) -> Result<Snapshot, Error> {
    let rate = Arc::new(Rate::new(options.limit));
    copy_at(rate, sources, target, options, progress).await
}

/// The same, at a rate that other copies may share, and not at the limit of `options`.
///
/// # Errors
/// As for [`copy`].
pub async fn copy_at(
    rate: Arc<Rate>,
    sources: &[Location],
    target: &Location,
    options: &CopyOptions,
    progress: &Arc<Progress>,
) -> Result<Snapshot, Error> {
    let stream = match target {
        Location::Stream(stream) => Some(stream.clone()),
        Location::Local(path) => Stream::special(path).await,
        _ => None,
    };
    if let Some(stream) = stream {
        return stream::copy_to(sources, &stream, options, &rate, progress).await;
    }
    let to = progress.connect(target).await?;
    hard_links::check(options.hard_links, &to, sources).await?;
    to.check_owners(options).await?;
    to.check_backups(options).await?;
    let target = &to.expanded(target).await?;
    if let Place::Server(sessions) = &to {
        sessions.send();
    }
    let job = Arc::new(Job {
        options: options.clone(),
        filters: Filters::new(&options.filters, options.only.as_deref())?,
        deletion: Deletion::new(options.delete && options.recursive),
        progress: progress.clone(),
        rate,
        flow: Flow::default(),
        plenty: Plenty::default(),
        looked_at: Mutex::default(),
        tree: Tree::default(),
        names: HeldNames::default(),
        finish: Finish::default(),
        hard_links: HardLinks::new(options.hard_links),
        backups: Backups::default(),
        there: there::Listings::default(),
        specials: AtomicU64::new(0),
        no_hashes: AtomicBool::new(false),
        verification: Verification::new(options.verify && !options.dry_run),
        over: AtomicBool::new(false),
        no_renaming: AtomicBool::new(false),
        gives_back: AtomicBool::new(false),
        rest: OnceLock::new(),
    });
    // The listing takes as many round trips as the rest.
    let ends = async {
        let top = Top::find(&job, &to, target, sources).await?;
        let groups = group(sources, progress).await?;
        for group in &groups {
            refuse_into_itself(&job, &group.place, &group.paths, &to, &top).await?;
        }
        Ok((top, groups))
    };
    let ((top, groups), (), listing) = tokio::try_join!(
        ends,
        job.open_ahead(&to, target, sources),
        there::target(&job, &to, target, sources)
    )?;
    if let (None, Some(listing)) = (&top.name, listing) {
        job.there.add(&Bytes::new(), listing);
    }
    if let (Some(_), false, [source]) = (&top.name, options.mkdir, sources)
        && folder_and_name(&source.path()).1 != "."
    {
        let (source, target) = (shown(&source.path()), shown(&target.path()));
        let rest = format!("; copy {source}/. for the rest, since {target} is a directory by now");
        let _ = job.rest.set(rest);
    }
    for place in groups.iter().map(|group| &group.place).chain([&to]) {
        if let Place::Server(sessions) = place {
            let progress = progress.clone();
            sessions.measure_by(move || progress.steps());
        }
    }
    let mut copied = copy_groups(&job, groups, &to, &top).await;
    if copied.is_ok() {
        copied = hard_links::make(&job, &to, &top.root).await;
    }
    job.more_specials();
    if copied.is_ok() && !job.is_over() {
        for path in job.filters.missing() {
            let message = format!("{}: no such file in the source", shown(&path));
            progress.failed(path.into(), message);
        }
    }
    let deleted = match &copied {
        Ok(()) => delete::delete(&job, &to, &top.root).await,
        Err(_) => Ok(()),
    };
    // Whatever happened: a directory that the user can only read is writable until then.
    let finished = finish::directories(&job, &to, &top.root).await;
    copied.and(deleted).and(finished)?;
    Ok(progress.ended())
}

async fn copy_groups(job: &Arc<Job>, groups: Vec<Group>, to: &Place, top: &Top) -> Result<(), Error> {
    let (options, progress) = (&job.options, &job.progress);
    let last = groups.len();
    for (nth, group) in groups.into_iter().enumerate() {
        if job.is_over() {
            break;
        }
        let (items, found) = mpsc::channel(QUEUE);
        let (found, pacing) = job.verification.pace(found);
        // On the heap: the future of a copy holds those of all that it is made of, and would be moved with them.
        let names = Box::pin(async {
            list::names(job, &group.place, &group.paths, to, top, items).await?;
            progress.counted.store(nth + 1 == last, Ordering::Relaxed);
            Ok(())
        });
        let work = Box::pin(async {
            match (&group.place, to) {
                (Place::Local, Place::Local) => Err(Error::Invalid(
                    "no host is named: use cp(1) for local copies".into(),
                )),
                (Place::Server(sessions), Place::Local) => {
                    let root = PathBuf::from(path::os(&top.root));
                    match down::Down::new(job, sessions, &root) {
                        Ok(down) if options.dry_run => down.only_tell(found).await,
                        Ok(down) => down.run(found).await,
                        // `mkdir` would make it, and there is nothing in it.
                        Err(_) if options.dry_run => {
                            list::only_tell(job, found).await;
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                (from, Place::Server(sessions)) => {
                    let up = up::Up::new(job, from, sessions, &top.root);
                    match options.dry_run {
                        true => up.only_tell(found).await,
                        false => up.run(found).await,
                    }
                }
            }
        });
        let adapting = Box::pin(async {
            match (&group.place, to) {
                (Place::Server(sessions), Place::Local) => compression::adapt(job, sessions, false).await,
                (Place::Local, Place::Server(sessions)) => compression::adapt(job, sessions, true).await,
                // Which of two servers' links is the slow one cannot be told.
                _ => std::future::pending().await,
            }
        });
        let copying = async {
            let names = async { tokio::join!(names, pacing).0 };
            tokio::select! {
                done = async { tokio::try_join!(names, work) } => done.map(|_| ()),
                never = adapting => match never {},
            }
        };
        verify::verify(job, &group.place, to, copying).await?;
        for place in [&group.place, to] {
            if let Place::Server(sessions) = place {
                let most = sessions.most() as u64;
                progress.streams.fetch_max(most, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Names that may be found before they are copied: 4,096 paths of a hundred bytes are less than a megabyte.
const QUEUE: usize = 4096;

/// Where one end is.
#[derive(Clone)]
enum Place {
    Local,
    Server(Arc<Sessions>),
}

impl Place {
    async fn of(location: &Location) -> Result<Self, Error> {
        Ok(match location {
            Location::Local(_) | Location::Stream(_) => Self::Local,
            Location::Host(host, _) => Self::Server(Arc::new(Sessions::to(host).await?)),
            Location::Session(sftp, _) => Self::Server(Arc::new(Sessions::over(sftp))),
        })
    }

    /// A path there, for people.
    fn shown(&self, path: &[u8]) -> String {
        match self {
            Self::Local => shown(path),
            Self::Server(sessions) => format!("{}:{}", sessions.first().host(), shown(path)),
        }
    }

    /// The machine and the account, to tell them from others.
    fn id(&self) -> Vec<u8> {
        match self {
            Self::Local => {
                let uid = rustix::process::geteuid().as_raw();
                let machine = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
                [&machine[..], &uid.to_be_bytes()].concat()
            }
            Self::Server(sessions) => match sessions.host() {
                Some(host) => {
                    let config = host.config();
                    format!("{}@{}:{}", config.user, config.hostname, config.port).into_bytes()
                }
                None => sessions.first().host().as_bytes().to_vec(),
            },
        }
    }
}

impl Place {
    /// Whether what is written there is written as root; of a server, by whose the directory is that a session begins in.
    async fn is_root(&self) -> Result<bool, Error> {
        let Self::Server(sessions) = self else {
            return Ok(rustix::process::geteuid().is_root());
        };
        let home = |sftp: Sftp| async move { sftp.stat(Bytes::from_static(b".")).await };
        match sessions.with(home).await {
            Ok(home) => Ok(home.owner.is_some_and(|owner| owner.uid == 0)),
            Err(Error::File { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Refuses to keep owners where only root could.
    async fn check_owners(&self, options: &CopyOptions) -> Result<(), Error> {
        if !options.numeric_ids || self.is_root().await? {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "only root can keep owners and groups, and {} is another user: log in as root, or copy without --numeric-ids",
            match self {
                Self::Local => "this one".to_owned(),
                Self::Server(sessions) => format!("the one at {}", sessions.first().host()),
            }
        )))
    }

    /// Refuses to keep backups where a file cannot have two names.
    async fn check_backups(&self, options: &CopyOptions) -> Result<(), Error> {
        let (Self::Server(sessions), Some(_)) = (self, &options.backup) else {
            return Ok(());
        };
        let (sftp, none) = (sessions.first(), Bytes::new);
        let (from, to) = (none(), none());
        let link = trunkline_sftp::Request::Hardlink { from, to };
        let (from, to) = (none(), none());
        let rename = trunkline_sftp::Request::PosixRename { from, to };
        if sftp.link().supports(&link).await? && sftp.link().supports(&rename).await? {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{} cannot give a file a second name, which backups are made with: copy without --backup",
            sftp.host()
        )))
    }
}

impl Location {
    fn path(&self) -> Bytes {
        match self {
            Self::Local(path) => Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes()),
            Self::Stream(stream) => stream.path(),
            Self::Host(_, path) | Self::Session(_, path) => path.clone(),
        }
    }

    /// Whether two locations are of one machine, so that the same sessions serve both.
    fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(_) | Self::Stream(_), Self::Local(_) | Self::Stream(_)) => true,
            (Self::Host(a, _), Self::Host(b, _)) => a.config().sharing_key() == b.config().sharing_key(),
            (Self::Session(a, _), Self::Session(b, _)) => Arc::ptr_eq(a.link(), b.link()),
            _ => false,
        }
    }
}

/// Sources of one machine, one after the other.
struct Group {
    place: Place,
    paths: Vec<Source>,
}

/// A source as the user named it.
struct Source {
    path: Bytes,
    stream: Option<Stream>,
}

impl Source {
    fn of(location: &Location) -> Self {
        Self {
            path: location.path(),
            stream: match location {
                Location::Stream(stream) => Some(stream.clone()),
                _ => None,
            },
        }
    }
}

/// A folder that is copied into itself would be copied without end. What a pattern matches is looked at when it is found.
async fn refuse_into_itself(
    job: &Job,
    from: &Place,
    sources: &[Source],
    to: &Place,
    top: &Top,
) -> Result<(), Error> {
    if !job.options.recursive || job.options.dry_run {
        return Ok(());
    }
    let Some(root) = to.absolute(&top.root).await else {
        return Ok(());
    };
    for source in sources.iter().filter(|source| source.stream.is_none()) {
        let (path, typed) = match from {
            Place::Local => (source.path.clone(), source.path.clone()),
            Place::Server(sessions) => {
                let expanded = Expanded::of(&sessions.first(), &source.path).await?;
                (expanded.path(), expanded.typed)
            }
        };
        let name = list::target(&typed, top);
        if let Some(message) = into_itself(from, &path, to, (&root, &name)).await? {
            return Err(Error::Invalid(message));
        }
    }
    Ok(())
}

/// Says so where a folder at `path` is copied into itself: to a name below a target, an absolute path, that is in the folder.
async fn into_itself(
    from: &Place,
    path: &Bytes,
    to: &Place,
    (target, name): (&Bytes, &Bytes),
) -> Result<Option<String>, Error> {
    let Some(path) = from.absolute(path).await else {
        return Ok(None);
    };
    let into = path::in_root(target, name);
    let is_inside = match into.strip_prefix(&path[..]) {
        Some(rest) => rest.starts_with(b"/") && !rest[1..].is_empty() || path == "/",
        None => false,
    };
    let loops = is_inside && to.shows_what_is_made_at(from, target).await?;
    Ok(loops.then(|| format!("{} cannot be copied into itself, {}", shown(&path), shown(&into))))
}

impl Place {
    /// A path made absolute and without links; `None` where there is nothing.
    async fn absolute(&self, path: &Bytes) -> Option<Bytes> {
        match self {
            Self::Local => {
                let path = PathBuf::from(path::os(path));
                let found = blocking(move || std::fs::canonicalize(path)).await.ok()?;
                Some(Bytes::copy_from_slice(found.as_os_str().as_encoded_bytes()))
            }
            Self::Server(sessions) => sessions.first().realpath(path).await.ok(),
        }
    }

    /// Whether a folder is the same one here and at another place, whatever the places are called: what is made in it
    /// here is seen there.
    async fn shows_what_is_made_at(&self, other: &Self, folder: &Bytes) -> Result<bool, Error> {
        let probe = part::random(&path::in_root(folder, b"copy"));
        let made = match self {
            Self::Local => {
                let probe = PathBuf::from(path::os(&probe));
                blocking(move || std::fs::create_dir(probe)).await.is_ok()
            }
            Self::Server(sessions) => sessions
                .first()
                .mkdir(&probe, FileAttributes::default())
                .await
                .is_ok(),
        };
        if !made {
            // Nothing can be made there: the copy says so.
            return Ok(false);
        }
        let seen = match other {
            Self::Local => {
                let probe = PathBuf::from(path::os(&probe));
                blocking(move || std::fs::symlink_metadata(probe)).await.is_ok()
            }
            Self::Server(sessions) => sessions.first().lstat(&probe).await.is_ok(),
        };
        match self {
            Self::Local => {
                let probe = PathBuf::from(path::os(&probe));
                let _ = blocking(move || std::fs::remove_dir(probe)).await;
            }
            Self::Server(sessions) => {
                let _ = sessions.first().rmdir(&probe).await;
            }
        }
        Ok(seen)
    }
}

async fn group(sources: &[Location], progress: &Progress) -> Result<Vec<Group>, Error> {
    let mut groups: Vec<Group> = Vec::new();
    let mut last: Option<&Location> = None;
    for source in sources {
        match groups
            .last_mut()
            .filter(|_| last.is_some_and(|last| last.is_beside(source)))
        {
            Some(group) => group.paths.push(Source::of(source)),
            None => groups.push(Group {
                place: progress.connect(source).await?,
                paths: vec![Source::of(source)],
            }),
        }
        last = Some(source);
    }
    Ok(groups)
}

/// Whether there is more than one source, as far as that matters to the target's name.
async fn are_several(job: &Job, sources: &[Location]) -> Result<bool, Error> {
    let [source] = sources else { return Ok(true) };
    let path = source.path();
    if !path::is_pattern(&path) {
        return Ok(false);
    }
    match Place::of(source).await? {
        Place::Server(sessions) => Ok(list::count(job, &sessions, &path).await? > 1),
        Place::Local => Ok(false),
    }
}

/// What the target is: the directory that everything goes into, and the name there.
#[derive(Clone)]
struct Top {
    root: Bytes,
    /// The name of the one source; `None`: each keeps its own.
    name: Option<Bytes>,
    /// What the directory is like, where it is there.
    found: Option<Beside>,
}

impl Top {
    /// A directory into which everything goes.
    fn directory(root: Bytes) -> Self {
        Self {
            root,
            name: None,
            found: None,
        }
    }

    async fn find(job: &Job, place: &Place, target: &Location, sources: &[Location]) -> Result<Self, Error> {
        let path = match target.path() {
            empty if empty.is_empty() => Bytes::from_static(b"."),
            path => path,
        };
        let stat = |sftp: Sftp| {
            let path = path.clone();
            async move { sftp.stat(path).await }
        };
        let found = match place {
            Place::Local => {
                let path = Path::new(path::os(&path)).to_owned();
                match blocking(move || std::fs::metadata(path)).await {
                    Ok(found) => Some(Beside::from(&found)),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                    Err(error) => {
                        return Err(Error::local(shown(&target.path()), error));
                    }
                }
            }
            Place::Server(sessions) => match sessions.with(stat).await {
                Ok(found) => Some(Beside::from(&found)),
                Err(error) if error.is_no_such_file() => None,
                Err(error) => return Err(error),
            },
        };
        if found.is_some_and(|found| found.kind == Kind::Directory) {
            return Ok(Self {
                found,
                ..Self::directory(path)
            });
        }
        let mkdir = job.options.mkdir && found.is_none();
        let into = path.ends_with(b"/") || are_several(job, sources).await?;
        if into && !mkdir {
            let more = match found {
                None => "; --mkdir creates it",
                Some(_) => "",
            };
            return Err(Error::Invalid(format!(
                "{} is not a directory{more}",
                place.shown(&path)
            )));
        }
        if into {
            place.make_directories(&path, job).await?;
            return Ok(Self::directory(path));
        }
        let (root, name) = folder_and_name(&path);
        if matches!(&name[..], b"" | b"." | b"..") {
            return Err(Error::Invalid(format!(
                "{} is not a valid file name",
                shown(&path)
            )));
        }
        if mkdir {
            place.make_directories(&root, job).await?;
        }
        Ok(Self {
            root,
            name: Some(name),
            found: None,
        })
    }
}

impl Place {
    /// A location with its `~` expanded, where it is a server's.
    async fn expanded(&self, location: &Location) -> Result<Location, Error> {
        let mut expanded = location.clone();
        if let (Self::Server(sessions), Location::Host(_, path) | Location::Session(_, path)) =
            (self, &mut expanded)
            && path.starts_with(b"~")
        {
            let typed = path.clone();
            let expand = |sftp: Sftp| {
                let typed = typed.clone();
                async move { path::Expanded::of(&sftp, &typed).await }
            };
            *path = sessions.with(expand).await?.path();
        }
        Ok(expanded)
    }

    /// Makes the target's directory and those above it, as mkdir -p does.
    async fn make_directories(&self, path: &Bytes, job: &Job) -> Result<(), Error> {
        if job.options.dry_run {
            return Ok(());
        }
        match self {
            Self::Local => {
                let path = PathBuf::from(path::os(path));
                let mode = job.local_mode(None, 0o777);
                let making = path.clone();
                let made = blocking(move || folder::make_directories(&making, mode)).await;
                made.map_err(|error| {
                    Error::local(
                        format!("creating {}", shown(path.as_os_str().as_encoded_bytes())),
                        error,
                    )
                })
            }
            Self::Server(sessions) => {
                let make = |sftp: Sftp| async move { make_directories_there(&sftp, path, 0o777).await };
                sessions.with(make).await
            }
        }
    }
}

/// Makes directories on a server, the innermost first that has one to be in.
async fn make_directories_there(sftp: &Sftp, path: &Bytes, mode: u32) -> Result<(), Error> {
    let path = path.slice(..path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1));
    let slashes = path
        .iter()
        .enumerate()
        .filter(|(at, byte)| *at > 0 && **byte == b'/');
    let ends: Vec<usize> = slashes.map(|(at, _)| at).chain([path.len()]).collect();
    let mut missing = Vec::new();
    for end in ends.into_iter().rev() {
        match sftp.stat(path.slice(..end)).await {
            Err(error) if error.is_no_such_file() && end > 0 => missing.push(end),
            Err(error @ Error::File { .. }) => return Err(error),
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    for end in missing.into_iter().rev() {
        let folder = path.slice(..end);
        let attributes = FileAttributes {
            permissions: Some(Permissions(mode)),
            ..FileAttributes::default()
        };
        if let Err(error) = sftp.mkdir(&folder, attributes).await {
            // Somebody else may have made it meanwhile.
            let found = sftp.stat(&folder).await.ok().and_then(|found| found.file_type());
            if found != Some(FileType::Directory) {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Whether a link at a path below the target leads to something that is not below it.
fn leads_out(path: &[u8], text: &[u8]) -> bool {
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    if text.is_empty() || text.starts_with(b"/") {
        return true;
    }
    for part in text.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// Pipes, sockets and devices in trees of which each gets a line.
const MOST_NAMED: u64 = 10;

/// What a copy's parts share.
struct Job {
    options: CopyOptions,
    filters: Filters,
    deletion: Deletion,
    progress: Arc<Progress>,
    rate: Arc<Rate>,
    flow: Flow,
    plenty: Plenty,
    /// What there is on the server under names that were looked at ahead; `None` for nothing. Each is used once.
    looked_at: Mutex<HashMap<Bytes, Option<FileAttributes>>>,
    tree: Tree,
    names: HeldNames,
    finish: Finish,
    hard_links: HardLinks,
    backups: Backups,
    there: there::Listings,
    /// Pipes, sockets and devices that were found in trees.
    specials: AtomicU64,
    /// It was said that a server makes no hashes.
    no_hashes: AtomicBool,
    /// Nothing more can be written: the copy ends.
    over: AtomicBool,
    /// What is to be compared when it is there.
    verification: Verification,
    /// The server was seen to refuse to rename what was written: files are written under their last names.
    no_renaming: AtomicBool,
    /// A large file was begun of which nothing stays where it fails: a disk that it filled has room again.
    gives_back: AtomicBool,
    /// How to copy the rest of a directory that was given a new name: the same copy again would go into it.
    rest: OnceLock<String>,
}

impl Job {
    /// Tells that a name was not copied. Where nothing else can be written either, this is the last that is tried; those that
    /// are under way then fail for the same reason.
    fn failed(&self, path: Bytes, reason: impl Into<Reason>) {
        let mut reason = reason.into();
        if reason.for_all && !(reason.lacks_room() && self.gives_back.load(Ordering::Relaxed)) {
            if self.over.swap(true, Ordering::Relaxed) {
                return self.left(path);
            }
            if self.progress.total_files.load(Ordering::Relaxed) > 1 {
                reason += STOPPED;
                reason += self.rest.get().map_or("", String::as_str);
            }
        }
        self.progress.failed(path, reason);
    }

    /// A file of `length` is at the target, under `path`.
    fn copied(&self, item: Item, path: impl FnOnce(&Item) -> Bytes, length: u64) {
        self.verification.add(|| Pair {
            target: path(&item),
            source: item.source.clone(),
            name: item.target.clone(),
        });
        self.progress.copied(item.target, length, item.changes);
    }

    /// What was said to be copied is not what it should be.
    fn failed_after(&self, name: Bytes, message: String) {
        self.progress.files.fetch_sub(1, Ordering::Relaxed);
        self.progress.failed(name, message);
    }

    /// A file's failure is told, and the copy continues; a session's is its end.
    fn go_on_after(&self, path: Bytes, error: Error) -> Result<(), Error> {
        if matches!(error, Error::File { .. }) {
            self.failed(path, error);
            return Ok(());
        }
        Err(error)
    }

    /// A tree has a pipe, a socket or a device, which is not copied. The first are named.
    fn special(&self, path: &[u8]) {
        if self.specials.fetch_add(1, Ordering::Relaxed) < MOST_NAMED {
            let message = format!("{} is a pipe, socket or device: skipped", shown(path));
            self.progress.tell(CopyEvent::Note { message });
        }
    }

    /// Whether a link leads out of the tree that it is in, by rsync's rule, and is left out for that.
    fn is_unsafe(&self, item: &Item, text: &[u8]) -> bool {
        let is_unsafe = self.options.safe_links && leads_out(&item.target, text);
        if is_unsafe {
            let message = format!(
                "{} leads out of the tree, to {}: skipped",
                shown(&item.source),
                shown(text)
            );
            self.progress.tell(CopyEvent::Note { message });
            self.deletion.leave(&item.target);
            self.progress.skipped(item);
        }
        is_unsafe
    }

    /// Says how many more there were than were named.
    fn more_specials(&self) {
        let more = self.specials.load(Ordering::Relaxed).saturating_sub(MOST_NAMED);
        if more > 0 {
            let message = format!("{more} more pipes, sockets and devices were skipped");
            self.progress.tell(CopyEvent::Note { message });
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The server does not rename: what comes is written under its last name, which is said once.
    fn renaming_is_refused(&self, host: &str, status: &crate::sftp::Status) {
        if !self.no_renaming.swap(true, Ordering::Relaxed) {
            let message = format!(
                "{host}: renaming what was written is refused ({status}), so files are written under their last names; one \
                 that is interrupted stays incomplete"
            );
            self.progress.tell(CopyEvent::Note { message });
        }
    }

    /// Tells that a name is not copied because the copy has come to its end before.
    fn left(&self, path: Bytes) {
        let message = format!("{} was not copied: the copy had stopped", shown(&path));
        self.progress.tell(CopyEvent::Failed {
            path,
            message,
            errno: None,
            below: true,
        });
    }

    /// The target's directory on this machine, and where what is replaced in it stays.
    fn open_folder(&self, root: &Path) -> std::io::Result<folder::Folder> {
        let backup = self.options.backup.clone().filter(|_| !self.options.dry_run);
        Ok(folder::Folder::open(root)?.keeping(backup))
    }

    /// A source's permissions as they count.
    fn mode(&self, mode: u32, kind: Kind) -> u32 {
        match kind {
            Kind::File | Kind::Directory => {
                ModeChange::apply(&self.options.chmod, mode, kind == Kind::Directory)
            }
            Kind::Link | Kind::Other => mode,
        }
    }

    /// Permissions for a new file or directory on this machine.
    fn local_mode(&self, mode: Option<u32>, usual: u32) -> u32 {
        match mode {
            Some(mode) if self.options.preserve => mode & self.options.kept_bits(),
            mode => mode.unwrap_or(usual) & 0o777 & !self.options.umask,
        }
    }

    /// Opens what sessions a large local source is worth, while the target is looked at; and looks at what a single one
    /// may replace or resume from.
    async fn open_ahead(&self, to: &Place, target: &Location, sources: &[Location]) -> Result<(), Error> {
        let Place::Server(sessions) = to else {
            return Ok(());
        };
        let options = &self.options;
        if options.dry_run {
            return Ok(());
        }
        let local = sources.iter().filter_map(|source| match source {
            Location::Local(path) => Some(path.clone()),
            _ => None,
        });
        let paths: Vec<PathBuf> = local.collect();
        let largest = blocking(move || {
            let found = paths.iter().filter_map(|path| std::fs::metadata(path).ok());
            let lengths = found.filter(std::fs::Metadata::is_file).map(|found| found.len());
            lengths.max().unwrap_or(0)
        });
        let largest = largest.await;
        if largest > LARGE && !options.looks_first() {
            sessions.grow(self.streams(sessions, largest, true).await)?;
        }
        let [source] = sources else { return Ok(()) };
        // The target is the folder that it goes into, or the name that it gets: which, is being asked.
        let (from, path) = (source.path(), target.path());
        let own = folder_and_name(&from).1;
        let mut names = vec![
            path.clone(),
            path::in_root(if path.is_empty() { b"." } else { &path }, &own),
        ];
        if largest > LARGE {
            let here = Place::Local.id();
            for name in names.clone() {
                names.push(Tag::of([&here, &from, &to.id(), &name]).part(&name));
            }
        }
        let sftp = sessions.first();
        let found = futures_util::future::join_all(names.iter().map(|name| sftp.lstat(name))).await;
        for (name, found) in names.into_iter().zip(found) {
            let found = match found {
                Ok(found) => Some(found),
                Err(error) if error.is_no_such_file() => None,
                // Asked again when it is known to matter.
                Err(_) => continue,
            };
            self.looked_at().insert(name, found);
        }
        Ok(())
    }

    fn looked_at(&self) -> MutexGuard<'_, HashMap<Bytes, Option<FileAttributes>>> {
        self.looked_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may be in memory for large files. A limit on the rate bounds it to half a second's worth for all that share it,
    /// since what is under way cannot be held back.
    fn memory(&self) -> usize {
        const MOST: usize = 48 * 1024 * 1024;
        // Each copy that shares the rate holds it once.
        let sharing = Arc::strong_count(&self.rate) as u64;
        match self.rate.limit {
            Some(limit) => usize::try_from(limit / 2 / sharing)
                .unwrap_or(MOST)
                .clamp(256 * 1024, MOST),
            None => MOST,
        }
    }

    /// Sessions for a file: none but the first for what fits into a few windows, else as many as the distance is worth.
    async fn streams(&self, sessions: &Sessions, size: u64, upload: bool) -> usize {
        if let Some(streams) = self.options.streams {
            return streams.clamp(1, MOST_STREAMS);
        }
        let host = sessions.host();
        let narrow = host.as_ref().filter(|_| upload).and_then(Host::window_in_front);
        let narrow = narrow.map(u64::from).filter(|window| *window < NARROW);
        // What opening one takes is some round trips.
        let piece = narrow.map_or(4 * 1024 * 1024, |window| 8 * window.max(1));
        let worth = usize::try_from(size / piece).unwrap_or(usize::MAX);
        if worth < 2 || host.is_none() {
            return 1;
        }
        if narrow.is_some() {
            return worth.min(MOST_NARROW);
        }
        let tuned = host.as_ref().and_then(Host::tuned);
        if let Some(streams) = tuned.and_then(|choice| choice.streams(upload)) {
            return streams.min(worth).max(1);
        }
        // A session that is lost meanwhile is replaced by whoever uses it.
        let Ok(rtt) = sessions.rtt().await else { return 1 };
        let rate = self
            .rate
            .limit
            .map_or(WANTED_RATE, |limit| WANTED_RATE.min(limit as f64));
        streams_for(rate, rtt, size, upload).min(worth)
    }

    /// Sessions for small files, where there are enough of them: `near` by, or far away, where each has its windows and open
    /// files.
    async fn small_streams(&self, sessions: &Sessions, near: usize) -> usize {
        let wanted = match self.options.streams {
            Some(streams) => streams,
            None if sessions.host().is_none() => 1,
            None => match sessions.rtt().await {
                Ok(rtt) if rtt < sessions::NEAR => near,
                Ok(_) => MOST_SMALL_SESSIONS,
                Err(_) => 1,
            },
        };
        wanted.clamp(1, MOST_SMALL_SESSIONS)
    }
}

/// A jump host that takes less in a round trip on each connection (dropbear: 24 KiB) is what bounds an upload.
const NARROW: u64 = 256 * 1024;
/// Connections through such a one at most: fewer than the log-ins at once that sshd begins to refuse (MaxStartups).
const MOST_NARROW: usize = 8;

/// Sessions for a file of so many bytes as far away as this, where nothing else was found to be best.
pub(crate) fn usual_streams(rtt: Duration, size: u64, upload: bool) -> usize {
    streams_for(WANTED_RATE, rtt, size, upload)
}

/// The same for a copy that is to move so many bytes a second, of [`WANTED_RATE`] at most.
fn streams_for(rate: f64, rtt: Duration, size: u64, upload: bool) -> usize {
    let wanted = if rtt < sessions::NEAR {
        // A connection is a core on the server, which carries what a limit leaves by itself.
        if size >= NEAR_STRIPED && rate >= WANTED_RATE {
            2
        } else {
            1
        }
    } else {
        // sshd takes 2 MiB a round trip on each channel; towards us our own windows grow to 15 MiB.
        let window: f64 = if upload { 2e6 } else { 8e6 };
        let product = rate * rtt.as_secs_f64();
        (product / window).ceil() as usize
    };
    wanted.clamp(1, MOST_STREAMS)
}

/// Sessions at once for small files at most.
const MOST_SMALL_SESSIONS: usize = 4;

/// How many small files there are, for sessions that are opened when there are enough.
#[derive(Debug)]
struct Plenty {
    counted: AtomicU64,
    /// A permit for each session beside the first; closed when all have been counted.
    more: Semaphore,
}

impl Plenty {
    /// Small files that a further session is worth: opening it takes as long as some hundred of them.
    const FILES: u64 = 1000;

    fn count(&self) {
        let counted = self.counted.fetch_add(1, Ordering::Relaxed) + 1;
        if counted.is_multiple_of(Self::FILES) {
            self.more.add_permits(1);
        }
    }

    /// No more files come.
    fn end(&self) {
        self.more.close();
    }

    /// Waits until there are enough files for one more session; `false` when there are not going to be.
    async fn suffices(&self) -> bool {
        self.more.acquire().await.map(SemaphorePermit::forget).is_ok()
    }
}

impl Default for Plenty {
    fn default() -> Self {
        Self {
            counted: AtomicU64::new(0),
            more: Semaphore::new(0),
        }
    }
}

/// The rate, in bytes a second, that sessions are to be enough for: what one client core moves.
const WANTED_RATE: f64 = 300e6;
/// On loopback a second connection costs 10 ms and its sshd's start; it pays for files that take longer.
const NEAR_STRIPED: u64 = 128 * 1024 * 1024;

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// The permissions of a file that somebody other than root has written to. As the system does it, what runs with the rights
/// of its user or group no longer does: its content is another one.
fn rewritten(mode: u32) -> u32 {
    match mode & 0o010 {
        // Set-group-ID without the group's right to run it is another thing: mandatory locking.
        0 => mode & !0o4000,
        _ => mode & !SET_ID,
    }
}

/// A name to copy.
#[derive(Debug, Clone)]
struct Item {
    /// Its path at the source.
    source: Bytes,
    /// Its path below the target's root; empty for the root itself.
    target: Bytes,
    kind: Kind,
    /// A file's length as far as is known.
    size: u64,
    mode: Option<u32>,
    times: Option<(u32, u32)>,
    owner: Option<Owner>,
    /// Device and number of a file of this machine that has other names, too.
    inode: Option<(u64, u64)>,
    /// The user gave its name at the target, and no server did: a link there leads on.
    named: bool,
    /// Where its bytes come from, when that is not a regular file.
    stream: Option<Stream>,
    /// What has its name on the server that it goes to.
    there: There,
    /// What there is not as it is at the source.
    changes: Changes,
    /// A directory that is as it should be, unless something changes in it.
    is_right: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Link,
    /// A device, a pipe or a socket.
    Other,
}

impl Kind {
    fn of(kind: std::fs::FileType) -> Self {
        if kind.is_dir() {
            Self::Directory
        } else if kind.is_symlink() {
            Self::Link
        } else if kind.is_file() {
            Self::File
        } else {
            Self::Other
        }
    }
}

/// What a file meets on the server that it goes to.
#[derive(Debug, Clone, Default)]
struct There {
    /// Its path, where links have led to another one.
    path: Option<Bytes>,
    /// The file that it replaces.
    existing: Option<Existing>,
    /// A file that cannot be replaced as it is, and is written where it is.
    in_place: bool,
    /// What the server said when what had been written was not there any more.
    moved: Option<Status>,
    /// What is not a regular file, and is written to.
    special: Option<FileType>,
    /// The name that it has until it is whole, and how many attempts there were to have it.
    own: Option<Arc<part::Own>>,
    attempts: u8,
}

/// A file on the server that another one is to replace.
#[derive(Debug, Clone, Copy)]
struct Existing {
    /// Its permissions, when it has another content.
    mode: u32,
    owner: Option<Owner>,
    size: u64,
    /// Its owner may read it, as far as its permissions tell.
    is_readable: bool,
}

/// What is said, behind the reason, of a file that failed while it was written where it is.
const INCOMPLETE: &str = "; it was written in place, and is incomplete now";

/// Files from this length on are copied by themselves, over all sessions; they can be resumed.
const LARGE: u64 = 2 * 1024 * 1024;

impl Item {
    fn is_large(&self) -> bool {
        self.size > LARGE || self.stream.is_some() || self.there.special.is_some() || self.there.in_place
    }
}

/// Holds copies to a rate: one, or several together.
pub struct Rate {
    limit: Option<u64>,
    /// When what was taken so far is through.
    free: Mutex<Instant>,
}

impl Rate {
    /// So many bytes a second at most; `None` for as many as there may be.
    pub fn new(limit: Option<u64>) -> Self {
        Self {
            limit: limit.filter(|limit| *limit > 0),
            free: Mutex::new(Instant::now()),
        }
    }

    /// Waits until so many bytes more keep to the rate.
    async fn take(&self, bytes: u64) {
        let Some(limit) = self.limit else { return };
        let wait = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            *free = (*free).max(now) + Duration::from_secs_f64(bytes as f64 / limit as f64);
            free.saturating_duration_since(now)
        };
        tokio::time::sleep(wait).await;
    }
}

/// Does something slow with files off the runtime's own threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going down, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_safe_that_stays_in_the_tree() {
        for (path, text, out) in [
            ("l", "f", false),
            ("l", "../f", true),
            ("d/l", "../f", false),
            ("d/l", "e/../../f", false),
            ("d/l", "../../f", true),
            ("d/l", "/etc/passwd", true),
            ("d/l", "", true),
        ] {
            assert_eq!(
                leads_out(path.as_bytes(), text.as_bytes()),
                out,
                "{path} -> {text}"
            );
        }
    }

    #[test]
    fn a_limited_rate_takes_the_sessions_that_carry_it() {
        let far = Duration::from_millis(20);
        assert_eq!(usual_streams(far, u64::MAX, true), 3);
        assert_eq!(streams_for(10e6, far, u64::MAX, true), 1);
        assert_eq!(streams_for(200e6, far, u64::MAX, true), 2);
        let near = Duration::from_micros(100);
        assert_eq!(usual_streams(near, u64::MAX, false), 2);
        assert_eq!(streams_for(10e6, near, u64::MAX, false), 1);
    }
}
