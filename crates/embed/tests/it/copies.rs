//! Copies, over an engine of this process and over the daemon.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trunkline::sftp::Sftp;
use trunkline::transfer::{CopyOptions, Location, Progress};
use trunkline_testkit::{SftpFaults, Sshd, noise};

use super::each_way;

fn there(sftp: &Sftp, path: &Path) -> Location {
    let path = Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes());
    Location::Session(sftp.clone(), path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_in_the_middle_of_a_copy_is_survived() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("source");
        std::fs::write(&source, noise(12_000_000, 1)).unwrap();
        for upload in [true, false] {
            let target = place.path().join(format!("upload-{upload}"));
            let sftp = way.sftp().await.unwrap();
            let (from, to) = match upload {
                true => (Location::Local(source.clone()), there(&sftp, &target)),
                false => (there(&sftp, &source), Location::Local(target.clone())),
            };
            let (progress, mut options) = (Arc::new(Progress::default()), CopyOptions::default());
            // Slow enough to be met in its middle.
            options.limit = Some(8_000_000);
            let sources = [from];
            let copying = way.copy(&sources, &to, &options, &progress);
            let breaking = async {
                while progress.snapshot().bytes < 3_000_000 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                sshd.kill_connections();
            };
            let both = async { tokio::join!(copying, breaking) };
            let ended = tokio::time::timeout(Duration::from_secs(60), both).await;
            let (copied, ()) = ended.expect("the copy ends");
            assert_eq!(copied.unwrap().failed, 0);
            assert!(std::fs::read(&source).unwrap() == std::fs::read(&target).unwrap());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_over_a_session_that_shares_handles_continues_in_another_one() {
    let server = SftpFaults::start(&["share:9"]).unwrap();
    each_way(server.sshd(), &[], async |way| {
        let place = tempfile::tempdir().unwrap();
        let [source, target] = ["source", "target"].map(|name| place.path().join(name));
        std::fs::create_dir(&source).unwrap();
        for number in 0..60 {
            std::fs::write(source.join(number.to_string()), noise(1000, number)).unwrap();
        }
        let sftp = way.sftp().await.unwrap();
        let (progress, mut options) = (Arc::new(Progress::default()), CopyOptions::default());
        options.recursive = true;
        let sources = [Location::Local(source.clone())];
        let copied = way
            .copy(&sources, &there(&sftp, &target), &options, &progress)
            .await;
        assert_eq!(copied.unwrap().failed, 0);
        for number in 0..60 {
            let read = |directory: &Path| std::fs::read(directory.join(number.to_string())).unwrap();
            assert!(read(&source) == read(&target), "{number}");
        }
    })
    .await;
}
