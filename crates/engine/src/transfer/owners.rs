//! [`Owners`] maps a source's owners and groups to the target's numbers, by their names as rsync does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nix::unistd::{Gid, Group, Uid, User};
use tokio::sync::OnceCell;
use trunkline_request::copy::CopyOptions;
use trunkline_request::shell::quote;
use trunkline_sftp::Request;

use super::blocking::blocking;
use super::place::Place;
use super::sessions::Sessions;
use crate::error::Error;
use crate::sftp::{Owner, Sftp};

/// The owners of one source's machine, as the target's numbers.
pub(super) struct Owners {
    /// `None` if owners are not kept, or are kept by number.
    ends: Option<[Accounts; 2]>,
    known: Mutex<HashMap<(Database, u32), u32>>,
}

/// The most numbers to remember: a server may send any number of them.
const MOST_KNOWN: usize = 100_000;

impl Owners {
    pub(super) fn new(from: &Place, to: &Place, options: &CopyOptions) -> Self {
        let by_name = options.owners && !options.numeric_ids;
        Self {
            ends: by_name.then(|| [Accounts::new(from), Accounts::new(to)]),
            known: Mutex::default(),
        }
    }

    /// Returns the target's numbers if they are known without a look-up.
    pub(super) fn find_known(&self, owner: Owner) -> Option<Owner> {
        if self.ends.is_none() {
            return Some(owner);
        }
        let known = self.table();
        // As in rsync, root is root everywhere.
        let number = |database, id| match id {
            0 => Some(0),
            _ => known.get(&(database, id)).copied(),
        };
        Some(Owner {
            uid: number(Database::Users, owner.uid)?,
            gid: number(Database::Groups, owner.gid)?,
        })
    }

    /// Returns the target's numbers. An unknown name or number keeps its number.
    ///
    /// # Errors
    /// The connection was lost.
    pub(super) async fn at_target(&self, owner: Owner) -> Result<Owner, Error> {
        if let Some(known) = self.find_known(owner) {
            return Ok(known);
        }
        Ok(Owner {
            uid: self.number(Database::Users, owner.uid).await?,
            gid: self.number(Database::Groups, owner.gid).await?,
        })
    }

    async fn number(&self, database: Database, id: u32) -> Result<u32, Error> {
        let known = self.table().get(&(database, id)).copied();
        let (Some([from, to]), 1.., None) = (&self.ends, id, known) else {
            return Ok(known.unwrap_or(id));
        };
        let found = match from.name(database, id).await? {
            Some(name) => to.number(database, name).await?,
            None => None,
        };
        let found = found.unwrap_or(id);
        let mut known = self.table();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert((database, id), found);
        Ok(found)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<(Database, u32), u32>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Database {
    Users,
    Groups,
}

impl Database {
    /// Returns its name for getent(1), which is also its file's.
    fn name(self) -> &'static str {
        match self {
            Self::Users => "passwd",
            Self::Groups => "group",
        }
    }
}

/// The users and groups of one end.
enum Accounts {
    Here,
    There {
        sessions: Arc<Sessions>,
        /// /etc/passwd and /etc/group.
        files: Box<[OnceCell<Lines>; 2]>,
    },
}

impl Accounts {
    fn new(place: &Place) -> Self {
        match place {
            Place::Local => Self::Here,
            Place::Server(sessions) => Self::There {
                sessions: sessions.clone(),
                files: Box::default(),
            },
        }
    }

    async fn name(&self, database: Database, id: u32) -> Result<Option<String>, Error> {
        let Self::There { sessions, files } = self else {
            return Ok(blocking(move || name_here(database, id)).await);
        };
        if let Some(name) = lines(sessions, files, database).await?.names.get(&id) {
            return Ok(Some(name.clone()));
        }
        name_there(sessions, database, id).await
    }

