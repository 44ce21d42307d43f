//! Transfers against a model server on simulated time: whatever it does with order, lengths and limits, files arrive
//! byte for byte.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::model::{Disk, Manner, Random, START, Session, SharedDisk};
use bytes::Bytes;
use proptest::prelude::*;
use trunkline_sftp::transfer::{
    Download, DownloadEvent, DownloadOptions, FileId, Many, ManyDownload, ManyDownloadEvent, ManyUpload,
    ManyUploadEvent, NameBudget, Opening, Plan, Striped, Upload, UploadEvent, UploadFile, UploadOptions,
    Walk, WalkEvent, WalkOptions, WorkerId, WorkerLoss,
};
use trunkline_sftp::{FileType, StatusCode};

const LONG: Duration = Duration::from_secs(100_000);

pub(crate) fn disk() -> SharedDisk {
    Rc::new(RefCell::new(Disk::default()))
}

/// A file in memory that takes what a download gives.
#[derive(Default)]
struct Local {
    content: Vec<u8>,
}

impl Local {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + data.len());
        self.content.resize(self.content.len().max(end), 0xee);
        self.content[start..end].copy_from_slice(data);
    }
}

/// The course of a download over some sessions.
pub(crate) struct Downloaded {
    pub(crate) local: Vec<u8>,
    /// Bytes that came.
    read: u64,
    pub(crate) end: DownloadEvent,
    took: Duration,
    zeros: u64,
    losses: Vec<WorkerLoss>,
    most_held: usize,
    download: Download,
}

/// Runs a download over workers until it is over, and all files are closed.
pub(crate) fn download(options: DownloadOptions, sessions: &mut [Session]) -> Downloaded {
    download_with(options, sessions, usize::MAX, |_| {})
}

/// The same; from the `retires`th step on the first worker is retired, and `meanwhile` is called before each answer.
fn download_with(
    options: DownloadOptions,
    sessions: &mut [Session],
    retires: usize,
    mut meanwhile: impl FnMut(u64),
) -> Downloaded {
    let mut download = Download::new(options);
    let mut workers: Vec<Option<WorkerId>> = sessions.iter().map(|_| Some(download.add_worker())).collect();
    let mut now = *START;
    let mut steps = 0;
    let mut due = vec![true; sessions.len()];
    let mut local = Local::default();
    let (mut end, mut zeros, mut losses, mut most_held, mut read) = (None, 0, Vec::new(), 0, 0);
    loop {
        if let Some(retired) = workers[0].filter(|_| steps >= retires) {
            download.retire_worker(retired);
        }
        steps += 1;
        let all = download.wants_all_driven();
        for ((session, worker), due) in sessions.iter_mut().zip(&workers).zip(&mut due) {
            if let Some(worker) = worker
                && (std::mem::take(due) || all)
            {
                download.drive(*worker, &mut session.client, now);
                session.transmit(now);
            }
        }
        let mut held = 0;
        let mut news = false;
        while let Some(event) = download.poll_event() {
            news = true;
            assert!(end.is_none(), "{event:?} came after the end");
            match event {
                DownloadEvent::Data { offset, data } => {
                    held += data.len();
                    read += data.len() as u64;
                    local.write(offset, &data.into_bytes());
                }
                DownloadEvent::Zeros { offset, length } => {
                    zeros += length;
                    local.write(offset, &vec![0; length as usize]);
                }
                DownloadEvent::WorkerLost(_, loss) => losses.push(loss),
                DownloadEvent::Attributes(_) => {}
                event => end = Some(event),
            }
        }
        most_held = most_held.max(held);
        // What was taken may have made room.
        if news | download.wants_all_driven() {
            due.fill(true);
            continue;
        }
        match advance(&mut download, sessions, &mut workers, &mut due, &mut meanwhile) {
            Some(next) => now = next,
            None => break,
        }
        assert!(now < *START + LONG, "the download does not end");
    }
    let end = end.unwrap_or_else(|| panic!("the download stopped with {:?} done", download.ranges()));
    for (session, worker) in sessions.iter().zip(&workers) {
        session.check();
        if worker.is_some() {
            assert_eq!(session.open_handles(), 0, "a file was left open");
            assert_eq!(session.client.handles(), 0);
        }
    }
    if let DownloadEvent::Finished { length, .. } = end {
        local.content.truncate(length as usize);
    }
    Downloaded {
        local: local.content,
        read,
        end,
        took: now - *START,
        zeros,
        losses,
        most_held,
        download,
    }
}

/// Goes on to the next moment at which something comes, and returns it. The workers on whose sessions it comes are `due`;
/// one whose session has ended is lost. `meanwhile` is called before each answer.
fn advance<P: Striped>(
    plan: &mut P,
    sessions: &mut [Session],
    workers: &mut [Option<WorkerId>],
    due: &mut [bool],
    meanwhile: &mut impl FnMut(u64),
) -> Option<Instant> {
    let alive = sessions
        .iter()
        .zip(&*workers)
        .filter(|(_, worker)| worker.is_some());
    let now = alive.filter_map(|(session, _)| session.next_time()).min()?;
    for ((session, slot), due) in sessions.iter_mut().zip(workers).zip(due) {
        let Some(worker) = *slot else { continue };
        let before = session.bytes_received();
        let Some(answers) = session.advance(now) else {
            plan.lose_worker(worker);
            *slot = None;
            continue;
        };
        *due |= session.bytes_received() > before;
        for (id, outcome) in answers {
            meanwhile(session.requests());
            assert_eq!(
                plan.handle_reply(worker, &mut session.client, id, outcome, now),
                None
            );
        }
    }
    Some(now)
}

/// Gives the disk this file.
pub(crate) fn put(disk: &SharedDisk, path: &str, content: &[u8]) {
    disk.borrow_mut().files.insert(path.into(), content.to_vec());
}

