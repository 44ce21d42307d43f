//! [`Renaming`]: how a file that is whole gets its last name.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::client::{Client, RequestId};
use crate::reply::Outcome;
use crate::request::Request;
use crate::status::Status;

/// The renaming of a file over what is there. With posix-rename@openssh.com that is one request. Without it most servers
/// refuse a name that is taken (section 6.5 of the draft): then what has it is removed first, and for a round trip
/// there is no file of that name.
pub(super) struct Renaming {
    from: Bytes,
    to: Bytes,
    step: Step,
}

enum Step {
    /// In one request.
    Replacing,
    /// To a name that should be free.
    Trying,
    /// What has the name is being removed; why the first attempt failed.
    Removing(Status),
}

impl Renaming {
    /// Asks for it.
    pub(super) fn begin(from: Bytes, to: Bytes, client: &mut Client) -> (Self, RequestId) {
        let posix = Request::PosixRename {
            from: from.clone(),
            to: to.clone(),
        };
        let (request, step) = if client.supports(&posix) {
            (posix, Step::Replacing)
        } else {
            (plain(&from, &to), Step::Trying)
        };
        (Self { from, to, step }, client.request(request))
    }

    /// Takes the answer to what was asked last: how it went, or what is asked next.
    pub(super) fn handle_reply(
        &mut self,
        outcome: Outcome,
        client: &mut Client,
    ) -> ControlFlow<Result<(), Status>, RequestId> {
        let request = match (std::mem::replace(&mut self.step, Step::Replacing), outcome) {
            (Step::Replacing | Step::Trying, Ok(_)) => return ControlFlow::Break(Ok(())),
            (Step::Replacing, Err(status)) => return ControlFlow::Break(Err(status)),
            (Step::Trying, Err(status)) => {
                self.step = Step::Removing(status);
                let path = self.to.clone();
                Request::Remove { path }
            }
            // A directory cannot be removed so; the first answer says what is wrong.
            (Step::Removing(first), Err(_)) => return ControlFlow::Break(Err(first)),
            // The last attempt.
            (Step::Removing(_), Ok(_)) => plain(&self.from, &self.to),
        };
        ControlFlow::Continue(client.request(request))
    }
}

fn plain(from: &Bytes, to: &Bytes) -> Request {
    Request::Rename {
        from: from.clone(),
        to: to.clone(),
    }
}
