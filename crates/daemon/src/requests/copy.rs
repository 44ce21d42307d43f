//! A client's copy, run by the daemon's engine, with its progress reported.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::vec;

use bytes::Bytes;
use rustix::fs::FileType;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use trunkline::transfer::{self, Location, Progress, Rate, Stream};
use trunkline::{ConnectionInfo, Engine, Error, Interaction, Invalid};

use crate::protocol::{CopyCipher, CopyEnd, CopyEvent, CopyPlace, CopyRequest, Reply};
use trunkline_audit::Entry;

/// The interval at which a client hears of a copy's progress.
const TELLING: Duration = Duration::from_millis(100);

/// Names in one frame: with the longest paths some two megabytes, half of what a frame may be.
const NAMES: usize = 256;

/// The rate limits that running copies share.
#[derive(Default)]
pub(crate) struct Rates {
    /// The lock is held for a look-up.
    shared: Mutex<HashMap<u64, Weak<Rate>>>,
}

impl Rates {
    fn for_request(&self, request: &CopyRequest) -> Arc<Rate> {
        let new = || Arc::new(Rate::new(request.options.limit));
        let Some(number) = request.rate else {
            return new();
        };
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, rate| rate.strong_count() > 0);
        if let Some(rate) = shared.get(&number).and_then(Weak::upgrade) {
            return rate;
        }
        let rate = new();
        shared.insert(number, Arc::downgrade(&rate));
        rate
    }
}

/// Copies, and returns the last frame. Dropping the future ends the copy.
pub(crate) async fn run(
    engine: &Engine,
    rates: &Rates,
    request: CopyRequest,
    fds: Vec<OwnedFd>,
    interaction: &Interaction,
    replies: &mpsc::Sender<Reply>,
    entry: &Entry,
) -> Result<Reply, Error> {
    let begun = Instant::now();
    let mut fds = fds.into_iter();
    let mut sources = Vec::with_capacity(request.sources.len());
    for source in &request.sources {
        sources.push(match source {
            CopyPlace::Passed(path) => Location::Stream(input(path, &mut fds)?),
            place => location(engine, place, interaction).await?,
        });
    }
    let target = match &request.target {
        CopyPlace::Passed(path) => Location::Stream(output(path, &mut fds)?),
        place => location(engine, place, interaction).await?,
    };
    let host = sources
        .iter()
        .chain([&target])
        .rev()
        .find_map(|location| match location {
            Location::Host(host, _) => Some(host.config().clone()),
            _ => None,
        });
    entry
        .begin(|subject| match &host {
            Some(host) => subject.with_host(host),
            None => subject,
        })
        .await?;
    // Bounded by the names that a running copy has; the copy does not wait for its watchers.
    let (telling, mut told) = mpsc::unbounded_channel();
    let every_name = request.names;
    let progress = Arc::new(Progress::watched(move |event| {
        if every_name || matches!(event, CopyEvent::Failed { .. } | CopyEvent::Note { .. }) {
            let _ = telling.send(event);
        }
    }));
    entry.counts_copy(&sources, &target, &progress);
    let watching = async {
        let mut ticks = tokio::time::interval(TELLING);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut names = Vec::new();
        loop {
            ticks.tick().await;
            while let Ok(name) = told.try_recv() {
                names.push(name);
                if names.len() == NAMES {
                    let _ = replies.send(Reply::Names(std::mem::take(&mut names))).await;
                }
            }
            if !names.is_empty() {
                let _ = replies.send(Reply::Names(std::mem::take(&mut names))).await;
            }
            let _ = replies.send(Reply::Progress(progress.snapshot())).await;
        }
    };
    let rate = rates.for_request(&request);
    let result = tokio::select! {
        result = transfer::copy_at(rate, &sources, &target, &request.options, &progress) => result,
        () = watching => unreachable!("watching has no end"),
    };
    while !told.is_empty() {
        let mut names = Vec::new();
        told.recv_many(&mut names, NAMES).await;
        let _ = replies.send(Reply::Names(names)).await;
    }
    let ciphers: BTreeSet<CopyCipher> = sources.iter().chain([&target]).flat_map(ciphers).collect();
    Ok(Reply::Copied(CopyEnd {
        progress: result?,
        elapsed: begun.elapsed(),
        ciphers: ciphers.into_iter().collect(),
    }))
}