/// A disk whose only file, `f`, has this content.
fn disk_with(content: &[u8]) -> SharedDisk {
    let disk = disk();
    put(&disk, "f", content);
    disk
}

/// Gives the disk a directory of so many empty files.
fn put_directory(disk: &SharedDisk, path: &str, files: u32) {
    let names = (0..files).map(|at| (format!("f{at}").into_bytes(), 0o100_644));
    disk.borrow_mut().directories.insert(path.into(), names.collect());
}

/// Sessions of the same server, each with chances of its own.
fn several(disk: &SharedDisk, manner: &Manner, seed: u64, count: usize) -> Vec<Session> {
    let session = |nth| Session::new(disk, manner.clone(), seed ^ nth as u64);
    (0..count).map(session).collect()
}

pub(crate) fn one(disk: &SharedDisk, manner: Manner) -> Vec<Session> {
    vec![Session::new(disk, manner, 1)]
}

fn manner() -> impl Strategy<Value = Manner> {
    (
        0..200u64,
        0..400u64,
        0..4u64,
        4096..300_000u32,
        4096..300_000u32,
        1..20usize,
        any::<bool>(),
        1..70_000usize,
    )
        .prop_map(
            |(rtt, jitter, short_reads, max_read, max_write, max_handles, announces_limits, slice)| Manner {
                rtt: Duration::from_millis(rtt),
                jitter: Duration::from_millis(jitter),
                short_reads,
                // From the smallest that is believed; and the defaults where the server tells nothing.
                max_read: if announces_limits { max_read } else { 32 * 1024 },
                max_write: if announces_limits {
                    max_write.min(261_120)
                } else {
                    32 * 1024
                },
                max_handles: if announces_limits { max_handles } else { 100 },
                announces_limits,
                // Before it knows the limits a client assumes a hundred handles.
                warm: true,
                slice,
                ..Manner::default()
            },
        )
}

