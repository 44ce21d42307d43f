//! The same command line for ssh(1) and for `trunkline ssh`, against the same server: what it says, prints and leaves
//! behind.

mod lines;
mod names;
mod table;
mod timing;
mod verbose;
mod words;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use trunkline_testkit::{Sshd, free_port, write_ssh_config};

use crate::home::{Home, assert_status, describe, end_of, fifo, finish, sshd, succeed, text, wait_until};
use crate::tty::Terminal;

/// ssh, and then trunkline, twice: with a connection to be made, and over the one that is there.
fn both(home: &Home, config: &Path, arguments: &[&str]) -> [Output; 3] {
    let with = |mut command: Command| finish(command.args(arguments));
    let mut ssh = home.command("ssh");
    ssh.arg("-F").arg(config);
    [
        with(ssh),
        with(home.ssh_with(config)),
        with(home.ssh_with(config)),
    ]
}

#[track_caller]
fn agree(home: &Home, config: &Path, arguments: &[&str]) {
    let [ssh, cold, warm] = both(home, config, arguments);
    for ours in [cold, warm] {
        let shown = format!(
            "{arguments:?}\nssh: {}\nours: {}",
            describe(&ssh),
            describe(&ours)
        );
        assert_eq!(ssh.status.code(), ours.status.code(), "{shown}");
        assert_eq!(text(&ssh.stdout), text(&ours.stdout), "{shown}");
        assert_eq!(messages(&ssh), messages(&ours), "{shown}");
    }
}

/// Standard error, without what differs between one run of ssh and the next, or one version and another. It ends the lines
/// of its log with a carriage return, whatever they go to (log.c). Of the two lines about a server that closes before it has
/// said who it is, 10.0 has the second one only. Where a proxy command has ended before ssh has said who *it* is, ssh tells
/// of its own broken pipe, not of the end.
fn messages(output: &Output) -> String {
    text(&output.stderr)
        .replace('\r', "")
        .replace(
            "kex_exchange_identification: Connection closed by remote host\n",
            "",
        )
        .replace(
            "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\n",
            "Connection closed by UNKNOWN port 65535\n",
        )
}

/// A server with a banner.
fn with_banner(home: &Home) -> Sshd {
    let banner = home.path("banner");
    fs::write(&banner, "Authorized use only\n").unwrap();
    sshd()
        .config(&format!("Banner {}", banner.display()))
        .start()
        .unwrap()
}

#[test]
fn the_banner_is_shown_for_each_command_that_ssh_shows_it_for() {
    let home = Home::new();
    let server = with_banner(&home);
    let (config, log) = (server.ssh_config(), home.path("log"));
    let log = log.to_str().unwrap();
    for options in [
        &[][..],
        &["-q"],
        &["-o", "LogLevel=ERROR"],
        &["-o", "LogLevel=QUIET"],
        &["-o", "LogLevel=VERBOSE", "-q"],
        &["-E", log],
        &["-q", "-E", log],
    ] {
        agree(
            &home,
            &config,
            &[options, &[server.alias(), "echo out; exit 3"]].concat(),
        );
    }
}

#[test]
fn a_quiet_ssh_says_nothing_of_its_own_errors_either() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let nobody = free_port();
    let port = format!("Port={nobody}");
    let config = server.ssh_config();
    for options in [
        &["-q"][..],
        &["-o", "LogLevel=QUIET"],
        &["-v", "-q"],
        &["-o", "LogLevel=FATAL"],
    ] {
        agree(
            &home,
            &config,
            &[options, &["-o", &port, server.alias(), "true"]].concat(),
        );
    }
    for options in [&["-o", "LogLevel=ERROR"][..], &[]] {
        for output in both(
            &home,
            &config,
            &[options, &["-o", &port, server.alias(), "true"]].concat(),
        ) {
            assert_status(&output, 255);
            assert!(text(&output.stderr).contains("Connection refused"), "{output:?}");
        }
    }
    // In a file, too.
    let quiet = home.path("quiet");
    write_ssh_config(&quiet, [server.host_entry("box").with_line("LogLevel QUIET")]).unwrap();
    agree(
        &home,
        &quiet,
        &[
            "-o",
            "IdentityFile=none",
            "-o",
            "IdentityAgent=none",
            "-l",
            "nobody",
            "box",
            "true",
        ],
    );
}

