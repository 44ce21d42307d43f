//! Symbolic links, on servers that differ in how they are created and read.

use bytes::Bytes;
use trunkline_sftp::{FileType, Request, Status, StatusCode};

use super::Sftp;
use crate::error::Error;
use crate::memory::Lesson;

/// The names of operations on links in errors.
const MAKING: &str = "linking";
pub(super) const READING: &str = "reading the link";

/// Creates a link. The draft puts the link's own path first, OpenSSH's server the target. In the wrong order a server
/// creates a link with the target's name, which may lead anywhere.
pub(super) async fn make(sftp: &Sftp, target: &Bytes, link: &Bytes) -> Result<(), Error> {
    let link_first = is_link_first(sftp, link).await?;
    sftp.perform(MAKING, link, request(target, link, link_first))
        .await
}

/// Like [`make`], and checks the created link: Erlang's server changes the text of links with relative targets.
pub(super) async fn make_exactly(sftp: &Sftp, target: &Bytes, link: &Bytes) -> Result<(), Error> {
    make(sftp, target, link).await?;
    if sftp.is_sftp_server().await? {
        return Ok(());
    }
    let directory = directory_of(link);
    let leads = |text: &Bytes| {
        let path = in_directory(&directory, text);
        parts(&path).join(&b'/')
    };
    let is_right = match look_up(sftp, link).await? {
        Said::Text(text) => text == *target,
        Said::Rewritten(text) => leads(&text) == leads(target),
    };
    if is_right {
        return Ok(());
    }
    let _ = sftp.remove(link).await;
    Err(refusal(
        sftp,
        MAKING,
        link,
        "the server makes another link than it is asked for",
    ))
}

fn request(target: &Bytes, link: &Bytes, link_first: bool) -> Request {
    let (target, link) = (target.clone(), link.clone());
    match link_first {
        // The request's fields are in OpenSSH's order.
        true => Request::Symlink {
            target: link,
            link: target,
        },
        false => Request::Symlink { target, link },
    }
}

/// Determines the server's order, once, with two unused names beside the new link.
async fn is_link_first(sftp: &Sftp, link: &Bytes) -> Result<bool, Error> {
    let known = &sftp.link().known;
    let learn = || async {
        if sftp.is_sftp_server().await? {
            return Ok(false);
        }
        let [first, second] = [(); 2].map(|()| fresh_name(&directory_of(link)));
        sftp.perform(MAKING, link, request(&first, &second, false))
            .await?;
        let (at_first, at_second) = tokio::join!(is_link(sftp, &first), is_link(sftp, &second));
        let link_first = match (at_first, at_second) {
            (false, true) => false,
            (true, false) => true,
            // The server does not show what it created. One that goes by the client's identification takes ours for
            // OpenSSH's.
            _ => {
                let _ = tokio::join!(sftp.remove(&first), sftp.remove(&second));
                return Ok(false);
            }
        };
        let made = if link_first { &first } else { &second };
        sftp.remove(made).await?;
        let lesson = match link_first {
            true => Lesson::SymlinkLinkFirst,
            false => Lesson::SymlinkTargetFirst,
        };
        known.learn(lesson, 1);
        Ok(link_first)
    };
    known.symlink_link_first.get_or_try_init(learn).await.copied()
}

/// Returns whether a path is a link. Some servers' LSTAT follows links (pkg/sftp's, if the application has no LSTAT of
/// its own), and others' READLINK succeeds on anything (copyparty's).
async fn is_link(sftp: &Sftp, path: &Bytes) -> bool {
    let (found, text) = tokio::join!(sftp.lstat(path), sftp.readlink(path));
    match found {
        Ok(found) => found.file_type() == Some(FileType::Symlink),
        Err(_) => text.is_ok_and(|text| text != *path),
    }
}

/// Reads the text of a link.
pub(super) async fn text(sftp: &Sftp, path: &Bytes) -> Result<Bytes, Error> {
    if sftp.is_sftp_server().await? {
        return sftp.readlink(path).await;
    }
    match look_up(sftp, path).await? {
        Said::Text(text) | Said::Rewritten(text) => Ok(text),
    }
}

