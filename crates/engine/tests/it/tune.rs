//! Tuning against stock servers: what is measured, what is left behind, and what copies make of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use trunkline::config::Request;
use trunkline::transfer::{CopyOptions, Location, Progress, copy};
use trunkline::tune::{self, Choice, Rates, Report, Step, TuneOptions, tune};
use trunkline::{Engine, Error, Interaction};
use trunkline_testkit::{Direction, Dropbear, Sshd};

use crate::site::{Relayed, engine, request};

fn options(seconds: u64, directory: &Path) -> TuneOptions {
    let mut options = TuneOptions::new(false);
    options.time = Duration::from_secs(seconds);
    options.bytes = 256 << 20;
    options.directory = Some(directory.display().to_string());
    options
}

async fn run_tune(engine: &Engine, request: &Request, options: &TuneOptions) -> Report {
    let nobody = std::future::pending();
    tune(engine, request, &Interaction::none(), options, &|_| {}, nobody)
        .await
        .unwrap()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cipher_that_both_ends_have_is_measured_and_nothing_is_left_on_the_server() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let engine = engine();
    let request = request(
        &sshd.ssh_config(),
        sshd.alias(),
        &["Ciphers=aes128-ctr,aes256-gcm@openssh.com"],
    );
    let report = run_tune(&engine, &request, &options(8, directory.path())).await;
    for cipher in ["aes128-ctr", "aes256-gcm@openssh.com"] {
        let plain = report
            .ciphers
            .iter()
            .find(|row| row.cipher == cipher && !row.compression);
        assert!(plain.unwrap().incompressible.both().unwrap() > 0.0);
    }
    // What ssh_config does not allow is not used.
    assert!(report.ciphers.iter().all(|row| !row.cipher.contains("chacha20")));
    assert!(report.server.contains("OpenSSH"));
    assert!(report.link.rates.down.is_some() && report.link.rates.up.is_some());
    assert!(report.choice.cipher == "aes128-ctr" || report.choice.cipher == "aes256-gcm@openssh.com");
    // Each session may have a window under way when the budget is spent.
    assert!(report.bytes < (256 << 20) + 16 * 16_000_000, "{}", report.bytes);
    assert!(is_empty(directory.path()));
    let config = engine.resolve(&request).await.unwrap();
    assert_eq!(tune::recall(engine.memory(), &config), None);
}

