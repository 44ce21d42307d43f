//! Host memory: what earlier connections taught about each server, so that the next one is faster.
//!
//! A cache in the true sense: deleting it loses speed and nothing else, and nothing in it is secret. No failure of
//! the disk ever reaches the caller: the memory then lives in the process alone, after one warning.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, TransactionBehavior, params};

/// The facts about every host that this user has connected to.
///
/// [`facts`](Self::facts) and [`list`](Self::list) read. [`update`](Self::update) and [`forget`](Self::forget)
/// change the copy in this process at once and leave the disk to a background thread, for which
/// [`flush`](Self::flush) and dropping wait. A host is read from disk at most once in the life of a `Memory`, so
/// what another process learns later is not seen; the last to write a host wins.
///
/// ```
/// use trunkline::memory::{HostId, Memory, Refusal};
///
/// let memory = Memory::in_memory();
/// let host = HostId::new("db1.example.org", 22, "deploy");
/// memory.update(&host, |facts| facts.learn(Refusal::Sessions(10)));
/// assert_eq!(memory.facts(&host).and_then(|facts| facts.max_sessions), Some(10));
/// ```
#[derive(Debug)]
pub struct Memory {
    /// Every host asked about so far; `None` for one that is not remembered.
    known: Mutex<HashMap<HostId, Option<HostFacts>>>,
    /// Set by the first who needs it, from what `opening` returns.
    disk: OnceLock<Option<Disk>>,
    /// A new file takes several writes to the disk, which go on while the first host is resolved.
    opening: Mutex<Option<JoinHandle<Option<Disk>>>>,
}

/// One account on one server: what the facts are about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId {
    /// The resolved host name, not the alias.
    pub hostname: String,
    /// The port.
    pub port: u16,
    /// The remote user.
    pub user: String,
}

impl HostId {
    /// The account `user` on the server at `hostname` and `port`.
    #[must_use]
    pub fn new(hostname: &str, port: u16, user: &str) -> Self {
        Self {
            hostname: hostname.into(),
            port,
            user: user.into(),
        }
    }
}

/// What is remembered about one host. Text that came from the peer is cut to [`LONGEST_TEXT`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The server's identification line, without its line end (RFC 4253 section 4.2).
    pub banner: Option<String>,
    /// The key exchange method that the server listed first: the one a right guess needs (RFC 4253 section 7).
    pub kex_first: Option<String>,
    /// The host key algorithm that the server listed first.
    pub host_key_first: Option<String>,
    /// The server dropped a connection on which our KEXINIT came before its banner.
    pub early_kexinit_refused: bool,
    /// The server did not take authentication and the first channel in one flight.
    pub pipelining_refused: bool,
    /// The server has only algorithms that the engine does not have.
    pub algorithms_refused: bool,
    /// SHA-256 of the public key blob that authenticated last.
    pub key: Option<[u8; 32]>,
    /// How many sessions a connection is known to carry at once (sshd's MaxSessions).
    pub max_sessions: Option<u32>,
    /// The last measured round trip, kept to the microsecond.
    pub rtt: Option<Duration>,
    /// What tuning found for this path, as JSON.
    pub tuning: Option<String>,
    /// When the server last refused something that is remembered above, kept to the millisecond.
    pub refused: SystemTime,
    /// When the facts were last updated, kept to the millisecond.
    pub last_used: SystemTime,
}

impl HostFacts {
    /// The key that authenticated last, as `ssh-keygen -l` and `ssh-add -l` name it.
    #[must_use]
    pub fn key_fingerprint(&self) -> Option<String> {
        self.key
            .map(|digest| format!("SHA256:{}", STANDARD_NO_PAD.encode(digest)))
    }
}

/// What a server has refused, and is not asked for again for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Our KEXINIT before its identification.
    EarlyKexinit,
    /// Authentication and the first channel in one flight.
    Pipelining,
    /// All of our algorithms, of a kind for which the configuration allows others.
    Algorithms,
    /// More sessions than so many on one connection.
    Sessions(u32),
}

