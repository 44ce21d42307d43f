//! SFTP for JavaScript: one operation a call, whose outcome is told under the call's own number.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::sftp::{
    File, FileAttributes, OpenFlags, Owner, Permissions, Sftp, StatVfs, StatusCode, Times,
};

use crate::client::Client;
use crate::fault::Fault;
use crate::outbox::{Kind, Outbox, Payload};

/// An operation of `lib/streams/sftp.js`, where it has the same name.
#[napi(string_enum = "camelCase")]
#[derive(Debug, Clone, Copy)]
pub enum SftpOperation {
    Open,
    Close,
    Read,
    Write,
    Fstat,
    Fsetstat,
    Fsync,
    Fstatvfs,
    CopyData,
    CheckEnd,
    HomeDirectory,
    UsersGroups,
    ReadFile,
    Readdir,
    Stat,
    Lstat,
    Setstat,
    Lsetstat,
    Mkdir,
    Rmdir,
    Unlink,
    Rename,
    PosixRename,
    Hardlink,
    Symlink,
    Readlink,
    Realpath,
    ExpandPath,
    Statvfs,
    Get,
    Put,
}

/// One operation of `lib/streams/sftp.js`.
#[napi(object)]
pub struct SftpCall {
    /// The operation.
    pub op: SftpOperation,
    /// The path on the server.
    pub path: Option<String>,
    /// The second path: a new name, what a link says, a file on this machine.
    pub target: Option<String>,
    /// An open file.
    pub handle: Option<u32>,
    /// The place in the file.
    pub offset: Option<f64>,
    /// The number of bytes.
    pub length: Option<f64>,
    /// The open file that is copied into.
    pub target_handle: Option<u32>,
    /// The place in it.
    pub target_offset: Option<f64>,
    /// Users by their numbers.
    pub uids: Option<Vec<u32>>,
    /// Groups by their numbers.
    pub gids: Option<Vec<u32>>,
    /// Whether a directory's names are to have `.` and `..` among them.
    pub full: Option<bool>,
    /// SSH_FXF_ flags.
    pub flags: Option<u32>,
    /// The attributes to set.
    pub attributes: Option<SftpAttributes>,
    /// The data to write.
    pub data: Option<Uint8Array>,
}

/// Attributes to be set; what is missing stays as it is.
#[napi(object)]
#[derive(Default)]
pub struct SftpAttributes {
    /// Type and permissions.
    pub mode: Option<u32>,
    /// The owner, together with `gid`.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size in bytes.
    pub size: Option<f64>,
    /// The time of the last access in seconds since 1970, together with `mtime`.
    pub atime: Option<u32>,
    /// The time of the last change.
    pub mtime: Option<u32>,
}

/// An SFTP session, which JavaScript holds by its number.
pub(crate) struct SftpSession {
    target: u32,
    outbox: Arc<Outbox>,
    sftp: Mutex<Option<Sftp>>,
    files: Mutex<HashMap<u32, Arc<File>>>,
    next_file: AtomicU32,
    /// Those that are under way.
    calls: TaskTracker,
    /// Those that JavaScript has just made, in their order.
    made: mpsc::UnboundedSender<QueuedCall>,
    /// Ends it, and its calls.
    cancel: CancellationToken,
}

/// The interval at which the progress of a whole file is reported.
const STEP: Duration = Duration::from_millis(50);
/// A place in a file that none reaches, and that every server can be asked for: 4 PiB.
const BEHIND_ANY_END: u64 = 1 << 52;
/// One piece of a whole file, between its stream and the file on this machine.
const PIECE: usize = 256 * 1024;

/// Begins calls one after the other, so that their first requests leave in this order: who does not wait for one operation
/// before the next counts on it, and a file that is appended to has what came first first. What one request answers is told in
/// the order of the server's answers, as in ssh2, where a program may put together what its callbacks get. Hence one task for
/// all of these; what moves whole files has its own.
async fn carry_in_order(mut calls: mpsc::UnboundedReceiver<QueuedCall>) {
    let mut waiting = FuturesUnordered::new();
    loop {
        tokio::select! {
            made = calls.recv() => match made {
                None => break,
                // It begins, as it continues, in the set: polled elsewhere it could miss its turn.
                Some(QueuedCall { mut work, is_whole_file }) => waiting.push(async move {
                    if !is_whole_file {
                        work.await;
                    } else if futures_util::poll!(&mut work).is_pending() {
                        tokio::spawn(work);
                    }
                }),
            },
            Some(()) = waiting.next() => {}
        }
    }
    while waiting.next().await.is_some() {}
}

