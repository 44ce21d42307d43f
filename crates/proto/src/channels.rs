//! The connection protocol (RFC 4254): global requests, and the channels of one connection.
//!
//! [`Channels::handle`] takes the server's messages. [`Channels::next_message`] returns the messages to send: control
//! messages first, then data, one packet from each channel in turn. Keys and sockets are unknown here, so that any
//! sequence of operations can be tested in isolation.

pub(crate) mod channel;
pub(crate) mod event;
pub(crate) mod request;
pub(crate) mod window;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::{Error, PeerMisbehaved};
use crate::message;
use crate::owed::Owed;
use crate::wire::{Reader, Writer};
use channel::{Channel, ChannelId, MAX_DATA, Opening, RemoteId, Started, Stream};
use event::ChannelEvent;
use request::{ChannelKind, ChannelRequest, GlobalRequest, GlobalRequestId, IncomingKind, OpenFailure};
use trunkline_text::Printable;
use window::{Arrival, INITIAL_WINDOW, RoundTrip, WindowBudget};

/// The next message to seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// A whole message.
    Control(Bytes),
    /// A channel's data, with the message's head separate so that the data need not be copied.
    Data {
        /// Message number, recipient channel, length.
        head: [u8; 9],
        /// The data.
        data: Bytes,
    },
}

/// The most channels offered by the server that the application has not answered.
const MAX_OFFERED: usize = 1024;
/// The most open channels that the server offered, as OpenSSH's CHANNELS_MAX_CHANNELS.
const MAX_INCOMING: usize = 10_000;
/// The longest name of an address or a socket in an offer. Real ones are far shorter.
const MAX_OFFERED_NAME: usize = 1024;
/// The longest text about a signal that is kept.
const MAX_SIGNAL_TEXT: usize = 4096;

/// All channels of a connection.
#[derive(Debug, Default)]
pub struct Channels {
    table: HashMap<ChannelId, Channel>,
    next_id: u32,
    /// The server's channels: those offered, and those offered or accepted.
    offered: usize,
    incoming: usize,
    control: Control,
    /// The channels whose exec, shell or subsystem request waits in `control`, in order.
    starting: VecDeque<(ChannelId, RemoteId)>,
    /// Channels with little to send, served first: a keystroke does not wait for a file.
    small: VecDeque<ChannelId>,
    /// Channels with more than [`Self::SMALL`] to send, a packet each in turn.
    bulk: VecDeque<ChannelId>,
    global_replies: VecDeque<GlobalRequestId>,
    next_global: u64,
    events: VecDeque<ChannelEvent>,
    rtt: RoundTrip,
    /// The arrival of the data being handled; `None` before the first.
    arrival: Option<Arrival>,
    /// The server has waited for credit since the last check.
    starved: bool,
    budget: Arc<WindowBudget>,
    overdraft_allowed: bool,
    opened: u32,
    /// The server has sent its host keys.
    told_host_keys: bool,
    /// Channels that were requested and given up before the server has answered.
    disowned: HashSet<ChannelId>,
}

/// Control messages to send, in order.
#[derive(Debug, Default)]
struct Control {
    /// Each with whether the server made us send it.
    messages: VecDeque<(Bytes, bool)>,
    owed: Owed,
}

impl Control {
    /// Queues a message of this side's own.
    fn say(&mut self, message: Bytes) {
        self.messages.push_back((message, false));
    }

    /// Queues a reply that the server's messages require, at once or through the application. The caller need not check
    /// for room: a server that is owed too much is not read any further.
    fn owe(&mut self, message: Bytes) {
        self.owed.add(message.len());
        self.messages.push_back((message, true));
    }

    fn pop(&mut self) -> Option<Bytes> {
        let (message, owed) = self.messages.pop_front()?;
        if owed {
            self.owed.settle(message.len());
        }
        Some(message)
    }

    /// Removes and returns the messages that open channels.
    fn take_openings(&mut self) -> Vec<Bytes> {
        let (opens, rest) = std::mem::take(&mut self.messages)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(message, _)| message.first() == Some(&message::CHANNEL_OPEN));
        self.messages = rest;
        opens.into_iter().map(|(message, _)| message).collect()
    }
}

