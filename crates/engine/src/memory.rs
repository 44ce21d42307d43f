//! Host memory: each server's identification, first choices, session limit and round trip, and the key that worked.
//!
//! It is a true cache: deleting it only costs speed, and it contains no secrets. Disk failures never reach the caller:
//! after one warning, the memory lives only in the process.

mod disk;
mod facts;
mod lesson;
mod moment;
pub(crate) mod tuned;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use crate::config::{HostConfig, NameList};
use disk::Disk;
use facts::lock;
pub use facts::{HostFacts, HostId, LONGEST_TEXT, MOST_HOSTS};
pub use lesson::{Lesson, Lessons};

/// The facts about every host that this user has connected to.
///
/// [`recall`](Self::recall), [`facts`](Self::facts) and [`list`](Self::list) read. [`update`](Self::update) and
/// [`forget`](Self::forget) change the copy in this process at once and leave the disk to a background thread, for
/// which [`flush`](Self::flush) and dropping wait. A `Memory` reads a host from disk at most once, so that it does not
/// see what other processes learn later. The last to write a host wins.
///
/// ```
/// use trunkline::memory::{HostId, Lesson, Memory};
///
/// let memory = Memory::in_memory();
/// let host = HostId::new("db1.example.org", 22, "deploy");
/// memory.update(&host, |facts| facts.lessons.learn(Lesson::MaxSessions, 10));
/// assert_eq!(memory.facts(&host).and_then(|facts| facts.lessons.number(Lesson::MaxSessions)), Some(10));
/// ```
#[derive(Debug)]
pub struct Memory {
    /// Every host looked up so far; `None` for one that is not remembered.
    known: Mutex<HashMap<HostId, Option<HostFacts>>>,
    /// Set on first use, to the result of `opening`.
    disk: OnceLock<Option<Disk>>,
    /// Opens the file while the first host is resolved, because a new file takes several disk writes.
    opening: Mutex<Option<JoinHandle<Option<Disk>>>>,
    /// Log-ins for which ssh has a key that the engine cannot use. In this process only: they do not concern the
    /// server.
    left_to_ssh: Mutex<HashSet<LogIn>>,
}

/// An account and what a configuration logs in with. Another configuration, or a rewritten key file, makes another
/// log-in.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LogIn {
    host: HostId,
    /// Identity files, with their lengths and times.
    files: Vec<(PathBuf, Option<(u64, SystemTime)>)>,
    agent: Option<PathBuf>,
    accepted: NameList,
}

impl LogIn {
    fn from_config(config: &HostConfig) -> Self {
        let stamp = |path: &Path| {
            let about = path.metadata().ok()?;
            Some((about.len(), about.modified().ok()?))
        };
        let files = config.identity_files.iter().map(|file| &file.path);
        Self {
            host: HostId::from_config(config),
            files: files.map(|path| (path.clone(), stamp(path))).collect(),
            agent: config.identity_agent.clone(),
            accepted: config.pubkey_accepted_algorithms.clone(),
        }
    }
}

/// The most log-ins known to need ssh; beyond that, they are discovered again.
const MOST_LEFT: usize = 10_000;

impl Memory {
    /// Opens the memory in `directory` (created with mode 0700 if missing), in a file of mode 0600.
    ///
    /// Never fails. A corrupt file is moved aside and replaced. If no file can be kept (a read-only directory, a file
    /// from a newer version), the memory lasts as long as the process. Each case gives one warning. In a forked child
    /// of a process with such a memory, it lasts as long as the child, and does not know the parent's facts.
    #[must_use]
    pub fn open(directory: &Path) -> Self {
        if !disk::is_usable_here() {
            tracing::debug!("host memory is not kept by a child that fork made");
            return Self::in_memory();
        }
        let directory = directory.to_owned();
        let open = move || {
            Disk::open(&directory)
                .map_err(|error| {
                    tracing::warn!("host memory is not kept in {}: {error}", directory.display());
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
            left_to_ssh: Mutex::default(),
        }
    }

    /// Creates a memory that is forgotten when it is dropped.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            known: Mutex::default(),
            disk: OnceLock::from(None),
            opening: Mutex::new(None),
            left_to_ssh: Mutex::default(),
        }
    }

