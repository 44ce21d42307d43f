//! The work of a program's own engine is in the audit trail, beside the daemon's.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use trunkline::config::{Forward, ForwardTarget, Listen};
use trunkline::transfer::{CopyOptions, Location, Progress};
use trunkline::{AuditMode, ExitStatus, MemoryPlace, Settings};
use trunkline_embed::{ForwardKind, Place, Preference, ProgramEngine, Route, Way};
use trunkline_testkit::Sshd;

use crate::{destination, exec, rest};

const PIPES: [Route; 3] = [Route::Pipe, Route::Pipe, Route::Pipe];

fn place(directory: &Path) -> Place {
    Place::find(|name| (name == "TRUNKLINE_DIR").then(|| directory.to_owned())).unwrap()
}

fn engine(directory: &Path, mode: AuditMode) -> ProgramEngine {
    let settings = Settings {
        audit: mode,
        ..Settings::default()
    };
    ProgramEngine::recorded_at(&place(directory), settings, MemoryPlace::Process).unwrap()
}

async fn way(sshd: &Sshd, directory: &Path, engine: &ProgramEngine) -> Way {
    let destination = destination(sshd, directory, Preference::Engine, &[]);
    Way::find(&destination, async || Ok(engine.clone()))
        .await
        .unwrap()
}

