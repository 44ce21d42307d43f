//! Copies from a server into a [`Stream`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;
use trunkline_request::copy::{Changes, CopyOptions, Snapshot};

use super::path::{self, shown};
use super::place::Location;
use super::progress::Progress;
use super::rate::Rate;
use super::stream::{PIECE, Stream};
use crate::error::{Error, Invalid};
use crate::sftp::{FileAttributes, FileType, OpenFlags, Sftp};

/// Copies a server's files into a stream, one after the other. Reports failures to `progress`.
pub(super) async fn copy_to(
    sources: &[Location],
    target: &Stream,
    options: &CopyOptions,
    rate: &Rate,
    progress: &Arc<Progress>,
) -> Result<Snapshot, Error> {
    let [source] = sources else {
        return Err(Invalid::NotADirectory {
            path: target.display().to_string(),
            is_missing: false,
        }
        .into());
    };
    let (sftp, path) = match source {
        Location::Host(host, path) => (host.sftp().await?, path.clone()),
        Location::Session(sftp, path) => (sftp.clone(), path.clone()),
        Location::Local(_) | Location::Stream(_) => {
            return Err(Invalid::NoHost.into());
        }
    };
    let path = path::Expanded::of(&sftp, &path).await?.path();
    progress.streams.fetch_max(1, Ordering::Relaxed);
    let length = match one_into(&sftp, &path, target, options, rate, progress).await {
        Ok(length) => length,
        Err(error @ (Error::File { .. } | Error::Local { .. })) => {
            progress.report_failed(path, error);
            return Ok(progress.final_snapshot());
        }
        Err(error) => return Err(error),
    };
    progress.report_copied(target.path(), length, Changes::default());
    progress.counted.store(true, Ordering::Relaxed);
    Ok(progress.final_snapshot())
}

async fn one_into(
    sftp: &Sftp,
    path: &Bytes,
    target: &Stream,
    options: &CopyOptions,
    rate: &Rate,
    progress: &Arc<Progress>,
) -> Result<u64, Error> {
    let found = sftp.stat(path).await?;
    let what = match found.file_type() {
        None | Some(FileType::Regular) => None,
        Some(FileType::Directory) => Some("a directory, which a stream cannot take"),
        Some(_) => Some("not a regular file"),
    };
    if let Some(what) = what {
        let message = io::Error::other(format!("it is {what}"));
        return Err(Error::local(format!("{}:{}", sftp.host(), shown(path)), message));
    }
    progress.count_found(found.size.unwrap_or(0));
    progress.set_current(&target.path());
    if options.dry_run {
        return Ok(found.size.unwrap_or(0));
    }
    pour(sftp, path, target, rate, progress).await
}

/// Reads a server's file into a stream, and returns its length.
pub(super) async fn pour(
    sftp: &Sftp,
    path: &Bytes,
    target: &Stream,
    rate: &Rate,
    progress: &Arc<Progress>,
) -> Result<u64, Error> {
    let local = |error| Error::local(format!("writing {}", target.display()), error);
    let mut file = sftp
        .open(path, OpenFlags::READ, FileAttributes::default())
        .await?;
    let mut writer = target.writer().await.map_err(local)?;
    let mut length = 0;
    loop {
        let chunk = file.chunk(PIECE).await?;
        if chunk.is_empty() {
            writer.flush().await.map_err(local)?;
            return Ok(length);
        }
        rate.take(chunk.len() as u64).await;
        writer.write_all(&chunk).await.map_err(local)?;
        length += chunk.len() as u64;
        progress.count_moved(chunk.len() as u64);
    }
}
