//! Servers that are fine until a client opens a second session on a connection.

use std::collections::BTreeMap;
use std::io;

use super::payload::{Fields, Payload, number};
use super::wire::Wire;

/// A server that is well-behaved for a client that does one thing after the other on a connection of its own, and not for one
/// that does more: each stands for a real one. Its commands print their own text and exit with 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Oddity {
    /// Opens a channel, and passes by what came for it before it had answered (Go's x/crypto 0.59).
    PassesByEarly,
    /// Refuses a second session, for as long as the connection lasts (tinysshd).
    RefusesSecond,
    /// Ends the connection when a second session is asked for (tinysshd, a little later).
    EndsOnSecond,
    /// Opens a second session, and refuses to run anything in it (libssh's example).
    RunsOnlyFirst,
    /// Closes a session in which nothing runs when a later one has ended (dropbear 2022.83).
    ClosesSpares,
    /// Nothing of all that: a server that is not sshd.
    None,
}

/// A session of the client's.
struct Open {
    client: u32,
    ran: bool,
}

impl Oddity {
    /// Every server but the one that passes by what is early, which is a matter of its own.
    pub const OF_SESSIONS: &[Oddity] = &[
        Oddity::RefusesSecond,
        Oddity::EndsOnSecond,
        Oddity::RunsOnlyFirst,
        Oddity::ClosesSpares,
        Oddity::None,
    ];

    /// Lets the client in, and serves its channels. `executed` is told each command that runs.
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
                        // What has come with it. A client that waits for the answer sends nothing meanwhile.
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
