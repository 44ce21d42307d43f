//! `trunkline ssh` and its options.

mod as_ssh;
mod authentication;
mod connecting;
mod echo;
mod execution;
mod forwards;
mod recording;
mod sharing;
mod streams;
mod terminal;
mod unverified;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::home::{
    Home, assert_has, assert_says, assert_status, closed_address, end_of, fail, finish, finish_with, server,
    sshd, succeed, text, wait_until, with_status,
};

#[test]
fn every_exit_status_is_the_commands_own_and_one_login_serves_all() {
    let (server, home) = (server(), Home::new());
    for status in 0..=255 {
        assert_status(&home.run_on(&server, &format!("exit {status}")), status);
    }
    assert_eq!(server.authentications(), 1);
}

#[test]
fn a_command_ended_by_a_signal_is_255_and_says_so() {
    let (server, home) = (server(), Home::new());
    let output = with_status(255, home.run_on(&server, "kill -TERM $$"));
    assert!(text(&output.stderr).contains("SIGTERM"), "{output:?}");
}

#[test]
fn a_command_whose_output_nobody_reads_any_more_ends_without_a_word() {
    let (server, home) = (server(), Home::new());
    let output = with_status(255, home.run_on(&server, "kill -PIPE $$"));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn the_help_fits_a_narrow_terminal() {
    let help = succeed(Home::new().trunkline().args(["ssh", "--help"]));
    let help = text(&help.stdout);
    assert_has(&help, "[-B bind_interface]\n           [-b bind_address]\n");
    assert!(help.lines().all(|line| line.len() <= 80), "{help}");
}

#[test]
fn words_are_joined_by_blanks_as_ssh_does() {
    let (server, home) = (server(), Home::new());
    let output = finish(
        home.ssh(&server)
            .args([server.alias(), "echo", "a  b", "'c  d'", "$((1+1))"]),
    );
    assert_eq!(text(&output.stdout), "a b c  d 2\n");
}

#[test]
fn without_a_daemon_everything_works_and_nothing_is_left() {
    let (server, home) = (server(), Home::new());
    let mut command = home.trunkline();
    command
        .args(["--no-daemon", "ssh", "-F"])
        .arg(server.ssh_config())
        .args([server.alias(), "cat; exit 9"]);
    let output = with_status(9, finish_with(&mut command, b"through"));
    assert_eq!(output.stdout, b"through");
    assert!(home.daemon().is_none());
}

#[test]
fn quiet_is_quiet() {
    let (server, home) = (server(), Home::new());
    let quiet = fail(
        255,
        home.ssh(&server).args(["-q", server.alias(), "kill -TERM $$"]),
    );
    assert_eq!(text(&quiet.stderr), "");
}

#[test]
fn a_log_file_takes_what_would_be_said_on_the_terminal() {
    let (server, home) = (server(), Home::new());
    let log = home.path("log");
    let mut command = home.ssh(&server);
    command
        .arg("-E")
        .arg(&log)
        .args([server.alias(), "echo err >&2; kill -TERM $$"]);
    let output = finish(&mut command);
    assert_eq!(text(&output.stderr), "err\n");
    assert!(fs::read_to_string(&log).unwrap().contains("SIGTERM"));
}

#[test]
fn the_subsystem_option_speaks_sftp() {
    let (server, home) = (server(), Home::new());
    // SSH_FXP_INIT, version 3; the answer is SSH_FXP_VERSION (draft-ietf-secsh-filexfer-02 section 4).
    let mut command = home.ssh(&server);
    command
        .args(["-s", server.alias(), "sftp"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    stdin.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
    let mut version = [0; 9];
    stdout.read_exact(&mut version).unwrap();
    assert_eq!(version[4..], [2, 0, 0, 0, 3]);
    // sftp-server ends with its input, whatever it has still to say.
    drop(stdin);
    assert!(end_of(&mut child, "ssh -s").success());
}

#[test]
fn a_stdio_forward_joins_the_streams_to_a_connection() {
    let (server, home) = (server(), Home::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes.reverse();
        stream.write_all(&bytes).unwrap();
    });
    let output = with_status(
        0,
        finish_with(
            home.ssh(&server).args(["-W", &target, server.alias()]),
            b"abc\0\xff",
        ),
    );
    assert_eq!(output.stdout, b"\xff\0cba");
    echo.join().unwrap();

    let closed = closed_address().to_string();
    let output = fail(255, home.ssh(&server).args(["-W", &closed, server.alias()]));
    assert!(text(&output.stderr).contains("refused"), "{output:?}");
}

#[test]
fn no_command_holds_the_connection_until_it_is_ended() {
    let (server, home) = (server(), Home::new());
    let mut child = home.ssh(&server).args(["-N", server.alias()]).spawn().unwrap();
    wait_until("the connection is up", || {
        home.ls().as_array().unwrap().len() == 1
    });
    assert!(child.try_wait().unwrap().is_none());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    end_of(&mut child, "ssh -N");
    wait_until("the server has logged its login", || {
        server.authentications() == 1
    });
}

#[test]
fn terminals_are_given_as_the_options_say() {
    let (server, home) = (server(), Home::new());
    let tty = |options: &[&str]| {
        let output = finish(
            home.ssh(&server)
                .args(options)
                .args([server.alias(), "test -t 0 && test -t 1"]),
        );
        output.status.code()
    };
    // Standard input is not a terminal here.
    assert_eq!(tty(&[]), Some(1));
    assert_eq!(tty(&["-T"]), Some(1));
    assert_eq!(tty(&["-t"]), Some(1));
    assert_eq!(tty(&["-tt"]), Some(0));
    assert_eq!(tty(&["-o", "RequestTTY=force"]), Some(0));
    let output = finish(home.ssh(&server).args(["-t", server.alias(), "exit 0"]));
    assert_says(&output, "Pseudo-terminal will not be allocated");
}

#[test]
fn the_configurations_command_and_environment_are_used() {
    let (server, home) = (
        sshd().config("AcceptEnv LC_* TRUNK_*").start().unwrap(),
        Home::new(),
    );
    let config = home.config_of_box(
        &server,
        &[
            "RemoteCommand echo \"$LC_ALL $TRUNK_SET $TRUNK_OTHER\"; exit 8",
            "SendEnv LC_* TRUNK_OTH*",
            "SetEnv TRUNK_SET=set",
        ],
    );
    let environment = [
        ("LC_ALL", "C.UTF-8"),
        ("TRUNK_OTHER", "other"),
        ("TRUNK_UNSENT", "no"),
    ];
    let output = fail(8, home.ssh_with(&config).arg("box").envs(environment));
    assert_eq!(text(&output.stdout), "C.UTF-8 set other\n");
    let both = fail(255, home.ssh_with(&config).args(["box", "true"]));
    assert_eq!(
        text(&both.stderr),
        "Cannot execute command-line and remote command.\n"
    );
}

/// An `ssh` in front of the system's that writes its arguments to a file and exits with 7; `-G` it leaves to the real one.
fn recording_ssh(home: &Home) -> (String, PathBuf) {
    let record = home.path("arguments");
    let script = format!(
        "#!/bin/sh\nfor a; do [ \"$a\" = -G ] && exec /usr/bin/ssh \"$@\"; done\nprintf '%s\\0' \"$@\" >'{}'\nexit 7\n",
        record.display()
    );
    let ssh = home.script("bin/ssh", &script);
    let path = std::env::var("PATH").unwrap();
    (format!("{}:{path}", ssh.parent().unwrap().display()), record)
}

#[test]
fn the_systems_ssh_gets_every_argument_as_typed() {
    let (server, home) = (server(), Home::new());
    let (path, record) = recording_ssh(&home);
    let config = server.ssh_config();
    let typed = [
        "-F",
        config.to_str().unwrap(),
        "-o",
        "LogLevel=error",
        "-p",
        "22",
        "testbed",
        "echo",
        "a  b",
        "-v",
        "",
    ];
    let mut off = home.trunkline();
    off.arg("ssh")
        .args(typed)
        .env("TRUNKLINE_OFF", "1")
        .env("PATH", &path);
    fail(7, &mut off);
    let recorded = || {
        fs::read_to_string(&record)
            .unwrap()
            .split_terminator('\0')
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(recorded(), typed);
    assert!(home.daemon().is_none());

    // Options that only the system's ssh has.
    for option in [["-V", ""], ["-Q", "cipher"], ["-O", "check"]] {
        let arguments = option
            .into_iter()
            .filter(|word| !word.is_empty())
            .chain(["testbed"]);
        let arguments: Vec<_> = arguments.collect();
        fail(7, home.trunkline().arg("ssh").args(&arguments).env("PATH", &path));
        assert_eq!(recorded(), arguments);
    }
}

#[test]
fn a_host_that_needs_the_systems_ssh_is_handed_over() {
    let (server, home) = (server(), Home::new());
    let (path, record) = recording_ssh(&home);
    let config = home.config_of_box(&server, &["ForwardX11 yes"]);
    let mut command = home.ssh_with(&config);
    command
        .args(["box", "echo hello"])
        .env("PATH", &path)
        .env("DISPLAY", ":7");
    fail(7, &mut command);
    let recorded = fs::read_to_string(&record).unwrap();
    assert!(recorded.ends_with("\0box\0echo hello\0"), "{recorded:?}");
    assert_eq!(server.authentications(), 0);
}

#[test]
fn an_option_hands_over_with_the_same_master_as_its_directive() {
    let (server, home) = (server(), Home::new());
    let (path, record) = recording_ssh(&home);
    let config = home.config_of_box(&server, &[]);
    let recorded = |arguments: &[&str]| {
        let mut command = home.ssh_with(&config);
        command.args(arguments).env("PATH", &path).env("DISPLAY", ":7");
        fail(7, command.args(["box", "echo hello"]));
        let recorded = fs::read_to_string(&record).unwrap();
        let options = recorded.split('\0').take_while(|word| *word != "-F");
        options.map(str::to_owned).collect::<Vec<_>>()
    };
    for (option, directive) in [
        (&["-X"][..], "ForwardX11=yes"),
        (&["-I", "/no/such/provider"], "PKCS11Provider=/no/such/provider"),
        (&["-w", "0:0"], "Tunnel=point-to-point"),
    ] {
        let (typed, set) = (recorded(option), recorded(&["-o", directive]));
        assert_eq!(typed, set, "{option:?}");
        let shares = typed.iter().any(|word| word == "-S");
        assert_eq!(shares, option[0] != "-w", "{typed:?}");
    }
}
