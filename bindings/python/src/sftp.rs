//! [`Sftp`]: files on a server, and [`RemoteFile`], one of them that is open.

use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use futures_util::FutureExt as _;
use pyo3::prelude::*;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::sync::Mutex;
use trunkline::sftp::{File, FileAttributes, OpenFlags, Owner, Permissions, Times};
use trunkline::transfer::{CopyEvent, CopyOptions, Location, Obstacle, Progress, copy};
use trunkline_embed::Way;

use crate::data::Data;
use crate::error::Failure;
use crate::operation::{Operation, turn};
use crate::process::{OfProcess, Process};

/// Size, user, group, mode, times of access and modification; what the server did not tell is `None`.
pub(crate) type Attributes = (
    Option<u64>,
    Option<u32>,
    Option<u32>,
    Option<u32>,
    Option<u32>,
    Option<u32>,
);

/// An SFTP session, which any number of operations share.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Sftp {
    inner: OfProcess<(Arc<Process>, trunkline::sftp::Sftp)>,
}

impl Sftp {
    pub(crate) fn new(process: Arc<Process>, sftp: trunkline::sftp::Sftp) -> Self {
        Self {
            inner: OfProcess::new((process, sftp)),
        }
    }

    /// An operation on a clone of the session.
    fn operation<T, F>(&self, work: impl FnOnce(trunkline::sftp::Sftp) -> F) -> PyResult<Operation>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T, trunkline::Error>> + Send + 'static,
    {
        let (process, sftp) = self.inner.get()?;
        let work = work(sftp.clone());
        Ok(Operation::new(process, async move { Ok(work.await?) }))
    }
}

#[pymethods]
impl Sftp {
    /// Waits until there is a session.
    fn ready(&self) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.ready().await.map(drop) })
    }

    /// Opens a file. `flags` are SSH_FXF_…; `mode` the permissions of a file that is made.
    fn open(&self, path: Vec<u8>, flags: u32, mode: Option<u32>) -> PyResult<Operation> {
        self.inner.operation(|process, sftp| async move {
            let attributes = FileAttributes {
                permissions: mode.map(Permissions),
                ..FileAttributes::default()
            };
            let file = sftp.open(path, OpenFlags(flags), attributes).await?;
            Ok(RemoteFile {
                inner: OfProcess::new((process, Arc::new(Mutex::new(Some(file))))),
            })
        })
    }

    /// All of a file.
    fn read(&self, path: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move {
            let mut file = sftp
                .open(path, OpenFlags::READ, FileAttributes::default())
                .await?;
            file.read_rest().await.map(Data::from)
        })
    }

    /// Makes a file of `content`, or replaces what is in it.
    fn write(&self, path: Vec<u8>, content: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.write(path, content).await })
    }

    fn stat(&self, path: Vec<u8>, follow: bool) -> PyResult<Operation> {
        self.operation(|sftp| async move {
            let attributes = if follow {
                sftp.stat(path).await
            } else {
                sftp.lstat(path).await
            };
            attributes.map(|attributes| attributes_for_python(&attributes))
        })
    }

    /// Sets what is not `None`; user and group, and both times, belong together.
    fn setstat(&self, path: Vec<u8>, attributes: Attributes) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.setstat(path, attributes_from_python(attributes)).await })
    }

    fn remove(&self, path: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.remove(path).await })
    }

    fn rename(&self, from: Vec<u8>, to: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.rename(from, to).await })
    }

    /// By SFTP's own request, or with `posix` by OpenSSH's, which renames over what is there; fails on a server without that.
    fn rename_by(&self, from: Vec<u8>, to: Vec<u8>, posix: bool) -> PyResult<Operation> {
        self.operation(move |sftp| async move {
            match posix {
                true => sftp.rename_posix(from, to).await,
                false => sftp.rename_new(from, to).await,
            }
        })
    }

    fn mkdir(&self, path: Vec<u8>, mode: Option<u32>) -> PyResult<Operation> {
        self.operation(|sftp| async move {
            let attributes = FileAttributes {
                permissions: mode.map(Permissions),
                ..FileAttributes::default()
            };
            sftp.mkdir(path, attributes).await
        })
    }

    fn rmdir(&self, path: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.rmdir(path).await })
    }

    fn symlink(&self, target: Vec<u8>, link: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.symlink(target, link).await })
    }

    fn hardlink(&self, from: Vec<u8>, to: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.hardlink(from, to).await })
    }

    fn readlink(&self, path: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.readlink(path).await.map(Data::from) })
    }

    fn realpath(&self, path: Vec<u8>) -> PyResult<Operation> {
        self.operation(|sftp| async move { sftp.realpath(path).await.map(Data::from) })
    }

    /// The names in a directory, or with `deep` in a tree (paths from its root), with the attributes of each and the server's
    /// line for it.
    fn names(&self, path: Vec<u8>, deep: bool) -> PyResult<Operation> {
        self.operation(move |sftp| async move {
            let mut listing = if deep {
                sftp.walk(path)
            } else {
                sftp.read_dir(path)
            };
            let mut entries: Vec<(Data, Attributes, Data)> = Vec::new();
            while let Some(entry) = listing.next().await {
                let entry = entry?;
                entries.push((
                    entry.path.into(),
                    attributes_for_python(&entry.attributes),
                    entry.longname.into(),
                ));
            }
            Ok(entries)
        })
    }

    /// Copies over this session; see [`copied`].
    fn copy(
        &self,
        sources: Vec<Vec<u8>>,
        target: Vec<u8>,
        upload: bool,
        options: Copying,
    ) -> PyResult<Operation> {
        self.inner.operation(|_, sftp| async move {
            let there = |path: Vec<u8>| Location::Session(sftp.clone(), path.into());
            copy_files(sources, target, upload, options, there, None).await
        })
    }
}

