//! [`Listing`]: the names in a directory or a tree.

use std::sync::Arc;

use bytes::Bytes;
use trunkline_sftp::transfer::{Plan as _, Walk, WalkEvent, WalkOptions};
use trunkline_sftp::{Status, StatusCode};
use trunkline_text::Printable;

use super::link::lost_error;
use super::{Attached, FileAttributes, Sftp, Shared};
use crate::error::Error;

/// A listed name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The path from the root, without a slash at either end. No component is empty, `.` or `..`, or contains a slash
    /// or NUL.
    pub path: Bytes,
    /// Attributes, of the link itself if it is one.
    pub attributes: FileAttributes,
    /// The server's line for it, as `ls -l` prints. Its form is unspecified, and it may be empty.
    pub longname: Bytes,
}

/// The names that the server lists. Dropping it stops the listing.
pub struct Listing {
    sftp: Sftp,
    root: Bytes,
    walk: Arc<Shared<Walk>>,
    attached: Attached,
    over: bool,
}

impl Listing {
    pub(super) fn begin(sftp: Sftp, mut options: WalkOptions) -> Self {
        options.budget = sftp.link().known.names.clone();
        let root = options.root.clone();
        let walk = Shared::new(Walk::new(options));
        let attached = walk.attach(sftp.link(), ());
        Self {
            sftp,
            root,
            walk,
            attached,
            over: false,
        }
    }

    /// Returns the next name; `None` after the last.
    ///
    /// # Errors
    /// A directory could not be read, or the server sent an impossible name: the listing continues after it. Or the
    /// session ended: nothing follows.
    pub async fn next(&mut self) -> Option<Result<Entry, Error>> {
        loop {
            if self.over {
                return None;
            }
            let changed = self.walk.changed.notified();
            let mut event = self.walk.plan().poll_event();
            if event.is_none() {
                // There is room now, which the plan may have waited for.
                self.attached.drive();
                event = self.walk.plan().poll_event();
            }
            match event {
                Some(WalkEvent::Entry {
                    path,
                    attributes,
                    longname,
                }) => {
                    return Some(Ok(Entry {
                        path,
                        attributes,
                        longname,
                    }));
                }
                Some(WalkEvent::Failed { directory, status }) => {
                    return Some(Err(self.failure(&directory, status)));
                }
                Some(WalkEvent::Refused { directory, name }) => {
                    let status = Status {
                        code: StatusCode::BAD_MESSAGE,
                        message: format!(
                            "\"{}\" is not a name that a file can have, or was listed twice",
                            Printable::line(&name)
                        )
                        .into(),
                    };
                    return Some(Err(self.failure(&directory, status)));
                }
                Some(WalkEvent::Finished) => self.over = true,
                Some(_) => {}
                None => {
                    if let Some(error) = self.sftp.link().end_reason() {
                        self.over = true;
                        return Some(Err(lost_error("listing", self.root.clone(), error)));
                    }
                    changed.await;
                }
            }
        }
    }

    fn failure(&self, directory: &[u8], status: Status) -> Error {
        let path = match (&self.root[..], directory) {
            (root, b"") => Bytes::copy_from_slice(root),
            (b"", directory) => Bytes::copy_from_slice(directory),
            (root, directory) => [root.strip_suffix(b"/").unwrap_or(root), directory]
                .join(&b'/')
                .into(),
        };
        self.sftp.link().status_error("listing", path, status)
    }
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listing")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
