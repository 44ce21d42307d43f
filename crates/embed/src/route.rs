//! Streams of a session that pass the program by: descriptors, FIFOs, sockets and files, which the engine or the daemon reads
//! and writes itself.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use trunkline::{ChannelReader, ChannelWriter, Error};
use trunkline_control::sink::{Sink, SinkError, Target, open_input};
use trunkline_control::stdio::{Input, Output};
use trunkline_request::failure::{ErrorKind, Failure};

use crate::control::Control;

/// A command whose output cannot be written any more gets this long to notice before its session is closed.
const AFTER_BROKEN_PIPE: Duration = Duration::from_secs(2);

/// Pieces of output written at once: 512 KiB of sshd's packets, within IOV_MAX.
const PIECES: usize = 16;

/// The target or the source of one of a session's streams.
#[derive(Debug)]
pub enum Route {
    Pipe,
    Ignore,
    /// A descriptor.
    Fd(OwnedFd),
    /// A FIFO, a socket or a file that outlives sessions; output only.
    Sink(Sink),
}

impl Route {
    /// Input from a FIFO, a file or a device.
    ///
    /// # Errors
    /// It cannot be opened.
    pub async fn from_path(path: &Path) -> Result<Self, Failure> {
        Ok(Self::Fd(open_input(path).await.map_err(not_opened)?))
    }

    /// Output to a FIFO, a Unix socket or a file. Waits for nobody at the other end.
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

    /// Waits until what was written to it has been taken.
    async fn wait_until_taken(&self) {
        if let Self::Sink(sink) = self {
            sink.wait_until_taken().await;
        }
    }
}

/// Input that is not the program's.
pub enum RoutedInput {
    /// From a descriptor.
    Read(Input, ChannelWriter),
    /// There is none; the channel is held for as long as this is.
    Ended(ChannelWriter),
    /// The daemon has it.
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

    /// Gives the session its input. That no more comes ends no session.
    pub async fn carry(self) -> std::convert::Infallible {
        let _held = match self {
            Self::Read(mut input, mut writer) => {
                while let Ok(data) = input.read().await {
                    // A command that takes no more input ends the feeding, not the session.
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

/// Output that is not the program's.
pub enum Routed {
    /// To a descriptor; the route lasts as long.
    Written(Output, ChannelReader, Route),
    Nowhere(ChannelReader),
    /// The daemon has it.
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

    /// Carries all of it to where it goes, beside whoever waits for the session's end; tells whether its end was the
    /// server's word.
    ///
    /// # Errors
    /// It could not be written; the session is ended as ssh would.
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

/// Ends a session whose output cannot be written any more: as ssh, the command is told that nobody reads, and dies of
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

/// A FIFO, socket or file that cannot be opened.
fn not_opened(SinkError { doing, error }: SinkError) -> Failure {
    let doing = doing.into();
    Error::Local { doing, source: error }.into()
}
