//! Standard streams: binary-clean, kept apart, and left as the shell had them.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl};
use trunkline_testkit::noise;

use crate::home::{
    Home, assert_status, fail, fifo, finish, finish_with, server, succeed, text, wait_until, with_status,
};

#[test]
fn output_and_errors_stay_apart() {
    let (server, home) = (server(), Home::new());
    let output = with_status(
        3,
        home.run_on(&server, "printf 'a\\0b\\377'; printf 'e\\n' >&2; exit 3"),
    );
    assert_eq!(output.stdout, b"a\0b\xff");
    assert_eq!(output.stderr, b"e\n");
}

#[test]
fn fifty_megabytes_pass_both_ways_unchanged_from_a_pipe_and_a_file() {
    let (server, home) = (server(), Home::new());
    let sent = noise(50 << 20, 1);
    let output = with_status(
        0,
        finish_with(home.ssh(&server).args([server.alias(), "cat"]), &sent),
    );
    assert!(
        output.stdout == sent,
        "{} of {} bytes, or others",
        output.stdout.len(),
        sent.len()
    );

    let (from, to) = (home.path("from"), home.path("to"));
    fs::write(&from, &sent).unwrap();
    let output = home
        .ssh(&server)
        .args([server.alias(), "cat"])
        .stdin(File::open(&from).unwrap())
        .stdout(File::create(&to).unwrap())
        .output()
        .unwrap();
    assert_status(&output, 0);
    assert!(fs::read(&to).unwrap() == sent);
}

#[test]
fn a_command_without_input_sees_its_end_at_once() {
    let (server, home) = (server(), Home::new());
    for way in ["</dev/null", "<&-", "-n", "</dev/null >/dev/null 2>&1"] {
        let (options, redirection) = if way == "-n" { ("-n", "") } else { ("", way) };
        let script = format!("exec \"$T\" ssh -F \"$F\" {options} testbed 'wc -c; exit 5' {redirection}");
        // A pipe that is never closed: whoever reads it in spite of the redirection hangs.
        let (_open, pipe) = held_pipe();
        let output = fail(5, home.shell(&server, &script).stdin(pipe));
        assert!(
            way.contains("/dev/null 2>&1") || text(&output.stdout).trim() == "0",
            "{way}: {output:?}"
        );
    }
}

/// A pipe to read from whose other end stays open.
fn held_pipe() -> (std::io::PipeWriter, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    (writer, reader.into())
}

#[test]
fn a_closed_output_is_no_reason_to_fail() {
    let (server, home) = (server(), Home::new());
    for redirection in [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        let script = format!("\"$T\" ssh -F \"$F\" testbed 'echo out; echo err >&2; exit 4' {redirection}");
        fail(4, &mut home.shell(&server, &script));
    }
}

#[test]
fn the_flags_of_descriptors_stay_as_they_were() {
    let (server, home) = (server(), Home::new());
    let run = |stdout: OwnedFd, stdin: OwnedFd| {
        let before = [fcntl_getfl(&stdout).unwrap(), fcntl_getfl(&stdin).unwrap()];
        let mut command = home.ssh(&server);
        command.args([server.alias(), "cat; printf done; head -c 300000 /dev/zero"]);
        command
            .stdin(stdin.try_clone().unwrap())
            .stdout(stdout.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        drop(command);
        assert_eq!(
            [fcntl_getfl(&stdout).unwrap(), fcntl_getfl(&stdin).unwrap()],
            before
        );
        drop(stdin);
        let after = {
            let status = crate::home::end_of(&mut child, "the command");
            assert!(status.success());
            fcntl_getfl(&stdout).unwrap()
        };
        assert_eq!(after, before[0]);
        assert!(!after.contains(OFlags::NONBLOCK));
    };
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    // A file.
    let path = home.path("file");
    run(File::create(&path).unwrap().into(), null());
    assert!(fs::read(&path).unwrap().starts_with(b"done"));
    // A pipe.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    run(writer.into(), null());
    assert!(reading.join().unwrap().starts_with(b"done"));
    // A socket, each way.
    let (mut reader, writer) = UnixStream::pair().unwrap();
    let (input, _end) = UnixStream::pair().unwrap();
    _end.shutdown(std::net::Shutdown::Write).unwrap();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    run(writer.into(), input.into());
    assert!(reading.join().unwrap().starts_with(b"done"));
    // A FIFO with a name.
    let path = home.path("fifo");
    fifo(&path).unwrap();
    let mut both = File::options().read(true).write(true).open(&path).unwrap();
    let writer = File::options().write(true).open(&path).unwrap();
    let reading = std::thread::spawn(move || {
        let mut bytes = vec![0; 300_004];
        both.read_exact(&mut bytes).unwrap();
        bytes
    });
    run(writer.into(), null());
    assert!(reading.join().unwrap().starts_with(b"done"));
}

#[test]
fn a_file_is_appended_to_where_the_shell_said_so() {
    let (server, home) = (server(), Home::new());
    let log = home.path("log");
    let script =
        "for i in 1 2 3; do \"$T\" ssh -F \"$F\" testbed \"echo $i; echo e$i >&2\"; done >>\"$LOG\" 2>&1";
    succeed(home.shell(&server, script).env("LOG", &log));
    let mut lines: Vec<_> = fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(lines, ["1", "2", "3", "e1", "e2", "e3"]);
}

#[test]
fn a_reader_that_leaves_ends_an_endless_command_at_once() {
    let (server, home) = (server(), Home::new());
    let output = finish(&mut home.shell(&server, "\"$T\" ssh -F \"$F\" testbed yes | head -n 1"));
    assert_eq!(text(&output.stdout), "y\n");
    wait_until("the session is gone", || home.sessions() == 0);
    assert!(
        !server
            .session_pids()
            .into_iter()
            .any(|pid| is_running(pid, "yes")),
        "yes goes on"
    );
}

/// Returns whether a process runs this program.
pub(crate) fn is_running(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
}

#[test]
fn a_reader_of_errors_that_leaves_does_not_hold_up_the_command() {
    let (server, home) = (server(), Home::new());
    // More than the channel's window, so that it would wait forever.
    let script =
        "\"$T\" ssh -F \"$F\" testbed 'head -c 20000000 /dev/zero >&2; exit 3' 2> >(head -c 1 >/dev/null)";
    fail(3, &mut home.shell(&server, script));
}

#[test]
fn input_that_nobody_reads_does_not_hold_up_the_end() {
    let (server, home) = (server(), Home::new());
    let output = finish_with(
        home.ssh(&server).args([server.alias(), "exit 6"]),
        &noise(8 << 20, 1),
    );
    assert_status(&output, 6);
    // Nor does an input that stays open.
    let (_open, pipe) = held_pipe();
    fail(7, home.ssh(&server).args([server.alias(), "exit 7"]).stdin(pipe));
}