    /// Returns whether updates still reach a file.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.disk().is_some_and(|disk| !disk.queue.lock().lost)
    }

    /// Reads what is known about `host` from disk, on a blocking thread, so that later calls of [`facts`](Self::facts)
    /// and [`update`](Self::update) return at once.
    pub async fn recall(self: &Arc<Self>, host: &HostId) {
        if lock(&self.known).contains_key(host) {
            return;
        }
        let (memory, host) = (Arc::clone(self), host.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let found = memory.disk().and_then(|disk| disk.read(&host));
            // An update in the meantime is newer.
            lock(&memory.known).entry(host).or_insert(found);
        });
        // If it fails, the facts are read on demand.
        let _ = reading.await;
    }

    fn disk(&self) -> Option<&Disk> {
        let opened = || lock(&self.opening).take()?.join().ok()?;
        self.disk.get_or_init(opened).as_ref()
    }

    /// Returns the facts about `host`; `None` if it was never updated.
    #[must_use]
    pub fn facts(&self, host: &HostId) -> Option<HostFacts> {
        let facts = self.read_through(&mut lock(&self.known), host).clone();
        facts.map(|facts| facts.believed_at(SystemTime::now()))
    }

    /// Changes what is known about `host`, starting from nothing if it is new. Sets `last_used` to now before calling
    /// `change`.
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
        facts.limit_sizes();
        known.insert(host.clone(), Some(facts.clone()));
        if let Some(disk) = self.disk() {
            // Queued under the lock on `known`, so that the disk sees changes in the order the process did.
            disk.queue.push(host, Some(facts));
        }
    }

    /// Notes that only ssh can log in with this configuration.
    pub(crate) fn leave_to_ssh(&self, config: &HostConfig) {
        let mut left = lock(&self.left_to_ssh);
        if left.len() >= MOST_LEFT {
            left.clear();
        }
        left.insert(LogIn::from_config(config));
    }

    /// Returns whether only ssh can log in with this configuration, as noted earlier.
    pub(crate) fn is_left_to_ssh(&self, config: &HostConfig) -> bool {
        let left = lock(&self.left_to_ssh);
        !left.is_empty() && left.contains(&LogIn::from_config(config))
    }

    /// Removes everything that is remembered of a host.
    pub fn forget(&self, host: &HostId) {
        lock(&self.left_to_ssh).retain(|log_in| log_in.host != *host);
        let mut known = lock(&self.known);
        known.insert(host.clone(), None);
        if let Some(disk) = self.disk() {
            disk.queue.push(host, None);
        }
    }

    /// Returns every remembered host, the most recently used first.
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

    /// Waits until all changes are on disk, or the disk has been given up.
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

/// The memory of one host.
#[derive(Debug, Clone)]
pub(crate) struct Learner {
    memory: Arc<Memory>,
    host: HostId,
}

impl Learner {
    pub(crate) fn new(memory: &Arc<Memory>, host: HostId) -> Self {
        Self {
            memory: memory.clone(),
            host,
        }
    }

    /// Returns the facts about the host.
    pub(crate) fn facts(&self) -> HostFacts {
        self.memory.facts(&self.host).unwrap_or_default()
    }

    /// Returns the facts about another host.
    pub(crate) fn facts_of(&self, host: &HostId) -> HostFacts {
        self.memory.facts(host).unwrap_or_default()
    }

    pub(crate) fn has(&self, lesson: Lesson) -> bool {
        self.facts().lessons.has(lesson)
    }

