//! The target, looked at before anything is copied.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::blocking::blocking;
use super::compare::Beside;
use super::item::{Kind, LARGE};
use super::job::Job;
use super::list;
use super::part::Tag;
use super::path::{self, Expanded, directory_and_name, shown};
use super::place::{Location, Place};
use super::there::{Listing, listing};
use super::top::{Source, Top, into_itself};
use crate::error::{Error, Invalid};
use crate::sftp::Sftp;

/// Finds out what the target is: the directory that everything goes into, and the name there.
pub(super) async fn find(
    job: &Job,
    place: &Place,
    target: &Location,
    sources: &[Location],
) -> Result<Top, Error> {
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
        Place::Server(sessions) => match sessions.retry(stat).await {
            Ok(found) => Some(Beside::from(&found)),
            Err(error) if error.is_no_such_file() => None,
            Err(error) => return Err(error),
        },
    };
    if found.is_some_and(|found| found.kind == Kind::Directory) {
        return Ok(Top {
            found,
            ..Top::directory(path)
        });
    }
    let mkdir = job.options.mkdir && found.is_none();
    let into = path.ends_with(b"/") || are_several(job, sources).await?;
    if into && !mkdir {
        let (path, is_missing) = (place.shown(&path), found.is_none());
        return Err(Invalid::NotADirectory { path, is_missing }.into());
    }
    if into {
        place.make_directories(&path, &job.options).await?;
        return Ok(Top::directory(path));
    }
    let (root, name) = directory_and_name(&path);
    if matches!(&name[..], b"" | b"." | b"..") {
        return Err(Invalid::FileName(shown(&path)).into());
    }
    if mkdir {
        place.make_directories(&root, &job.options).await?;
    }
    Ok(Top {
        root,
        name: Some(name),
        found: None,
    })
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

/// Opens what sessions a large local source is worth, while the target is looked at; and looks at what a single one
/// may replace or resume from.
pub(super) async fn open_ahead(
    job: &Job,
    to: &Place,
    target: &Location,
    sources: &[Location],
) -> Result<(), Error> {
    let Place::Server(sessions) = to else {
        return Ok(());
    };
    let options = &job.options;
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
        sessions.grow(job.streams(sessions, largest, true).await)?;
    }
    let [source] = sources else { return Ok(()) };
    // The target is the directory that it goes into, or the name that it gets: which, is being asked.
    let (from, path) = (source.path(), target.path());
    let own = directory_and_name(&from).1;
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
        job.known_attributes().insert(name, found);
    }
    Ok(())
}

/// Lists the target, where what is in a source is to go into it; while it is found out what it is.
pub(super) async fn list_ahead(
    job: &Job,
    to: &Place,
    target: &Location,
    sources: &[Location],
) -> Result<Option<Listing>, Error> {
    let Place::Server(sessions) = to else {
        return Ok(None);
    };
    let wanted = job.options.recursive && job.options.looks_first();
    let has_no_name =
        |source: &Location| list::target(&source.path(), &Top::directory(Bytes::new())).is_empty();
    if !wanted || !sources.iter().any(has_no_name) {
        return Ok(None);
    }
    listing(sessions, &job.there, &target.path()).await
}

/// A directory that is copied into itself would be copied without end. What a pattern matches is looked at when it is found.
pub(super) async fn refuse_into_itself(
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
        if let Some(invalid) = into_itself(from, &path, to, (&root, &name)).await? {
            return Err(invalid.into());
        }
    }
    Ok(())
}
