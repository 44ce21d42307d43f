//! [`Top`]: the target of a copy; [`Source`]: a name that the user wants copied.

use bytes::Bytes;

use super::compare::Beside;
use super::path::{self, shown};
use super::place::{Location, Place};
use super::stream::Stream;
use crate::error::{Error, Invalid};

/// The target: the directory that everything goes into, and the name there.
#[derive(Clone)]
pub(super) struct Top {
    pub(super) root: Bytes,
    /// The new name of a single source; `None` if each source keeps its own.
    pub(super) name: Option<Bytes>,
    /// The directory's attributes, if it exists.
    pub(super) found: Option<Beside>,
}

impl Top {
    /// Makes a target of a directory into which everything goes.
    pub(super) fn directory(root: Bytes) -> Self {
        Self {
            root,
            name: None,
            found: None,
        }
    }
}

/// A source as the user named it.
pub(super) struct Source {
    pub(super) path: Bytes,
    pub(super) stream: Option<Stream>,
}

impl Source {
    pub(super) fn of(location: &Location) -> Self {
        Self {
            path: location.path(),
            stream: match location {
                Location::Stream(stream) => Some(stream.clone()),
                _ => None,
            },
        }
    }
}

/// Fails if the directory at `path` is copied into itself: if the target, an absolute path, is in the directory.
pub(super) async fn into_itself(
    from: &Place,
    path: &Bytes,
    to: &Place,
    (target, name): (&Bytes, &Bytes),
) -> Result<Option<Invalid>, Error> {
    let Some(path) = from.absolute(path).await else {
        return Ok(None);
    };
    let into = path::in_root(target, name);
    let is_inside = match into.strip_prefix(&path[..]) {
        Some(rest) => rest.starts_with(b"/") && !rest[1..].is_empty() || path == "/",
        None => false,
    };
    let loops = is_inside && to.shows_what_is_made_at(from, target).await?;
    Ok(loops.then(|| Invalid::IntoItself {
        source_path: shown(&path),
        target: shown(&into),
    }))
}
