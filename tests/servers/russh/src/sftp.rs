//! Real files behind russh-sftp's `Handler`, in the way of its documentation: a map of handles, each request awaited.

use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, ErrorKind, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use russh_sftp::protocol::{
    Attrs, Data, File as Entry, FileAttributes, Handle, Name, OpenFlags, Status, StatusCode, Version,
};
use russh_sftp::server::Handler;
use tokio::fs;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

/// What one session has open.
#[derive(Default)]
pub struct Files {
    next: u64,
    files: HashMap<String, fs::File>,
    directories: HashMap<String, fs::ReadDir>,
}

impl Files {
    fn handle(&mut self) -> String {
        self.next += 1;
        self.next.to_string()
    }

    fn file(&mut self, handle: &str) -> Result<&mut fs::File, StatusCode> {
        self.files.get_mut(handle).ok_or(StatusCode::Failure)
    }
}

/// The names in one answer to READDIR.
const NAMES: usize = 100;

impl Handler for Files {
    type Error = StatusCode;

    fn unimplemented(&self) -> StatusCode {
        StatusCode::OpUnsupported
    }

    async fn init(&mut self, _: u32, _: HashMap<String, String>) -> Result<Version, StatusCode> {
        Ok(Version::new())
    }

    async fn open(
        &mut self,
        id: u32,
        filename: String,
        pflags: OpenFlags,
        attrs: FileAttributes,
    ) -> Result<Handle, StatusCode> {
        let options = fs::OpenOptions::from(OpenOptions::from(pflags));
        let is_new = pflags.contains(OpenFlags::CREATE) && !exists(&filename).await;
        let file = options.open(&filename).await.map_err(status)?;
        if let (true, Some(mode)) = (is_new, attrs.permissions) {
            file.set_permissions(Permissions::from_mode(mode & 0o7777))
                .await
                .map_err(status)?;
        }
        let handle = self.handle();
        self.files.insert(handle.clone(), file);
        Ok(Handle { id, handle })
    }

    async fn close(&mut self, id: u32, handle: String) -> Result<Status, StatusCode> {
        if let Some(mut file) = self.files.remove(&handle) {
            file.flush().await.map_err(status)?;
        } else {
            drop(self.directories.remove(&handle).ok_or(StatusCode::Failure)?);
        }
        Ok(ok(id))
    }

    async fn read(&mut self, id: u32, handle: String, offset: u64, len: u32) -> Result<Data, StatusCode> {
        let file = self.file(&handle)?;
        file.seek(SeekFrom::Start(offset)).await.map_err(status)?;
        let mut data = Vec::new();
        file.take(len.into())
            .read_to_end(&mut data)
            .await
            .map_err(status)?;
        match data.is_empty() {
            true => Err(StatusCode::Eof),
            false => Ok(Data { id, data }),
        }
    }

