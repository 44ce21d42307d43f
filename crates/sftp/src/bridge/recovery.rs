//! The start of a new session: it finds out what the lost one has done, and opens the same files again.

use super::file::Kind;
use super::incoming::{Order, Packet};
use super::paths::{self, Knowledge};
use super::seen::Seen;
use super::{Ask, Bridge, File, GiveUp, Phase, State};
use crate::attributes::{FileAttributes, FileType};
use crate::error::Error;
use crate::extension::{Extensions, LIMITS, Limits, USERS_GROUPS};
use crate::packet::{Reader, kind};
use crate::reply::Handle;
use crate::request::Request;
use crate::status::StatusCode;
use bytes::Bytes;
use trunkline_text::Printable;

/// The fate of a request whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    NotDone,
    NotKnown,
}

impl Bridge {
    /// Begins to find out which requests were done.
    pub(super) fn look(&mut self, extensions: &Extensions) {
        self.phase = Phase::Looking;
        self.limits = Limits::default();
        if extensions.has(LIMITS.0, LIMITS.1) {
            self.await_answer(Ask::Limits, &Request::Limits);
        }
        for index in 0..self.queue.len() {
            let entry = &self.queue[index];
            if !entry.was_sent || !matches!(entry.state, State::Held) {
                continue;
            }
            let Order::Known(request) = &entry.order else {
                continue;
            };
            for (which, look) in looks(request).into_iter().enumerate() {
                if let Some(look) = look {
                    let n = self.first + index as u64;
                    self.await_answer(Ask::Look(n, which), &look);
                }
            }
        }
    }

    /// Takes an answer to one of the bridge's own questions.
    pub(super) fn take_recovery(&mut self, ask: Ask, answer: Packet) -> Result<(), GiveUp> {
        self.awaited -= 1;
        match ask {
            Ask::Limits => {
                if answer.kind == kind::EXTENDED_REPLY {
                    self.limits = Limits::decode(&mut Reader::new(answer.body.into_bytes()))?;
                }
            }
            Ask::Look(n, which) => self.entry(n).seen[which] = Some(Seen::from_answer(&answer)),
            Ask::Reopen(given) => self.take_reopened(&given, &answer)?,
            Ask::Reopened(given) => {
                if let Some(file) = self.files.get_mut(&given) {
                    file.dead = match answer.attributes() {
                        Some(now) => same_as_before(file, now).err(),
                        None => Some(give_up(file, &answer)),
                    };
                }
            }
            Ask::Entry(_) | Ask::Known(_) => {}
        }
        Ok(())
    }

    /// Takes the next step of a new session once all questions of the last one are answered.
    pub(super) fn recover(&mut self) {
        while self.awaited == 0 {
            match self.phase {
                Phase::Looking => {
                    self.decide();
                    self.phase = Phase::Reopening;
                    self.reopen();
                }
                Phase::Reopening => self.phase = Phase::Up,
                Phase::Lost | Phase::Greeting | Phase::Up => break,
            }
        }
    }

    fn decide(&mut self) {
        for index in 0..self.queue.len() {
            let entry = &self.queue[index];
            if !entry.was_sent || !matches!(entry.state, State::Held) {
                continue;
            }
            let n = self.first + index as u64;
            match self.fate(n) {
                Fate::NotDone => {}
                Fate::NotKnown => {
                    let text = "trunkline: the connection was lost before the server's answer, and whether this was done \
                                cannot be told";
                    self.queue[index].state = State::Answered(Packet::of_status(StatusCode::FAILURE, text));
                    self.doubt_names(n);
                }
                Fate::Done => {
                    let entry = &mut self.queue[index];
                    let Order::Known(request) = &entry.order else {
                        continue;
                    };
                    if let Request::Open { .. } = request {
                        entry.has_made_file = true;
                        continue;
                    }
                    let (request, before) = (request.clone(), entry.before);
                    entry.state = State::Answered(Packet::of_status(StatusCode::OK, "Success"));
                    self.note_done(&request, before);
                }
            }
        }
    }

    /// Marks files whose name may have been changed: they can no longer be found by it.
    fn doubt_names(&mut self, n: u64) {
        let index = (n - self.first) as usize;
        let Order::Known(request) = &self.queue[index].order else {
            return;
        };
        let request = request.clone();
        self.take_name(&request);
        if let Request::Rename { from, .. } | Request::PosixRename { from, .. } = &request {
            let moved = self
                .files
                .values_mut()
                .filter(|file| paths::move_path(&file.path, from, from).is_some());
            moved.for_each(|file| file.has_lost_name = true);
        }
    }