#[test]
fn a_log_goes_to_its_file_without_colours_and_the_banner_does_not() {
    let home = Home::new();
    let server = with_banner(&home);
    for program in [home.command("ssh"), home.trunkline()] {
        let mut command = program;
        if command.get_program() != "ssh" {
            command.arg("ssh");
        }
        let log = home.path("log");
        let _ = fs::remove_file(&log);
        command
            .arg("-F")
            .arg(server.ssh_config())
            .args(["-v", "-E"])
            .arg(&log);
        // It is a file that has no colours, and not this that asks for none.
        command.env_remove("NO_COLOR");
        let output = succeed(command.args([server.alias(), "echo out"]));
        assert_eq!(text(&output.stderr), "Authorized use only\n");
        let logged = fs::read_to_string(&log).unwrap();
        assert!(!logged.is_empty() && !logged.contains('\x1b'), "{logged}");
    }
}

#[test]
fn log_level_debug_in_a_file_is_a_log() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let config = home.config_of_box(&server, &["LogLevel DEBUG"]);
    for output in both(&home, &config, &["box", "echo once; exit 4"]) {
        assert_status(&output, 4);
        assert_eq!(text(&output.stdout), "once\n");
        assert!(
            text(&output.stderr).to_ascii_lowercase().contains("debug"),
            "{output:?}"
        );
    }
    for output in both(&home, &config, &["-q", "box", "exit 4"]) {
        assert_status(&output, 4);
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn local_command_runs_for_each_command_in_the_callers_shell_and_directory() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let config = server.ssh_config();
    let local = "LocalCommand=echo %n %r $0; pwd; cat; echo complaint >&2; exit 9";
    let permitted = ["-o", "PermitLocalCommand=yes", "-o", local];
    for command in ["echo remote", "exit 3"] {
        agree(
            &home,
            &config,
            &[&permitted[..], &[server.alias(), command]].concat(),
        );
    }
    agree(&home, &config, &["-o", local, server.alias(), "true"]);
    // Before the command begins, and its end is waited for.
    let order = home.path("order");
    let slow = format!("LocalCommand=echo here >>'{}'", order.display());
    let command = format!("echo there >>'{}'", order.display());
    for output in both(
        &home,
        &config,
        &[
            "-o",
            "PermitLocalCommand=yes",
            "-o",
            &slow,
            server.alias(),
            &command,
        ],
    ) {
        assert_status(&output, 0);
    }
    assert_eq!(fs::read_to_string(&order).unwrap(), "here\nthere\n".repeat(3));
    assert_eq!(server.authentications(), 4 + 1, "ssh four times, trunkline once");
}

/// The ways to run `-f`.
fn in_the_background(home: &Home, server: &Sshd) -> Vec<Command> {
    let ways = [
        &["ssh"][..],
        &["ssh", "-v"],
        &["--no-daemon", "ssh"],
        &["ssh", "-o", "LogLevel=DEBUG"],
    ];
    let ours = ways.map(|way| {
        let mut command = home.trunkline();
        command.args(way);
        command
    });
    let mut all = vec![home.command("ssh")];
    all.extend(ours);
    for command in &mut all {
        command.arg("-F").arg(server.ssh_config());
        // They may stay open for as long as the session lasts, so that nothing waits for their end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    all
}

#[test]
fn what_goes_to_the_background_goes_on_there() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for (number, mut command) in in_the_background(&home, &server).into_iter().enumerate() {
        let gate = home.path(&format!("gate{number}"));
        let result = home.path(&format!("result{number}"));
        fifo(&gate).unwrap();
        let line = format!(
            "cat {} >{1}.new; mv {1}.new {1}",
            gate.display(),
            result.display()
        );
        command.args(["-f", server.alias(), &line]);
        let status = end_of(&mut command.spawn().unwrap(), &command);
        assert!(status.success(), "{command:?}: {status}");
        assert!(!result.exists(), "{command:?}");
        fs::write(&gate, "after its parent").unwrap();
        wait_until("the command has ended", || result.exists());
        assert_eq!(
            fs::read_to_string(&result).unwrap(),
            "after its parent",
            "{command:?}"
        );
    }
}