/// The text of a link.
enum Said {
    /// The text itself.
    Text(Bytes),
    /// The shortest relative text with the link's target: the server makes relative texts absolute (proftpd's), or
    /// relative to the session's starting directory.
    Rewritten(Bytes),
}

/// Reads a link's text by two names. A server that rewrites texts does so by the name it is given, so that the two
/// results differ. The size in LSTAT, which should be the text's length, is missing on proftpd.
async fn look_up(sftp: &Sftp, path: &Bytes) -> Result<Said, Error> {
    let Ok(home) = sftp.realpath(".").await else {
        return Ok(Said::Text(sftp.readlink(path).await?));
    };
    let absolute = in_directory(&home, path);
    let relative = relative_to(&home, &absolute);
    let (text, other) = tokio::join!(sftp.readlink(&absolute), sftp.readlink(&relative));
    match (text?, other) {
        (text, Ok(other)) if text != other => match text.starts_with(b"/") {
            true => Ok(Said::Rewritten(relative_to(&directory_of(&absolute), &text))),
            false => {
                let message = "the server says different things of it, by the name that it is asked for by";
                Err(refusal(sftp, READING, path, message))
            }
        },
        (text, _) => Ok(Said::Text(text)),
    }
}

fn refusal(
    sftp: &Sftp,
    doing: &'static str,
    path: &Bytes,
    message: impl Into<trunkline_text::Printable>,
) -> Error {
    let status = Status {
        code: StatusCode::FAILURE,
        message: message.into(),
    };
    sftp.link().status_error(doing, path.clone(), status)
}

/// Returns the directory of a path, with its slash; empty for a bare name.
fn directory_of(path: &Bytes) -> Bytes {
    let end = path.iter().rposition(|byte| *byte == b'/');
    path.slice(..end.map_or(0, |end| end + 1))
}

/// Returns `path` relative to `directory`, unless it is absolute.
fn in_directory(directory: &Bytes, path: &Bytes) -> Bytes {
    if path.starts_with(b"/") {
        return path.clone();
    }
    [directory.strip_suffix(b"/").unwrap_or(directory), b"/", path]
        .concat()
        .into()
}

/// Returns the relative path from an absolute directory to an absolute path.
fn relative_to(directory: &Bytes, path: &Bytes) -> Bytes {
    let (from, to) = (parts(directory), parts(path));
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(&b".."[..], from.len() - common);
    let steps: Vec<&[u8]> = up.chain(to[common..].iter().copied()).collect();
    match steps.is_empty() {
        true => Bytes::from_static(b"."),
        false => steps.join(&b'/').into(),
    }
}

/// Returns the names in a path, with `..` resolved.
fn parts(path: &Bytes) -> Vec<&[u8]> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if parts.last().is_some_and(|last| *last != b"..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

/// Returns an unused name in a directory.
fn fresh_name(directory: &Bytes) -> Bytes {
    let mut random = [0; 8];
    aws_lc_rs::rand::fill(&mut random).expect("the kernel's random generator answers once it is seeded");
    let name = format!(".trunkline.{:016x}", u64::from_be_bytes(random));
    [directory, name.as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_called_from_where_its_link_is() {
        let relative =
            |directory: &'static str, path: &'static str| relative_to(&directory.into(), &path.into());
        assert_eq!(relative("/a/b/", "/a/c"), "../c");
        assert_eq!(relative("/a/b", "/a/b/c/d"), "c/d");
        assert_eq!(relative("/a/b", "/x"), "../../x");
        assert_eq!(relative("/a", "/a"), ".");
        assert_eq!(relative("/a/b/", "/a/./x/../c"), "../c");
        assert_eq!(parts(&"../../a/..".into()), [b"..", b".."]);
        assert_eq!(directory_of(&"a/b".into()), "a/");
        assert_eq!(directory_of(&"b".into()), "");
        assert_eq!(in_directory(&"/home/u".into(), &"a".into()), "/home/u/a");
        assert_eq!(in_directory(&"/home/u".into(), &"/a".into()), "/a");
    }
}
