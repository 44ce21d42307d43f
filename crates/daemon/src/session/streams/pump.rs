//! Between a client's descriptors and a channel.

use std::io;

use bytes::Bytes;
use trunkline::{ChannelReader, ChannelWriter};

use crate::stdio::{Input, Output};

/// Pieces of output written at once: 512 KiB of sshd's packets, within IOV_MAX.
const PIECES: usize = 16;

/// Writes all that comes from a channel, which is read no faster. Each piece is noted before.
///
/// A client is told that its command has begun before anybody can read what the command wrote: the server's answer came
/// first, one turn of the session takes it, and the next one sends it.
///
/// # Errors
/// As [`Output::write_all`].
pub(crate) async fn drain(
    reader: &mut ChannelReader,
    output: &mut Output,
    note: impl Fn(&Bytes),
) -> io::Result<()> {
    let mut pieces = Vec::new();
    let mut is_first = true;
    while reader.chunks(&mut pieces, PIECES).await > 0 {
        if std::mem::take(&mut is_first) {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        pieces.iter().for_each(&note);
        pieces = output.write_all(pieces).await?;
    }
    Ok(())
}

/// Gives a channel all that comes, as long as it takes it, and then its end.
pub(crate) async fn feed(input: &mut Input, writer: &mut ChannelWriter) {
    while let Ok(data) = input.read().await {
        // A command that takes no more input ends the feeding, not the session.
        if data.is_empty() || writer.send(data).await.is_err() {
            break;
        }
    }
    writer.finish();
}
