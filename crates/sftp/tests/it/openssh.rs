//! The client against OpenSSH's own sftp-server, over pipes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use trunkline_sftp::transfer::{
    Download, DownloadEvent, DownloadOptions, Many, ManyDownload, ManyDownloadEvent, ManyUpload,
    ManyUploadEvent, Opening, Plan, Striped, Upload, UploadEvent, UploadFile, UploadOptions, Walk, WalkEvent,
    WalkOptions, WorkerId,
};
use trunkline_sftp::{
    Client, Config, FileAttributes, FileType, Handle, OpenFlags, Outcome, Permissions, Reply, Request,
    RequestId, StatusCode, Times,
};

/// A directory that is removed with everything in it.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "trunkline-sftp-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a fresh name in the directory for temporary files can be made");
        Self(path)
    }

    fn path(&self, name: &str) -> Bytes {
        Bytes::copy_from_slice(self.0.join(name).as_os_str().as_bytes())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A client and an sftp-server. Writing happens on a thread, since a pipe may be full in both directions at once.
struct Session {
    client: Client,
    child: Child,
    to_server: std::sync::mpsc::Sender<Bytes>,
    from_server: ChildStdout,
    buffer: BytesMut,
}

impl Session {
    fn new(config: &Config) -> Self {
        const SERVER: &str = "/usr/lib/openssh/sftp-server";
        assert!(
            Path::new(SERVER).exists(),
            "this test needs {SERVER} (Debian: openssh-sftp-server)"
        );
        let mut child = Command::new(SERVER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{SERVER} cannot be run: {error}"));
        let (stdin, from_server) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (to_server, queue) = std::sync::mpsc::channel();
        std::thread::spawn(move || write_all(stdin, &queue));
        Self {
            client: Client::new(config),
            child,
            to_server,
            from_server,
            buffer: BytesMut::new(),
        }
    }

    fn transmit(&mut self) {
        while let Some(bytes) = self.client.poll_transmit() {
            self.to_server
                .send(bytes)
                .expect("the server runs as long as the session");
        }
    }

    /// Sends what waits and waits for something to come.
    fn turn(&mut self) -> Vec<(RequestId, Outcome)> {
        self.transmit();
        self.buffer.resize(256 * 1024, 0);
        let n = self
            .from_server
            .read(&mut self.buffer)
            .expect("the server's pipe can be read");
        assert!(n > 0, "sftp-server ended");
        self.client
            .handle_bytes(self.buffer.split_to(n).freeze())
            .expect("sftp-server keeps to the protocol");
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }

    fn ask(&mut self, request: Request) -> Outcome {
        let id = self.client.request(request);
        loop {
            if let Some((answered, outcome)) = self.client.poll_event() {
                assert_eq!(answered, id);
                return outcome;
            }
            if let Some((answered, outcome)) = self.turn().pop() {
                assert_eq!(answered, id);
                return outcome;
            }
        }
    }

    fn open(&mut self, path: Bytes, flags: OpenFlags) -> Handle {
        match self.ask(Request::Open {
            path,
            flags,
            attributes: FileAttributes::default(),
        }) {
            Ok(Reply::Handle(handle)) => handle,
            other => panic!("no handle: {other:?}"),
        }
    }

    fn stat(&mut self, path: Bytes) -> FileAttributes {
        match self.ask(Request::Lstat { path }) {
            Ok(Reply::Attributes(attributes)) => attributes,
            other => panic!("no attributes: {other:?}"),
        }
    }

    fn perform(&mut self, request: Request) {
        assert_eq!(self.ask(request), Ok(Reply::Done));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_all(mut stdin: ChildStdin, queue: &std::sync::mpsc::Receiver<Bytes>) {
    for bytes in queue {
        if stdin.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list: each request")]
fn requests_do_what_they_say() {
    let directory = Directory::new();
    let mut session = Session::new(&Config::default());
    let create = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    let file = session.open(directory.path("a"), create);
    assert!(session.client.limits().max_read >= 255 * 1024);
    assert!(
        session
            .client
            .extensions()
            .is_some_and(|extensions| extensions.has("limits@openssh.com", "1"))
    );

    let handle = || file.clone();
    session.perform(Request::Write {
        handle: handle(),
        offset: 3,
        data: "hello".into(),
    });
    session.perform(Request::Fsync { handle: handle() });
    let Ok(Reply::Data(data)) = session.ask(Request::Read {
        handle: handle(),
        offset: 4,
        length: 100,
    }) else {
        panic!("no data")
    };
    assert_eq!(&data.into_bytes()[..], b"ello");
    let end = session
        .ask(Request::Read {
            handle: handle(),
            offset: 8,
            length: 1,
        })
        .unwrap_err();
    assert_eq!(end.code, StatusCode::EOF);
    let attributes = FileAttributes {
        size: Some(6),
        permissions: Some(Permissions(0o640)),
        times: Some(Times {
            accessed: 1_000_000_000,
            modified: 1_100_000_000,
        }),
        ..FileAttributes::default()
    };
    session.perform(Request::Fsetstat {
        handle: handle(),
        attributes,
    });
    let Ok(Reply::Attributes(seen)) = session.ask(Request::Fstat { handle: handle() }) else {
        panic!("no attributes")
    };
    assert_eq!((seen.size, seen.file_type()), (Some(6), Some(FileType::Regular)));
    assert_eq!(seen.permissions.map(Permissions::bits), Some(0o640));
    assert_eq!(
        seen.times,
        Some(Times {
            accessed: 1_000_000_000,
            modified: 1_100_000_000
        })
    );

    let copy = session.open(directory.path("copy"), create);
    let (from, to) = (handle(), copy.clone());
    session.perform(Request::CopyData {
        from,
        from_offset: 3,
        length: 0,
        to,
        to_offset: 0,
    });
    session.perform(Request::Close { handle: copy });
    assert_eq!(fs::read(directory.0.join("copy")).unwrap(), b"hel");
    assert!(matches!(
        session.ask(Request::Fstatvfs { handle: handle() }),
        Ok(Reply::StatVfs(_))
    ));
    session.perform(Request::Close { handle: file });

    session.perform(Request::Symlink {
        target: "a".into(),
        link: directory.path("link"),
    });
    assert_eq!(
        session.ask(Request::Readlink {
            path: directory.path("link")
        }),
        Ok(Reply::Path("a".into()))
    );
    assert_eq!(
        session.stat(directory.path("link")).file_type(),
        Some(FileType::Symlink)
    );
    let times = Some(Times {
        accessed: 5,
        modified: 6,
    });
    let attributes = FileAttributes {
        times,
        ..FileAttributes::default()
    };
    session.perform(Request::Lsetstat {
        path: directory.path("link"),
        attributes: attributes.clone(),
    });
    assert_eq!(session.stat(directory.path("link")).times, times);
    session.perform(Request::Setstat {
        path: directory.path("copy"),
        attributes,
    });
    let Ok(Reply::Attributes(seen)) = session.ask(Request::Stat {
        path: directory.path("copy"),
    }) else {
        panic!("none")
    };
    assert_eq!(seen.times, times);
    assert_eq!(
        session.ask(Request::Realpath {
            path: directory.path("link")
        }),
        Ok(Reply::Path(directory.path("a")))
    );

    session.perform(Request::Hardlink {
        from: directory.path("a"),
        to: directory.path("b"),
    });
    let taken = session
        .ask(Request::Rename {
            from: directory.path("a"),
            to: directory.path("copy"),
        })
        .unwrap_err();
    assert_eq!(taken.code, StatusCode::FAILURE);
    session.perform(Request::PosixRename {
        from: directory.path("a"),
        to: directory.path("copy"),
    });
    session.perform(Request::Rename {
        from: directory.path("b"),
        to: directory.path("c"),
    });
    session.perform(Request::Remove {
        path: directory.path("c"),
    });
    session.perform(Request::Mkdir {
        path: directory.path("d"),
        attributes: FileAttributes::default(),
    });
    session.perform(Request::Rmdir {
        path: directory.path("d"),
    });
    let missing = session
        .ask(Request::Stat {
            path: directory.path("d"),
        })
        .unwrap_err();
    assert_eq!(missing.code, StatusCode::NO_SUCH_FILE);

    let Ok(Reply::StatVfs(statvfs)) = session.ask(Request::Statvfs {
        path: directory.path(""),
    }) else {
        panic!("none")
    };
    assert!(statvfs.name_max > 0 && statvfs.blocks > 0);
    let Ok(Reply::Names(names)) = session.ask(Request::UsersGroupsById {
        uids: vec![0, 4_000_000],
        gids: vec![0],
    }) else {
        panic!("no names")
    };
    assert_eq!(
        (names.users, names.groups),
        (vec!["root".into(), String::new()], vec!["root".into()])
    );
    assert_eq!(
        session.ask(Request::HomeDirectory { user: "root".into() }),
        Ok(Reply::Path("/root".into()))
    );
    let home = session.ask(Request::ExpandPath { path: "~root".into() });
    assert_eq!(home, Ok(Reply::Path("/root".into())));
    assert!(
        matches!(session.ask(Request::Limits), Ok(Reply::Limits(limits)) if limits == *session.client.limits())
    );

    let Ok(Reply::Handle(directory)) = session.ask(Request::Opendir {
        path: directory.path(""),
    }) else {
        panic!("none")
    };
    let Ok(Reply::Entries(entries)) = session.ask(Request::Readdir {
        handle: directory.clone(),
    }) else {
        panic!("no entries")
    };
    let mut names: Vec<_> = entries.iter().map(|entry| &entry.name[..]).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"."[..], b"..", b"copy", b"link"]);
    session.perform(Request::Close { handle: directory });
    assert_eq!(session.client.handles(), 0);
}

#[test]
fn requests_may_leave_before_the_version() {
    let mut session = Session::new(&Config {
        early_requests: true,
        early_limits: true,
        ..Config::default()
    });
    let id = session.client.request(Request::Realpath { path: "/".into() });
    session.transmit();
    let mut answers = Vec::new();
    while answers.is_empty() {
        answers = session.turn();
    }
    assert_eq!(answers, [(id, Ok(Reply::Path("/".into())))]);
    assert!(
        session.client.limits().max_read >= 255 * 1024,
        "the limits were asked for before"
    );
}

#[test]
fn one_large_file_comes_and_goes_whole() {
    let directory = Directory::new();
    let whole = Bytes::from(content(20_000_000));
    let mut session = Session::new(&Config::default());
    let mut options = UploadOptions::new(directory.path("f.part"));
    options.rename_to = Some(directory.path("f"));
    options.sync = true;
    let times = Some(Times {
        accessed: 7,
        modified: 8,
    });
    let permissions = Some(Permissions(0o600));
    options.attributes = FileAttributes {
        times,
        permissions,
        ..FileAttributes::default()
    };
    let mut upload = Upload::new(options);
    let worker = upload.add_worker();
    while !upload.is_over() {
        upload.drive(worker, &mut session.client, Instant::now());
        while let Some(event) = upload.poll_event() {
            if let UploadEvent::Read { id, offset, length } = event {
                let from = whole.len().min(offset as usize);
                upload.provide(id, whole.slice(from..whole.len().min(from + length)));
            }
        }
        upload.drive(worker, &mut session.client, Instant::now());
        for (id, outcome) in session.turn() {
            upload.handle_reply(worker, &mut session.client, id, outcome, Instant::now());
        }
    }
    let end = std::iter::from_fn(|| upload.poll_event()).last();
    assert_eq!(
        end,
        Some(UploadEvent::Finished {
            length: 20_000_000,
            synced: true,
            attributes: Ok(())
        })
    );
    let seen = session.stat(directory.path("f"));
    assert_eq!(
        (seen.times, seen.permissions),
        (times, Some(Permissions(0o100_600)))
    );
    // Reading changes the time of access.
    assert!(fs::read(directory.0.join("f")).unwrap() == whole);
    assert!(!directory.0.join("f.part").exists());

    let mut download = Download::new(DownloadOptions::new(directory.path("f")));
    let worker = download.add_worker();
    let mut local = vec![0; whole.len()];
    while !download.is_over() {
        download.drive(worker, &mut session.client, Instant::now());
        for (id, outcome) in session.turn() {
            download.handle_reply(worker, &mut session.client, id, outcome, Instant::now());
        }
        while let Some(event) = download.poll_event() {
            match event {
                DownloadEvent::Data { offset, data } => {
                    local[offset as usize..][..data.len()].copy_from_slice(&data.into_bytes());
                }
                DownloadEvent::Finished { length, grown } => {
                    assert_eq!((length, grown), (20_000_000, false));
                }
                DownloadEvent::Attributes(attributes) => assert_eq!(attributes.size, Some(20_000_000)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(local == whole);
}

/// Provides what a worker wants, and gives it what its session answers; what else the upload has to say.
fn step(upload: &mut Upload, worker: WorkerId, session: &mut Session, whole: &Bytes) -> Vec<UploadEvent> {
    let mut events = Vec::new();
    upload.drive(worker, &mut session.client, Instant::now());
    while let Some(event) = upload.poll_event() {
        match event {
            UploadEvent::Read { id, offset, length } => {
                let from = whole.len().min(offset as usize);
                upload.provide(id, whole.slice(from..whole.len().min(from + length)));
            }
            event => events.push(event),
        }
    }
    upload.drive(worker, &mut session.client, Instant::now());
    if !upload.is_over() && !upload.is_gone(worker) {
        for (id, outcome) in session.turn() {
            upload.handle_reply(worker, &mut session.client, id, outcome, Instant::now());
        }
    }
    events
}

#[test]
fn where_names_can_be_exchanged_a_further_session_writes_to_the_same_file_or_to_none() {
    let whole = Bytes::from(content(20_000_000));
    for trap in ["none", "link", "another file", "nothing"] {
        let directory = Directory::new();
        let [part, away, victim] = ["f.part", "away", "victim"].map(|name| directory.0.join(name));
        fs::write(&victim, "the user's own").unwrap();
        let mut sessions = [(); 2].map(|()| Session::new(&Config::default()));
        let [first, second] = &mut sessions;
        let mut options = UploadOptions::new(directory.path("f.part"));
        options.size = Some(whole.len() as u64);
        options.opening = Opening::Exclusive;
        options.mark = Some(1_234_567_890);
        options.rename_to = Some(directory.path("f"));
        let mut upload = Upload::new(options);
        let worker = upload.add_worker();
        while !upload.has_opened() {
            step(&mut upload, worker, first, &whole);
        }
        if trap != "none" {
            fs::rename(&part, &away).unwrap();
        }
        match trap {
            "link" => std::os::unix::fs::symlink(&victim, &part).unwrap(),
            "another file" => fs::write(&part, "somebody else's").unwrap(),
            _ => {}
        }
        let further = upload.add_worker();
        let done = upload.ranges().done_bytes();
        let mut events = Vec::new();
        // The first one's answers wait: what is confirmed is the second one's.
        while !upload.is_gone(further) && upload.ranges().done_bytes() == done {
            events.extend(step(&mut upload, further, second, &whole));
        }
        assert_eq!(upload.is_gone(further), trap != "none", "{trap}: {events:?}");
        let untouched = fs::read(&victim).unwrap() == b"the user's own";
        assert!(untouched, "{trap}");
        if trap == "another file" {
            assert_eq!(fs::read(&part).unwrap(), b"somebody else's");
        }
        upload.retire_worker(further);
        while !upload.is_gone(further) {
            step(&mut upload, further, second, &whole);
        }
        if trap != "none" {
            fs::rename(&away, &part).unwrap();
        }
        let mut ended = Vec::new();
        while !upload.is_over() {
            ended.extend(step(&mut upload, worker, first, &whole));
        }
        ended.extend(std::iter::from_fn(|| upload.poll_event()));
        assert!(
            matches!(
                &ended[..],
                [
                    ..,
                    UploadEvent::Finished {
                        attributes: Ok(()),
                        ..
                    }
                ]
            ),
            "{trap}: {ended:?}"
        );
        let found = fs::metadata(directory.0.join("f")).unwrap();
        let accessed = found.accessed().unwrap();
        assert!(fs::read(directory.0.join("f")).unwrap() == whole, "{trap}");
        let minute = std::time::Duration::from_secs(60);
        assert!(
            accessed + minute > std::time::SystemTime::now(),
            "the mark does not stay"
        );
    }
}

#[test]
fn many_small_files_go_are_listed_and_come() {
    let directory = Directory::new();
    let mut session = Session::new(&Config {
        early_requests: true,
        early_limits: true,
        ..Config::default()
    });
    for at in 0..10 {
        session.perform(Request::Mkdir {
            path: directory.path(&format!("d{at}")),
            attributes: FileAttributes::default(),
        });
    }
    let mut many = ManyUpload::default();
    for at in 0..500 {
        let mut file = UploadFile::new(directory.path(&format!("d{}/{at}.part", at % 10)), at * 31);
        file.rename_to = Some(directory.path(&format!("d{}/{at}", at % 10)));
        many.add(file);
    }
    let mut files = 0;
    while many.unfinished() > 0 {
        many.drive((), &mut session.client, Instant::now());
        while let Some(event) = many.poll_event() {
            match event {
                ManyUploadEvent::Read(file) => {
                    many.provide(file, Bytes::from(content(files * 31)));
                    files += 1;
                }
                ManyUploadEvent::Finished {
                    attributes: Ok(()), ..
                } => {}
                other => panic!("{other:?}"),
            }
        }
        many.drive((), &mut session.client, Instant::now());
        for (id, outcome) in session.turn() {
            many.handle_reply((), &mut session.client, id, outcome, Instant::now());
        }
    }

    let mut walk = Walk::new(WalkOptions::new(directory.path("")));
    let mut many = ManyDownload::default();
    let mut expected = std::collections::HashMap::new();
    loop {
        walk.drive((), &mut session.client, Instant::now());
        while let Some(event) = walk.poll_event() {
            match event {
                WalkEvent::Entry { path, attributes, .. }
                    if attributes.file_type() == Some(FileType::Regular) =>
                {
                    let name = String::from_utf8(path.to_vec()).unwrap();
                    let number: usize = name.split_once('/').unwrap().1.parse().unwrap();
                    assert_eq!(attributes.size, Some(number as u64 * 31));
                    expected.insert(many.add(directory.path(&name), attributes.size), number * 31);
                }
                WalkEvent::Entry { .. } | WalkEvent::Finished => {}
                other => panic!("{other:?}"),
            }
        }
        if walk.is_over() {
            break;
        }
        for (id, outcome) in session.turn() {
            walk.handle_reply((), &mut session.client, id, outcome, Instant::now());
        }
    }
    assert_eq!(expected.len(), 500);

    // Files whose size says nothing.
    let uptime = many.add("/proc/self/status", Some(0));
    let mut got = std::collections::HashMap::new();
    while many.unfinished() > 0 {
        many.drive((), &mut session.client, Instant::now());
        for (id, outcome) in session.turn() {
            many.handle_reply((), &mut session.client, id, outcome, Instant::now());
        }
        while let Some(event) = many.poll_event() {
            match event {
                ManyDownloadEvent::Data { file, data, .. } => drop(got.insert(file, data.into_bytes())),
                ManyDownloadEvent::Finished { file, length, .. } => {
                    let local = got.remove(&file).unwrap_or_default();
                    if file == uptime {
                        assert!(local.starts_with(b"Name:\tsftp-server\n"));
                    } else {
                        assert!(local == content(expected[&file]));
                    }
                    assert_eq!(length, local.len() as u64);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
