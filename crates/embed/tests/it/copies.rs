//! Copies, over an engine of this process and over the daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trunkline::transfer::{CopyOptions, Location, Progress};
use trunkline_testkit::{Sshd, noise};

use super::each_way;

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
            let there = |path: &PathBuf| {
                let path = Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes());
                match way.host() {
                    Some(host) => Location::Host(host.clone(), path),
                    None => Location::Session(sftp.clone(), path),
                }
            };
            let (from, to) = match upload {
                true => (Location::Local(source.clone()), there(&target)),
                false => (there(&source), Location::Local(target.clone())),
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
