//! The ends of a copy as they are typed, and those that this process opens.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use trunkline_control::protocol::CopyPlace;

/// An end of the copy as it was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Argument {
    Local(PathBuf),
    Host(String, Vec<u8>),
    /// `:PATH`
    EveryHost(Vec<u8>),
    /// `-`
    Standard,
}

/// Applies scp's rule: a colon before any slash ends a host. An address with colons of its own is in brackets. `-` is
/// standard input or output; URIs are those of scp and sftp.
pub(super) fn split(argument: &OsStr) -> anyhow::Result<Argument> {
    // Probably an empty variable, which must not mean the working directory.
    ensure!(
        !argument.is_empty(),
        "an empty argument is no path (the working directory is .)"
    );
    if let Some(uri) = uri(argument) {
        return uri;
    }
    if argument == "-" {
        return Ok(Argument::Standard);
    }
    Ok(split_as_scp(argument))
}

fn split_as_scp(argument: &OsStr) -> Argument {
    let bytes = argument.as_bytes();
    let bracket = match bytes.iter().position(|byte| *byte == b'@') {
        Some(at) if bytes.get(at + 1) == Some(&b'[') => Some(at + 1),
        _ if bytes.first() == Some(&b'[') => Some(0),
        _ => None,
    };
    let closed = bracket.and_then(|open| {
        let close = open + bytes[open..].windows(2).position(|two| two == b"]:")?;
        Some((open, close))
    });
    if let Some((open, close)) = closed {
        let host = [&bytes[..open], &bytes[open + 1..close]].concat();
        if let Ok(host) = String::from_utf8(host) {
            return Argument::Host(host, bytes[close + 2..].to_vec());
        }
    }
    let local = || Argument::Local(Path::new(argument).to_owned());
    match bytes.iter().position(|byte| matches!(byte, b':' | b'/')) {
        Some(0) if bytes[0] == b':' => Argument::EveryHost(bytes[1..].to_vec()),
        Some(at) if bytes[at] == b':' => match String::from_utf8(bytes[..at].to_vec()) {
            Ok(host) => Argument::Host(host, bytes[at + 1..].to_vec()),
            Err(_) => local(),
        },
        _ => local(),
    }
}

/// Parses `scp://[user@]host[:port]/path`, and the same with `sftp`. As in OpenSSH, the path begins after the slash,
/// relative to the user's home, and `//path` is absolute. Returns `None` for anything else.
fn uri(argument: &OsStr) -> Option<anyhow::Result<Argument>> {
    let bytes = argument.as_bytes();
    let rest = [&b"scp://"[..], b"sftp://"]
        .iter()
        .find_map(|scheme| bytes.strip_prefix(*scheme))?;
    let (authority, path) = match rest.iter().position(|byte| *byte == b'/') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b""[..]),
    };
    let parts = std::str::from_utf8(authority).ok().zip(unescape(path));
    Some(match parts {
        // The port, the user and their escapes are parsed with the destination.
        Some((authority, path)) => Ok(Argument::Host(format!("ssh://{authority}"), path)),
        None => Err(anyhow::anyhow!("{} is not a valid URI", argument.display())),
    })
}

/// Decodes `%41` to its byte; `None` for invalid digits or NUL.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|byte| *byte != 0)?);
        rest = &rest[2..];
    }
    Some(bytes)
}

/// The paths of standard input and output in a request.
pub(super) const STDIN: &str = "/dev/stdin";
pub(super) const STDOUT: &str = "/dev/stdout";

/// Opens the ends to be passed, in the expected order.
pub(super) fn open_passed(sources: &[CopyPlace], target: &CopyPlace) -> anyhow::Result<Vec<OwnedFd>> {
    let mut opened = Vec::new();
    for source in sources {
        if let CopyPlace::Passed(path) = source {
            opened.push(open_stream(path, OFlags::RDONLY)?);
        }
    }
    if let CopyPlace::Passed(path) = target {
        opened.push(open_stream(path, OFlags::WRONLY)?);
    }
    ensure!(
        opened.len() <= 3,
        "no more than three descriptors can be copied at once"
    );
    Ok(opened)
}

fn open_stream(path: &Path, access: OFlags) -> anyhow::Result<OwnedFd> {
    let doing = || format!("opening {}", path.display());
    // A file is read and written at the position of this process's own descriptor.
    let own = match path.to_str() {
        Some(STDIN) => Some(std::io::stdin().as_fd().try_clone_to_owned()),
        Some(STDOUT) => Some(std::io::stdout().as_fd().try_clone_to_owned()),
        _ => None,
    };
    let own = own.transpose().with_context(doing)?;
    if let Some(own) = &own {
        let found = rustix::fs::fstat(own).with_context(doing)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Fifo {
            return own.try_clone().with_context(doing);
        }
    }
    let is_fifo = std::fs::metadata(path).with_context(doing)?.file_type().is_fifo();
    let mut flags = access | OFlags::CLOEXEC | OFlags::NOCTTY;
    // Opening does not wait for the other end; reads and writes wait where the copy is made. A pipe is reopened, so
    // that it stays blocking for its other users.
    flags.set(OFlags::NONBLOCK, is_fifo);
    match rustix::fs::open(path, flags, Mode::empty()) {
        // A pipe belongs to its creator, who may be another user (`… | sudo -u deploy trunkline cp - …`).
        Err(Errno::ACCESS) if own.is_some() => own.with_context(doing),
        opened => opened.with_context(doing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart_as_scp_does() {
        let host = |name: &str, path: &str| Argument::Host(name.into(), path.into());
        for (typed, means) in [
            ("a", Argument::Local("a".into())),
            ("./a:b", Argument::Local("./a:b".into())),
            ("/a:b", Argument::Local("/a:b".into())),
            ("web1:", host("web1", "")),
            ("me@web1:a/b:c", host("me@web1", "a/b:c")),
            ("[::1]:/x", host("::1", "/x")),
            ("me@[fe80::1%eth0]:x", host("me@fe80::1%eth0", "x")),
            (":/x", Argument::EveryHost("/x".into())),
            ("-", Argument::Standard),
            ("./-", Argument::Local("./-".into())),
            ("scp://web1", host("ssh://web1", "")),
            ("scp://me@web1:22/a%20b", host("ssh://me@web1:22", "a b")),
            ("sftp://web1//etc/x", host("ssh://web1", "/etc/x")),
            ("sftp:x", host("sftp", "x")),
        ] {
            assert_eq!(split(OsStr::new(typed)).unwrap(), means, "{typed}");
        }
        for wrong in ["scp://web1/%0", "scp://web1/%zz", "scp://web1/%00"] {
            assert!(split(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
