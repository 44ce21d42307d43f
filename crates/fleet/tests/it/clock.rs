//! A machine whose clock is set, by an hour forward and back, while its node works: the node, its daemon and all that they
//! start run with libfaketime.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use trunkline_fleet::bucket::Charter;
use trunkline_fleet::order::OrderedHost;
use trunkline_fleet::state::{Exit, Fate, Restart, Resuming};
use trunkline_fleet::streaming::following::{self, stream_of};
use trunkline_fleet::submitting::status;
use trunkline_testkit::LightServer;

use crate::faults::site::{Node, draw};
use crate::fleet::{TestFleet, follow_to_end};
use crate::nats::{charter, terms};

/// The time that the fleet keeps ended jobs: less than the clock jumps by.
const KEEP: Duration = Duration::from_secs(1800);

/// A clock that can be set.
struct Clock {
    file: PathBuf,
    library: PathBuf,
}

impl Clock {
    fn new(directory: &Path) -> Self {
        let all = std::fs::read_dir("/usr/lib").unwrap().flatten();
        let mut places = all.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
        let clock = Self {
            file: directory.join("clock"),
            library: places
                .find(|place| place.exists())
                .expect("libfaketime is needed: scripts/need faketime=faketime"),
        };
        clock.set("+0");
        clock
    }

    /// So far from the true time.
    fn set(&self, offset: &str) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{offset}\n")).unwrap();
        // At once: who reads it finds the one or the other.
        std::fs::rename(new, &self.file).unwrap();
    }

    fn variables(&self) -> [(&'static str, PathBuf); 4] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone()),
            ("FAKETIME_NO_CACHE", "1".into()),
            // As when somebody sets a machine's clock.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }

    /// A program that lets the daemon have this clock: it keeps none of its starter's variables.
    fn daemon(&self, directory: &Path) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let (script, node) = (
            directory.join("trunklined"),
            Path::new(env!("CARGO_BIN_EXE_trunkline-fleet")),
        );
        let variables = self
            .variables()
            .map(|(name, value)| format!("{name}='{}' ", value.display()));
        let daemon = node.with_file_name("trunklined");
        let text = format!(
            "#!/bin/sh\n{}exec '{}' \"$@\"\n",
            variables.concat(),
            daemon.display()
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        script
    }
}

/// Commands of which each takes so long.
fn hosts(mark: &str, count: u16, takes: u64) -> Vec<OrderedHost> {
    (1..=count).map(|number| draw(201, number, takes, mark)).collect()
}

/// Executes commands that take two seconds, in the middle of which the clock is set.
async fn run(fleet: &TestFleet, ledger: &LightServer, clock: &Clock, offset: &str) {
    let before = ledger.executions().len();
    let job = fleet.submit(&hosts(offset, 10, 2_000)).await;
    while ledger.executions().len() == before {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    clock.set(offset);
    let (fates, _) = follow_to_end(&fleet.bucket, &job).await;
    for fate in fates.values() {
        let is_ended =
            matches!(fate, Fate::Ended { returned, .. } if matches!(returned.exit, Exit::Status(_)));
        assert!(is_ended, "{offset}: {fate:?}");
    }
    assert_eq!(
        (fates.len(), ledger.executions().len() - before),
        (10, 10),
        "{offset}: none is lost, and none runs twice"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_changes_nothing() {
    let charter = Charter {
        keep: KEEP,
        // Some renewals pass while it is tried.
        terms: terms(Duration::from_secs(6)),
        ..charter(8)
    };
    let (fleet, ledger) = (
        TestFleet::with_charter(charter).await,
        LightServer::start().unwrap(),
    );
    let bucket = &fleet.bucket;
    let directory = trunkline_testkit::directory().unwrap();
    let clock = Clock::new(directory.path());
    let mut node = Node::member(&fleet, 0, &ledger);
    let mut join = Command::new(env!("CARGO_BIN_EXE_trunkline-fleet"));
    join.arg("join").envs(clock.variables());
    node.start_as(join.env("TRUNKLINED", clock.daemon(directory.path())));
    crate::bad_input::wait_for_shards(bucket, "n0", |own| own == 8).await;

    // A stream that has ended, whose records it is to remove in half an hour.
    let resuming = Resuming {
        restart: Restart::Never,
        first: Duration::from_secs(1),
        longest: Duration::from_secs(1),
    };
    let stream = fleet.submit_stream(&hosts("stream", 1, 1), resuming).await;
    while following::streams(bucket).await.unwrap()[0].ended == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    for offset in ["+3600", "-3600", "+0"] {
        run(&fleet, &ledger, &clock, offset).await;
        // Longer than a lease lasts, and than it takes until the node looks what it may remove.
        let long = hosts(&format!("after {offset}"), 1, 7_000);
        assert_eq!(fleet.run(&long).await.0.len(), 1);
        let nodes = status(bucket).await.unwrap().nodes;
        let (name, member, shards, _) = &nodes[0];
        assert_eq!(
            (name.as_str(), *shards, &member.trouble),
            ("n0", 8, &None),
            "{offset}"
        );
        assert!(
            stream_of(bucket, &stream).await.is_ok(),
            "{offset}: the stream was removed"
        );
        assert_eq!(bucket.frozen().await.unwrap(), None);
    }
    let log = node.log();
    assert!(
        !log.contains("nothing is started") && !log.contains("lease"),
        "{log}"
    );

    // The clock was theirs.
    for name in ["trunkline-fleet", "trunklined"] {
        let maps = node.maps_of(name);
        assert!(
            maps.contains("libfaketime"),
            "{name} has the system's clock: {maps}"
        );
    }
    clock.set("+3600");
    let date = Command::new("date")
        .arg("+%s")
        .envs(clock.variables())
        .output()
        .unwrap();
    let date: u64 = String::from_utf8(date.stdout).unwrap().trim().parse().unwrap();
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!(date > since.as_secs() + 3000, "{date}");
}
