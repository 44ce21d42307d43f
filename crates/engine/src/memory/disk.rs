//! The file of host memory: read on demand, written by its own thread.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, TransactionBehavior, params};
use trunkline_request::own;

use super::facts::{HostFacts, HostId, MOST_HOSTS, lock};
use super::lesson::Lessons;
use super::moment::{milliseconds, moment};

/// The file, a connection to read it, and the thread that writes it.
#[derive(Debug)]
pub(super) struct Disk {
    /// The reading connection, which only fills gaps in `Memory::known`.
    reader: Mutex<Connection>,
    pub(super) queue: Arc<WriteQueue>,
    writer: Option<JoinHandle<()>>,
}

/// The reason why there is no file.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    #[error("cannot prepare {0}: {1}")]
    Directory(PathBuf, io::Error),
    #[error("{0} was written by a newer version of this program (format {1}); update, or delete the file")]
    Newer(PathBuf, u32),
    #[error("{0}: {1}")]
    Sqlite(PathBuf, rusqlite::Error),
    #[error("cannot start its thread: {0}")]
    Thread(io::Error),
}

/// The process that opened the first file; 0 if none has yet.
static OPENED_BY: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process can use SQLite. A forked child of a process that used it cannot: a lock of SQLite may
/// be held by a thread that the child lacks, and SQLite's list of its file locks, which the child does not have either,
/// is wrong (sqlite.org/howtocorrupt.html, section 2.6).
pub(super) fn is_usable_here() -> bool {
    let here = std::process::id();
    let first = OPENED_BY.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed);
    first.is_ok() || first == Err(here)
}

impl Disk {
    pub(super) fn open(directory: &Path) -> Result<Self, DiskError> {
        let file = directory.join(FILE_NAME);
        let prepare = |error| DiskError::Directory(file.clone(), error);
        own::make_directory(directory).map_err(|error| prepare(error.into()))?;
        let writer = match connect(directory, &file) {
            Err(DiskError::Sqlite(_, error)) if is_corrupt(&error) => {
                let aside = set_aside(&file).map_err(prepare)?;
                tracing::warn!(
                    "host memory was damaged ({error}); started a new one; the old file is {}",
                    aside.display()
                );
                connect(directory, &file)?
            }
            other => other?,
        };
        let reader = Connection::open(&file).and_then(|reader| {
            reader.busy_timeout(BUSY_TIMEOUT)?;
            Ok(reader)
        });
        let reader = reader.map_err(|error| DiskError::Sqlite(file.clone(), error))?;
        let queue = Arc::new(WriteQueue::default());
        let thread = thread::Builder::new()
            .name("host-memory".into())
            .spawn({
                let queue = Arc::clone(&queue);
                move || queue.write_to(writer, &file)
            })
            .map_err(DiskError::Thread)?;
        Ok(Self {
            reader: Mutex::new(reader),
            queue,
            writer: Some(thread),
        })
    }

    pub(super) fn read(&self, host: &HostId) -> Option<HostFacts> {
        lock(&self.reader)
            .prepare_cached("SELECT * FROM hosts WHERE hostname = ?1 AND port = ?2 AND user = ?3")
            .and_then(|mut select| {
                select
                    .query_row(params![host.hostname, host.port, host.user], facts_of)
                    .optional()
            })
            .unwrap_or_else(|error| {
                tracing::debug!("host memory: reading failed: {error}");
                None
            })
    }

    pub(super) fn read_all(&self) -> Vec<(HostId, HostFacts)> {
        let reader = lock(&self.reader);
        let rows = reader
            .prepare_cached("SELECT * FROM hosts")
            .and_then(|mut select| {
                select
                    .query_map([], |row| {
                        let host = HostId {
                            hostname: row.get("hostname")?,
                            port: row.get("port")?,
                            user: row.get("user")?,
                        };
                        Ok((host, facts_of(row)?))
                    })?
                    .collect()
            });
        rows.unwrap_or_else(|error: rusqlite::Error| {
            tracing::debug!("host memory: reading failed: {error}");
            Vec::new()
        })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.queue.lock().closing = true;
        self.queue.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // A panic of that thread was reported when it happened; there is nothing left to save.
            let _ = writer.join();
        }
    }
}

/// Changes to write to the disk: at most one per host, so that the queue is bounded by the hosts in use.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    state: Mutex<WriteState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct WriteState {
    /// The newest facts of each changed host; `None` forgets it.
    pending: HashMap<HostId, Option<HostFacts>>,
    /// The thread holds a batch that it has not finished writing.
    writing: bool,
    /// The disk failed; nothing more is written.
    pub(super) lost: bool,
    closing: bool,
}

