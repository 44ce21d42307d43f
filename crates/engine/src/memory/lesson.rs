//! [`Lesson`]: one way in which a server is not what its identification suggests, learnt by proof.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::moment::{milliseconds, moment};

/// Something that a server was seen to do. A server is what it does, not what it calls itself: what it takes ahead of
/// time, what it refuses and in what order it works is found out once, and remembered for a week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lesson {
    /// It dropped a connection on which our KEXINIT came before its identification.
    NoEarlyKexinit,
    /// It did not take authentication and the first channel in one flight.
    NoPipelining,
    /// It is OpenSSH's sshd: it announces what only sshd does, or has run a command that left with the log-in. Taken back
    /// by [`Self::NoPipelining`].
    Sshd,
    /// It took an authentication request behind the service request. Taken back by [`Self::NoPipelining`].
    EarlyLogIn,
    /// It opened a session that was asked for with the log-in.
    EarlySession,
    /// It did not.
    NoEarlySession,
    /// Several sessions have run on one connection, beside or after each other.
    SeveralSessions,
    /// It has one session for each connection, and none after it.
    OneSession,
    /// A session opened ahead was there for a command: 1 where it outlived another, 2 where one has run in it.
    Spares,
    /// A session opened ahead was refused, ended by itself, or took no command.
    NoSpares,
    /// It has only algorithms that the engine does not have.
    OnlyOtherAlgorithms,
    /// So many sessions at once are known to fit on a connection (sshd's MaxSessions).
    MaxSessions,
    /// OpenSSH's sftp-server has answered there: its limits are asked for before its version has come.
    SftpServer,
    /// Another server of files has.
    OtherSftpServer,
    /// It gave several open files one handle: they are opened one at a time.
    SharedHandles,
    /// Its SYMLINK takes the link's own path first, as the draft has it, and not the target as OpenSSH does.
    SymlinkLinkFirst,
    /// The other way round, as OpenSSH has it.
    SymlinkTargetFirst,
    /// It refused to open more than so many files at once.
    MaxOpenFiles,
    /// A tunnel through it takes so many bytes in a round trip.
    TunnelWindow,
    /// It took a request with so many bytes of text.
    TextTaken,
    /// It ended the connection when it was sent a request with so many bytes of text.
    TextRefused,
}

impl Lesson {
    /// Every lesson, with its name in the file and what `trunkline explain` says of it; `{}` stands for its number.
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

    /// The lessons that are wrong where this one is right.
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

/// The time that a lesson is believed: a server's configuration may change, and finding out costs little.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The lessons about one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lessons(BTreeMap<Lesson, Learnt>);

/// A lesson's number, 1 where it has none, and when it was last seen to hold, kept to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Learnt {
    number: u32,
    at: SystemTime,
}

impl Lessons {
    /// Remembers what the server did just now; a `number` where the lesson has one, 1 otherwise.
    pub fn learn(&mut self, lesson: Lesson, number: u32) {
        let at = moment(milliseconds(SystemTime::now()));
        self.0.insert(lesson, Learnt { number, at });
    }

    /// Forgets what no longer holds.
    pub fn unlearn(&mut self, lesson: Lesson) {
        self.0.remove(&lesson);
    }

    /// Returns whether a lesson was learnt.
    #[must_use]
    pub fn has(&self, lesson: Lesson) -> bool {
        self.0.contains_key(&lesson)
    }

    /// The number of a lesson, where it was learnt.
    #[must_use]
    pub fn number(&self, lesson: Lesson) -> Option<u32> {
        self.0.get(&lesson).map(|learnt| learnt.number)
    }

    /// All of them, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Lesson, u32)> {
        self.0.iter().map(|(lesson, learnt)| (*lesson, learnt.number))
    }

    /// Drops what was learnt too long before `now`.
    pub(super) fn expire(&mut self, now: SystemTime) {
        self.0
            .retain(|_, learnt| now.duration_since(learnt.at).is_ok_and(|age| age <= KEPT));
    }

    /// As one column of the file has it: `name number milliseconds` for each, apart by line feeds.
    pub(super) fn encode(&self) -> String {
        let rows = self.0.iter().map(|(lesson, learnt)| {
            format!("{} {} {}", lesson.name(), learnt.number, milliseconds(learnt.at))
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    /// Reads [`encode`](Self::encode)'s text; passes over what this version does not know.
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