    async fn write(
        &mut self,
        id: u32,
        handle: String,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Status, StatusCode> {
        let file = self.file(&handle)?;
        file.seek(SeekFrom::Start(offset)).await.map_err(status)?;
        file.write_all(&data).await.map_err(status)?;
        file.flush().await.map_err(status)?;
        Ok(ok(id))
    }

    async fn lstat(&mut self, id: u32, path: String) -> Result<Attrs, StatusCode> {
        let metadata = fs::symlink_metadata(path).await.map_err(status)?;
        Ok(Attrs {
            id,
            attrs: (&metadata).into(),
        })
    }

    async fn stat(&mut self, id: u32, path: String) -> Result<Attrs, StatusCode> {
        let metadata = fs::metadata(path).await.map_err(status)?;
        Ok(Attrs {
            id,
            attrs: (&metadata).into(),
        })
    }

    async fn fstat(&mut self, id: u32, handle: String) -> Result<Attrs, StatusCode> {
        let metadata = self.file(&handle)?.metadata().await.map_err(status)?;
        Ok(Attrs {
            id,
            attrs: (&metadata).into(),
        })
    }

    async fn setstat(&mut self, id: u32, path: String, attrs: FileAttributes) -> Result<Status, StatusCode> {
        // A directory can be opened for reading only, which is enough for times and permissions.
        let writable = attrs.size.is_some();
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(path)
            .map_err(status)?;
        apply(&file, &attrs).map_err(status)?;
        Ok(ok(id))
    }

    async fn fsetstat(
        &mut self,
        id: u32,
        handle: String,
        attrs: FileAttributes,
    ) -> Result<Status, StatusCode> {
        let file = self
            .file(&handle)?
            .try_clone()
            .await
            .map_err(status)?
            .into_std()
            .await;
        apply(&file, &attrs).map_err(status)?;
        Ok(ok(id))
    }

    async fn opendir(&mut self, id: u32, path: String) -> Result<Handle, StatusCode> {
        let directory = fs::read_dir(path).await.map_err(status)?;
        let handle = self.handle();
        self.directories.insert(handle.clone(), directory);
        Ok(Handle { id, handle })
    }

    async fn readdir(&mut self, id: u32, handle: String) -> Result<Name, StatusCode> {
        let directory = self.directories.get_mut(&handle).ok_or(StatusCode::Failure)?;
        let mut files = Vec::new();
        while files.len() < NAMES {
            let Some(entry) = directory.next_entry().await.map_err(status)? else {
                break;
            };
            let metadata = entry.metadata().await.map_err(status)?;
            files.push(Entry::new(
                entry.file_name().to_string_lossy(),
                (&metadata).into(),
            ));
        }
        match files.is_empty() {
            true => Err(StatusCode::Eof),
            false => Ok(Name { id, files }),
        }
    }

    async fn remove(&mut self, id: u32, filename: String) -> Result<Status, StatusCode> {
        fs::remove_file(filename).await.map_err(status)?;
        Ok(ok(id))
    }

    async fn mkdir(&mut self, id: u32, path: String, attrs: FileAttributes) -> Result<Status, StatusCode> {
        fs::create_dir(&path).await.map_err(status)?;
        if let Some(mode) = attrs.permissions {
            let permissions = Permissions::from_mode(mode & 0o7777);
            fs::set_permissions(path, permissions).await.map_err(status)?;
        }
        Ok(ok(id))
    }

    async fn rmdir(&mut self, id: u32, path: String) -> Result<Status, StatusCode> {
        fs::remove_dir(path).await.map_err(status)?;
        Ok(ok(id))
    }

    async fn realpath(&mut self, id: u32, path: String) -> Result<Name, StatusCode> {
        let path = std::path::absolute(Path::new(&path)).map_err(status)?;
        let path = fs::canonicalize(&path).await.unwrap_or(path);
        Ok(Name {
            id,
            files: vec![Entry::dummy(path.to_string_lossy())],
        })
    }

    async fn rename(&mut self, id: u32, oldpath: String, newpath: String) -> Result<Status, StatusCode> {
        // SFTP 3 does not overwrite (draft-ietf-secsh-filexfer-02, 6.5).
        if exists(&newpath).await {
            return Err(StatusCode::Failure);
        }
        fs::rename(oldpath, newpath).await.map_err(status)?;
        Ok(ok(id))
    }

    async fn readlink(&mut self, id: u32, path: String) -> Result<Name, StatusCode> {
        let target = fs::read_link(path).await.map_err(status)?;
        Ok(Name {
            id,
            files: vec![Entry::dummy(target.to_string_lossy())],
        })
    }

    async fn symlink(&mut self, id: u32, linkpath: String, targetpath: String) -> Result<Status, StatusCode> {
        fs::symlink(targetpath, linkpath).await.map_err(status)?;
        Ok(ok(id))
    }
}

async fn exists(path: &str) -> bool {
    fs::symlink_metadata(path).await.is_ok()
}

fn apply(file: &std::fs::File, attrs: &FileAttributes) -> io::Result<()> {
    if let Some(size) = attrs.size {
        file.set_len(size)?;
    }
    if let Some(mode) = attrs.permissions {
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
    }
    if let Some(mtime) = attrs.mtime {
        file.set_modified(UNIX_EPOCH + Duration::from_secs(mtime.into()))?;
    }
    Ok(())
}

fn status(error: io::Error) -> StatusCode {
    match error.kind() {
        ErrorKind::NotFound => StatusCode::NoSuchFile,
        ErrorKind::PermissionDenied => StatusCode::PermissionDenied,
        _ => StatusCode::Failure,
    }
}

fn ok(id: u32) -> Status {
    Status {
        id,
        status_code: StatusCode::Ok,
        error_message: "Ok".to_owned(),
        language_tag: "en-US".to_owned(),
    }
}
