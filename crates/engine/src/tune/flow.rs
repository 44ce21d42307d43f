//! [`Lane`]: one session on its own connection, over which data is timed.

use std::time::{Duration, Instant};

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use trunkline_sftp::Reply;

use super::plan::{Shape, Slot};
use super::sample::Samples;
use crate::error::{Error, Invalid};
use crate::sftp::{File, FileAttributes, OpenFlags, Permissions, Sftp};
use trunkline_request::tuning::Direction;

/// The files on the server during a tuning.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) text: String,
    pub(super) random: String,
    pub(super) scratch: String,
    /// rsync's.
    pub(super) rsync: String,
}

impl Names {
    /// Returns unused names in a directory.
    pub(super) fn new(directory: &str) -> Self {
        let mut nonce = [0; 8];
        // If this fails, creating a file with a used name is refused.
        let _ = SystemRandom::new().fill(&mut nonce);
        let nonce = u64::from_ne_bytes(nonce);
        let name = |what: &str| format!("{directory}/.trunkline-tune-{nonce:016x}-{what}");
        Self {
            text: name("text"),
            random: name("random"),
            scratch: name("scratch"),
            rsync: name("rsync"),
        }
    }

    /// Returns the files that lanes open.
    fn open(&self) -> [&str; 3] {
        [&self.text, &self.random, &self.scratch]
    }

    /// Returns every file that may have been created.
    pub(super) fn all(&self) -> [&str; 4] {
        [&self.text, &self.random, &self.scratch, &self.rsync]
    }
}

/// The bytes that were moved, and their rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    /// Bytes per second, without the round trip until the first answer.
    pub(super) rate: f64,
}

/// The part of a scratch file that is overwritten repeatedly: it stays in the server's memory.
const SCRATCH: u64 = 16 * 1024 * 1024;

/// One session, and the files it reads and writes.
pub(super) struct Lane {
    sftp: Sftp,
    text: Option<File>,
    random: Option<File>,
    scratch: Option<File>,
    samples: Samples,
    rtt: Duration,
    /// The length of the files that are read.
    pub(super) length: u64,
}

impl Lane {
    pub(super) fn new(sftp: Sftp, samples: &Samples, rtt: Duration) -> Self {
        Self {
            sftp,
            text: None,
            random: None,
            scratch: None,
            samples: samples.clone(),
            rtt,
            length: 0,
        }
    }

    pub(super) fn sftp(&self) -> &Sftp {
        &self.sftp
    }

    /// Creates the files, which must be new.
    pub(super) async fn create(&mut self, names: &Names) -> Result<(), Error> {
        self.scratch = Some(self.make(&names.scratch).await?);
        self.random = Some(self.make(&names.random).await?);
        self.text = Some(self.make(&names.text).await?);
        Ok(())
    }

    async fn make(&self, name: &str) -> Result<File, Error> {
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
        let attributes = FileAttributes {
            permissions: Some(Permissions(0o600)),
            ..FileAttributes::default()
        };
        self.sftp.open(name, flags, attributes).await
    }

    /// Opens the files that another lane created, of this length.
    pub(super) async fn open(&mut self, names: &Names, length: u64) -> Result<(), Error> {
        let [text, random, scratch] = names.open().map(|name| {
            let sftp = self.sftp.clone();
            async move {
                sftp.open(
                    name,
                    OpenFlags::READ | OpenFlags::WRITE,
                    FileAttributes::default(),
                )
                .await
            }
        });
        let (text, random, scratch) = futures_util::try_join!(text, random, scratch)?;
        (self.text, self.random, self.scratch) = (Some(text), Some(random), Some(scratch));
        self.length = length;
        Ok(())
    }

    /// Fills a file that is read later: with as much as fits into a slot, at most `most`.
    pub(super) async fn fill(
        &self,
        compressible: bool,
        shape: Shape,
        slot: Slot,
        most: u64,
    ) -> Result<Moved, Error> {
        let file = self.file(if compressible { &self.text } else { &self.random })?;
        // In whole requests, so that none wraps to the file's beginning.
        let most = (most / u64::from(shape.size)).max(1) * u64::from(shape.size);
        let slot = Slot {
            bytes: slot.bytes.min(most),
            ..slot
        };
        self.write(file, compressible, shape, slot, most).await
    }

    /// Moves data for the duration of a slot, and waits for what is then under way. `start` is the first offset, so
    /// that several lanes read different data.
    pub(super) async fn run(
        &self,
        direction: Direction,
        compressible: bool,
        shape: Shape,
        slot: Slot,
        start: u64,
    ) -> Result<Moved, Error> {
        match direction {
            Direction::Up => {
                self.write(self.file(&self.scratch)?, compressible, shape, slot, SCRATCH)
                    .await
            }
            Direction::Down => {
                let file = self.file(if compressible { &self.text } else { &self.random })?;
                self.read(file, shape, slot, start).await
            }
        }
    }

