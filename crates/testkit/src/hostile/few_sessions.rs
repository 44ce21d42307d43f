//! Servers that work correctly until a client opens a second session on a connection.

use std::collections::BTreeMap;
use std::io;

use super::payload::{Fields, Payload, number};
use super::wire::Wire;

/// A server that works correctly for clients that open one session on each connection, but not for others. Each
/// imitates a real server. Its commands print their own text and exit with 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Oddity {
    /// Opens a channel, and ignores messages for it that arrived before its answer (Go's x/crypto 0.59).
    PassesByEarly,
    /// Refuses a second session for the life of the connection (tinysshd).
    RefusesSecond,
    /// Ends the connection when a second session is requested (tinysshd, a little later).
    EndsOnSecond,
    /// Opens a second session, but refuses to run anything in it (libssh's example).
    RunsOnlyFirst,
    /// Closes a session without a running command when a later session has ended (dropbear 2022.83).
    ClosesSpares,
    /// No oddity: a server that is not sshd.
    None,
}

/// A session of the client.
struct Open {
    client: u32,
    ran: bool,
}

impl Oddity {
    /// All oddities except [`Oddity::PassesByEarly`], which is not about the number of sessions.
    pub const OF_SESSIONS: &[Oddity] = &[
        Oddity::RefusesSecond,
        Oddity::EndsOnSecond,
        Oddity::RunsOnlyFirst,
        Oddity::ClosesSpares,
        Oddity::None,
    ];

    /// Logs the client in, and serves its channels. `executed` is called for each command that runs.
    pub(super) async fn play(self, mut wire: Wire, executed: impl Fn(&str)) -> io::Result<()> {
        wire.authenticate().await?;
        let mut open: BTreeMap<u32, Open> = BTreeMap::new();
        let mut opened = 0;
        loop {
            let message = wire.receive().await?;
            let mut fields = Fields::parse(&message);
            match message.first().copied().unwrap_or(0) {
                number::CHANNEL_OPEN => {
                    let (_kind, client) = (fields.text()?, fields.uint32()?);
                    opened += 1;
                    if opened > 1 && self == Oddity::EndsOnSecond {
                        return Ok(());
                    }
                    if opened > 1 && self == Oddity::RefusesSecond {
                        let refusal = Payload::message(number::CHANNEL_OPEN_FAILURE)
                            .uint32(client)
                            .uint32(1);
                        wire.send(&refusal.string("only one session").string("")).await?;
                        continue;
                    }
                    let server = opened - 1;
                    open.insert(server, Open { client, ran: false });
                    let confirmation = Payload::message(number::CHANNEL_OPEN_CONFIRMATION).uint32(client);
                    wire.send(&confirmation.uint32(server).uint32(2 << 20).uint32(32 << 10))
                        .await?;
                    if self == Oddity::PassesByEarly {
                        // Ignores the messages that came with it. A client that waits for the answer sends nothing in
                        // the meantime.
                        while wire.has_more() {
                            wire.receive().await?;
                        }
                    }
                }
                number::CHANNEL_REQUEST => {
                    let (server, name, wants) = (fields.uint32()?, fields.text()?, fields.boolean()?);
                    let Some(session) = open.get_mut(&server) else {
                        continue;
                    };
                    let client = session.client;
                    let runs = name == "exec" && (server == 0 || self != Oddity::RunsOnlyFirst);
                    let answer = if runs {
                        number::CHANNEL_SUCCESS
                    } else {
                        number::CHANNEL_FAILURE
                    };
                    if wants {
                        wire.send(&Payload::message(answer).uint32(client)).await?;
                    }
                    if !runs {
                        continue;
                    }
                    session.ran = true;
                    let command = fields.text()?;
                    executed(&command);
                    let about = |number| Payload::message(number).uint32(client);
                    let status = about(number::CHANNEL_REQUEST)
                        .string("exit-status")
                        .boolean(false);
                    let mut messages = vec![
                        about(number::CHANNEL_DATA).string(&command),
                        status.uint32(0),
                        about(number::CHANNEL_EOF),
                        about(number::CHANNEL_CLOSE),
                    ];
                    if self == Oddity::ClosesSpares {
                        let older = open.range(..server).map(|(_, session)| session);
                        let idle = older.filter(|session| !session.ran);
                        messages.extend(
                            idle.map(|session| {
                                Payload::message(number::CHANNEL_CLOSE).uint32(session.client)
                            }),
                        );
                    }
                    wire.send_together(&messages).await?;
                }
                number::CHANNEL_CLOSE => drop(open.remove(&fields.uint32()?)),
                number::GLOBAL_REQUEST => {
                    let (_name, wants) = (fields.string()?, fields.boolean()?);
                    if wants {
                        wire.send(&Payload::message(number::REQUEST_FAILURE)).await?;
                    }
                }
                number::DISCONNECT => return Ok(()),
                _ => {}
            }
        }
    }
}
