//! [`Survey`]: what a server's directories have, as its own find(1) tells it.
//!
//! GNU find prints what sftp-server tells of a name for a quarter of the CPU, and many directories with one process. A shell
//! that is there for the whole copy runs it on the directories that are asked for, many at a time. Its word counts only where
//! find reports success and every record is what was asked for; some names out of each batch are looked at over SFTP, too,
//! since a shell need not see the files that SFTP shows. Everything else is asked over SFTP
//! ([ADR 39](../../../../docs/adr/0039-listings-by-find.md)).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use trunkline_request::shell::quote;

use super::job::Job;
use super::path;
use super::sessions::Sessions;
use super::shells::Shell;
use super::there::{Listing, Listings};
use crate::sftp::{FileAttributes, FileType, Owner, Permissions, Sftp, Times};

/// The directories that were asked for before a shell is worth its start.
const WORTH: usize = 8;
/// Directories, and their names' bytes, in one command at most.
const A_BATCH: usize = 64;
const A_LINE: usize = 16 * 1024;
/// As few wait while others are under way: each command is a process.
const WAITING: usize = 32;
/// Commands under way.
const AT_ONCE: usize = 4;
/// Names of each batch that are looked at over SFTP, too.
const SAMPLES: usize = 2;
/// Beyond this a survey's round trips cost more than its CPU saves.
const FAR: Duration = Duration::from_millis(25);
/// The time that a command may say nothing.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest record.
const LONGEST: usize = 64 * 1024;

/// A copy's way to ask for directories below its target's root.
pub(super) struct Survey {
    asked: AtomicUsize,
    wants: mpsc::UnboundedSender<Want>,
    /// Ends with this.
    _task: JoinSet<()>,
}

struct Want {
    directory: Bytes,
    told: oneshot::Sender<Option<FileAttributes>>,
    /// It was told in a batch that failed for some of its directories.
    again: bool,
}

impl Survey {
    /// One that begins when it is asked for enough.
    pub(super) fn new(job: &Arc<Job>, sessions: &Arc<Sessions>, root: &Bytes) -> Self {
        let (wants, waiting) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        if job.options.looks_first() && sessions.host().is_some() {
            let (job, sessions, root) = (job.clone(), sessions.clone(), root.clone());
            task.spawn(async move { survey(&job, &sessions, &root, waiting).await.unwrap_or_default() });
        }
        Self {
            asked: AtomicUsize::new(0),
            wants,
            _task: task,
        }
    }

    /// Returns a directory's own attributes, after its listing was added to the job's; `None`: it has to be asked for over SFTP.
    pub(super) async fn look_at(&self, directory: &Bytes) -> Option<FileAttributes> {
        if self.asked.fetch_add(1, Ordering::Relaxed) < WORTH {
            return None;
        }
        let (told, found) = oneshot::channel();
        let want = Want {
            directory: directory.clone(),
            told,
            again: false,
        };
        self.wants.send(want).ok()?;
        found.await.ok()?
    }
}

/// Answers what is asked until something is not as it should be, or nobody can ask any more. `None` is the same.
async fn survey(
    job: &Job,
    sessions: &Sessions,
    root: &Bytes,
    mut wants: mpsc::UnboundedReceiver<Want>,
) -> Option<()> {
    let first = wants.recv().await?;
    if sessions.rtt().await.ok()? > FAR || !sessions.first().is_sftp_server().await.ok()? {
        return None;
    }
    let host = sessions.host()?;
    // A shell may start in another directory than SFTP.
    let realpath = sessions.retry(|sftp: Sftp| async move { sftp.realpath(root).await });
    let (shell, there) = tokio::join!(Shell::start(&host), realpath);
    let mut shell = shell?;
    shell.send(preamble(&there.ok()?)).await?;
    let mut waiting = VecDeque::from([first]);
    let mut asked: VecDeque<Batch> = VecDeque::new();
    let mut sampled = FuturesUnordered::new();
    let mut is_proven = false;
    loop {
        let is_worth = waiting.len() >= WAITING || asked.is_empty() && sampled.is_empty();
        if !waiting.is_empty() && asked.len() < AT_ONCE && is_worth {
            let (batch, line) = Batch::take_from(&mut waiting, &job.there);
            asked.push_back(batch);
            shell.send(line).await?;
            continue;
        }
        tokio::select! {
            want = wants.recv() => waiting.push_back(want?),
            Some(batch) = sampled.next() => {
                let batch: Batch = batch?;
                is_proven = true;
                waiting.extend(batch.tell(&job.there));
            }
            // Whatever a server runs instead of a shell may wait for something, too.
            () = tokio::time::sleep(PATIENCE), if !asked.is_empty() => return None,
            record = shell.next(LONGEST) => {
                let batch = asked.front_mut()?;
                let Some(is_whole) = batch.take(&record?)? else {
                    continue;
                };
                let mut batch = asked.pop_front()?;
                batch.is_whole = is_whole;
                // No find that takes these words.
                if !is_whole && !is_proven {
                    return None;
                }
                sampled.push(sample(batch, sessions, root));
            }
        }
    }
}

