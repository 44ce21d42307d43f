//! Copies onto a disk that gets full, in each direction: what is said, what is left, and how it resumes when there is room.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use trunkline_testkit::noise;

use super::targets::{Direction, Place, User, ends};
use crate::home::{assert_status, describe, finish, finish_with, text};

/// A disk of 20 MiB in a mount namespace of its own, which a process holds as long as it has input.
struct Disk {
    directory: TempDir,
    holder: Child,
}

const MIB: usize = 1024 * 1024;

impl Disk {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("disk-").tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        let script = "mount -t tmpfs -o size=20m,mode=1777 tmpfs \"$1\" && echo ready && exec cat";
        let mut holder = Command::new("unshare");
        holder.arg("-m").args((!is_root()).then_some("-r"));
        let mut holder = holder
            .args(["sh", "-c", script, "sh"])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self { directory, holder }
    }

    /// Returns the prefix that runs a command where the disk is.
    fn enter(&self) -> String {
        let user = if is_root() {
            ""
        } else {
            "-U --preserve-credentials"
        };
        format!("nsenter -t {} -m {user}", self.holder.id())
    }

    /// A path on it, as it is there.
    fn there(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same, as it is reached from outside.
    fn here(&self, name: &str) -> PathBuf {
        let there = self.there(name);
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(there.strip_prefix("/").unwrap())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a user who is stopped by a closed directory, also if the tests run as root.
fn ordinary_user() -> User {
    if is_root() { User::Nobody } else { User::Own }
}

fn give(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
}

/// Returns the names in a directory, but for the test's own `filler`.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_full_disk_is_named_leaves_the_old_file_and_the_copy_resumes_when_there_is_room() {
    let disk = Disk::new();
    let place = Place::new(ordinary_user(), &disk.enter());
    for direction in [Direction::Up, Direction::Down, Direction::Between] {
        for (length, room, streams) in [
            (MIB, MIB / 2, "1"),
            (16 * MIB, 12 * MIB, "1"),
            (16 * MIB, 12 * MIB, "4"),
            (16 * MIB, 0, "1"),
            (16 * MIB, 0, "4"),
        ] {
            for in_place in [false, true] {
                let case = format!("{direction:?} {length} into {room} over {streams} in place: {in_place}");
                let source = place.home.path("source");
                fs::write(&source, noise(length, 1)).unwrap();
                give(&source);
                let directory = disk.here("directory");
                fs::create_dir(&directory).unwrap();
                let old = b"what was there".repeat(1000);
                fs::write(directory.join("target"), &old).unwrap();
                give(&directory.join("target"));
                give(&directory);
                if in_place {
                    fs::set_permissions(&directory, Permissions::from_mode(0o555)).unwrap();
                }
                // What is there takes some room, too.
                let filled = fs::write(disk.here("filler"), vec![1; 20 * MIB - room]);
                assert_eq!(filled.is_err(), room == 0, "{case}: {filled:?}");
                let copy = || {
                    let mut command = cp(direction, &place, &disk);
                    command.args(["--json", "--streams", streams]).args(ends(
                        direction,
                        &source,
                        &disk.there("directory/target"),
                    ));
                    finish(&mut command)
                };
                let output = copy();
                assert_status(&output, 1);
                let said = text(&output.stdout);
                let named = disk.there("directory/target").display().to_string();
                assert!(
                    said.to_lowercase().contains("no space left"),
                    "{case}: {}",
                    describe(&output)
                );
                assert!(said.contains(&named), "{case}: {}", describe(&output));
                // Of what was moved nothing was copied.
                let summary: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
                let counts = ["copied", "bytes", "resumed_bytes", "failed"].map(|of| summary[of].as_u64());
                assert_eq!(counts, [Some(0), Some(0), Some(0), Some(1)], "{case}: {said}");
                // It is seen beforehand also where the old file would be written to.
                assert!(
                    fs::read(directory.join("target")).unwrap() == old,
                    "{case}: {said}"
                );
                let kept = length > 8 * MIB && room > 0 && !in_place;
                let left = names(&directory);
                assert_eq!(left.len(), 1 + usize::from(kept), "{case}: {left:?} {said}");
                fs::remove_file(disk.here("filler")).unwrap();
                let again = copy();
                assert_status(&again, 0);
                assert!(
                    fs::read(directory.join("target")).unwrap() == noise(length, 1),
                    "{case}"
                );
                assert_eq!(names(&directory), ["target"], "{case}");
                let said = text(&again.stdout);
                let summary: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
                let resumed = summary["resumed_bytes"].as_u64().unwrap() > 0;
                // Several sessions may all have been in the middle of their blocks.
                assert!(resumed == kept || kept && streams != "1", "{case}: {said}");
                fs::remove_dir_all(&directory).unwrap();
            }
        }
    }
}

/// `trunkline cp`, with the disk where the copy writes: on this side or on the server's.
fn cp(direction: Direction, place: &Place, disk: &Disk) -> Command {
    match direction {
        Direction::Down => place.run_within(&disk.enter()),
        Direction::Up | Direction::Between => place.cp(),
    }
}

/// The lines about names that were not copied.
fn complaints(said: &str) -> Vec<&str> {
    let lines = said.lines();
    lines.filter(|line| line.starts_with("trunkline: ")).collect()
}

#[test]
fn a_tree_that_does_not_fit_is_one_line_and_ends_the_copy() {
    let disk = Disk::new();
    let place = Place::new(User::Own, &disk.enter());
    let source = place.home.path("source");
    let (directories, files) = (4, 500);
    for directory in 0..directories {
        let directory = source.join(directory.to_string());
        fs::create_dir_all(&directory).unwrap();
        for file in 0..files {
            fs::write(directory.join(file.to_string()), noise(16 * 1024, file)).unwrap();
        }
    }
    for direction in [Direction::Up, Direction::Down, Direction::Between] {
        let mut copy = cp(direction, &place, &disk);
        let output = finish(
            copy.arg("-r")
                .args(ends(direction, &source, &disk.there("target"))),
        );
        assert_status(&output, 1);
        let said = text(&output.stderr);
        let [line] = complaints(&said)[..] else {
            panic!("{direction:?}: {said}");
        };
        assert!(line.contains("no space left in "), "{direction:?}: {line}");
        // The same command would copy into the directory, which is there now.
        let rest = format!("The copy stopped here; copy {}/. for the rest, since", {
            let [from, _] = ends(direction, &source, &disk.there("target"));
            from.split_once(':')
                .map_or(from.clone(), |(_, path)| path.to_owned())
        });
        assert!(line.contains(&rest), "{direction:?}: {line}");
        let target = disk.here("target");
        let mut whole = 0;
        for directory in 0..directories {
            let directory = target.join(directory.to_string());
            for name in names(&directory) {
                // The name of a partial file does not parse as a number.
                let seed = name.parse().unwrap();
                assert!(
                    fs::read(directory.join(&name)).unwrap() == noise(16 * 1024, seed),
                    "{direction:?}: {name}"
                );
                whole += 1;
            }
        }
        // The directories are counted, too.
        let counted = format!("{} copied, ", whole + directories + 1);
        assert!(said.contains(&counted), "{direction:?}: {whole}: {said}");
        assert!(whole < directories * files, "{direction:?}");
        fs::remove_dir_all(target).unwrap();
    }
}

#[test]
fn of_large_files_as_many_are_copied_as_fit() {
    let disk = Disk::new();
    let place = Place::new(User::Own, &disk.enter());
    let source = place.home.path("source");
    let files = 14;
    fs::create_dir(&source).unwrap();
    for file in 0..files {
        fs::write(source.join(file.to_string()), noise(3 * MIB, file)).unwrap();
    }
    for direction in [Direction::Up, Direction::Down, Direction::Between] {
        for partial in ["--partial", "--no-partial"] {
            let case = format!("{direction:?} {partial}");
            let mut copy = cp(direction, &place, &disk);
            let output = finish(copy.args(["-r", partial]).args(ends(
                direction,
                &source,
                &disk.there("target"),
            )));
            assert_status(&output, 1);
            let said = text(&output.stderr);
            assert!(said.contains("no space left in "), "{case}: {said}");
            let target = disk.here("target");
            // Several are under way at once, and those that are whole have not lost their room to those that cannot be.
            let whole = (0..files).filter(|file| {
                fs::read(target.join(file.to_string())).is_ok_and(|found| found == noise(3 * MIB, *file))
            });
            assert_eq!(whole.count(), 6, "{case}: {said}");
            // One partial file at most stays beside them.
            let kept = usize::from(partial == "--partial");
            assert!(names(&target).len() <= 6 + kept, "{case}: {:?}", names(&target));
            fs::remove_dir_all(target).unwrap();
        }
    }
}

#[test]
fn a_read_only_file_system_is_one_line() {
    let disk = Disk::new();
    let place = Place::new(User::Own, &disk.enter());
    let source = place.home.path("source");
    for name in ["a", "b", "c"] {
        fs::create_dir_all(source.join(name)).unwrap();
        std::os::unix::fs::symlink(name, source.join(format!("link-{name}"))).unwrap();
        for number in 0..20 {
            fs::write(source.join(format!("{number}{name}")), name).unwrap();
        }
    }
    let remount = format!(
        "{} mount -o remount,ro {}",
        disk.enter(),
        disk.directory.path().display()
    );
    let status = Command::new("sh").args(["-c", &remount]).status().unwrap();
    assert!(status.success(), "{remount}");
    let directions = [Direction::Up, Direction::Down, Direction::Between];
    let kinds = [&["-r"][..], &["-a", "--delete"]];
    for (direction, kind) in directions
        .into_iter()
        .flat_map(|direction| kinds.map(|kind| (direction, kind)))
    {
        let mut copy = cp(direction, &place, &disk);
        let output = finish(
            copy.args(kind)
                .args(ends(direction, &source.join("."), disk.directory.path())),
        );
        assert_status(&output, 1);
        let said = text(&output.stderr);
        let directory = disk.directory.path().display();
        let line = format!("{directory} is on a read-only file system. The copy stopped here");
        assert!(
            matches!(complaints(&said)[..], [only] if only.ends_with(&line)),
            "{direction:?} {kind:?}: {said}"
        );
    }
}

#[test]
fn a_file_that_fails_while_it_is_written_in_place_is_said_to_be_incomplete() {
    // Nothing that can be asked for shows beforehand that a file may not grow.
    let little = "sh -c 'trap \"\" XFSZ; ulimit -f 8192; exec \"$@\"' sh";
    let place = Place::new(ordinary_user(), little);
    let source = place.home.path("source");
    fs::write(&source, noise(12 * MIB, 1)).unwrap();
    give(&source);
    for direction in [Direction::Up, Direction::Down, Direction::Between] {
        for in_place in [false, true] {
            let case = format!("{direction:?} in place: {in_place}");
            let directory = place.home.path(&format!("directory-{direction:?}-{in_place}"));
            fs::create_dir(&directory).unwrap();
            let target = directory.join("target");
            fs::write(&target, "what was there").unwrap();
            give(&target);
            give(&directory);
            if in_place {
                fs::set_permissions(&directory, Permissions::from_mode(0o555)).unwrap();
            }
            let mut copy = match direction {
                Direction::Down => place.run_within(little),
                _ => place.cp(),
            };
            let output = finish(copy.args(ends(direction, &source, &target)));
            assert_status(&output, 1);
            let said = text(&output.stderr);
            assert!(said.contains(&target.display().to_string()), "{case}: {said}");
            let untouched = fs::read(&target).unwrap() == b"what was there";
            assert!(untouched || in_place, "{case}: {said}");
            assert_eq!(said.contains("is incomplete now"), !untouched, "{case}: {said}");
        }
    }
}

#[test]
fn a_pipe_that_does_not_fit_is_named_without_a_size() {
    let disk = Disk::new();
    let place = Place::new(ordinary_user(), &disk.enter());
    let target = disk.there("all.tar");
    let [_, remote] = ends(Direction::Up, Path::new("-"), &target);
    let output = finish_with(place.cp().args(["-", &remote]), &noise(24 * MIB, 1));
    assert_status(&output, 1);
    let directory = disk.directory.path().display();
    let said = text(&output.stderr);
    assert!(
        said.contains(&format!(
            "no space left in two:{directory} for all.tar. Any existing"
        )),
        "{said}"
    );
}
