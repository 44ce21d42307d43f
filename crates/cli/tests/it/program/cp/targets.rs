//! The results of `trunkline cp`, compared with scp and cp: kinds of targets, in each direction, for root and for an
//! ordinary user.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat};
use trunkline_testkit::Sshd;

use crate::home::{Home, copy_program, describe, fifo, finish, finish_with, program, sshd, text, wait_until};

/// The user who copies, here and on the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// The user who runs the tests.
    Own,
    /// Of root's tests: somebody whom permissions hold up.
    Nobody,
}

const NOBODY: u32 = 65534;
/// Owner and group of files that are nobody's here.
const STRANGER: u32 = 12345;
/// The program as a user runs it who has no rights of root's.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
    Between,
}

/// Two servers and somebody who copies.
pub(crate) struct Place {
    pub(crate) home: Home,
    user: User,
    config: PathBuf,
    program: PathBuf,
    _servers: [Sshd; 2],
}

impl Place {
    /// `wrapper`: what runs the commands of sessions on the second server, beside what the user asks for.
    pub(crate) fn new(user: User, wrapper: &str) -> Self {
        let place = Home::new();
        let home = place.path("home").display().to_string();
        let mut config = String::new();
        let as_user = match user {
            User::Own => "",
            User::Nobody => AS_NOBODY,
        };
        let servers = [("one", ""), ("two", wrapper)].map(|(name, wrapper)| {
            // sftp-server too is a command here.
            let own = format!("sh -c 'cd {home} && eval \"$SSH_ORIGINAL_COMMAND\"'");
            let force = format!("ForceCommand exec {wrapper} {as_user} {own}");
            let server = sshd().alias(name).config(&force).start().unwrap();
            config += &fs::read_to_string(server.ssh_config()).unwrap();
            server
        });
        let mut place = Self {
            config: place.path("config"),
            program: program().into(),
            home: place,
            user,
            _servers: servers,
        };
        if user == User::Nobody {
            place.hand_over(&mut config);
        }
        fs::write(&place.config, config).unwrap();
        place
    }

    /// Makes what the other user needs that user's: the home, the keys, and a program that is not below a closed directory.
    fn hand_over(&mut self, config: &mut String) {
        let home = self.home.path("");
        fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
        for server in &self._servers {
            let own = self.home.path(&format!("keys-{}", server.alias()));
            fs::create_dir(&own).unwrap();
            for entry in fs::read_dir(server.dir()).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    fs::copy(entry.path(), own.join(entry.file_name())).unwrap();
                }
            }
            *config = config.replace(&server.dir().display().to_string(), &own.display().to_string());
        }
        fs::create_dir(self.home.trunkline_dir()).unwrap();
        self.program = self.home.path("trunkline");
        copy_program(Path::new(program()), &self.program);
        let daemon = Path::new(program()).with_file_name("trunklined");
        copy_program(&daemon, &self.home.path("trunklined"));
        let given = Command::new("chown")
            .args(["-R", "65534:65534"])
            .arg(&home)
            .status();
        assert!(given.unwrap().success());
    }

    /// A command of the user's.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match self.user {
            User::Own => self.home.command(program),
            User::Nobody => {
                let mut words = AS_NOBODY.split(' ');
                let mut command = self.home.command(words.next().unwrap());
                command.args(words).arg(program);
                // Where the tests run, that user may not be let in.
                command.current_dir(self.home.path(""));
                command
            }
        }
    }

    /// `trunkline cp`; add options and paths.
    pub(crate) fn cp(&self) -> Command {
        let mut command = self.command(&self.program);
        command.arg("cp").arg("-F").arg(&self.config);
        command
    }

    /// The same without a daemon, run by `wrapper`.
    pub(crate) fn run_within(&self, wrapper: &str) -> Command {
        let mut command = self.home.command("sh");
        let as_user = match self.user {
            User::Own => "",
            User::Nobody => AS_NOBODY,
        };
        command.args(["-c", &format!("exec {wrapper} {as_user} \"$@\""), "sh"]);
        command.current_dir("/").arg(&self.program);
        command.args(["--no-daemon", "cp", "-F"]).arg(&self.config);
        command
    }

    fn scp(&self) -> Command {
        let mut command = self.command("scp");
        let socket = format!("ControlPath={}", self.home.path("home/%n").display());
        command.arg("-3qF").arg(&self.config);
        command.args([
            "-o",
            &socket,
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=yes",
        ]);
        command
    }

    /// The user's own, unless it is to be somebody else's.
    fn own(&self, path: &Path) {
        if self.user == User::Nobody {
            std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in ["one", "two"] {
            let mut exit = self.command("ssh");
            exit.arg("-F").arg(&self.config).arg("-o");
            exit.arg(format!("ControlPath={}", self.home.path("home/%n").display()));
            let _ = exit.args(["-O", "exit", name]).output();
        }
    }
}

