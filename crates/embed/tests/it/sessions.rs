//! Sessions: their streams, their ends, and what goes past the program.

use std::cell::Cell;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use trunkline::sftp::{FileAttributes, OpenFlags};
use trunkline::{ExitStatus, Pty, TerminalSize};
use trunkline_embed::{Execution, Input, Output, Program, Route, Session, SessionOptions};
use trunkline_testkit::Sshd;

use crate::{each_way, exec, rest};

const ALL: [Route; 3] = [Route::Pipe, Route::Pipe, Route::Pipe];

#[tokio::test]
async fn a_command_has_its_input_and_its_status() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let input = Bytes::from_static(b"in\n");
        let ran = way
            .run(&exec("cat; echo err >&2; exit 3"), Some(input), None)
            .await;
        assert_eq!(ran.outcome, Ok(ExitStatus::Exited(3)));
        assert_eq!(
            (ran.stdout.concat(), ran.stderr.concat()),
            (b"in\n".to_vec(), b"err\n".to_vec())
        );
        let nothing = way.run(&exec("cat"), None, None).await;
        assert_eq!(
            (nothing.outcome, nothing.stdout.concat()),
            (Ok(ExitStatus::Exited(0)), vec![])
        );
    })
    .await;
}

#[tokio::test]
async fn how_a_command_ended_is_known_while_another_process_has_its_output() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let directory = tempfile::tempdir().unwrap();
        let gate = directory.path().join("gate");
        let line = format!(
            "{{ until [ -e {} ]; do sleep 0.05; done; echo late; }} & exit 6",
            gate.display()
        );
        let session = way.session(&exec(&line), ALL).await.unwrap();
        let (Output::Program(mut stdout), mut end) = (session.stdout, session.end) else {
            panic!("all is the program's");
        };
        // Its session ends only when the gate is open.
        assert_eq!(end.wait_for_exit().await, Ok(ExitStatus::Exited(6)));
        std::fs::write(&gate, "").unwrap();
        assert_eq!(rest(&mut stdout).await, b"late\n");
        assert_eq!(end.wait().await, Ok(ExitStatus::Exited(6)));
        assert_eq!(end.wait_for_exit().await, Ok(ExitStatus::Exited(6)));
    })
    .await;
}

#[tokio::test]
async fn streams_are_whole_and_end_by_the_servers_word() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let session = way.session(&exec("cat"), ALL).await.unwrap();
        let Session {
            stdin: Input::Program(mut stdin),
            stdout: Output::Program(mut stdout),
            mut end,
            ..
        } = session
        else {
            panic!("all is the program's");
        };
        let sent: Bytes = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
        let feed = async {
            stdin.send(sent.clone()).await.unwrap();
            stdin.finish().await;
        };
        let ((), output) = tokio::join!(feed, rest(&mut stdout));
        assert!(output == sent);
        let (complete, status) = tokio::join!(stdout.is_complete(), end.wait());
        assert!(complete);
        assert_eq!(status, Ok(ExitStatus::Exited(0)));
        // What became of it can be asked again.
        assert_eq!(end.wait().await, Ok(ExitStatus::Exited(0)));
    })
    .await;
}

