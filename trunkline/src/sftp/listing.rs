//! [`Listing`]: the names in a directory or a tree.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Notify;
use trunkline_sftp::transfer::{Walk, WalkEvent, WalkOptions};
use trunkline_sftp::{Client, Outcome, RequestId, Status, StatusCode};

use super::link::lost;
use super::{Attached, FileAttributes, Plan, Sftp};
use crate::error::Error;

/// A name that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The path from the root, without a slash at either end. None of its parts is empty, `.` or `..`, or has a slash
    /// or NUL in it.
    pub path: Bytes,
    /// Attributes, of the link itself if it is one.
    pub attributes: FileAttributes,
}

/// Names as the server tells them. Dropping it stops the listing.
pub struct Listing {
    sftp: Sftp,
    root: Bytes,
    running: Arc<Running>,
    attached: Attached,
    over: bool,
}

struct Running {
    /// Guards the plan; taken behind the session's lock, never before it.
    walk: Mutex<Walk>,
    changed: Notify,
}

impl Listing {
    pub(super) fn begin(sftp: Sftp, options: WalkOptions) -> Self {
        let root = options.root.clone();
        let running = Arc::new(Running {
            walk: Mutex::new(Walk::new(options)),
            changed: Notify::new(),
        });
        let attached = sftp.link().attach(running.clone());
        Self {
            sftp,
            root,
            running,
            attached,
            over: false,
        }
    }

    /// The next name; `None` when all have been told.
    ///
    /// # Errors
    /// A directory that could not be read, or a name that no file can have: the listing goes on behind it. The session's
    /// end: nothing more comes.
    pub async fn next(&mut self) -> Option<Result<Entry, Error>> {
        loop {
            if self.over {
                return None;
            }
            let changed = self.running.changed.notified();
            let mut event = self.running.walk().poll_event();
            if event.is_none() {
                // Room was made: the plan may have waited for it.
                self.attached.drive();
                event = self.running.walk().poll_event();
            }
            match event {
                Some(WalkEvent::Entry { path, attributes }) => return Some(Ok(Entry { path, attributes })),
                Some(WalkEvent::Failed { directory, status }) => {
                    return Some(Err(self.failed(&directory, status)));
                }
                Some(WalkEvent::Refused { directory, name }) => {
                    let status = Status {
                        code: StatusCode::BAD_MESSAGE,
                        message: format!("{:?} can be no name", String::from_utf8_lossy(&name)),
                    };
                    return Some(Err(self.failed(&directory, status)));
                }
                Some(WalkEvent::Finished) => self.over = true,
                Some(_) => {}
                None => {
                    if let Some(error) = self.sftp.link().ended() {
                        self.over = true;
                        return Some(Err(lost("listing", self.root.clone(), error)));
                    }
                    changed.await;
                }
            }
        }
    }

    fn failed(&self, directory: &[u8], status: Status) -> Error {
        let path = match (&self.root[..], directory) {
            (root, b"") => Bytes::copy_from_slice(root),
            (b"", directory) => Bytes::copy_from_slice(directory),
            (root, directory) => [root.strip_suffix(b"/").unwrap_or(root), directory]
                .join(&b'/')
                .into(),
        };
        self.sftp.link().refused("listing", path, status)
    }
}

impl Running {
    fn walk(&self) -> MutexGuard<'_, Walk> {
        self.walk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan for Running {
    fn handle_reply(
        &self,
        client: &mut Client,
        id: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome> {
        self.walk().handle_reply(client, id, outcome, now)
    }

    fn drive(&self, client: &mut Client, now: Instant) {
        self.walk().drive(client, now);
    }

    fn wake(&self) {
        self.changed.notify_one();
    }

    fn session_ended(&self) {
        self.changed.notify_one();
    }

    fn stop(&self, client: &mut Client) {
        self.walk().cancel(client);
    }
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listing")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
