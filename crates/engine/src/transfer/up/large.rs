//! Large files, in pieces over several sessions.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use trunkline_request::copy::Obstacle;
use trunkline_sftp::transfer::{Opening, Plan as _, Refused, Upload, UploadEvent, UploadOptions};

use super::super::blocking::blocking;
use super::super::item::{INCOMPLETE, Item};
use super::super::large::{self, Copied, Turn};
use super::super::part::{Claim, Own, Tag};
use super::super::reason::Reason;
use super::super::sessions::Sessions;
use super::super::source::{Pieces, Source, Want, holes};
use super::super::striped::Striped;
use super::super::{part, path};
use super::{Up, looks};
use crate::error::Error;
use crate::sftp::{self, FileAttributes, FileType, Status};

impl Up<'_> {
    pub(super) async fn large(&self, items: mpsc::Receiver<Item>) -> Result<(), Error> {
        let one = |mut item: Item, turn| async move {
            let copied = self.large_one(&mut item, &turn).await?;
            Ok((item, copied))
        };
        large::copy(self.job, self.sessions, items, one, |item, length| {
            self.report_copied(item, length);
        })
        .await
    }

    /// Copies one file over as many sessions as it is worth. Fails if there are none left; returns a reason if the file fails.
    pub(super) async fn large_one(&self, item: &mut Item, turn: &Turn) -> Result<Copied, Error> {
        if item.there.special.is_some() {
            return self.pour(item).await;
        }
        if item.there.in_place
            && let Some(reason) = self.bars_in_place(item).await
        {
            return Ok(Err(reason));
        }
        let tag = {
            let [from, to] = &self.ids;
            Tag::of([from, &item.source, to, &self.path(&item.target)])
        };
        let may_be_kept = self.job.options.partial && item.stream.is_none() && !item.there.in_place;
        let claim = if may_be_kept { Claim::wait(tag).await } else { None };
        // The part under the name that is kept, if the copy does not resume from it. Until it is removed, no other copy has that
        // name.
        let mut stale = None;
        let ended = self
            .attempts(item, (tag, turn), claim.is_some(), &mut stale)
            .await;
        if let (Some(stale), Ok(_)) = (stale, &ended) {
            self.remove(stale).await?;
        }
        ended
    }

    /// Makes several attempts to copy a file. `may_be_kept`: a later copy may resume from what this one leaves.
    async fn attempts(
        &self,
        item: &mut Item,
        (tag, turn): (Tag, &Turn),
        mut may_be_kept: bool,
        stale: &mut Option<Bytes>,
    ) -> Result<Copied, Error> {
        /// Each attempt meets something that the one before could not know.
        const ATTEMPTS: u8 = 4;
        let (mut last, mut sent) = (Reason::from(String::new()), false);
        for attempt in 0..ATTEMPTS {
            if item.there.in_place
                && !sent
                && let Some(message) = self.lacks_room(item).await
            {
                return Ok(Err(message));
            }
            let source = match Source::open(self.from, item).await {
                Ok(source) => source,
                Err(message) => return Ok(Err(message)),
            };
            let path = self.final_path(item);
            let kept = may_be_kept.then(|| tag.part(&path));
            let own = self.names.own(&item.source, &path).filter(|_| kept.is_none());
            let part = kept
                .clone()
                .unwrap_or_else(|| Own::name(own.as_ref(), &path, attempt));
            let is_removed = kept.is_none() && !item.there.in_place;
            if is_removed {
                self.job.gives_back.store(true, Ordering::Relaxed);
            }
            let leftover = Leftover {
                sessions: self.sessions,
                part: is_removed.then(|| part.clone()),
            };
            let ended = self
                .attempt((item, turn), source, &path, &part, kept.is_some(), &mut sent)
                .await?;
            match ended {
                Ended::Done(length) => {
                    leftover.keep();
                    if let Some(status) = item.there.unmade.take() {
                        self.job
                            .note_refused_temporary_names(self.sessions.first().host(), &status);
                    }
                    return Ok(Ok(length));
                }
                Ended::Failed(message) => {
                    leftover.remove().await;
                    if item.there.unmade.is_some() {
                        self.job.no_last_names.store(true, Ordering::Relaxed);
                    }
                    match kept {
                        Some(kept) if message.lacks_room() && turn.is_shared() => self.remove(kept).await?,
                        Some(kept) => self.remove_if_empty(kept).await,
                        None => {}
                    }
                    last = message;
                    break;
                }
                // The whole file is there.
                Ended::Unset(message) => {
                    leftover.keep();
                    return Ok(Err(message));
                }
                Ended::Unmade(status) => {
                    leftover.keep();
                    last = self.refusal(item, status.clone());
                    item.there.unmade = Some(Box::new(status));
                    if let Some(reason) = self.bars_in_place(item).await {
                        return Ok(Err(reason));
                    }
                    item.there.in_place = true;
                    may_be_kept = false;
                }
                Ended::InPlace(moved) => {
                    leftover.keep();
                    let _ = self.sessions.first().remove(part).await;
                    item.there.moved = moved;
                    if let Some(reason) = self.bars_in_place(item).await {
                        return Ok(Err(reason));
                    }
                    item.there.in_place = true;
                    may_be_kept = false;
                }
                Ended::Again(message) => {
                    leftover.remove().await;
                    if item.there.in_place {
                        item.there.existing = None;
                    }
                    match own {
                        Some(own) => self.lost_parts().push((part, Some(own))),
                        // A server that had not noticed the end of a session has made the part since.
                        None => *stale = kept.or_else(|| stale.take()),
                    }
                    may_be_kept = false;
                    last = message;
                }
            }
            if item.stream.is_some() {
                break;
            }
        }
        if item.there.in_place && sent {
            last += INCOMPLETE;
        }
        Ok(Err(last))
    }

    /// Returns the reason why a file is not written in place, if there is one.
    async fn bars_in_place(&self, item: &Item) -> Option<Reason> {
        if let Some(status) = &item.there.moved {
            let (directory, _) = path::directory_and_name(&self.final_path(item));
            if self.exposure.is_exposed(self.sessions, &directory).await {
                return Some(self.refusal(item, status.clone()));
            }
            self.job
                .note_refused_renaming(self.sessions.first().host(), status);
        }
        item.there.existing?;
        self.job.options.backup.as_ref()?;
        let path = self.format_path(&self.final_path(item));
        Some(
            format!(
                "{path} can only be written where it is, and its backup would change, too: it is unchanged"
            )
            .into(),
        )
    }

    /// Removes a partial file that is empty, from which nothing can be resumed.
    async fn remove_if_empty(&self, part: Bytes) {
        let sftp = self.sessions.first();
        if let Ok(FileAttributes { size: Some(0), .. }) = sftp.lstat(&part).await {
            let _ = sftp.remove(part).await;
        }
    }

    async fn attempt(
        &self,
        (item, turn): (&Item, &Turn),
        source: Source,
        path: &Bytes,
        part: &Bytes,
        kept: bool,
        sent: &mut bool,
    ) -> Result<Ended, Error> {
        let in_place = item.there.in_place;
        let (options, alone) = match self.options(item, &source, path, part, kept).await {
            Ok(options) => options,
            Err(error @ (Error::File { .. } | Error::Local { .. })) => {
                return Ok(Ended::Failed(error.into()));
            }
            Err(error) => return Err(error),
        };
        let exclusive = options.opening == Opening::Exclusive;
        let adopted = options.opening == Opening::Existing && !in_place;
        // A marked file can be attempted again, under another name.
        let is_marked = options.mark.is_some();
        let empties = in_place && options.opening == Opening::Truncate && item.there.existing.is_some();
        let width = match alone {
            true => turn.single(),
            false => turn.width(self.job, self.sessions, item.size, true).await,
        };
        let plan = Upload::new(options);
        let resumed = plan.ranges().done_bytes();
        let mut counted = resumed;
        self.job.progress.count_moved(counted);
        let mut striped = Striped::new(plan, width);
        let mut reads: JoinSet<Pieces> = JoinSet::new();
        loop {
            let lanes_changed = self.sessions.wait_for_change();
            if alone && striped.has_lost() {
                let message = self.format_path(path) + " was not copied: the connection was lost";
                return Ok(Ended::Again(message.into()));
            }
            striped.gather(self.sessions)?;
            let shared = striped.shared.clone();
            let changed = shared.changed.notified();
            let News {
                wants,
                ended,
                may_be_full,
            } = self.news(item, &striped, (exclusive, is_marked, resumed), &mut counted);
            *sent |= empties && striped.shared.plan().has_opened();
            if let Some(ended) = ended {
                striped.drive();
                if adopted && matches!(ended, Ended::Again(_)) {
                    self.job.progress.resumed.fetch_sub(resumed, Ordering::Relaxed);
                }
                return Ok(match ended {
                    Ended::Failed(message) if may_be_full => {
                        drop(striped);
                        let left = (kept || in_place).then_some(counted);
                        Ended::Failed(match self.no_room(item, path, left).await {
                            Some(reason) => reason,
                            // Other files may have given back their room since.
                            None if turn.is_shared() => Reason {
                                errno: Some(rustix::io::Errno::NOSPC.raw_os_error()),
                                ..message
                            },
                            None => message,
                        })
                    }
                    // Another attempt would not find room.
                    Ended::Again(message) if may_be_full => {
                        drop(striped);
                        match self.no_room(item, path, None).await {
                            Some(reason) => Ended::Failed(reason),
                            None => Ended::Again(message),
                        }
                    }
                    ended => ended,
                });
            }
            source.read(&item.source, wants, &mut reads);
            tokio::select! {
                () = changed => {}
                () = lanes_changed => {}
                Some(read) = reads.join_next() => {
                    let pieces = match read {
                        Ok(Ok(pieces)) => pieces,
                        Ok(Err(message)) => return Ok(Ended::Failed(message)),
                        Err(error) => return Ok(Ended::Failed(error.to_string().into())),
                    };
                    self.job.rate.take(pieces.iter().map(|(_, data)| data.len() as u64).sum()).await;
                    pieces.iter().for_each(|(_, data)| self.job.flow.offer(data));
                    *sent |= in_place && !pieces.is_empty();
                    let mut plan = striped.shared.plan();
                    pieces.into_iter().for_each(|(id, data)| plan.provide(id, data));
                    drop(plan);
                    striped.drive();
                }
            }
        }
    }

    /// Returns the options to write a file, and whether one session writes it alone.
    async fn options(
        &self,
        item: &Item,
        source: &Source,
        path: &Bytes,
        part: &Bytes,
        kept: bool,
    ) -> Result<(UploadOptions, bool), Error> {
        let in_place = item.there.in_place;
        let mut options = UploadOptions::new(if in_place { path.clone() } else { part.clone() });
        options.size = Some(item.size).filter(|_| item.stream.is_none());
        options.create = self.new_mode(item);
        options.attributes = looks(self.job, item);
        options.sync = self.job.options.sync;
        options.memory = self.job.memory();
        let alone = in_place || item.stream.is_some() || item.mode.is_some_and(|mode| mode & 0o200 == 0);
        if in_place && !item.named && !self.sessions.first().is_sftp_server().await? {
            // On some servers LSTAT shows a link's target: writing in place would write to the target.
            let text = self.sessions.first().readlink(path).await;
            // One server (copyparty's) answers with the path itself for any file.
            let is_link = text.is_ok_and(|text| text != *path);
            if is_link {
                let status = Status {
                    code: sftp::StatusCode::FAILURE,
                    message: "it is a symbolic link, which this server does not replace".into(),
                };
                return Err(self
                    .sessions
                    .first()
                    .link()
                    .status_error("writing", path.clone(), status));
            }
        }
        if in_place {
            // A longer file is emptied at once: it is not known whether the server can truncate it afterwards.
            let is_longer = item
                .there
                .existing
                .is_none_or(|existing| existing.size > item.size || options.size.is_none());
            options.opening = if is_longer {
                Opening::Truncate
            } else {
                Opening::Existing
            };
            return Ok((options, alone));
        }
        options.needs_attributes = item.there.existing.is_some();
        let there = self.look_at_part(item, part, source, kept).await?;
        options.done = there.done;
        options.opening = if there.adopted {
            Opening::Existing
        } else {
            Opening::Exclusive
        };
        options.owner = self.owner(item).filter(|_| !there.adopted);
        options.rename_to = Some(path.clone());
        if there.exposed && self.sessions.first().is_sftp_server().await? {
            options.mark = Some(part::mark());
        }
        let alone = alone || there.exposed && options.mark.is_none();
        Ok((options, alone))
    }

    /// Takes a plan's events, and counts the bytes that it has written beyond `counted`.
    fn news(
        &self,
        item: &Item,
        striped: &Striped<Upload>,
        (exclusive, is_marked, resumed): (bool, bool, u64),
        counted: &mut u64,
    ) -> News {
        let (events, done) = {
            let mut plan = striped.shared.plan();
            let events: Vec<_> = std::iter::from_fn(|| plan.poll_event()).collect();
            (events, plan.ranges().done_bytes())
        };
        let mut news = News {
            wants: Vec::new(),
            ended: None,
            may_be_full: false,
        };
        for event in events {
            match event {
                UploadEvent::Read { id, offset, length } => news.wants.push(Want { id, offset, length }),
                UploadEvent::Finished {
                    length, attributes, ..
                } => {
                    news.ended = Some(match attributes {
                        Ok(()) => Ended::Done(length),
                        Err(status) => Ended::Unset(self.unset(item, &status)),
                    });
                }
                UploadEvent::NotReplaced { refused, status } => {
                    let bars = self.not_replaced(item, refused, &status);
                    news.ended = Some(bars.map_or_else(Ended::Failed, Ended::InPlace));
                }
                // Such a server cannot use an earlier attempt's part: the file is begun anew.
                UploadEvent::Damaged(status) if (!exclusive || is_marked) && !item.there.in_place => {
                    news.ended = Some(Ended::Again(self.refusal(item, status)));
                }
                UploadEvent::Damaged(status) => {
                    news.ended = Some(Ended::Failed(self.refusal(item, status)));
                }
                UploadEvent::Failed(status) => {
                    news.may_be_full = status.code == sftp::StatusCode::FAILURE;
                    news.ended = Some(self.judge_failure(item, &status, exclusive, *counted - resumed));
                }
                _ => {}
            }
        }
        let more = done.saturating_sub(*counted);
        self.job.progress.count_kept(more);
        self.job.flow.passed(more);
        *counted = done.max(*counted);
        news
    }

    /// Decides about a file that cannot get its name by renaming: it is written in place. Returns the server's answer if the
    /// written file does not exist any more.
    ///
    /// # Errors
    /// The file is not written in place either.
    pub(super) fn not_replaced(
        &self,
        item: &Item,
        refused: Refused,
        status: &Status,
    ) -> Result<Option<Status>, Reason> {
        let needs_owner = refused == Refused::Owner && self.job.options.owners;
        if needs_owner {
            return Err(Reason {
                obstacle: Some(Obstacle::Owner),
                ..self.refusal(item, status.clone()) + "; its owner could not be set"
            });
        }
        if item.there.in_place {
            return Err(self.refusal(item, status.clone()));
        }
        if status.code == sftp::StatusCode::NO_SUCH_FILE {
            // The server removes a file that is closed; or somebody has moved the file, and may have put something else in its
            // place.
            return Ok(Some(status.clone()));
        }
        if refused == Refused::Renaming {
            self.job
                .note_refused_renaming(self.sessions.first().host(), status);
        }
        Ok(None)
    }

    /// Returns the end of an attempt whose upload failed. If the upload wrote nothing, the server may have refused to create the
    /// file.
    fn judge_failure(&self, item: &Item, status: &Status, exclusive: bool, written: u64) -> Ended {
        let message = self.refusal(item, status.clone());
        match status.code {
            // An earlier attempt's part cannot be resumed: some servers write a file from its beginning only (rclone's), or
            // remove it when it is opened again.
            _ if !exclusive && !item.there.in_place && written == 0 => Ended::Again(message),
            // The server removed the file that it was to open again.
            sftp::StatusCode::NO_SUCH_FILE if written == 0 && item.there.existing.is_some() && !exclusive => {
                Ended::Again(message)
            }
            _ if !exclusive || written > 0 => Ended::Failed(message),
            // The directory takes no new name, but the existing file may be writable.
            sftp::StatusCode::PERMISSION_DENIED if item.there.existing.is_some() => Ended::InPlace(None),
            _ if self.may_be_unmade(status) => Ended::Unmade(status.clone()),
            // The name has been taken meanwhile, or the session ended during the request.
            sftp::StatusCode::FAILURE | sftp::StatusCode::CONNECTION_LOST => Ended::Again(message),
            _ => Ended::Failed(message),
        }
    }

    /// Returns whether a server may have refused the temporary name, or EXCL, and not the file itself: some do not know EXCL (npm
    /// ssh2-sftp-server's reports that there is no such file), or take some names only.
    pub(super) fn may_be_unmade(&self, status: &Status) -> bool {
        let is_refused = matches!(
            status.code,
            sftp::StatusCode::NO_SUCH_FILE
                | sftp::StatusCode::PERMISSION_DENIED
                | sftp::StatusCode::OP_UNSUPPORTED
        );
        is_refused
            && !self.sessions.first().link().is_sftp_server()
            && !self.job.no_last_names.load(Ordering::Relaxed)
    }

    /// Looks for the part that an earlier attempt left. Returns the ranges that need not be sent: those that equal the source, or
    /// the source's holes, which a new file has by itself.
    async fn look_at_part(
        &self,
        item: &Item,
        part: &Bytes,
        source: &Source,
        kept: bool,
    ) -> Result<Part, Error> {
        let directory = path::directory_and_name(part).0;
        let left = async {
            match kept {
                true => self.look_in_turn(part).await,
                false => Ok(None),
            }
        };
        let (left, exposed) = tokio::join!(left, self.exposure.is_exposed(self.sessions, &directory));
        let left = left?;
        if let Some(left) = &left
            // A longer part would have to be truncated, which servers do differently.
            && let Some(size) = left.size.filter(|size| (1..=item.size).contains(size))
            && left.file_type() == Some(FileType::Regular)
            // Sessions open the part by its name, which others could give to something else in between.
            && !exposed
            && let Some(mut done) = self.same((item, size), part, source).await?
        {
            // No range may go beyond the end of the part.
            done.retain_mut(|range| {
                range.end = range.end.min(size);
                !range.is_empty()
            });
            if !done.is_empty() {
                let resumed = done.iter().map(|range| range.end - range.start).sum();
                self.job.progress.resumed.fetch_add(resumed, Ordering::Relaxed);
                return Ok(Part {
                    done,
                    adopted: true,
                    exposed,
                });
            }
        }
        if left.is_some() {
            // Nothing is lost: no other copy has this name. If the part cannot be removed, the file gets another name.
            self.remove(part.clone()).await?;
        }
        let done = match source {
            Source::Local(file) => {
                let (file, size) = (file.clone(), item.size);
                blocking(move || holes(&file, size)).await
            }
            Source::Server(_) | Source::Stream(_) => Vec::new(),
        };
        Ok(Part {
            done,
            adopted: false,
            exposed,
        })
    }
}