#[tokio::test]
async fn signals_go_both_ways() {
    let sshd = Sshd::start_default().unwrap();
    let sent = Cell::new(0);
    each_way(&sshd, &[], async |way| {
        let mut session = way.session(&exec("kill -TERM $$"), ALL).await.unwrap();
        let ended = session.end.wait().await.unwrap();
        assert!(
            matches!(&ended, ExitStatus::Signaled { signal, .. } if signal == "TERM"),
            "{ended:?}"
        );
        let mut session = way.session(&exec("exec sleep 600"), ALL).await.unwrap();
        session.end.wait_for_start().await.unwrap();
        session.control.signal("USR1");
        // Not every OpenSSH delivers it to root's command (session.c, session_signal_req), but each takes note of it.
        sent.set(sent.get() + 1);
        let noted = sshd.log().wait_for("session_signal_req", sent.get());
        noted.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_terminal_has_its_size_and_the_new_one() {
    let sshd = Sshd::start_default().unwrap();
    let size = |columns, rows| TerminalSize {
        columns,
        rows,
        width: 0,
        height: 0,
    };
    each_way(&sshd, &[], async |way| {
        let options = SessionOptions {
            pty: Some(Pty {
                term: "vt100".into(),
                size: size(91, 31),
                modes: Vec::new(),
            }),
            ..exec("trap 'stty size; exit' WINCH; echo $TERM; stty size; while :; do sleep 0.05; done")
        };
        let session = way.session(&options, ALL).await.unwrap();
        let (Output::Program(mut stdout), control) = (session.stdout, session.control) else {
            panic!("all is the program's");
        };
        let mut pieces: Vec<Bytes> = Vec::new();
        while !pieces.concat().ends_with(b"vt100\r\n31 91\r\n") {
            assert!(stdout.chunks(&mut pieces).await > 0);
        }
        control.resize(size(120, 40));
        assert_eq!(rest(&mut stdout).await, b"40 120\r\n");
    })
    .await;
}

#[tokio::test]
async fn the_programs_own_variables_prevail_over_ssh_configs() {
    let sshd = Sshd::builder().config("AcceptEnv LC_*").start().unwrap();
    let args = ["-o", "SendEnv=LC_TOLD", "-o", "SetEnv=LC_SET=by_config"];
    each_way(&sshd, &args, async |way| {
        let line = "echo $LC_TOLD, $LC_SET";
        let told = way.run(&exec(line), None, None).await;
        assert_eq!(told.stdout.concat(), b"by the world, by_config\n");
        let options = SessionOptions {
            env: vec![
                ("LC_TOLD".into(), b"by me".to_vec()),
                ("LC_SET".into(), b"by me".to_vec()),
            ],
            ..exec(line)
        };
        let told = way.run(&options, None, None).await;
        assert_eq!(told.stdout.concat(), b"by me, by me\n");
    })
    .await;
}

#[tokio::test]
async fn remote_command_stands_for_the_shell_and_for_nothing_else() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &["-o", "RemoteCommand=echo configured"], async |way| {
        let shell = way.run(&SessionOptions::new(Program::Shell), None, None).await;
        assert_eq!(shell.stdout.concat(), b"configured\n");
        let failure = way.run(&exec("true"), None, None).await.outcome.unwrap_err();
        assert_eq!(
            failure.message,
            "Cannot execute command-line and remote command; use -o RemoteCommand=none"
        );
        assert_eq!(failure.execution, Execution::DidNotStart);
    })
    .await;
}

#[tokio::test]
async fn a_forwarding_of_ssh_config_is_not_made_for_a_session() {
    let sshd = Sshd::start_default().unwrap();
    let socket = sshd.dir().join("forwarded");
    let forward = format!("LocalForward={} /nowhere", socket.display());
    each_way(&sshd, &["-o", &forward], async |way| {
        let ran = way.run(&exec("true"), None, None).await;
        assert_eq!(ran.outcome, Ok(ExitStatus::Exited(0)));
        assert!(!socket.exists());
    })
    .await;
}

#[tokio::test]
async fn time_that_is_up_says_how_far_the_command_came_and_what_it_had_written() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        way.connect().await.unwrap();
        // A busy machine may take longer than the first limit to run the command so far.
        for seconds in [1, 10, 60] {
            let limit = Some(Duration::from_secs(seconds));
            let ran = way.run(&exec("echo begun; exec sleep 600"), None, limit).await;
            let failure = ran.outcome.unwrap_err();
            assert_eq!(failure.kind, trunkline_embed::ErrorKind::Timeout);
            if ran.stdout.concat() == b"begun\n" {
                assert_ne!(failure.execution, Execution::DidNotStart);
                return;
            }
        }
        panic!("the command wrote nothing in a minute");
    })
    .await;
}

#[tokio::test]
async fn a_session_that_is_closed_may_have_run() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let mut session = way.session(&exec("sleep 600"), ALL).await.unwrap();
        session.end.wait_for_start().await.unwrap();
        session.control.close();
        match session.end.wait().await {
            // The server told how its SIGHUP ended it.
            Ok(ExitStatus::Signaled { signal, .. }) => assert_eq!(signal, "HUP"),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => assert_eq!(failure.execution, Execution::MayHaveStarted),
        }
    })
    .await;
}

#[tokio::test]
async fn output_can_pass_the_program_by() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let routes = [Route::Ignore, Route::Fd(OwnedFd::from(writer)), Route::Ignore];
        let session = way
            .session(&exec("cat; echo past; echo lost >&2; exit 4"), routes)
            .await
            .unwrap();
        let (Input::Routed(input), Output::Routed(output), Output::Routed(error_output)) =
            (session.stdin, session.stdout, session.stderr)
        else {
            panic!("nothing is the program's");
        };
        let (control, mut end) = (session.control, session.end);
        let whole = async { tokio::join!(output.carry(&control), error_output.carry(&control), end.wait()) };
        let (carried, lost, status) = tokio::select! {
            whole = whole => whole,
            never = input.carry() => match never {},
        };
        assert_eq!((carried, lost), (Ok(true), Ok(true)));
        assert_eq!(status, Ok(ExitStatus::Exited(4)));
        let mut written = String::new();
        reader.read_to_string(&mut written).unwrap();
        assert_eq!(written, "past\n");
    })
    .await;
}

#[tokio::test]
async fn files_are_read_and_written() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let path = sshd.dir().join("file").to_str().unwrap().to_owned();
        let sftp = way.sftp().await.unwrap();
        sftp.write(path.clone(), "content").await.unwrap();
        assert_eq!(&sftp.read(path.clone()).await.unwrap()[..], b"content");
        sftp.remove(path.clone()).await.unwrap();
        let gone = sftp.open(path, OpenFlags::READ, FileAttributes::default()).await;
        let failure = trunkline_embed::Failure::from(gone.err().unwrap());
        assert!(matches!(
            failure.cause,
            trunkline_embed::Cause::File { status: 2, .. }
        ));
        // ENOENT
        assert_eq!(failure.errno, Some(2));
    })
    .await;
}