/// Gives back a batch that is as SFTP shows it, as far as some of its names tell.
async fn sample(batch: Batch, sessions: &Sessions, root: &Bytes) -> Option<Batch> {
    for (path, told) in batch.samples() {
        let path = &path::in_root(root, &path);
        let found = sessions
            .retry(|sftp: Sftp| async move { sftp.lstat(path).await })
            .await
            .ok()?;
        let seen = |of: &FileAttributes| {
            let modified = of.times.map(|times| times.modified);
            (of.size, of.permissions, of.owner, modified)
        };
        if seen(&found) != seen(&told) {
            tracing::debug!(
                "a shell on {} shows other files than SFTP",
                sessions.first().host()
            );
            return None;
        }
    }
    Some(batch)
}

/// Returns the shell's first lines.
fn preamble(root: &[u8]) -> Bytes {
    let mut script = b"LC_ALL=C; TZ=UTC0; export LC_ALL TZ; unset CDPATH; cd ".to_vec();
    script.extend(quote(root));
    script.extend_from_slice(
        b" || exit 3\n\
          f() { find \"$@\" -maxdepth 1 -printf '%d %y %m %s %T@ %U %G %p\\0' </dev/null; printf 'E %s\\0' $?; }\n",
    );
    script.into()
}

/// Directories that one command lists.
struct Batch {
    wants: Vec<Want>,
    /// The answer for each, in order.
    told: Vec<Told>,
    /// The one that is being told.
    at: usize,
    /// Some of the names, by their hashes: what the server cannot have chosen.
    samples: Vec<(u64, Bytes, FileAttributes)>,
    /// The command succeeded.
    is_whole: bool,
}

/// The answer about a directory.
struct Told {
    own: Option<FileAttributes>,
    is_told: bool,
    names: Listing,
}

impl Batch {
    /// Takes a batch of those that wait, and makes the line that asks for it.
    fn take_from(waiting: &mut VecDeque<Want>, there: &Listings) -> (Self, Bytes) {
        let mut line = b"f".to_vec();
        let mut wants = Vec::new();
        while wants.len() < A_BATCH && line.len() < A_LINE {
            let Some(want) = waiting.pop_front() else { break };
            line.push(b' ');
            // Nothing that find would take for an option.
            match &want.directory[..] {
                b"" => line.push(b'.'),
                directory => line.extend(quote(&[b"./", directory].concat())),
            }
            wants.push(want);
        }
        line.push(b'\n');
        let batch = Self {
            told: wants
                .iter()
                .map(|_| Told {
                    own: None,
                    is_told: false,
                    names: there.begin(),
                })
                .collect(),
            wants,
            at: 0,
            samples: Vec::new(),
            is_whole: false,
        };
        (batch, line.into())
    }

    /// Takes a record. Within: whether the command succeeded, where this was its last; `None` for what cannot be one.
    fn take(&mut self, record: &[u8]) -> Option<Option<bool>> {
        if let Some(status) = record.strip_prefix(b"E ") {
            return Some(Some(status == b"0"));
        }
        let mut fields = record.splitn(8, |byte| *byte == b' ');
        let depth = fields.next()?;
        let found = attributes(&mut fields)?;
        let path = match fields.next()? {
            b"." => b"",
            path => path.strip_prefix(b"./")?,
        };
        if depth == b"0" {
            // Those before it that are not told are not there.
            let next = self.wants[self.at..].iter().zip(&self.told[self.at..]);
            let next = next
                .into_iter()
                .position(|(want, told)| !told.is_told && want.directory == path)?;
            self.at += next;
            let told = &mut self.told[self.at];
            (told.own, told.is_told) = (found, true);
            return Some(None);
        }
        let directory = &self.wants.get(self.at)?.directory;
        let name = match &directory[..] {
            b"" => path,
            directory => path.strip_prefix(directory)?.strip_prefix(b"/")?,
        };
        if depth != b"1" || name.is_empty() || name.contains(&b'/') || name == b".." {
            return None;
        }
        let told = &mut self.told[self.at];
        if !told.is_told {
            return None;
        }
        let hash = told.names.hash(name);
        if !told.names.insert(hash, found.as_ref()) {
            return None;
        }
        let is_full = self.samples.len() == SAMPLES;
        let is_chosen = |last: &(u64, Bytes, FileAttributes)| !is_full || hash < last.0;
        if let Some(found) = found
            && self.samples.last().is_none_or(is_chosen)
        {
            self.samples.truncate(SAMPLES - 1);
            let at = self.samples.partition_point(|(before, ..)| *before < hash);
            self.samples
                .insert(at, (hash, path::join(directory, name), found));
        }
        Some(None)
    }

