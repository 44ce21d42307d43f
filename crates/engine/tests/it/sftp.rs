//! SFTP against stock servers: what a program that uses the engine sees.

use std::io::{SeekFrom, Write as _};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use trunkline::sftp::{FileAttributes, FileType, OpenFlags, Permissions, Sftp, StatusCode};
use trunkline::{Error, ErrorKind, Execution};
use trunkline_testkit::Sshd;

use crate::site::{Site, through_relay};

async fn sftp(sshd: &Sshd) -> Sftp {
    Site::for_server(sshd).await.sftp().await.unwrap()
}

fn path(directory: &tempfile::TempDir, name: &str) -> String {
    format!("{}/{name}", directory.path().display())
}

fn numbers(count: u32) -> Vec<u8> {
    (0..count).flat_map(u32::to_le_bytes).collect()
}

const WRITE: OpenFlags = OpenFlags(0x02 | 0x08 | 0x10);

#[tokio::test]
async fn a_stream_writes_and_reads_what_it_was_given() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let sftp = sftp(&sshd).await;
    let name = path(&directory, "stream");
    let content = numbers(3_000_000);
    let mut file = sftp.open(&name, WRITE, FileAttributes::default()).await.unwrap();
    for piece in content.chunks(100_003) {
        file.write_all(piece).await.unwrap();
    }
    file.shutdown().await.unwrap();
    assert!(std::fs::read(&name).unwrap() == content);
    let mut file = sftp
        .open(&name, OpenFlags::READ, FileAttributes::default())
        .await
        .unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).await.unwrap();
    assert!(read == content);
    assert_eq!(file.seek(SeekFrom::End(-8)).await.unwrap(), 11_999_992);
    read.clear();
    file.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, content[11_999_992..]);
    assert_eq!(
        &file.read_at(4_000_000, 1_000_000).await.unwrap()[..],
        &content[4_000_000..5_000_000]
    );
    assert_eq!(file.read_at(11_999_990, 100).await.unwrap().len(), 10);
    assert!(sftp.read(&name).await.unwrap() == content);
}

#[tokio::test]
async fn a_file_ends_where_reading_it_ends_whatever_its_size_is_said_to_be() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let sftp = sftp(&sshd).await;
    // The kernel says 0 of these.
    let limits = sftp.read("/proc/self/limits").await.unwrap();
    assert!(limits.starts_with(b"Limit"), "{limits:?}");
    let name = path(&directory, "sized");
    // sshd's pieces are 255 KiB: none, a part, whole ones, and more than are asked for before the size is known.
    for size in [0, 1, 261_120, 4 * 261_120, 30 * 261_120 + 1] {
        let content: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
        std::fs::write(&name, &content).unwrap();
        assert!(sftp.read(&name).await.unwrap() == content, "{size} bytes");
    }
    let mut file = sftp
        .open(&name, OpenFlags::READ, FileAttributes::default())
        .await
        .unwrap();
    file.seek(SeekFrom::Start(7_833_600)).await.unwrap();
    let rest = file.read_rest().await.unwrap().concat();
    assert_eq!(rest, [(7_833_600 % 251) as u8]);
    // It has grown since its size was told.
    let mut local = std::fs::OpenOptions::new().append(true).open(&name).unwrap();
    local.write_all(&vec![7; 600_000]).unwrap();
    assert!(file.read_rest().await.unwrap().concat() == vec![7; 600_000]);
    assert!(file.chunk(usize::MAX).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_stream_reads_what_it_has_just_written() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let sftp = sftp(&sshd).await;
    let flags = WRITE | OpenFlags::READ;
    let mut file = sftp
        .open(path(&directory, "both"), flags, FileAttributes::default())
        .await
        .unwrap();
    file.write_all(b"0123456789").await.unwrap();
    file.seek(SeekFrom::Start(4)).await.unwrap();
    let mut two = [0; 2];
    file.read_exact(&mut two).await.unwrap();
    assert_eq!(&two, b"45");
    file.write_all(b"xx").await.unwrap();
    file.rewind().await.unwrap();
    let mut all = String::new();
    file.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "012345xx89");
    file.close().await.unwrap();
}

