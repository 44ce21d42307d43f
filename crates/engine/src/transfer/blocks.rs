//! What is right already: a file's blocks, hashed on both ends.
//!
//! SFTP has no hashes, so a shell on the server makes them, of whatever sha256 program it has. A server without a shell
//! gives none: then nothing counts as right.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;

use super::lanes::Lanes;
use super::{blocking, shown};
use crate::engine::Host;
use crate::error::Error;
use crate::session::Command;

/// The size of a block: what is copied again at most around each place where a copy was cut off.
pub(super) const BLOCK: u64 = 8 * 1024 * 1024;

type Hash = [u8; 32];

/// The ranges, in whole blocks or to the end, in which a local file and one on the server are the same. `size` is the
/// length of the source.
pub(super) async fn same(
    lanes: &Lanes,
    remote: &Bytes,
    local: File,
    size: u64,
) -> Result<Vec<Range<u64>>, Error> {
    let Some(host) = lanes.host() else {
        return Ok(Vec::new());
    };
    let there = local.metadata().map_or(0, |found| found.len()).min(size);
    let count = there.div_ceil(BLOCK);
    let ours = blocking(move || local_hashes(&local, count));
    let _turn = lanes.hashing().await;
    let files = [(remote.clone(), count)];
    let theirs = remote_hashes(&host, &files);
    let (ours, theirs) = tokio::join!(ours, theirs);
    let ours = ours.map_err(|error| Error::local("reading what an earlier copy left", error))?;
    let theirs = theirs.and_then(|mut files| files.pop()).unwrap_or_default();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (at, _) in ours
        .iter()
        .zip(&theirs)
        .enumerate()
        .filter(|(_, (ours, theirs))| ours == theirs)
    {
        let start = at as u64 * BLOCK;
        let end = (start + BLOCK).min(size);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    Ok(ranges)
}

/// Whether a local file and one on the server, of the same length, are the same. `false` where the server has no shell.
pub(super) async fn is_same(lanes: &Lanes, remote: &Bytes, local: File, size: u64) -> Result<bool, Error> {
    if size == 0 {
        return Ok(true);
    }
    let ranges = same(lanes, remote, local, size).await?;
    Ok(ranges.first() == Some(&(0..size)))
}

fn local_hashes(file: &File, count: u64) -> std::io::Result<Vec<Hash>> {
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
                        offset += read as u64;
                    }
                }
            }
            let mut hash = Hash::default();
            hash.copy_from_slice(context.finish().as_ref());
            Ok(hash)
        })
        .collect()
}

/// Hashes of so many blocks of each file on a server; `None` where it cannot make them.
async fn remote_hashes(host: &Host, files: &[(Bytes, u64)]) -> Option<Vec<Vec<Hash>>> {
    // The script comes as input, so that only a POSIX shell ever reads it, whatever the user's login shell is.
    let session = host.start(&Command::exec("exec sh")).await.ok()?;
    let output = session.output(Some(script(files))).await.ok()?;
    if !output.status.success() {
        let words = shown(&output.stderr);
        tracing::debug!(
            "no hashes from {}: {}",
            host.config().original_host,
            words.trim_end()
        );
        return None;
    }
    Some(parse(&output.stdout))
}

fn script(files: &[(Bytes, u64)]) -> Bytes {
    let mut script = format!(
        "if command -v sha256sum >/dev/null; then h() {{ sha256sum; }}\n\
         elif command -v shasum >/dev/null; then h() {{ shasum -a 256; }}\n\
         elif command -v openssl >/dev/null; then h() {{ openssl dgst -sha256 -r; }}\n\
         else echo no sha256 program >&2; exit 3; fi\n\
         b() {{ i=0; while [ $i -lt $2 ]; do\n\
         dd if=\"$1\" bs={BLOCK} skip=$i count=1 2>/dev/null | h || exit 4; i=$((i+1)); done; echo; }}\n"
    )
    .into_bytes();
    for (path, count) in files {
        script.extend_from_slice(b"b ");
        quote(path, &mut script);
        script.extend_from_slice(format!(" {count} </dev/null\n").as_bytes());
    }
    script.into()
}

/// A word that a POSIX shell takes as it is.
fn quote(word: &[u8], script: &mut Vec<u8>) {
    script.push(b'\'');
    for byte in word {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            byte => script.push(*byte),
        }
    }
    script.push(b'\'');
}

/// A line for each block, an empty one behind each file.
fn parse(output: &[u8]) -> Vec<Vec<Hash>> {
    let mut files = vec![Vec::new()];
    for line in output.split(|byte| *byte == b'\n') {
        match (line, files.last_mut()) {
            (b"", _) => files.push(Vec::new()),
            // What is no hash equals none.
            (line, Some(file)) => file.push(hash(line).unwrap_or_default()),
            (_, None) => {}
        }
    }
    // Behind the last file's empty line.
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
    fn a_shell_makes_the_same_hashes_of_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's a \"$name\"\n\\");
        let content: Vec<u8> = (0..BLOCK * 2 + 5).map(|n| (n / 999) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let name = Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes());
        let mut shell = std::process::Command::new("sh")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let files = [(name.clone(), 3), (name, 1)];
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), &script(&files)).unwrap();
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success());
        let ours = local_hashes(&File::open(&path).unwrap(), 3).unwrap();
        assert_eq!(parse(&output.stdout), [ours.clone(), ours[..1].to_vec()]);
    }
}
