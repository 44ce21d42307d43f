//! Lanes: the sessions that share the transfer of one file.

use crate::status::Status;

/// One of the sessions that a transfer goes over. Each has a [`Client`](crate::Client) of its own, on a channel of the
/// same or another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub(crate) usize);

/// Why a lane beside others takes no part. Its session is well and may be used for something else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneLoss {
    /// The file could not be opened there.
    Refused(Status),
    /// The file opened there has another size or modification time than on the first lane: it was replaced or written
    /// to in between, or the server did not tell. Pieces of different files must not be mixed.
    AnotherFile,
}