/// Source and target as arguments.
pub(crate) fn ends(direction: Direction, source: &Path, target: &Path) -> [String; 2] {
    let [source, target] = [source, target].map(|path| path.display().to_string());
    match direction {
        Direction::Up => [source, format!("two:{target}")],
        Direction::Down => [format!("one:{source}"), target],
        Direction::Between => [format!("one:{source}"), format!("two:{target}")],
    }
}

/// The kinds of things that a copy meets under `target`. Where one needs root's rights to be made, it is in the second
/// list.
const KINDS: &[&str] = &[
    "nothing",
    "file",
    "read-only file",
    "program",
    "link to a file",
    "link to a link",
    "link to nothing",
    "link into a missing directory",
    "link to itself",
    "link to a directory",
    "link in a directory",
    "directory",
    "directory in the file's place",
    "file in the directory's place",
    "name of 255 bytes",
    "sticky directory",
    "closed directory",
    "directory of a group",
    "FIFO",
];
const KINDS_OF_ROOT: &[&str] = &[
    "another's file",
    "another's writable file",
    "another's file in a sticky directory",
    "device",
    "set-user-ID program",
    "set-group-ID program",
    "set-group-ID file",
];

/// The time of existing files; the source has the other one.
const OLD: u64 = 900_000_000;
const SOURCE: u64 = 1_000_000_000;

fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Makes what is to be met; the target's name.
fn prepare(place: &Place, directory: &Path, kind: &str) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    place.own(directory);
    let target = directory.join("target");
    let file = |name: &str, mode| {
        let path = directory.join(name);
        fs::write(&path, "what was there, and longer").unwrap();
        place.own(&path);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        set_time(&path, OLD);
        path
    };
    let inner = |name: &str, mode| {
        let path = directory.join(name);
        fs::create_dir(&path).unwrap();
        place.own(&path);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let link = |to: &str, name: &str| symlink(to, directory.join(name)).unwrap();
    match kind {
        "nothing" => {}
        "file" | "file in the directory's place" => drop(file("target", 0o640)),
        "read-only file" => drop(file("target", 0o444)),
        "program" => drop(file("target", 0o755)),
        "link to a file" => {
            file("real", 0o600);
            link("real", "target");
        }
        "link to a link" => {
            file("real", 0o600);
            link("real", "middle");
            link(&directory.join("middle").display().to_string(), "target");
        }
        "link to nothing" => link("real", "target"),
        "link into a missing directory" => link("missing/real", "target"),
        "link to itself" => link("target", "target"),
        "link to a directory" => {
            inner("real", 0o755);
            link("real", "target");
        }
        "link in a directory" => {
            inner("target", 0o755);
            file("real", 0o600);
            link("../real", "target/source");
        }
        "directory" => drop(inner("target", 0o755)),
        "directory in the file's place" => {
            inner("target", 0o755);
            inner("target/source", 0o755);
        }
        "name of 255 bytes" => return directory.join("n".repeat(255)),
        "sticky directory" => {
            inner("target", 0o1777);
            file("target/source", 0o644);
        }
        "closed directory" => {
            inner("target", 0o755);
            file("target/source", 0o644);
            fs::set_permissions(&target, Permissions::from_mode(0o555)).unwrap();
        }
        "directory of a group" => {
            inner("target", 0o2775);
            file("target/source", 0o664);
        }
        "FIFO" => {
            fifo(&target).unwrap();
            place.own(&target);
        }
        "another's file" => chown(file("target", 0o644), Some(STRANGER), Some(STRANGER)).unwrap(),
        "another's writable file" => chown(file("target", 0o666), Some(STRANGER), Some(STRANGER)).unwrap(),
        "another's file in a sticky directory" => {
            let directory = inner("target", 0o1777);
            chown(directory, Some(0), Some(0)).unwrap();
            chown(file("target/source", 0o666), Some(STRANGER), Some(STRANGER)).unwrap();
        }
        "device" => {
            mknodat(
                CWD,
                &target,
                FileType::CharacterDevice,
                Mode::from_raw_mode(0o666),
                makedev(1, 3),
            )
            .unwrap();
            fs::set_permissions(&target, Permissions::from_mode(0o666)).unwrap();
        }
        "set-group-ID program" => drop(file("target", 0o2755)),
        "set-group-ID file" => drop(file("target", 0o2744)),
        "set-user-ID program" => drop(file("target", 0o4755)),
        kind => panic!("{kind}"),
    }
    target
}