#[test]
fn an_upload_whose_first_opening_is_refused_is_begun_by_another_lane() {
    let mut begun_by_another = 0;
    for seed in 0..100 {
        let manner = Manner {
            failures: 3,
            warm: true,
            ..Manner::default()
        };
        let disk = disk();
        let mut sessions = several(&disk, &manner, seed * 2, 2);
        let content = Bytes::from(vec![7; 10_000]);
        match upload(UploadOptions::new("g"), &content, &mut sessions) {
            Some(UploadEvent::Finished { .. }) => begun_by_another += 1,
            end => assert!(matches!(end, Some(UploadEvent::Failed(_))), "{end:?}"),
        }
    }
    assert!(begun_by_another > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_arrives_byte_for_byte_whatever_the_server_does(
        manner in manner(),
        seed: u64,
        length in 0..3_000_000usize,
        told in prop::option::of(0..4_000_000u64),
        workers in 1..4usize,
        sparse: bool,
        memory in 1..4_000_000usize,
    ) {
        let content = Random::new(seed).bytes(length);
        let disk = disk_with(&content);
        let mut sessions = several(&disk, &manner, seed, workers);
        let mut options = DownloadOptions::new("f");
        options.size = told;
        options.sparse = sparse;
        options.memory = memory;
        let done = download(options, &mut sessions);
        prop_assert_eq!(done.end, DownloadEvent::Finished { length: length as u64, grown: false });
        prop_assert!(done.local == content);
        prop_assert!(done.most_held <= memory + 300_000);
    }

    #[test]
    fn a_lane_that_dies_leaves_its_ranges_to_the_others(
        manner in manner(),
        seed: u64,
        length in 100_000..3_000_000usize,
        breaks in 0..1_500_000u64,
    ) {
        let content = Random::new(seed).bytes(length);
        let disk = disk_with(&content);
        let mut sessions = several(&disk, &manner, seed, 3);
        sessions[0].breaks_after = Some(breaks);
        sessions[2].breaks_after = Some(breaks / 2);
        let done = download(DownloadOptions::new("f"), &mut sessions);
        prop_assert_eq!(done.end, DownloadEvent::Finished { length: length as u64, grown: false });
        prop_assert!(done.local == content);
    }

    #[test]
    fn a_retired_lane_brings_what_it_asked_for_and_no_more(
        manner in manner(),
        seed: u64,
        length in 100_000..3_000_000usize,
        retires in 0..60usize,
    ) {
        let content = Random::new(seed).bytes(length);
        let disk = disk_with(&content);
        let mut sessions = several(&disk, &manner, seed, 2);
        let done = download_with(DownloadOptions::new("f"), &mut sessions, retires, |_| {});
        prop_assert_eq!(done.end, DownloadEvent::Finished { length: length as u64, grown: false });
        prop_assert!(done.local == content);
        prop_assert_eq!(done.read, length as u64, "no byte comes twice");
    }

    #[test]
    fn a_download_goes_on_where_it_broke(seed: u64, length in 1..2_000_000usize, breaks in 0..2_000_000u64) {
        let content = Random::new(seed).bytes(length);
        let disk = disk_with(&content);
        let jitter = Duration::from_millis(50);
        let mut sessions = one(&disk, Manner { jitter, ..Manner::default() });
        sessions[0].breaks_after = Some(breaks);
        let mut local = Local::default();
        let mut download_ = Download::new(DownloadOptions::new("f"));
        let worker = download_.add_worker();
        let mut now = *START;
        loop {
            download_.drive(worker, &mut sessions[0].client, now);
            sessions[0].transmit(now);
            while let Some(event) = download_.poll_event() {
                if let DownloadEvent::Data { offset, data } = event {
                    local.write(offset, &data.into_bytes());
                }
            }
            let Some(next) = sessions[0].next_time() else { break };
            now = next;
            let Some(answers) = sessions[0].advance(now) else { break };
            for (id, outcome) in answers {
                download_.handle_reply(worker, &mut sessions[0].client, id, outcome, now);
            }
        }
        let mut options = DownloadOptions::new("f");
        options.done = download_.ranges().done().collect();
        let before = download_.ranges().done_bytes();
        let mut sessions = one(&disk, Manner::default());
        let done = download(options, &mut sessions);
        prop_assert_eq!(done.download.ranges().done_bytes(), length as u64);
        prop_assert!(sessions[0].received < length as u64 - before + 10_000);
        for range in done.download.ranges().done() {
            prop_assert_eq!(range, 0..length as u64);
        }
        // What the second attempt brought, over what the first had.
        for (at, byte) in done.local.iter().enumerate() {
            if at >= local.content.len() || local.content[at] != content[at] {
                prop_assert_eq!(*byte, content[at]);
            }
        }
    }

    #[test]
    fn an_upload_arrives_byte_for_byte_whatever_the_server_does(
        manner in manner(),
        seed: u64,
        length in 0..3_000_000usize,
        known: bool,
        workers in 1..4usize,
        memory in 1..4_000_000usize,
        breaks in prop::option::of(0..2000u64),
    ) {
        let disk = disk();
        let content = Bytes::from(Random::new(seed).bytes(length));
        put(&disk, "old", &[1; 100]);
        let mut sessions = several(&disk, &manner, seed, workers);
        if workers > 1 {
            sessions[0].breaks_after = breaks;
        }
        let mut options = UploadOptions::new("new");
        options.size = known.then_some(length as u64);
        options.rename_to = Some("old".into());
        options.memory = memory;
        let end = upload(options, &content, &mut sessions);
        if end.as_ref().is_some_and(|end| matches!(end, UploadEvent::Finished { .. })) {
            prop_assert_eq!(
                end,
                Some(UploadEvent::Finished { length: length as u64, synced: false, attributes: Ok(()) })
            );
            prop_assert!(disk.borrow().files[&b"old"[..]] == content);
        } else {
            // The renaming was under way when the session broke.
            prop_assert!(breaks.is_some(), "{:?}", end);
        }
    }

    #[test]
    fn a_retired_lane_writes_what_it_was_given_and_leaves_the_rest_to_the_others(
        manner in manner(),
        seed: u64,
        length in 100_000..3_000_000usize,
        retires in 0..60usize,
    ) {
        let disk = disk();
        let content = Bytes::from(Random::new(seed).bytes(length));
        let mut sessions = several(&disk, &manner, seed, 2);
        let mut options = UploadOptions::new("new");
        options.size = Some(length as u64);
        options.rename_to = Some("f".into());
        let end = upload_retiring(options, &content, &mut sessions, retires);
        let finished = matches!(end, Some(UploadEvent::Finished { attributes: Ok(()), .. }));
        prop_assert!(finished, "{:?}", end);
        prop_assert!(disk.borrow().files[&b"f"[..]] == content);
    }

    #[test]
    fn many_files_arrive_byte_for_byte(
        manner in manner(),
        seed: u64,
        sizes in prop::collection::vec((0..300_000usize, 0..3u8), 0..40),
        memory in 1..4_000_000usize,
    ) {
        let disk = disk();
        let mut random = Random::new(seed);
        let mut many = ManyDownload::new(memory);
        let mut wanted = BTreeMap::new();
        for (at, (size, told)) in sizes.into_iter().enumerate() {
            let path = format!("f{at}").into_bytes();
            let content = random.bytes(size);
            let told = match told {
                0 => None,
                1 => Some(size as u64),
                _ => Some(random.draw(400_000)),
            };
            if random.draw(5) == 0 {
                // As the files of /proc.
                disk.borrow_mut().false_sizes.insert(path.clone(), 0);
            }
            disk.borrow_mut().files.insert(path.clone(), content.clone());
            wanted.insert(many.add(path, told), content);
        }
        let missing = many.add("missing", Some(5));
        let mut session = Session::new(&disk, manner, seed);
        let (got, failed, _) = download_many(&mut many, &mut session);
        prop_assert!(got == wanted);
        prop_assert_eq!(failed, [(missing, StatusCode::NO_SUCH_FILE)]);
    }

    #[test]
    fn many_files_are_written_byte_for_byte(
        manner in manner(),
        seed: u64,
        sizes in prop::collection::vec(0..300_000usize, 0..40),
        memory in 1..4_000_000usize,
    ) {
        let disk = disk();
        let mut random = Random::new(seed);
        let mut many = ManyUpload::new(memory);
        let mut contents = BTreeMap::new();
        for (at, size) in sizes.into_iter().enumerate() {
            let mut file = UploadFile::new(format!("f{at}.part"), size as u64);
            file.rename_to = Some(format!("f{at}").into());
            contents.insert(many.add(file), (format!("f{at}").into_bytes(), random.bytes(size)));
        }
        let mut session = Session::new(&disk, manner, seed);
        let (failed, _) = upload_many(&mut many, &contents, &mut session);
        prop_assert_eq!(failed, []);
        let wanted: BTreeMap<_, _> = contents.into_values().collect();
        prop_assert!(disk.borrow().files == wanted);
    }

    #[test]
    fn a_walk_finds_every_name_once(manner in manner(), seed: u64, directories in 1..60usize) {
        let disk = disk();
        let mut random = Random::new(seed);
        let mut wanted = Vec::new();
        let mut paths = vec![b"root".to_vec()];
        disk.borrow_mut().directories.insert(b"root".to_vec(), Vec::new());
        for at in 0..directories {
            let parent = paths[random.draw(paths.len() as u64) as usize].clone();
            let name = format!("d{at}").into_bytes();
            let path = [&parent[..], b"/", &name].concat();
            let mut disk = disk.borrow_mut();
            disk.directories.get_mut(&parent).unwrap().push((name, 0o040_755));
            let mut names = vec![(b".".to_vec(), 0o040_755), (b"..".to_vec(), 0o040_755)];
            for file in 0..random.draw(400) {
                names.push((format!("f{file}").into_bytes(), 0o100_644));
                wanted.push([&path[5..], b"/", format!("f{file}").as_bytes()].concat());
            }
            disk.directories.insert(path.clone(), names);
            wanted.push(path[5..].to_vec());
            paths.push(path);
        }
        let mut session = Session::new(&disk, manner, seed);
        let (events, _) = walk(WalkOptions::new("root"), &mut session);
        let mut found = Vec::new();
        for event in events {
            match event {
                WalkEvent::Entry { path, .. } => found.push(path.to_vec()),
                other => prop_assert_eq!(other, WalkEvent::Finished),
            }
        }
        found.sort();
        wanted.sort();
        prop_assert!(found == wanted);
    }

    #[test]
    fn failures_in_the_middle_of_uploads_never_pass_for_success(
        manner in manner(),
        seed: u64,
        failures in 2..60u64,
        workers in 1..3usize,
    ) {
        let manner = Manner { failures, ..manner };
        let disk = disk();
        let mut random = Random::new(seed);
        let mut many = ManyUpload::default();
        let mut contents = BTreeMap::new();
        for at in 0..60 {
            let file = UploadFile::new(format!("f{at}"), at * 997);
            contents.insert(many.add(file), (format!("f{at}").into_bytes(), random.bytes(at as usize * 997)));
        }
        let mut session = Session::new(&disk, manner.clone(), seed);
        let (failed, _) = upload_many(&mut many, &contents, &mut session);
        for (id, (path, content)) in contents {
            if failed.iter().all(|(failed, _)| *failed != id) {
                prop_assert!(disk.borrow().files[&path] == content);
            }
        }

        let content = Bytes::from(random.bytes(3_000_000));
        let mut sessions = several(&disk, &manner, seed, workers);
        match upload(UploadOptions::new("g"), &content, &mut sessions) {
            Some(UploadEvent::Finished { length, .. }) => {
                prop_assert_eq!(length, 3_000_000);
                prop_assert!(disk.borrow().files[&b"g"[..]] == content);
            }
            end => prop_assert!(matches!(end, Some(UploadEvent::Failed(_))), "{:?}", end),
        }
    }

    #[test]
    fn an_upload_goes_on_where_it_broke_and_cuts_what_is_too_long(
        seed: u64,
        length in 400_000..3_000_000usize,
        done in 0..300_000usize,
        apart in 0..50_000usize,
    ) {
        let disk = disk();
        let content = Bytes::from(Random::new(seed).bytes(length));
        // An earlier attempt left a beginning, a gap, another piece, and rubbish behind the end.
        let mut before = vec![0xee; length + 1000];
        before[..done].copy_from_slice(&content[..done]);
        let piece = done + apart..done + 2 * apart;
        before[piece.clone()].copy_from_slice(&content[piece.clone()]);
        disk.borrow_mut().files.insert(b"f".to_vec(), before);
        let mut options = UploadOptions::new("f");
        options.size = Some(length as u64);
        options.done = vec![0..done as u64, piece.start as u64..piece.end as u64];
        let mut sessions = one(&disk, Manner::default());
        let end = upload(options, &content, &mut sessions);
        let finished = matches!(end, Some(UploadEvent::Finished { attributes: Ok(()), .. }));
        prop_assert!(finished, "{:?}", end);
        prop_assert!(disk.borrow().files[&b"f"[..]] == content);
    }

    #[test]
    fn failures_in_the_middle_fail_what_they_hit_and_leave_nothing_open(
        manner in manner(),
        seed: u64,
        failures in 2..60u64,
    ) {
        let manner = Manner { failures, ..manner };
        let disk = disk();
        let mut random = Random::new(seed);
        let mut many = ManyDownload::default();
        let mut wanted = BTreeMap::new();
        for at in 0..60 {
            let content = random.bytes(at * 997);
            disk.borrow_mut().files.insert(format!("f{at}").into_bytes(), content.clone());
            wanted.insert(many.add(format!("f{at}"), Some(content.len() as u64)), content);
        }
        let mut session = Session::new(&disk, manner, seed);
        let (got, failed, _) = download_many(&mut many, &mut session);
        prop_assert_eq!(got.len() + failed.len(), 60);
        for (file, content) in got {
            prop_assert!(content == wanted[&file]);
        }
    }
}

#[test]
fn a_download_takes_a_few_round_trips_and_then_what_the_rate_allows() {
    let length = 100_000_000;
    let disk = disk_with(&vec![7; length]);
    // 100 MB at 100 MB/s and 100 ms: one second at the rate, against 40 with 32 KiB x 64 in flight.
    let done = download(DownloadOptions::new("f"), &mut one(&disk, Manner::default()));
    assert_eq!(done.local.len(), length);
    assert!(
        done.took < Duration::from_millis(1000 + 11 * 100),
        "{:?}",
        done.took
    );
}

/// A server that takes little at a time makes this side keep a request, and its books, for each little: 64 MiB may be under
/// way, which would be 16,384 of the smallest reads that are believed.
#[test]
fn however_little_a_server_takes_at_a_time_the_requests_in_flight_are_bounded() {
    let disk = disk_with(&vec![7; 40_000_000]);
    let manner = Manner {
        rtt: Duration::from_secs(1),
        rate: 10_000_000_000,
        max_read: 4096,
        warm: true,
        ..Manner::default()
    };
    let mut session = Session::new(&disk, manner, 1);
    let mut download = Download::new(DownloadOptions::new("f"));
    let worker = download.add_worker();
    let (mut now, mut most) = (*START, 0);
    while !download.is_over() {
        download.drive(worker, &mut session.client, now);
        most = most.max(session.client.in_flight());
        session.transmit(now);
        while download.poll_event().is_some() {}
        let Some(next) = session.next_time() else { break };
        now = next;
        for (id, outcome) in session.advance(now).expect("the session does not break") {
            download.handle_reply(worker, &mut session.client, id, outcome, now);
        }
    }
    assert!(download.is_over());
    assert_eq!(most, 4096);
}

#[test]
fn workers_share_a_file() {
    let length = 60_000_000;
    let disk = disk_with(&vec![7; length]);
    let manner = Manner {
        rate: 10_000_000,
        ..Manner::default()
    };
    let mut sessions = several(&disk, &manner, 0, 3);
    // The third is ten times slower: it must not hold the end back.
    sessions[2] = Session::new(
        &disk,
        Manner {
            rate: 1_000_000,
            ..manner
        },
        9,
    );
    let done = download(DownloadOptions::new("f"), &mut sessions);
    assert_eq!(done.local.len(), length);
    assert!(done.took < Duration::from_millis(4500), "{:?}", done.took);
}

#[test]
fn a_file_that_shrinks_is_not_taken_for_whole() {
    let content = Random::new(3).bytes(5_000_000);
    let disk = disk_with(&content);
    let shared = Rc::clone(&disk);
    let manner = Manner {
        rate: 5_000_000,
        ..Manner::default()
    };
    let done = download_with(
        DownloadOptions::new("f"),
        &mut one(&disk, manner),
        usize::MAX,
        |requests| {
            if requests > 10 {
                shared
                    .borrow_mut()
                    .files
                    .get_mut(&b"f"[..])
                    .unwrap()
                    .truncate(3_000_000);
            }
        },
    );
    let DownloadEvent::Failed(status) = done.end else {
        panic!("{:?}", done.end)
    };
    assert_eq!(
        status.to_string(),
        "failure: it changed while it was copied: 3000000 of its 5000000 bytes came"
    );
}

#[test]
fn a_file_that_grows_is_read_to_its_end() {
    let content = Random::new(4).bytes(9_000_000);
    let disk = disk_with(&content[..6_000_000]);
    let shared = Rc::clone(&disk);
    let manner = Manner {
        rate: 5_000_000,
        ..Manner::default()
    };
    let grown = content.clone();
    let done = download_with(
        DownloadOptions::new("f"),
        &mut one(&disk, manner),
        usize::MAX,
        move |requests| {
            if requests > 5 {
                shared.borrow_mut().files.insert(b"f".to_vec(), grown.clone());
            }
        },
    );
    assert_eq!(
        done.end,
        DownloadEvent::Finished {
            length: 9_000_000,
            grown: true
        }
    );
    assert!(done.local == content);
}

#[test]
fn a_file_that_claims_to_be_empty_is_read_all_the_same() {
    let disk = disk_with(&vec![3; 700_000]);
    disk.borrow_mut().false_sizes.insert(b"f".to_vec(), 0);
    let done = download(DownloadOptions::new("f"), &mut one(&disk, Manner::default()));
    assert_eq!(done.local, vec![3; 700_000]);
}

#[test]
fn holes_are_told_as_zeros() {
    let mut content = vec![0; 4_000_000];
    content[1_000_000] = 1;
    let disk = disk_with(&content);
    let mut options = DownloadOptions::new("f");
    options.sparse = true;
    let done = download(options, &mut one(&disk, Manner::default()));
    assert!(done.local == content);
    assert!(done.zeros > 3_300_000, "{}", done.zeros);
}

#[test]
fn a_range_of_a_file_can_be_had_alone() {
    let content = Random::new(5).bytes(1_000_000);
    let disk = disk_with(&content);
    let mut options = DownloadOptions::new("f");
    (options.start, options.end) = (300_000, Some(700_000));
    let mut sessions = one(&disk, Manner::default());
    let done = download(options, &mut sessions);
    assert!(done.local[300_000..] == content[300_000..700_000]);
    assert!(sessions[0].received < 410_000);
}

#[test]
fn workers_do_not_mix_a_file_with_its_successor() {
    let [old, new] = [1, 2].map(|byte| disk_with(&vec![byte; 9_000_000]));
    new.borrow_mut().modified.insert(b"f".to_vec(), 1);
    let slower = Manner {
        rtt: Duration::from_millis(200),
        ..Manner::default()
    };
    let mut sessions = one(&old, Manner::default());
    sessions.push(Session::new(&new, slower, 2));
    let done = download(DownloadOptions::new("f"), &mut sessions);
    assert_eq!(done.losses, [WorkerLoss::AnotherFile]);
    assert!(done.local == vec![1; 9_000_000]);
}

#[test]
fn a_lane_that_is_refused_leaves_the_work_to_the_others() {
    let (full, empty) = (disk_with(&vec![1; 3_000_000]), disk());
    // The refusal comes first.
    let slower = Manner {
        rtt: Duration::from_millis(200),
        ..Manner::default()
    };
    let mut sessions = vec![
        Session::new(&full, slower, 1),
        Session::new(&empty, Manner::default(), 2),
    ];
    let done = download(DownloadOptions::new("f"), &mut sessions);
    assert!(
        matches!(&done.losses[..], [WorkerLoss::Refused(status)] if status.code == StatusCode::NO_SUCH_FILE)
    );
    assert!(done.local == vec![1; 3_000_000]);
}

#[test]
fn a_missing_file_fails_with_the_servers_reason() {
    let done = download(DownloadOptions::new("f"), &mut one(&disk(), Manner::default()));
    assert!(matches!(done.end, DownloadEvent::Failed(status) if status.code == StatusCode::NO_SUCH_FILE));
}

#[test]
fn two_thousand_small_files_take_a_bounded_number_of_round_trips() {
    let disk = disk();
    let mut many = ManyDownload::default();
    let rtt = Duration::from_millis(100);
    for at in 0..2000 {
        put(&disk, &format!("f{at}"), &[at as u8; 4096]);
        many.add(format!("f{at}"), Some(4096));
    }
    let manner = Manner {
        rtt,
        rate: 1_000_000_000,
        ..Manner::default()
    };
    let mut session = Session::new(&disk, manner.clone(), 1);
    let (got, _, took) = download_many(&mut many, &mut session);
    assert_eq!(got.len(), 2000);
    assert!(
        took <= rtt * 10,
        "{:.1} round trips",
        took.as_secs_f64() / rtt.as_secs_f64()
    );

    let mut many = ManyUpload::default();
    let mut contents = BTreeMap::new();
    for at in 0..2000 {
        let mut file = UploadFile::new(format!("f{at}.part"), 4096);
        file.rename_to = Some(format!("f{at}").into());
        contents.insert(many.add(file), (Vec::new(), vec![at as u8; 4096]));
    }
    let mut session = Session::new(&disk, manner, 1);
    let (failed, took) = upload_many(&mut many, &contents, &mut session);
    assert_eq!(failed, []);
    assert!(
        took <= rtt * 13,
        "{:.1} round trips",
        took.as_secs_f64() / rtt.as_secs_f64()
    );
}

#[test]
fn a_full_disk_never_replaces_a_good_file() {
    let disk = disk_with(&[1; 10]);
    let manner = Manner {
        full_at: 300_000,
        ..Manner::default()
    };
    let mut many = ManyUpload::default();
    let mut file = UploadFile::new("f.part", 500_000);
    file.rename_to = Some("f".into());
    let id = many.add(file);
    let contents = BTreeMap::from([(id, (Vec::new(), vec![2; 500_000]))]);
    let mut session = Session::new(&disk, manner.clone(), 1);
    let (failed, _) = upload_many(&mut many, &contents, &mut session);
    assert_eq!(failed, [(id, StatusCode::FAILURE)]);
    // And nothing is left beside it.
    assert_eq!(
        disk.borrow().files,
        BTreeMap::from([(b"f".to_vec(), vec![1; 10])])
    );

    let mut options = UploadOptions::new("g.part");
    options.rename_to = Some("f".into());
    let end = upload(options, &vec![2; 500_000].into(), &mut one(&disk, manner));
    assert!(matches!(end, Some(UploadEvent::Failed(_))), "{end:?}");
    assert_eq!(disk.borrow().files[&b"f"[..]], vec![1; 10]);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let disk = disk();
    let names = [".", "..", "../../etc/passwd", "/etc/shadow", "", "a\0b", "good"];
    let entries = names
        .iter()
        .map(|name| (name.as_bytes().to_vec(), 0o100_644))
        .collect();
    disk.borrow_mut().directories.insert(b".".to_vec(), entries);
    let mut session = Session::new(&disk, Manner::default(), 1);
    let (events, _) = walk(WalkOptions::new(""), &mut session);
    let refused = events
        .iter()
        .filter(|event| matches!(event, WalkEvent::Refused { .. }))
        .count();
    assert_eq!(refused, 4);
    let found: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            WalkEvent::Entry { path, attributes, .. } => Some((&path[..], attributes.file_type())),
            _ => None,
        })
        .collect();
    assert_eq!(found, [(&b"good"[..], Some(FileType::Regular))]);
}