    /// Returns the fate of a request that was sent, judged by the findings since then.
    fn fate(&self, n: u64) -> Fate {
        let entry = &self.queue[(n - self.first) as usize];
        let before = entry.before.map(|known| known.map(|(knowledge, _)| knowledge));
        let was_missing = |which: usize| before[which] == Some(Knowledge::Missing);
        let was_there = |which: usize| matches!(before[which], Some(Knowledge::Present { .. }));
        let request = match &entry.order {
            Order::Known(request) => request,
            Order::Write { .. } => return Fate::NotDone,
            Order::Other { kind, body } => {
                let name = Reader::new(body.clone()).string();
                let only_asks =
                    *kind == kind::EXTENDED && name.is_ok_and(|name| name == USERS_GROUPS.0.as_bytes());
                return if only_asks { Fate::NotDone } else { Fate::NotKnown };
            }
        };
        let done_if = |is_done| if is_done { Fate::Done } else { Fate::NotKnown };
        match (request, &entry.seen) {
            (Request::CopyData { .. }, _) => Fate::NotKnown,
            (Request::Remove { .. } | Request::Rmdir { .. }, [Some(seen), _]) => match seen {
                Seen::There(_) => Fate::NotDone,
                Seen::Missing => done_if(was_there(0)),
                Seen::Link(_) | Seen::Untold => Fate::NotKnown,
            },
            (Request::Mkdir { .. }, [Some(seen), _]) => match seen {
                Seen::Missing => Fate::NotDone,
                Seen::There(now) if now.file_type().is_none_or(|kind| kind == FileType::Directory) => {
                    done_if(was_missing(0))
                }
                Seen::There(_) => Fate::NotDone,
                Seen::Link(_) | Seen::Untold => Fate::NotKnown,
            },
            (Request::Symlink { target, .. }, [Some(seen), _]) => match seen {
                Seen::Missing => Fate::NotDone,
                Seen::Link(says) => done_if(says == target && was_missing(0) && self.keeps_order),
                Seen::There(_) | Seen::Untold => Fate::NotKnown,
            },
            (Request::Hardlink { .. }, [Some(from), Some(to)]) => match (from, to) {
                (_, Seen::Missing) => Fate::NotDone,
                (Seen::There(from), Seen::There(to)) => {
                    done_if(was_missing(1) && from.size == to.size && from.times == to.times)
                }
                _ => Fate::NotKnown,
            },
            (Request::Rename { .. } | Request::PosixRename { .. }, [Some(old), Some(new)]) => {
                match (old, new) {
                    (Seen::There(_), Seen::Missing | Seen::There(_)) => Fate::NotDone,
                    (Seen::Missing, Seen::There(now)) => {
                        done_if(before[0].is_some_and(|known| known.is(now)))
                    }
                    (Seen::Missing, Seen::Missing) if !was_there(0) => Fate::NotDone,
                    _ => Fate::NotKnown,
                }
            }
            (Request::Open { flags, .. }, [Some(seen), _]) if flags.is_exclusive() => match seen {
                _ if entry.has_made_file => Fate::Done,
                Seen::Missing => Fate::NotDone,
                Seen::There(now) => {
                    let was_missing_lately =
                        matches!(entry.before[0], Some((Knowledge::Missing, age)) if age <= paths::RECENT);
                    done_if(
                        was_missing_lately
                            && now.size == Some(0)
                            && now.file_type() != Some(FileType::Symlink),
                    )
                }
                Seen::Link(_) | Seen::Untold => Fate::NotKnown,
            },
            _ => Fate::NotDone,
        }
    }

    /// Opens the client's files again.
    fn reopen(&mut self) {
        let given: Vec<Handle> = self.files.keys().cloned().collect();
        for given in given {
            let Some(file) = self.files.get_mut(&given) else {
                continue;
            };
            let flags = match file.reopening() {
                Ok(flags) => flags,
                Err(why) => {
                    file.dead = Some(why);
                    continue;
                }
            };
            let path = file.path.clone();
            let request = match file.kind {
                Kind::Directory(_) => Request::Opendir { path },
                Kind::Regular(_) => Request::Open {
                    path,
                    flags,
                    attributes: FileAttributes::default(),
                },
            };
            self.await_answer(Ask::Reopen(given), &request);
        }
    }

    fn take_reopened(&mut self, given: &Handle, answer: &Packet) -> Result<(), GiveUp> {
        let Some(file) = self.files.get_mut(given) else {
            return Ok(());
        };
        if answer.kind != kind::HANDLE {
            file.dead = Some(give_up(file, answer));
            return Ok(());
        }
        let real = answer.handle()?;
        file.handle = Some(real.clone());
        if let Kind::Regular(_) = file.kind {
            self.await_answer(Ask::Reopened(given.clone()), &Request::Fstat { handle: real });
        }
        Ok(())
    }
}

/// Checks that a file opened again is the one that was open.
fn same_as_before(file: &mut File, now: FileAttributes) -> Result<(), GiveUp> {
    file.compare(&now).map_err(|why| GiveUp::Changed {
        path: Printable::line(&file.path),
        why,
    })?;
    file.known.get_or_insert(now);
    Ok(())
}

/// Returns the reason why a file could not be opened again.
fn give_up(file: &File, answer: &Packet) -> GiveUp {
    let path = Printable::line(&file.path);
    match answer.status() {
        Some(status) => GiveUp::Gone { path, status },
        None => GiveUp::Server(Error::misbehavior(format!(
            "it answered with a packet of type {}",
            answer.kind
        ))),
    }
}

/// Returns the requests that show whether a request was done.
fn looks(request: &Request) -> [Option<Request>; 2] {
    let look = |path: &Bytes| Some(Request::Lstat { path: path.clone() });
    match request {
        Request::Remove { path } | Request::Rmdir { path } | Request::Mkdir { path, .. } => {
            [look(path), None]
        }
        Request::Open { path, flags, .. } if flags.is_exclusive() => [look(path), None],
        Request::Symlink { link, .. } => [Some(Request::Readlink { path: link.clone() }), None],
        Request::Rename { from, to } | Request::PosixRename { from, to } | Request::Hardlink { from, to } => {
            [look(from), look(to)]
        }
        _ => [None, None],
    }
}
