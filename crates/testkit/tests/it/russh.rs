//! The stock client against the russh server.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use trunkline_testkit::hostile::{AuthStep, Question, RusshServer};

fn ssh(server: &RusshServer, options: &[&str], command: &str) -> Output {
    Command::new("timeout")
        .args(["10", "ssh", "-F"])
        .arg(server.ssh_config())
        .args(options)
        .args(["russh", command])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn commands_do_as_their_table_says() {
    let server = RusshServer::start_default().unwrap();
    for (command, status, stdout_length, stderr_length) in [
        ("echo hello", 0, 6, 0),
        ("exit 7", 7, 0, 0),
        ("flood 5000000", 0, 5_000_000, 0),
        ("stderr 300000", 0, 0, 300_000),
        ("nonsense", 127, 0, 39),
        // OpenSSH's own words for a death by signal and a session without status are none.
        ("signal TERM", 255, 0, 0),
        ("close", 255, 0, 0),
    ] {
        let output = ssh(&server, &["-o", "LogLevel=QUIET"], command);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{command}: {}",
            stderr(&output)
        );
        assert_eq!(output.stdout.len(), stdout_length, "{command}");
        assert_eq!(
            output.stderr.len(),
            stderr_length,
            "{command}: {}",
            stderr(&output)
        );
    }
    assert_eq!(server.connections(), 7);
    assert_eq!(server.authentications(), 7);
    assert_eq!(server.sessions(), 7);
    assert_ne!(ssh(&server, &[], "refuse").status.code(), Some(0));
    assert_ne!(ssh(&server, &[], "hangup").status.code(), Some(0));
}

#[test]
fn input_comes_back_across_many_key_exchanges() {
    let server = RusshServer::builder().rekey_after(100_000).start().unwrap();
    let mut client = Command::new("ssh")
        .arg("-F")
        .arg(server.ssh_config())
        .args(["russh", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let mut stdin = client.stdin.take().unwrap();
    let writer = std::thread::spawn({
        let sent = sent.clone();
        move || stdin.write_all(&sent).unwrap()
    });
    let output = client.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        output.stdout == sent,
        "{} of {} bytes came back",
        output.stdout.len(),
        sent.len()
    );
}

#[test]
fn a_login_of_several_steps_and_prompts_needs_every_answer() {
    let question = |prompt: &str, answer: &str| Question {
        prompt: prompt.to_owned(),
        echo: false,
        answer: answer.to_owned(),
    };
    let rounds = vec![
        vec![
            question("Name of the horse? ", "answer"),
            question("And the dog? ", "answer"),
        ],
        vec![question("Token? ", "answer")],
    ];
    let server = RusshServer::builder()
        .auth_banner("Authorised use only.\n")
        .auth_steps([AuthStep::PublicKey, AuthStep::KeyboardInteractive(rounds)])
        .start()
        .unwrap();
    for (answer, status) in [("answer", 0), ("guess", 255)] {
        let askpass = server.ssh_config().with_file_name(format!("askpass-{answer}"));
        std::fs::write(&askpass, format!("#!/bin/sh\necho {answer}\n")).unwrap();
        std::fs::set_permissions(&askpass, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let output = Command::new("ssh")
            .env("SSH_ASKPASS", &askpass)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .arg("-F")
            .arg(server.ssh_config())
            .args(["russh", "echo in"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains("Authorised use only."));
    }
    assert_eq!(server.authentications(), 1);
}

#[test]
fn sessions_beyond_the_limit_are_refused() {
    let server = RusshServer::builder().max_sessions(0).start().unwrap();
    let output = ssh(&server, &[], "echo hello");
    assert_eq!(output.status.code(), Some(255));
    assert!(stderr(&output).contains("prohibited"), "{}", stderr(&output));
    assert_eq!(server.sessions(), 0);
}

#[test]
fn tunnels_lead_where_they_are_asked_to() {
    let server = RusshServer::start_default().unwrap();
    let inner = RusshServer::start_default().unwrap();
    // Through the first server to the second one's port, whose banner comes back.
    let output = ssh(&server, &["-W", &inner.addr().to_string()], "").stdout;
    assert!(
        output.starts_with(b"SSH-2.0-russh"),
        "{}",
        String::from_utf8_lossy(&output)
    );
}
