//! A server that has long said nothing is asked before anything is risked on its connection.

use std::time::Duration;

use trunkline::config::{Forward, ForwardTarget, Listen};
use trunkline::{Command, ErrorKind, Execution, Host, Settings};
use trunkline_testkit::Sshd;

use crate::site::server_and_host_with;

/// As after a long silence, always; an answer has as long as this.
fn asking(probe_limit: Duration) -> Settings {
    Settings {
        ask_after: Duration::from_nanos(1),
        probe_limit,
        ..Settings::default()
    }
}

/// Waits until a session is open ahead, in which a command would leave at once.
async fn wait_for_spare(host: &Host) {
    host.run(&Command::exec("true")).await.unwrap();
    while host.lanes().iter().all(|lane| lane.report.spares == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Longer than the silence that is borne.
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// A server that appends a line for each command that it runs.
fn counting(sshd: &Sshd) -> (Command, impl Fn() -> usize) {
    let file = sshd.dir().join("ran");
    let command = Command::exec(format!("echo ran >> {}; echo done", file.display()));
    let ran = move || std::fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    (command, ran)
}

#[tokio::test]
async fn a_command_is_not_risked_on_a_connection_that_has_been_forgotten() {
    let (sshd, _engine, host) = server_and_host_with(asking(Duration::from_secs(1))).await;
    wait_for_spare(&host).await;
    let (command, ran) = counting(&sshd);
    // It answers nothing, and nobody says so: as behind a firewall that has forgotten the connection.
    sshd.freeze_connections();
    let output = host.run(&command).await.unwrap();
    assert_eq!(&output.stdout[..], b"done\n");
    assert!(sshd.authentications() >= 2);
    sshd.thaw_connections();
    // Behind this answer, whatever the first connection was sent has been done.
    host.run(&Command::exec("true")).await.unwrap();
    assert_eq!(ran(), 1);
}

#[tokio::test]
async fn a_command_for_a_server_that_is_gone_when_it_is_asked_runs_on_the_next_connection() {
    let (sshd, _engine, host) = server_and_host_with(asking(Duration::from_secs(120))).await;
    wait_for_spare(&host).await;
    let (command, ran) = counting(&sshd);
    sshd.freeze_connections();
    let session = host.start(&command);
    let gone = async {
        // The question is on its way.
        while host.lanes().iter().all(|lane| lane.report.sessions == 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sshd.kill_connections();
    };
    let (session, ()) = tokio::join!(session, gone);
    let output = session.unwrap().output(None).await.unwrap();
    assert_eq!((&output.stdout[..], ran()), (&b"done\n"[..], 1));
    assert_eq!(sshd.authentications(), 2);
}

#[tokio::test]
async fn a_tunnel_and_a_remote_forwarding_leave_a_connection_that_is_gone() {
    let (sshd, _engine, host) = server_and_host_with(asking(Duration::from_secs(1))).await;
    wait_for_spare(&host).await;
    sshd.freeze_connections();
    let (address, port) = (sshd.addr().ip().to_string(), sshd.port());
    host.direct_tcpip(&address, port, ("127.0.0.1", 0)).await.unwrap();
    sshd.thaw_connections();
    wait_for_spare(&host).await;
    sshd.freeze_connections();
    let listen = Listen::Tcp { host: None, port: 0 };
    let target = ForwardTarget::Tcp { host: address, port };
    host.forward_remote(&Forward { listen, target }).await.unwrap();
    sshd.thaw_connections();
}

#[tokio::test]
async fn a_server_that_answers_keeps_its_connection() {
    let (sshd, _engine, host) = server_and_host_with(asking(Duration::from_secs(120))).await;
    for _ in 0..3 {
        wait_for_spare(&host).await;
    }
    assert_eq!(sshd.authentications(), 1);
}

/// Gives up servers that somebody waits for, and no others.
fn impatient() -> Settings {
    Settings {
        ask_after: Duration::from_secs(3600),
        probe_after: Duration::from_secs(3600),
        probe_limit: Duration::from_millis(500),
        ..Settings::default()
    }
}

#[tokio::test]
async fn a_command_that_was_not_answered_ends_soon_and_what_runs_beside_it_goes_on() {
    let (sshd, _engine, host) = server_and_host_with(impatient()).await;
    let mut beside = host.start(&Command::exec("cat")).await.unwrap();
    beside.wait_for_start().await.unwrap();
    wait_for_spare(&host).await;
    sshd.freeze_connections();
    // It leaves at once: the server has just been heard.
    let error = host.run(&Command::exec("true")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.execution()),
        (ErrorKind::Timeout, Execution::MayHaveStarted),
        "{error}"
    );
    // Nothing has gone through a tunnel: it comes by another connection.
    let (address, port) = (sshd.addr().ip().to_string(), sshd.port());
    host.direct_tcpip(&address, port, ("127.0.0.1", 0)).await.unwrap();
    assert_eq!(sshd.authentications(), 2);
    sshd.thaw_connections();
    let output = beside.output(Some("kept".into())).await.unwrap();
    assert_eq!(&output.stdout[..], b"kept");
}

#[tokio::test]
async fn a_copy_learns_soon_that_its_cable_was_cut() {
    let (sshd, _engine, host) = server_and_host_with(impatient()).await;
    let sftp = host.sftp().await.unwrap();
    sftp.stat("/").await.unwrap();
    sshd.freeze_connections();
    let error = sftp.stat("/").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[tokio::test]
async fn a_command_that_is_sent_its_input_learns_soon_that_its_cable_was_cut() {
    let (sshd, _engine, host) = server_and_host_with(impatient()).await;
    let mut session = host.start(&Command::exec("cat > /dev/null")).await.unwrap();
    session.wait_for_start().await.unwrap();
    sshd.freeze_connections();
    let endless = bytes::Bytes::from(vec![0; 64 << 20]);
    let output = session.output(Some(endless)).await;
    let error = output.unwrap_err();
    assert_eq!(
        (error.kind(), error.execution()),
        (ErrorKind::Timeout, Execution::MayHaveStarted)
    );
}