/// The process that has a word among its arguments.
fn process_with(home: &Home, word: &str) -> Option<Pid> {
    home.processes().into_iter().find(|pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|argument| argument == word.as_bytes())
    })
}

/// Returns whether nobody has the other end of a pipe open.
fn has_ended(pipe: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).unwrap();
    polled[0].revents().contains(PollFlags::HUP)
}

#[test]
fn tunnels_in_the_background_listen_until_their_process_is_ended_and_hold_no_pipe() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for mut command in in_the_background(&home, &server) {
        let port = free_port();
        let forward = format!("127.0.0.1:{port}:127.0.0.1:{}", server.port());
        command.args(["-fN", "-L", &forward, server.alias()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let logs = command
            .get_args()
            .any(|argument| argument == "-v" || argument == "LogLevel=DEBUG");
        let mut child = command.spawn().unwrap();
        assert!(end_of(&mut child, &command).success(), "{command:?}");
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        wait_until("whoever reads its output has its end", || {
            has_ended(&stdout) && (logs || has_ended(&stderr))
        });
        // It listens before the user has a prompt again.
        drop(TcpStream::connect(("127.0.0.1", port)).unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let process = process_with(&home, &forward).expect("a process that can be found by its arguments");
        kill_process(process, Signal::TERM).unwrap();
        wait_until("nobody listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_err()
        });
    }
}

#[test]
fn what_fails_before_it_goes_to_the_background_fails_as_in_front() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let config = server.ssh_config();
    agree(&home, &config, &["-f", server.alias()]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = format!("127.0.0.1:{}:127.0.0.1:1", taken.local_addr().unwrap().port());
    for options in [
        &["-o", "PubkeyAuthentication=no", "-o", "BatchMode=yes"][..],
        &["-o", "ExitOnForwardFailure=yes", "-L", &forward],
    ] {
        for output in both(
            &home,
            &config,
            &[&["-f"], options, &[server.alias(), "true"]].concat(),
        ) {
            assert_status(&output, 255);
            assert!(!output.stderr.is_empty(), "{output:?}");
        }
    }
}

#[test]
fn a_file_that_has_ssh_fork_has_it_fork() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let config = home.config_of_box(&server, &["ForkAfterAuthentication yes"]);
    for (number, program) in ["ssh", "trunkline"].into_iter().enumerate() {
        let gate = home.path(&format!("gate{number}"));
        fifo(&gate).unwrap();
        let mut command = match program {
            "ssh" => home.command("ssh"),
            _ => home.trunkline(),
        };
        if program != "ssh" {
            command.arg("ssh");
        }
        command
            .arg("-F")
            .arg(&config)
            .args(["box", &format!("cat {}", gate.display())]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        assert!(end_of(&mut command.spawn().unwrap(), program).success());
        fs::write(&gate, "").unwrap();
    }
}

#[test]
fn standard_input_is_not_read_where_a_file_says_so() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let config = home.config_of_box(&server, &["StdinNull yes"]);
    let input: PathBuf = home.path("input");
    fs::write(&input, "typed").unwrap();
    for command in [home.command("ssh"), home.trunkline()] {
        let mut command = command;
        if command.get_program() != "ssh" {
            command.arg("ssh");
        }
        command.arg("-F").arg(&config).args(["box", "cat; echo done"]);
        let output = finish(command.stdin(fs::File::open(&input).unwrap()));
        assert_eq!(text(&output.stdout), "done\n");
    }
}

