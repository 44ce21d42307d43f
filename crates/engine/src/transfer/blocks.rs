//! Finds the blocks of a file that are already right, by hashes made on both ends.
//!
//! SFTP has no hashes, so a shell on the server makes them, with any sha256 program it has. A server without a shell gives none:
//! then no block counts as right.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use trunkline_request::shell::quote;

use super::blocking::blocking_steps;
use super::path::{self, directory_and_name};
use super::progress::Checking;
use super::sessions::Sessions;
use crate::engine::Host;
use crate::error::Error;
use crate::sftp::Sftp;

/// The size of a block, which is the most that is copied again around each place where a copy was cut off.
pub(super) const BLOCK: u64 = 8 * 1024 * 1024;

pub(super) type Hash = [u8; 32];

/// A hash for each block of a file; `None` if the server gave none, which equals no other.
pub(super) type Hashes = Vec<Option<Hash>>;

/// One of two files that are compared.
pub(super) enum End<'a> {
    Local(File),
    Server(&'a Sessions, &'a Bytes),
}

impl End<'_> {
    /// Returns the hashes of `count` blocks; `None` if the server makes none, or if `own` is set and others may write the
    /// file.
    async fn hashes(&self, count: u64, own: bool, checking: &Arc<Checking>) -> Result<Option<Hashes>, Error> {
        match self {
            Self::Local(file) => {
                let (local, checking) = (file.try_clone(), checking.clone());
                let hashes = blocking_steps(move |awaited| {
                    local_hashes(&local?, count, |bytes| {
                        checking.add_hashed(bytes);
                        awaited.is_awaited()
                    })
                });
                let hashes = hashes.await;
                hashes
                    .map(Some)
                    .map_err(|error| Error::local("reading a file to compare it", error))
            }
            Self::Server(sessions, path) => {
                let Some(host) = sessions.host() else {
                    return Ok(None);
                };
                let path = match sessions.first().realpath(directory_and_name(path).0).await {
                    // A shell may start in another directory than SFTP.
                    Ok(directory) => path::in_root(&directory, &directory_and_name(path).1),
                    Err(_) => return Ok(None),
                };
                let files = [(path, count)];
                let hashes = remote_hashes(sessions, &host, &files, own, checking).await;
                Ok(hashes.and_then(|mut files| files.pop()))
            }
        }
    }
}