/// A call whose turn to begin has not come.
struct QueuedCall {
    work: BoxFuture<'static, ()>,
    is_whole_file: bool,
}

/// The result of an operation.
enum Outcome {
    Value(Value),
    Bytes(Bytes),
}

impl SftpSession {
    pub(crate) fn new(runtime: &Runtime, target: u32, outbox: &Arc<Outbox>) -> Arc<Self> {
        let (made, calls) = mpsc::unbounded_channel();
        runtime.spawn(carry_in_order(calls));
        Arc::new(Self {
            made,
            target,
            outbox: outbox.clone(),
            sftp: Mutex::default(),
            files: Mutex::default(),
            next_file: AtomicU32::new(0),
            calls: TaskTracker::new(),
            cancel: CancellationToken::new(),
        })
    }

    /// Opens the session, and stays until it is closed or its client ends. `false` if it could not be opened, which is
    /// told already.
    pub(crate) async fn live(self: Arc<Self>, client: Arc<Client>, env: Vec<(String, Vec<u8>)>) -> bool {
        let opening = async {
            let sftp = client.way().await?.sftp_with(env).await?;
            let extensions = sftp.ready().await?;
            Ok::<_, Fault>((sftp, extensions))
        };
        let opened = tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            opened = opening => Some(opened),
            fault = client.cuts_off() => Some(Err(fault)),
        };
        match opened {
            None => {}
            Some(Err(fault)) => {
                self.outbox.tell(self.target, Kind::Fail, fault.to_json());
                return false;
            }
            Some(Ok((sftp, extensions))) => {
                *self.sftp.lock().unwrap_or_else(PoisonError::into_inner) = Some(sftp.clone());
                let announced: Value = extensions
                    .iter()
                    .map(|pair| json!([String::from_utf8_lossy(pair.0), String::from_utf8_lossy(pair.1)]))
                    .collect();
                self.outbox.tell(self.target, Kind::Open, announced);
                let open = client.opened_sftp();
                tokio::select! {
                    () = self.cancel.cancelled() => {}
                    () = client.wait_for_end() => {}
                    // The server's own program has ended, while the connection goes on.
                    _ = sftp.end() => {}
                }
                drop((sftp, open));
                // What the server has answered is told before the end, and who has no answer hears why.
                self.calls.close();
                tokio::select! {
                    () = self.calls.wait() => {}
                    () = self.cancel.cancelled() => {}
                    _ = client.cuts_off() => {}
                }
            }
        }
        self.cancel.cancel();
        self.calls.close();
        self.calls.wait().await;
        self.files().clear();
        *self.sftp.lock().unwrap_or_else(PoisonError::into_inner) = None;
        true
    }

    /// Closes it with everything that is open in it.
    pub(crate) fn close(&self) {
        self.cancel.cancel();
    }

    /// Does what is asked, and tells of it under `request`. The server is asked in the order of these calls.
    pub(crate) fn call(self: Arc<Self>, request: u32, call: SftpCall) {
        let (made, calls) = (self.made.clone(), self.calls.clone());
        let is_whole_file = matches!(
            call.op,
            SftpOperation::Get | SftpOperation::Put | SftpOperation::ReadFile
        );
        let work = calls.track_future(self.carry_out(request, call)).boxed();
        // Without a reader the runtime has ended, and nobody waits.
        let _ = made.send(QueuedCall { work, is_whole_file });
    }

    async fn carry_out(self: Arc<Self>, request: u32, call: SftpCall) {
        let answer = self.cancel.run_until_cancelled(self.answer(request, call)).await;
        let (kind, told) = match answer {
            Some(Ok(Outcome::Value(value))) => (Kind::Open, Payload::Value(value)),
            Some(Ok(Outcome::Bytes(bytes))) => (Kind::Open, Payload::Bytes(Vec::from(bytes).into())),
            Some(Err(fault)) => (Kind::Fail, Payload::Value(fault.to_json())),
            None => {
                let closed = Fault::usage("No response from server");
                (Kind::Fail, Payload::Value(closed.to_json()))
            }
        };
        self.outbox.tell(request, kind, told);
    }

    async fn answer(&self, request: u32, call: SftpCall) -> Result<Outcome, Fault> {
        let sftp = self.session()?;
        let path = || {
            call.path
                .as_deref()
                .ok_or_else(|| Fault::usage("a path is missing"))
        };
        let target = || {
            call.target
                .as_deref()
                .ok_or_else(|| Fault::usage("a second path is missing"))
        };
        let attributes = || attributes(call.attributes.as_ref());
        let value = match call.op {
            SftpOperation::Open => {
                let flags = OpenFlags(call.flags.unwrap_or_default());
                let file = sftp.open(path()?, flags, attributes()).await?;
                let number = self.next_file.fetch_add(1, Ordering::Relaxed);
                self.files().insert(number, Arc::new(file));
                number.into()
            }
            SftpOperation::Close => {
                let file = call.handle.and_then(|handle| self.files().remove(&handle));
                let file = file.ok_or_else(|| not_open(StatusCode::NO_SUCH_FILE))?;
                // Where reads are still under way, the last of them closes it.
                if let Some(file) = Arc::into_inner(file) {
                    file.close().await?;
                }
                Value::Null
            }
            SftpOperation::Read
            | SftpOperation::Write
            | SftpOperation::Fstat
            | SftpOperation::Fsetstat
            | SftpOperation::Fsync
            | SftpOperation::Fstatvfs
            | SftpOperation::CopyData
            | SftpOperation::CheckEnd => return self.of_file(&call).await,
            SftpOperation::HomeDirectory => text(&sftp.home_directory(path()?).await?),
            SftpOperation::UsersGroups => {
                let (uids, gids) = (call.uids.unwrap_or_default(), call.gids.unwrap_or_default());
                let names = sftp.users_groups(uids, gids).await?;
                json!({ "users": names.users, "groups": names.groups })
            }
            SftpOperation::ReadFile => return Ok(Outcome::Bytes(sftp.read(path()?).await?)),
            SftpOperation::Readdir => list(&sftp, path()?, call.full == Some(true)).await?,
            SftpOperation::Stat => attributes_json(&sftp.stat(path()?).await?),
            SftpOperation::Lstat => attributes_json(&sftp.lstat(path()?).await?),
            SftpOperation::Setstat => {
                sftp.setstat(path()?, attributes()).await?;
                Value::Null
            }
            SftpOperation::Lsetstat => {
                sftp.lsetstat(path()?, attributes()).await?;
                Value::Null
            }
            SftpOperation::Mkdir => {
                sftp.mkdir(path()?, attributes()).await?;
                Value::Null
            }
            SftpOperation::Rmdir => {
                sftp.rmdir(path()?).await?;
                Value::Null
            }
            SftpOperation::Unlink => {
                sftp.remove(path()?).await?;
                Value::Null
            }
            SftpOperation::Rename => {
                sftp.rename_new(path()?, target()?).await?;
                Value::Null
            }
            SftpOperation::PosixRename => {
                sftp.rename_posix(path()?, target()?).await?;
                Value::Null
            }
            SftpOperation::Hardlink => {
                sftp.hardlink(path()?, target()?).await?;
                Value::Null
            }
            SftpOperation::Symlink => {
                sftp.symlink(target()?, path()?).await?;
                Value::Null
            }
            SftpOperation::Readlink => text(&sftp.readlink(path()?).await?),
            SftpOperation::Realpath => text(&sftp.realpath(path()?).await?),
            SftpOperation::ExpandPath => text(&sftp.expand_path(path()?).await?),
            SftpOperation::Statvfs => volume(&sftp.statvfs(path()?).await?),
            SftpOperation::Get => self.get(request, &sftp, path()?, target()?, attributes()).await?,
            SftpOperation::Put => self.put(request, &sftp, path()?, target()?, attributes()).await?,
        };
        Ok(Outcome::Value(value))
    }

    /// Runs an operation on an open file.
    async fn of_file(&self, call: &SftpCall) -> Result<Outcome, Fault> {
        let offset = call.offset.unwrap_or_default() as u64;
        let length = call.length.unwrap_or_default() as u64;
        let value = match call.op {
            SftpOperation::Read => {
                let length = length as usize;
                let file = self.file(call.handle)?;
                return Ok(Outcome::Bytes(file.read_at(offset, length).await?));
            }
            SftpOperation::Write => {
                let data = call.data.as_deref().unwrap_or_default();
                let file = self.file(call.handle)?;
                file.write_at(offset, Bytes::copy_from_slice(data)).await?;
                Value::Null
            }
            SftpOperation::Fstat => attributes_json(&self.file(call.handle)?.stat().await?),
            SftpOperation::CheckEnd => {
                self.file(call.handle)?.check_end(offset, length).await?;
                Value::Null
            }
            SftpOperation::Fsetstat => {
                self.file(call.handle)?
                    .setstat(attributes(call.attributes.as_ref()))
                    .await?;
                Value::Null
            }
            SftpOperation::Fsync => {
                let file = self.file(call.handle);
                let file = file.map_err(|_| not_open(StatusCode::NO_SUCH_FILE))?;
                file.sync().await?;
                Value::Null
            }
            SftpOperation::Fstatvfs => volume(&self.file(call.handle)?.statvfs().await?),
            SftpOperation::CopyData => {
                let (from, to) = (self.file(call.handle)?, self.file(call.target_handle)?);
                let to_offset = call.target_offset.unwrap_or_default() as u64;
                from.copy_data(offset, length, &to, to_offset).await?;
                Value::Null
            }
            _ => return Err(Fault::usage("this is not done with an open file")),
        };
        Ok(Outcome::Value(value))
    }

    /// A whole file of the server, into one of this machine.
    async fn get(
        &self,
        request: u32,
        sftp: &Sftp,
        remote: &str,
        local: &str,
        attributes: FileAttributes,
    ) -> Result<Value, Fault> {
        let mut from = sftp
            .open(remote, OpenFlags::READ, FileAttributes::default())
            .await?;
        let total = from.stat().await?.size.unwrap_or_default();
        let local = PathBuf::from(local);
        let cannot = |error: std::io::Error| Fault::file("writing", &local, &error);
        let mut options = tokio::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mode = attributes.permissions.map(|mode| mode.0);
        if let Some(mode) = mode {
            options.mode(mode);
        }
        let mut to = options.open(&local).await.map_err(cannot)?;
        // The umask has had its say on a file that was made, and one that was there has the mode that it had.
        if let Some(mode) = mode {
            let permissions = std::fs::Permissions::from_mode(mode);
            to.set_permissions(permissions).await.map_err(cannot)?;
        }
        let mut piece = vec![0; PIECE];
        let mut progress = Progress::new(total);
        loop {
            let mut len = from.read(&mut piece).await.map_err(Fault::of_stream)?;
            // A file that grows while it is read ends where it did when it was opened; one without a size (/proc) where it
            // ends.
            if total > 0 {
                len = len.min(usize::try_from(total - progress.done).unwrap_or(len));
            }
            if len == 0 || (total == 0 && progress.done == 0 && is_endless(&from).await) {
                break;
            }
            to.write_all(&piece[..len]).await.map_err(cannot)?;
            progress.note_made(len, |step| self.outbox.tell(request, Kind::Data, step));
        }
        to.flush().await.map_err(cannot)?;
        progress.note_end(|step| self.outbox.tell(request, Kind::Data, step));
        from.close().await?;
        Ok(Value::Null)
    }

    /// A whole file of this machine, into one of the server's.
    async fn put(
        &self,
        request: u32,
        sftp: &Sftp,
        remote: &str,
        local: &str,
        attributes: FileAttributes,
    ) -> Result<Value, Fault> {
        let local = PathBuf::from(local);
        let cannot = |error: std::io::Error| Fault::file("reading", &local, &error);
        let mut from = tokio::fs::File::open(&local).await.map_err(cannot)?;
        let total = from.metadata().await.map_err(cannot)?.len();
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
        let mode = attributes.clone();
        let mut to = sftp.open(remote, flags, attributes).await?;
        let mut piece = vec![0; PIECE];
        let mut progress = Progress::new(total);
        loop {
            let len = from.read(&mut piece).await.map_err(cannot)?;
            if len == 0 {
                break;
            }
            to.write_all(&piece[..len]).await.map_err(Fault::of_stream)?;
            progress.note_made(len, |step| self.outbox.tell(request, Kind::Data, step));
        }
        to.flush().await.map_err(Fault::of_stream)?;
        // The server's umask has had its say on a file that was made; what was asked for is asked for.
        // As with ssh2, one that the server refuses costs nothing: the file is there.
        if !mode.is_empty() && to.setstat(mode.clone()).await.is_err() {
            let _ = sftp.setstat(remote, mode).await;
        }
        to.close_at(progress.done).await?;
        progress.note_end(|step| self.outbox.tell(request, Kind::Data, step));
        Ok(Value::Null)
    }

    fn session(&self) -> Result<Sftp, Fault> {
        let sftp = self.sftp.lock().unwrap_or_else(PoisonError::into_inner);
        sftp.clone()
            .ok_or_else(|| Fault::usage("the SFTP session is closed"))
    }

    fn file(&self, handle: Option<u32>) -> Result<Arc<File>, Fault> {
        handle
            .and_then(|handle| self.files().get(&handle).cloned())
            .ok_or_else(|| not_open(StatusCode::FAILURE))
    }

    /// Guards the open files, for as long as a look-up takes.
    fn files(&self) -> MutexGuard<'_, HashMap<u32, Arc<File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a file has data where none ends: a device, or a server that fills up whatever is read.
