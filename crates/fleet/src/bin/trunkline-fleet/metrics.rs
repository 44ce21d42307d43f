//! `trunkline metrics --fleet`: the numbers of the node on this machine, for Prometheus.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use trunkline_cli::metrics::Args;
use trunkline_control::place::Place;

use crate::paths;

/// The time limit for a node's answer, and its maximum length in bytes.
const ANSWER: Duration = Duration::from_secs(5);
const LONGEST: u64 = 1 << 20;

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let place = Place::find(|name| std::env::var_os(name).map(Into::into))?;
    let text = trunkline_cli::runtime()?.block_on(read(&place, args.openmetrics))?;
    args.write(
        text,
        "no node of a fleet runs here; `trunkline fleet join` starts one",
    )
}

/// Reads the metrics from the node's socket; `None` if no node runs.
async fn read(place: &Place, open_metrics: bool) -> anyhow::Result<Option<String>> {
    // The socket of a node that was killed refuses connections.
    let Ok(mut stream) = UnixStream::connect(paths::metrics_socket(place)).await else {
        return Ok(None);
    };
    let accept = if open_metrics {
        "application/openmetrics-text"
    } else {
        "text/plain"
    };
    let request = format!("GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
    let mut answer = String::new();
    let asking = async {
        stream.write_all(request.as_bytes()).await?;
        stream.take(LONGEST).read_to_string(&mut answer).await
    };
    let asked = tokio::time::timeout(ANSWER, asking).await;
    asked
        .context("the node does not answer")?
        .context("the node does not answer")?;
    let (head, text) = answer
        .split_once("\r\n\r\n")
        .context("the node's answer is cut off")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "the node says {status:?}");
    Ok(Some(text.to_owned()))
}
