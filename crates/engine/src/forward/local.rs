//! Local and dynamic forwarding: clients here, targets on the server's side.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::listen::{self, Bound, Listener};
use super::socks::{Connect, Dialogue, MAX_PENDING, Reply, Turn};
use super::{ForwardClient, ForwardEvent, ForwardHandle, Shared, Witness};
use crate::config::{Forward, ForwardTarget};
use crate::connection::channel::ChannelStream;
use crate::connection::splice::{Ahead, LocalStream, splice};
use crate::engine::Host;
use crate::error::{Error, Invalid};

/// The time that a SOCKS client may take to name its target.
pub(super) const GREETING_LIMIT: Duration = Duration::from_secs(30);
/// The pause after a failed accept, which most likely lacked file descriptors: others may become free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Listens, and carries each client to the target through the host's connections.
///
/// # Errors
/// As [`listen::bind`]; or the server is not verified.
pub(crate) async fn forward(
    host: &Host,
    forward: &Forward,
    witness: Option<Witness>,
) -> Result<ForwardHandle, Error> {
    // Report this now: otherwise each client would be refused.
    host.check_verified("Port forwarding")?;
    let Bound { listeners, failed } = listen::bind(&forward.listen, host.config()).await?;
    let shared = Shared::new(listeners.iter().map(Listener::address).collect());
    let way = Arc::new((forward.target.clone(), witness));
    let serving = serve(host.clone(), listeners, way, shared.clone());
    let mut handle = ForwardHandle::new(shared, tokio::spawn(serving));
    handle.failed = failed;
    Ok(handle)
}

/// The target of clients, and the witness.
type Way = (ForwardTarget, Option<Witness>);

async fn serve(host: Host, listeners: Vec<Listener>, way: Arc<Way>, shared: Arc<Shared>) {
    loop {
        let accepted = std::future::poll_fn(|cx| {
            let ready = listeners
                .iter()
                .map(|listener| listener.poll_accept(cx))
                .find(std::task::Poll::is_ready);
            ready.unwrap_or(std::task::Poll::Pending)
        });
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((client, peer)) => {
                let (host, way) = (host.clone(), way.clone());
                shared.spawn(move |shared| async move { carry(&host, client, peer, &way, &shared).await });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to forward");
                tokio::select! {
                    () = shared.stop.cancelled() => return,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}

/// Serves one client, from its acceptance to its end.
async fn carry(
    host: &Host,
    mut client: LocalStream,
    peer: Option<SocketAddr>,
    (target, witness): &Way,
    shared: &Shared,
) {
    let from = peer.map_or_else(String::new, |peer| peer.to_string());
    // channels.c, port_open_helper: some servers check the originator, even of a client without an address.
    let peer = peer.map_or_else(
        || ("127.0.0.1".to_owned(), u16::MAX),
        |peer| (peer.ip().to_string(), peer.port()),
    );
    let peer = (peer.0.as_str(), peer.1);
    let client_of = |target: &str| ForwardClient {
        from: from.clone(),
        target: target.to_owned(),
    };
    let open = async |what: &str, path: Option<&str>, to: (&str, u16)| {
        let told = match witness {
            Some(witness) => match witness(client_of(what)).await {
                Ok(told) => Some(told),
                Err(error) => return (Err(error), None),
            },
            None => None,
        };
        let opened = match path {
            Some(path) => host.direct_streamlocal(path).await,
            None => host.direct_tcpip(to.0, to.1, peer).await,
        };
        let kept = told.map(|told| told(opened.as_ref().map(ChannelStream::closer)));
        (opened, kept)
    };
    let ((opened, _kept), what, ahead) = match target {
        ForwardTarget::Tcp { host: name, port } => {
            let what = format!("{name}:{port}");
            (open(&what, None, (name, *port)).await, what, Ahead::default())
        }
        ForwardTarget::Socket(path) => {
            let path = path.to_string_lossy();
            let opened = open(&path, Some(&path), ("", 0)).await;
            (opened, path.into_owned(), Ahead::default())
        }
        ForwardTarget::Socks => {
            let asked = match &mut client {
                LocalStream::Tcp(stream) => ask(stream).await,
                LocalStream::Unix(stream) => ask(stream).await,
            };
            let (connect, left) = match asked {
                Ok(asked) => asked,
                Err(error) => {
                    return shared.tell(ForwardEvent::Refused {
                        from,
                        target: String::new(),
                        error,
                    });
                }
            };
            let what = format!("{}:{}", connect.host, connect.port);
            let opened = open(&what, None, (&connect.host, connect.port)).await;
            let answer = connect.answer(opened.0.as_ref().map_or_else(reply_to, |_| Reply::Granted));
            let told = match &mut client {
                LocalStream::Tcp(stream) => stream.write_all(&answer).await,
                LocalStream::Unix(stream) => stream.write_all(&answer).await,
            };
            if told.is_err() {
                return;
            }
            let ahead = Ahead {
                to_channel: left.freeze(),
                ..Ahead::default()
            };
            (opened, what, ahead)
        }
    };
    match opened {
        Ok(channel) => splice(client, channel, ahead, &shared.traffic).await,
        Err(error) => shared.tell(ForwardEvent::Refused {
            from,
            target: what,
            error,
        }),
    }
}

/// Reads a SOCKS client's target. Returns it, with the data that followed the request.
///
/// # Errors
/// The request is invalid or late; the client was told so if possible.
pub(super) async fn ask(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<(Connect, BytesMut), Error> {
    const DOING: &str = "reading a SOCKS request";
    let asking = async {
        let (mut dialogue, mut input) = (Dialogue::default(), BytesMut::with_capacity(MAX_PENDING));
        loop {
            match dialogue.handle(&mut input) {
                Ok(Some(Turn::Connect(connect))) => return Ok((connect, input)),
                Ok(Some(Turn::Answer(answer))) => {
                    client
                        .write_all(&answer)
                        .await
                        .map_err(|error| Error::network(DOING, error))?;
                }
                Ok(None) => {
                    let read = client
                        .read_buf(&mut input)
                        .await
                        .map_err(|error| Error::network(DOING, error))?;
                    if read == 0 {
                        return Err(Error::network(DOING, io::ErrorKind::UnexpectedEof.into()));
                    }
                }
                Err(error) => {
                    if let Some(answer) = error.answer() {
                        let _ = client.write_all(&answer).await;
                    }
                    return Err(Invalid::Socks(error.to_string()).into());
                }
            }
        }
    };
    tokio::time::timeout(GREETING_LIMIT, asking)
        .await
        .unwrap_or_else(|_| {
            Err(Error::Timeout {
                doing: DOING.into(),
                after: GREETING_LIMIT,
            })
        })
}

/// Translates RFC 4254 section 5.1's reason codes to SOCKS replies.
pub(super) fn reply_to(error: &Error) -> Reply {
    match error.root() {
        Error::Refused { reason: 1, .. } | Error::HostKey(_) => Reply::NotAllowed,
        Error::Refused { reason: 2, .. } | Error::Network { .. } | Error::Lookup { .. } => Reply::Refused,
        _ => Reply::Failed,
    }
}
