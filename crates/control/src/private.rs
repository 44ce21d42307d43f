//! A private daemon, `trunklined --private`, for a command that shares nothing (`--no-daemon`), or that runs in other
//! namespaces than the user's daemon.
//!
//! Its standard input is a socket, the *line*, on which the program passes it the far end of each connection. It has no
//! place in the file system where others could connect. It ends with the line, so it is never left behind, however the
//! program ends. It stays in the program's process group and session, so that programs it runs (ProxyCommand) have the
//! program's terminal.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::client::{Client, ClientError};
use crate::program;
use crate::socket::{FrameError, FrameReader, decode, encode, send_blocking, split};

/// A private daemon. Dropping it waits until its servers have been told, for at most two seconds.
#[derive(Debug)]
pub struct Private {
    program: PathBuf,
    child: Child,
    /// Locked until a connection is welcomed, which bounds the pending ones.
    line: tokio::sync::Mutex<UnixStream>,
}

impl Private {
    /// Starts a private daemon, which logs to `log`.
    ///
    /// # Errors
    /// The program is missing, or cannot be run.
    pub fn start(log: Stdio) -> Result<Self, ClientError> {
        let program = program::find()?;
        let failed = |error: io::Error| ClientError::Private {
            program: program.clone(),
            why: error.to_string(),
        };
        let (line, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(&program);
        command
            .arg("--private")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().map_err(failed)?;
        Ok(Self {
            child,
            line: tokio::sync::Mutex::new(line),
            program,
        })
    }

    /// Connects to it. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// It did not start, or has another version.
    pub async fn connect(&self) -> Result<Client, ClientError> {
        let line = self.line.lock().await;
        let (ours, theirs) = tokio::net::UnixStream::pair().map_err(FrameError::from)?;
        let given = send_blocking(&*line, &encode(&Connection {})?, &[theirs.as_fd()]);
        drop(theirs);
        let greeted = match given {
            Ok(()) => Client::of_private(ours, &self.program).await,
            Err(_) => Err(ClientError::Gone),
        };
        match greeted {
            Err(ClientError::Gone) => Err(ClientError::Private {
                program: self.program.clone(),
                why: last_words(&line).unwrap_or_else(|| "it ended at once".into()),
            }),
            greeted => greeted,
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = self.line.get_mut().shutdown(Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// Returns the daemon's last message, if it could not continue.
fn last_words(line: &UnixStream) -> Option<String> {
    // The daemon is of no more use, and must end if it has not.
    line.shutdown(Shutdown::Write).ok()?;
    let mut said = Vec::new();
    // If the daemon left without reading everything, the error follows its last message.
    let _ = (&*line).read_to_end(&mut said);
    Some(decode::<String>(&said).ok()??.0)
}

/// The message on the line; it brings the far end of a connection.
#[derive(serde::Serialize, serde::Deserialize)]
struct Connection {}

/// The private daemon's end of the line.
#[derive(Debug)]
pub struct Line(UnixStream);

impl Line {
    /// Takes the line from standard input, and leaves nothing there for a child to inherit.
    ///
    /// # Errors
    /// Standard input is not a socket.
    pub fn of_this_process() -> io::Result<Self> {
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        line.peer_addr()?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(Self(line))
    }

    /// Reports why the daemon cannot continue.
    pub fn fail(&self, why: &str) {
        // The program may have left.
        if let Ok(words) = encode(&why) {
            let _ = (&self.0).write_all(&words);
        }
    }

    /// Returns the connections on the line. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn connections(self) -> io::Result<Connections> {
        self.0.set_nonblocking(true)?;
        let (reader, _) = split(tokio::net::UnixStream::from_std(self.0)?);
        Ok(Connections(reader))
    }
}

/// The connections on a line.
#[derive(Debug)]
pub struct Connections(FrameReader);

impl Connections {
    /// Waits for the next connection; `None` when the program has ended.
    pub async fn next(&mut self) -> Option<tokio::net::UnixStream> {
        let Ok(Some(Connection {})) = self.0.next().await else {
            return None;
        };
        let connection = UnixStream::from(self.0.take_fds().pop()?);
        connection.set_nonblocking(true).ok()?;
        tokio::net::UnixStream::from_std(connection).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::protocol::{Reply, Request, VERSION};

    #[tokio::test]
    async fn a_program_of_another_version_is_named() {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let other = async {
            let (mut reader, writer) = split(theirs);
            let hello = reader.next::<Request>().await.unwrap();
            assert!(matches!(hello, Some(Request::Hello { .. })));
            let welcome = Reply::Welcome {
                protocol: VERSION + 1,
                program: "0.0.1".into(),
                pid: 1,
                vantage: None,
            };
            writer.send(&welcome).await.unwrap();
        };
        let (refused, ()) = tokio::join!(Client::of_private(ours, Path::new("/x/trunklined")), other);
        let said = refused.unwrap_err().to_string();
        assert!(said.starts_with("/x/trunklined speaks protocol"), "{said}");
    }

    #[tokio::test]
    async fn a_line_hands_over_connections_until_it_ends() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut connections = Line(theirs).connections().unwrap();
        for _ in 0..2 {
            let (near, far) = UnixStream::pair().unwrap();
            send_blocking(&ours, &encode(&Connection {}).unwrap(), &[far.as_fd()]).unwrap();
            drop(far);
            let taken = connections.next().await.unwrap();
            drop(near);
            taken.readable().await.unwrap();
        }
        drop(ours);
        assert!(connections.next().await.is_none());
    }

    #[test]
    fn the_last_words_of_a_daemon_reach_its_program() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        Line(theirs).fail("no");
        assert_eq!(last_words(&ours).as_deref(), Some("no"));
        assert_eq!(last_words(&ours), None);
    }
}
