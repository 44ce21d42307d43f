//! The names that files have until they are whole, beside their last ones.
//!
//! A file that no later copy resumes from has a random name. One that may be continued has the same name each time,
//! made of both ends of the copy: [`Claim`] keeps two copies that run at once from using it both.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;

/// The longest name that Linux's file systems take.
const LONGEST: usize = 255;

/// What tells a copy of one file from every other: both machines and accounts, and both paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tag([u8; 8]);

impl Tag {
    /// That of a machine and account, a path there, and the same of the target.
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

    /// The name that an attempt to copy this has, and finds again.
    pub(super) fn part(self, target: &[u8]) -> Bytes {
        beside(target, self.0)
    }
}

/// A path without what it means the same without: `a/./b//c` is `a/b/c`.
fn plain(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !name.is_empty() && *name != b".").collect();
    let root: &[u8] = if path.starts_with(b"/") { b"/" } else { b"" };
    [root, &names.join(&b'/')].concat()
}

/// A name that nobody else can know before the file is there.
pub(super) fn random(target: &[u8]) -> Bytes {
    beside(target, unguessable())
}

/// A time that nobody else can know before a file has it; before 2038, which is as far as some file systems count.
pub(super) fn mark() -> u32 {
    let [a, b, c, d, ..] = unguessable();
    u32::from_be_bytes([a & 0x7f, b, c, d])
}

fn unguessable() -> [u8; 8] {
    let mut random = [0; 8];
    aws_lc_rs::rand::fill(&mut random).expect("the kernel's random generator answers once it is seeded");
    random
}

/// `.NAME.0123456789abcdef.part`
fn beside(target: &[u8], tag: [u8; 8]) -> Bytes {
    let (folder, name) = match target.iter().rposition(|byte| *byte == b'/') {
        Some(at) => target.split_at(at + 1),
        None => (&b""[..], target),
    };
    let end = format!(".{:016x}.part", u64::from_be_bytes(tag));
    let mut length = name.len().min(LONGEST - 1 - end.len());
    // Some file systems take UTF-8 only: a character is not cut through.
    while length < name.len() && length > 0 && name[length] & 0xc0 == 0x80 {
        length -= 1;
    }
    [folder, b".", &name[..length], end.as_bytes()].concat().into()
}

/// The right to a tag's name, until it is dropped: in this process, and among this user's others on this machine.
#[derive(Debug)]
pub(super) struct Claim {
    /// An abstract socket's name is free again when its process is gone, however that ended, and leaves no file behind.
    _name: UnixListener,
}

/// How long a copy that was just interrupted may take to let go of its file: whoever runs it again at once resumes from there.
/// The daemon hears of it at once, but is one of many programs on a busy machine: with some twenty that want two cores, a killed
/// one still had its locks after a second now and then.
pub(super) const LETS_GO: Duration = Duration::from_secs(5);
/// How often that is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(20);

impl Claim {
    /// As [`Self::take`], but waits a moment for a copy that is about to end.
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

    /// `None` where another copy has it. Whoever else takes the name away has files copied from their beginning, and
    /// gets nothing.
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

    #[tokio::test]
    async fn a_copy_that_is_about_to_end_is_waited_for() {
        let tag = Tag::of([b"waited", b"for", b"at", b"the end"]);
        let first = Claim::take(tag);
        assert!(first.is_some());
        let (second, ()) = tokio::join!(Claim::wait(tag), async { drop(first) });
        assert!(second.is_some());
    }
}
