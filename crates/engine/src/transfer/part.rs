//! Temporary names of incomplete files, beside their final ones.
//!
//! A file that may be resumed has the same name each time, made from both ends of the copy; [`Claim`] keeps two copies at
//! once from sharing it. A file that no later copy resumes has such a name for each attempt, so that the next copy finds the
//! leftovers of a killed one ([`Names`]), or a random name.

use std::collections::{HashMap, HashSet};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;

/// The longest name that Linux's file systems take.
const LONGEST: usize = 255;

/// The tag that distinguishes a copy of one file from every other: both machines and accounts, and both paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tag([u8; 8]);

impl Tag {
    /// Makes the tag of the source's machine and account with a path, and of the same of the target.
    pub(super) fn of([from, source, to, target]: [&[u8]; 4]) -> Self {
        let mut context = Context::new(&SHA256);
        for part in [from, &plain(source), to, &plain(target)] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut tag = [0; 8];
        tag.copy_from_slice(&context.finish().as_ref()[..8]);
        Self(tag)
    }

    /// Returns the temporary name for this copy, which a later attempt finds again.
    pub(super) fn part(self, target: &[u8]) -> Bytes {
        beside(target, self.0)
    }
}

/// Normalises a path: `a/./b//c` becomes `a/b/c`.
fn plain(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !name.is_empty() && *name != b".").collect();
    let root: &[u8] = if path.starts_with(b"/") { b"/" } else { b"" };
    [root, &names.join(&b'/')].concat()
}

/// Returns a name that nobody can guess before the file exists.
pub(super) fn random(target: &[u8]) -> Bytes {
    beside(target, unguessable())
}

/// Returns a time that nobody can guess before a file has it; before 2038, the limit of some file systems.
pub(super) fn mark() -> u32 {
    let [a, b, c, d, ..] = unguessable();
    u32::from_be_bytes([a & 0x7f, b, c, d])
}

pub(super) fn unguessable() -> [u8; 8] {
    let mut random = [0; 8];
    aws_lc_rs::rand::fill(&mut random).expect("the kernel's random generator answers once it is seeded");
    random
}

/// `.NAME.0123456789abcdef.part`
fn beside(target: &[u8], tag: [u8; 8]) -> Bytes {
    let (directory, name) = match target.iter().rposition(|byte| *byte == b'/') {
        Some(at) => target.split_at(at + 1),
        None => (&b""[..], target),
    };
    let end = format!(".{:016x}.part", u64::from_be_bytes(tag));
    let mut length = name.len().min(LONGEST - 1 - end.len());
    // Some file systems accept UTF-8 only: do not cut a character.
    while length < name.len() && length > 0 && name[length] & 0xc0 == 0x80 {
        length -= 1;
    }
    [directory, b".", &name[..length], end.as_bytes()].concat().into()
}

/// The right to a tag's name until it is dropped, among all processes of this user on this machine.
#[derive(Debug)]
pub(super) struct Claim {
    /// An abstract socket: its name is free again however its process ends, and it leaves no file behind.
    _name: UnixListener,
}

/// Temporary names of files that each copy starts anew. The next copy of a file finds a killed copy's leftover, takes another
/// name, and removes the leftover at the end: earlier, a slow server might still rename it.
pub(super) struct Names {
    ends: [Vec<u8>; 2],
    /// This process's share while it copies between these ends. Without one, all names are random.
    share: Option<Arc<Share>>,
}

/// One of the shares for processes that copy between two ends.
#[derive(Debug)]
struct Share {
    nth: u8,
    _claim: Claim,
}

/// A file's own name, which no other copy of this process uses. Another process finds it taken.
#[derive(Debug)]
pub(super) struct Own(Tag);

/// The most processes with their own names between two ends.
const SHARES: u8 = 8;

/// This process's shares and their files' names. The lock is held for a look-up only.
static SHARED: LazyLock<Mutex<HashMap<Tag, Weak<Share>>>> = LazyLock::new(Mutex::default);
static OWN: LazyLock<Mutex<HashSet<Tag>>> = LazyLock::new(Mutex::default);

impl Names {
    /// Makes the names for files copied from one machine and account to another.
    pub(super) fn between(from: &[u8], to: &[u8]) -> Self {
        let ends = [from.to_vec(), to.to_vec()];
        let tag = Self::tag(&ends, 0);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, share| share.strong_count() > 0);
        let share = shared.get(&tag).and_then(Weak::upgrade).or_else(|| {
            let take = |nth| {
                let _claim = Claim::take(Self::tag(&ends, nth))?;
                Some(Arc::new(Share { nth, _claim }))
            };
            let share = (0..SHARES).find_map(take)?;
            shared.insert(tag, Arc::downgrade(&share));
            Some(share)
        });
        Self { ends, share }
    }

    fn tag(ends: &[Vec<u8>; 2], nth: u8) -> Tag {
        Tag::of([&ends[0], &[], &ends[1], &[nth]])
    }

    /// Returns a file's own name, unless another copy of this process writes the same file from the same source.
    pub(super) fn own(&self, source: &[u8], target: &[u8]) -> Option<Arc<Own>> {
        self.share.as_ref()?;
        let tag = Tag::of([&self.ends[0], source, &self.ends[1], target]);
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        own.insert(tag).then(|| Arc::new(Own(tag)))
    }

    /// Takes all shares between these ends once no other process has one, so that any file with such a name is a leftover.
    /// Returns `None` if another process keeps a share for longer than a process takes to end.
    pub(super) async fn alone(&self) -> Option<Vec<Claim>> {
        let mine = self.share.as_ref()?.nth;
        let mut others = Vec::new();
        for nth in (0..SHARES).filter(|nth| *nth != mine) {
            others.push(Claim::wait(Self::tag(&self.ends, nth)).await?);
        }
        Some(others)
    }
}