/// The options of a copy.
#[derive(FromPyObject)]
pub(crate) struct Copying {
    #[pyo3(item)]
    recursive: bool,
    #[pyo3(item)]
    preserve: bool,
    #[pyo3(item)]
    update: bool,
    #[pyo3(item)]
    umask: u32,
}

/// Files, bytes, names left out, and the path, reason and errno of each that failed.
type Copied = (u64, u64, u64, Vec<(Data, String, Option<i32>)>);

/// Copies to (`upload`) or from a server, whose paths `there` places, and which `way` reaches where the copy makes sessions of
/// its own. What concerns one file ends no other's copy.
pub(crate) async fn copy_files(
    sources: Vec<Vec<u8>>,
    target: Vec<u8>,
    upload: bool,
    options: Copying,
    there: impl Fn(Vec<u8>) -> Location,
    way: Option<&Way>,
) -> Result<Copied, Failure> {
    let here = |path: Vec<u8>| Location::Local(PathBuf::from(std::ffi::OsString::from_vec(path)));
    use std::os::unix::ffi::OsStringExt as _;
    let (sources, target): (Vec<_>, _) = if upload {
        (sources.into_iter().map(here).collect(), there(target))
    } else {
        (sources.into_iter().map(&there).collect(), here(target))
    };
    let failures = Arc::new(StdMutex::new(Vec::new()));
    let seen = failures.clone();
    let progress = Arc::new(Progress::watched(move |event| {
        if let CopyEvent::Failed {
            path,
            mut message,
            errno,
            obstacle,
            ..
        } = event
        {
            if obstacle == Some(Obstacle::Directory) {
                message += "; recursive=True copies it";
            }
            let mut failures = seen.lock().unwrap_or_else(PoisonError::into_inner);
            failures.push((path.into(), message, errno));
        }
    }));
    let mut chosen = CopyOptions::default();
    chosen.recursive = options.recursive;
    chosen.preserve = options.preserve;
    chosen.update = options.update;
    chosen.umask = options.umask;
    let summary = match way {
        Some(way) => way.copy(&sources, &target, &chosen, &progress).await?,
        None => copy(&sources, &target, &chosen, &progress).await?,
    };
    let failures = std::mem::take(&mut *failures.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((summary.files, summary.bytes, summary.skipped, failures))
}

fn attributes_for_python(attributes: &FileAttributes) -> Attributes {
    let FileAttributes {
        size,
        owner,
        permissions,
        times,
        ..
    } = attributes;
    (
        *size,
        owner.map(|owner| owner.uid),
        owner.map(|owner| owner.gid),
        permissions.map(|permissions| permissions.0),
        times.map(|times| times.accessed),
        times.map(|times| times.modified),
    )
}

fn attributes_from_python((size, uid, gid, mode, accessed, modified): Attributes) -> FileAttributes {
    FileAttributes {
        size,
        owner: uid.zip(gid).map(|(uid, gid)| Owner { uid, gid }),
        permissions: mode.map(Permissions),
        times: accessed
            .zip(modified)
            .map(|(accessed, modified)| Times { accessed, modified }),
        ..FileAttributes::default()
    }
}

/// Guarded while it is used; `None` once it is closed.
type Open = Arc<Mutex<Option<File>>>;

/// An open file, as a stream with read-ahead and write-behind. One operation at a time: the stream has one place.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct RemoteFile {
    inner: OfProcess<(Arc<Process>, Open)>,
}