    /// Remembers a lesson, and forgets those that it contradicts.
    pub(crate) fn learn(&self, lesson: Lesson, number: u32) {
        self.memory.update(&self.host, |facts| {
            for gone in lesson.takes_back() {
                facts.lessons.unlearn(*gone);
            }
            facts.lessons.learn(lesson, number);
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::config::IdentityFile;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;
    use rusqlite::Connection;

    use super::disk::{FILE_NAME, MIGRATIONS};
    use super::*;

    fn host(name: &str) -> HostId {
        HostId::new(name, 22, "root")
    }

    fn sessions(facts: &HostFacts) -> Option<u32> {
        facts.lessons.number(Lesson::MaxSessions)
    }

    #[test]
    fn a_log_in_that_is_left_to_ssh_is_that_of_its_keys() {
        let directory = tempfile::tempdir().unwrap();
        let with = |name: &str| {
            let mut config = HostConfig::explicit("db1", 22, "me").unwrap();
            let path = directory.path().join(name);
            config.identity_files = vec![IdentityFile {
                path,
                is_default: false,
            }];
            config
        };
        std::fs::write(directory.path().join("old"), "a key in PEM").unwrap();
        let memory = Memory::in_memory();
        memory.leave_to_ssh(&with("old"));
        assert!(memory.is_left_to_ssh(&with("old")));
        assert!(!memory.is_left_to_ssh(&with("new")));
        // The key file was converted.
        std::fs::write(directory.path().join("old"), "a key in OpenSSH's format").unwrap();
        assert!(!memory.is_left_to_ssh(&with("old")));
        memory.leave_to_ssh(&with("old"));
        memory.forget(&HostId::from_config(&with("old")));
        assert!(!memory.is_left_to_ssh(&with("old")));
    }

    #[test]
    fn facts_outlive_the_memory_that_learned_them() {
        let directory = tempfile::tempdir().unwrap();
        let learned = {
            let memory = Memory::open(directory.path());
            memory.update(&host("a"), |facts| {
                facts.banner = Some("SSH-2.0-OpenSSH_9.2p1".into());
                facts.kex_first = Some("sntrup761x25519-sha512".into());
                facts.host_key_first = Some("rsa-sha2-512".into());
                facts.lessons.learn(Lesson::NoEarlyKexinit, 1);
                facts.key = Some([7; 32]);
                facts.lessons.learn(Lesson::MaxSessions, 10);
                facts.rtt = Some(Duration::from_micros(1234));
                facts.tuning = Some("{}".into());
                facts.last_used = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
            });
            memory.facts(&host("a")).unwrap()
        };
        let memory = Memory::open(directory.path());
        assert!(memory.is_persistent());
        assert_eq!(memory.facts(&host("a")), Some(learned));
        assert_eq!(memory.facts(&HostId::new("a", 23, "root")), None);
        assert_eq!(memory.facts(&HostId::new("a", 22, "other")), None);
    }

    #[tokio::test]
    async fn a_recalled_host_is_not_read_from_the_disk_again() {
        let directory = tempfile::tempdir().unwrap();
        Memory::open(directory.path())
            .update(&host("a"), |facts| facts.lessons.learn(Lesson::MaxSessions, 3));
        let memory = Arc::new(Memory::open(directory.path()));
        memory.recall(&host("a")).await;
        memory.recall(&host("b")).await;
        let known = lock(&memory.known).clone();
        assert_eq!(sessions(known[&host("a")].as_ref().unwrap()), Some(3));
        assert_eq!(known[&host("b")], None);
        memory.update(&host("b"), |facts| facts.lessons.learn(Lesson::MaxSessions, 4));
        memory.recall(&host("b")).await;
        assert_eq!(sessions(&memory.facts(&host("b")).unwrap()), Some(4));
    }

    #[test]
    fn a_forgotten_host_stays_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        {
            let memory = Memory::open(directory.path());
            memory.update(&host("a"), |_| {});
            memory.update(&host("b"), |_| {});
            memory.flush();
            memory.forget(&host("a"));
            assert_eq!(memory.facts(&host("a")), None);
            assert_eq!(memory.list().len(), 1);
        }
        let listed = Memory::open(directory.path()).list();
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
        let directory = parent.path().join("state/trunkline");
        let memory = Memory::open(&directory);
        memory.update(&host("a"), |_| {});
        memory.flush();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        for entry in fs::read_dir(&directory).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
    }

    #[test]
    fn a_corrupt_file_is_moved_aside_and_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE_NAME), [b'x'; 8192]).unwrap();
        let memory = Memory::open(directory.path());
        assert!(memory.is_persistent());
        memory.update(&host("a"), |_| {});
        drop(memory);
        assert!(Memory::open(directory.path()).facts(&host("a")).is_some());
        assert!(directory.path().join(format!("{FILE_NAME}.corrupt")).exists());
    }

    #[test]
    fn a_newer_file_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE_NAME);
        Connection::open(&file)
            .unwrap()
            .pragma_update(None, "user_version", 1000)
            .unwrap();
        let memory = Memory::open(directory.path());
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
    fn a_file_of_the_first_format_is_brought_up_to_date() {
        let directory = tempfile::tempdir().unwrap();
        let old = Connection::open(directory.path().join(FILE_NAME)).unwrap();
        old.execute_batch(MIGRATIONS[0]).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        old.execute(
            "INSERT INTO hosts VALUES ('a', 22, 'root', 'SSH-2.0-x', NULL, NULL, 0, 0, NULL, 10, NULL, NULL, 5)",
            [],
        )
        .unwrap();
        drop(old);
        let memory = Memory::open(directory.path());
        assert!(memory.is_persistent());
        let facts = memory.facts(&host("a")).unwrap();
        assert_eq!(facts.banner.as_deref(), Some("SSH-2.0-x"));
        assert_eq!(sessions(&facts), None, "nobody knows since when");
    }

    #[test]
    fn without_a_directory_the_memory_lasts_as_long_as_the_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let memory = Memory::open(&file.path().join("below-a-file"));
        assert!(!memory.is_persistent());
        memory.update(&host("a"), |facts| facts.lessons.learn(Lesson::MaxSessions, 1));
        memory.flush();
        assert_eq!(sessions(&memory.facts(&host("a")).unwrap()), Some(1));
    }

    #[test]
    fn a_disk_that_fails_later_is_given_up_without_losing_what_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::open(directory.path());
        assert!(memory.is_persistent());
        let trigger = "CREATE TRIGGER full BEFORE INSERT ON hosts BEGIN SELECT RAISE(ABORT, 'full'); END;";
        Connection::open(directory.path().join(FILE_NAME))
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
        let directory = tempfile::tempdir().unwrap();
        thread::scope(|scope| {
            for writer in 0..4 {
                let directory = directory.path();
                scope.spawn(move || {
                    let memory = Memory::open(directory);
                    for number in 0..50 {
                        memory.update(&host(&format!("{writer}-{number}")), |_| {});
                    }
                    memory.flush();
                });
            }
        });
        assert_eq!(Memory::open(directory.path()).list().len(), 200);
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
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(FILE_NAME), bytes).unwrap();
            let memory = Memory::open(directory.path());
            memory.update(&host("a"), |_| {});
            prop_assert!(memory.facts(&host("a")).is_some());
            prop_assert_eq!(memory.list().len(), 1);
        }
    }
}
