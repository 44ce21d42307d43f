use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Creates a directory below /, with no other user's directory above it.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Returns true if this process can change owners.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn what_is_missing_is_made_for_the_user_alone_and_what_is_there_stays_as_it_is() {
    let directory = directory();
    let there = directory.path().join("there");
    fs::create_dir(&there).unwrap();
    chmod(&there, 0o755);
    make_directory(&there.join("one/two")).unwrap();
    assert_eq!(
        [&there, &there.join("one"), &there.join("one/two")].map(|path| mode(path)),
        [0o755, 0o700, 0o700]
    );
    make_directory(&there).unwrap();
    assert_eq!(mode(&there), 0o755);
}

#[test]
fn where_others_may_write_nothing_is_kept() {
    let directory = directory();
    for writable in [0o1777, 0o775] {
        chmod(directory.path(), writable);
        let refused = make_directory(directory.path()).unwrap_err();
        assert!(matches!(refused, OwnError::Open(_)), "{refused}");
        assert_eq!(mode(directory.path()), writable);
    }
}

#[test]
fn a_link_of_ones_own_is_followed_and_one_that_leads_in_circles_is_not() {
    let directory = directory();
    let (real, link, circle) = ["real", "link", "circle"]
        .map(|name| directory.path().join(name))
        .into();
    fs::create_dir(&real).unwrap();
    symlink("real", &link).unwrap();
    symlink("circle", &circle).unwrap();
    make_directory(&link.join("new")).unwrap();
    assert!(real.join("new").is_dir());
    make_directory(&circle.join("new")).unwrap_err();
    fs::write(real.join("text"), "words").unwrap();
    symlink(real.join("text"), directory.path().join("text")).unwrap();
    assert_eq!(read_to_string(&directory.path().join("text")).unwrap(), "words");
}

#[test]
fn what_another_user_has_is_neither_written_to_nor_believed() {
    if !is_root() {
        return;
    }
    const JO: u32 = 54321;
    let directory = directory();
    let (home, own) = (directory.path().join("jo"), directory.path().join("own"));
    for path in [&home, &own] {
        fs::create_dir(path).unwrap();
    }
    let config = home.join("config.toml");
    fs::write(&config, "audit = \"off\"").unwrap();
    for path in [&home, &config] {
        chown(path, Some(JO), Some(JO)).unwrap();
    }
    // Their directory, paths below it, and their link in a world-writable directory.
    let everybodys = directory.path().join("tmp");
    fs::create_dir(&everybodys).unwrap();
    chmod(&everybodys, 0o1777);
    let link = everybodys.join("link");
    symlink(&own, &link).unwrap();
    lchown(&link, Some(JO), Some(JO)).unwrap();
    for path in [&home, &home.join("state/trunkline"), &link, &link.join("below")] {
        let refused = make_directory(path).unwrap_err();
        assert!(matches!(refused, OwnError::Others(_, JO)), "{refused}");
    }
    assert!(!home.join("state").exists() && fs::read_dir(&own).unwrap().next().is_none());
    assert!(matches!(read_to_string(&config), Err(OwnError::Others(_, JO))));
    // If only root's directories are on the path, the file's owner counts.
    let moved = own.join("config.toml");
    fs::rename(&config, &moved).unwrap();
    assert!(matches!(read_to_string(&moved), Err(OwnError::Others(_, JO))));
    chown(&moved, Some(0), Some(0)).unwrap();
    assert_eq!(read_to_string(&moved).unwrap(), "audit = \"off\"");
    chmod(&moved, 0o666);
    assert!(matches!(read_to_string(&moved), Err(OwnError::Open(_))));
    // If everyone may rename, the checked file may be replaced before it is used.
    chmod(&everybodys, 0o777);
    let refused = make_directory(&everybodys.join("mine")).unwrap_err();
    assert!(matches!(refused, OwnError::Open(_)), "{refused}");
}

#[test]
fn a_user_lives_below_anybodys_directory_but_not_in_one() {
    let jo = User {
        id: 1000,
        is_apart: false,
    };
    let mut walk = Walk::new(jo, Path::new("/home/group/jo/state"), true);
    let mut stat = fstat(fs::File::open("/").unwrap()).unwrap();
    let mut passes = |owner: u32| {
        stat.st_uid = owner;
        walk.passes(&stat, Path::new("/")).is_ok()
    };
    assert_eq!(
        [0, 2000, 1000, 0, 1000, 2000].map(&mut passes),
        [true, true, true, true, true, false]
    );
}

#[test]
fn what_is_not_there_or_is_not_a_file_is_told_apart() {
    let directory = directory();
    assert!(
        read_to_string(&directory.path().join("no/config.toml"))
            .unwrap_err()
            .is_missing()
    );
    let refused = read_to_string(directory.path()).unwrap_err();
    assert!(!refused.is_missing());
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(
        read_to_string(&fifo)
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
}
