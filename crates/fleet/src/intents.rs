//! The log of intents: everything that this machine is about to execute, written to disk before it does so.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};
use trunkline_request::own;

use crate::bucket::{decode, encode};
use crate::order::{longest_apart, seconds_since_1970};
use crate::state::{Intended, Intent, JobId, Returned};

/// The log. Each change is on the disk when its call returns.
#[derive(Debug)]
pub struct IntentLog {
    disk: Connection,
    /// The fleet that the log belongs to: the log of another fleet says nothing about this one.
    fleet: i64,
    /// The number of seconds for which the name of an executed order is remembered, whatever NATS still reports;
    /// `None`: for ever.
    remembers: Option<u64>,
}

/// A change to write down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Intend(Intent),
    /// The result of an intent.
    Note(Intent, Returned),
    /// An intent is settled, at the time when this was the highest revision seen. If it had a result, it is kept, so
    /// that the same order is never executed again.
    Close(Intent, u64),
    /// The highest revision seen.
    Highest(u64),
    /// The bucket has nothing left from before this revision: jobs that were settled by then can no longer be started
    /// by anybody.
    Drop(u64),
}

/// The reason why the log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the log of intents {file}: {why}; without it nothing is run for the fleet")]
pub struct LogError {
    file: String,
    why: String,
}

impl IntentLog {
    /// Opens the log of a fleet in a directory, which is made if it is missing. The fleet keeps jobs for the time
    /// `keep`. The directory and the file are accessible only to the user.
    ///
    /// # Errors
    /// If the directory cannot be made, or the file cannot be opened or written.
    pub fn open(directory: &Path, fleet: u64, keep: Duration) -> Result<Self, LogError> {
        let file = directory.join("fleet.sqlite");
        let failed = |why: String| LogError {
            file: file.display().to_string(),
            why,
        };
        own::make_directory(directory).map_err(|error| failed(error.to_string()))?;
        let created = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&file);
        created.map_err(|error| failed(error.to_string()))?;
        let open = || {
            let disk = Connection::open(&file)?;
            // Two processes with the same log would each mistake the other's intents for those of their own earlier
            // life.
            disk.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            disk.pragma_update(None, "journal_mode", "WAL")?;
            // Each commit is synced: after a crash nothing may be missing.
            disk.pragma_update(None, "synchronous", "FULL")?;
            disk.execute_batch(
                "CREATE TABLE IF NOT EXISTS intents_of (
                     fleet INTEGER, job TEXT, host INTEGER, claim BLOB NOT NULL, returned BLOB,
                     closed INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (fleet, job, host));
                 CREATE TABLE IF NOT EXISTS highest_of (fleet INTEGER PRIMARY KEY, revision INTEGER);",
            )?;
            let version: i64 = disk.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            if version == 0 {
                disk.execute_batch(
                    "ALTER TABLE intents_of ADD COLUMN closed_at INTEGER NOT NULL DEFAULT 0;
                     PRAGMA user_version = 1;",
                )?;
            }
            Ok(disk)
        };
        let disk = open().map_err(|error: rusqlite::Error| failed(error.to_string()))?;
        let fleet = fleet.cast_signed();
        // An order may be as old as that when it arrives, and is executed then.
        let remembers = longest_apart(keep).map(|longest| longest.saturating_mul(2));
        Ok(Self {
            disk,
            fleet,
            remembers,
        })
    }

    /// Returns the intents that were not closed, with their results.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn open_intents(&self) -> Result<Vec<(Intent, Option<Returned>)>, rusqlite::Error> {
        let mut select = self
            .disk
            .prepare("SELECT job, host, claim, returned FROM intents_of WHERE fleet = ?1 AND NOT closed")?;
        let rows = select.query_map([self.fleet], |row| {
            let (job, host): (String, u32) = (row.get(0)?, row.get(1)?);
            let (claim, returned): (Vec<u8>, Option<Vec<u8>>) = (row.get(2)?, row.get(3)?);
            Ok((job, host, claim, returned))
        })?;
        let mut intents = Vec::new();
        for row in rows {
            let (job, host, claim, returned) = row?;
            let Ok(claim) = decode(&claim) else { continue };
            let job = JobId(job);
            let returned = returned.and_then(|returned| decode(&returned).ok());
            intents.push((Intent { job, host, claim }, returned));
        }
        Ok(intents)
    }

    /// Writes changes down, all of them with one sync. Returns the outcome for each intent. If another change cannot be
    /// written, this is logged: a result is then lost if this process ends, and an intent is settled again by the next
    /// process.
    pub fn write(&mut self, changes: &[Change]) -> Vec<Intended> {
        self.write_at(changes, seconds_since_1970())
    }

    fn write_at(&mut self, changes: &[Change], now: u64) -> Vec<Intended> {
        self.try_write(changes, now).unwrap_or_else(|error| {
            tracing::warn!("the log of intents: {error}");
            let intents = changes
                .iter()
                .filter(|change| matches!(change, Change::Intend(_)));
            intents.map(|_| Intended::Failed(error.to_string())).collect()
        })
    }

    fn try_write(&mut self, changes: &[Change], now: u64) -> Result<Vec<Intended>, rusqlite::Error> {
        let (fleet, remembers) = (self.fleet, self.remembers);
        let writing = self.disk.transaction()?;
        let mut intended = Vec::new();
        for change in changes {
            match change {
                Change::Intend(intent) => {
                    let claim = encode(&intent.claim).unwrap_or_default();
                    let mut insert = writing.prepare_cached(
                        "INSERT OR IGNORE INTO intents_of (fleet, job, host, claim) VALUES (?1, ?2, ?3, ?4)",
                    )?;
                    let added = insert.execute(params![fleet, intent.job.0, intent.host, claim])?;
                    intended.push(match added {
                        1 => Intended::Noted,
                        _ => Intended::Before,
                    });
                }
                Change::Note(intent, returned) => {
                    let returned = encode(returned).unwrap_or_default();
                    let mut update = writing.prepare_cached(
                        "UPDATE intents_of SET returned = ?4 WHERE fleet = ?1 AND job = ?2 AND host = ?3",
                    )?;
                    update.execute(params![fleet, intent.job.0, intent.host, returned])?;
                }
                Change::Close(intent, highest) => {
                    let place = params![fleet, intent.job.0, intent.host];
                    let mut delete = writing.prepare_cached(
                        "DELETE FROM intents_of WHERE fleet = ?1 AND job = ?2 AND host = ?3 AND returned IS NULL",
                    )?;
                    delete.execute(place)?;
                    let mut update = writing.prepare_cached(
                        "UPDATE intents_of SET closed = ?4, closed_at = ?5 WHERE fleet = ?1 AND job = ?2 AND host = ?3",
                    )?;
                    let highest = in_sqlite(*highest).max(1);
                    let place = params![fleet, intent.job.0, intent.host, highest, in_sqlite(now)];
                    update.execute(place)?;
                }
                Change::Highest(highest) => {
                    let mut insert = writing.prepare_cached(
                        "INSERT OR REPLACE INTO highest_of (fleet, revision) VALUES (?1, ?2)",
                    )?;
                    insert.execute(params![fleet, in_sqlite(*highest)])?;
                }
                Change::Drop(first) => {
                    // The result is no longer needed. The name is, for as long as its order would be accepted again.
                    let mut forget = writing.prepare_cached(
                        "UPDATE intents_of SET returned = NULL, claim = x'' WHERE fleet = ?1 AND closed > 0 AND closed < ?2
                         AND returned IS NOT NULL",
                    )?;
                    forget.execute(params![fleet, in_sqlite(*first)])?;
                    let Some(remembers) = remembers else { continue };
                    let mut delete = writing.prepare_cached(
                        "DELETE FROM intents_of WHERE fleet = ?1 AND closed > 0 AND closed < ?2 AND closed_at < ?3",
                    )?;
                    let since = in_sqlite(now.saturating_sub(remembers));
                    delete.execute(params![fleet, in_sqlite(*first), since])?;
                }
            }
        }
        writing.commit()?;
        Ok(intended)
    }

    /// Returns the highest revision seen; 0 before any.
    pub fn highest(&self) -> u64 {
        let select = self.disk.query_row(
            "SELECT revision FROM highest_of WHERE fleet = ?1",
            [self.fleet],
            |row| row.get::<_, i64>(0),
        );
        let highest = select.optional().ok().flatten().unwrap_or_default();
        u64::try_from(highest).unwrap_or_default()
    }
}

