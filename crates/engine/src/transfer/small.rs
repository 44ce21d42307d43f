//! Small files over several sessions: the [`Queue`] they wait in, and the sessions' work.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, mpsc, watch};
use trunkline_sftp::transfer::{FileId, Many};

use super::item::Item;
use super::job::Job;
use super::parallel::MOST_SMALL_SESSIONS;
use super::sessions::Sessions;
use crate::error::Error;
use crate::sftp::{Attached, Sftp, Shared};

/// The most small files in flight or waiting on a session.
pub(super) const MOST_SMALL: usize = 2048;
/// Memory for the small files of a session.
pub(super) const SMALL_MEMORY: usize = 12 * 1024 * 1024;

/// The small files on one session.
pub(super) struct SmallFiles<P> {
    pub(super) sftp: Sftp,
    pub(super) shared: Arc<Shared<P>>,
    pub(super) attached: Attached,
    pub(super) known: HashMap<FileId, Item>,
}

impl<P: Many + Send + 'static> SmallFiles<P> {
    pub(super) fn on(sftp: Sftp, plan: P) -> Self {
        let shared = Shared::new(plan);
        let attached = shared.attach(sftp.link(), ());
        Self {
            sftp,
            shared,
            attached,
            known: HashMap::new(),
        }
    }
}

/// A copy's side of the small files on a session.
pub(super) trait Work {
    type Plan: Many + Send + 'static;

    /// The sessions that keep a near server's cores busy: each is an sftp-server that answers one request in each turn of its
    /// loop.
    const NEAR: usize;

    fn files(&mut self) -> &mut SmallFiles<Self::Plan>;

    /// Gives the plan one more file.
    fn add(&mut self, item: Item);

    /// Handles pending events; returns whether there were any.
    fn work(&mut self) -> impl Future<Output = bool> + Send;

    /// Waits for an event. Cancel-safe.
    fn wait(&mut self) -> impl Future<Output = ()> + Send;

    /// Notes that its session is lost: unfinished files start again on another one.
    fn lost(&mut self);
}

/// The queue that several sessions take small files from.
pub(super) struct Queue {
    found: Mutex<mpsc::Receiver<Item>>,
    /// Files that sessions have given back. The lock is held only while they are moved.
    again: std::sync::Mutex<Vec<Item>>,
    /// Set when no more files are found.
    exhausted: watch::Sender<bool>,
}

impl Queue {
    pub(super) fn new(found: mpsc::Receiver<Item>) -> Self {
        Self {
            found: Mutex::new(found),
            again: std::sync::Mutex::default(),
            exhausted: watch::Sender::new(false),
        }
    }

    /// Returns up to `most` files; none if no more come except those that other sessions give back and take themselves.
    /// Cancel-safe.
    async fn take(&self, most: usize) -> Vec<Item> {
        {
            let mut again = self.again();
            let rest = again.len().saturating_sub(most);
            let some = again.split_off(rest);
            if !some.is_empty() {
                return some;
            }
        }
        let mut some = Vec::new();
        self.found.lock().await.recv_many(&mut some, most).await;
        if some.is_empty() {
            self.exhausted.send_replace(true);
        }
        some
    }

    /// Waits until a further session would have nothing to do: the server may never have a place for it.
    async fn wait_until_exhausted(&self) {
        // Its sender is this queue's own.
        let _ = self.exhausted.subscribe().wait_for(|exhausted| *exhausted).await;
        // The rest are files that it lost with its session.
        if !self.again().is_empty() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives back the files that a session was given and has not finished. The session continues until none is left.
    fn give_back(&self, items: impl IntoIterator<Item = Item>) {
        self.again().extend(items);
    }

    fn again(&self) -> std::sync::MutexGuard<'_, Vec<Item>> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies all files, over as many sessions as are useful; `begin` starts the work on one.
    pub(super) async fn copy<W: Work>(
        &self,
        job: &Job,
        sessions: &Sessions,
        begin: impl Fn(Sftp) -> W,
    ) -> Result<(), Error> {
        let on = |nth| self.copy_on(nth, job, sessions, &begin);
        let mut moves = sessions.moves();
        let mut working: FuturesUnordered<_> = (0..MOST_SMALL_SESSIONS).map(&on).collect();
        loop {
            let changed = sessions.wait_for_change();
            if sessions.moves() > moves {
                // Once more: the others still finish files on the old sessions.
                moves = sessions.moves();
                working.push(on(0));
            }
            tokio::select! {
                ended = working.next() => match ended {
                    Some(result) => result?,
                    None => return Ok(()),
                },
                () = changed => {}
            }
        }
    }

    /// Copies files on the nth session once there are enough for it.
    async fn copy_on<W: Work>(
        &self,
        nth: usize,
        job: &Job,
        sessions: &Sessions,
        begin: &impl Fn(Sftp) -> W,
    ) -> Result<(), Error> {
        if nth > 0 && (!job.plenty.suffices().await || nth >= job.small_streams(sessions, W::NEAR).await) {
            return Ok(());
        }
        loop {
            let changed = sessions.wait_for_change();
            let Some(sftp) = sessions.nth(nth)? else {
                tokio::select! {
                    () = changed => continue,
                    () = self.wait_until_exhausted(), if nth > 0 => return Ok(()),
                }
            };
            let mut session = begin(sftp.clone());
            let mut exhausted = false;
            loop {
                if session.work().await {
                    continue;
                }
                let files = session.files();
                if job.is_over() {
                    // Started files finish by themselves.
                    let waiting = files.shared.plan().take_waiting();
                    let waiting = waiting.iter().filter_map(|file| files.known.remove(file));
                    waiting.for_each(|item| job.report_left(item.target));
                }
                if exhausted && files.known.is_empty() {
                    return Ok(());
                }
                let retired = !sessions.has(&sftp);
                if sftp.link().end_reason().is_some() || retired && files.known.is_empty() {
                    break;
                }
                if retired {
                    let waiting = files.shared.plan().take_waiting();
                    self.give_back(waiting.iter().filter_map(|file| files.known.remove(file)));
                    exhausted = false;
                }
                let room = match retired {
                    true => 0,
                    false => MOST_SMALL.saturating_sub(files.known.len()),
                };
                tokio::select! {
                    () = session.wait() => {}
                    more = self.take(room), if room > 0 && !exhausted => {
                        exhausted = more.is_empty();
                        for item in more {
                            if job.is_over() {
                                job.report_left(item.target);
                                continue;
                            }
                            job.progress.set_current(&item.target);
                            session.add(item);
                        }
                        session.files().attached.drive();
                    }
                }
            }
            // The lost session's unfinished files go to the next.
            session.lost();
            self.give_back(session.files().known.drain().map(|(_, item)| item));
        }
    }
}