#[tokio::test]
async fn errors_carry_the_servers_status_and_the_path() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let sftp = sftp(&sshd).await;
    let name = path(&directory, "absent");
    let error = sftp.stat(&name).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.execution()),
        (ErrorKind::File, Execution::Finished)
    );
    let Error::File { status, path, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (status.code, &path[..]),
        (StatusCode::NO_SUCH_FILE, name.as_bytes())
    );
    assert!(
        error.to_string().ends_with("absent: No such file or directory"),
        "{error}"
    );
    let error: std::io::Error = sftp.read(&name).await.unwrap_err().into();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn names_attributes_and_links_are_what_they_are_on_the_server() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let sftp = sftp(&sshd).await;
    let inside = path(&directory, "a b\n");
    let private = FileAttributes {
        permissions: Some(Permissions(0o700)),
        ..FileAttributes::default()
    };
    sftp.mkdir(&inside, private).await.unwrap();
    sftp.write(format!("{inside}/f"), &b"x"[..]).await.unwrap();
    sftp.symlink("f", format!("{inside}/l")).await.unwrap();
    assert_eq!(&sftp.readlink(format!("{inside}/l")).await.unwrap()[..], b"f");
    let link = sftp.lstat(format!("{inside}/l")).await.unwrap();
    assert_eq!(link.file_type(), Some(FileType::Symlink));
    assert_eq!(sftp.stat(format!("{inside}/l")).await.unwrap().size, Some(1));
    sftp.rename(format!("{inside}/f"), format!("{inside}/g"))
        .await
        .unwrap();
    sftp.hardlink(format!("{inside}/g"), format!("{inside}/h"))
        .await
        .unwrap();
    let mut names = Vec::new();
    let mut walk = sftp.walk(directory.path().as_os_str().as_encoded_bytes());
    while let Some(entry) = walk.next().await {
        names.push(entry.unwrap().path);
    }
    names.sort();
    assert_eq!(names, ["a b\n", "a b\n/g", "a b\n/h", "a b\n/l"]);
    let mut listing = sftp.read_dir(&inside);
    let mut count = 0;
    while let Some(entry) = listing.next().await {
        entry.unwrap();
        count += 1;
    }
    assert_eq!(count, 3);
    for name in ["g", "h", "l"] {
        sftp.remove(format!("{inside}/{name}")).await.unwrap();
    }
    sftp.rmdir(&inside).await.unwrap();
    assert!(sftp.statvfs(path(&directory, "")).await.unwrap().block_size > 0);
    assert_eq!(sftp.limits().await.unwrap().max_read, 261_120);
    assert_eq!(&sftp.realpath("/usr/../etc").await.unwrap()[..], b"/etc");
}

#[tokio::test]
async fn many_operations_share_a_session_and_one_connection() {
    let (sshd, directory) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let sftp = sftp(&sshd).await;
    let mut running = tokio::task::JoinSet::new();
    for n in 0..200 {
        let (sftp, name) = (sftp.clone(), path(&directory, &n.to_string()));
        running.spawn(async move {
            sftp.write(&name, format!("{n}")).await.unwrap();
            assert_eq!(sftp.read(&name).await.unwrap(), format!("{n}"));
        });
    }
    running.join_all().await;
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn a_server_without_the_subsystem_refuses_it_by_name() {
    let sshd = Sshd::builder()
        .config("Subsystem other /bin/cat")
        .start()
        .unwrap();
    let host = Site::for_server(&sshd).await;
    let error = match host.sftp().await {
        Ok(sftp) => sftp.stat("/").await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.execution(), Execution::DidNotStart, "{error}");
}

#[tokio::test]
async fn a_lost_connection_leaves_an_operation_that_may_have_happened() {
    let (_sshd, directory, relay, host) = through_relay().await;
    let sftp = host.sftp().await.unwrap();
    sftp.ready().await.unwrap();
    relay.stall();
    let name = path(&directory, "d");
    let making = sftp.mkdir(&name, FileAttributes::default());
    let cutting = async {
        // The request has left when the relay, which lets nothing through, is the only one to have it.
        tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>())
            .await
            .unwrap_err();
        relay.reset();
    };
    let (made, ()) = tokio::join!(making, cutting);
    let error = made.unwrap_err();
    assert_eq!(
        (error.kind(), error.execution()),
        (ErrorKind::Network, Execution::MayHaveStarted),
        "{error}"
    );
    assert!(sftp.stat(&name).await.is_err());
}

#[tokio::test]
async fn any_two_streams_carry_a_session() {
    let mut server = tokio::process::Command::new("/usr/lib/openssh/sftp-server")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("openssh-sftp-server brings /usr/lib/openssh/sftp-server");
    let sftp = Sftp::from_streams(
        server.stdout.take().unwrap(),
        server.stdin.take().unwrap(),
        "here",
    );
    let directory = tempfile::tempdir().unwrap();
    sftp.write(path(&directory, "f"), numbers(1_000_000))
        .await
        .unwrap();
    assert!(sftp.read(path(&directory, "f")).await.unwrap() == numbers(1_000_000));
    drop(sftp);
    assert!(
        server.wait().await.unwrap().success(),
        "the end of its input ends it"
    );
}