    /// Some names and a directory, with the attributes that find printed.
    fn samples(&self) -> Vec<(Bytes, FileAttributes)> {
        let names = self
            .samples
            .iter()
            .map(|(_, path, found)| (path.clone(), found.clone()));
        let directories = self.wants.iter().zip(&self.told);
        let directories =
            directories.filter_map(|(want, told)| Some((want.directory.clone(), told.own.clone()?)));
        names.chain(directories.take(1)).collect()
    }

    /// Tells whoever asked. The directories of a batch that failed are asked for once more, without those that it did not
    /// have.
    fn tell(self, there: &Listings) -> Vec<Want> {
        let mut again = Vec::new();
        for (mut want, told) in self.wants.into_iter().zip(self.told) {
            match told.is_told {
                true if self.is_whole => {
                    let kind = told.own.as_ref().and_then(FileAttributes::file_type);
                    // What a link leads to is not in it.
                    if kind == Some(FileType::Directory) {
                        there.add(&want.directory, told.names);
                    }
                    let _ = want.told.send(told.own);
                }
                true if !want.again => {
                    want.again = true;
                    again.push(want);
                }
                _ => drop(want.told.send(None)),
            }
        }
        again
    }
}

/// Reads the attributes in a record; `None` within where SFTP would tell them in another way, `None` where it is none.
fn attributes<'a>(fields: &mut impl Iterator<Item = &'a [u8]>) -> Option<Option<FileAttributes>> {
    fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
        let digits = field.first()?.is_ascii_digit();
        std::str::from_utf8(field).ok()?.parse().ok().filter(|_| digits)
    }
    let [kind, mode, size, time, uid, gid] = std::array::from_fn(|_| fields.next());
    let kind = match kind? {
        b"f" => 0o100_000,
        b"d" => 0o040_000,
        b"l" => 0o120_000,
        b"b" => 0o060_000,
        b"c" => 0o020_000,
        b"p" => 0o010_000,
        b"s" => 0o140_000,
        [_] => 0,
        _ => return None,
    };
    let mode = u32::from_str_radix(std::str::from_utf8(mode?).ok()?, 8).ok()?;
    let owner = Owner {
        uid: number(uid?)?,
        gid: number(gid?)?,
    };
    let time = time?;
    let end = time.iter().position(|byte| *byte == b'.').unwrap_or(time.len());
    // SFTP has none before 1970.
    let modified = match time.first()? {
        b'-' => None,
        _ => Some(number::<u64>(&time[..end])?),
    };
    let modified = modified.and_then(|time| u32::try_from(time).ok());
    let size = number(size?)?;
    Some(
        modified
            .filter(|_| kind != 0 && mode <= 0o7777)
            .map(|modified| FileAttributes {
                size: Some(size),
                owner: Some(owner),
                permissions: Some(Permissions(kind | mode)),
                times: Some(Times {
                    accessed: modified,
                    modified,
                }),
                ..FileAttributes::default()
            }),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::Path;

    use trunkline_sftp::transfer::NameBudget;

    use super::*;
    use crate::transfer::there::Said;

    fn wants(directories: &[&[u8]]) -> (VecDeque<Want>, Vec<oneshot::Receiver<Option<FileAttributes>>>) {
        let wants = directories.iter().map(|directory| {
            let (told, found) = oneshot::channel();
            let want = Want {
                directory: Bytes::copy_from_slice(directory),
                told,
                again: false,
            };
            (want, found)
        });
        wants.unzip()
    }

    /// Asks a real shell about directories below `root`.
    fn ask(
        there: &Listings,
        root: &Path,
        directories: &[&[u8]],
    ) -> (Batch, Vec<oneshot::Receiver<Option<FileAttributes>>>) {
        let (mut waiting, found) = wants(directories);
        let (mut batch, line) = Batch::take_from(&mut waiting, there);
        assert!(waiting.is_empty());
        let script = [&preamble(root.as_os_str().as_bytes())[..], &line].concat();
        let ran = std::process::Command::new("sh")
            .arg("-c")
            .arg(OsStr::from_bytes(&script))
            .output()
            .unwrap();
        for record in ran.stdout.split(|byte| *byte == 0) {
            if let Some(is_whole) = batch.take(record).expect("a record") {
                batch.is_whole = is_whole;
                return (batch, found);
            }
        }
        panic!("{ran:?}");
    }

    #[test]
    fn find_tells_what_there_is_whatever_it_is_called() {
        let place = tempfile::tempdir().unwrap();
        let directories: [&[u8]; 5] = [
            b"",
            b"-delete",
            b"line\nfeed",
            b"it's (\xff) ",
            b"line\nfeed/deep",
        ];
        for (nth, directory) in directories.iter().enumerate() {
            let path = place.path().join(OsStr::from_bytes(directory));
            std::fs::create_dir_all(&path).unwrap();
            for name in [&b"a b"[..], b"E 0", b"\n", b" 0 d", b"\xff"] {
                std::fs::write(path.join(OsStr::from_bytes(name)), vec![0; nth]).unwrap();
            }
            std::os::unix::fs::symlink("nowhere", path.join("link")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o2750)).unwrap();
        }
        let there = Listings::new(&NameBudget::default());
        let (batch, found) = ask(&there, place.path(), &directories);
        assert!(batch.is_whole);
        assert!(batch.tell(&there).is_empty());
        for (directory, mut own) in directories.iter().zip(found) {
            let path = place.path().join(OsStr::from_bytes(directory));
            let own = own.try_recv().unwrap().unwrap();
            let seen = |found: &std::fs::Metadata| {
                let times = Times {
                    accessed: u32::try_from(found.mtime()).unwrap(),
                    modified: u32::try_from(found.mtime()).unwrap(),
                };
                FileAttributes {
                    size: Some(found.len()),
                    owner: Some(Owner {
                        uid: found.uid(),
                        gid: found.gid(),
                    }),
                    permissions: Some(Permissions(found.mode())),
                    times: Some(times),
                    ..FileAttributes::default()
                }
            };
            assert_eq!(own, seen(&path.symlink_metadata().unwrap()));
            for entry in path.read_dir().unwrap() {
                let entry = entry.unwrap();
                let name = path::join(directory, entry.file_name().as_bytes());
                let said = there.take(&name);
                let Said::Has(said) = said else {
                    panic!("{name:?} is missing");
                };
                assert_eq!(said, seen(&entry.metadata().unwrap()));
            }
            assert!(there.is_used_up(&Bytes::copy_from_slice(directory)));
        }
    }

    #[test]
    fn what_is_not_there_is_asked_for_elsewhere_and_the_rest_once_more() {
        let place = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
            std::fs::write(place.path().join(name).join("f"), name).unwrap();
        }
        let there = Listings::new(&NameBudget::default());
        let (batch, mut found) = ask(&there, place.path(), &[b"none", b"a", b"a/none", b"b"]);
        assert!(!batch.is_whole);
        let again = batch.tell(&there);
        let asked: Vec<_> = again.iter().map(|want| &want.directory[..]).collect();
        assert_eq!(asked, [b"a", b"b"]);
        assert_eq!(found[0].try_recv(), Ok(None));
        assert!(found[1].try_recv().is_err(), "it waits");
        assert!(matches!(there.take(&Bytes::from_static(b"a/f")), Said::Unknown));
    }

    #[test]
    fn what_find_would_not_print_ends_a_survey() {
        let there = Listings::new(&NameBudget::default());
        let good: BTreeMap<&str, bool> = BTreeMap::from([
            ("0 d 755 40 12.5 0 0 ./d", true),
            ("0 d 755 40 12 0 0 ./d", true),
            ("0 d 755 40 -12.5 0 0 ./d", true),
            ("0 d 755 40 12.5 0 0 ./e", false),
            ("0 d 755 40 12.5 0 0 d", false),
            ("0 d 755 40 12.5 0 ./d", false),
            ("0 d 9 40 12.5 0 0 ./d", false),
            ("0 d 755 +4 12.5 0 0 ./d", false),
            ("0 dd 755 4 12.5 0 0 ./d", false),
            ("1 f 644 4 12.5 0 0 ./d/f", false),
            ("find: unknown predicate", false),
            ("", false),
        ]);
        for (record, is_good) in good {
            let (mut waiting, _found) = wants(&[b"d"]);
            let mut batch = Batch::take_from(&mut waiting, &there).0;
            let taken = batch.take(record.as_bytes());
            assert_eq!(taken.is_some(), is_good, "{record}");
        }
        for name in ["./x/f", "./d/", "./d/..", "./d/a/b", "./df"] {
            let (mut waiting, _found) = wants(&[b"d"]);
            let mut batch = Batch::take_from(&mut waiting, &there).0;
            assert!(batch.take(b"0 d 755 40 12.5 0 0 ./d").is_some());
            let record = format!("1 f 644 4 12.5 0 0 {name}");
            assert!(batch.take(record.as_bytes()).is_none(), "{name}");
        }
    }
}