impl WriteQueue {
    pub(super) fn lock(&self) -> MutexGuard<'_, WriteState> {
        lock(&self.state)
    }

    pub(super) fn push(&self, host: &HostId, facts: Option<HostFacts>) {
        let mut state = self.lock();
        if !state.lost {
            state.pending.insert(host.clone(), facts);
            self.changed.notify_all();
        }
    }

    pub(super) fn wait_until_written(&self) {
        let mut state = self.lock();
        while !state.lost && (state.writing || !state.pending.is_empty()) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs the writing thread: one transaction for all gathered changes, until the queue closes empty.
    fn write_to(&self, mut connection: Connection, file: &Path) {
        let mut refused = 0;
        loop {
            let mut state = self.lock();
            state.writing = false;
            self.changed.notify_all();
            while state.pending.is_empty() && !state.closing {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.pending.is_empty() {
                return;
            }
            let batch = std::mem::take(&mut state.pending);
            state.writing = true;
            drop(state);
            match write(&mut connection, &batch) {
                Ok(()) => refused = 0,
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                    // Other processes held the file for the whole timeout.
                    refused += 1;
                    let mut state = self.lock();
                    if refused < PATIENCE && !state.closing {
                        for (host, facts) in batch {
                            state.pending.entry(host).or_insert(facts);
                        }
                    } else {
                        // The facts stay known in this process.
                        refused = 0;
                        tracing::debug!(
                            "host memory: {} stayed locked; an update was not kept",
                            file.display()
                        );
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        "host memory can no longer be written to {}: {error}",
                        file.display()
                    );
                    if is_corrupt(&error) {
                        // The next process starts afresh instead of failing the same way.
                        let _ = set_aside(file);
                    }
                    let mut state = self.lock();
                    state.lost = true;
                    state.pending.clear();
                    self.changed.notify_all();
                    return;
                }
            }
        }
    }
}

pub(super) const FILE_NAME: &str = "hosts.sqlite3";

/// The time that a process waits for another's transaction; each takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of timeouts in a row that end an update. A process that is ending waits for one only.
const PATIENCE: u32 = 6;

/// The schema's history: entry `n` takes a file from `user_version` `n` to `n + 1`.
pub(super) const MIGRATIONS: &[&str] = &[
    "CREATE TABLE hosts (
        hostname TEXT NOT NULL,
        port INTEGER NOT NULL,
        user TEXT NOT NULL,
        banner TEXT,
        kex_first TEXT,
        host_key_first TEXT,
        early_kexinit_refused INTEGER NOT NULL,
        pipelining_refused INTEGER NOT NULL,
        key BLOB,
        max_sessions INTEGER,
        rtt_microseconds INTEGER,
        tuning TEXT,
        last_used_milliseconds INTEGER NOT NULL,
        PRIMARY KEY (hostname, port, user)
    ) STRICT, WITHOUT ROWID;",
    "ALTER TABLE hosts ADD COLUMN refused_milliseconds INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE hosts ADD COLUMN algorithms_refused INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE hosts DROP COLUMN early_kexinit_refused;
     ALTER TABLE hosts DROP COLUMN pipelining_refused;
     ALTER TABLE hosts DROP COLUMN algorithms_refused;
     ALTER TABLE hosts DROP COLUMN refused_milliseconds;
     ALTER TABLE hosts DROP COLUMN max_sessions;
     ALTER TABLE hosts ADD COLUMN lessons TEXT NOT NULL DEFAULT '';",
];

