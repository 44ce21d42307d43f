//! `trunkline fleet drain` and `trunkline fleet leave`: the node on this machine is told.

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use trunkline_control::place::Place;

pub(crate) async fn drain(place: &Place) -> anyhow::Result<()> {
    tell(place, "drain\n").await?;
    Ok(())
}

/// Returns when the node has ended.
pub(crate) async fn leave(place: &Place) -> anyhow::Result<()> {
    let mut node = tell(place, "leave\n").await?;
    let mut rest = Vec::new();
    // However it ends, the node has.
    let _ = node.read_to_end(&mut rest).await;
    Ok(())
}

async fn tell(place: &Place, what: &str) -> anyhow::Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(place.fleet()).await;
    let stream = stream.context("no node runs here; `trunkline fleet join` starts one")?;
    let mut stream = BufReader::new(stream);
    stream.write_all(what.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await?;
    ensure!(answer == "ok\n", "the node ended before it answered");
    Ok(stream)
}
