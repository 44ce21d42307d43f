//! [`Renaming`]: how a complete file gets its final name.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::attributes::{FileAttributes, FileType};
use crate::client::{Client, RequestId};
use crate::reply::{Outcome, Reply};
use crate::request::Request;
use crate::status::{Status, StatusCode};

/// The renaming of a file over an existing one. With posix-rename@openssh.com this takes one request. Without it most servers
/// refuse a name that is taken (section 6.5 of the draft), and some (proftpd's) refuse even with it if a link has the name. Then
/// an existing regular file gets another name, the new file gets the final name, and the existing file is removed. A link stays,
/// and the renaming fails. For a round trip no file has the final name; at any time at least one of the two files exists.
pub(super) struct Renaming {
    from: Bytes,
    to: Bytes,
    step: Step,
}

enum Step {
    /// Renaming in one request, or to a name that should be free.
    Replacing,
    /// READLINK checks whether a link has the name, which LSTAT does not show on every server. Renaming a link would move its
    /// target (proftpd's). The status is the first failure.
    Reading(Status),
    /// LSTAT looks at the file that has the name.
    Looking(Status),
    /// The file that has the name is being moved aside.
    MovingAside(Status),
    /// The name is free, and the new file is being renamed to it.
    Placing,
    /// That failed: the existing file gets its name back.
    Restoring(Status),
    /// The new file has its name, and the existing file is being removed.
    Removing,
}

impl Renaming {
    /// Sends the first request.
    pub(super) fn begin(from: Bytes, to: Bytes, client: &mut Client) -> (Self, RequestId) {
        let posix = Request::PosixRename {
            from: from.clone(),
            to: to.clone(),
        };
        let request = if client.supports(&posix) {
            posix
        } else {
            plain(&from, &to)
        };
        let step = Step::Replacing;
        (Self { from, to, step }, client.request(request))
    }

    /// Takes the answer to the last request. Returns the result or the next request.
    pub(super) fn handle_reply(
        &mut self,
        outcome: Outcome,
        client: &mut Client,
    ) -> ControlFlow<Result<(), Status>, RequestId> {
        let aside = self.aside_name();
        let (step, request) = match (std::mem::replace(&mut self.step, Step::Replacing), outcome) {
            (Step::Replacing, Ok(_)) => return ControlFlow::Break(Ok(())),
            (Step::Replacing, Err(status)) if may_be_in_the_way(&status) => {
                let path = self.to.clone();
                (Step::Reading(status), Request::Readlink { path })
            }
            (Step::Replacing, Err(status)) => return ControlFlow::Break(Err(status)),
            (Step::Reading(first), Ok(found)) if !self.is_own_path(&found) => {
                return ControlFlow::Break(Err(first));
            }
            (Step::Reading(first), _) => {
                let path = self.to.clone();
                (Step::Looking(first), Request::Lstat { path })
            }
            // Only a regular file is replaced.
            (Step::Looking(first), Ok(Reply::Attributes(found))) if may_be_replaced(&found) => {
                (Step::MovingAside(first), plain(&self.to, &aside))
            }
            // Nothing has the name, or it cannot be moved: report the first failure.
            (Step::Looking(first), _) | (Step::MovingAside(first), Err(_)) => {
                return ControlFlow::Break(Err(first));
            }
            (Step::MovingAside(_), Ok(_)) => (Step::Placing, plain(&self.from, &self.to)),
            (Step::Placing, Ok(_)) => (Step::Removing, Request::Remove { path: aside }),
            (Step::Placing, Err(status)) => (Step::Restoring(status), plain(&aside, &self.to)),
            (Step::Restoring(first), Ok(_)) => return ControlFlow::Break(Err(first)),
            (Step::Restoring(first), Err(_)) => {
                let message = format!(
                    "{first}; what was there before is called {}",
                    String::from_utf8_lossy(&aside)
                );
                return ControlFlow::Break(Err(Status::local(first.code, message)));
            }
            // The file has its name, even if the existing file was not removed.
            (Step::Removing, _) => return ControlFlow::Break(Ok(())),
        };
        self.step = step;
        ControlFlow::Continue(client.request(request))
    }

    /// Returns whether READLINK found the path itself: some servers (copyparty's) answer so for any file.
    fn is_own_path(&self, found: &Reply) -> bool {
        matches!(found, Reply::Path(path) if *path == self.to)
    }

    /// Returns a temporary name for the replaced file. It is derived from the new file's temporary name, which nobody else uses.
    fn aside_name(&self) -> Bytes {
        let stem = self.from.strip_suffix(b".part").unwrap_or(&self.from);
        [stem, b".old"].concat().into()
    }
}

/// Returns whether a server may have refused to rename because the name is taken.
fn may_be_in_the_way(status: &Status) -> bool {
    let is_refused = matches!(
        status.code,
        StatusCode::PERMISSION_DENIED | StatusCode::OP_UNSUPPORTED
    );
    is_refused || status.may_be_taken()
}

fn may_be_replaced(found: &FileAttributes) -> bool {
    found.file_type() == Some(FileType::Regular)
}

fn plain(from: &Bytes, to: &Bytes) -> Request {
    Request::Rename {
        from: from.clone(),
        to: to.clone(),
    }
}