#[test]
fn a_master_that_is_asked_for_makes_its_socket() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for (number, options) in [["-oControlMaster=yes", "-oControlPath="], ["-M", "-S"]]
        .into_iter()
        .enumerate()
    {
        let socket = home.path(&format!("s{number}"));
        let mut master = home.ssh(&server);
        master.arg(options[0]);
        match options[1] {
            "-S" => master.arg("-S").arg(&socket),
            path => master.arg(format!("{path}{}", socket.display())),
        };
        let mut child = master.args(["-N", server.alias()]).spawn().unwrap();
        wait_until("the socket is there", || socket.exists());
        let path = format!("-oControlPath={}", socket.display());
        let before = server.authentications();
        let output = finish(home.ssh(&server).args([&path, server.alias(), "echo through"]));
        assert_eq!(text(&output.stdout), "through\n", "{output:?}");
        assert_eq!(server.authentications(), before);
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        end_of(&mut child, "the master");
    }
}

#[test]
fn a_session_on_a_terminal_ends_with_the_line_of_ssh() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for typed in ["exit 5\n", "\r~."] {
        let ended = [home.command("ssh"), home.trunkline()].map(|mut command| {
            if command.get_program() != "ssh" {
                command.arg("ssh");
            }
            command.arg("-F").arg(server.ssh_config());
            command.args(["-tt", server.alias(), "stty -echo; echo ready; exec sh"]);
            let mut terminal = Terminal::start(&command);
            terminal.answer("ready", typed);
            let said = terminal.expect("closed.");
            // The shell's prompt may have come, or not.
            let last = said.split("Connection to").last().unwrap_or_default().to_owned();
            (last, terminal.end().code())
        });
        assert_eq!(ended[0], ended[1], "{typed:?}");
        assert_eq!(ended[0].0, " 127.0.0.1 ");
    }
}

#[test]
fn keys_in_every_form_lead_in_as_with_ssh() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let directory = home.path("keys");
    fs::create_dir(&directory).unwrap();
    let keygen = |arguments: &[&str]| {
        let made = finish(
            home.command("ssh-keygen")
                .current_dir(&directory)
                .arg("-q")
                .args(arguments),
        );
        assert!(made.status.success(), "{made:?}");
    };
    keygen(&[
        "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "sesame", "-f", "pem",
    ]);
    keygen(&["-t", "ecdsa", "-m", "PKCS8", "-N", "sesame", "-f", "pkcs8"]);
    keygen(&["-t", "ed25519", "-N", "", "-f", "certified"]);
    keygen(&["-t", "ed25519", "-N", "", "-f", "ca"]);
    keygen(&["-s", "ca", "-I", "id", "-n", server.user(), "certified.pub"]);
    fs::rename(
        directory.join("certified-cert.pub"),
        directory.join("certified.pub"),
    )
    .unwrap();
    let line = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    let authorized = format!(
        "{}{}cert-authority {}",
        line("pem.pub"),
        line("pkcs8.pub"),
        line("ca.pub")
    );
    fs::write(server.dir().join("authorized_keys"), authorized).unwrap();
    for name in ["pem.pub", "pkcs8.pub"] {
        fs::remove_file(directory.join(name)).unwrap();
    }
    let knows = home.script("knows", "#!/bin/sh\necho \"$1\" >&2\necho sesame\n");
    let guesses = home.script("guesses", "#!/bin/sh\necho open\n");
    for (key, askpass, status) in [
        ("pem", &knows, 0),
        ("pkcs8", &knows, 0),
        ("certified", &guesses, 0),
        ("pem", &guesses, 255),
    ] {
        let config = home.path(&format!("config-{key}-{status}"));
        let mut entry = server.host_entry("box");
        entry.identities = vec![directory.join(key)];
        entry.may_ask = true;
        write_ssh_config(&config, [entry]).unwrap();
        let run = |mut command: Command| {
            command
                .env("SSH_ASKPASS", askpass)
                .env("SSH_ASKPASS_REQUIRE", "force");
            finish(command.args(["-o", "PreferredAuthentications=publickey", "box", "echo in"]))
        };
        let mut ssh = home.command("ssh");
        ssh.arg("-F").arg(&config);
        let (ssh, ours) = (run(ssh), run(home.ssh_with(&config)));
        assert_status(&ssh, status);
        assert_status(&ours, status);
        assert_eq!(text(&ssh.stdout), text(&ours.stdout), "{key}");
        let asks = |output: &Output| text(&output.stderr).contains("Enter passphrase for key");
        assert_eq!(asks(&ssh), asks(&ours), "{key}");
    }
}