impl Own {
    /// The attempts that have names of their own; later ones get random names.
    const ATTEMPTS: u8 = 4;

    /// Returns the temporary name of an attempt to write `target`.
    pub(super) fn name(own: Option<&Arc<Self>>, target: &[u8], attempt: u8) -> Bytes {
        match own {
            Some(own) if attempt < Self::ATTEMPTS => {
                let mut tag = own.0.0;
                // The tag itself is the name of a resumable file.
                tag[7] ^= attempt + 1;
                beside(target, tag)
            }
            _ => random(target),
        }
    }

    /// Returns whether an earlier copy's leftover may have this name.
    pub(super) fn may_be_taken(own: Option<&Arc<Self>>, attempt: u8) -> bool {
        own.is_some() && attempt < Self::ATTEMPTS
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        OWN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// The time an interrupted copy gets to release its file, so that running it again at once resumes. The daemon is told at
/// once, but on a busy machine (twenty programs on two cores) a killed copy at times still had its locks after a second.
pub(super) const LETS_GO: Duration = Duration::from_secs(5);
/// The interval between two checks for that.
pub(super) const LOOK: Duration = Duration::from_millis(20);

impl Claim {
    /// Takes a tag like [`Self::take`], but waits a moment for a copy that is about to end.
    pub(super) async fn wait(tag: Tag) -> Option<Self> {
        let deadline = tokio::time::Instant::now() + LETS_GO;
        loop {
            let claim = Self::take(tag);
            if claim.is_some() || tokio::time::Instant::now() >= deadline {
                return claim;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes a tag; `None` if another copy has it. Any other program that occupies the name only causes files to be copied from
    /// their beginning.
    pub(super) fn take(tag: Tag) -> Option<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let name = format!("trunkline-copy-{uid}-{:016x}", u64::from_be_bytes(tag.0));
        let address = SocketAddr::from_abstract_name(name).ok()?;
        let listener = UnixListener::bind_addr(&address).ok()?;
        Some(Self { _name: listener })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_beside_its_file_and_its_name_fits() {
        let tag = Tag::of([b"here", b"s", b"there", b"a/b/name"]);
        let part = tag.part(b"a/b/name");
        assert!(
            part.starts_with(b"a/b/.name.") && part.ends_with(b".part"),
            "{part:?}"
        );
        assert_eq!(part, tag.part(b"a/b/name"));
        assert_eq!(tag.part(&[b'n'; 255]).len(), 255);
        let long = "é".repeat(127);
        let part = tag.part(long.as_bytes());
        assert!(part.len() <= 255 && std::str::from_utf8(&part).is_ok());
        assert_ne!(random(b"f"), random(b"f"));
    }

    #[test]
    fn another_end_of_the_copy_gives_another_name() {
        let one = Tag::of([b"here", b"s", b"web1", b"f"]);
        for other in [
            [&b"here"[..], b"s", b"web2", b"f"],
            [b"here", b"t", b"web1", b"f"],
            [b"laptop", b"s", b"web1", b"f"],
            [b"here", b"s", b"web1", b"g"],
            [b"heres", b"", b"web1", b"f"],
        ] {
            assert_ne!(one, Tag::of(other));
        }
    }

    #[test]
    fn a_path_that_is_written_in_another_way_gives_the_same_name() {
        let one = Tag::of([b"here", b"/s/f", b"web1", b"t/f"]);
        assert_eq!(one, Tag::of([b"here", b"/s/.//f", b"web1", b"./t/f"]));
        assert_ne!(one, Tag::of([b"here", b"s/f", b"web1", b"t/f"]));
        assert_ne!(one, Tag::of([b"here", b"/s/../f", b"web1", b"t/f"]));
    }

    #[test]
    fn of_two_copies_at_once_one_has_the_name() {
        let tag = Tag::of([b"here", b"s", b"there", b"claimed"]);
        let first = Claim::take(tag);
        assert!(first.is_some() && Claim::take(tag).is_none());
        drop(first);
        assert!(Claim::take(tag).is_some());
    }

    #[test]
    fn what_a_killed_copy_has_left_has_a_name_that_the_next_one_meets() {
        let names = || Names::between(b"here", b"left there");
        let (first, second) = (names(), names());
        let own = first.own(b"s", b"d/f");
        let name = |attempt| Own::name(own.as_ref(), b"d/f", attempt);
        assert!(
            second.own(b"s", b"d/f").is_none(),
            "two copies of one file at once"
        );
        assert!(second.own(b"s", b"d/g").is_some());
        let before = [name(0), name(1)];
        assert_ne!(before[0], before[1]);
        assert_ne!(name(9), name(9));
        drop((own, first, second));
        let own = names().own(b"./s", b"d/f");
        assert_eq!(
            [0, 1].map(|attempt| Own::name(own.as_ref(), b"d/f", attempt)),
            before
        );
    }

    #[tokio::test]
    async fn a_copy_that_is_about_to_end_is_waited_for() {
        let tag = Tag::of([b"waited", b"for", b"at", b"the end"]);
        let first = Claim::take(tag);
        assert!(first.is_some());
        let (second, ()) = tokio::join!(Claim::wait(tag), async { drop(first) });
        assert!(second.is_some());
    }
}
