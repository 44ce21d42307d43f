//! Ways to break the protocol in a session.

use std::io;

use super::payload::{Payload, number};
use super::wire::{Session, Wire};

/// A channel number that no client uses for its first few channels.
const NOWHERE: u32 = 0x0bad_cafe;

/// A way to break the connection protocol (RFC 4254) in the middle of a session, after a correct log-in.
///
/// The client has opened a session and requested a command. The server breaks a rule, and then reports status 0 and
/// closes the channel, as if nothing were wrong. A client either disconnects ([`SessionMisbehaviour::is_fatal`] is true
/// if it has to, and if OpenSSH's client does) or ignores it. It must not hang, and its memory must stay bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionMisbehaviour {
    /// Data on a channel that nobody opened.
    DataOnUnknownChannel,
    /// More data than the window allows.
    WindowOverrun,
    /// More data on standard error than the window allows.
    ExtendedWindowOverrun,
    /// More data in one packet than the client's maximum packet size.
    OversizedData,
    /// Window credit beyond 2^32 - 1 bytes (RFC 4254 section 5.2).
    WindowOverflow,
    /// Window credit for a channel that nobody opened.
    AdjustOnUnknownChannel,
    /// A data message that ends within the channel number.
    TruncatedData,
    /// A data message with a string whose length field is 4 GiB.
    DataBeyondPacket,
    /// Undefined message numbers, of every range of RFC 4250 section 4.1.2.
    UnknownMessage,
    /// A success that answers no global request.
    UnaskedGlobalSuccess,
    /// A success that answers no channel request.
    UnaskedChannelSuccess,
    /// A second confirmation of the channel.
    SecondConfirmation,
    /// A confirmation of a channel that nobody asked for.
    ConfirmationOfNothing,
    /// A refusal of the channel that is open.
    FailureOfOpenChannel,
    /// A second success of the log-in.
    SecondAuthSuccess,
    /// The server asks the client to run a command.
    ServerOpensSession,
    /// The server opens a forwarded connection that nobody asked for.
    UnaskedForward,
    /// The server opens an agent channel although no agent was forwarded.
    UnaskedAgent,
    /// An exit status of two bytes.
    TruncatedExitStatus,
    /// A channel request that wants an answer, with a name of 200 KiB.
    HugeRequestName,
    DataAfterEof,
    DataAfterClose,
    /// CLOSE twice.
    SecondClose,
    /// Ten thousand global requests that want an answer.
    FloodOfRequests,
    /// Ten thousand empty data messages, which use up no window.
    FloodOfEmptyData,
}

impl SessionMisbehaviour {
    /// All of them.
    pub const ALL: &[SessionMisbehaviour] = &[
        SessionMisbehaviour::DataOnUnknownChannel,
        SessionMisbehaviour::WindowOverrun,
        SessionMisbehaviour::ExtendedWindowOverrun,
        SessionMisbehaviour::OversizedData,
        SessionMisbehaviour::WindowOverflow,
        SessionMisbehaviour::AdjustOnUnknownChannel,
        SessionMisbehaviour::TruncatedData,
        SessionMisbehaviour::DataBeyondPacket,
        SessionMisbehaviour::UnknownMessage,
        SessionMisbehaviour::UnaskedGlobalSuccess,
        SessionMisbehaviour::UnaskedChannelSuccess,
        SessionMisbehaviour::SecondConfirmation,
        SessionMisbehaviour::ConfirmationOfNothing,
        SessionMisbehaviour::FailureOfOpenChannel,
        SessionMisbehaviour::SecondAuthSuccess,
        SessionMisbehaviour::ServerOpensSession,
        SessionMisbehaviour::UnaskedForward,
        SessionMisbehaviour::UnaskedAgent,
        SessionMisbehaviour::TruncatedExitStatus,
        SessionMisbehaviour::HugeRequestName,
        SessionMisbehaviour::DataAfterEof,
        SessionMisbehaviour::DataAfterClose,
        SessionMisbehaviour::SecondClose,
        SessionMisbehaviour::FloodOfRequests,
        SessionMisbehaviour::FloodOfEmptyData,
    ];

    /// Returns true if OpenSSH's client disconnects because of it, and any client should: the two sides no longer agree
    /// on which channels exist, or a message makes no sense at all. This does not include the overruns: all of the data
    /// comes at once, but a client that consumes it while it receives has granted more window by the time it counts.
    /// Other clients have to disconnect, or to drop the data beyond the window.
    #[must_use]
    pub fn is_fatal(self) -> bool {
        use SessionMisbehaviour as M;
        matches!(
            self,
            M::DataOnUnknownChannel
                | M::WindowOverflow
                | M::TruncatedData
                | M::DataBeyondPacket
                | M::SecondConfirmation
                | M::ConfirmationOfNothing
                | M::FailureOfOpenChannel
                | M::TruncatedExitStatus
        )
    }

    /// Logs the client in, opens its session, and breaks the rule.
    pub(super) async fn play(self, mut wire: Wire) -> io::Result<()> {
        // A client that gives up resets the connection, so that a write fails. That is correct behaviour.
        if self.act(&mut wire).await.is_ok() {
            wire.until_closed().await;
        }
        Ok(())
    }

