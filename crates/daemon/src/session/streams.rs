//! A client's side of a session's three streams, and of a tunnel.

mod pump;
pub(crate) mod terminal_input;

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use tokio::sync::mpsc;
use trunkline::{ChannelReader, ChannelStream, ChannelWriter, Error, Host, Invalid, SessionControl};

use super::events::{Events, Inputs};
use crate::protocol::{ExitStatus, Reply, Request, Stdio};
use crate::stdio::{Input, Output};
use terminal_input::TerminalInput;
use trunkline_audit::Entry;

/// The client's side of the three streams.
pub(crate) struct Streams {
    pub(super) stdin: Source,
    pub(super) stdout: Sink,
    pub(super) stderr: Sink,
}

pub(super) enum Source {
    Fd(Input),
    /// A terminal that stock ssh has passed.
    Terminal(TerminalInput),
    Frames,
    Null,
}

pub(super) enum Sink {
    Fd(Output),
    Frames,
    Null,
}

impl Streams {
    pub(crate) fn new(kinds: [Stdio; 3], fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| Error::from(Invalid::NoDescriptors));
        let broken = |error: io::Error| Error::local("using a descriptor", error);
        let [stdin, stdout, stderr] = kinds;
        let stdin = match stdin {
            Stdio::Passed => Source::Fd(Input::new(next()?).map_err(broken)?),
            Stdio::Framed => Source::Frames,
            Stdio::Null => Source::Null,
        };
        let mut sink = |kind| {
            Ok::<_, Error>(match kind {
                Stdio::Passed => Sink::Fd(Output::new(next()?).map_err(broken)?),
                Stdio::Framed => Sink::Frames,
                Stdio::Null => Sink::Null,
            })
        };
        Ok(Self {
            stdin,
            stdout: sink(stdout)?,
            stderr: sink(stderr)?,
        })
    }

    /// Replaces the input by an empty one.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = Source::Null;
    }

    /// Takes the input from a terminal instead.
    pub(crate) fn with_terminal(self, typed: TerminalInput) -> Self {
        Self {
            stdin: Source::Terminal(typed),
            ..self
        }
    }
}

impl Source {
    /// Sends the session its input, then waits forever.
    pub(super) async fn feed(
        self,
        mut stdin: ChannelWriter,
        mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
        control: &SessionControl,
        host: &Host,
    ) -> Infallible {
        match self {
            Self::Null => {}
            Self::Terminal(typed) => typed.feed(&mut stdin, control, host).await,
            // A command that takes no more input ends this loop, not the session.
            Self::Frames => {
                while let Some(data) = frames.recv().await {
                    if data.is_empty() || stdin.send(data.into()).await.is_err() {
                        break;
                    }
                }
            }
            Self::Fd(mut input) => pump::feed(&mut input, &mut stdin).await,
        }
        stdin.finish();
        std::future::pending().await
    }

    /// Reads the next piece of input without a terminal; empty at the end. Cancel-safe.
    pub(super) async fn next(&mut self, frames: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> Bytes {
        match self {
            Self::Fd(input) => input.read().await.unwrap_or_default(),
            Self::Frames => frames.recv().await.unwrap_or_default().into(),
            // Only sessions have a terminal's input.
            Self::Null | Self::Terminal(_) => Bytes::new(),
        }
    }
}

/// Moves a tunnel's data. Each direction ends by itself, and the client is told of the server's end. Returns the last
/// frame when both have ended or the client leaves.
pub(crate) async fn tunnel(
    streams: Streams,
    stream: ChannelStream,
    mut inputs: impl Inputs,
    events: &impl Events,
    entry: &Entry,
) -> Reply {
    let channel = stream.closer();
    entry.carries(move || channel.bytes_carried());
    events.tell_begun(false).await;
    let (mut reader, mut writer) = stream.into_split();
    let (framed, frames) = mpsc::unbounded_channel();
    let attend = async {
        while let Some(request) = inputs.next().await {
            match request {
                Request::Input(data) => drop(framed.send(data)),
                Request::Terminate => break,
                _ => {}
            }
        }
    };
    let down = async {
        let written = drain_to_end(&mut reader, streams.stdout, events, Reply::Output, |_| ()).await;
        if written.is_ok() && reader.is_complete() {
            let _ = events.tell(Reply::Output(Vec::new())).await;
        }
        written
    };
    let carry = async {
        match tokio::join!(down, up(streams.stdin, frames, &mut writer)).0 {
            // Closing discards data that the server's window has not let out. sshd closes once both directions have
            // ended.
            Ok(()) => writer.wait_for_close().await,
            // A client that takes no more does not wait for the server's end.
            Err(_) => drop(writer.wait_until_sent().await),
        }
    };
    tokio::select! {
        () = carry => {}
        () = attend => {}
    }
    Reply::Exit(ExitStatus::Exited(0))
}

/// Feeds a tunnel its input until the client's end or the channel's.
async fn up(mut source: Source, mut frames: mpsc::UnboundedReceiver<Vec<u8>>, writer: &mut ChannelWriter) {
    loop {
        let data = tokio::select! {
            biased;
            data = source.next(&mut frames) => data,
            () = writer.wait_for_close() => return,
        };
        if data.is_empty() || writer.send(data).await.is_err() {
            break;
        }
    }
    writer.finish();
}

/// Reads and discards a stream, so that its command does not block.
pub(super) async fn discard(reader: &mut ChannelReader) {
    while reader.chunk().await.is_some() {}
}

/// Writes a stream to its sink and closes the sink, so that its reader sees the end while the other direction
/// continues.
pub(super) async fn drain_to_end(
    reader: &mut ChannelReader,
    mut sink: Sink,
    events: &impl Events,
    frame: impl Fn(Vec<u8>) -> Reply,
    note: impl Fn(&Bytes),
) -> io::Result<()> {
    drain(reader, &mut sink, events, frame, note).await
}

/// Writes a stream to its sink, and notes each piece first. Fails when the output is no longer read.
pub(super) async fn drain(
    reader: &mut ChannelReader,
    sink: &mut Sink,
    events: &impl Events,
    frame: impl Fn(Vec<u8>) -> Reply,
    note: impl Fn(&Bytes),
) -> io::Result<()> {
    if let Sink::Fd(output) = sink {
        return pump::drain(reader, output, note).await;
    }
    while let Some(data) = reader.chunk().await {
        note(&data);
        if let Sink::Frames = sink {
            events.tell(frame(data.to_vec())).await?;
        }
    }
    Ok(())
}
