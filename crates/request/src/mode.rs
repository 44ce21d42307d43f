//! [`ModeChange`]: changes of permissions as in `--chmod`, by rsync's rules.

use serde::{Deserialize, Serialize};

/// A change of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    keep: u32,
    set: u32,
    only: Option<Only>,
    /// `X`: does not make a file executable that is not.
    keeps_running: bool,
}

/// The files that a change applies to, if not to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Only {
    Directories,
    Files,
}

/// The error for an invalid change of permissions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a change of permissions, such as Dg+s,ug+w,o-rwx,F644")]
pub struct ModeError(String);

const ALL: u32 = 0o7777;

impl ModeChange {
    /// Parses changes as in rsync's `--chmod`: `u+rwX`, `go=`, `644`; prefixed by `D` or `F` to apply only to
    /// directories or other names; separated by commas. Without `u`, `g`, `o` or `a` the umask applies.
    ///
    /// # Errors
    /// The text is invalid.
    /// For text that is something else.
    pub fn read(text: &str, umask: u32) -> Result<Vec<Self>, ModeError> {
        let changes = text.split(',').map(|change| Self::one(change, umask));
        let changes: Option<_> = changes.collect();
        changes.ok_or_else(|| ModeError(text.to_owned()))
    }

    fn one(text: &str, umask: u32) -> Option<Self> {
        let (only, text) = match text.split_at_checked(1)? {
            ("D", text) => (Some(Only::Directories), text),
            ("F", text) => (Some(Only::Files), text),
            _ => (None, text),
        };
        let change = |keep, set, keeps_running| Self {
            keep,
            set,
            only,
            keeps_running,
        };
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let is_octal = text.bytes().all(|digit| digit.is_ascii_digit());
            let mode = u32::from_str_radix(text, 8).ok();
            return mode
                .filter(|mode| is_octal && *mode <= ALL)
                .map(|mode| change(0, mode, false));
        }
        let at = text.find(['+', '-', '='])?;
        let (mut whose, mut ids) = (0, 0);
        for who in text[..at].bytes() {
            let (more, id) = match who {
                b'u' => (0o100, 0o4000),
                b'g' => (0o010, 0o2000),
                b'o' => (0o001, 0),
                b'a' => (0o111, 0),
                _ => return None,
            };
            (whose, ids) = (whose | more, ids | id);
        }
        let (mut what, mut special, mut keeps_running) = (0, 0, false);
        for letter in text[at + 1..].bytes() {
            match letter {
                b'r' => what |= 4,
                b'w' => what |= 2,
                b'x' => what |= 1,
                b'X' => (what, keeps_running) = (what | 1, true),
                b's' => special |= if ids == 0 { 0o4000 } else { ids },
                b't' => special |= 0o1000,
                _ => return None,
            }
        }
        let bits = special
            | match whose {
                0 => (0o111 * what) & !umask,
                whose => whose * what,
            };
        let whose = if whose == 0 { 0o111 } else { whose };
        Some(match &text[at..=at] {
            "+" => change(ALL, bits, keeps_running),
            "-" => change(ALL & !bits, 0, keeps_running),
            _ => {
                let cleared = (whose * 7) | if special == 0 { 0 } else { ids };
                change(ALL & !cleared, bits, keeps_running)
            }
        })
    }

    /// Returns the permissions after all changes.
    pub fn apply(changes: &[Self], mode: u32, is_directory: bool) -> u32 {
        let is_run = mode & 0o111 != 0;
        let concerned = changes.iter().filter(|change| match change.only {
            None => true,
            Some(only) => (only == Only::Directories) == is_directory,
        });
        concerned.fold(mode, |mode, change| {
            let set = match change.keeps_running && !is_run && !is_directory {
                true => change.set & !0o111,
                false => change.set,
            };
            mode & change.keep | set
        })
    }

    /// Returns true if it sets set-user-ID or set-group-ID.
    pub fn sets_ids(&self) -> bool {
        self.set & 0o6000 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_change_as_rsync_changes_them() {
        // Each is the result of `rsync -r --chmod` with a umask of 027.
        for (text, mode, file, directory) in [
            ("644", 0o755, 0o644, 0o644),
            ("D755,F640", 0o600, 0o640, 0o755),
            ("u+x", 0o644, 0o744, 0o744),
            ("go=", 0o755, 0o700, 0o700),
            ("a+X", 0o644, 0o644, 0o755),
            ("a+X", 0o744, 0o755, 0o755),
            ("Dg+s,ug+w", 0o644, 0o664, 0o2664),
            ("+w", 0o444, 0o644, 0o644),
            ("g=s", 0o755, 0o2705, 0o2705),
            ("o-rwx,+t", 0o777, 0o1770, 0o1770),
            ("a-w", 0o4755, 0o4555, 0o4555),
        ] {
            let changes = ModeChange::read(text, 0o027).unwrap();
            assert_eq!(ModeChange::apply(&changes, mode, false), file, "{text}");
            assert_eq!(ModeChange::apply(&changes, mode, true), directory, "{text}");
        }
    }

    #[test]
    fn what_is_no_change_of_permissions_is_refused() {
        for wrong in [
            "", ",", "u", "888", "77777", "z+x", "u+z", "D", "é+x", "u+x,", "6x",
        ] {
            assert!(ModeChange::read(wrong, 0).is_err(), "{wrong}");
        }
    }
}
