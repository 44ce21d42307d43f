//! Servers that do what they are asked in another way than OpenSSH's sftp-server: each fault of the model is what a real
//! one was seen to do. What is said to be copied is copied, and what cannot be is told.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use trunkline_sftp::Config;
use trunkline_sftp::transfer::{
    DownloadEvent, DownloadOptions, ManyDownload, ManyUpload, Opening, Plan, Striped, Upload, UploadEvent,
    UploadFile, UploadOptions,
};

use crate::model::{Manner, Other, Random, START, Session, SharedDisk};
use crate::transfer::{disk, download, download_many, one, put, upload, upload_many};

fn manner(other: Other) -> Manner {
    Manner {
        other: Some(other),
        ..Manner::default()
    }
}

fn content_of(disk: &SharedDisk, path: &str) -> Option<Vec<u8>> {
    disk.borrow().files.get(path.as_bytes()).cloned()
}

/// Behaviours of a server that lose nothing when it is treated with care.
fn harmless() -> impl Strategy<Value = Other> {
    (
        any::<bool>(),
        prop::option::of(1..30usize),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(any_order, refuses_beyond, write_empties, size_zeroes, no_fsetstat, no_replacing)| Other {
                any_order,
                refuses_beyond,
                write_empties,
                size_zeroes,
                no_fsetstat,
                no_replacing,
                ..Other::default()
            },
        )
}