/// Opens the file for writing, brings its schema up to date and prunes it.
fn connect(directory: &Path, file: &Path) -> Result<Connection, DiskError> {
    // Created before SQLite does, which would follow the umask; its -wal and -shm copy the mode of the file.
    let created = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(file);
    created
        .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o600)))
        .map_err(|error| DiskError::Directory(file.into(), error))?;
    let sqlite = |error| DiskError::Sqlite(file.into(), error);
    let mut connection = Connection::open(file).map_err(sqlite)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(sqlite)?;
    // WAL needs shared memory, which network file systems lack (sqlite.org/wal.html, "Disadvantages").
    let journal = if is_on_network(directory) {
        "TRUNCATE"
    } else {
        "WAL"
    };
    // If two processes that have read it change it at once, SQLite refuses one immediately, whatever the timeout.
    let begun = Instant::now();
    while let Err(error) = connection.pragma_update(None, "journal_mode", journal) {
        let is_busy = error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        if !is_busy || begun.elapsed() > BUSY_TIMEOUT {
            return Err(sqlite(error));
        }
        thread::sleep(Duration::from_millis(5));
    }
    connection
        .pragma_update(None, "synchronous", "NORMAL")
        .map_err(sqlite)?;
    let newest = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    let change = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(sqlite)?;
    let version: u32 = change
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(sqlite)?;
    if version > newest {
        return Err(DiskError::Newer(file.into(), version));
    }
    for migration in MIGRATIONS
        .iter()
        .skip(usize::try_from(version).unwrap_or(usize::MAX))
    {
        change.execute_batch(migration).map_err(sqlite)?;
    }
    change
        .pragma_update(None, "user_version", newest)
        .map_err(sqlite)?;
    change
        .execute(
            "DELETE FROM hosts WHERE last_used_milliseconds < (SELECT last_used_milliseconds FROM hosts
                ORDER BY last_used_milliseconds DESC LIMIT 1 OFFSET ?1)",
            [MOST_HOSTS],
        )
        .map_err(sqlite)?;
    change.commit().map_err(sqlite)?;
    Ok(connection)
}

fn write(connection: &mut Connection, batch: &HashMap<HostId, Option<HostFacts>>) -> rusqlite::Result<()> {
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for (host, facts) in batch {
        let Some(facts) = facts else {
            change
                .prepare_cached("DELETE FROM hosts WHERE hostname = ?1 AND port = ?2 AND user = ?3")?
                .execute(params![host.hostname, host.port, host.user])?;
            continue;
        };
        change
            .prepare_cached(
                "INSERT OR REPLACE INTO hosts (hostname, port, user, banner, kex_first, host_key_first, key,
                    rtt_microseconds, tuning, last_used_milliseconds, lessons)
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                host.hostname,
                host.port,
                host.user,
                facts.banner,
                facts.kex_first,
                facts.host_key_first,
                facts.key,
                facts
                    .rtt
                    .map(|rtt| i64::try_from(rtt.as_micros()).unwrap_or(i64::MAX)),
                facts.tuning,
                milliseconds(facts.last_used),
                facts.lessons.encode(),
            ])?;
    }
    change.commit()
}

fn facts_of(row: &Row<'_>) -> rusqlite::Result<HostFacts> {
    let rtt: Option<i64> = row.get("rtt_microseconds")?;
    Ok(HostFacts {
        banner: row.get("banner")?,
        kex_first: row.get("kex_first")?,
        host_key_first: row.get("host_key_first")?,
        lessons: Lessons::decode(&row.get::<_, String>("lessons")?),
        key: row.get("key")?,
        rtt: rtt.map(|rtt| Duration::from_micros(rtt.unsigned_abs())),
        tuning: row.get("tuning")?,
        last_used: moment(row.get("last_used_milliseconds")?),
    })
}

fn is_corrupt(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Renames a damaged file and removes SQLite's files beside it, which a new database would adopt.
fn set_aside(file: &Path) -> io::Result<PathBuf> {
    let beside = |suffix: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = beside(".corrupt");
    fs::rename(file, &aside)?;
    for suffix in ["-wal", "-shm", "-journal"] {
        let _ = fs::remove_file(beside(suffix));
    }
    Ok(aside)
}

/// Returns whether the directory's file system is, or may be, served by another machine.
#[cfg(target_os = "linux")]
fn is_on_network(directory: &Path) -> bool {
    /// The magic numbers of statfs(2). FUSE is included because sshfs and similar systems use it.
    const NETWORK: &[u32] = &[
        0x6969,      // NFS
        0x517b,      // SMB
        0xff53_4d42, // CIFS
        0xfe53_4d42, // SMB2
        0x5346_414f, // AFS
        0x6b41_4653, // kAFS
        0x7375_7245, // Coda
        0x564c,      // NCP
        0x0102_1997, // 9P
        0x00c3_6400, // Ceph
        0x0bd0_0bd0, // Lustre
        0x4750_4653, // GPFS
        0x0116_1970, // GFS2
        0x7461_636f, // OCFS2
        0x1983_0326, // BeeGFS
        0x786f_4256, // VirtualBox shared directory
        0x6573_5546, // FUSE
    ];
    // The magic numbers have 32 bits; the field's width and sign vary by architecture.
    rustix::fs::statfs(directory).map_or(true, |about| NETWORK.contains(&(about.f_type as u32)))
}

/// Returns true: other systems do not number the types, and the rollback journal works on every file system.
#[cfg(not(target_os = "linux"))]
fn is_on_network(_directory: &Path) -> bool {
    true
}
