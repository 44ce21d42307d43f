//! Directories at the target: created, or entered if they exist.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use trunkline_request::copy::{Changes, Obstacle};

use super::super::compare::{Beside, Verdict, split, verdict};
use super::super::item::Item;
use super::super::there;
use super::super::tree::Origin;
use super::{AT_ONCE, Look, Up, permissions};
use crate::error::Error;
use crate::sftp::{FileAttributes, FileType, Sftp};

impl Up<'_> {
    /// Looks up a directory at the target and, if names are compared, lists it.
    pub(super) async fn look_at_directory(&self, target: &Bytes) -> Result<Option<FileAttributes>, Error> {
        let path = self.path(target);
        let looks_first = self.job.options.looks_first();
        if looks_first && let Some(found) = self.survey.look_at(target).await {
            // Nobody asks for this name again.
            let _ = self.job.there.take(target);
            return Ok(Some(found));
        }
        // The semaphore is never closed. Directories have turns of their own: tasks that prepare names do not go on meanwhile,
        // and may hold their turns.
        let _turn = self.listing.acquire().await.ok();
        if !looks_first {
            return self.look(&path).await;
        }
        let (found, listing) = tokio::join!(
            self.look_below(target, &path),
            there::listing(self.sessions, &self.job.there, &path)
        );
        let found = found?;
        // The content of a link's target is not the directory's.
        if let (Some(FileType::Directory), Some(listing)) =
            (found.as_ref().and_then(FileAttributes::file_type), listing?)
        {
            self.job.there.add(target, listing);
        }
        Ok(found)
    }

    /// Makes directories, outer ones before inner ones, and notes those that have to be finished.
    ///
    /// All are looked up before any is made: a directory made below one that turns out to be a link would be made at the link's
    /// target.
    pub(super) async fn make_directories(&self, directories: Vec<(Item, Look)>) -> Result<(), Error> {
        let job = self.job;
        let mut absent = Vec::new();
        for (mut item, found) in directories {
            let parent = job.tree.parent(&item.target);
            let path = self.path(&item.target);
            let found = if self.is_in_replacing(&item.target) {
                Ok(None)
            } else {
                found
            };
            match found {
                _ if parent.is_none() => job.progress.report_below(item.target, &self.format_path(&path)),
                Ok(None) => {
                    // Lets names in the directory be looked up, too.
                    job.tree.hold(&item.target, Origin::Found);
                    job.tree.touch(&item.target);
                    item.changes = Changes::NEW;
                    absent.push(item);
                }
                Ok(Some(found)) if found.file_type() == Some(FileType::Directory) => {
                    job.tree.hold(&item.target, Origin::Found);
                    if job.options.looks_first()
                        && let Verdict::Stays(looks) = verdict(&job.options, &item, &Beside::from(&found))
                    {
                        job.progress.report_adjusted(&item, looks);
                        item.is_right = looks.is_empty();
                    } else {
                        let target = item.target.clone();
                        job.progress.report_copied(target, 0, Changes::default());
                    }
                    if job.options.preserve && !job.options.dry_run {
                        job.finish.add(&item)?;
                    }
                }
                Ok(Some(_)) if job.options.delete => {
                    job.tree.hold(&item.target, Origin::Found);
                    job.tree.touch(&item.target);
                    item.changes = Changes::KIND;
                    self.replacing().insert(item.target.clone());
                    absent.push(item);
                }
                Ok(Some(found)) => {
                    let what = match found.file_type() {
                        Some(FileType::Symlink) => "a symbolic link",
                        _ => "not a directory",
                    };
                    let path = self.format_path(&path);
                    let message = format!("{path} is {what}, so nothing is created in it");
                    job.report_failed(item.target, message);
                }
                Err(error) => job.go_on_after(item.target, error)?,
            }
        }
        if job.options.dry_run {
            for item in absent {
                job.tree.hold(&item.target, Origin::Made);
                job.progress.would_copy(item);
            }
            return Ok(());
        }
        // This comes before any directory is made, since all the requests to make directories are in flight together.
        let in_the_way = absent.iter().filter(|item| item.changes.has(Changes::KIND));
        futures_util::stream::iter(in_the_way.map(Ok))
            .try_for_each_concurrent(AT_ONCE, |item| self.clear(item))
            .await?;
        // The requests go in order over one session: the server makes the outer directory first.
        let making = futures_util::stream::iter(absent)
            .map(|item| async {
                let new = self.make_directory(&item).await;
                (item, new)
            })
            .buffered(AT_ONCE);
        let mut making = std::pin::pin!(making);
        while let Some((item, new)) = making.next().await {
            self.report_directory(item, new).await?;
        }
        Ok(())
    }

    /// Reports the outcome of making a directory, which was new or there already.
    async fn report_directory(&self, item: Item, new: Result<bool, Error>) -> Result<(), Error> {
        let job = self.job;
        match new {
            Ok(new) => {
                let origin = if new { Origin::Made } else { Origin::Found };
                job.tree.hold(&item.target, origin);
                job.progress.report_copied(item.target.clone(), 0, item.changes);
                let masked = new && item.mode.is_some_and(|mode| mode & 0o700 != 0o700);
                if job.options.preserve || masked {
                    job.finish.add(&item)?;
                }
            }
            Err(error @ Error::File { .. }) => {
                let path = self.path(&item.target);
                let is_outermost = job.tree.parent(&item.target).is_some();
                job.tree.lose(&item.target);
                if !is_outermost {
                    job.progress.report_below(item.target, &self.format_path(&path));
                    return Ok(());
                }
                let is_absent = error.is_no_such_file();
                let mut reason = self.with_room(&item, &path, None, error.into()).await;
                if is_absent {
                    reason.obstacle = Some(Obstacle::NoDirectory);
                }
                job.report_failed(item.target, reason.of_directory());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes a file or link that is in the way of a directory (a link itself, not its target). If it stays, making the
    /// directory fails.
    async fn clear(&self, item: &Item) -> Result<(), Error> {
        let path = self.path(&item.target);
        match self
            .job
            .backups
            .keep(self.sessions, self.root, (&path, &item.target))
            .await
        {
            Ok(()) => self.remove(path).await,
            Err(Error::File { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn replacing(&self) -> MutexGuard<'_, HashSet<Bytes>> {
        self.replacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a directory is in one that replaces something else, and notes it as one of those.
    fn is_in_replacing(&self, directory: &Bytes) -> bool {
        let mut replacing = self.replacing();
        let is_in = !replacing.is_empty() && replacing.contains(&split(directory).0);
        if is_in {
            replacing.insert(directory.clone());
        }
        is_in
    }

    /// Makes a directory. Returns whether it is new.
    async fn make_directory(&self, item: &Item) -> Result<bool, Error> {
        let path = self.path(&item.target);
        let mode = item.mode.unwrap_or(0o777) & 0o777 | 0o700;
        let make = |sftp: Sftp| {
            let path = path.clone();
            async move {
                match sftp.mkdir(&path, permissions(mode)).await {
                    Ok(()) => Ok(true),
                    // Version 3 has no status for an existing name.
                    Err(error @ Error::File { .. }) => match sftp.lstat(&path).await {
                        Ok(found) if found.file_type() == Some(FileType::Directory) => Ok(false),
                        _ => Err(error),
                    },
                    Err(error) => Err(error),
                }
            }
        };
        self.sessions.retry(make).await
    }
}
