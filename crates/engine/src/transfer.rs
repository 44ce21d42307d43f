//! Copies of files and trees: between this machine and a server, or between two servers through this machine.
//!
//! | module | what it is |
//! |---|---|
//! | `place`, `item` | an end of a copy; a name to copy |
//! | `job` | what a copy's parts share |
//! | `target`, `top` | what is found out of the target before anything is copied |
//! | `list` | what there is to copy: names, as they are found |
//! | `down`, `up` | how it is copied: towards this machine, towards a server |
//! | `directory` | the local directory that is written into, and nowhere else |
//! | `tree` | what has been made below the target, and where something may be made |
//! | `pattern` | patterns of names, as scp's and rsync's |
//! | `filter` | which names are left out |
//! | `compare` | whether the target has what the source has |
//! | `there`, `survey` | what a server's directories have; its own find(1)'s word for it |
//! | `content` | whether files' contents are the same, by hash |
//! | `exposed` | which of a server's directories others can rename or fill |
//! | `delete` | what the target has and the source has not |
//! | `backup`, `hard_links` | what is replaced keeps a name; names of one file |
//! | `part` | the names that files have until they are whole |
//! | `progress`, `rate` | how far a copy is, and how fast it may be |
//! | `sources`, `spool` | what a copy remembers of its sources; what it keeps of names, in memory and beyond it |
//! | `reason` | why something was not copied |
//! | `stream`, `pour` | ends that are not regular files: pipes, devices, descriptors; copies into them |
//! | `sessions` | the sessions that a copy goes over |
//! | `parallel` | how many of them files are worth |
//! | `small`, `striped` | how several of them share small files, or one large file |
//! | `large` | which large files are under way together |
//! | `compression` | whether they compress, where nobody has decided it |
//! | `blocks` | what is right already: both ends' hashes, block by block |
//! | `verify` | whether what was copied is the same on both ends |

mod backup;
mod blocking;
mod blocks;
mod compare;
mod compression;
mod content;
mod delete;
mod directory;
mod down;
mod exposed;
mod filter;
mod finish;
mod hard_links;
mod item;
mod job;
mod large;
mod list;
mod owners;
mod parallel;
mod part;
mod path;
mod pattern;
mod place;
mod pour;
mod progress;
mod rate;
mod reason;
mod sessions;
mod shells;
mod small;
mod source;
mod sources;
mod spool;
mod stream;
mod striped;
mod survey;
mod target;
mod there;
mod top;
mod tree;
mod up;
mod verify;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;
pub use trunkline_request::copy::{
    Backup, Changes, Comparison, CopyEvent, CopyOptions, FilterRule, Obstacle, Snapshot, Waiting,
};
pub use trunkline_request::mode::{ModeChange, ModeError};

use crate::error::{Error, Invalid};
use job::Job;
use owners::Owners;
pub(crate) use parallel::usual_streams;
use path::{directory_and_name, shown};
pub use place::Location;
use place::Place;
pub use progress::Progress;
pub use rate::Rate;
pub(crate) use sessions::{NEAR, SESSIONS_A_CONNECTION};
pub use stream::Stream;
use top::{Source, Top};

/// Copies `sources` to `target`, as cp(1) does: into it if it is a directory, which it must be for several sources. A
/// source directory goes with its name into a target that is there, and under the target's name where there is none.
/// Symbolic links that the sources name are followed, those in trees are copied. Of two sources that have one name the
/// first is copied; directories of one name become one.
///
/// A file is written under a name of its own beside the target and renamed when it is whole, so that nobody meets half
/// of it. One that is replaced keeps its owner and permissions; a link that the user named leads on to what is written,
/// and pipes and devices are written to. Dropping the future ends the copy.
///
/// Below the target nothing is made in a directory that is a link, whoever made it.
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
        return pour::copy_to(sources, &stream, options, &rate, progress).await;
    }
    let to = progress.connect(target).await?;
    hard_links::check(options.hard_links, &to, sources).await?;
    if options.numeric_ids {
        to.keeps_owners(options).await?;
    }
    to.check_backups(options).await?;
    let target = &to.expanded(target).await?;
    if let Place::Server(sessions) = &to {
        sessions.send();
    }
    let names = sources.iter().chain([target]).find_map(Location::names);
    // Who lists this machine's one source tells each name once.
    let is_one_tree = matches!(sources, [Location::Local(_) | Location::Stream(_)]);
    let mut job = Job::new(options, progress, rate, names.unwrap_or_default(), !is_one_tree)?;
    // The listing takes as many round trips as the rest.
    let ends = async {
        let top = target::find(&job, &to, target, sources).await?;
        let groups = group(sources, progress).await?;
        for group in &groups {
            target::refuse_into_itself(&job, &group.place, &group.paths, &to, &top).await?;
        }
        Ok((top, groups))
    };
    let ((top, groups), (), listing, owners) = tokio::try_join!(
        ends,
        target::open_ahead(&job, &to, target, sources),
        target::list_ahead(&job, &to, target, sources),
        to.keeps_owners(options)
    )?;
    job.options.owners = owners;
    let job = Arc::new(job);
    if let (None, Some(listing)) = (&top.name, listing) {
        job.there.add(b"", listing);
    }
    if let (Some(_), false, [source]) = (&top.name, options.mkdir, sources)
        && directory_and_name(&source.path()).1 != "."
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
    job.report_more_specials();
    if copied.is_ok() && !job.is_over() {
        for path in job.filters.missing() {
            let message = format!("{}: no such file in the source", shown(&path));
            progress.report_failed(path.into(), message);
        }
    }
    let deleted = match &copied {
        Ok(()) if !job.is_over() => delete::delete(&job, &to, &top.root).await,
        _ => Ok(()),
    };
    // Whatever happened: a directory that the user can only read is writable until then.
    let finished = finish::directories(&job, &to, &top.root).await;
    copied.and(deleted).and(finished)?;
    Ok(progress.final_snapshot())
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
        let owners = Arc::new(Owners::new(&group.place, to, options));
        // On the heap: the future of a copy holds those of all that it is made of, and would be moved with them.
        let names = Box::pin(async {
            list::names(job, (&group.place, &owners), &group.paths, to, top, items).await?;
            progress.counted.store(nth + 1 == last, Ordering::Relaxed);
            Ok(())
        });
        let work = Box::pin(async {
            match (&group.place, to) {
                (Place::Local, Place::Local) => Err(Invalid::NoHost.into()),
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
        let adapt =
            |sessions, upload| compression::adapt(&job.flow, job.rate.limit, progress, sessions, upload);
        let adapting = Box::pin(async {
            match (&group.place, to) {
                (Place::Server(sessions), Place::Local) => adapt(sessions, false).await,
                (Place::Local, Place::Server(sessions)) => adapt(sessions, true).await,
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
        verify::verify(&job.verification, progress, (&group.place, to), copying).await?;
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

/// Sources of one machine, one after the other.
struct Group {
    place: Place,
    paths: Vec<Source>,
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
