//! `trunkline stream`: output of many hosts into FIFOs, sockets and files, beyond lost connections and leaving readers.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use trunkline_testkit::{Relay, Sshd};

use crate::home::{
    Home, assert_says, assert_status, boxes, end_of, fail, finish, server, succeed, text, wait_until,
};
use crate::tty::Terminal;

/// `trunkline stream -F CONFIG`; add options, hosts, `--` and a command.
fn stream(home: &Home, config: &Path) -> Command {
    let mut command = home.trunkline();
    command.args(["stream", "-F"]).arg(config);
    command
}

/// A running `stream`, ended with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    fn output_lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let stderr = self.0.stderr.take().unwrap();
        BufReader::new(stderr).lines().map(Result::unwrap)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn many() -> Sshd {
    crate::home::sshd().any_loopback_address().start().unwrap()
}

fn lines(reader: impl std::io::Read, count: usize) -> Vec<String> {
    let lines = BufReader::new(reader).lines().map(Result::unwrap);
    lines.take(count).collect()
}

#[test]
fn each_host_has_a_file_of_its_own() {
    let (server, home) = (many(), Home::new());
    let config = home.config(boxes(&server, 2));
    let to = format!("file:{}/{{host}}.log", home.path("").display());
    for _ in 0..2 {
        succeed(stream(&home, &config).args([
            "--to",
            &to,
            "-H",
            "box[1-2]",
            "--",
            "echo $SSH_CONNECTION | cut -d' ' -f3",
        ]));
    }
    for n in 1..=2 {
        let path = home.path(&format!("box{n}.log"));
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("127.0.1.{n}\n").repeat(2)
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn standard_output_names_hosts_where_there_are_several() {
    let (server, home) = (many(), Home::new());
    let config = home.config(boxes(&server, 2));
    let output = succeed(stream(&home, &config).args(["--to", "-", "box1", "--", "echo a; echo b >&2"]));
    assert_eq!(text(&output.stdout), "a\n");
    assert_eq!(text(&output.stderr), "box1! b\n");
    // The target may come last.
    let output = finish(stream(&home, &config).args(["box1", "box2", "--", "echo", "a", "--to", "-"]));
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["box1: a", "box2: a"]);
    let output = fail(2, stream(&home, &config).args(["box1", "--", "echo", "a"]));
    assert_says(&output, "--to fifo:PATH");
}

#[test]
fn a_fifo_is_made_and_its_readers_follow_each_other_without_a_gap() {
    let (server, home) = (server(), Home::new());
    let fifo = home.path("f");
    let mut running = Running::start(
        stream(&home, &server.ssh_config())
            .arg("--to")
            .arg(format!("fifo:{}", fifo.display()))
            .args([server.alias(), "--", "seq 1 300000"]),
    );
    wait_until("the FIFO is there", || {
        fs::metadata(&fifo).is_ok_and(|found| found.file_type().is_fifo())
    });
    assert_eq!(fs::metadata(&fifo).unwrap().permissions().mode() & 0o777, 0o600);
    // Each reader takes some whole lines, and no byte more, and leaves.
    let mut seen = Vec::new();
    for _ in 0..5 {
        let mut reader = File::open(&fifo).unwrap();
        let mut line = Vec::new();
        for _ in 0..1000 {
            line.clear();
            let mut byte = [0];
            while byte[0] != b'\n' {
                reader.read_exact(&mut byte).unwrap();
                line.push(byte[0]);
            }
            seen.extend_from_slice(&line);
        }
    }
    File::open(&fifo).unwrap().read_to_end(&mut seen).unwrap();
    let expected: String = (1..=300_000).map(|n| format!("{n}\n")).collect();
    assert!(seen == expected.as_bytes(), "{} bytes", seen.len());
    assert_eq!(end_of(&mut running.0, "stream").code(), Some(0));
}

#[test]
fn a_socket_replaces_a_stale_one_and_never_one_in_use() {
    let (server, home) = (server(), Home::new());
    let socket = home.path("s");
    let to = format!("unix:{}", socket.display());
    let mut command = stream(&home, &server.ssh_config());
    command.args(["--to", &to, server.alias(), "--", "echo here; sleep 1000"]);
    let listener = UnixListener::bind(&socket).unwrap();
    let output = fail(255, &mut command);
    assert!(text(&output.stderr).contains("in use"), "{output:?}");
    drop(listener);
    // A program that another test starts in this moment holds a copy of the listener until it runs.
    wait_until("nobody listens", || UnixStream::connect(&socket).is_err());
    let running = Running::start(&mut command);
    wait_until("somebody listens", || UnixStream::connect(&socket).is_ok());
    let reader = UnixStream::connect(&socket).unwrap();
    assert_eq!(lines(reader, 1), ["here"]);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&running.0),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    wait_until("the socket is gone", || !socket.exists());
}