#[test]
fn a_tree_that_is_nested_deeper_than_paths_reach_is_not_taken_for_whole() {
    let disk = disk();
    let mut path = b"r".to_vec();
    for _ in 0..2100 {
        let names = vec![(b"d".to_vec(), 0o040_755)];
        disk.borrow_mut().directories.insert(path.clone(), names);
        path.extend_from_slice(b"/d");
    }
    let mut session = Session::new(&disk, Manner::default(), 1);
    let (events, _) = walk(WalkOptions::new("r"), &mut session);
    let failed = events
        .iter()
        .filter(|event| matches!(event, WalkEvent::Failed { .. }));
    assert_eq!(failed.count(), 1);
    assert_eq!(events.len(), 2048 + 2);
}

#[test]
fn a_wide_tree_is_walked_in_a_few_round_trips() {
    let disk = disk();
    let root = (0..300)
        .map(|at| (format!("d{at}").into_bytes(), 0o040_755))
        .collect();
    disk.borrow_mut().directories.insert(b"r".to_vec(), root);
    for at in 0..300 {
        put_directory(&disk, &format!("r/d{at}"), 50);
    }
    let mut session = Session::new(&disk, Manner::default(), 1);
    let (events, took) = walk(WalkOptions::new("r"), &mut session);
    assert_eq!(events.len(), 300 * 51 + 1);
    assert!(took <= Duration::from_millis(100) * 11, "{took:?}");
}

