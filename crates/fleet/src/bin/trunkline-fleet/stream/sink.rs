//! The target of one host's output on this machine.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use tokio::sync::mpsc;
use trunkline_control::sink::{Sink, Target};
use trunkline_control::stdio::Output;
use trunkline_fleet_client::FleetReply;

pub(super) enum HostSink {
    /// The client displays it.
    Told(u32, mpsc::Sender<FleetReply>),
    /// A file. Output is appended.
    File(Arc<File>, PathBuf),
    /// A FIFO or a socket: data that readers have not read yet waits in a pipe.
    Pipe(Arc<Sink>, Output),
}

impl HostSink {
    pub(super) async fn open(to: &str, host: &str, lost: Option<Vec<u8>>) -> anyhow::Result<Self> {
        // A name with a slash in it stays one part of the path.
        let target: Target = to.replace("{host}", &host.replace('/', "_")).parse()?;
        let sink = Sink::open(&target, lost.map(Bytes::from)).await?;
        match target {
            Target::File(path) => {
                let file = sink
                    .descriptor()
                    .try_clone_to_owned()
                    .context("no more descriptors")?;
                Ok(Self::File(Arc::new(file.into()), path))
            }
            _ => {
                let output = sink.output().context("no more descriptors")?;
                Ok(Self::Pipe(Arc::new(sink), output))
            }
        }
    }

    /// Returns the pipe in which data waits for readers.
    pub(super) fn pipe(&self) -> Option<Arc<Sink>> {
        match self {
            Self::Pipe(sink, _) => Some(sink.clone()),
            Self::Told(..) | Self::File(..) => None,
        }
    }

    /// Writes `rest`. If that fails, `rest` is the part that was not written.
    pub(super) async fn write(&mut self, rest: &mut &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Told(place, replies) => {
                let told = FleetReply::Output(*place, rest.to_vec());
                replies
                    .send(told)
                    .await
                    .map_err(|_| anyhow!("the client has gone"))?;
            }
            Self::Pipe(_, output) => {
                output.write_all(vec![Bytes::copy_from_slice(rest)]).await?;
            }
            Self::File(file, path) => {
                while !rest.is_empty() {
                    let (file, data) = (file.clone(), rest.to_vec());
                    let writing = tokio::task::spawn_blocking(move || (&*file).write(&data));
                    let written = writing.await?;
                    let written = written.with_context(|| format!("writing {}", path.display()))?;
                    *rest = rest.get(written..).unwrap_or_default();
                }
            }
        }
        *rest = &[];
        Ok(())
    }

    /// Waits until readers have read everything.
    pub(super) async fn wait_until_taken(&self) {
        if let Self::Pipe(sink, _) = self {
            sink.wait_until_taken().await;
        }
    }
}