/// The state of a path, with everything below it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    /// `None` for now.
    modified: Option<u64>,
    content: Vec<u8>,
}

fn see(root: &Path, at: &Path, seen: &mut BTreeMap<PathBuf, Seen>) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let found = path.symlink_metadata().unwrap();
        let kind = found.file_type();
        let content = if kind.is_symlink() {
            let to = fs::read_link(&path).unwrap();
            // Whoever it is whose directory it is.
            to.file_name().unwrap().as_encoded_bytes().to_vec()
        } else if kind.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let modified = u64::try_from(found.mtime()).unwrap();
        seen.insert(
            path.strip_prefix(root).unwrap().to_owned(),
            Seen {
                mode: found.mode(),
                owner: (found.uid(), found.gid()),
                modified: Some(modified).filter(|time| kind.is_file() && [OLD, SOURCE].contains(time)),
                content,
            },
        );
        if kind.is_dir() {
            see(root, &path, seen);
        }
    }
}

/// The outcome of a copy: whether it succeeded, the state afterwards, and the data that a FIFO's reader got.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    success: bool,
    seen: BTreeMap<PathBuf, Seen>,
    read: Option<Vec<u8>>,
}

fn outcome(directory: &Path, target: &Path, mut copy: impl FnMut() -> Output) -> (Outcome, Output) {
    let is_fifo = target.metadata().is_ok_and(|found| found.file_type().is_fifo());
    let (output, read) = if is_fifo {
        let path = target.to_owned();
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            fs::File::open(path).unwrap().read_to_end(&mut read).unwrap();
            read
        });
        let output = copy();
        wait_until("the FIFO's reader is at the end", || {
            // Where nobody opened it, the test does, and closes it.
            let flags = OFlags::WRONLY | OFlags::NONBLOCK;
            drop(rustix::fs::open(target, flags, Mode::empty()));
            reader.is_finished()
        });
        (output, Some(reader.join().unwrap()))
    } else {
        (copy(), None)
    };
    let mut seen = BTreeMap::new();
    see(directory, directory, &mut seen);
    let success = output.status.success();
    (Outcome { success, seen, read }, output)
}