impl RemoteFile {
    /// An operation on the open file. Operations take their turns as they were made, whichever is waited for first.
    fn operation<T, W>(&self, work: W) -> PyResult<Operation>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        W: for<'a> FnOnce(&'a mut File) -> futures_util::future::BoxFuture<'a, Result<T, Failure>>
            + Send
            + 'static,
    {
        let (process, file) = self.inner.get()?;
        let turn = turn(file);
        Ok(Operation::new(process, async move {
            let mut file = turn.await;
            work(file.as_mut().ok_or_else(|| Failure::closed_locally("file"))?).await
        }))
    }
}

#[pymethods]
impl RemoteFile {
    /// Up to `size` bytes; none at the end.
    fn read(&self, size: usize) -> PyResult<Operation> {
        self.operation(move |file| {
            async move {
                let mut data = Data::default();
                data.push(file.chunk(size).await?);
                // What is there already is taken along; what fails, fails again for the next.
                while data.len() > 0
                    && data.len() < size
                    && let Some(Ok(more)) = file.chunk(size - data.len()).now_or_never()
                    && !more.is_empty()
                {
                    data.push(more);
                }
                Ok(data)
            }
            .boxed()
        })
    }

    /// Everything up to the end.
    fn read_rest(&self) -> PyResult<Operation> {
        self.operation(|file| async move { Ok(Data::from(file.read_rest().await?)) }.boxed())
    }

    fn write(&self, data: Vec<u8>) -> PyResult<Operation> {
        self.operation(move |file| async move { Ok(file.write_all(&data).await?) }.boxed())
    }

    fn flush(&self) -> PyResult<Operation> {
        self.operation(|file| async move { Ok(file.flush().await?) }.boxed())
    }

    /// Moves to `offset` from the start (0), the place (1) or the end (2), and tells the new place.
    fn seek(&self, offset: i64, whence: u8) -> PyResult<Operation> {
        self.operation(move |file| {
            async move {
                let to = match whence {
                    0 => std::io::SeekFrom::Start(
                        u64::try_from(offset).map_err(|_| Failure::usage("a file begins at 0"))?,
                    ),
                    1 => std::io::SeekFrom::Current(offset),
                    _ => std::io::SeekFrom::End(offset),
                };
                Ok(file.seek(to).await?)
            }
            .boxed()
        })
    }

    fn truncate(&self, size: u64) -> PyResult<Operation> {
        self.operation(move |file| {
            async move {
                file.flush().await?;
                let attributes = FileAttributes {
                    size: Some(size),
                    ..FileAttributes::default()
                };
                Ok(file.setstat(attributes).await?)
            }
            .boxed()
        })
    }

    fn stat(&self) -> PyResult<Operation> {
        self.operation(|file| async move { Ok(attributes_for_python(&file.stat().await?)) }.boxed())
    }

    /// Of the open file, whatever has its name by now.
    fn setstat(&self, attributes: Attributes) -> PyResult<Operation> {
        self.operation(move |file| {
            async move {
                file.flush().await?;
                Ok(file.setstat(attributes_from_python(attributes)).await?)
            }
            .boxed()
        })
    }

    /// Has the server write it to its disk.
    fn sync(&self) -> PyResult<Operation> {
        self.operation(|file| {
            async move {
                file.flush().await?;
                Ok(file.sync().await?)
            }
            .boxed()
        })
    }

    /// Closes it: the server's last word on whether all was written.
    fn close(&self) -> PyResult<Operation> {
        let (process, file) = self.inner.get()?;
        let turn = turn(file);
        Ok(Operation::new(process, async move {
            match turn.await.take() {
                Some(file) => Ok(file.close().await?),
                None => Ok(()),
            }
        }))
    }
}