    async fn act(self, wire: &mut Wire) -> io::Result<()> {
        wire.authenticate().await?;
        let session = wire.open_session().await?;
        let channel = session.client_channel;
        let eof = Payload::message(number::CHANNEL_EOF).uint32(channel);
        let close = Payload::message(number::CHANNEL_CLOSE).uint32(channel);
        let late = data(channel, b"late");
        wire.send_together(&self.before_the_end(&session)).await?;
        let status = Payload::message(number::CHANNEL_REQUEST)
            .uint32(channel)
            .string("exit-status");
        let mut ending = vec![status.boolean(false).uint32(0), eof];
        if self == SessionMisbehaviour::DataAfterEof {
            ending.push(late.clone());
        }
        ending.push(close.clone());
        match self {
            SessionMisbehaviour::DataAfterClose => ending.push(late),
            SessionMisbehaviour::SecondClose => ending.push(close),
            _ => {}
        }
        wire.send_together(&ending).await
    }

    /// Returns the faults before the session ends.
    fn before_the_end(self, session: &Session) -> Vec<Payload> {
        use SessionMisbehaviour as M;
        let channel = session.client_channel;
        let too_much = session.window as usize + 1;
        // The packet size that a client grants leaves at most this much for data (RFC 4254 section 5.1), and OpenSSH's
        // own limit for a whole packet is 256 KiB.
        let packet = (session.max_packet as usize).clamp(1, 128 * 1024);
        let open = |kind: &str| {
            Payload::message(number::CHANNEL_OPEN)
                .string(kind)
                .uint32(7)
                .uint32(1 << 20)
                .uint32(1 << 15)
        };
        let confirmation = |recipient| {
            let confirmation = Payload::message(number::CHANNEL_OPEN_CONFIRMATION).uint32(recipient);
            confirmation.uint32(NOWHERE).uint32(1 << 20).uint32(1 << 15)
        };
        match self {
            M::DataOnUnknownChannel => vec![data(NOWHERE, b"boo")],
            M::WindowOverrun => vec![0; too_much]
                .chunks(packet)
                .map(|chunk| data(channel, chunk))
                .collect(),
            M::ExtendedWindowOverrun => {
                let stderr = |chunk: &[u8]| {
                    Payload::message(number::CHANNEL_EXTENDED_DATA)
                        .uint32(channel)
                        .uint32(1)
                        .string(chunk)
                };
                vec![0; too_much].chunks(packet).map(stderr).collect()
            }
            M::OversizedData => vec![data(channel, &vec![0; packet + 1])],
            M::WindowOverflow => {
                let adjust = Payload::message(number::CHANNEL_WINDOW_ADJUST)
                    .uint32(channel)
                    .uint32(u32::MAX);
                vec![adjust.clone(), adjust]
            }
            M::AdjustOnUnknownChannel => {
                vec![
                    Payload::message(number::CHANNEL_WINDOW_ADJUST)
                        .uint32(NOWHERE)
                        .uint32(1),
                ]
            }
            M::TruncatedData => vec![Payload::message(number::CHANNEL_DATA).raw(&[0, 0])],
            M::DataBeyondPacket => {
                vec![
                    Payload::message(number::CHANNEL_DATA)
                        .uint32(channel)
                        .uint32(u32::MAX)
                        .raw(b"boo"),
                ]
            }
            M::UnknownMessage => [83, 89, 101, 127, 191].map(Payload::message).to_vec(),
            M::UnaskedGlobalSuccess => vec![Payload::message(number::REQUEST_SUCCESS)],
            M::UnaskedChannelSuccess => {
                vec![Payload::message(number::CHANNEL_SUCCESS).uint32(channel); 3]
            }
            M::SecondConfirmation => vec![confirmation(channel)],
            M::ConfirmationOfNothing => vec![confirmation(NOWHERE)],
            M::FailureOfOpenChannel => {
                let failure = Payload::message(number::CHANNEL_OPEN_FAILURE).uint32(channel);
                vec![failure.uint32(1).string("no").string("")]
            }
            M::SecondAuthSuccess => vec![Payload::message(number::USERAUTH_SUCCESS)],
            M::ServerOpensSession => vec![open("session")],
            M::UnaskedForward => {
                let open = open("forwarded-tcpip").string("localhost").uint32(22);
                vec![open.string("localhost").uint32(1)]
            }
            M::UnaskedAgent => vec![open("auth-agent@openssh.com")],
            M::TruncatedExitStatus => {
                let request = Payload::message(number::CHANNEL_REQUEST).uint32(channel);
                vec![request.string("exit-status").boolean(false).raw(&[0, 0])]
            }
            M::HugeRequestName => {
                let request = Payload::message(number::CHANNEL_REQUEST).uint32(channel);
                vec![request.string(vec![b'n'; 200 * 1024]).boolean(true)]
            }
            M::FloodOfRequests => {
                let request = Payload::message(number::GLOBAL_REQUEST).string("keepalive@example.com");
                vec![request.boolean(true); 10_000]
            }
            M::FloodOfEmptyData => vec![data(channel, b""); 10_000],
            M::DataAfterEof | M::DataAfterClose | M::SecondClose => Vec::new(),
        }
    }
}

fn data(channel: u32, bytes: &[u8]) -> Payload {
    Payload::message(number::CHANNEL_DATA)
        .uint32(channel)
        .string(bytes)
}
