//! One channel (RFC 4254 section 5): its windows, the data that waits to be sent, and the progress of its closing.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::window::{ReceiveWindow, WindowBudget};

/// This side's number for a channel ("recipient channel" in the server's messages). Numbers are not reused in a
/// connection, so that a late operation on a closed channel cannot affect another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub(crate) u32);

impl ChannelId {
    /// Returns the bare number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the channel with a number from [`Self::number`].
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// The server's number for a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteId(pub(crate) u32);

/// The server's stream to which data belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// SSH_MSG_CHANNEL_DATA: standard output, or the forwarded connection.
    Data,
    /// SSH_MSG_CHANNEL_EXTENDED_DATA of type SSH_EXTENDED_DATA_STDERR.
    Stderr,
}

/// The start of a session's program (exec, shell, subsystem) on the server, as far as this side knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Started {
    /// It was not requested, the request was not sent, or the server refused it.
    No,
    /// The request was handed to the network and not answered.
    Maybe,
    /// The server confirmed it.
    Yes,
}

/// The largest data message that we accept, as OpenSSH's CHAN_SES_PACKET_DEFAULT.
pub(crate) const MAX_DATA: u32 = 32 * 1024;
/// The most data sent ahead of the server's window right after `exec`. sshd opens the window (2 MiB) while it handles
/// the request, before it reads the next packet, so that this much always fits.
pub(crate) const OVERDRAFT: i64 = 64 * 1024;

/// Data from the application that waits for the window.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    chunks: VecDeque<Bytes>,
    len: usize,
}

impl Outbox {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.len += data.len();
            self.chunks.push_back(data);
        }
    }

    /// Takes up to `max` bytes from the front: a slice of one chunk, never a copy.
    fn take(&mut self, max: usize) -> Option<Bytes> {
        let chunk = self.chunks.front_mut()?;
        let data = chunk.split_to(chunk.len().min(max));
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        self.len -= data.len();
        Some(data)
    }

    fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }
}

/// The state of a channel's opening.
#[derive(Debug)]
pub(crate) enum Opening {
    /// We requested it; `waiting` are requests to send once the server's number is known.
    Requested { waiting: Vec<BytesMut> },
    /// The server offered it; the application has not decided.
    Offered(RemoteId),
    /// Both sides know each other's number.
    Open(RemoteId),
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) opening: Opening,
    pub(crate) outbox: Outbox,
    /// The bytes that the server allows us to send. Negative during an overdraft.
    pub(crate) send_window: i64,
    pub(crate) send_max: usize,
    /// The server's window for this session is about to open (see [`OVERDRAFT`]).
    pub(crate) overdraft: bool,
    pub(crate) eof_wanted: bool,
    pub(crate) eof_sent: bool,
    pub(crate) close_wanted: bool,
    pub(crate) close_sent: bool,
    pub(crate) eof_received: bool,
    /// The channel is in the scheduler's queue.
    pub(crate) scheduled: bool,
    /// The meanings of the answers to our requests, in order: `true` for one that starts a session.
    pub(crate) replies: VecDeque<bool>,
    pub(crate) started: Started,
    /// The application is done with the channel; nothing more is reported.
    pub(crate) abandoned: bool,
    /// The server opened it.
    pub(crate) incoming: bool,
    /// Requests in it were sent before the server's number for it was known.
    pub(crate) is_early: bool,
    pub(crate) receive: ReceiveWindow,
}

impl Channel {
    pub(crate) fn new(opening: Opening, budget: Arc<WindowBudget>) -> Self {
        Self {
            opening,
            outbox: Outbox::default(),
            send_window: 0,
            send_max: MAX_DATA as usize,
            overdraft: false,
            eof_wanted: false,
            eof_sent: false,
            close_wanted: false,
            close_sent: false,
            eof_received: false,
            scheduled: false,
            replies: VecDeque::new(),
            started: Started::No,
            abandoned: false,
            incoming: false,
            is_early: false,
            receive: ReceiveWindow::new(budget),
        }
    }

    pub(crate) fn remote(&self) -> Option<RemoteId> {
        match self.opening {
            Opening::Open(remote) => Some(remote),
            _ => None,
        }
    }

    /// Returns the bytes that may be sent now.
    fn credit(&self) -> usize {
        let credit = self.send_window + if self.overdraft { OVERDRAFT } else { 0 };
        usize::try_from(credit).unwrap_or(0)
    }

    /// Returns how many bytes the window allows beyond those that wait.
    pub(crate) fn room(&self) -> usize {
        self.credit().saturating_sub(self.outbox.len())
    }

    /// Returns whether data, EOF or CLOSE can be sent now.
    pub(crate) fn has_work(&self) -> bool {
        if self.close_sent {
            return false;
        }
        let data = self.outbox.len() > 0;
        (data && self.credit() > 0) || (!data && ((self.eof_wanted && !self.eof_sent) || self.close_wanted))
    }

    /// Takes the next piece of data that the window and the server's packet size allow.
    pub(crate) fn take_data(&mut self) -> Option<Bytes> {
        let max = self.credit().min(self.send_max);
        if max == 0 || self.close_sent {
            return None;
        }
        let data = self.outbox.take(max)?;
        self.send_window -= data.len() as i64;
        Some(data)
    }

    pub(crate) fn discard(&mut self) {
        self.outbox.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_leaves_in_pieces_that_window_and_packet_allow() {
        let mut channel = Channel::new(Opening::Open(RemoteId(0)), Arc::default());
        channel.outbox.push(Bytes::from(vec![0; 100]));
        channel.send_window = 70;
        channel.send_max = 60;
        assert_eq!(channel.take_data().unwrap().len(), 60);
        assert_eq!(channel.take_data().unwrap().len(), 10);
        assert!(channel.take_data().is_none());
        assert!(!channel.has_work());
        assert_eq!(channel.room(), 0);
        channel.send_window += 40;
        assert!(channel.has_work());
        assert_eq!(channel.room(), 10);
    }
}
