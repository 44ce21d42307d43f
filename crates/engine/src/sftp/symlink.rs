//! Symbolic links, on servers that differ in how they are made and read.

use bytes::Bytes;
use trunkline_sftp::{FileType, Request, Status, StatusCode};

use super::Sftp;
use crate::error::Error;
use crate::memory::Lesson;

/// What operations on links are called in errors.
const MAKING: &str = "linking";
pub(super) const READING: &str = "reading the link";

/// Makes a link. The draft puts the link's own path first, OpenSSH's server the target: asked in the other order a server
/// makes a link under the target's name, which may lead anywhere.
pub(super) async fn make(sftp: &Sftp, target: &Bytes, link: &Bytes) -> Result<(), Error> {
    let link_first = is_link_first(sftp, &directory_of(link)).await?;
    sftp.done(MAKING, link, request(target, link, link_first)).await
}

/// The same, and holds what was made against what was asked for: Erlang's server writes another text into a link whose target
/// is relative.
pub(super) async fn make_exactly(sftp: &Sftp, target: &Bytes, link: &Bytes) -> Result<(), Error> {
    make(sftp, target, link).await?;
    if sftp.is_sftp_server().await? {
        return Ok(());
    }
    let made = match (sftp.lstat(link).await, sftp.readlink(link).await) {
        (Ok(found), Ok(text)) => {
            let is_as_long = found
                .size
                .is_none_or(|size| size == 0 || size == target.len() as u64);
            found.file_type() == Some(FileType::Symlink) && (is_as_long || text == *target)
        }
        _ => false,
    };
    if made {
        return Ok(());
    }
    let _ = sftp.remove(link).await;
    let message = "the server makes another link than it is asked for";
    Err(refused(sftp, MAKING, link, message))
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

/// Learns the server's order, once: with two names that nobody has.
async fn is_link_first(sftp: &Sftp, directory: &Bytes) -> Result<bool, Error> {
    let known = &sftp.link().known;
    let learn = || async {
        if sftp.is_sftp_server().await? {
            return Ok(false);
        }
        let [first, second] = [(); 2].map(|()| fresh_name(directory));
        sftp.done(MAKING, &second, request(&first, &second, false))
            .await?;
        let (at_first, at_second) = tokio::join!(is_link(sftp, &first), is_link(sftp, &second));
        let link_first = match (at_first, at_second) {
            (false, true) => false,
            (true, false) => true,
            _ => {
                let message = "the server says that it made a link, and there is none";
                return Err(refused(sftp, MAKING, &second, message));
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

async fn is_link(sftp: &Sftp, path: &Bytes) -> bool {
    let found = sftp.lstat(path).await;
    found.is_ok_and(|found| found.file_type() == Some(FileType::Symlink))
}

/// Reads what a link says. Some servers rewrite that (proftpd's makes relative texts absolute): LSTAT's size, which is the
/// text's length, shows it, and which relative text it was.
pub(super) async fn text(sftp: &Sftp, path: &Bytes) -> Result<Bytes, Error> {
    let (text, is_sftp_server) = tokio::join!(sftp.readlink(path), sftp.is_sftp_server());
    let text = text?;
    if is_sftp_server? {
        return Ok(text);
    }
    let size = match sftp.lstat(path).await {
        Ok(found) if found.file_type() == Some(FileType::Symlink) => found.size.filter(|size| *size > 0),
        _ => None,
    };
    // An absolute text may be a relative one of the same length that was rewritten: asked by another name for the same link
    // such a server answers otherwise.
    let Some(size) = size else { return Ok(text) };
    let has_length = |text: &Bytes| text.len() as u64 == size;
    if has_length(&text) && !text.starts_with(b"/") {
        return Ok(text);
    }
    let home = sftp.realpath(".").await?;
    let absolute = in_directory(&home, path);
    let directory = directory_of(&absolute);
    let relative = relative_to(&directory, &in_directory(&home, &text));
    match (has_length(&text), has_length(&relative)) {
        (true, false) => Ok(text),
        (false, true) => Ok(relative),
        (true, true) if !rewrites(sftp, path, &home, &text).await => Ok(text),
        (true, true) => Ok(relative),
        (false, false) => {
            let message = format!(
                "the server does not say what it leads to: its answer has {} bytes, and the link {size}",
                text.len()
            );
            Err(refused(sftp, READING, path, message))
        }
    }
}

/// Whether the answer to a link depends on how the link is called.
async fn rewrites(sftp: &Sftp, path: &Bytes, home: &Bytes, text: &Bytes) -> bool {
    let other = match path.starts_with(b"/") {
        true => relative_to(home, path),
        false => in_directory(home, path),
    };
    sftp.readlink(&other).await.is_ok_and(|again| again != *text)
}

fn refused(
    sftp: &Sftp,
    doing: &'static str,
    path: &Bytes,
    message: impl Into<trunkline_text::Printable>,
) -> Error {
    let status = Status {
        code: StatusCode::FAILURE,
        message: message.into(),
    };
    sftp.link().refused(doing, path.clone(), status)
}

/// The directory that a path is in, with its slash; empty for a name alone.
fn directory_of(path: &Bytes) -> Bytes {
    let end = path.iter().rposition(|byte| *byte == b'/');
    path.slice(..end.map_or(0, |end| end + 1))
}

/// `path` as it is seen from `directory`, unless it is absolute.
fn in_directory(directory: &Bytes, path: &Bytes) -> Bytes {
    if path.starts_with(b"/") {
        return path.clone();
    }
    [directory.strip_suffix(b"/").unwrap_or(directory), b"/", path]
        .concat()
        .into()
}

/// How an absolute path is called from an absolute directory.
fn relative_to(directory: &Bytes, path: &Bytes) -> Bytes {
    let parts = |path: &Bytes| -> Vec<Vec<u8>> {
        let parts = path.split(|byte| *byte == b'/');
        parts
            .filter(|part| !part.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    let (from, to) = (parts(directory), parts(path));
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(b"..".to_vec(), from.len() - common);
    let steps: Vec<Vec<u8>> = up.chain(to[common..].iter().cloned()).collect();
    match steps.is_empty() {
        true => Bytes::from_static(b"."),
        false => steps.join(&b'/').into(),
    }
}

/// A name in a directory that nothing has.
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
        assert_eq!(directory_of(&"a/b".into()), "a/");
        assert_eq!(directory_of(&"b".into()), "");
        assert_eq!(in_directory(&"/home/u".into(), &"a".into()), "/home/u/a");
        assert_eq!(in_directory(&"/home/u".into(), &"/a".into()), "/a");
    }
}