/// Returns the ranges, in whole blocks or to the end, in which two files are the same. `size` is the length of the source;
/// with `own`, the second file must be one that only the user may write.
async fn matching(
    one: &End<'_>,
    two: &End<'_>,
    (size, own): (u64, bool),
    checking: &Arc<Checking>,
) -> Result<Option<Vec<Range<u64>>>, Error> {
    let count = size.div_ceil(BLOCK);
    let (ours, theirs) = tokio::join!(
        one.hashes(count, false, checking),
        two.hashes(count, own, checking)
    );
    let (Some(ours), Some(theirs)) = (ours?, theirs?) else {
        return Ok(None);
    };
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (at, _) in ours
        .iter()
        .zip(&theirs)
        .enumerate()
        .filter(|(_, (ours, theirs))| ours.is_some() && ours == theirs)
    {
        let start = at as u64 * BLOCK;
        let end = (start + BLOCK).min(size);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    Ok(Some(ranges))
}

/// Returns the ranges in which the first `size` bytes of a local part and of a file on the server are the same.
pub(super) async fn same(
    sessions: &Sessions,
    remote: &Bytes,
    (local, size): (File, u64),
    checking: &Arc<Checking>,
) -> Result<Vec<Range<u64>>, Error> {
    let (local, remote) = (End::Local(local), End::Server(sessions, remote));
    Ok(matching(&local, &remote, (size, false), checking)
        .await?
        .unwrap_or_default())
}

/// Returns the ranges in which a source and an earlier attempt's part on a server are the same; `None` unless the part is
/// a regular file of the user's, with one name, that nobody else may write.
pub(super) async fn same_as_own(
    source: &End<'_>,
    sessions: &Sessions,
    (part, size): (&Bytes, u64),
    checking: &Arc<Checking>,
) -> Result<Option<Vec<Range<u64>>>, Error> {
    matching(source, &End::Server(sessions, part), (size, true), checking).await
}

/// Hashes `count` blocks. Calls `hashed` for each piece; it returns whether to continue.
fn local_hashes(file: &File, count: u64, hashed: impl Fn(u64) -> bool) -> std::io::Result<Hashes> {
    let mut buffer = vec![0; 256 * 1024];
    (0..count)
        .map(|at| {
            let mut context = Context::new(&SHA256);
            let (mut offset, end) = (at * BLOCK, (at + 1) * BLOCK);
            while offset < end {
                let most = buffer
                    .len()
                    .min(usize::try_from(end - offset).unwrap_or(usize::MAX));
                match file.read_at(&mut buffer[..most], offset)? {
                    0 => break,
                    read => {
                        context.update(&buffer[..read]);
                        if !hashed(read as u64) {
                            return Err(std::io::ErrorKind::Interrupted.into());
                        }
                        offset += read as u64;
                    }
                }
            }
            let mut hash = Hash::default();
            hash.copy_from_slice(context.finish().as_ref());
            Ok(Some(hash))
        })
        .collect()
}

/// Hashes whole files on a server, many with one command. The result is `None` if the server makes no hashes, and has `None`
/// for each file that it cannot read.
pub(super) async fn whole_there(
    sessions: &Sessions,
    paths: &[&Bytes],
) -> Result<Option<Vec<Option<Hash>>>, Error> {
    if paths.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let Some(host) = sessions.host() else {
        return Ok(None);
    };
    // A shell may start in another directory than SFTP.
    let home = match paths.iter().all(|path| path.starts_with(b"/")) {
        true => Bytes::new(),
        false => {
            sessions
                .retry(|sftp: Sftp| async move { sftp.realpath(".").await })
                .await?
        }
    };
    let paths: Vec<Bytes> = paths
        .iter()
        .map(|path| match path.starts_with(b"/") {
            true => (*path).clone(),
            false => path::in_root(&home, path),
        })
        .collect();
    // Two programs may print a line for each.
    let most = paths.iter().map(|path| 2 * (path.len() + 80)).sum();
    let shells = sessions.shells();
    let output = shells.run(&host, &script_of_whole(&paths), most, |_| ()).await;
    Ok(output.map(|output| parse_whole(&output, &paths)))
}

/// Returns whether hash programs print an escaped form of a name.
fn is_special(path: &[u8]) -> bool {
    path.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'))
}

/// The beginning of a script: `h` hashes its arguments, or its input.
const PROGRAMS: &str = "if command -v openssl >/dev/null && openssl dgst -sha256 -r </dev/null >/dev/null 2>&1;\n\
     then h() { openssl dgst -sha256 -r \"$@\"; }\n\
     elif command -v sha256sum >/dev/null; then h() { sha256sum \"$@\"; }\n\
     elif command -v shasum >/dev/null; then h() { shasum -a 256 \"$@\"; }\n\
     else echo no sha256 program >&2; exit 3; fi\n";

/// Makes a script that runs one program for all names, and one for each name that would be printed escaped, after its
/// number. It asks for the other programs only where openssl fails, also for a file that it cannot read: asking takes as long
/// as hashing 500 small files.
fn script_of_whole(paths: &[Bytes]) -> Vec<u8> {
    let (special, usual): (Vec<_>, Vec<_>) = paths.iter().enumerate().partition(|(_, path)| is_special(path));
    let mut script = Vec::new();
    if !usual.is_empty() {
        script.extend_from_slice(b"set --");
        for (_, path) in usual {
            script.push(b' ');
            script.extend(quote(path));
        }
        script.extend_from_slice(b"\nopenssl dgst -sha256 -r \"$@\" </dev/null 2>/dev/null || {\n");
        script.extend_from_slice(PROGRAMS.as_bytes());
        script.extend_from_slice(b"h \"$@\" </dev/null 2>/dev/null\n}\n");
    }
    if !special.is_empty() {
        script.extend_from_slice(PROGRAMS.as_bytes());
    }
    for (nth, path) in special {
        script.extend_from_slice(format!("echo = {nth}; h 2>/dev/null <").as_bytes());
        script.extend(quote(path));
        script.push(b'\n');
    }
    script.extend_from_slice(b"exit 0\n");
    script
}

/// Finds the hashes in a script's output, by names or numbers.
fn parse_whole(output: &[u8], paths: &[Bytes]) -> Vec<Option<Hash>> {
    let numbers = paths.iter().enumerate().map(|(nth, path)| (&path[..], nth));
    let numbers: HashMap<&[u8], usize> = numbers.collect();
    let mut hashes = vec![None; paths.len()];
    let mut numbered = None;
    for line in output.split(|byte| *byte == b'\n') {
        if let Some(number) = line.strip_prefix(b"= ") {
            let number: Option<usize> = std::str::from_utf8(number)
                .ok()
                .and_then(|number| number.parse().ok());
            numbered = number.filter(|number| paths.get(*number).is_some_and(|path| is_special(path)));
            continue;
        }
        let found = match numbered.take() {
            Some(number) => Some(number),
            // Two spaces, or one and a star.
            None => line.get(66..).and_then(|name| numbers.get(name).copied()),
        };
        if let Some(place) = found.and_then(|found| hashes.get_mut(found)) {
            *place = hash(line);
        }
    }
    hashes
}

/// Hashes blocks of files on a server, as many as are stated for each; `None` if the server cannot.
async fn remote_hashes(
    sessions: &Sessions,
    host: &Host,
    files: &[(Bytes, u64)],
    own: bool,
    checking: &Checking,
) -> Option<Vec<Hashes>> {
    let count: u64 = files.iter().map(|(_, count)| count + 1).sum();
    // A sha256 program prints less than 80 bytes a block.
    let most = usize::try_from(count).ok()?.saturating_mul(80);
    let lines = |output: &[u8]| output.iter().filter(|byte| **byte == b'\n').count() as u64;
    let seen = |output: &[u8]| checking.add_hashed(lines(output) * BLOCK);
    let shells = sessions.shells();
    let output = shells.run(host, &script(files, own), most, seen).await?;
    Some(parse(&output))
}

/// Makes a script that hashes blocks. With `own` it fails unless each file is a regular one of the user's, with one name,
/// that nobody else may write.
fn script(files: &[(Bytes, u64)], own: bool) -> Vec<u8> {
    // An unreadable file would get the hash of an empty one, like every other unreadable file: dd's status counts.
    let mut script = format!(
        "{PROGRAMS}exec 3>&1\n\
         b() {{ i=0; while [ $i -lt $2 ]; do\n\
         s=$({{ {{ dd if=\"$1\" bs={BLOCK} skip=$i count=1 2>/dev/null; echo $? >&4; }} | h >&3; }} 4>&1)\n\
         [ \"$s\" = 0 ] || exit 4; i=$((i+1)); done; echo; }}\n"
    )
    .into_bytes();
    if own {
        script.extend_from_slice(
            b"o() { [ -n \"$(find \"$1\" -prune -type f -links 1 -user \"$(id -u)\" \\\n\
              ! -perm -020 ! -perm -002 2>/dev/null)\" ] || exit 5; }\n",
        );
        for (path, _) in files {
            script.extend_from_slice(b"o ");
            script.extend(quote(path));
            script.extend_from_slice(b" </dev/null\n");
        }
    }
    for (path, count) in files {
        script.extend_from_slice(b"b ");
        script.extend(quote(path));
        script.extend_from_slice(format!(" {count} </dev/null\n").as_bytes());
    }
    script
}

/// Reads a script's output: a line for each block, and an empty one after each file.
fn parse(output: &[u8]) -> Vec<Hashes> {
    let mut files = vec![Vec::new()];
    for line in output.split(|byte| *byte == b'\n') {
        match (line, files.last_mut()) {
            (b"", _) => files.push(Vec::new()),
            (line, Some(file)) => file.push(hash(line)),
            (_, None) => {}
        }
    }
    // The last file's empty line has begun another file.
    while files.last().is_some_and(Vec::is_empty) && files.len() > 1 {
        files.pop();
    }
    files
}

fn hash(line: &[u8]) -> Option<Hash> {
    let text = std::str::from_utf8(line.get(..64)?).ok()?;
    let mut hash = Hash::default();
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_hash_is_like_no_other() {
        assert_eq!(parse(b"motd\nmotd\n\n"), [vec![None, None]]);
    }

    #[test]
    fn a_shell_makes_no_hash_of_what_it_cannot_read() {
        let directory = tempfile::tempdir().unwrap();
        let absent = Bytes::copy_from_slice(directory.path().join("absent").as_os_str().as_encoded_bytes());
        let ran = std::process::Command::new("sh")
            .arg("-c")
            .arg(std::str::from_utf8(&script(&[(absent, 1)], false)).unwrap())
            .output()
            .unwrap();
        assert!(!ran.status.success() && ran.stdout.len() <= 80, "{ran:?}");
    }

    #[test]
    fn many_names_are_hashed_at_once_whatever_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "a",
            "-b c",
            "it's \"$x\"",
            "back\\slash",
            "line\nfeed",
            "\r",
            "absent",
            "a\\nb",
        ];
        let path = |name: &str| {
            let path = directory.path().join(name);
            Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes())
        };
        for (nth, name) in names.iter().enumerate().filter(|(_, name)| **name != "absent") {
            std::fs::write(directory.path().join(name), nth.to_string()).unwrap();
        }
        let paths: Vec<Bytes> = names.iter().map(|name| path(name)).collect();
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(std::str::from_utf8(&script_of_whole(&paths)).unwrap())
            .output()
            .unwrap();
        let found = parse_whole(&output.stdout, &paths);
        for (nth, name) in names.iter().enumerate() {
            let expected = aws_lc_rs::digest::digest(&SHA256, nth.to_string().as_bytes());
            let expected = (*name != "absent").then(|| expected.as_ref().to_vec());
            assert_eq!(found[nth].map(Vec::from), expected, "{name:?}");
        }
    }

    #[test]
    fn a_shell_makes_the_same_hashes_of_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("it's a \"$name\"\n\\");
        let content: Vec<u8> = (0..BLOCK * 2 + 5).map(|n| (n / 999) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let name = Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes());
        let files = [(name.clone(), 3), (name, 1)];
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(std::str::from_utf8(&script(&files, true)).unwrap())
            .output()
            .unwrap();
        assert!(output.status.success());
        let ours = local_hashes(&File::open(&path).unwrap(), 3, |_| true).unwrap();
        assert_eq!(parse(&output.stdout), [ours.clone(), ours[..1].to_vec()]);
    }
}
