//! SFTP: files on the server, over a session that any number of operations share.
//!
//! | type | what it is |
//! |---|---|
//! | [`Sftp`] | a session; cheap to clone |
//! | [`File`] | an open file: at offsets, or as a stream with read-ahead and write-behind |
//! | [`Listing`] | the names in a directory or a tree, as they arrive |
//!
//! For whole files and trees, see [`crate::transfer`].

mod file;
mod link;
mod listing;
mod order;
mod plan;
mod symlink;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::session::{Session, SessionParts};
use crate::error::Error;
pub use file::File;
pub use link::WhenOver;
pub(crate) use link::{Attached, Known, Link};
use link::{Call, Streams};
pub use listing::{Entry, Listing};
pub(crate) use plan::Shared;
use trunkline_request::failure::Failure;
pub use trunkline_sftp::bridge;
use trunkline_sftp::transfer::{LeftOut, WalkOptions};
use trunkline_sftp::{Client, Config, Reply, Request};
pub use trunkline_sftp::{
    Data, Extensions, FileAttributes, FileType, Limits, Names, OpenFlags, Owner, Permissions, StatVfs,
    Status, StatusCode, Times,
};

/// An SFTP session. Clones share it; it is closed when the last clone and the last open [`File`] are dropped.
///
/// Paths are the server's bytes; relative ones start at the user's home. Any number of operations may run at once, and
/// none waits for another. Dropping an operation's future cancels it if it was not sent.
///
/// Every operation fails with
/// - [`Error::File`] if the server refuses it: with its status and the path;
/// - [`Error::FileLost`] if the session ended first: it may have happened;
/// - the connection's own error if there never was a session.
///
/// ```no_run
/// # async fn example(host: &trunkline::Host) -> Result<(), trunkline::Error> {
/// let sftp = host.sftp().await?;
/// let motd = sftp.read("/etc/motd").await?;
/// sftp.write("backup/motd", motd).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Sftp {
    link: Arc<Link>,
    reopen: Option<Reopen>,
}

/// The way to open another session after one was lost.
#[derive(Clone)]
pub(crate) struct Reopen {
    open: Arc<dyn Fn() -> Opening + Send + Sync>,
    /// The lost session's server gave several open files one handle.
    shares_handles: Arc<AtomicBool>,
}

type Opening = Pin<Box<dyn Future<Output = Result<Sftp, Failure>> + Send>>;

impl Reopen {
    pub(crate) async fn open(&self) -> Result<Sftp, Error> {
        let sftp = (self.open)().await.map_err(|failure| {
            Error::local("opening another SFTP session", std::io::Error::other(failure))
        })?;
        if self.shares_handles.load(Ordering::Relaxed) {
            sftp.link.with_client(Client::open_one_at_a_time);
        }
        Ok(sftp)
    }

