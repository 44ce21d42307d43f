//! Transfers planned over [`Client`]s: which requests to send when, as state machines driven by time.
//!
//! | what | plan |
//! |---|---|
//! | one file, large | [`Download`], [`Upload`]: over one session or several, each a [worker](WorkerId) |
//! | many files, small | [`ManyDownload`], [`ManyUpload`] |
//! | a tree's names | [`Walk`] |
//!
//! Each is a [`Plan`]. After anything happened call [`drive`](Plan::drive), which gives the session as many requests as
//! are worth having in flight; offer every answer of [`Client::poll_event`] to [`handle_reply`](Plan::handle_reply), which
//! gives back those that are not its own; then take its events with [`poll_event`](Plan::poll_event). Several plans may
//! share a session. A plan that is not driven asks for nothing more: that is how a slow disk holds a transfer back.
//!
//! ```
//! use std::time::Instant;
//! use trunkline_sftp::{Client, transfer::{Download, DownloadEvent, DownloadOptions, Plan}};
//!
//! /// Call it when the channel has brought something; then write what `client.poll_transmit()` gives.
//! fn turn(client: &mut Client, download: &mut Download, worker: trunkline_sftp::transfer::WorkerId, now: Instant) {
//!     while let Some((id, outcome)) = client.poll_event() {
//!         download.handle_reply(worker, client, id, outcome, now);
//!     }
//!     download.drive(worker, client, now);
//!     while let Some(event) = download.poll_event() {
//!         match event {
//!             DownloadEvent::Data { offset, data } => println!("write {} bytes at {offset}", data.len()),
//!             DownloadEvent::Finished { length, .. } => println!("cut the file to {length} bytes"),
//!             _ => {}
//!         }
//!     }
//! }
//! # use trunkline_sftp::transfer::Striped;
//! # let mut client = Client::new(&Default::default());
//! # let mut download = Download::new(DownloadOptions::new("f"));
//! # let worker = download.add_worker();
//! # turn(&mut client, &mut download, worker, Instant::now());
//! ```

mod budget;
mod download;
mod many_download;
mod many_upload;
mod mark;
mod pace;
mod ranges;
mod renaming;
mod sparse;
mod upload;
mod walk;
mod worker;

pub use budget::NameBudget;
pub use download::{Download, DownloadEvent, DownloadOptions};
pub use many_download::{ManyDownload, ManyDownloadEvent};
pub use many_upload::{ManyUpload, ManyUploadEvent, UploadFile};
pub use ranges::Ranges;
pub use upload::{Opening, ReadId, Upload, UploadEvent, UploadOptions};
pub use walk::{LeftOut, Walk, WalkEvent, WalkOptions};
pub use worker::{Striped, WorkerId, WorkerLoss};

use std::time::Instant;

use crate::client::{Client, RequestId};
use crate::reply::Outcome;

/// A transfer as a state machine without I/O, over one session or several.
pub trait Plan {
    /// The session among those that it goes over; `()` if there is only one.
    type Worker: Copy;
    /// Its events.
    type Event;

    /// Asks a session for as much as is worth having in flight. Call it after every other call.
    fn drive(&mut self, worker: Self::Worker, client: &mut Client, now: Instant);

    /// Takes the answer to one of its requests on this session; gives back that to any other.
    fn handle_reply(
        &mut self,
        worker: Self::Worker,
        client: &mut Client,
        request: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome>;

    /// The next event.
    fn poll_event(&mut self) -> Option<Self::Event>;

    /// A session is dead: what it had is for the others, where there are any.
    fn lose_worker(&mut self, worker: Self::Worker) {
        let _ = worker;
    }

    /// Takes a session out, which continues for something else: nothing more is asked for there, and what was opened is
    /// closed. What it had is for the others; where there can be none, no more events come.
    fn remove_worker(&mut self, worker: Self::Worker, client: &mut Client);
}

/// A plan for many files, over one session.
pub trait Many: Plan<Worker = ()> {
    /// Files added that have neither finished nor failed, nor been taken out.
    fn unfinished(&self) -> usize;

    /// Takes back the files that have not been begun.
    fn take_waiting(&mut self) -> Vec<FileId>;
}

/// Tells the files of a [`ManyDownload`] or [`ManyUpload`] apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u64);

/// An operation that a server refuses on a written file, so that it cannot get its last name in the usual way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// To give it the owner of what it replaces.
    Owner,
    /// To set its attributes, without which it may not replace anything.
    Attributes,
    /// To rename it.
    Renaming,
}

/// The memory that a transfer may fill with data under way, unless told otherwise: enough for 5 Gbit/s at 100 ms.
pub const DEFAULT_MEMORY: usize = 64 * 1024 * 1024;

/// The size of one read or write: as large as the server takes, in whole blocks of 4 KiB, so that offsets stay
/// aligned with the pages of both sides' disks.
fn piece(limit: u32) -> u64 {
    const BLOCK: u32 = 4096;
    u64::from(if limit >= BLOCK {
        limit - limit % BLOCK
    } else {
        limit
    })
}