async fn is_endless(file: &File) -> bool {
    file.read_at(BEHIND_ANY_END, 1)
        .await
        .is_ok_and(|data| !data.is_empty())
}

/// The progress of a whole file, reported now and then.
struct Progress {
    total: u64,
    done: u64,
    told: u64,
    at: Instant,
}

impl Progress {
    fn new(total: u64) -> Self {
        Self {
            total,
            done: 0,
            told: 0,
            at: Instant::now(),
        }
    }

    fn note_made(&mut self, len: usize, tell: impl FnOnce(Payload)) {
        self.done += len as u64;
        if self.at.elapsed() >= STEP {
            self.tell(tell);
        }
    }

    fn note_end(&mut self, tell: impl FnOnce(Payload)) {
        if self.done > self.told {
            self.tell(tell);
        }
    }

    fn tell(&mut self, tell: impl FnOnce(Payload)) {
        let chunk = self.done - self.told;
        self.told = self.done;
        self.at = Instant::now();
        tell(Payload::Value(
            json!({ "done": self.done, "chunk": chunk, "total": self.total }),
        ));
    }
}

/// A handle that names no open file, in our words: it is not asked of the server, which has handles of its own. sftp-server
/// says SSH_FX_NO_SUCH_FILE (of EBADF) where it would close or sync one, and SSH_FX_FAILURE elsewhere.
fn not_open(status: StatusCode) -> Fault {
    Fault::of_file(status, "the file is not open")
}