/// A partial file that no copy would resume, if there is one. It is removed with the attempt that writes it, even if that is
/// interrupted.
struct Leftover<'a> {
    sessions: &'a Sessions,
    part: Option<Bytes>,
}

impl Leftover<'_> {
    async fn remove(mut self) {
        if let Some(part) = self.part.take() {
            let _ = self.sessions.first().remove(part).await;
        }
    }

    /// Keeps the file: it has another name now, or somebody else removes it.
    fn keep(mut self) {
        self.part = None;
    }
}

impl Drop for Leftover<'_> {
    fn drop(&mut self) {
        let Some(path) = self.part.take() else { return };
        self.sessions.first().link().with_client(|client| {
            let id = client.request(trunkline_sftp::Request::Remove { path });
            client.cancel(id);
        });
    }
}

/// The events of a plan.
struct News {
    /// The ranges to read from the source.
    wants: Vec<Want>,
    ended: Option<Ended>,
    /// The server may have meant that its disk is full.
    may_be_full: bool,
}

/// The end of an attempt to copy a large file.
enum Ended {
    Done(u64),
    /// The file is complete, but its times or permissions were not set.
    Unset(Reason),
    Failed(Reason),
    /// The file has to be written in place; with the server's answer if the written file does not exist any more.
    InPlace(Option<Status>),
    /// The server made no file with a temporary name, and may make one with the final name.
    Unmade(Status),
    /// Another attempt may succeed; with the reason why this one did not.
    Again(Reason),
}

/// The part of a file that exists under its temporary name.
struct Part {
    done: Vec<Range<u64>>,
    adopted: bool,
    /// Others may give the part's name to another file.
    exposed: bool,
}
