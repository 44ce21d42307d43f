//! The standard input of a job, which all of its hosts read. It is in a separate stream, because every node watches all
//! of the state, but only some of them need a job's input. An order names it by its SHA-256, and no command is started
//! before all of it has arrived.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use aws_lc_rs::digest::{Context, SHA256};
use futures_util::StreamExt as _;
use trunkline_fleet_client::LONGEST_INPUT;
use trunkline_request::failure::ErrorKind;

use crate::bucket::{Bucket, BucketError, is_plain, random};
use crate::order::job::OrderedInput;

/// The size of one message. When NATS is asked for a message, it sends it as base64, and a NATS message holds 1 MB.
const PIECE: usize = 256 * 1024;

/// The number of messages that are sent to NATS at the same time.
const AHEAD: usize = 8;

/// The number of requests for a message if NATS does not answer, and the pause before each.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// The size of one read from the file.
const CHUNK: usize = 64 * 1024;

/// The reason why a node does not have a job's input. Nothing is started without it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// It is older than the data that NATS keeps, or was removed.
    #[error("the job's input is not in NATS any more")]
    Gone,
    /// It differs from the one that the submitter signed.
    #[error("the job's input is damaged: it is not what its submitter signed")]
    Damaged,
    /// The order describes an input that cannot exist.
    #[error("the job's input is longer than {} MiB, or cannot be read", LONGEST_INPUT >> 20)]
    Malformed,
    /// NATS does not answer.
    #[error("the job's input cannot be read from NATS: {0}")]
    Nats(String),
    /// The node's disk failed.
    #[error("the job's input cannot be kept on this node: {0}")]
    Disk(#[from] io::Error),
}

impl InputError {
    /// Returns the kind of failure, which names the responsible party.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone | Self::Damaged | Self::Malformed => ErrorKind::Configuration,
            Self::Nats(_) => ErrorKind::Network,
            Self::Disk(_) => ErrorKind::Local,
        }
    }
}

/// Uploads an input to NATS, for a job that will name it.
///
/// # Errors
/// If NATS does not take all of it. Then no job has it.
pub async fn upload(bucket: &Bucket, data: &[u8]) -> Result<OrderedInput, BucketError> {
    let id = format!("{:016x}", random());
    let mut digest = Context::new(&SHA256);
    digest.update(data);
    let input = OrderedInput {
        bytes: data.len() as u64,
        pieces: u32::try_from(data.len().div_ceil(PIECE)).unwrap_or(u32::MAX),
        digest: digest.finish().as_ref().to_vec(),
        id,
    };
    let failed = |error: &dyn std::fmt::Display| {
        BucketError::Nats(format!(
            "the job's input could not be written, and the job did not start on any host: {error}; check that this nkey may \
             submit jobs, and that NATS has room"
        ))
    };
    let sending = (0..).zip(data.chunks(PIECE)).map(|(number, piece)| {
        let (subject, piece) = (bucket.input_subject(&input.id, number), piece.to_vec());
        async move {
            let sent = bucket.jetstream.publish(subject, piece.into()).await;
            let acknowledged = sent.map_err(|error| failed(&error))?.await;
            acknowledged.map(drop).map_err(|error| failed(&error))
        }
    });
    let mut sending = futures_util::stream::iter(sending).buffer_unordered(AHEAD);
    while let Some(sent) = sending.next().await {
        sent?;
    }
    drop(sending);
    Ok(input)
}

/// A job's input on a node: complete, as it was signed, in a file without a name.
#[derive(Debug)]
pub struct Input {
    file: Arc<File>,
    bytes: u64,
}

impl Input {
    /// Downloads it from NATS into a file in this directory.
    pub(crate) async fn fetch(
        bucket: &Bucket,
        wanted: &OrderedInput,
        directory: &Path,
    ) -> Result<Self, InputError> {
        let pieces = wanted.bytes.div_ceil(PIECE as u64);
        if wanted.bytes > LONGEST_INPUT || pieces != u64::from(wanted.pieces) || !is_plain(&wanted.id) {
            return Err(InputError::Malformed);
        }
        let file = Arc::new(tempfile::tempfile_in(directory)?);
        let (mut digest, mut bytes) = (Context::new(&SHA256), 0);
        for number in 0..wanted.pieces {
            let piece = piece(bucket, &bucket.input_subject(&wanted.id, number)).await?;
            digest.update(&piece);
            let (end, file) = (bytes + piece.len() as u64, file.clone());
            if end > wanted.bytes {
                return Err(InputError::Damaged);
            }
            blocking(move || file.write_all_at(&piece, bytes)).await?;
            bytes = end;
        }
        if bytes != wanted.bytes || digest.finish().as_ref() != wanted.digest {
            return Err(InputError::Damaged);
        }
        Ok(Self { file, bytes })
    }

    /// Returns the bytes at this position; nothing at the end.
    ///
    /// # Errors
    /// If the node's disk fails.
    pub async fn read_at(&self, place: u64) -> io::Result<Vec<u8>> {
        let file = self.file.clone();
        let len = self.bytes.saturating_sub(place);
        let len = usize::try_from(len).map_or(CHUNK, |left| left.min(CHUNK));
        blocking(move || {
            let mut data = vec![0; len];
            file.read_exact_at(&mut data, place).map(|()| data)
        })
        .await
    }
}

async fn piece(bucket: &Bucket, subject: &str) -> Result<Vec<u8>, InputError> {
    let mut attempts = 0;
    loop {
        let why = match bucket.input_message(subject).await {
            Ok(Ok(message)) => return Ok(message.payload.to_vec()),
            Ok(Err(error)) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                return Err(InputError::Gone);
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        attempts += 1;
        if attempts == ATTEMPTS {
            return Err(InputError::Nats(why));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}