/// A file system's state under the names of statvfs(3).
fn volume(state: &StatVfs) -> Value {
    json!({
        "f_bsize": state.block_size,
        "f_frsize": state.fragment_size,
        "f_blocks": state.blocks,
        "f_bfree": state.blocks_free,
        "f_bavail": state.blocks_available,
        "f_files": state.files,
        "f_ffree": state.files_free,
        "f_favail": state.files_available,
        "f_sid": state.id,
        "f_flag": state.flags,
        "f_namemax": state.name_max,
    })
}

fn text(path: &Bytes) -> Value {
    String::from_utf8_lossy(path).into_owned().into()
}

/// The names in a directory with their attributes; with "." and ".." if `full`.
async fn list(sftp: &Sftp, directory: &str, full: bool) -> Result<Value, Fault> {
    let mut listing = sftp.read_dir(directory);
    let mut names = Vec::new();
    while let Some(entry) = listing.next().await {
        let entry = entry?;
        let name = String::from_utf8_lossy(&entry.path).into_owned();
        let longname = text(&entry.longname);
        names.push(
            json!({ "filename": name, "longname": longname, "attrs": attributes_json(&entry.attributes) }),
        );
    }
    for name in [".", ".."].iter().filter(|_| full) {
        let attributes = sftp.lstat(format!("{directory}/{name}")).await?;
        names.push(json!({ "filename": name, "attrs": attributes_json(&attributes) }));
    }
    Ok(names.into())
}

/// Attributes as `Stats` in `lib/sftp.js` takes them.
fn attributes_json(attributes: &FileAttributes) -> Value {
    json!({
        "mode": attributes.permissions.map(|mode| mode.0),
        "uid": attributes.owner.map(|owner| owner.uid),
        "gid": attributes.owner.map(|owner| owner.gid),
        "size": attributes.size,
        "atime": attributes.times.map(|times| times.accessed),
        "mtime": attributes.times.map(|times| times.modified),
    })
}

/// Attributes as the protocol takes them: owner and group, and the two times, only together.
fn attributes(given: Option<&SftpAttributes>) -> FileAttributes {
    let Some(given) = given else {
        return FileAttributes::default();
    };
    FileAttributes {
        size: given.size.map(|size| size as u64),
        owner: given.uid.zip(given.gid).map(|(uid, gid)| Owner { uid, gid }),
        permissions: given.mode.map(Permissions),
        times: given
            .atime
            .zip(given.mtime)
            .map(|(accessed, modified)| Times { accessed, modified }),
        ..FileAttributes::default()
    }
}
