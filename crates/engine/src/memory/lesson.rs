//! [`Lesson`]: one way in which a server differs from what its identification suggests, learned by trial.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::moment::{milliseconds, moment};

/// An observed behaviour of a server. Behaviour counts, not the server's name: what it accepts ahead of time, what it
/// refuses, and in what order it works is tried once and remembered for a week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lesson {
    /// It dropped a connection on which our KEXINIT came before its identification.
    NoEarlyKexinit,
    /// It did not accept authentication and the first channel in one flight.
    NoPipelining,
    /// It is OpenSSH's sshd: it announces what only sshd does, or has run a command that was sent with the log-in.
    /// Taken back by [`Self::NoPipelining`].
    Sshd,
    /// It accepted an authentication request after the service request. Taken back by [`Self::NoPipelining`].
    EarlyLogIn,
    /// It opened a session that was requested with the log-in.
    EarlySession,
    /// It refused a session that was requested with the log-in.
    NoEarlySession,
    /// Several sessions have run on one connection, at once or in sequence.
    SeveralSessions,
    /// It allows one session per connection, and none after it.
    OneSession,
    /// A session opened ahead was ready for a command: 1 if it outlived another, 2 if a command has run in it.
    Spares,
    /// A session opened ahead was refused, ended by itself, or accepted no command.
    NoSpares,
    /// It has only algorithms that the engine lacks.
    OnlyOtherAlgorithms,
    /// The number of simultaneous sessions that fit on a connection (sshd's MaxSessions).
    MaxSessions,
    /// OpenSSH's sftp-server has answered: its limits are requested before its version has arrived.
    SftpServer,
    /// Another SFTP server has answered.
    OtherSftpServer,
    /// It gave several open files one handle: they are opened one at a time.
    SharedHandles,
    /// Its SYMLINK takes the link's own path first, as in the draft.
    SymlinkLinkFirst,
    /// Its SYMLINK takes the target first, as OpenSSH's.
    SymlinkTargetFirst,
    /// The most files that it opened at once.
    MaxOpenFiles,
    /// The bytes that a tunnel through it takes in a round trip.
    TunnelWindow,
    /// The length of the longest text in a request that it accepted.
    TextTaken,
    /// The length of a request's text at which it ended the connection.
    TextRefused,
}

impl Lesson {
    /// Every lesson, with its name in the file and its description in `trunkline explain`; `{}` stands for its number.
    const ALL: &[(Self, &str, &str)] = &[
        (
            Self::NoEarlyKexinit,
            "no-early-kexinit",
            "key exchange begins after its identification",
        ),
        (
            Self::NoPipelining,
            "no-pipelining",
            "log-in and first command in separate steps",
        ),
        (
            Self::Sshd,
            "sshd",
            "is OpenSSH's: log-in and first command leave together",
        ),
        (Self::EarlyLogIn, "early-log-in", "takes the log-in in one step"),
        (
            Self::EarlySession,
            "early-session",
            "opens the first session together with the log-in",
        ),
        (
            Self::NoEarlySession,
            "no-early-session",
            "opens the first session only after the log-in",
        ),
        (
            Self::SeveralSessions,
            "several-sessions",
            "runs several sessions on one connection",
        ),
        (
            Self::OneSession,
            "one-session",
            "one session for each connection: every command has its own",
        ),
        (
            Self::Spares,
            "spares",
            "keeps a session open for the next command",
        ),
        (
            Self::NoSpares,
            "no-spares",
            "does not keep a session open for the next command",
        ),
        (
            Self::OnlyOtherAlgorithms,
            "only-other-algorithms",
            "its algorithms need the system's ssh",
        ),
        (
            Self::MaxSessions,
            "max-sessions",
            "at most {} sessions on a connection",
        ),
        (Self::SftpServer, "sftp-server", "its SFTP is OpenSSH's"),
        (
            Self::OtherSftpServer,
            "other-sftp-server",
            "its SFTP is not OpenSSH's: each step of a copy waits for the one before",
        ),
        (
            Self::SharedHandles,
            "shared-handles",
            "gives several open SFTP files one handle: one file at a time",
        ),
        (
            Self::SymlinkLinkFirst,
            "symlink-link-first",
            "SYMLINK takes the link's path first",
        ),
        (
            Self::SymlinkTargetFirst,
            "symlink-target-first",
            "SYMLINK takes the target first, as OpenSSH's",
        ),
        (Self::MaxOpenFiles, "max-open-files", "at most {} open SFTP files"),
        (
            Self::TunnelWindow,
            "tunnel-window",
            "a tunnel through it takes {} bytes in a round trip",
        ),
        (Self::TextTaken, "text-taken", "takes commands of {} bytes"),
        (
            Self::TextRefused,
            "text-refused",
            "ended the connection at a command of {} bytes: none so long is sent",
        ),
    ];