fn compare(user: User) {
    let place = Place::new(user, "");
    let is_root = rustix::process::geteuid().is_root();
    let work = place.home.path("work");
    fs::create_dir(&work).unwrap();
    place.own(&work);
    let sources = [false, true].map(|large| {
        let directory = work.join(format!("large-{large}"));
        fs::create_dir(&directory).unwrap();
        let source = directory.join("source");
        let length = if large { 2_500_000 } else { 11 };
        fs::write(&source, "new content".repeat(length / 11 + 1)).unwrap();
        fs::set_permissions(&source, Permissions::from_mode(0o751)).unwrap();
        place.own(&source);
        set_time(&source, SOURCE);
        source
    });
    let tree = work.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::copy(&sources[0], tree.join("file")).unwrap();
    place.own(&tree);
    place.own(&tree.join("file"));
    let mut wrong = String::new();
    let kinds = KINDS.iter().chain(KINDS_OF_ROOT.iter().filter(|_| is_root));
    for kind in kinds {
        for direction in [Direction::Up, Direction::Down, Direction::Between] {
            for (large, preserve) in [(false, false), (false, true), (true, false)] {
                // What is not a file has no permissions and times that a copy sets.
                if preserve && matches!(*kind, "FIFO" | "device") {
                    continue;
                }
                let case = format!("{kind}, {direction:?}, large: {large}, -p: {preserve}");
                let source = match *kind {
                    "file in the directory's place" => &tree,
                    _ => &sources[usize::from(large)],
                };
                let directory = |who: &str| work.join(&case).join(who);
                // scp waits forever on a FIFO.
                let scp_or_cp = if *kind == "FIFO" { "cp" } else { "scp" };
                let [ours, cp, scp] = ["trunkline", "cp", scp_or_cp].map(|who| {
                    let directory = directory(who);
                    let _ = fs::remove_dir_all(&directory);
                    fs::create_dir_all(directory.parent().unwrap()).unwrap();
                    let target = prepare(&place, &directory, kind);
                    let options = if preserve { "-rp" } else { "-r" };
                    outcome(&directory, &target, || {
                        let mut command = match who {
                            "trunkline" => place.cp(),
                            "scp" => place.scp(),
                            _ => place.command("cp"),
                        };
                        command.arg(options);
                        match who {
                            "cp" => command.args([source, &target]),
                            _ => command.args(ends(direction, source, &target)),
                        };
                        finish(&mut command)
                    })
                });
                if ours.0 != cp.0 && ours.0 != scp.0 {
                    wrong += &format!(
                        "{case}\n  ours {:?} {}\n  cp {:?} {}\n  scp {:?} {}\n",
                        short(&ours.0),
                        text(&ours.1.stderr),
                        short(&cp.0),
                        text(&cp.1.stderr),
                        short(&scp.0),
                        text(&scp.1.stderr)
                    );
                }
                if !ours.0.success {
                    let names = directory("trunkline").display().to_string();
                    assert!(
                        text(&ours.1.stderr).contains(&names),
                        "{case}: {}",
                        describe(&ours.1)
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{user:?}:\n{wrong}");
}

/// The same with the contents' beginnings only.
fn short(outcome: &Outcome) -> String {
    let seen = outcome.seen.iter().map(|(path, seen)| {
        let content = String::from_utf8_lossy(&seen.content[..seen.content.len().min(12)]).into_owned();
        let path = path.display().to_string();
        let path = &path[..path.len().min(40)];
        format!(
            "{path} {:o} {:?} {:?} {content:?} {}",
            seen.mode,
            seen.owner,
            seen.modified,
            seen.content.len()
        )
    });
    let seen: Vec<String> = seen.collect();
    format!(
        "{} {seen:#?} {:?}",
        outcome.success,
        outcome.read.as_ref().map(Vec::len)
    )
}

#[test]
fn what_a_copy_meets_becomes_what_cp_and_scp_make_of_it() {
    compare(User::Own);
}

#[test]
fn an_ordinary_user_meets_what_cp_and_scp_meet() {
    if rustix::process::geteuid().is_root() {
        compare(User::Nobody);
    } else {
        compare(User::Own);
    }
}

#[test]
fn a_pipe_that_another_user_has_made_is_read_and_written() {
    let user = if rustix::process::geteuid().is_root() {
        User::Nobody
    } else {
        User::Own
    };
    let place = Place::new(user, "");
    let target = place.home.path("target").display().to_string();
    let up = finish_with(place.cp().args(["-", &format!("two:{target}")]), b"by a pipe");
    assert!(up.status.success(), "{}", describe(&up));
    let down = finish(place.cp().args([&format!("two:{target}"), "-"]));
    assert!(down.status.success(), "{}", describe(&down));
    assert_eq!(text(&down.stdout), "by a pipe", "{}", describe(&down));
}