/// How long a refusal is remembered: a server's configuration may change, and finding out costs a round trip.
const REFUSAL_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

impl Default for HostFacts {
    fn default() -> Self {
        Self {
            banner: None,
            kex_first: None,
            host_key_first: None,
            early_kexinit_refused: false,
            pipelining_refused: false,
            algorithms_refused: false,
            key: None,
            max_sessions: None,
            rtt: None,
            tuning: None,
            refused: UNIX_EPOCH,
            last_used: UNIX_EPOCH,
        }
    }
}

/// The longest text kept in one fact, in bytes. A banner has at most 255 and tuning results a few hundred.
pub const LONGEST_TEXT: usize = 16 * 1024;

/// The most hosts kept on disk; those used longest ago go first.
pub const MOST_HOSTS: u32 = 50_000;

impl Memory {
    /// The memory kept in `folder` (created with mode 0700 if missing), in a file of mode 0600.
    ///
    /// Never fails: a corrupt file is moved aside and begun anew, and where there is no way to keep a file
    /// (a read-only folder, a file that a newer version wrote) the memory lasts as long as the process. Each is
    /// told in one warning.
    #[must_use]
    pub fn open(folder: &Path) -> Self {
        let folder = folder.to_owned();
        let open = move || {
            Disk::open(&folder)
                .map_err(|error| {
                    tracing::warn!("host memory is not kept in {}: {error}", folder.display());
                })
                .ok()
        };
        let opening = thread::Builder::new().name("host memory".into()).spawn(open);
        Self {
            known: Mutex::default(),
            disk: OnceLock::new(),
            opening: Mutex::new(
                opening
                    .map_err(|error| tracing::warn!("host memory is not kept: no thread: {error}"))
                    .ok(),
            ),
        }
    }

    /// A memory that is forgotten when it is dropped.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            known: Mutex::default(),
            disk: OnceLock::from(None),
            opening: Mutex::new(None),
        }
    }

    /// Whether updates still reach a file.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.disk().is_some_and(|disk| !disk.queue.lock().lost)
    }

    fn disk(&self) -> Option<&Disk> {
        let opened = || lock(&self.opening).take()?.join().ok()?;
        self.disk.get_or_init(opened).as_ref()
    }

    /// What is known about `host`; `None` for one never updated.
    #[must_use]
    pub fn facts(&self, host: &HostId) -> Option<HostFacts> {
        let facts = self.read_through(&mut lock(&self.known), host).clone();
        facts.map(|facts| facts.believed_at(SystemTime::now()))
    }

    /// Changes what is known about `host`, beginning from nothing where it is new. `last_used` becomes the present
    /// moment before `change` sees it.
    pub fn update(&self, host: &HostId, change: impl FnOnce(&mut HostFacts)) {
        let mut known = lock(&self.known);
        let now = SystemTime::now();
        let mut facts = self
            .read_through(&mut known, host)
            .clone()
            .unwrap_or_default()
            .believed_at(now);
        facts.last_used = now;
        change(&mut facts);
        facts.bound();
        known.insert(host.clone(), Some(facts.clone()));
        if let Some(disk) = self.disk() {
            // Queued under the lock on `known`, so that the disk sees changes in the order the process did.
            disk.queue.push(host, Some(facts));
        }
    }

    /// Forgets `host`.
    pub fn forget(&self, host: &HostId) {
        let mut known = lock(&self.known);
        known.insert(host.clone(), None);
        if let Some(disk) = self.disk() {
            disk.queue.push(host, None);
        }
    }

    /// Every remembered host, the most recently used first.
    #[must_use]
    pub fn list(&self) -> Vec<(HostId, HostFacts)> {
        self.flush();
        let mut all: HashMap<HostId, HostFacts> = self
            .disk()
            .map(Disk::read_all)
            .unwrap_or_default()
            .into_iter()
            .collect();
        for (host, facts) in lock(&self.known).iter() {
            match facts {
                Some(facts) => all.insert(host.clone(), facts.clone()),
                None => all.remove(host),
            };
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by(|(a, x), (b, y)| y.last_used.cmp(&x.last_used).then_with(|| a.cmp(b)));
        all
    }

    /// Waits until everything changed so far is on disk, or the disk has been given up.
    pub fn flush(&self) {
        if let Some(disk) = self.disk() {
            disk.queue.wait_until_written();
        }
    }

    fn read_through<'a>(
        &self,
        known: &'a mut HashMap<HostId, Option<HostFacts>>,
        host: &HostId,
    ) -> &'a Option<HostFacts> {
        known
            .entry(host.clone())
            .or_insert_with(|| self.disk().and_then(|disk| disk.read(host)))
    }
}