    /// Returns the lessons that this one disproves.
    pub(crate) fn takes_back(self) -> &'static [Self] {
        match self {
            Self::NoPipelining => &[Self::Sshd, Self::EarlyLogIn, Self::EarlySession],
            Self::NoEarlySession => &[Self::EarlySession],
            Self::EarlySession => &[Self::NoEarlySession],
            Self::OneSession => &[Self::SeveralSessions, Self::Spares],
            Self::SeveralSessions => &[Self::OneSession],
            Self::NoSpares => &[Self::Spares],
            Self::Spares => &[Self::NoSpares],
            Self::SftpServer => &[Self::OtherSftpServer],
            Self::OtherSftpServer => &[Self::SftpServer],
            Self::SymlinkLinkFirst => &[Self::SymlinkTargetFirst],
            Self::SymlinkTargetFirst => &[Self::SymlinkLinkFirst],
            _ => &[],
        }
    }

    fn name(self) -> &'static str {
        let row = Self::ALL.iter().find(|(lesson, ..)| *lesson == self);
        row.map_or("", |(_, name, _)| name)
    }

    fn from_name(name: &str) -> Option<Self> {
        let row = Self::ALL.iter().find(|(_, known, _)| *known == name);
        row.map(|(lesson, ..)| *lesson)
    }

    /// Returns its meaning, for people.
    #[must_use]
    pub fn describe(self, number: u32) -> String {
        let row = Self::ALL.iter().find(|(lesson, ..)| *lesson == self);
        row.map_or("", |(.., text)| text)
            .replace("{}", &number.to_string())
    }
}

/// The time that a lesson is believed: a server's configuration may change, and another trial costs little.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The lessons about one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lessons(BTreeMap<Lesson, Learnt>);

/// A lesson's number, 1 if it has none, and when it was last seen to hold, kept to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Learnt {
    number: u32,
    at: SystemTime,
}

impl Lessons {
    /// Remembers a lesson from now on, with its `number`, or 1 if it has none.
    pub fn learn(&mut self, lesson: Lesson, number: u32) {
        let at = moment(milliseconds(SystemTime::now()));
        self.0.insert(lesson, Learnt { number, at });
    }

    /// Forgets a lesson.
    pub fn unlearn(&mut self, lesson: Lesson) {
        self.0.remove(&lesson);
    }

    /// Returns whether a lesson was learnt.
    #[must_use]
    /// Returns whether a lesson was learnt.
    pub fn has(&self, lesson: Lesson) -> bool {
        self.0.contains_key(&lesson)
    }

    /// Returns the number of a learned lesson.
    #[must_use]
    pub fn number(&self, lesson: Lesson) -> Option<u32> {
        self.0.get(&lesson).map(|learnt| learnt.number)
    }

    /// Returns all lessons with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Lesson, u32)> {
        self.0.iter().map(|(lesson, learnt)| (*lesson, learnt.number))
    }

    /// Drops lessons that are too old at `now`.
    pub(super) fn expire(&mut self, now: SystemTime) {
        self.0
            .retain(|_, learnt| now.duration_since(learnt.at).is_ok_and(|age| age <= KEPT));
    }

    /// Returns the file's column: `name number milliseconds` for each lesson, separated by line feeds.
    pub(super) fn encode(&self) -> String {
        let rows = self.0.iter().map(|(lesson, learnt)| {
            format!("{} {} {}", lesson.name(), learnt.number, milliseconds(learnt.at))
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    /// Parses [`encode`](Self::encode)'s text; skips lessons that this version does not know.
    pub(super) fn decode(text: &str) -> Self {
        let read = |line: &str| {
            let mut words = line.split(' ');
            let lesson = Lesson::from_name(words.next()?)?;
            let number = words.next()?.parse().ok()?;
            let at = moment(words.next()?.parse().ok()?);
            Some((lesson, Learnt { number, at }))
        };
        Self(text.lines().filter_map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lesson_is_read_back_as_it_was_written() {
        let mut lessons = Lessons::default();
        for (nth, (lesson, ..)) in (1..).zip(Lesson::ALL) {
            lessons.learn(*lesson, nth);
        }
        assert_eq!(lessons.iter().count(), Lesson::ALL.len());
        assert_eq!(Lessons::decode(&lessons.encode()), lessons);
        let newer = format!(
            "a-lesson-of-a-newer-version 1 5\n\nshared-handles x 3\n{}",
            lessons.encode()
        );
        assert_eq!(Lessons::decode(&newer), lessons);
    }

    #[test]
    fn a_lesson_is_believed_for_a_week_and_no_longer_than_it_holds() {
        let mut lessons = Lessons::default();
        lessons.learn(Lesson::MaxSessions, 2);
        lessons.learn(Lesson::SharedHandles, 1);
        lessons.unlearn(Lesson::SharedHandles);
        assert!(!lessons.has(Lesson::SharedHandles));
        let days = |days: u64| SystemTime::now() + Duration::from_secs(days * 24 * 3600);
        lessons.expire(days(6));
        assert_eq!(lessons.number(Lesson::MaxSessions), Some(2));
        assert_eq!(
            Lesson::MaxSessions.describe(2),
            "at most 2 sessions on a connection"
        );
        lessons.expire(days(8));
        assert_eq!(lessons, Lessons::default());
    }
}