/// Waits until nothing is under way. Whoever asked for what comes is gone.
fn drain(session: &mut Session, mut now: Instant) {
    loop {
        session.transmit(now);
        let Some(next) = session.next_time() else { break };
        now = next;
        assert_eq!(session.advance(now), Some(Vec::new()));
    }
}

#[test]
fn what_is_cancelled_leaves_nothing_open() {
    let disk = disk();
    put_directory(&disk, "r", 500);
    for at in 0..500 {
        put(&disk, &format!("f{at}"), &vec![0; 3_000_000]);
    }
    // At each step of all kinds of work.
    for steps in 0..60 {
        let mut session = Session::new(&disk, Manner::default(), 1);
        let mut many = ManyDownload::default();
        for at in 0..50 {
            many.add(format!("f{at}"), (at % 2 == 0).then_some(3_000_000));
        }
        let mut walk = Walk::new(WalkOptions::new("r"));
        let mut download = Download::new(DownloadOptions::new("f60"));
        let worker = download.add_worker();
        let mut now = *START;
        for _ in 0..steps {
            many.drive((), &mut session.client, now);
            walk.drive((), &mut session.client, now);
            download.drive(worker, &mut session.client, now);
            session.transmit(now);
            let Some(next) = session.next_time() else { break };
            now = next;
            for (id, outcome) in session.advance(now).expect("the session does not break") {
                let other = many.handle_reply((), &mut session.client, id, outcome, now);
                let other =
                    other.and_then(|outcome| walk.handle_reply((), &mut session.client, id, outcome, now));
                let other = other
                    .and_then(|outcome| download.handle_reply(worker, &mut session.client, id, outcome, now));
                assert_eq!(other, None);
            }
        }
        many.remove_worker((), &mut session.client);
        walk.remove_worker((), &mut session.client);
        download.remove_worker(worker, &mut session.client);
        drain(&mut session, now);
        assert_eq!(
            (
                session.open_handles(),
                session.client.handles(),
                session.client.in_flight()
            ),
            (0, 0, 0)
        );
    }
}

