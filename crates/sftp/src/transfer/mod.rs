//! Transfers planned over [`Client`]s: which requests to send when, as state machines driven by time.
//!
//! | what | plan |
//! |---|---|
//! | one file, large | [`Download`], [`Upload`]: over one session or several, each a [worker](WorkerId) |
//! | many files, small | [`ManyDownload`], [`ManyUpload`] |
//! | a tree's names | [`Walk`] |
//!
//! Each is a [`Plan`]. After anything happened call [`drive`](Plan::drive), which gives the session as many requests as are worth
//! having in flight. Offer every answer of [`Client::poll_event`] to [`handle_reply`](Plan::handle_reply), which returns the
//! answers to other requests. Then take the plan's events with [`poll_event`](Plan::poll_event). Several plans
//! may share a session. A plan that is not driven sends no more requests: a slow disk holds a transfer back in this way.
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
    /// Identifies one of the plan's sessions; `()` if there is only one.
    type Worker: Copy;
    /// The plan's events.
    type Event;

    /// Sends a session as many requests as are worth having in flight. Call this after every other call.
    fn drive(&mut self, worker: Self::Worker, client: &mut Client, now: Instant);

    /// Takes the answer to one of the plan's requests on this session. Returns the answer to any other request.
    fn handle_reply(
        &mut self,
        worker: Self::Worker,
        client: &mut Client,
        request: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome>;

    /// Returns the next event.
    fn poll_event(&mut self) -> Option<Self::Event>;

    /// Handles the loss of a session: its work is for the other sessions, if there are any.
    fn lose_worker(&mut self, worker: Self::Worker) {
        let _ = worker;
    }

    /// Takes out a session that is still used for something else. The plan sends it no more requests and closes what it has
    /// opened there. The session's work is for the others; a plan for a single session has no more events.
    fn remove_worker(&mut self, worker: Self::Worker, client: &mut Client);
}

/// A plan for many files, over one session.
pub trait Many: Plan<Worker = ()> {
    /// Returns the number of added files that have not finished, failed or been taken back.
    fn unfinished(&self) -> usize;

    /// Takes back the files that have not begun.
    fn take_waiting(&mut self) -> Vec<FileId>;
}

/// Identifies a file of a [`ManyDownload`] or [`ManyUpload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u64);

/// An operation that the server refused on a written file, so that the file did not get its final name in the usual way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Setting the owner of the replaced file.
    Owner,
    /// Setting the attributes, without which the file may not replace another.
    Attributes,
    /// Renaming the file.
    Renaming,
}

/// The default memory for data in flight of a transfer: enough for 5 Gbit/s at 100 ms.
pub const DEFAULT_MEMORY: usize = 64 * 1024 * 1024;

/// Returns the size of one read or write: the server's limit, in whole blocks of 4 KiB, so that offsets stay aligned with the
/// pages of both sides' disks.
fn piece(limit: u32) -> u64 {
    const BLOCK: u32 = 4096;
    u64::from(if limit >= BLOCK {
        limit - limit % BLOCK
    } else {
        limit
    })
}
