//! Streams of a session that bypass the program: descriptors, FIFOs, sockets and files, which the engine or the daemon
//! reads and writes itself.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use trunkline::{ChannelReader, ChannelWriter, Error};
use trunkline_control::sink::{Sink, SinkError, Target, open_input};
use trunkline_control::stdio::{Input, Output};
use trunkline_request::failure::{ErrorKind, Failure};

use crate::control::Control;

/// The time that a command has to notice that its output cannot be written before its session is closed.
const AFTER_BROKEN_PIPE: Duration = Duration::from_secs(2);

/// The most pieces written at once: 512 KiB of sshd's packets, within IOV_MAX.
const PIECES: usize = 16;

/// The target or the source of one of a session's streams.
#[derive(Debug)]
pub enum Route {
    Pipe,
    Ignore,
    Fd(OwnedFd),
    /// A FIFO, a socket or a file that outlives sessions; output only.
    Sink(Sink),
}

impl Route {
    /// Returns input from a FIFO, a file or a device.
    ///
    /// # Errors
    /// It cannot be opened.
    pub async fn from_path(path: &Path) -> Result<Self, Failure> {
        Ok(Self::Fd(open_input(path).await.map_err(not_opened)?))
    }

    /// Returns output to a FIFO, a Unix socket or a file. Does not wait for the other end.
    ///
    /// # Errors
    /// It cannot be opened.
    pub async fn to_target(target: &Target) -> Result<Self, Failure> {
        Ok(Self::Sink(Sink::open(target, None).await.map_err(not_opened)?))
    }

    /// Returns the descriptor that is passed to the daemon.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Fd(fd) => Some(fd.as_fd()),
            Self::Sink(sink) => Some(sink.descriptor()),
            Self::Pipe | Self::Ignore => None,
        }
    }

    /// Waits until readers have taken the output.
    async fn wait_until_taken(&self) {
        if let Self::Sink(sink) = self {
            sink.wait_until_taken().await;
        }
    }
}

/// Input from elsewhere than the program.
pub enum RoutedInput {
    /// From a descriptor.
    Read(Input, ChannelWriter),
    /// No input; keeps the channel open.
    Ended(ChannelWriter),
    /// The daemon reads it.
    Elsewhere,
}

impl RoutedInput {
    pub(crate) fn of_engine(route: Route, mut writer: ChannelWriter) -> Result<Self, Failure> {
        Ok(match route {
            Route::Fd(fd) => Self::Read(Input::new(fd).map_err(|error| unusable(&error))?, writer),
            Route::Pipe | Route::Ignore | Route::Sink(_) => {
                writer.finish();
                Self::Ended(writer)
            }
        })
    }

    /// Gives the session its input, then waits forever: the end of input does not end the session.
    pub async fn carry(self) -> std::convert::Infallible {
        let _held = match self {
            Self::Read(mut input, mut writer) => {
                while let Ok(data) = input.read().await {
                    // A command that takes no more input ends this loop, not the session.
                    if data.is_empty() || writer.send(data).await.is_err() {
                        break;
                    }
                }
                writer.finish();
                Some(writer)
            }
            Self::Ended(writer) => Some(writer),
            Self::Elsewhere => None,
        };
        std::future::pending().await
    }
}

/// Output to elsewhere than the program.
pub enum Routed {
    /// To a descriptor; the route stays open meanwhile.
    Written(Output, ChannelReader, Route),
    Nowhere(ChannelReader),
    /// The daemon writes it.
    Elsewhere(Route),
}

impl Routed {
    pub(crate) fn of_engine(route: Route, reader: ChannelReader) -> Result<Self, Failure> {
        Ok(match route {
            Route::Fd(fd) => Self::Written(
                Output::new(fd).map_err(|error| unusable(&error))?,
                reader,
                Route::Ignore,
            ),
            Route::Sink(sink) => Self::Written(
                sink.output().map_err(|error| unusable(&error))?,
                reader,
                Route::Sink(sink),
            ),
            Route::Pipe | Route::Ignore => Self::Nowhere(reader),
        })
    }

    /// Writes all output to its target, concurrently with waiting for the session's end. Returns true if the server has
    /// ended it.
    ///
    /// # Errors
    /// It could not be written; the session is ended as ssh would do.
    pub async fn carry(self, control: &Control) -> Result<bool, Failure> {
        match self {
            Self::Written(mut output, mut reader, route) => {
                let mut pieces = Vec::new();
                while reader.chunks(&mut pieces, PIECES).await > 0 {
                    pieces = match output.write_all(pieces).await {
                        Ok(pieces) => pieces,
                        Err(error) => {
                            hang_up(control).await;
                            return Err(Error::local("writing the command's output", error).into());
                        }
                    };
                }
                route.wait_until_taken().await;
                Ok(reader.is_complete())
            }
            Self::Nowhere(mut reader) => {
                while reader.chunk().await.is_some() {}
                Ok(reader.is_complete())
            }
            Self::Elsewhere(route) => {
                let complete = control.output_ended().await;
                route.wait_until_taken().await;
                Ok(complete)
            }
        }
    }
}

/// Ends a session whose output cannot be written, as ssh does: the command is told that no one reads, and dies of
/// SIGPIPE at its next write. The daemon does so itself.
async fn hang_up(control: &Control) {
    control.end_of_write();
    let over = control.output_ended();
    if tokio::time::timeout(AFTER_BROKEN_PIPE, over).await.is_err() {
        control.close();
    }
}

fn unusable(error: &std::io::Error) -> Failure {
    Failure::new(
        ErrorKind::Configuration,
        format!("a descriptor cannot be used: {error}"),
    )
}

/// Converts the error of a FIFO, socket or file that cannot be opened.
fn not_opened(SinkError { doing, error }: SinkError) -> Failure {
    let doing = doing.into();
    Error::Local { doing, source: error }.into()
}