/// A server on which there is no rsync.
fn only_sftp() -> Sshd {
    let sshd = Sshd::builder().config("ForceCommand internal-sftp");
    sshd.start().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn compression_is_measured_on_a_narrow_link_and_chosen() {
    let (sshd, directory) = (only_sftp(), tempfile::tempdir().unwrap());
    let relayed = Relayed::for_server(sshd);
    // So narrow that on a busy machine, too, the link is what bounds a rate, and not the turns of the scheduler.
    for direction in [Direction::ToServer, Direction::ToClient] {
        relayed.relay.set_rate(direction, Some(300_000));
    }
    let request = relayed.request(&["Ciphers=aes128-ctr"]);
    let report = run_tune(&engine(), &request, &options(10, directory.path())).await;
    let row = |compression: bool| {
        let mut rows = report.ciphers.iter();
        rows.find(|row| row.compression == compression).unwrap()
    };
    let both = |rates: Rates| rates.both().unwrap();
    let gain = both(row(true).compressible) / both(row(false).compressible);
    // A busy machine may take the compressor's turns, or find other data slower by chance: the choice follows what was measured.
    let cost = both(row(false).incompressible) / both(row(true).incompressible);
    let is_right = match report.choice.compression {
        true => gain > 1.0,
        false => gain < 1.5 || cost > 1.05,
    };
    assert!(is_right, "{:?}", report.ciphers);
    let rate = report.link.rates.down.unwrap();
    assert!(rate > 0.0 && rate < 450_000.0, "{rate}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tuning_that_is_stopped_cleans_up_and_says_so() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let request = request(&sshd.ssh_config(), sshd.alias(), &[]);
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let sender = std::sync::Mutex::new(Some(sender));
    let steps = AtomicUsize::new(0);
    let watch = |step: Step| {
        steps.fetch_add(1, Ordering::Relaxed);
        if step.stage == "ciphers" {
            sender.lock().unwrap().take();
        }
    };
    let stop = async {
        let _ = receiver.await;
    };
    let options = options(60, directory.path());
    let stopped = tune(&engine(), &request, &Interaction::none(), &options, &watch, stop).await;
    assert!(matches!(stopped, Err(Error::Cancelled(words)) if words.contains("not kept")));
    assert!(steps.load(Ordering::Relaxed) > 3);
    assert!(is_empty(directory.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_make_is_measured_with_what_it_has() {
    let (dropbear, directory) = (Dropbear::start_default().unwrap(), tempfile::tempdir().unwrap());
    let request = request(&dropbear.ssh_config(), dropbear.alias(), &[]);
    let report = run_tune(&engine(), &request, &options(8, directory.path())).await;
    assert!(report.server.contains("dropbear"), "{}", report.server);
    // Dropbear has no AES-GCM by default.
    assert!(report.ciphers.iter().all(|row| !row.cipher.contains("gcm")));
    assert!(
        report
            .ciphers
            .iter()
            .any(|row| row.incompressible.both().is_some())
    );
    assert!(is_empty(directory.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_use_what_is_remembered_but_for_what_the_caller_sets() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let engine = engine();
    let plain = request(&sshd.ssh_config(), sshd.alias(), &[]);
    let config = engine.resolve(&plain).await.unwrap();
    let choice: Choice = serde_json::from_value(serde_json::json!({
        "cipher": "aes256-ctr", "usual_cipher": "aes128-gcm@openssh.com", "compression": true,
        "request_size": 16384, "streams_up": 3,
    }))
    .unwrap();
    tune::remember(Some(&choice), engine.memory(), &config);

    let host = engine
        .host_for_copies(&plain, &Interaction::none())
        .await
        .unwrap();
    let source = directory.path().join("source");
    std::fs::write(&source, vec![7; 20 << 20]).unwrap();
    let target = Location::Host(
        host.clone(),
        Bytes::from(format!("{}/target", directory.path().display())),
    );
    let progress = Arc::new(Progress::default());
    // Slow enough that all sessions open before it ends, on however fast a machine.
    let mut slow = CopyOptions::default();
    slow.limit = Some(10 << 20);
    let copied = copy(&[Location::Local(source)], &target, &slow, &progress)
        .await
        .unwrap();
    assert_eq!(copied.streams, 3);
    let lanes = host.lanes();
    assert!(!lanes.is_empty());
    for info in lanes.into_iter().filter_map(|lane| lane.info) {
        assert_eq!((info.cipher, info.compressed), ("aes256-ctr", true));
    }
    assert_eq!(host.sftp().await.unwrap().limits().await.unwrap().max_read, 16384);

    let asked = request(
        &sshd.ssh_config(),
        sshd.alias(),
        &["Ciphers=aes192-ctr", "Compression=no"],
    );
    let host = engine
        .host_for_copies(&asked, &Interaction::none())
        .await
        .unwrap();
    host.warm().await.unwrap();
    let connection = host.connection();
    let info = connection.info().unwrap();
    assert_eq!((info.cipher, info.compressed), ("aes192-ctr", false));

    // A host for anything else is as ssh_config says.
    let usual = engine.host_for(&plain, &Interaction::none()).await.unwrap();
    assert_eq!(usual.config().sharing_key(), config.sharing_key());
    assert!(usual.tuned_choice().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn rsync_is_run_three_times_with_each_of_its_options() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let request = request(&sshd.ssh_config(), sshd.alias(), &["Ciphers=aes128-ctr"]);
    // Little data, so that all of it fits in however slow the machine is.
    let mut options = options(600, directory.path());
    options.bytes = 128 << 20;
    let report = run_tune(&engine(), &request, &options).await;
    assert!(report.rsync.len() >= 5, "{:?}", report.notes);
    for row in &report.rsync {
        assert_eq!(row.seconds.len(), 3, "{row:?}");
    }
    for options in [&["-z"][..], &["-W"], &["--block-size=131072"]] {
        assert!(report.rsync.iter().any(|row| row.options == options));
    }
    let for_rsync = report.advice.iter().filter(|advice| advice.tool == "rsync");
    assert_eq!(for_rsync.count(), 2);
    assert!(is_empty(directory.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_does_sftp_is_measured_without_rsync_and_the_report_says_so() {
    let (sshd, directory) = (only_sftp(), tempfile::tempdir().unwrap());
    let request = request(&sshd.ssh_config(), sshd.alias(), &["Ciphers=aes128-ctr"]);
    let report = run_tune(&engine(), &request, &options(8, directory.path())).await;
    assert!(report.ciphers[0].incompressible.both().is_some());
    assert!(report.rsync.is_empty());
    assert!(
        report.notes.iter().any(|note| note.contains("runs no commands")),
        "{:?}",
        report.notes
    );
    assert!(is_empty(directory.path()));
}