#[test]
fn an_upload_that_is_stopped_removes_what_it_made_and_nothing_else() {
    // At each step: while the server has yet to open files, while they are written, and while they get their names.
    for steps in 0..12 {
        let disk = disk();
        let mut session = Session::new(&disk, Manner::default(), 1);
        let mut many = ManyUpload::default();
        for at in 0..20 {
            let mut file = UploadFile::new(format!("f{at}.part"), 100);
            file.opening = Opening::Exclusive;
            file.rename_to = Some(format!("f{at}").into());
            many.add(file);
        }
        // Somebody else's, who was faster.
        let theirs = ["f3.part", "f7.part"];
        for name in theirs {
            put(&disk, name, b"theirs");
        }
        let mut now = *START;
        many.drive((), &mut session.client, now);
        session.transmit(now);
        for _ in 0..steps {
            let Some(next) = session.next_time() else { break };
            now = next;
            for (id, outcome) in session.advance(now).expect("the session does not break") {
                assert_eq!(many.handle_reply((), &mut session.client, id, outcome, now), None);
            }
            while let Some(event) = many.poll_event() {
                if let ManyUploadEvent::Read(file) = event {
                    many.provide(file, Bytes::from(vec![1; 100]));
                }
            }
            many.drive((), &mut session.client, now);
            session.transmit(now);
        }
        many.remove_worker((), &mut session.client);
        drain(&mut session, now);
        let mut left = disk.borrow().files.clone();
        left.retain(|name, _| name.ends_with(b".part"));
        let theirs = theirs.map(|name| (name.into(), b"theirs".to_vec()));
        assert_eq!(left, BTreeMap::from(theirs), "after {steps} steps");
        assert_eq!((session.open_handles(), session.client.in_flight()), (0, 0));
    }
}

