//! [`Renaming`]: how a file that is whole gets its last name.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::attributes::{FileAttributes, FileType};
use crate::client::{Client, RequestId};
use crate::reply::{Outcome, Reply};
use crate::request::Request;
use crate::status::{Status, StatusCode};

/// The renaming of a file over what is there. With posix-rename@openssh.com that is one request. Without it most servers
/// refuse a name that is taken (section 6.5 of the draft), and some refuse it with it where a link has the name
/// (proftpd's): then what is there gets another name, the file its own, and what was there is removed. For a round trip
/// there is no file of that name; at no time is there neither of the two.
pub(super) struct Renaming {
    from: Bytes,
    to: Bytes,
    step: Step,
}

enum Step {
    /// In one request, or to a name that should be free.
    Replacing,
    /// Whether a link has the name is asked, which LSTAT does not show on every server; why the first attempt failed.
    /// Renaming it would move what it leads to (proftpd's).
    Reading(Status),
    /// It is looked at what has the name.
    Looking(Status),
    /// The file that has the name is being moved aside.
    MovingAside(Status),
    /// The name is free.
    Placing,
    /// It could not be had all the same: what was there gets its name back.
    Restoring(Status),
    /// The file has its name; what was there is removed.
    Removing,
}

impl Renaming {
    /// Asks for it.
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

    /// Takes the answer to what was asked last: how it went, or what is asked next.
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
            // A directory is not replaced.
            (Step::Looking(first), Ok(Reply::Attributes(found))) if may_be_replaced(&found) => {
                (Step::MovingAside(first), plain(&self.to, &aside))
            }
            // There is nothing, or it stays: the first answer says what is wrong.
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
            // The file is in its place, whatever is left of the other one.
            (Step::Removing, _) => return ControlFlow::Break(Ok(())),
        };
        self.step = step;
        ControlFlow::Continue(client.request(request))
    }

    /// Some servers answer READLINK for whatever is there, with its own path (copyparty's).
    fn is_own_path(&self, found: &Reply) -> bool {
        matches!(found, Reply::Path(path) if *path == self.to)
    }

    /// Returns the temporary name of the replaced file: the replacing file's earlier name, which nobody else uses.
    fn aside_name(&self) -> Bytes {
        let stem = self.from.strip_suffix(b".part").unwrap_or(&self.from);
        [stem, b".old"].concat().into()
    }
}

/// Returns whether a name that is taken may be why a server refused to rename.
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