    /// Returns the failure to open a session, if this error has one.
    pub(crate) fn failure(error: &Error) -> Option<&Failure> {
        match error {
            Error::Local { source, .. } => source.get_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

impl Sftp {
    /// Creates a session over two streams to an SFTP server. Errors call the server `host`. Must be called inside a
    /// tokio runtime, on which the session's one task runs.
    pub fn from_streams(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        host: impl Into<String>,
    ) -> Self {
        let link = Link::begin(
            Streams { reader, writer },
            host.into(),
            &Config::default(),
            Known::default(),
        );
        Self { link, reopen: None }
    }

    /// Sets how to replace the session if it is lost: a copy then continues on the new one. Other operations fail.
    #[must_use]
    pub fn reopened_by<Opening>(self, open: impl Fn() -> Opening + Send + Sync + 'static) -> Self
    where
        Opening: Future<Output = Result<Self, Failure>> + Send + 'static,
    {
        Self {
            reopen: Some(Reopen {
                open: Arc::new(move || Box::pin(open())),
                shares_handles: self.link.known.shares_handles.clone(),
            }),
            ..self
        }
    }

    pub(crate) fn reopen(&self) -> Option<&Reopen> {
        self.reopen.as_ref()
    }

    /// Creates a session over a channel that runs the subsystem.
    pub(crate) fn from_session(
        session: Session,
        host: impl Into<String>,
        config: &Config,
        known: Known,
    ) -> Self {
        Self {
            link: Link::begin(link::Channel::new(session), host.into(), config, known),
            reopen: None,
        }
    }

    pub(crate) fn with_witness(
        parts: SessionParts,
        over: Option<WhenOver>,
        host: impl Into<String>,
        config: &Config,
        known: Known,
    ) -> Self {
        let channel = link::Channel::with_witness(parts, over);
        Self {
            link: Link::begin(channel, host.into(), config, known),
            reopen: None,
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Returns the server's name for errors.
    pub fn host(&self) -> &str {
        self.link.host()
    }

    /// Waits until the server has sent its version. No operation needs this.
    ///
    /// # Errors
    /// The session could not be opened.
    pub async fn ready(&self) -> Result<Extensions, Error> {
        self.link.ready().await
    }

    /// Waits for the session's end, and returns the reason. No operation needs this.
    pub async fn end(&self) -> Error {
        self.link.end().await
    }

    /// Returns the server's limits, requested when the session began, or the defaults if the server has none.
    ///
    /// # Errors
    /// The session could not be opened.
    pub async fn limits(&self) -> Result<Limits, Error> {
        self.link.limits().await
    }

    // Files.

    /// Opens a file. `attributes` apply to a new file; OpenSSH uses only the permissions.
    pub async fn open(
        &self,
        path: impl AsRef<[u8]>,
        flags: OpenFlags,
        attributes: FileAttributes,
    ) -> Result<File, Error> {
        let path = bytes(path);
        let request = Request::Open {
            path: path.clone(),
            flags,
            attributes,
        };
        self.open_file(self.call("opening", &path, request).await?, path)
    }

    /// Like [`Self::open`], for a file that is closed soon: waits if the server allows no more open files.
    pub(crate) async fn open_in_turn(&self, path: impl AsRef<[u8]>, flags: OpenFlags) -> Result<File, Error> {
        let path = bytes(path);
        let request = Request::Open {
            path: path.clone(),
            flags,
            attributes: FileAttributes::default(),
        };
        self.open_file(Call::in_turn(&self.link, "opening", &path, request).await?, path)
    }

    fn open_file(&self, reply: Reply, path: Bytes) -> Result<File, Error> {
        match reply {
            Reply::Handle(handle) => Ok(File::new(self.clone(), handle, path, self.link.limits_now())),
            _ => Err(self.odd("opening", path)),
        }
    }

    /// Reads a whole file, which should fit into memory.
    pub async fn read(&self, path: impl AsRef<[u8]>) -> Result<Bytes, Error> {
        let mut file = self
            .open(path, OpenFlags::READ, FileAttributes::default())
            .await?;
        let mut pieces = file.read_rest().await?;
        Ok(match pieces.len() {
            1 => pieces.remove(0),
            _ => pieces.concat().into(),
        })
    }

    /// Reads a whole file, or returns `None` if it has more than `most` bytes, whatever size the server reported.
    pub(crate) async fn read_at_most(
        &self,
        path: impl AsRef<[u8]>,
        most: u64,
    ) -> Result<Option<Bytes>, Error> {
        let mut file = self.open_in_turn(path, OpenFlags::READ).await?;
        let mut whole = BytesMut::new();
        loop {
            let chunk = file.chunk(usize::MAX).await?;
            if whole.is_empty() && chunk.is_empty() {
                return Ok(Some(Bytes::new()));
            }
            if chunk.is_empty() {
                return Ok(Some(whole.freeze()));
            }
            if (whole.len() + chunk.len()) as u64 > most {
                return Ok(None);
            }
            whole.extend_from_slice(&chunk);
        }
    }

    /// Creates or overwrites a file with this content.
    pub async fn write(&self, path: impl AsRef<[u8]>, content: impl Into<Bytes>) -> Result<(), Error> {
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
        let file = self.open(path, flags, FileAttributes::default()).await?;
        let content = content.into();
        let length = content.len() as u64;
        file.write_at(0, content).await?;
        file.close_at(length).await
    }

    /// Removes a file or a symbolic link.
    pub async fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = bytes(path);
        self.perform("removing", &path, Request::Remove { path: path.clone() })
            .await
    }

    /// Renames, replacing the target if the server can (posix-rename@openssh.com); otherwise the target must not exist.
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        let (from, to) = (bytes(from), bytes(to));
        let path = from.clone();
        let posix = Request::PosixRename {
            from: from.clone(),
            to: to.clone(),
        };
        let request = if self.link.supports(&posix).await? {
            posix
        } else {
            Request::Rename { from, to }
        };
        self.perform("renaming", &path, request).await
    }

    /// Renames, and fails if the target exists: SFTP 3's own SSH_FXP_RENAME.
    pub async fn rename_new(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        let (from, to) = (bytes(from), bytes(to));
        let path = from.clone();
        self.perform("renaming", &path, Request::Rename { from, to })
            .await
    }

    /// Renames, atomically replacing the target (posix-rename@openssh.com); fails on a server that cannot.
    pub async fn rename_posix(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        let (from, to) = (bytes(from), bytes(to));
        let path = from.clone();
        self.perform("renaming", &path, Request::PosixRename { from, to })
            .await
    }

    /// Creates a hard link.
    pub async fn hardlink(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        let (from, to) = (bytes(from), bytes(to));
        let path = to.clone();
        self.perform("linking", &path, Request::Hardlink { from, to })
            .await
    }

    /// Creates a symbolic link to `target`, whichever argument order the server's SYMLINK has.
    pub async fn symlink(&self, target: impl AsRef<[u8]>, link: impl AsRef<[u8]>) -> Result<(), Error> {
        symlink::make(self, &bytes(target), &bytes(link)).await
    }

    /// Like [`Self::symlink`], but fails if the link's text is not `target` then.
    pub(crate) async fn symlink_exactly(&self, target: &Bytes, link: &Bytes) -> Result<(), Error> {
        symlink::make_exactly(self, target, link).await
    }

    /// Returns the target of a symbolic link as the server reports it.
    pub async fn readlink(&self, path: impl AsRef<[u8]>) -> Result<Bytes, Error> {
        let path = bytes(path);
        let request = Request::Readlink { path: path.clone() };
        self.path(symlink::READING, &path, request).await
    }

    /// Returns the text of a symbolic link itself: some servers report another.
    ///
    /// # Errors
    /// As the others; also if the link's text cannot be inferred from the server's answers.
    pub(crate) async fn link_text(&self, path: &Bytes) -> Result<Bytes, Error> {
        symlink::text(self, path).await
    }

    /// Returns whether the server is OpenSSH's own sftp-server.
    pub(crate) async fn is_sftp_server(&self) -> Result<bool, Error> {
        Ok(self.ready().await?.are_sftp_servers())
    }

    // Attributes.

    /// Returns the attributes of a path, following links.
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<FileAttributes, Error> {
        let path = bytes(path);
        self.attributes(&path, Request::Stat { path: path.clone() }).await
    }

    /// Returns the attributes of a path, without following a link.
    pub async fn lstat(&self, path: impl AsRef<[u8]>) -> Result<FileAttributes, Error> {
        let path = bytes(path);
        self.attributes(&path, Request::Lstat { path: path.clone() })
            .await
    }

    /// Sets attributes of a path, following links.
    pub async fn setstat(&self, path: impl AsRef<[u8]>, attributes: FileAttributes) -> Result<(), Error> {
        let path = bytes(path);
        let request = Request::Setstat {
            path: path.clone(),
            attributes,
        };
        self.perform("setting the attributes of", &path, request).await
    }

    /// Sets attributes of a path, without following a link (lsetstat@openssh.com).
    pub async fn lsetstat(&self, path: impl AsRef<[u8]>, attributes: FileAttributes) -> Result<(), Error> {
        let path = bytes(path);
        let request = Request::Lsetstat {
            path: path.clone(),
            attributes,
        };
        self.perform("setting the attributes of", &path, request).await
    }

    // Directories.

    /// Creates a directory.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, attributes: FileAttributes) -> Result<(), Error> {
        let path = bytes(path);
        let request = Request::Mkdir {
            path: path.clone(),
            attributes,
        };
        self.perform("making the directory", &path, request).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = bytes(path);
        self.perform(
            "removing the directory",
            &path,
            Request::Rmdir { path: path.clone() },
        )
        .await
    }

    /// Lists a directory, without `.` and `..`.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Listing {
        let mut options = WalkOptions::new(bytes(path));
        options.depth = 1;
        Listing::begin(self.clone(), options)
    }

    /// Lists a tree. Each directory precedes its content; there is no other order. Links are not followed.
    pub fn walk(&self, root: impl AsRef<[u8]>) -> Listing {
        Listing::begin(self.clone(), WalkOptions::new(bytes(root)))
    }

    /// Lists a tree without the names that `left_out` selects, which are not entered either.
    pub(crate) fn walk_without(&self, root: impl AsRef<[u8]>, left_out: LeftOut) -> Listing {
        let mut options = WalkOptions::new(bytes(root));
        options.left_out = Some(left_out);
        Listing::begin(self.clone(), options)
    }

    // Paths and file systems.

    /// Returns a path made absolute and without links.
    pub async fn realpath(&self, path: impl AsRef<[u8]>) -> Result<Bytes, Error> {
        let path = bytes(path);
        self.path("looking up", &path, Request::Realpath { path: path.clone() })
            .await
    }

    /// Like [`Self::realpath`], with `~` and `~user` expanded (expand-path@openssh.com).
    pub async fn expand_path(&self, path: impl AsRef<[u8]>) -> Result<Bytes, Error> {
        let path = bytes(path);
        self.path("looking up", &path, Request::ExpandPath { path: path.clone() })
            .await
    }

    /// Returns the state of a path's file system (statvfs@openssh.com).
    pub async fn statvfs(&self, path: impl AsRef<[u8]>) -> Result<StatVfs, Error> {
        let path = bytes(path);
        let doing = "looking at the file system of";
        match self
            .call(doing, &path, Request::Statvfs { path: path.clone() })
            .await?
        {
            Reply::StatVfs(state) => Ok(state),
            _ => Err(self.odd(doing, path)),
        }
    }

    // Users.

    /// Returns the home directory of a user of the server (home-directory).
    pub async fn home_directory(&self, user: impl AsRef<[u8]>) -> Result<Bytes, Error> {
        let user = bytes(user);
        let request = Request::HomeDirectory { user: user.clone() };
        self.path("looking up the home directory of", &user, request)
            .await
    }

    /// Returns names of users and groups by their numbers, in order; empty for unknown ones
    /// (users-groups-by-id@openssh.com).
    pub async fn users_groups(&self, uids: Vec<u32>, gids: Vec<u32>) -> Result<Names, Error> {
        let doing = "looking up users and groups";
        match self
            .call(doing, &Bytes::new(), Request::UsersGroupsById { uids, gids })
            .await?
        {
            Reply::Names(names) => Ok(names),
            _ => Err(self.odd(doing, Bytes::new())),
        }
    }

    fn call(&self, doing: &'static str, path: &Bytes, request: Request) -> Call {
        Call::new(&self.link, doing, path, request)
    }

    async fn perform(&self, doing: &'static str, path: &Bytes, request: Request) -> Result<(), Error> {
        self.call(doing, path, request).await.map(drop)
    }

    async fn path(&self, doing: &'static str, path: &Bytes, request: Request) -> Result<Bytes, Error> {
        match self.call(doing, path, request).await? {
            Reply::Path(found) => Ok(found),
            _ => Err(self.odd(doing, path.clone())),
        }
    }

    async fn attributes(&self, path: &Bytes, request: Request) -> Result<FileAttributes, Error> {
        let doing = "looking at";
        match self.call(doing, path, request).await? {
            Reply::Attributes(attributes) => Ok(attributes),
            _ => Err(self.odd(doing, path.clone())),
        }
    }

    /// Returns the error for a reply of the wrong kind, which the state machine does not let through.
    fn odd(&self, doing: &'static str, path: Bytes) -> Error {
        let status = Status {
            code: StatusCode::BAD_MESSAGE,
            message: "the answer is of another kind".into(),
        };
        self.link.status_error(doing, path, status)
    }
}

impl fmt::Debug for Sftp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sftp")
            .field("host", &self.host())
            .finish_non_exhaustive()
    }
}

fn bytes(path: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(path.as_ref())
}