    async fn read(&self, file: &File, shape: Shape, slot: Slot, start: u64) -> Result<Moved, Error> {
        let Shape { size, depth } = shape;
        let size = u64::from(size).min(self.length.max(1));
        let places = (self.length / size).max(1);
        let mut clock = Clock::start(slot, self.rtt);
        let mut flight = FuturesUnordered::new();
        let mut next = start / size;
        loop {
            while flight.len() < depth && clock.goes_on() {
                flight.push(file.read_call(next % places * size, size as usize)?);
                clock.note_asked(size);
                next += 1;
            }
            match flight.next().await.transpose()? {
                Some(Reply::Data(data)) => clock.note_moved(data.len() as u64),
                Some(_) => {}
                None => return Ok(clock.stop()),
            }
        }
    }

    async fn write(
        &self,
        file: &File,
        compressible: bool,
        shape: Shape,
        slot: Slot,
        span: u64,
    ) -> Result<Moved, Error> {
        let Shape { size, depth } = shape;
        let sample = self.samples.sample(compressible);
        let size = (size as usize).min(sample.len());
        let places = (span / size as u64).max(1);
        let mut clock = Clock::start(slot, self.rtt);
        let mut flight = FuturesUnordered::new();
        let mut next = 0;
        loop {
            while flight.len() < depth && clock.goes_on() {
                let data = slice(sample, next, size);
                let call = file.write_call(next % places * size as u64, data)?;
                flight.push(async move { call.await.map(|_| size as u64) });
                clock.note_asked(size as u64);
                next += 1;
            }
            match flight.next().await.transpose()? {
                Some(bytes) => clock.note_moved(bytes),
                None => return Ok(clock.stop()),
            }
        }
    }

    fn file<'a>(&self, file: &'a Option<File>) -> Result<&'a File, Error> {
        file.as_ref()
            .ok_or_else(|| Error::Bug("a measurement came before its files"))
    }
}

/// Returns the `nth` piece of an endlessly repeated sample.
fn slice(sample: &Bytes, nth: u64, size: usize) -> Bytes {
    let places = (sample.len() / size).max(1) as u64;
    let start = (nth % places) as usize * size;
    sample.slice(start..start + size)
}

/// Times the moved data.
struct Clock {
    slot: Slot,
    rtt: Duration,
    begun: Instant,
    asked: u64,
    last: Instant,
    bytes: u64,
}

impl Clock {
    fn start(slot: Slot, rtt: Duration) -> Self {
        let now = Instant::now();
        Self {
            slot,
            rtt,
            begun: now,
            asked: 0,
            last: now,
            bytes: 0,
        }
    }

    /// Returns whether to send another request. The first is always sent.
    fn goes_on(&self) -> bool {
        self.asked == 0 || (self.asked < self.slot.bytes && self.begun.elapsed() < self.slot.time)
    }

    fn note_asked(&mut self, bytes: u64) {
        self.asked += bytes;
    }

    fn note_moved(&mut self, bytes: u64) {
        self.last = Instant::now();
        self.bytes += bytes;
    }

    fn stop(self) -> Moved {
        Moved {
            bytes: self.bytes,
            rate: rate(self.bytes, self.last - self.begun, self.rtt),
        }
    }
}

/// Returns bytes per second, without the round trip before the first answer, in which nothing moves. At least half of
/// the time counts: otherwise answers that arrive in one piece would have taken none.
pub(super) fn rate(bytes: u64, elapsed: Duration, rtt: Duration) -> f64 {
    let moving = elapsed.saturating_sub(rtt).max(elapsed / 2);
    bytes as f64 / moving.as_secs_f64().max(1e-9)
}

/// Returns the requested directory, or that of relative paths, made absolute by the server.
pub(super) async fn directory(sftp: &Sftp, asked: Option<&str>) -> Result<String, Error> {
    let path = sftp.realpath(asked.unwrap_or(".")).await?;
    String::from_utf8(path.to_vec())
        .map_err(|_| Invalid::NotUtf8("the directory's name on the server".into()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_leaves_out_the_first_round_trip_and_never_runs_away() {
        let ms = Duration::from_millis;
        assert_eq!(rate(1000, ms(1100), ms(100)), 1000.0);
        assert_eq!(rate(1000, ms(100), ms(100)), 20_000.0);
        assert_eq!(rate(1000, ms(100), ms(500)), 20_000.0);
    }

    #[test]
    fn pieces_of_a_sample_go_round() {
        let sample = Bytes::from_static(b"abcdefg");
        let pieces: Vec<Bytes> = (0..4).map(|nth| slice(&sample, nth, 3)).collect();
        assert_eq!(pieces, ["abc", "def", "abc", "def"]);
    }
}