/// A tree of small files, some of which are there already, goes up.
fn upload_tree(session: &mut Session, seed: u64) -> (Vec<(String, Vec<u8>)>, usize) {
    let mut random = Random::new(seed);
    let mut many = ManyUpload::default();
    let mut files = Vec::new();
    let mut contents = BTreeMap::new();
    for at in 0..120 {
        let length = random.draw(100_000) as usize;
        let content = random.bytes(length);
        let mut file = UploadFile::new(format!(".f{at}.part"), content.len() as u64);
        file.opening = Opening::Exclusive;
        file.rename_to = Some(format!("f{at}").into());
        contents.insert(many.add(file), (Vec::new(), content.clone()));
        files.push((format!("f{at}"), content));
    }
    let (failed, _) = upload_many(&mut many, &contents, session);
    (files, failed.len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_files_go_and_come_byte_for_byte(other in harmless(), seed: u64) {
        let disk = disk();
        put(&disk, "f3", b"an older one");
        let mut session = Session::new(&disk, manner(other), seed);
        let (files, failed) = upload_tree(&mut session, seed);
        prop_assert_eq!(failed, 0);
        for (path, content) in &files {
            prop_assert!(content_of(&disk, path).as_ref() == Some(content), "{}", path);
        }
        prop_assert_eq!(disk.borrow().files.len(), files.len(), "something is left beside them");
        let mut many = ManyDownload::default();
        let ids: Vec<_> = files.iter().map(|(path, content)| many.add(path.clone(), Some(content.len() as u64))).collect();
        let (got, failed, _) = download_many(&mut many, &mut session);
        prop_assert_eq!(failed, []);
        for (id, (_, content)) in ids.iter().zip(&files) {
            prop_assert!(got[id] == *content);
        }
        prop_assert!(session.most_ahead() <= 64, "{} requests at once", session.most_ahead());
    }

    #[test]
    fn a_file_is_written_over_a_longer_one_and_over_a_shorter_one(
        other in harmless(),
        seed: u64,
        length in 0..400_000usize,
        before in 0..400_000usize,
        workers in 1..4usize,
    ) {
        let disk = disk();
        let content = Random::new(seed).bytes(length);
        put(&disk, "f", &vec![9; before]);
        let mut sessions: Vec<_> =
            (0..workers).map(|at| Session::new(&disk, manner(other.clone()), seed + at as u64)).collect();
        let mut options = UploadOptions::new("f");
        options.size = Some(length as u64);
        let end = upload(options, &content.clone().into(), &mut sessions);
        prop_assert!(matches!(end, Some(UploadEvent::Finished { .. })), "{:?}", end);
        prop_assert!(content_of(&disk, "f") == Some(content));
    }

    #[test]
    fn an_upload_that_goes_on_keeps_what_is_there(
        other in harmless(),
        seed: u64,
        length in 1..400_000usize,
        share in 0..100usize,
    ) {
        let disk = disk();
        let content = Random::new(seed).bytes(length);
        let done = length * share / 100;
        put(&disk, "f.part", &content[..done]);
        let mut options = UploadOptions::new("f.part");
        options.size = Some(length as u64);
        options.opening = Opening::Existing;
        options.done.push(0..done as u64);
        options.rename_to = Some("f".into());
        let end = upload(options, &content.clone().into(), &mut one(&disk, manner(other)));
        prop_assert!(matches!(end, Some(UploadEvent::Finished { .. })), "{:?}", end);
        prop_assert!(content_of(&disk, "f") == Some(content));
    }

    #[test]
    fn what_a_server_forgets_is_never_said_to_be_copied(
        other in harmless(),
        seed: u64,
        length in 1..300_000u64,
        behind in 0..300_000u64,
    ) {
        let disk = disk();
        let content = Random::new(seed).bytes(length as usize);
        put(&disk, "f", b"an older one");
        let other = Other { forgets_behind: Some(behind), ..other };
        let mut options = UploadOptions::new("f.part");
        options.size = Some(length);
        options.rename_to = Some("f".into());
        let end = upload(options, &content.clone().into(), &mut one(&disk, manner(other.clone())));
        let mut many = ManyUpload::default();
        let mut file = UploadFile::new("g.part", length);
        file.rename_to = Some("g".into());
        let contents = BTreeMap::from([(many.add(file), (Vec::new(), content.clone()))]);
        let (failed, _) = upload_many(&mut many, &contents, &mut Session::new(&disk, manner(other), 1));
        if length > behind {
            prop_assert!(matches!(end, Some(UploadEvent::Damaged(_))), "{:?}", end);
            prop_assert_eq!(failed.len(), 1);
            prop_assert_eq!(content_of(&disk, "f"), Some(b"an older one".to_vec()));
            prop_assert_eq!(content_of(&disk, "g"), None);
        } else {
            prop_assert!(matches!(end, Some(UploadEvent::Finished { .. })), "{:?}", end);
            prop_assert_eq!(failed, []);
            prop_assert!(content_of(&disk, "f") == Some(content));
        }
    }
}

#[test]
fn a_size_that_had_to_be_set_is_looked_at() {
    let disk = disk();
    let content = Random::new(1).bytes(100_000);
    for (size_zeroes, whole) in [(false, true), (true, false)] {
        // Something else has made it longer since it was found.
        put(&disk, "f", &[9; 150_000]);
        let mut options = UploadOptions::new("f");
        options.size = Some(100_000);
        options.opening = Opening::Existing;
        let other = Other {
            size_zeroes,
            ..Other::default()
        };
        let end = upload(options, &content.clone().into(), &mut one(&disk, manner(other)));
        match end {
            Some(UploadEvent::Finished { .. }) => {
                assert!(whole && content_of(&disk, "f").as_ref() == Some(&content));
            }
            Some(UploadEvent::Damaged(status)) => {
                assert!(!whole);
                assert_eq!(
                    status.to_string(),
                    "failure: the server damaged the file when it cut it to its length"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_size_that_is_right_is_not_set() {
    let disk = disk();
    let mut sessions = one(&disk, manner(Other::default()));
    put(&disk, "f", &[9; 1000]);
    let mut options = UploadOptions::new("f");
    options.size = Some(5000);
    options.opening = Opening::Existing;
    let end = upload(options, &vec![1; 5000].into(), &mut sessions);
    assert!(matches!(end, Some(UploadEvent::Finished { .. })), "{end:?}");
    assert_eq!(sessions[0].attributes_set(), 0);
}

#[test]
fn a_hole_at_the_end_of_a_file_is_made_without_setting_its_size() {
    let disk = disk();
    let mut content = Random::new(1).bytes(50_000);
    content.resize(200_000, 0);
    let other = Other {
        size_zeroes: true,
        ..Other::default()
    };
    let mut options = UploadOptions::new("f");
    options.size = Some(200_000);
    options.opening = Opening::Exclusive;
    options.done.push(53_248..200_000);
    let end = upload(options, &content.clone().into(), &mut one(&disk, manner(other)));
    assert!(matches!(end, Some(UploadEvent::Finished { .. })), "{end:?}");
    assert!(content_of(&disk, "f") == Some(content));
}

#[test]
fn a_server_that_gives_two_files_one_handle_ends_the_session_before_anything_is_believed() {
    let other = Other {
        shares_handles: 20,
        ..Other::default()
    };
    for seed in 0..30 {
        let disk = disk();
        for at in 0..100 {
            put(&disk, &format!("f{at}"), &Random::new(at + 1).bytes(5000));
        }
        let mut session = Session::new(&disk, manner(other.clone()), seed);
        let mut many = ManyDownload::default();
        let ids: Vec<_> = (0..100)
            .map(|at| many.add(format!("f{at}"), Some(5000)))
            .collect();
        let mut now = *START;
        let mut whole = 0;
        let mut locals = BTreeMap::<_, Vec<u8>>::new();
        let mut ended = false;
        while !ended {
            many.drive((), &mut session.client, now);
            session.transmit(now);
            while let Some(event) = many.poll_event() {
                match event {
                    trunkline_sftp::transfer::ManyDownloadEvent::Data { file, data, .. } => {
                        locals.insert(file, data.into_bytes().to_vec());
                    }
                    trunkline_sftp::transfer::ManyDownloadEvent::Finished { file, .. } => {
                        let at = ids.iter().position(|id| *id == file).unwrap() as u64;
                        assert!(
                            locals[&file] == Random::new(at + 1).bytes(5000),
                            "file {at}, seed {seed}"
                        );
                        whole += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            let Some(next) = session.next_time() else { break };
            now = next;
            match session.advance(now) {
                Some(answers) => answers.into_iter().for_each(|(id, outcome)| {
                    many.handle_reply((), &mut session.client, id, outcome, now);
                }),
                None => ended = true,
            }
        }
        assert!(ended, "nothing of {whole} shows it");
    }
}

#[test]
fn one_file_at_a_time_serves_a_server_that_shares_handles() {
    let disk = disk();
    let other = Other {
        shares_handles: 1,
        ..Other::default()
    };
    let config = Config {
        max_handles: Some(1),
        ..Config::default()
    };
    let mut session = Session::with_config(&config, &disk, manner(other), 1);
    let (files, failed) = upload_tree(&mut session, 1);
    assert_eq!(failed, 0);
    for (path, content) in &files {
        assert!(content_of(&disk, path).as_ref() == Some(content), "{path}");
    }
}

#[test]
fn how_many_files_may_be_open_is_learnt_from_what_is_refused() {
    let disk = disk();
    let other = Other {
        refuses_beyond: Some(20),
        ..Other::default()
    };
    let mut session = Session::new(&disk, manner(other), 1);
    let (_, failed) = upload_tree(&mut session, 1);
    assert_eq!(failed, 0);
    assert_eq!(session.client.found_max_handles(), Some(20));
    // What is refused alone is refused for good.
    let mut many = ManyDownload::default();
    for at in 0..60 {
        many.add(format!("f{at}"), None);
        many.add(format!("missing{at}"), None);
    }
    let (got, failed, _) = download_many(&mut many, &mut session);
    assert_eq!((got.len(), failed.len()), (60, 60));
}

#[test]
fn a_file_that_ends_before_its_size_is_whole_for_openssh_alone() {
    let disk = disk();
    put(&disk, "f", &[1; 70_000]);
    disk.borrow_mut().false_sizes.insert(b"f".to_vec(), 90_000);
    // Files of /sys are shorter than they say; of a server that may do anything it is not known.
    for (manner, whole) in [(Manner::default(), true), (manner(Other::default()), false)] {
        let mut sessions = one(&disk, manner.clone());
        let done = download(DownloadOptions::new("f"), &mut sessions);
        let is_finished = matches!(done.end, DownloadEvent::Finished { length: 70_000, .. });
        assert_eq!(is_finished, whole, "{:?}", done.end);
        let mut many = ManyDownload::default();
        many.add("f", Some(90_000));
        let mut session = Session::new(&disk, manner, 1);
        let (got, failed, _) = download_many(&mut many, &mut session);
        assert_eq!((got.len(), failed.len()), if whole { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn a_further_session_that_empties_the_file_is_noticed() {
    let disk = disk();
    let manner = Manner {
        rtt: Duration::from_millis(10),
        ..manner(Other::default())
    };
    let content = Random::new(1).bytes(3_000_000);
    let mut sessions = [
        Session::new(&disk, manner.clone(), 1),
        Session::new(&disk, manner, 2),
    ];
    let mut options = UploadOptions::new("f");
    options.size = Some(content.len() as u64);
    options.memory = 300_000;
    let mut plan = Upload::new(options);
    let workers = [plan.add_worker(), plan.add_worker()];
    let mut now = *START;
    let mut emptied = false;
    let mut end = None;
    while end.is_none() {
        let confirmed = plan.ranges().done_bytes();
        // The second joins once something was confirmed, and what the server does with its OPEN is done here.
        if confirmed > 500_000 && !emptied {
            emptied = true;
            put(&disk, "f", b"");
        }
        let joined = if emptied { 2 } else { 1 };
        for (session, worker) in sessions.iter_mut().zip(workers).take(joined) {
            plan.drive(worker, &mut session.client, now);
            while let Some(event) = plan.poll_event() {
                match event {
                    UploadEvent::Read { id, offset, length } => {
                        plan.provide(id, Bytes::copy_from_slice(&content[offset as usize..][..length]));
                    }
                    event => end = Some(event),
                }
            }
            plan.drive(worker, &mut session.client, now);
            session.transmit(now);
        }
        let Some(next) = sessions.iter().filter_map(Session::next_time).min() else {
            break;
        };
        now = next;
        for (session, worker) in sessions.iter_mut().zip(workers) {
            for (id, outcome) in session.advance(now).expect("the session does not break") {
                plan.handle_reply(worker, &mut session.client, id, outcome, now);
            }
        }
        while let Some(event) = plan.poll_event() {
            match event {
                UploadEvent::Read { id, offset, length } => {
                    plan.provide(id, Bytes::copy_from_slice(&content[offset as usize..][..length]));
                }
                event => end = Some(event),
            }
        }
    }
    assert!(matches!(end, Some(UploadEvent::Damaged(_))), "{end:?}");
}