    async fn number(&self, database: Database, name: String) -> Result<Option<u32>, Error> {
        let Self::There { sessions, files } = self else {
            return Ok(blocking(move || number_here(database, &name)).await);
        };
        if let Some(id) = lines(sessions, files, database).await?.numbers.get(&name) {
            return Ok(Some(*id));
        }
        Ok(number_there(sessions, database, &name).await)
    }
}

fn name_here(database: Database, id: u32) -> Option<String> {
    match database {
        Database::Users => Some(User::from_uid(Uid::from_raw(id)).ok()??.name),
        Database::Groups => Some(Group::from_gid(Gid::from_raw(id)).ok()??.name),
    }
}

fn number_here(database: Database, name: &str) -> Option<u32> {
    match database {
        Database::Users => Some(User::from_name(name).ok()??.uid.as_raw()),
        Database::Groups => Some(Group::from_name(name).ok()??.gid.as_raw()),
    }
}

/// Looks up the name of a number that is not in the server's file, in a directory service.
async fn name_there(sessions: &Sessions, database: Database, id: u32) -> Result<Option<String>, Error> {
    let (uids, gids) = match database {
        Database::Users => (vec![id], Vec::new()),
        Database::Groups => (Vec::new(), vec![id]),
    };
    let request = Request::UsersGroupsById {
        uids: uids.clone(),
        gids: gids.clone(),
    };
    if !sessions.first().link().supports(&request).await? {
        return Ok(None);
    }
    let ask = async |sftp: Sftp| sftp.users_groups(uids.clone(), gids.clone()).await;
    match sessions.retry(ask).await {
        Ok(names) => Ok(names
            .users
            .into_iter()
            .chain(names.groups)
            .find(|name| !name.is_empty())),
        Err(Error::File { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks up the number of a name that is not in the server's file, if the server has a shell.
async fn number_there(sessions: &Sessions, database: Database, name: &str) -> Option<u32> {
    // getent(1) would take these for an option or a number.
    if name.starts_with('-') || name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let host = sessions.host()?;
    let mut script = format!("exec getent {} ", database.name()).into_bytes();
    script.extend(quote(name.as_bytes()));
    script.push(b'\n');
    let shells = sessions.shells();
    let output = shells.run(&host, &script, LONGEST_LINE, |_| ()).await?;
    Lines::parse(&output).numbers.get(name).copied()
}

/// The longest line: a group's line has its members.
const LONGEST_LINE: usize = 1024 * 1024;

/// The names and numbers of /etc/passwd or /etc/group.
#[derive(Debug, Default)]
struct Lines {
    numbers: HashMap<String, u32>,
    names: HashMap<u32, String>,
}

/// The most bytes to read of such a file, which has a hundred for each account.
const MOST_READ: u64 = 4 * 1024 * 1024;

impl Lines {
    /// Parses such a file. The first of several lines counts, as in the C library.
    fn parse(file: &[u8]) -> Self {
        let mut lines = Self::default();
        for line in file.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b':');
            let (Some(name), _, Some(id)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let (Ok(name), Ok(id)) = (std::str::from_utf8(name), std::str::from_utf8(id)) else {
                continue;
            };
            let (false, Ok(id)) = (name.is_empty(), id.parse::<u32>()) else {
                continue;
            };
            lines.numbers.entry(name.to_owned()).or_insert(id);
            lines.names.entry(id).or_insert_with(|| name.to_owned());
        }
        lines
    }
}

async fn lines<'a>(
    sessions: &Sessions,
    files: &'a [OnceCell<Lines>; 2],
    database: Database,
) -> Result<&'a Lines, Error> {
    let [users, groups] = files;
    let file = match database {
        Database::Users => users,
        Database::Groups => groups,
    };
    let path = Bytes::from(format!("/etc/{}", database.name()));
    let read = async |sftp: Sftp| sftp.read_at_most(&path, MOST_READ).await;
    file.get_or_try_init(async || match sessions.retry(read).await {
        Ok(file) => Ok(Lines::parse(&file.unwrap_or_default())),
        Err(Error::File { .. }) => Ok(Lines::default()),
        Err(error) => Err(error),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_number_count_as_in_the_first_line_that_has_them() {
        let lines = Lines::parse(
            b"root:x:0:0:root:/root:/bin/sh\n\
              alice:x:1000:100::/home/alice:\n\
              alice:x:1001:100::/:\n\
              other:x:1000:100::/:\n\
              +nis\n\
              :x:7:\n\
              \xff:x:8:8\n\
              odd:x:-1:\n\
              staff:x:50:alice,bob",
        );
        let mut numbers: Vec<_> = lines
            .numbers
            .iter()
            .map(|(name, id)| (name.as_str(), *id))
            .collect();
        numbers.sort_unstable();
        assert_eq!(
            numbers,
            [("alice", 1000), ("other", 1000), ("root", 0), ("staff", 50)]
        );
        assert_eq!(lines.names.get(&1000).map(String::as_str), Some("alice"));
        assert_eq!(lines.names.get(&1001).map(String::as_str), Some("alice"));
        assert_eq!(lines.names.len(), 4);
    }
}