impl HostFacts {
    /// Remembers what the server refused just now.
    pub fn learn(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::EarlyKexinit => self.early_kexinit_refused = true,
            Refusal::Pipelining => self.pipelining_refused = true,
            Refusal::Algorithms => self.algorithms_refused = true,
            Refusal::Sessions(limit) => self.max_sessions = Some(limit),
        }
        self.refused = SystemTime::now();
    }

    /// What is to be believed at `now`: a refusal of long ago is not.
    fn believed_at(mut self, now: SystemTime) -> Self {
        if now
            .duration_since(self.refused)
            .is_ok_and(|age| age > REFUSAL_KEPT)
        {
            self.early_kexinit_refused = false;
            self.pipelining_refused = false;
            self.algorithms_refused = false;
            self.max_sessions = None;
        }
        self
    }

    fn bound(&mut self) {
        for text in [&mut self.banner, &mut self.kex_first, &mut self.host_key_first]
            .into_iter()
            .flatten()
        {
            let end = (0..=LONGEST_TEXT.min(text.len()))
                .rev()
                .find(|&at| text.is_char_boundary(at));
            text.truncate(end.unwrap_or(0));
        }
        // Half a JSON document is worth nothing.
        self.tuning.take_if(|json| json.len() > LONGEST_TEXT);
    }
}

/// The file, a connection to read it and the thread that writes it.
#[derive(Debug)]
struct Disk {
    /// Guards the reading connection, which only fills gaps in `Memory::known`.
    reader: Mutex<Connection>,
    queue: Arc<WriteQueue>,
    writer: Option<JoinHandle<()>>,
}

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
enum DiskError {
    #[error("cannot prepare {0}: {1}")]
    Folder(PathBuf, io::Error),
    #[error("{0} was written by a newer version of this program (format {1}); update, or delete the file")]
    Newer(PathBuf, u32),
    #[error("{0}: {1}")]
    Sqlite(PathBuf, rusqlite::Error),
    #[error("cannot start its thread: {0}")]
    Thread(io::Error),
}