fn in_sqlite(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Claim, Exit, Holder};

    const KEEP: Duration = Duration::from_secs(7 * 86_400);

    #[test]
    fn an_intent_lasts_until_it_is_closed_and_a_result_as_long_as_its_job() {
        let directory = tempfile::tempdir().unwrap();
        let intent = |host| Intent {
            job: JobId("j".into()),
            host,
            claim: Claim {
                holder: Holder {
                    node: "n".into(),
                    incarnation: u64::MAX,
                },
                intent: 7,
                fence: 9,
            },
        };
        let returned = Returned {
            exit: Exit::Status(3),
            output: 2,
        };
        let intend = |host| Change::Intend(intent(host));
        let mut log = IntentLog::open(directory.path(), u64::MAX, KEEP).unwrap();
        let noted = log.write(&[intend(0), intend(1), intend(2)]);
        assert_eq!(noted, vec![Intended::Noted; 3]);
        log.write(&[Change::Note(intent(1), returned.clone()), Change::Highest(42)]);
        drop(log);

        let mut log = IntentLog::open(directory.path(), u64::MAX, KEEP).unwrap();
        let expected = [(intent(0), None), (intent(1), Some(returned)), (intent(2), None)];
        assert_eq!(log.open_intents().unwrap(), expected);
        assert_eq!(log.highest(), 42);
        let closed: Vec<_> = (0..3).map(|host| Change::Close(intent(host), 50)).collect();
        log.write(&closed);
        assert_eq!(log.open_intents().unwrap(), []);
        // The bucket still has something of its job.
        log.write(&[Change::Drop(50)]);
        assert_eq!(
            log.write(&[intend(0), intend(1)]),
            [Intended::Noted, Intended::Before]
        );
        // NATS no longer shows it, but by this machine's clock it could come again.
        let now = seconds_since_1970();
        log.write_at(&[Change::Drop(51)], now + 2 * KEEP.as_secs());
        assert_eq!(
            log.write(&[intend(0), intend(1)]),
            [Intended::Before, Intended::Before]
        );
        log.write_at(&[Change::Drop(51)], now + 3 * KEEP.as_secs());
        assert_eq!(
            log.write(&[intend(0), intend(1)]),
            [Intended::Before, Intended::Noted]
        );
        drop(log);

        // A fleet that was made anew in place of that one.
        let mut log = IntentLog::open(directory.path(), 1, KEEP).unwrap();
        assert_eq!((log.open_intents().unwrap(), log.highest()), (vec![], 0));
        assert_eq!(log.write(&[intend(1)]), [Intended::Noted]);
    }
}