#[test]
fn a_lost_connection_is_made_again_and_the_gap_is_marked() {
    let (server, home) = (server(), Home::new());
    let relay = Relay::start(server.addr()).unwrap();
    let config = server.ssh_config_via("away", relay.addr()).unwrap();
    let log = home.path("log");
    let mut running = Running::start(
        stream(&home, &config)
            .args(["--json", "--mark-gaps=-- {host}", "--retry-min", "0.01", "--to"])
            .arg(format!("file:{}", log.display()))
            .args(["away", "--", "echo start $$; sleep 1000"]),
    );
    let mut said = running.output_lines();
    let mut next = |event: &str| {
        let line = said.next().unwrap();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["event"], &value["host"]),
            (&event.into(), &"away".into()),
            "{line}"
        );
        value
    };
    let read = || fs::read_to_string(&log).unwrap_or_default();
    assert!(next("begun")["gap"].is_null());
    wait_until("it has started", || read().lines().count() == 1);
    relay.reset();
    assert!(next("lost")["retry"].as_f64().unwrap() <= 0.01);
    assert!(next("begun")["gap"].as_f64().unwrap() > 0.0);
    wait_until("it has started again", || read().matches("start").count() == 2);
    let text = read();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("start"), "{text}");
    assert_eq!(lines[1..3], ["", "-- away"], "{text}");
    assert!(lines[3].starts_with("start"), "{text}");
}

#[test]
fn a_server_that_refuses_the_key_is_not_asked_again() {
    let (server, home) = (server(), Home::new());
    let output = fail(
        255,
        stream(&home, &server.ssh_config()).args([
            "-o",
            "PubkeyAuthentication=no",
            "--to",
            "-",
            server.alias(),
            "--",
            "true",
        ]),
    );
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    assert!(text(&output.stderr).contains("permission denied"), "{output:?}");
}

#[test]
fn where_no_command_could_begin_that_is_an_error_and_no_command_s_failure() {
    let (server, home) = (server(), Home::new());
    let missing = format!("file:{}", home.path("missing/{host}").display());
    let config = server.ssh_config();
    for (to, host) in [("-", "no-such-host.invalid"), (missing.as_str(), server.alias())] {
        let output =
            finish(stream(&home, &config).args(["--restart", "never", "--to", to, host, "--", "true"]));
        assert_status(&output, 255);
    }
    let (one, none) = (server.alias(), "no-such-host.invalid");
    let output =
        finish(stream(&home, &config).args(["--restart", "never", "--to", "-", one, none, "--", "true"]));
    assert_status(&output, 1);
}

#[test]
fn a_command_that_ends_ends_its_stream_unless_it_is_to_go_on() {
    let (server, home) = (server(), Home::new());
    let output =
        finish(stream(&home, &server.ssh_config()).args(["--to", "-", server.alias(), "--", "exit 3"]));
    assert_status(&output, 1);
    assert!(text(&output.stderr).contains("status 3"), "{output:?}");
    let mut again = Running::start(
        stream(&home, &server.ssh_config())
            .args([
                "--restart",
                "always",
                "--retry-min",
                "0.01",
                "--to",
                "-",
                "--mark-gaps=gap",
            ])
            .args([server.alias(), "--", "echo again"])
            .stdout(Stdio::piped()),
    );
    let stdout = again.0.stdout.take().unwrap();
    assert_eq!(lines(stdout, 4), ["again", "", "gap", "again"]);
}

#[test]
fn a_full_disk_does_not_begin_the_command_again() {
    let (server, home) = (server(), Home::new());
    let runs = home.path("runs");
    let line = format!("echo run >> {}; seq 20000", runs.display());
    let output = finish(
        stream(&home, &server.ssh_config())
            .args(["--retry-min", "0.01", "--to", "file:/dev/full", server.alias()])
            .args(["--", &line]),
    );
    assert!(!output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("No space left on device") && !said.contains("next attempt"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&runs).unwrap(), "run\n");
}

#[test]
fn ctrl_c_leaves_its_line_to_nobody() {
    let (server, home) = (server(), Home::new());
    let mut command = stream(&home, &server.ssh_config());
    let mut terminal =
        Terminal::start(command.args([server.alias(), "--to", "-", "--", "echo begun; sleep 1000"]));
    terminal.answer("begun", "\x03");
    assert_eq!(terminal.end().signal(), Some(2));
    terminal.expect("^C\r\n");
}

#[test]
fn hosts_do_not_share_a_fifo() {
    let (server, home) = (many(), Home::new());
    let config = home.config(boxes(&server, 2));
    let output = finish(stream(&home, &config).args(["--to", "fifo:one", "box1", "box2", "--", "true"]));
    assert!(text(&output.stderr).contains("{host}"), "{output:?}");
    assert_status(&output, 255);
    assert!(!home.path("one").exists());
}