impl Channels {
    /// The most bytes that count as little to send.
    const SMALL: usize = 4096;

    /// Creates an empty table of channels, whose windows will grow from `budget`.
    pub fn new(budget: Arc<WindowBudget>) -> Self {
        Self {
            budget,
            ..Self::default()
        }
    }

    // Getters.

    /// Returns the number of channels, including opening and closing ones.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there are no channels.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns whether a session's command may have started. For a channel that is gone the answer is `Maybe`, so that
    /// its command is never run again; its events have told more.
    pub fn start_state(&self, id: ChannelId) -> Started {
        self.table
            .get(&id)
            .map_or(Started::Maybe, |channel| channel.started)
    }

    /// Returns the bytes of a channel that wait to be sent.
    pub fn waiting(&self, id: ChannelId) -> usize {
        self.table.get(&id).map_or(0, |channel| channel.outbox.len())
    }

    /// Returns how many bytes the server's window allows beyond those that wait.
    pub fn room(&self, id: ChannelId) -> usize {
        self.table.get(&id).map_or(0, Channel::room)
    }

    // Actions of the application.

    /// Sets the round-trip time that connecting showed, possibly only to a proxy. It counts until an answer has been
    /// timed.
    pub fn assume_rtt(&mut self, rtt: Duration) {
        self.rtt.assume(rtt);
    }

    /// Notes the time of an answer while nothing else was on its way here. The shortest recent one decides how far
    /// windows grow.
    pub fn answered_after(&mut self, time: Duration, now: Instant) {
        self.rtt.record(time, now);
    }

    /// Notes the time of an answer that may include the server's work: an upper bound of the round trip.
    pub fn answered_within(&mut self, time: Duration) {
        self.rtt.at_most(time);
    }