impl Disk {
    fn open(folder: &Path) -> Result<Self, DiskError> {
        let file = folder.join(FILE_NAME);
        let prepare = |error| DiskError::Folder(file.clone(), error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(prepare)?;
        let writer = match connect(folder, &file) {
            Err(DiskError::Sqlite(_, error)) if is_corrupt(&error) => {
                let aside = set_aside(&file).map_err(prepare)?;
                tracing::warn!(
                    "host memory was damaged ({error}); started a new one; the old file is {}",
                    aside.display()
                );
                connect(folder, &file)?
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

    fn read(&self, host: &HostId) -> Option<HostFacts> {
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

    fn read_all(&self) -> Vec<(HostId, HostFacts)> {
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

/// Changes on their way to the disk: at most one for each host, so that it is bounded by the hosts in use.
#[derive(Debug, Default)]
struct WriteQueue {
    state: Mutex<WriteState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WriteState {
    /// The newest facts of each changed host; `None` forgets it.
    pending: HashMap<HostId, Option<HostFacts>>,
    /// The thread holds a batch that it has not finished writing.
    writing: bool,
    /// The disk failed; nothing more is written.
    lost: bool,
    closing: bool,
}

impl WriteQueue {
    fn lock(&self) -> MutexGuard<'_, WriteState> {
        lock(&self.state)
    }

    fn push(&self, host: &HostId, facts: Option<HostFacts>) {
        let mut state = self.lock();
        if !state.lost {
            state.pending.insert(host.clone(), facts);
            self.changed.notify_all();
        }
    }

    fn wait_until_written(&self) {
        let mut state = self.lock();
        while !state.lost && (state.writing || !state.pending.is_empty()) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The writing thread: one transaction for whatever has gathered, until the queue closes empty.
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
                    // Others held the file for the whole timeout.
                    refused += 1;
                    let mut state = self.lock();
                    if refused < PATIENCE && !state.closing {
                        for (host, facts) in batch {
                            state.pending.entry(host).or_insert(facts);
                        }
                    } else {
                        // The facts stay known here.
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
                        // The next process begins anew instead of failing the same way.
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

const FILE_NAME: &str = "hosts.sqlite3";

/// How long a process waits for another's transaction; each takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeouts in a row before an update is given up. A process that ends waits for one only.
const PATIENCE: u32 = 6;

/// The schema's history: entry `n` takes a file from `user_version` `n` to `n + 1`.
const MIGRATIONS: &[&str] = &[
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
];

/// Opens the file for writing, brings its schema up to date and prunes it.
fn connect(folder: &Path, file: &Path) -> Result<Connection, DiskError> {
    // Made before SQLite does, which would follow the umask; its -wal and -shm copy the mode of the file.
    let created = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(file);
    created
        .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o600)))
        .map_err(|error| DiskError::Folder(file.into(), error))?;
    let sqlite = |error| DiskError::Sqlite(file.into(), error);
    let mut connection = Connection::open(file).map_err(sqlite)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(sqlite)?;
    // WAL needs shared memory, which no network file system gives (sqlite.org/wal.html, "Disadvantages").
    let journal = if is_on_network(folder) { "TRUNCATE" } else { "WAL" };
    connection
        .pragma_update(None, "journal_mode", journal)
        .map_err(sqlite)?;
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
                "INSERT OR REPLACE INTO hosts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            )?
            .execute(params![
                host.hostname,
                host.port,
                host.user,
                facts.banner,
                facts.kex_first,
                facts.host_key_first,
                facts.early_kexinit_refused,
                facts.pipelining_refused,
                facts.key,
                facts.max_sessions,
                facts.rtt.map(|rtt| i64::try_from(rtt.as_micros()).unwrap_or(i64::MAX)),
                facts.tuning,
                milliseconds(facts.last_used),
                milliseconds(facts.refused),
                facts.algorithms_refused,
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
        early_kexinit_refused: row.get("early_kexinit_refused")?,
        pipelining_refused: row.get("pipelining_refused")?,
        algorithms_refused: row.get("algorithms_refused")?,
        key: row.get("key")?,
        max_sessions: row.get("max_sessions")?,
        rtt: rtt.map(|rtt| Duration::from_micros(rtt.unsigned_abs())),
        tuning: row.get("tuning")?,
        refused: moment(row.get("refused_milliseconds")?),
        last_used: moment(row.get("last_used_milliseconds")?),
    })
}

fn milliseconds(moment: SystemTime) -> i64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn moment(milliseconds: i64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_millis(milliseconds.unsigned_abs()))
        .unwrap_or(UNIX_EPOCH)
}

fn is_corrupt(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Renames a damaged file and removes SQLite's files beside it, which a new database would take for its own.
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

/// Whether the folder's file system is, or may be, served by another machine.
#[cfg(target_os = "linux")]
fn is_on_network(folder: &Path) -> bool {
    /// The magic numbers of statfs(2). FUSE is among them because sshfs and its like hide behind it.
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
        0x786f_4256, // VirtualBox shared folder
        0x6573_5546, // FUSE
    ];
    // The magic numbers have 32 bits; the field's width and sign vary by architecture.
    rustix::fs::statfs(folder).map_or(true, |about| NETWORK.contains(&(about.f_type as u32)))
}

/// Elsewhere the type is not known by number; the rollback journal works on every file system.
#[cfg(not(target_os = "linux"))]
fn is_on_network(_folder: &Path) -> bool {
    true
}

/// A panic under one of these locks leaves plain data that is still whole, so poisoning is passed over.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(name: &str) -> HostId {
        HostId::new(name, 22, "root")
    }

    #[test]
    fn facts_outlive_the_memory_that_learned_them() {
        let folder = tempfile::tempdir().unwrap();
        let learned = {
            let memory = Memory::open(folder.path());
            memory.update(&host("a"), |facts| {
                facts.banner = Some("SSH-2.0-OpenSSH_9.2p1".into());
                facts.kex_first = Some("sntrup761x25519-sha512".into());
                facts.host_key_first = Some("rsa-sha2-512".into());
                facts.learn(Refusal::EarlyKexinit);
                facts.key = Some([7; 32]);
                facts.learn(Refusal::Sessions(10));
                facts.refused = moment(milliseconds(facts.refused));
                facts.rtt = Some(Duration::from_micros(1234));
                facts.tuning = Some("{}".into());
                facts.last_used = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
            });
            memory.facts(&host("a")).unwrap()
        };
        let memory = Memory::open(folder.path());
        assert!(memory.is_persistent());
        assert_eq!(memory.facts(&host("a")), Some(learned));
        assert_eq!(memory.facts(&HostId::new("a", 23, "root")), None);
        assert_eq!(memory.facts(&HostId::new("a", 22, "other")), None);
    }

    #[test]
    fn a_forgotten_host_stays_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        {
            let memory = Memory::open(folder.path());
            memory.update(&host("a"), |_| {});
            memory.update(&host("b"), |_| {});
            memory.flush();
            memory.forget(&host("a"));
            assert_eq!(memory.facts(&host("a")), None);
            assert_eq!(memory.list().len(), 1);
        }
        let listed = Memory::open(folder.path()).list();
        assert_eq!(
            listed.into_iter().map(|(host, _)| host).collect::<Vec<_>>(),
            [host("b")]
        );
    }

    #[test]
    fn the_list_begins_with_the_host_used_last() {
        let memory = Memory::in_memory();
        for (name, second) in [("old", 1), ("new", 3), ("middle", 2)] {
            memory.update(&host(name), |facts| {
                facts.last_used = UNIX_EPOCH + Duration::from_secs(second);
            });
        }
        let names: Vec<_> = memory.list().into_iter().map(|(host, _)| host.hostname).collect();
        assert_eq!(names, ["new", "middle", "old"]);
    }

    #[test]
    fn only_the_owner_can_read_the_file() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("state/trunkline");
        let memory = Memory::open(&folder);
        memory.update(&host("a"), |_| {});
        memory.flush();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        for entry in fs::read_dir(&folder).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
    }

    #[test]
    fn a_corrupt_file_is_moved_aside_and_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE_NAME), [b'x'; 8192]).unwrap();
        let memory = Memory::open(folder.path());
        assert!(memory.is_persistent());
        memory.update(&host("a"), |_| {});
        drop(memory);
        assert!(Memory::open(folder.path()).facts(&host("a")).is_some());
        assert!(folder.path().join(format!("{FILE_NAME}.corrupt")).exists());
    }

    #[test]
    fn a_newer_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        Connection::open(&file)
            .unwrap()
            .pragma_update(None, "user_version", 1000)
            .unwrap();
        let memory = Memory::open(folder.path());
        assert!(!memory.is_persistent());
        memory.update(&host("a"), |_| {});
        assert!(memory.facts(&host("a")).is_some());
        drop(memory);
        let version: u32 = Connection::open(&file)
            .unwrap()
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap();
        assert_eq!(version, 1000);
    }

    #[test]
    fn a_refusal_is_believed_for_a_week() {
        let mut facts = HostFacts::default();
        for refusal in [
            Refusal::EarlyKexinit,
            Refusal::Pipelining,
            Refusal::Algorithms,
            Refusal::Sessions(2),
        ] {
            facts.learn(refusal);
        }
        let later = |days: u64| facts.refused + Duration::from_secs(days * 24 * 3600);
        assert_eq!(facts.clone().believed_at(later(6)), facts);
        let forgotten = facts.clone().believed_at(later(8));
        assert!(!forgotten.early_kexinit_refused && !forgotten.pipelining_refused);
        assert!(!forgotten.algorithms_refused);
        assert_eq!(forgotten.max_sessions, None);
    }

    #[test]
    fn a_file_of_the_first_format_is_brought_up_to_date() {
        let folder = tempfile::tempdir().unwrap();
        let old = Connection::open(folder.path().join(FILE_NAME)).unwrap();
        old.execute_batch(MIGRATIONS[0]).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        old.execute(
            "INSERT INTO hosts VALUES ('a', 22, 'root', 'SSH-2.0-x', NULL, NULL, 0, 0, NULL, 10, NULL, NULL, 5)",
            [],
        )
        .unwrap();
        drop(old);
        let memory = Memory::open(folder.path());
        assert!(memory.is_persistent());
        let facts = memory.facts(&host("a")).unwrap();
        assert_eq!(facts.banner.as_deref(), Some("SSH-2.0-x"));
        assert_eq!(facts.max_sessions, None, "nobody knows since when");
    }

    #[test]
    fn without_a_folder_the_memory_lasts_as_long_as_the_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let memory = Memory::open(&file.path().join("below-a-file"));
        assert!(!memory.is_persistent());
        memory.update(&host("a"), |facts| facts.learn(Refusal::Sessions(1)));
        memory.flush();
        assert_eq!(memory.facts(&host("a")).unwrap().max_sessions, Some(1));
    }

    #[test]
    fn a_disk_that_fails_later_is_given_up_without_losing_what_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::open(folder.path());
        assert!(memory.is_persistent());
        let trigger = "CREATE TRIGGER full BEFORE INSERT ON hosts BEGIN SELECT RAISE(ABORT, 'full'); END;";
        Connection::open(folder.path().join(FILE_NAME))
            .unwrap()
            .execute_batch(trigger)
            .unwrap();
        memory.update(&host("a"), |_| {});
        memory.flush();
        assert!(!memory.is_persistent());
        memory.update(&host("b"), |_| {});
        memory.flush();
        assert_eq!(memory.list().len(), 2);
    }

    #[test]
    fn two_processes_may_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        thread::scope(|scope| {
            for writer in 0..4 {
                let folder = folder.path();
                scope.spawn(move || {
                    let memory = Memory::open(folder);
                    for number in 0..50 {
                        memory.update(&host(&format!("{writer}-{number}")), |_| {});
                    }
                    memory.flush();
                });
            }
        });
        assert_eq!(Memory::open(folder.path()).list().len(), 200);
    }

    #[test]
    fn text_from_a_peer_is_bounded() {
        let memory = Memory::in_memory();
        memory.update(&host("a"), |facts| {
            facts.banner = Some("é".repeat(LONGEST_TEXT));
            facts.tuning = Some("1".repeat(LONGEST_TEXT + 1));
        });
        let facts = memory.facts(&host("a")).unwrap();
        assert_eq!(facts.banner.unwrap().len(), LONGEST_TEXT);
        assert_eq!(facts.tuning, None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn no_file_content_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..4096), header in any::<bool>()) {
            if header {
                bytes.splice(0..0, *b"SQLite format 3\0");
            }
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(FILE_NAME), bytes).unwrap();
            let memory = Memory::open(folder.path());
            memory.update(&host("a"), |_| {});
            prop_assert!(memory.facts(&host("a")).is_some());
            prop_assert_eq!(memory.list().len(), 1);
        }
    }
}
