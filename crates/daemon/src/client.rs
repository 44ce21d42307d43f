//! Clients of the daemon that can do without it: where it stands elsewhere in the system, the engine in their own process
//! answers, as the daemon would.

pub mod session;

use tokio::net::UnixStream;
use trunkline::Engine;
pub use trunkline_control::client::{Client, ClientError, ReplyReader, RequestWriter, Starter};

use crate::place::Place;
use crate::socket::FrameError;

/// As [`Client::connect`]; where the daemon stands elsewhere in the system, to an engine in this process, as ssh would
/// connect by itself.
///
/// # Errors
/// [`ClientError`].
pub async fn connect_from_here<E>(
    place: &Place,
    starter: Option<&Starter>,
    engine: impl AsyncFnOnce() -> Result<Engine, E>,
) -> Result<Client, E>
where
    E: From<ClientError>,
{
    match Client::connect(place, starter).await {
        Err(ClientError::Elsewhere(what)) => {
            tracing::info!("the daemon runs in another {what}; connecting without it");
            Ok(to_engine(place, engine().await?).await?)
        }
        other => Ok(other?),
    }
}

/// A connection to an engine in this process, which is served as the daemon would.
///
/// # Errors
/// [`ClientError::Frame`] where the system gives no socket.
async fn to_engine(place: &Place, engine: Engine) -> Result<Client, ClientError> {
    let (ours, theirs) = UnixStream::pair().map_err(FrameError::from)?;
    crate::server::serve_in_process(theirs, place.clone(), engine);
    Client::over(ours).await
}