/// The trail's records, which are as they were written.
fn records(directory: &Path) -> Vec<Value> {
    let trail = place(directory).audit();
    let found = trunkline_audit::verify(&trail, None).unwrap();
    assert!(found.intact, "{found:?}");
    let text = fs::read_to_string(trail.join("audit.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The beginning and the end of the one piece of work with this value.
fn pair(records: &[Value], key: &str, value: &str) -> (Value, Value) {
    let of = |event: &str| {
        let found: Vec<_> = records
            .iter()
            .filter(|record| record["event"] == event && record[key] == value)
            .collect();
        let [one] = found[..] else {
            panic!("{event} {key} {value}: {records:#?}")
        };
        one.clone()
    };
    let (begin, end) = (of("begin"), of("end"));
    assert_eq!(begin["id"], end["id"]);
    (begin, end)
}

#[tokio::test]
async fn sessions_are_recorded_with_who_what_where_and_how_they_ended() {
    let sshd = Sshd::start_default().unwrap();
    for mode in [AuditMode::On, AuditMode::Strict] {
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(directory.path(), mode);
        let way = way(&sshd, directory.path(), &engine).await;
        let mut options = exec("cat; exit 3");
        options
            .env
            .push(("LC_SECRET".into(), b"environment-of-mine".to_vec()));
        let input = Bytes::from_static(b"input-of-mine\n");
        let ran = way.run(&options, Some(input), None).await;
        assert_eq!(ran.outcome, Ok(ExitStatus::Exited(3)));
        // Whoever reads all output need not ask for the status.
        let mut session = way.session(&exec("echo read"), PIPES).await.unwrap();
        let trunkline_embed::Output::Program(stdout) = &mut session.stdout else {
            panic!("it was to be the program's");
        };
        assert_eq!(rest(stdout).await, b"read\n");
        while way.connections().await.unwrap()[0].sessions > 0 {
            tokio::task::yield_now().await;
        }
        drop(session);
        // Nor read any.
        let mut session = way.session(&exec("echo unread"), PIPES).await.unwrap();
        assert_eq!(session.end.wait().await, Ok(ExitStatus::Exited(0)));
        drop(session);
        // Nor does it have to wait for one that is given up.
        drop(way.session(&exec("sleep 1000"), PIPES).await.unwrap());
        engine.flush_trail().await;
        let found = records(directory.path());
        let (begin, end) = pair(&found, "command", "cat; exit 3");
        for record in [&begin, &end] {
            assert_eq!(record["host"], sshd.alias());
            assert_eq!(record["port"], sshd.port());
            assert_eq!(
                (&record["kind"], &record["engine"]),
                (&"session".into(), &"program".into())
            );
            assert_eq!(record["asker"]["pid"], std::process::id());
            let own = std::env::current_exe().unwrap();
            assert_eq!(record["asker"]["program"], own.to_str().unwrap());
        }
        assert_eq!(
            (&end["execution"], &end["status"]),
            (&"finished".into(), &3.into())
        );
        assert_eq!(
            (&end["sent_bytes"], &end["received_bytes"]),
            (&14.into(), &14.into())
        );
        let (_, end) = pair(&found, "command", "echo read");
        assert_eq!(
            (&end["execution"], &end["status"]),
            (&"finished".into(), &0.into())
        );
        let (_, end) = pair(&found, "command", "echo unread");
        assert_eq!((&end["status"], &end["received_bytes"]), (&0.into(), &7.into()));
        let (_, end) = pair(&found, "command", "sleep 1000");
        assert_eq!(end["error"], "its program gave it up");
        let text = format!("{found:?}");
        assert!(!text.contains("of-mine") && !text.contains("LC_SECRET"), "{text}");
    }
}

#[tokio::test]
async fn tunnels_forwardings_files_and_copies_are_recorded() {
    let sshd = Sshd::start_default().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(directory.path(), AuditMode::On);
    let way = way(&sshd, directory.path(), &engine).await;
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = target.local_addr().unwrap().port();

    let mut tunnel = way.tcp("127.0.0.1", port, ("127.0.0.1", 0)).await.unwrap();
    tunnel.writer.send(Bytes::from_static(b"five.")).await.unwrap();
    drop(target.accept().await.unwrap());
    rest(&mut tunnel.reader).await;
    drop(tunnel);

    let listen = Listen::Tcp { host: None, port: 0 };
    let mut listener = way.listen(&listen).await.unwrap();
    let client = TcpStream::connect(("127.0.0.1", listener.port().unwrap()))
        .await
        .unwrap();
    let accepted = listener.next().await.unwrap().accept().await.unwrap();
    drop((accepted, client));
    listener.close().await;

    let socket = directory.path().join("forwarded");
    let forward = Forward {
        listen: Listen::Socket(socket.clone()),
        target: ForwardTarget::Tcp {
            host: "127.0.0.1".into(),
            port,
        },
    };
    let forwarding = way.forward(ForwardKind::Local, &forward).await.unwrap();
    let client = UnixStream::connect(&socket).await.unwrap();
    drop(target.accept().await.unwrap());
    drop(client);
    forwarding.abort().await;

    let file = directory.path().join("file");
    let sftp = way.sftp().await.unwrap();
    sftp.write(file.to_str().unwrap(), &b"content-of-mine"[..])
        .await
        .unwrap();
    drop(sftp);
    let there = Location::Host(
        way.host().unwrap().clone(),
        file.to_str().unwrap().to_owned().into(),
    );
    let here = Location::Local(directory.path().join("copy"));
    let progress = Arc::new(Progress::default());
    way.copy(&[there], &here, &CopyOptions::default(), &progress)
        .await
        .unwrap();

    // What is still open ends with the program.
    let _open = way.session(&exec("sleep 1000"), PIPES).await.unwrap();
    engine.close_trail().await;
    let found = records(directory.path());
    let (_, end) = pair(&found, "kind", "copy");
    assert_eq!(
        (&end["received_bytes"], &end["failed_files"]),
        (&15.into(), &0.into())
    );
    let (_, end) = pair(&found, "kind", "listener");
    assert_eq!(end["execution"], "finished");
    let (_, end) = pair(&found, "kind", "incoming");
    assert!(end["from"].is_string(), "{end}");
    pair(&found, "kind", "forwarding");
    let (_, end) = pair(&found, "program", "subsystem");
    assert_eq!(
        (&end["command"], &end["execution"]),
        (&"sftp".into(), &"finished".into())
    );
    let (_, end) = pair(&found, "command", "sleep 1000");
    assert_eq!(end["error"], "its program ended");
    let tunnels: Vec<_> = found
        .iter()
        .filter(|record| record["kind"] == "tunnel" && record["event"] == "end")
        .collect();
    assert_eq!(tunnels.len(), 2, "{found:#?}");
    assert_eq!(
        (&tunnels[0]["execution"], &tunnels[0]["sent_bytes"]),
        (&"finished".into(), &5.into())
    );
    assert!(!format!("{found:?}").contains("content-of-mine"));
    assert!(
        found.iter().all(|record| record["engine"] == "program"),
        "{found:#?}"
    );
}

#[tokio::test]
async fn nothing_runs_that_cannot_be_recorded_where_the_trail_is_strict() {
    let sshd = Sshd::start_default().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(directory.path(), AuditMode::Strict);
    let way = way(&sshd, directory.path(), &engine).await;
    // Neither the lock nor the file can be made.
    let trail = place(directory.path()).audit();
    fs::create_dir_all(trail.parent().unwrap()).unwrap();
    fs::write(&trail, "in the way").unwrap();
    let ran = directory.path().join("ran");
    let touch = exec(&format!("touch {}", ran.display()));
    let refused = way.run(&touch, None, None).await.outcome.unwrap_err();
    assert!(refused.message.contains("nothing was run"), "{refused:?}");
    for refused in [
        way.sftp().await.err(),
        way.tcp("127.0.0.1", 1, ("127.0.0.1", 0)).await.err(),
        way.socket("/nowhere").await.err(),
        way.listen(&Listen::Tcp { host: None, port: 0 }).await.err(),
    ] {
        let refused = refused.unwrap();
        assert!(refused.message.contains("nothing was run"), "{refused:?}");
    }
    assert!(!ran.exists());
    assert_eq!(sshd.authentications(), 0);
    // Where it can be written again, it runs again.
    fs::remove_file(&trail).unwrap();
    let touched = way.run(&touch, None, None).await.outcome;
    assert_eq!(touched, Ok(ExitStatus::Exited(0)));
    assert!(ran.exists());
}