    /// Returns the shortest round trip of the last 10 to 20 seconds with measurements, or `None` before the first
    /// answer: the assumed one may be that of a proxy.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt.shortest()
    }

    /// Returns the number of measurements. While it is 0, the round trip is only bounded from above.
    pub fn rtt_measurements(&self) -> u32 {
        self.rtt.measurements()
    }

    /// Sets the time of the received data that is handled next.
    pub fn receiving(&mut self, now: Instant) {
        let drained = self.arrival.map_or(0, |arrival| arrival.drained);
        self.arrival = Some(Arrival { now, drained });
    }

    /// Returns whether the server was seen to wait for credit since the last call.
    pub fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Notes that everything was read: what is handled next came later.
    pub fn mark_drained(&mut self) {
        if let Some(arrival) = &mut self.arrival {
            arrival.drained += 1;
        }
    }

    /// Sets whether data may follow a session's start before its window is known to be open (see the crate's
    /// documentation on the early flights).
    pub fn allow_overdraft(&mut self, allowed: bool) {
        self.overdraft_allowed = allowed;
    }

    /// Opens a channel. Requests and data may be queued at once; they are sent when the server's number for it is
    /// known.
    pub fn open(&mut self, kind: &ChannelKind) -> ChannelId {
        let id = self.allocate();
        let open = kind.encode(id);
        let opening = Opening::Requested { waiting: Vec::new() };
        self.table
            .insert(id, Channel::new(opening, Arc::clone(&self.budget)));
        self.control.say(open);
        id
    }

    /// As [`Self::open`], but leaves it to the caller to send the message.
    pub(crate) fn open_apart(&mut self, kind: &ChannelKind) -> (ChannelId, Bytes) {
        let id = self.allocate();
        let opening = Opening::Requested { waiting: Vec::new() };
        self.table
            .insert(id, Channel::new(opening, Arc::clone(&self.budget)));
        (id, kind.encode(id))
    }

    /// Forgets a channel whose opening the server has not answered, and perhaps never will.
    pub(crate) fn disown(&mut self, id: ChannelId) {
        if self.forget(id).is_some() {
            self.disowned.insert(id);
        }
    }

    /// Returns whether a session's start was possibly sent, and not answered.
    pub(crate) fn awaits_start(&self, id: ChannelId) -> bool {
        let channel = self.table.get(&id);
        channel.is_some_and(|channel| {
            channel.started == Started::Maybe && channel.replies.contains(&true) && !channel.abandoned
        })
    }

    /// Returns the global request that was just sent, after `behind` unanswered ones.
    pub(crate) fn global_request_left(&self, behind: usize) -> Option<GlobalRequestId> {
        self.global_replies.get(behind).copied()
    }

    /// Reports a global request that the server did not understand as refused.
    pub(crate) fn global_request_refused(&mut self, id: GlobalRequestId) {
        self.global_replies.retain(|awaited| *awaited != id);
        self.events.push_back(ChannelEvent::GlobalReply {
            id,
            success: false,
            data: Bytes::new(),
        });
    }

    /// Sends a request in a session. Does nothing if the channel is gone.
    pub fn request(&mut self, id: ChannelId, request: &ChannelRequest) {
        let Some(channel) = self.table.get_mut(&id) else {
            return;
        };
        if channel.close_sent || channel.close_wanted {
            return;
        }
        if let Opening::Offered(_) = channel.opening {
            return;
        }
        let mut encoded = request.encode();
        if request.wants_reply() {
            channel.replies.push_back(request.starts());
        }
        match &mut channel.opening {
            Opening::Open(remote) => {
                address(&mut encoded, *remote);
                self.control.say(encoded.freeze());
                if request.starts() {
                    self.starting.push_back((id, *remote));
                    channel.overdraft = self.overdraft_allowed && channel.send_window <= 0;
                    self.schedule(id);
                }
            }
            Opening::Requested { waiting } => waiting.push(encoded),
            Opening::Offered(_) => {}
        }
    }

    /// Queues data for a channel. There is no bound here: the application keeps [`Self::waiting`] in bounds.
    pub fn write(&mut self, id: ChannelId, data: Bytes) {
        if let Some(channel) = self.table.get_mut(&id)
            && !channel.eof_wanted
            && !channel.close_wanted
        {
            channel.outbox.push(data);
            self.schedule(id);
        }
    }

    /// Ends a channel's data, after the queued data.
    pub fn eof(&mut self, id: ChannelId) {
        if let Some(channel) = self.table.get_mut(&id) {
            channel.eof_wanted = true;
            self.schedule(id);
        }
    }

    /// Closes a channel now. Unsent data is dropped, and only [`ChannelEvent::Closed`] is reported.
    pub fn close(&mut self, id: ChannelId) {
        if let Some(Channel {
            opening: Opening::Offered(_),
            ..
        }) = self.table.get(&id)
        {
            self.reject(id, OpenFailure::CONNECT_FAILED, "");
            self.events.push_back(ChannelEvent::Closed(id));
        } else if let Some(channel) = self.table.get_mut(&id) {
            channel.abandoned = true;
            channel.close_wanted = true;
            channel.discard();
            // An EOF would tell the other end that it has everything.
            channel.eof_wanted = false;
            self.schedule(id);
        }
    }

    /// Notes that the application has read `n` bytes of a channel's data.
    pub fn consume(&mut self, id: ChannelId, n: usize, now: Instant) {
        let Some(channel) = self.table.get_mut(&id) else {
            return;
        };
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        if let Some(add) = channel.receive.consume(n, now, &self.rtt)
            && let Some(remote) = channel.remote()
            && !channel.eof_received
            && !channel.close_sent
        {
            self.control.owe(window_adjust(remote, add));
        }
    }

    /// Accepts a channel that the server offered.
    pub fn accept(&mut self, id: ChannelId) {
        let Some(channel) = self.table.get_mut(&id) else {
            return;
        };
        let Opening::Offered(remote) = channel.opening else {
            return;
        };
        channel.opening = Opening::Open(remote);
        self.offered -= 1;
        self.control.owe(
            Writer::message(message::CHANNEL_OPEN_CONFIRMATION)
                .u32(remote.0)
                .u32(id.0)
                .u32(INITIAL_WINDOW)
                .u32(MAX_DATA)
                .finish(),
        );
        self.schedule(id);
    }

    /// Rejects a channel that the server offered.
    pub fn reject(&mut self, id: ChannelId, reason: OpenFailure, description: &str) {
        let Some(channel) = self.table.get(&id) else {
            return;
        };
        let Opening::Offered(remote) = channel.opening else {
            return;
        };
        self.forget(id);
        self.offered -= 1;
        self.control.owe(open_failure(remote, reason, description));
    }

    /// Sends a global request; [`ChannelEvent::GlobalReply`] is its answer.
    pub fn global_request(&mut self, request: &GlobalRequest) -> GlobalRequestId {
        let id = GlobalRequestId(self.next_global);
        self.next_global += 1;
        self.control.say(request.encode());
        self.global_replies.push_back(id);
        id
    }

    // Output.

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<ChannelEvent> {
        self.events.pop_front()
    }

    /// Returns the next message to seal.
    pub fn next_message(&mut self) -> Option<Outgoing> {
        loop {
            if let Some(control) = self.control.pop() {
                self.leaves(&control);
                return Some(Outgoing::Control(control));
            }
            let id = self.small.pop_front().or_else(|| self.bulk.pop_front())?;
            let Some(channel) = self.table.get_mut(&id) else {
                continue;
            };
            channel.scheduled = false;
            let Some(remote) = channel.remote() else { continue };
            if let Some(data) = channel.take_data() {
                self.events.push_back(ChannelEvent::Sent { id, len: data.len() });
                self.schedule(id);
                let (head, data) = data_message(remote, data);
                return Some(Outgoing::Data { head, data });
            }
            if channel.outbox.len() == 0 {
                self.finish_sending(id, remote);
            }
        }
    }

    /// Notes that a control message goes to the transport. Until then, a command in it has certainly not started.
    fn leaves(&mut self, message: &[u8]) {
        if self.starting.is_empty() {
            return;
        }
        let Some(remote) = starts_in(message) else { return };
        while let Some((id, of)) = self.starting.pop_front() {
            if of == remote {
                self.set_started(id, Started::Maybe);
                return;
            }
        }
    }

    /// Sends EOF and CLOSE once no data is left to send.
    fn finish_sending(&mut self, id: ChannelId, remote: RemoteId) {
        let Some(channel) = self.table.get_mut(&id) else {
            return;
        };
        if channel.close_sent {
            return;
        }
        if channel.eof_wanted && !channel.eof_sent {
            channel.eof_sent = true;
            self.control
                .owe(Writer::message(message::CHANNEL_EOF).u32(remote.0).finish());
        }
        if channel.close_wanted {
            channel.close_sent = true;
            self.control
                .owe(Writer::message(message::CHANNEL_CLOSE).u32(remote.0).finish());
        }
    }

    fn schedule(&mut self, id: ChannelId) {
        if let Some(channel) = self.table.get_mut(&id)
            && !channel.scheduled
            && channel.remote().is_some()
            && channel.has_work()
        {
            channel.scheduled = true;
            let queue = if channel.outbox.len() <= Self::SMALL {
                &mut self.small
            } else {
                &mut self.bulk
            };
            queue.push_back(id);
        }
    }

    // The early flight.

    /// Sets whether a session may have started: after a proven refusal, or when its start is sent again.
    pub(crate) fn set_started(&mut self, id: ChannelId, started: Started) {
        if let Some(channel) = self.table.get_mut(&id) {
            channel.started = started;
        }
    }

    /// Returns whether the application has given up a channel.
    pub(crate) fn is_abandoned(&self, id: ChannelId) -> bool {
        self.table.get(&id).is_none_or(|channel| channel.abandoned)
    }

    /// Takes the messages that may be sent before authentication has succeeded: every waiting opening, and everything
    /// queued in the connection's first channel, addressed to 0, sshd's number for a connection's first channel. Each
    /// message comes with its channel.
    pub(crate) fn take_early(&mut self) -> Vec<(Option<ChannelId>, Bytes)> {
        let mut early: Vec<(Option<ChannelId>, Bytes)> = Vec::new();
        let first = ChannelId(0);
        // Only openings wait here: the only other messages before authentication are global requests, which stay back
        // so that their answers keep their order.
        for (n, open) in self.control.take_openings().into_iter().enumerate() {
            let id = (n == 0 && self.opened == 0 && self.next_id > 0).then_some(first);
            early.push((id, open));
            if id.is_some() {
                self.take_early_session(first, &mut early);
            }
        }
        early
    }

    fn take_early_session(&mut self, id: ChannelId, early: &mut Vec<(Option<ChannelId>, Bytes)>) {
        let remote = RemoteId(0);
        let overdraft = self.overdraft_allowed;
        let Some(channel) = self.table.get_mut(&id) else {
            return;
        };
        if channel.abandoned {
            return;
        }
        let Opening::Requested { waiting } = &mut channel.opening else {
            return;
        };
        let waiting = std::mem::take(waiting);
        if channel.replies.contains(&true) {
            channel.started = Started::Maybe;
            channel.overdraft = overdraft;
        }
        channel.is_early = !waiting.is_empty();
        for mut request in waiting {
            address(&mut request, remote);
            early.push((Some(id), request.freeze()));
        }
        let mut sent = 0;
        while let Some(data) = channel.take_data() {
            sent += data.len();
            let (head, data) = data_message(remote, data);
            early.push((Some(id), [&head[..], &data].concat().into()));
        }
        if channel.eof_wanted && channel.outbox.len() == 0 && channel.overdraft {
            channel.eof_sent = true;
            early.push((
                Some(id),
                Writer::message(message::CHANNEL_EOF).u32(remote.0).finish(),
            ));
        }
        if sent > 0 {
            self.events.push_back(ChannelEvent::Sent { id, len: sent });
        }
    }

    // The server's messages.

    /// Returns the size of the replies that the server's messages require and that wait to be sent.
    pub(crate) fn owed_replies(&self) -> Owed {
        self.control.owed
    }

    /// Handles a message with a number from 80 to 127.
    pub fn handle(&mut self, payload: &Bytes) -> Result<(), Error> {
        self.control.owed.check()?;
        let mut reader = Reader::new(payload);
        match reader.u8()? {
            message::CHANNEL_DATA => self.handle_data(payload, reader, Stream::Data),
            message::CHANNEL_EXTENDED_DATA => self.handle_extended_data(payload, reader),
            message::CHANNEL_WINDOW_ADJUST => self.handle_window_adjust(reader),
            message::CHANNEL_OPEN => self.handle_open(reader),
            message::CHANNEL_OPEN_CONFIRMATION => self.handle_open_confirmation(reader),
            message::CHANNEL_OPEN_FAILURE => self.handle_open_failure(reader),
            message::CHANNEL_EOF => self.handle_eof(reader),
            message::CHANNEL_CLOSE => self.handle_close(reader),
            message::CHANNEL_REQUEST => self.handle_request(reader),
            message::CHANNEL_SUCCESS => self.handle_reply(reader, true),
            message::CHANNEL_FAILURE => self.handle_reply(reader, false),
            message::GLOBAL_REQUEST => self.handle_global_request(reader),
            message::REQUEST_SUCCESS => self.handle_global_reply(payload, true),
            message::REQUEST_FAILURE => self.handle_global_reply(payload, false),
            number => Err(PeerMisbehaved::UnknownMessage(number).into()),
        }
    }

    /// Returns the channel that a message is about. A late message about a channel that is gone is ignored (`None`):
    /// some servers return credit after their CLOSE, and OpenSSH's client tolerates that. Numbers are not reused, so
    /// that it cannot be meant for another. RFC 4254 gives no meaning to a message about a channel that never existed;
    /// OpenSSH also ends the connection.
    fn channel(&mut self, reader: &mut Reader<'_>) -> Result<Option<(ChannelId, &mut Channel)>, Error> {
        let id = ChannelId(reader.u32()?);
        if id.0 < self.next_id && !self.table.contains_key(&id) {
            tracing::debug!(channel = id.0, "a late message about a closed channel");
            return Ok(None);
        }
        match self.table.get_mut(&id) {
            Some(channel) if channel.remote().is_some() => Ok(Some((id, channel))),
            _ => Err(PeerMisbehaved::ChannelNotOpen(id.0).into()),
        }
    }

    fn handle_data(&mut self, payload: &Bytes, mut reader: Reader<'_>, stream: Stream) -> Result<(), Error> {
        let arrival = self.arrival;
        let Some((id, channel)) = self.channel(&mut reader)? else {
            return Ok(());
        };
        if stream == Stream::Stderr {
            let _type = reader.u32()?;
        }
        let data = payload.slice_ref(reader.string()?);
        reader.finish()?;
        if data.len() > MAX_DATA as usize {
            return Err(PeerMisbehaved::DataTooLarge.into());
        }
        if channel.eof_received {
            return Err(PeerMisbehaved::DataAfterEof.into());
        }
        let len = data.len() as u32;
        let trip = channel
            .receive
            .receive(len, arrival)
            .ok_or(PeerMisbehaved::WindowExceeded)?;
        if !channel.abandoned && !data.is_empty() {
            self.events.push_back(ChannelEvent::Data { id, stream, data });
        }
        if let (Some(trip), Some(arrival)) = (trip, arrival) {
            self.rtt.record(trip, arrival.now);
            self.starved = true;
        }
        Ok(())
    }

    fn handle_extended_data(&mut self, payload: &Bytes, reader: Reader<'_>) -> Result<(), Error> {
        const SSH_EXTENDED_DATA_STDERR: u32 = 1;
        let mut peek = reader.clone();
        let id = ChannelId(peek.u32()?);
        if peek.u32()? == SSH_EXTENDED_DATA_STDERR {
            return self.handle_data(payload, reader, Stream::Stderr);
        }
        // A stream of an undefined type: nothing reads it, so its credit is returned at once.
        let len = peek.string()?.len();
        let Some((_, channel)) = self.channel(&mut reader.clone())? else {
            return Ok(());
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        channel
            .receive
            .receive(len, None)
            .ok_or(PeerMisbehaved::WindowExceeded)?;
        let remote = channel.remote();
        channel.receive.return_unread(len);
        match remote.filter(|_| len > 0 && !self.table[&id].close_sent) {
            Some(remote) => {
                self.control.owe(window_adjust(remote, len));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn handle_window_adjust(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let Some((id, channel)) = self.channel(&mut reader)? else {
            return Ok(());
        };
        let add = i64::from(reader.u32()?);
        reader.finish()?;
        channel.send_window += add;
        if channel.send_window > i64::from(u32::MAX) {
            return Err(PeerMisbehaved::WindowOverflow.into());
        }
        channel.overdraft = false;
        self.schedule(id);
        Ok(())
    }

    fn handle_open_confirmation(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let id = ChannelId(reader.u32()?);
        let remote = RemoteId(reader.u32()?);
        let (window, max) = (reader.u32()?, reader.u32()?);
        let overdraft_allowed = self.overdraft_allowed;
        if self.disowned.remove(&id) {
            let close = Writer::message(message::CHANNEL_CLOSE).u32(remote.0).finish();
            self.control.owe(close);
            return Ok(());
        }
        let Some(channel) = self.table.get_mut(&id) else {
            return Err(PeerMisbehaved::UnrequestedChannel.into());
        };
        if channel.is_early && remote != RemoteId(0) {
            // The early messages to channel 0 reached another channel, or none.
            return Err(PeerMisbehaved::EarlyUnanswered.into());
        }
        let Opening::Requested { waiting } = &mut channel.opening else {
            return Err(PeerMisbehaved::ChannelOpenedTwice.into());
        };
        let waiting = std::mem::take(waiting);
        channel.opening = Opening::Open(remote);
        // Data sent ahead of the window counts against it.
        channel.send_window += i64::from(window);
        // A window that is open before anything runs is not the kind that opens with `exec`.
        channel.overdraft &= window == 0;
        // A server may send 0, which allows no data; packets of more than 32 KiB gain nothing.
        channel.send_max = (max as usize).min(MAX_DATA as usize);
        self.opened += 1;
        if channel.started == Started::No && channel.replies.contains(&true) && !channel.close_wanted {
            if !channel.abandoned {
                self.starting.push_back((id, remote));
            }
            channel.overdraft = overdraft_allowed && channel.send_window <= 0;
        }
        let abandoned = channel.abandoned;
        if !abandoned {
            for mut request in waiting {
                address(&mut request, remote);
                self.control.say(request.freeze());
            }
            self.events.push_back(ChannelEvent::Opened(id));
        }
        self.schedule(id);
        Ok(())
    }

    fn handle_open_failure(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let id = ChannelId(reader.u32()?);
        if self.disowned.remove(&id) {
            return Ok(());
        }
        match self.table.get(&id) {
            Some(Channel {
                opening: Opening::Requested { .. },
                ..
            }) => {}
            _ => return Err(PeerMisbehaved::UnrequestedRefusal.into()),
        }
        let reason = OpenFailure(reader.u32()?);
        let description = Printable::line(reader.string().unwrap_or_default());
        let abandoned = self.forget(id).is_some_and(|channel| channel.abandoned);
        self.opened += 1;
        self.events.push_back(if abandoned {
            ChannelEvent::Closed(id)
        } else {
            ChannelEvent::OpenFailed {
                id,
                reason,
                description,
            }
        });
        Ok(())
    }

    fn handle_open(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let kind = reader.name()?;
        let remote = RemoteId(reader.u32()?);
        let (window, max) = (reader.u32()?, reader.u32()?);
        let text = |reader: &mut Reader<'_>| {
            let name = reader.string()?;
            if name.len() > MAX_OFFERED_NAME {
                return Err(Error::from(PeerMisbehaved::NameTooLong(name.len())));
            }
            Ok(Printable::line(name).into_string())
        };
        let kind = match kind {
            "forwarded-tcpip" => IncomingKind::ForwardedTcpip {
                address: text(&mut reader)?,
                port: reader.u32()?,
                originator: (text(&mut reader)?, reader.u32()?),
            },
            "forwarded-streamlocal@openssh.com" => IncomingKind::ForwardedStreamlocal {
                path: text(&mut reader)?,
            },
            "auth-agent@openssh.com" => IncomingKind::Agent,
            _ => {
                let unknown = OpenFailure::UNKNOWN_CHANNEL_TYPE;
                self.control
                    .owe(open_failure(remote, unknown, "unknown channel type"));
                return Ok(());
            }
        };
        let full = if self.offered >= MAX_OFFERED {
            Some("too many channels wait to be accepted")
        } else if self.incoming >= MAX_INCOMING {
            Some("too many channels are open")
        } else {
            None
        };
        if let Some(why) = full {
            self.control
                .owe(open_failure(remote, OpenFailure::RESOURCE_SHORTAGE, why));
            return Ok(());
        }
        let id = self.allocate();
        let mut channel = Channel::new(Opening::Offered(remote), Arc::clone(&self.budget));
        channel.send_window = i64::from(window);
        channel.send_max = (max as usize).min(MAX_DATA as usize);
        channel.incoming = true;
        self.table.insert(id, channel);
        self.offered += 1;
        self.incoming += 1;
        self.events.push_back(ChannelEvent::Incoming { id, kind });
        Ok(())
    }

    fn handle_eof(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let Some((id, channel)) = self.channel(&mut reader)? else {
            return Ok(());
        };
        let again = std::mem::replace(&mut channel.eof_received, true);
        if !again && !channel.abandoned {
            self.events.push_back(ChannelEvent::Eof(id));
        }
        Ok(())
    }

    fn handle_close(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let Some((id, channel)) = self.channel(&mut reader)? else {
            return Ok(());
        };
        let remote = channel.remote();
        let close_sent = channel.close_sent;
        self.forget(id);
        if let Some(remote) = remote.filter(|_| !close_sent) {
            self.control
                .owe(Writer::message(message::CHANNEL_CLOSE).u32(remote.0).finish());
        }
        self.events.push_back(ChannelEvent::Closed(id));
        Ok(())
    }

    fn handle_request(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let Some((id, channel)) = self.channel(&mut reader)? else {
            return Ok(());
        };
        let name = reader.name()?;
        let want_reply = reader.bool()?;
        let (remote, close_sent, abandoned) = (channel.remote(), channel.close_sent, channel.abandoned);
        let event = match name {
            "exit-status" => Some(ChannelEvent::ExitStatus {
                id,
                status: reader.u32()?,
            }),
            "exit-signal" => Some(ChannelEvent::ExitSignal {
                id,
                signal: signal_text(reader.string()?).into_string(),
                core_dumped: reader.bool()?,
                message: signal_text(reader.string()?),
            }),
            // Also eow@openssh.com, xon-xoff and keepalive@openssh.com: nothing to do.
            _ => None,
        };
        let known = event.is_some();
        if let Some(event) = event.filter(|_| !abandoned) {
            self.events.push_back(event);
        }
        match remote.filter(|_| want_reply && !close_sent) {
            Some(remote) => {
                let number = if known {
                    message::CHANNEL_SUCCESS
                } else {
                    message::CHANNEL_FAILURE
                };
                self.control.owe(Writer::message(number).u32(remote.0).finish());
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn handle_reply(&mut self, mut reader: Reader<'_>, success: bool) -> Result<(), Error> {
        let Some((id, channel)) = self.channel(&mut reader)? else {
            return Ok(());
        };
        let started = channel
            .replies
            .pop_front()
            .ok_or(PeerMisbehaved::UnrequestedReply)?;
        if started {
            channel.started = if success { Started::Yes } else { Started::No };
            channel.overdraft &= success;
        }
        if !channel.abandoned {
            self.events
                .push_back(ChannelEvent::Reply { id, success, started });
        }
        Ok(())
    }

    fn handle_global_request(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let name = reader.name()?;
        let want_reply = reader.bool()?;
        // sshd sends the list once; OpenSSH's client also ignores a second one.
        if name == "hostkeys-00@openssh.com" && !std::mem::replace(&mut self.told_host_keys, true) {
            self.events
                .push_back(ChannelEvent::HostKeys(Bytes::copy_from_slice(reader.rest())));
        }
        // keepalive@openssh.com wants any answer.
        if want_reply {
            self.control.owe(Bytes::from_static(&[message::REQUEST_FAILURE]));
        }
        Ok(())
    }

    fn handle_global_reply(&mut self, payload: &Bytes, success: bool) -> Result<(), Error> {
        let id = self
            .global_replies
            .pop_front()
            .ok_or(PeerMisbehaved::UnrequestedGlobalReply)?;
        self.events.push_back(ChannelEvent::GlobalReply {
            id,
            success,
            data: payload.slice(1..),
        });
        Ok(())
    }

    /// Removes a channel from the table.
    fn forget(&mut self, id: ChannelId) -> Option<Channel> {
        let channel = self.table.remove(&id)?;
        self.incoming -= usize::from(channel.incoming);
        Some(channel)
    }

    fn allocate(&mut self) -> ChannelId {
        // Four billion channels in one connection would take months at full speed; even then a number in use is
        // skipped.
        loop {
            let id = ChannelId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            if !self.table.contains_key(&id) {
                return id;
            }
        }
    }
}

/// Sets the recipient's number in a message that was encoded before it was known.
fn address(message: &mut BytesMut, remote: RemoteId) {
    message[1..5].copy_from_slice(&remote.0.to_be_bytes());
}

/// Returns the server's channel number if a message is an exec, shell or subsystem request.
fn starts_in(message: &[u8]) -> Option<RemoteId> {
    let mut reader = Reader::new(message);
    let is_request = reader.u8().ok()? == message::CHANNEL_REQUEST;
    let remote = RemoteId(reader.u32().ok()?);
    let starts = is_request && matches!(reader.name().ok()?, "exec" | "shell" | "subsystem");
    starts.then_some(remote)
}

/// Returns a server's text about the signal that ended a command, cut to the length that is kept.
fn signal_text(text: &[u8]) -> Printable {
    Printable::line(&text[..text.len().min(MAX_SIGNAL_TEXT)])
}

fn data_message(remote: RemoteId, data: Bytes) -> ([u8; 9], Bytes) {
    let mut head = [message::CHANNEL_DATA; 9];
    let mut rest = &mut head[1..];
    rest.put_u32(remote.0);
    rest.put_u32(u32::try_from(data.len()).expect("data is cut to the packet size"));
    (head, data)
}

fn window_adjust(remote: RemoteId, add: u32) -> Bytes {
    Writer::message(message::CHANNEL_WINDOW_ADJUST)
        .u32(remote.0)
        .u32(add)
        .finish()
}

fn open_failure(remote: RemoteId, reason: OpenFailure, description: &str) -> Bytes {
    Writer::message(message::CHANNEL_OPEN_FAILURE)
        .u32(remote.0)
        .u32(reason.0)
        .string(description)
        .string("")
        .finish()
}