/// Returns the error of a copy that was stopped by the daemon's shutdown.
pub(crate) fn describe_stop(request: &CopyRequest) -> Error {
    let places = request.sources.iter().chain([&request.target]);
    let host = places.rev().find_map(|place| match place {
        CopyPlace::Host(host, _) => Some(host.destination.host.clone()),
        _ => None,
    });
    Error::Closed {
        host: host.unwrap_or_default(),
        why: "trunkline is shutting down".into(),
    }
}

async fn location(engine: &Engine, place: &CopyPlace, interaction: &Interaction) -> Result<Location, Error> {
    Ok(match place {
        CopyPlace::Local(path) if path.is_absolute() => Location::Local(path.clone()),
        CopyPlace::Local(path) => {
            return Err(Invalid::NotAbsolute(path.display().to_string()).into());
        }
        CopyPlace::Passed(path) => {
            return Err(Invalid::NoDescriptor(path.display().to_string()).into());
        }
        CopyPlace::Host(host, path) => {
            let asked = crate::reports::engine_request(host);
            let host = engine.host_for_copies(&asked, interaction).await?;
            let question = format!("Allow shared connection to {}? ", host.config().original_host);
            host.confirm_use(&question).await?;
            Location::Host(host, Bytes::copy_from_slice(path))
        }
    })
}

/// Returns a source that the client has opened for this copy alone.
fn input(path: &Path, fds: &mut vec::IntoIter<OwnedFd>) -> Result<Stream, Error> {
    let (fd, is_fifo) = take_descriptor(path, fds)?;
    if is_fifo {
        let pipe = pipe::Receiver::from_owned_fd(fd).map_err(|error| unusable(path, error))?;
        return Ok(Stream::reading(path, pipe));
    }
    Ok(Stream::reading(path, tokio::fs::File::from_std(fd.into())))
}

/// Returns a target that the client has opened for this copy alone.
fn output(path: &Path, fds: &mut vec::IntoIter<OwnedFd>) -> Result<Stream, Error> {
    let (fd, is_fifo) = take_descriptor(path, fds)?;
    if is_fifo {
        let pipe = pipe::Sender::from_owned_fd(fd).map_err(|error| unusable(path, error))?;
        return Ok(Stream::writing(path, pipe));
    }
    Ok(Stream::writing(path, tokio::fs::File::from_std(fd.into())))
}

/// Takes the next descriptor. Also returns true if it is a FIFO, which can be awaited without a thread.
fn take_descriptor(path: &Path, fds: &mut vec::IntoIter<OwnedFd>) -> Result<(OwnedFd, bool), Error> {
    let missing = || Error::from(Invalid::NoDescriptor(path.display().to_string()));
    let fd = fds.next().ok_or_else(missing)?;
    let found = rustix::fs::fstat(&fd).map_err(|error| unusable(path, error.into()))?;
    let is_fifo = FileType::from_raw_mode(found.st_mode) == FileType::Fifo;
    Ok((fd, is_fifo))
}

fn unusable(path: &Path, error: std::io::Error) -> Error {
    Error::local(format!("opening {}", path.display()), error)
}

fn ciphers(location: &Location) -> Vec<CopyCipher> {
    let Location::Host(host, _) = location else {
        return Vec::new();
    };
    let infos = host.lanes().into_iter().filter_map(|lane| lane.info);
    let cipher = |info: ConnectionInfo| CopyCipher {
        name: info.cipher.to_owned(),
        compressed: info.compressed,
    };
    infos.map(cipher).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_with_one_number_share_a_rate_while_there_are_any() {
        let rates = Rates::default();
        let request = |rate| CopyRequest {
            sources: Vec::new(),
            target: CopyPlace::Local("/".into()),
            options: transfer::CopyOptions::default(),
            names: false,
            rate,
        };
        let first = rates.for_request(&request(Some(1)));
        assert!(Arc::ptr_eq(&first, &rates.for_request(&request(Some(1)))));
        for other in [Some(2), None] {
            assert!(!Arc::ptr_eq(&first, &rates.for_request(&request(other))));
        }
        drop(first);
        let _next = rates.for_request(&request(Some(3)));
        assert_eq!(rates.shared.lock().unwrap().len(), 1, "the others are over");
    }
}