/// Runs an upload over workers until nothing more happens.
pub(crate) fn upload(
    options: UploadOptions,
    source: &Bytes,
    sessions: &mut [Session],
) -> Option<UploadEvent> {
    upload_retiring(options, source, sessions, usize::MAX)
}

/// The same; from the `retires`th step on the first worker is retired.
fn upload_retiring(
    options: UploadOptions,
    source: &Bytes,
    sessions: &mut [Session],
    retires: usize,
) -> Option<UploadEvent> {
    let memory = options.memory;
    let mut upload = Upload::new(options);
    let mut workers: Vec<Option<WorkerId>> = sessions.iter().map(|_| Some(upload.add_worker())).collect();
    let mut now = *START;
    let mut end = None;
    let mut steps = 0;
    // As an engine drives a plan: a session when something has come on it, and all when the source was read, or it says so.
    let mut due = vec![true; sessions.len()];
    loop {
        if let Some(retired) = workers[0].filter(|_| steps >= retires) {
            upload.retire_worker(retired);
        }
        steps += 1;
        let mut provided = false;
        for ((session, worker), due) in sessions.iter_mut().zip(&workers).zip(&mut due) {
            let Some(worker) = *worker else { continue };
            if !std::mem::take(due) {
                continue;
            }
            loop {
                upload.drive(worker, &mut session.client, now);
                let mut wanted = 0;
                while let Some(event) = upload.poll_event() {
                    match event {
                        UploadEvent::Read { id, offset, length } => {
                            wanted += length;
                            let from = source.len().min(offset as usize);
                            upload.provide(id, source.slice(from..source.len().min(from + length)));
                        }
                        UploadEvent::WorkerLost(..) => {}
                        event => {
                            assert_eq!(end.replace(event), None);
                            provided = true;
                        }
                    }
                }
                assert!(wanted <= memory + 300_000);
                if wanted == 0 {
                    break;
                }
                provided = true;
            }
            session.transmit(now);
        }
        if provided | upload.wants_all_driven() {
            due.fill(true);
            continue;
        }
        match advance(&mut upload, sessions, &mut workers, &mut due, &mut |_| {}) {
            Some(next) => now = next,
            None => break,
        }
        assert!(now < *START + LONG, "the upload does not end");
    }
    for (session, worker) in sessions.iter().zip(&workers) {
        session.check();
        assert!(
            worker.is_none() || session.open_handles() == 0,
            "a file was left open"
        );
    }
    end
}

pub(crate) type Got = BTreeMap<FileId, Vec<u8>>;

