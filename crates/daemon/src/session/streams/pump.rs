//! Transfer between a client's descriptors and a channel.

use std::io;

use bytes::Bytes;
use trunkline::{ChannelReader, ChannelWriter};

use crate::stdio::{Input, Output};

/// Pieces of output written at once: 512 KiB of sshd's packets, within IOV_MAX.
const PIECES: usize = 16;

/// Writes a channel's data, and reads no faster than it can write. Each piece is noted first.
///
/// A client learns that its command has started before anyone can read the command's output: the server's answer came
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

/// Sends a channel all input that it takes, then EOF.
pub(crate) async fn feed(input: &mut Input, writer: &mut ChannelWriter) {
    while let Ok(data) = input.read().await {
        // A command that takes no more input ends this loop, not the session.
        if data.is_empty() || writer.send(data).await.is_err() {
            break;
        }
    }
    writer.finish();
}
