//! `trunkline fleet drain` and `trunkline fleet leave`: send an instruction to the node on this machine.

use anyhow::{anyhow, ensure};
use std::io::ErrorKind;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use trunkline_control::place::Place;

use crate::paths;

pub(crate) async fn drain(place: &Place) -> anyhow::Result<()> {
    tell(place, "drain\n", "nothing is drained").await?;
    Ok(())
}

/// Returns when the node has ended.
pub(crate) async fn leave(place: &Place) -> anyhow::Result<()> {
    let mut node = tell(place, "leave\n", "there is none to leave").await?;
    let mut rest = Vec::new();
    // The node has ended, however this returns.
    let _ = node.read_to_end(&mut rest).await;
    Ok(())
}

async fn tell(place: &Place, what: &str, otherwise: &str) -> anyhow::Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(paths::socket(place)).await;
    // If a node was killed, its socket is still there.
    let stream = stream.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            anyhow!("no node runs on this machine under this account: {otherwise}")
        }
        _ => anyhow!("the node on this machine cannot be asked: {error}"),
    })?;
    let mut stream = BufReader::new(stream);
    stream.write_all(what.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await?;
    ensure!(answer == "ok\n", "the node ended before it answered");
    Ok(stream)
}