/// Runs a plan for one session until nothing more happens; how long that took.
fn run<P: Plan<Worker = ()>>(
    plan: &mut P,
    session: &mut Session,
    mut handle: impl FnMut(&mut P, P::Event),
) -> Duration {
    let mut now = *START;
    loop {
        plan.drive((), &mut session.client, now);
        session.transmit(now);
        let mut news = false;
        while let Some(event) = plan.poll_event() {
            news = true;
            handle(plan, event);
        }
        // What was taken may have made room.
        if news {
            continue;
        }
        let Some(next) = session.next_time() else { break };
        now = next;
        assert!(now < *START + LONG, "the transfer does not end");
        for (id, outcome) in session.advance(now).expect("the session does not break") {
            assert_eq!(plan.handle_reply((), &mut session.client, id, outcome, now), None);
        }
    }
    session.check();
    assert_eq!(session.open_handles(), 0);
    now - *START
}

pub(crate) fn download_many(
    many: &mut ManyDownload,
    session: &mut Session,
) -> (Got, Vec<(FileId, StatusCode)>, Duration) {
    let mut locals: BTreeMap<FileId, Local> = BTreeMap::new();
    let (mut got, mut failed) = (BTreeMap::new(), Vec::new());
    let took = run(many, session, |_, event| match event {
        ManyDownloadEvent::Data { file, offset, data } => {
            locals.entry(file).or_default().write(offset, &data.into_bytes());
        }
        ManyDownloadEvent::Finished { file, length, .. } => {
            let mut content = locals.remove(&file).unwrap_or_default().content;
            content.truncate(length as usize);
            assert_eq!(got.insert(file, content), None);
        }
        ManyDownloadEvent::Failed { file, status } => failed.push((file, status.code)),
        _ => {}
    });
    assert_eq!(many.unfinished(), 0);
    (got, failed, took)
}

pub(crate) fn upload_many(
    many: &mut ManyUpload,
    contents: &BTreeMap<FileId, (Vec<u8>, Vec<u8>)>,
    session: &mut Session,
) -> (Vec<(FileId, StatusCode)>, Duration) {
    let mut failed = Vec::new();
    let took = run(many, session, |many, event| match event {
        ManyUploadEvent::Read(file) => many.provide(file, Bytes::copy_from_slice(&contents[&file].1)),
        ManyUploadEvent::Failed { file, status } | ManyUploadEvent::Taken { file, status } => {
            failed.push((file, status.code));
        }
        _ => {}
    });
    assert_eq!(many.unfinished(), 0);
    (failed, took)
}

/// Returns the most memory that the names of walks take while nobody takes their events until they wait for that.
fn most_taken(options: WalkOptions, session: &mut Session) -> (usize, Vec<WalkEvent>) {
    let budget = options.budget.clone();
    let mut walk = Walk::new(options);
    let (mut now, mut most, mut events) = (*START, 0, Vec::new());
    loop {
        walk.drive((), &mut session.client, now);
        session.transmit(now);
        most = most.max(budget.taken());
        let Some(next) = session.next_time() else {
            let before = events.len();
            events.extend(std::iter::from_fn(|| walk.poll_event()));
            if events.len() == before {
                break;
            }
            continue;
        };
        now = next;
        for (id, outcome) in session.advance(now).expect("the session does not break") {
            assert_eq!(walk.handle_reply((), &mut session.client, id, outcome, now), None);
            most = most.max(budget.taken());
        }
    }
    assert!(walk.is_over());
    drop(walk);
    assert_eq!(budget.taken(), 0, "it is given back");
    (most, events)
}

#[test]
fn names_that_nobody_takes_wait_at_the_server() {
    let disk = disk();
    let mut root = Vec::new();
    for at in 0..40 {
        let name = format!("d{at}").into_bytes();
        let names = (0..1500).map(|at| (format!("{at:0200}").into_bytes(), 0o100_644));
        disk.borrow_mut()
            .directories
            .insert([b"r/", &name[..]].concat(), names.collect());
        root.push((name, 0o040_755));
    }
    disk.borrow_mut().directories.insert(b"r".to_vec(), root);
    let most = 2 * 1024 * 1024;
    let mut options = WalkOptions::new("r");
    options.budget = NameBudget::new(most);
    let mut session = Session::new(&disk, Manner::default(), 1);
    let (taken, events) = most_taken(options, &mut session);
    let failed = |event: &&WalkEvent| matches!(event, WalkEvent::Failed { .. } | WalkEvent::Refused { .. });
    assert_eq!(events.iter().find(failed), None);
    // 24 MB of names, and the walk's end.
    assert_eq!(events.len(), 40 + 40 * 1500 + 1);
    assert!(taken <= most, "{taken}");
}

#[test]
fn a_directory_without_end_is_given_up_where_its_names_take_too_much() {
    let disk = disk();
    let names = (0..200_000).map(|at| (format!("{at}").into_bytes(), 0o100_644));
    disk.borrow_mut()
        .directories
        .insert(b"r".to_vec(), names.collect());
    let mut options = WalkOptions::new("r");
    options.budget = NameBudget::new(2 * 1024 * 1024);
    let mut session = Session::new(&disk, Manner::default(), 1);
    let (taken, events) = most_taken(options, &mut session);
    let why = events.iter().find_map(|event| match event {
        WalkEvent::Failed { status, .. } => Some(status.message.to_string()),
        _ => None,
    });
    assert!(why.unwrap().contains("names_memory"));
    assert!(events.len() < 150_000 && taken < 3 * 1024 * 1024, "{taken}");
}

fn walk(options: WalkOptions, session: &mut Session) -> (Vec<WalkEvent>, Duration) {
    let mut walk = Walk::new(options);
    let mut events = Vec::new();
    let took = run(&mut walk, session, |_, event| events.push(event));
    assert!(walk.is_over());
    (events, took)
}
